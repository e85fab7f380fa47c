"""What a workflow has asked for: the operations that are open, each at its place.

The half of an execution that the workflow talks to, by way of its `Context`. The other half, `Execution`, feeds it completions.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.codec.snapshot import FIXED
from perdure.core.ids import child_id, short_key
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.reopen import random_source, root_generation
from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, NewRun
from perdure.core.time.duration import FAR
from perdure.errors import DuplicateName, WorkflowError
from perdure.replay.checkpoints import Checkpoints, is_location_over
from perdure.replay.earlier_attempts import EarlierAttempts
from perdure.replay.futures import OperationFuture, new_operation_future
from perdure.replay.mailbox import Mailbox, bound
from perdure.replay.operations import (
    ChildOperation,
    OpenOperation,
    ScopeOperation,
    StepOperation,
    TimerOperation,
    Timers,
)
from perdure.replay.run_loop import RunLoop, RunTimerHandle
from perdure.workflow.definition import Call
from perdure.workflow.runtime import (
    Checkpoint,
    ChildOptions,
    Effect,
    ExpectedMessage,
    SpawnedChild,
    StepRequest,
    Subscription,
)
from perdure.workflow.saga import UndoLog
from perdure.workflow.scopes import Scope, WorkflowRandom, current_scope


class RunOrigin(Struct, frozen=True, kw_only=True):
    """What a run is known by, and where its time and randomness begin."""

    run_id: str
    type: str
    started_at: int
    seed: str
    generation: int
    attempt: int
    #: Whether an earlier holder ran it to its first wait in this attempt and let go of it in order, with or without a record.
    taken_up_before: bool = False

    @property
    def randomness(self) -> str:
        """What its random numbers grow from."""
        return random_source(self.seed, self.generation)

    @property
    def life(self) -> int:
        """The generation that began with nothing, of which this one is the continuation."""
        return root_generation(self.seed, self.generation)


class OperationsApi(ABC):
    """Implements what a `Runtime` does with what it is asked for."""

    # What most runs never change is theirs by the class: each of very many runs would take the time to set it.
    undos: UndoLog | None = None
    replaying = True
    #: Of the broadcasts that it listens to.
    topics: frozenset[str] = frozenset()
    #: Whether it ever asked for a step that does not wait for what was done before.
    hasty = False
    #: What tells the randomness of a copy from that of the run that it was copied from.
    _salt = ""
    _open_children = 0

    def __init__(self, origin: RunOrigin, earlier: EarlierAttempts, checkpoints: Checkpoints, codec: Codec) -> None:
        self.run_id = origin.run_id
        self.time = origin.started_at
        #: Operations asked for, and started ones given up, since the worker last looked.
        self.fresh: list[OpenOperation] = []
        self.dropped: list[OpenOperation] = []
        #: What the workflow did without waiting for it since the worker last looked.
        self.effects: list[Effect] = []
        self.checkpoints = checkpoints
        self.loop = RunLoop(origin.run_id, self)
        self._origin = origin
        life = origin.life
        #: What the ids of its children, and keys, follow from: a run that began anew has children of its own.
        self._parent = origin.run_id if life == 1 else f"{origin.run_id}~{life}"
        self._key = f"{origin.run_id}:{life}"
        self._codec = codec
        self._earlier = earlier
        self._open: dict[str, OpenOperation] = {}
        self._closed_children: set[str] = set()
        self._early_children: dict[str, Record] = {}
        #: By place, the latest version that the code knows; and places of what the code no longer does.
        self._versions: dict[str, int] = {}
        self._removed: set[str] = set()
        self._root = self.loop.root
        self._unawaited: dict[int, OperationFuture[Any]] = {}
        self.timers = Timers()
        self._mailbox = Mailbox(codec, origin.run_id, checkpoints.received)

    @abstractmethod
    def _resolve(self, operation: OpenOperation, record: Record) -> None:
        """Hand a completion to the workflow."""

    # the worker's side

    def next_timer(self) -> TimerOperation | None:
        """The timer that is due first."""
        return self.timers.first() if self.timers.heap else None

    def sleep(self) -> TimerOperation | None:
        """The sleep that ends first; a timer that bounds something is none."""
        return self.timers.first_of("sleep")

    def move_timer(self, location: str, due: int) -> bool:
        """Let a timer be due at another time; False if there is none."""
        timer = self._open.get(location)
        if not isinstance(timer, TimerOperation):
            return False
        self.timers.move(timer, due)
        return True

    def open_operations(self) -> list[OpenOperation]:
        """What the workflow waits for, in the order in which it was asked for."""
        return list(self._open.values())

    def awaited_messages(self) -> list[str]:
        """The names of the messages that the workflow waits for."""
        return self._mailbox.awaited_names()

    def is_of_the_past(self, message: Message) -> bool:
        """Whether it is the end of a child that the run had before it began anew; one of now may be at the same place."""
        if self._origin.life == 1 or message.kind is not RecordKind.CHILD or not message.key.startswith("child:"):
            return False
        called = self._open.get(message.name)
        places = (message.name, self._earlier.child_location(message.name))
        own = [child_id(self._parent, place) for place in places]
        if isinstance(called, ChildOperation):
            own.append(called.child_id)
        return not message.key.startswith(tuple(f"child:{id}:" for id in own))

    def unreceived(self) -> list[tuple[str, int, str]]:
        """Messages that arrived and nobody took: name, number of the record, payload."""
        return [(name, seq, payload) for name, (seq, payload) in self._mailbox.unreceived()]

    # the workflow's side: Runtime

    @property
    def random(self) -> WorkflowRandom:
        """See `Runtime`. The attempt is left out of the seed: an idempotency key stays what it was."""
        self._check_inside()
        scope = current_scope.get(self._root)
        if scope.random is None or scope.random[0] != self._salt:
            where = f":{scope.path}" if scope.path else ""
            scope.random = self._salt, WorkflowRandom(f"{self._origin.randomness}{self._salt}{where}")
        return scope.random[1]

    def step(self, request: StepRequest) -> asyncio.Future[Any]:
        """See `Runtime`."""
        loop = self.loop
        if not loop.is_current:
            self._check_inside()
        name, identity = request.name, request.spec.identity
        scope = current_scope.get(self._root)
        if scope.functions.get(name) is not identity:
            check_function(scope, name, identity, self._origin)
        args, kwargs = request.args, request.kwargs
        digest = self._codec.digest((args, kwargs), name)
        for value in args:
            if type(value) not in FIXED:
                request = request.owned()
                break
        else:
            if kwargs:
                request = request.owned()
        location = scope.next(name)
        if loop.closed:
            return new_operation_future(loop, scope, location, None)
        # As `_opened` does, which would be another call for every step.
        future = new_operation_future(loop, scope, location, self._unawaited)
        operation = StepOperation(location, future, request, digest)
        if operation.ephemeral:
            self.hasty = True
        self._open[location] = operation
        self.fresh.append(operation)
        future.watcher, future.operation = self, operation
        loop.idle_callbacks = 0
        return future

    def step_at(self, location: str, request: StepRequest) -> asyncio.Future[Any]:
        """See `Runtime`."""
        digest = self._codec.digest((request.args, request.kwargs), request.name)
        future = self._watch(current_scope.get(self._root), location)
        operation = StepOperation(location, future, request.owned(), digest)
        if operation.ephemeral:
            self.hasty = True
        return self._opened(operation, future)

    def reserve_location(self, request: StepRequest) -> str:
        """See `Runtime`."""
        self._check_inside()
        scope = current_scope.get(self._root)
        check_function(scope, request.name, request.spec.identity, self._origin)
        self._codec.digest((request.args, request.kwargs), request.name)
        return scope.next(request.name)

    def observe(self, operation: asyncio.Future[Any], ended: Callable[[asyncio.Future[Any]], None]) -> str:
        """See `Runtime`."""
        assert isinstance(operation, OperationFuture)
        operation.observe(ended)
        return operation.label

    def sleep_until(self, due: int) -> asyncio.Future[None]:
        """See `Runtime`."""
        self._check_inside()
        location, future = self._place("sleep")
        return self._opened(self.timers.set(location, self.time, due, future), future)

    def receive(self, expected: Sequence[ExpectedMessage], due: int | None, *, named: bool) -> asyncio.Future[Any]:
        """See `Runtime`."""
        self._check_inside()
        names = [one.name for one in expected]
        scope = current_scope.get(self._root)
        future = self._watch(scope, f"receive({', '.join(map(repr, names))})")
        if self.loop.closed:
            return future
        self._mailbox.receive(expected, future, scope, named=named)
        if due is not None and not future.done():
            location = scope.next("receive.timeout")
            expired = new_operation_future(self.loop, scope, location, None)
            bound(future, self._opened(self.timers.set(location, self.time, due, expired), expired), names)
        return future

    def call(self, call: Call[Any], options: ChildOptions) -> asyncio.Future[Any]:
        """See `Runtime`."""
        self._check_inside()
        location, future = self._place(call.type)
        self._begin_child(call, options, location, future)
        return future

    def spawn(self, call: Call[Any], options: ChildOptions) -> SpawnedChild:
        """See `Runtime`."""
        self._check_inside()
        scope = current_scope.get(self._root)
        location = scope.next(call.type)
        # Nobody has to wait for it, so it is not among those that were forgotten.
        future = new_operation_future(self.loop, scope, location, None)
        return SpawnedChild(self._begin_child(call, options, location, future).child_id, location, future)

    def start(self, call: Call[Any], options: ChildOptions, wake_at: int) -> str:
        """See `Runtime`."""
        self._check_inside()
        location = current_scope.get(self._root).next(call.type)
        placed = call.place(max(wake_at, self.time), options.queue, options.priority, options.deadline)
        new = NewRun(
            id=options.id or child_id(self._parent, location),
            type=call.type,
            input=call.encode(self._codec),
            queue=placed.queue or DEFAULT_QUEUE,
            priority=DEFAULT_PRIORITY if placed.priority is None else placed.priority,
            wake_at=wake_at,
            deadline=placed.deadline,
            close_by=placed.close_by,
            max_attempts=placed.max_attempts,
            options=placed.options,
            held_back=placed.is_single,
            write_id=short_key(f"{self._key}:{location}"),
        )
        if not self.loop.closed:
            self.effects.append(new)
        return new.id

    def _begin_child(
        self, call: Call[Any], options: ChildOptions, location: str, future: OperationFuture[Any]
    ) -> ChildOperation:
        identity = options.id or child_id(self._parent, self._earlier.child_location(location))
        operation = ChildOperation(location, future, self.time, call, identity, options, call.digest(self._codec))
        self._opened(operation, future)
        operation.siblings = self._open_children
        if operation.location in self._open:
            self._open_children += 1
        early = self._early_children.pop(location, None)
        if early is not None and not self.loop.closed:
            self.fresh.remove(operation)
            self._close(operation)
            self._resolve(operation, early)
        return operation

    def encode(self, value: Any, what: str, declared: Any = Any) -> str:
        """See `Runtime`."""
        return self._codec.encode(value, f"{what} of run {self.run_id!r}", declared)

    def effect(self, name: str, make: Callable[[str], Effect]) -> None:
        """See `Runtime`. The attempt is left out of the key: what was sent is not sent again by another one."""
        self._check_inside()
        location = current_scope.get(self._root).next(f"~{name}")
        effect = make(short_key(f"{self._key}:{location}"))
        if not self.loop.closed:
            self.effects.append(effect)

    def subscribe(self, subscription: Subscription) -> None:
        """See `Runtime`."""
        self._check_inside()
        if subscription.topic not in self.topics:
            self.topics |= {subscription.topic}
            self.effect("listen", lambda _: subscription)

    def has_arrived(self, name: str) -> bool:
        """See `Runtime`."""
        return self._mailbox.has(name)

    def open_scope(self, name: str) -> Scope:
        """See `Runtime`."""
        self._check_inside()
        return Scope(current_scope.get(self._root).next(name) + "/")

    def checkpoint(self, scope: Scope) -> Checkpoint | None:
        """See `Runtime`."""
        return self.checkpoints.mark(scope.location)

    def save_checkpoint(
        self, scope: Scope, checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> asyncio.Future[Any]:
        """See `Runtime`."""
        self._check_inside()
        for operation in list(self._open.values()):
            if isinstance(operation, ChildOperation) and is_location_over(
                operation.location, scope.path, checkpoint.upto, drop
            ):
                self._leave_behind(operation, stop=operation.bound and not checkpoint.upto)
        open_here = [(each.location, f"{each.kind} {each.location!r}") for each in self._open.values()]
        for location, what in open_here + self._mailbox.waiting_inside(scope.path):
            if is_location_over(location, scope.path, checkpoint.upto, drop):
                raise WorkflowError(
                    f"{what} of run {self.run_id!r} is still under way though its part of the workflow is over; await it "
                    "inside of that part"
                )
        self.loop.forsake_generators(lambda path: is_location_over(path, scope.path, checkpoint.upto, drop))
        future = self._watch(current_scope.get(self._root), scope.location)
        return self._opened(ScopeOperation(scope.location, future, checkpoint, type, drop), future)

    def _leave_behind(self, operation: ChildOperation, *, stop: bool) -> None:
        """The part of the workflow that started a child is over: that of a lost branch is stopped, one that lives on does."""
        if stop:
            operation.future.cancel()
        elif not operation.bound:
            self._close(operation)
            self._closed_children.add(operation.location)

    def finished_iterations(self, scope: Scope, upto: int) -> list[str]:
        """See `Runtime`."""
        return self.checkpoints.finished_iterations(scope.path, upto)

    def _check_inside(self) -> None:
        if not self.loop.is_current:
            raise WorkflowError(
                f"the context of run {self.run_id!r} was used outside of its workflow, in a step or in another thread, "
                "where replay would not see it; give a step what it needs as an argument"
            )

    # timers that asyncio asks for

    def add_timer(self, when: float, handle: RunTimerHandle, *, is_sleep: bool) -> None:
        """See `TimerSink`."""
        handle.location = current_scope.get(self._root).next("sleep" if is_sleep else "timer")
        if self.loop.closed:
            return
        due = min(when * 1e6, float(FAR - self._origin.started_at))
        due_at = self._origin.started_at + math.ceil(due)
        operation = self.timers.set(handle.location, self.time, due_at, handle=handle)
        self._open[handle.location] = operation
        self.fresh.append(operation)
        self.loop.idle_callbacks = 0

    def drop_timer(self, handle: RunTimerHandle) -> None:
        """See `TimerSink`."""
        operation = self._open.pop(handle.location, None)
        if operation is not None:
            operation.open = False

    # opening and closing

    def _watch(self, scope: Scope, label: str) -> OperationFuture[Any]:
        return new_operation_future(self.loop, scope, label, None if self.loop.closed else self._unawaited)

    def _place(self, name: str) -> tuple[str, OperationFuture[Any]]:
        scope = current_scope.get(self._root)
        location = scope.next(name)
        return location, self._watch(scope, location)

    def _opened(self, operation: OpenOperation, future: OperationFuture[Any]) -> OperationFuture[Any]:
        # A run that is being let go gets futures that never resolve: raising here could be caught and tried again for ever.
        if not self.loop.closed:
            self._open[operation.location] = operation
            self.fresh.append(operation)
            future.watcher, future.operation = self, operation
            self.loop.idle_callbacks = 0  # equivalent: constant: one callback less of STUCK_AFTER
        return future

    def _close(self, operation: OpenOperation) -> None:
        del self._open[operation.location]
        operation.open = False
        if isinstance(operation, ChildOperation):
            self._open_children -= 1

    def abandoned(self, operation: OpenOperation) -> None:
        """See `CancelWatcher`."""
        if operation.open:
            self._close(operation)
            if isinstance(operation, ChildOperation):
                self._closed_children.add(operation.location)
            if not self.replaying:
                self.dropped.append(operation)


def check_function(scope: Scope, name: str, function: object, origin: RunOrigin) -> None:
    """Raise `DuplicateName` if another function was a step of that name.

    In that scope: places elsewhere are others, and what an iteration did that is over is not known on replay.
    """
    known = scope.functions.setdefault(name, function)
    if known is not function and known != function:
        raise DuplicateName(
            f"two different functions are steps named {name!r} in run {origin.run_id!r} of {origin.type}; "
            'give one of them a name of its own: `ctx.options(name="...").step(...)`'
        )
