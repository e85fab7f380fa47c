"""Contents of a run's next turn, besides its records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.ids import short_key
from perdure.core.model.events import event_run
from perdure.core.model.headers import inherit_headers
from perdure.core.model.outputs import NewOutput, source_of
from perdure.core.model.record import NewMessage, Record, RecordKind
from perdure.core.model.run import ABANDONED, NewRun, Run
from perdure.core.model.turn import ContinueAsNew, Lease, NextState, Trim, Turn
from perdure.core.pinning import base_queue, pinned_build, pinned_queue
from perdure.core.policy.singleton import stored_singleton_of
from perdure.replay.operations import ChildOperation, WatchOperation
from perdure.workflow.child import cancel_key
from perdure.workflow.definition import Definition, Workflow
from perdure.workflow.runtime import Effect

#: Messages that a run has taken in, and events of its audit trail, that outlive a trimming of its history.
REMEMBERED = 300


class TurnDraft(Struct):
    """Effects of a run, gathered until its next turn is made."""

    _codec: Codec
    children: dict[str, NewRun] = {}
    sends: list[NewMessage] = []
    #: Singletons of which the last turn started runs, and of which the next one will.
    singletons_started: tuple[str, ...] = ()
    _singletons_to_start: tuple[str, ...] = ()
    #: Whether an unsaved record is not an ephemeral step's, so that it has to be written soon.
    urgent: bool = False
    #: Whether effects have to be written soon.
    filled: bool = False
    _outputs: list[NewOutput] = []
    _listening: dict[str, bool] = {}
    _trim: Trim | None = None
    #: Number of the last inbox entry that a record was made of since the last turn. The record may be trimmed already.
    read: int = 0
    #: Number of the last inbox entry that was taken in and left no record, since the last turn.
    unrecorded: int = 0
    _carried: int = 0

    def add(self, effects: Iterable[Effect]) -> None:
        """Add effects of the workflow: outputs, messages, new runs, subscriptions."""
        for effect in effects:
            self.filled = True
            if isinstance(effect, NewOutput):
                self._outputs.append(effect)
            elif isinstance(effect, NewMessage):
                self.sends.append(effect)
            elif isinstance(effect, NewRun):
                self._start(effect)
            else:
                self._listening[effect.topic] = effect.on

    def add_items(self, items: list[NewOutput]) -> None:
        """Add items that steps have emitted."""
        if items:
            self._outputs += items
            self.filled = True

    def took_in(self, entry: int) -> None:
        """Note that an inbox entry was taken in and left no record."""
        self.unrecorded = entry

    def carry(self, entry: int) -> None:
        """Note that the inbox up to an entry goes into the next generation; without one, it stays unread."""
        self._carried = entry

    def trim(self, records: tuple[tuple[int, int], ...], seen: int) -> None:
        """Delete records that are not needed any more, with the next turn. This alone does not cause a turn."""
        self._trim = Trim(records=records, inbox=max(0, seen - REMEMBERED), events=REMEMBERED)

    def start_child(self, operation: ChildOperation, parent: Run, max_depth: int, now: int) -> None:
        """Start a child with the next turn. Raises `EncodeError` and `UsageError`.

        Its id follows from the parent's location, so that asking twice creates one run.
        """
        options = operation.options
        placed = operation.call.place(now, options.queue, options.priority, min(options.deadline, parent.deadline))
        self.filled = True
        child = NewRun(
            id=operation.child_id,
            type=operation.call.type,
            input=operation.call.encode(self._codec),
            queue=child_queue(placed.queue, parent.queue, operation.call.definition),
            priority=parent.priority if placed.priority is None else placed.priority,
            deadline=placed.deadline,
            close_by=placed.close_by,
            max_attempts=placed.max_attempts,
            options=inherit_headers(placed.options, parent.options, options.headers),
            held_back=placed.is_single,
            attributes=options.attributes,
            parent_id=parent.id,
            parent_location=operation.location,
            max_depth=max_depth if parent.parent_id is not None else 0,
            write_id=("" if operation.bound else ABANDONED)
            + short_key(f"{parent.id}:{parent.generation}:{operation.location}:{parent.attempt}"),
        )
        self._start(child)

    def _start(self, new: NewRun) -> None:
        self.children[new.id] = new
        if new.held_back and (single := stored_singleton_of(new.options)) is not None:
            self._singletons_to_start = (*self._singletons_to_start, single.name)

    def stop_child(self, operation: ChildOperation, parent: Run) -> None:
        """Cancel a child whose result is not needed, or do not start it in the first place."""
        # A child that the run still waits for has to exist in order to end. And an earlier holder of the lease may have
        # started the child without a record of it.
        spared = not operation.open and self.children.pop(operation.child_id, None) is not None
        if not spared or parent.token > 1:
            reason = self._codec.encode(f"its parent {parent.id!r} no longer waits for it", "reason")
            key = cancel_key(parent.id, operation.location)
            self.sends.append(
                NewMessage(
                    run_id=operation.child_id, kind=RecordKind.CANCEL, payload=reason, key=key, only_child_of=parent.id
                )
            )
        self.filled = bool(self.children or self.sends or self._outputs or self._listening)

    def watch(self, operation: WatchOperation, run: Run) -> None:
        """Wait for the end of a run, or for its outputs, from the next turn on."""
        if operation.event:
            self.children[operation.target] = event_run(operation.target, short_key(f"{run.id}:{operation.key}"))
        self.sends.append(_watch(RecordKind.WATCH, operation, run))
        self.filled = True

    def unwatch(self, operation: WatchOperation, run: Run) -> None:
        """Wait no longer, or do not begin to wait."""
        self.sends = [one for one in self.sends if one.key != operation.key or one.kind is not RecordKind.WATCH]
        self.sends.append(_watch(RecordKind.UNWATCH, operation, run))
        self.filled = True

    def stop_next_attempt(self, stop: Record, run: Run) -> None:
        """Repeat a cancellation that this attempt has recorded for the next one."""
        # No other key begins with a space.
        key = f" stop:{run.generation}:{stop.seq}"
        self.sends.append(
            NewMessage(run_id=run.id, kind=RecordKind.CANCEL, payload=stop.payload, failed=stop.failed, key=key)
        )
        self.filled = True

    def drop_children(self) -> None:
        """Drop children that were about to be started: the run is over."""
        self.children = {id: new for id, new in self.children.items() if new.parent_id is None}

    def clear_all_but_emitted(self) -> None:
        """Clear everything except the items of steps, which stay whatever becomes of the workflow."""
        emitted = [output for output in self._outputs if source_of(output.key)]
        self.clear()
        self.add_items(emitted)

    def clear(self) -> None:
        """Forget everything that was gathered."""
        self.children.clear()
        self.sends.clear()
        self._outputs.clear()
        self._listening.clear()
        self._trim = None
        self.urgent = self.filled = False
        self.read = 0

    def turn(self, lease: Lease, records: tuple[Record, ...], next: NextState | None) -> Turn:
        """Make the turn and empty the draft."""
        self.urgent = False
        if not (self.filled or self.read or self.unrecorded or self._carried or self._trim):
            return Turn(lease=lease, records=records, next=next)
        read = max(self.read, self.unrecorded, self._carried if isinstance(next, ContinueAsNew) else 0)
        self.read = self.unrecorded = 0
        if not self.filled and self._trim is None:
            return Turn(lease=lease, records=records, read=read, next=next)
        self.singletons_started, self._singletons_to_start = self._singletons_to_start, ()
        turn = Turn(
            lease=lease,
            records=records,
            read=read,
            children=tuple(self.children.values()),
            sends=tuple(self.sends),
            outputs=tuple(self._outputs),
            subscribes=tuple(topic for topic, on in self._listening.items() if on),
            unsubscribes=tuple(topic for topic, on in self._listening.items() if not on),
            trim=self._trim,
            next=next,
        )
        self.clear()
        return turn


def _watch(kind: RecordKind, operation: WatchOperation, run: Run) -> NewMessage:
    return NewMessage(
        run_id=operation.target,
        kind=kind,
        name=operation.location,
        payload=run.id,
        key=operation.key,
        wants=operation.wants,
    )


def child_queue(given: str | None, parents: str, definition: Definition[Any, Any] | None) -> str:
    """Return the queue of a child: the one of its call, or its parent's.

    A workflow that a pinned run starts is pinned to the same build, unless its code says otherwise. Activities are not
    pinned: workers in any language execute them.
    """
    queue = given or base_queue(parents)
    build = pinned_build(parents)
    if not build or not isinstance(definition, Workflow) or definition.pinned is False:
        return queue
    return pinned_queue(queue, build)
