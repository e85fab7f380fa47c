"""What a run's next turn will carry besides its records."""

from __future__ import annotations

from perdure.core.codec import Codec
from perdure.core.model import Kind, Lease, NewMessage, NewRun, Next, Record, Run, Turn
from perdure.replay.operations import ChildOperation


class Draft:
    """Children to start and to stop, gathered until the turn is made."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.children: dict[str, NewRun] = {}
        self.sends: list[NewMessage] = []
        #: Whether a record waits to be saved that is not an ephemeral step's.
        self.urgent = False

    def start_child(self, operation: ChildOperation, parent: Run) -> None:
        """Create a run; its id follows from the parent's location, so asking twice creates one. Raises `EncodeError`."""
        options = operation.options
        self.children[operation.child_id] = NewRun(
            id=operation.child_id,
            type=operation.call.type,
            input=operation.call.encode(self._codec),
            queue=options.queue or parent.queue,
            priority=parent.priority if options.priority is None else options.priority,
            deadline=min(options.deadline, parent.deadline),
            parent_id=parent.id,
            parent_location=operation.location,
            write_id=f"{parent.id}:{operation.location}:{parent.attempt}",
        )

    def stop_child(self, operation: ChildOperation, parent: Run) -> None:
        """Tell a child that its result is not wanted any more, or do not start it in the first place."""
        if self.children.pop(operation.child_id, None) is None:
            reason = self._codec.encode(f"its parent {parent.id!r} no longer waits for it", "reason")
            key = f"cancel:{parent.id}:{operation.location}"
            self.sends.append(
                NewMessage(
                    run_id=operation.child_id, kind=Kind.CANCEL, payload=reason, key=key, only_child_of=parent.id
                )
            )

    def clear(self) -> None:
        """Forget what was gathered."""
        self.children.clear()
        self.sends.clear()
        self.urgent = False

    def turn(self, lease: Lease, records: tuple[Record, ...], next: Next | None) -> Turn:
        """The turn; the draft is empty afterwards."""
        self.urgent = False
        read = 0
        for record in records:
            if record.inbox_seq > read:
                read = record.inbox_seq
        if not self.children and not self.sends:
            return Turn(lease=lease, records=records, read=read, next=next)
        turn = Turn(
            lease=lease,
            records=records,
            read=read,
            children=tuple(self.children.values()),
            sends=tuple(self.sends),
            next=next,
        )
        self.clear()
        return turn
