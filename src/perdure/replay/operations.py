"""Durable operations: what a run has open, its timers, and the calls of a workflow that open them.

A workflow makes the calls through its `Context`. `OperationsApi` keeps the open operations, each at its location;
`Execution` derives from it and feeds in completions.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from abc import ABC, abstractmethod
from asyncio.events import _get_running_loop
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import copy_context
from functools import cached_property
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.codec.snapshot import FIXED
from perdure.core.ids import WATCH_KEY, child_id, child_place, children_base, short_key, watch_key
from perdure.core.model.headers import Headers, headers_of, inherit_headers
from perdure.core.model.outputs import WantedOutput
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    NO_OPTIONS,
    NewRun,
    OnClose,
    random_source,
    root_generation,
)
from perdure.core.model.waits import Wait
from perdure.core.time.duration import NEVER
from perdure.core.tracing import RunTrace, trace_id_of
from perdure.errors import DuplicateName, EncodeError, WorkflowError
from perdure.replay.checkpoints import Checkpoints, is_location_over
from perdure.replay.mailbox import Mailbox, bound
from perdure.replay.reused_results import EarlierAttempts
from perdure.replay.run_loop import OperationFuture, RunLoop, RunTimerHandle, new_operation_future, thread_id
from perdure.workflow.definition import Call
from perdure.workflow.runtime import (
    ChildOptions,
    Effect,
    ExpectedMessage,
    SpawnedChild,
    StepRequest,
    TopicSubscription,
)
from perdure.workflow.saga import UndoLog
from perdure.workflow.scopes import Checkpoint, Scope, WorkflowRandom, current_scope
from perdure.workflow.step import NO_STEP_SETTINGS, current_step


class OpenOperation:
    """An operation at a location, with the workflow's future of it."""

    __slots__ = ("digest", "future", "location", "open")
    kind: RecordKind
    #: Whether an earlier attempt's result is one of the same arguments only.
    compares_arguments = False

    def __init__(self, location: str, future: OperationFuture[Any] | None, digest: str = "") -> None:
        self.location = location
        self.future = future
        #: Digest of the arguments, if there are any.
        self.digest = digest
        #: Whether the workflow still waits for it.
        self.open = True


class StepOperation(OpenOperation):
    """A step, with the state that failed attempts have left."""

    __slots__ = ("attempts", "context", "ephemeral", "is_usual", "request", "retry_at")
    kind = RecordKind.STEP
    compares_arguments = True
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], request: StepRequest, digest: str) -> None:
        # Not through `OpenOperation`: one is made for every step, and each call costs.
        self.location = location
        self.future = future
        self.digest = digest
        self.open = True
        self.request = request
        #: Attempts used up so far.
        self.attempts = 0
        #: Time of the next attempt.
        self.retry_at = 0
        #: Context variables of the code that has asked for the step.
        self.context = context = copy_context()
        if request.options is NO_STEP_SETTINGS:
            #: Whether the workflow goes on before the result is durable.
            self.ephemeral = False
            #: Whether it is an async function, and nothing else says how it is executed: no option, and no variable of
            #: the workflow.
            self.is_usual = request.spec.is_async and len(context) == 1 and not request.transaction
        else:
            self.ephemeral = request.options.ephemeral is True
            self.is_usual = False


# A class that is called enters the interpreter once more, which takes longer than the rest of making a step.
_new_step, _init_step = StepOperation.__new__, StepOperation.__init__

#: A method of an imported object would be bound anew by each call.
_scope = current_scope.get


class TimerOperation(OpenOperation):
    """A timer of `ctx.sleep` or `receive` (with a future), or of asyncio (with a handle)."""

    __slots__ = ("asked_at", "due", "handle", "order")
    kind = RecordKind.TIMER

    def __init__(
        self,
        location: str,
        future: OperationFuture[Any] | None,
        asked_at: int,
        due: int,
        order: int,
        handle: RunTimerHandle | None = None,
    ) -> None:
        super().__init__(location, future)
        #: Workflow time at which the timer was set.
        self.asked_at = asked_at
        self.due = min(due, NEVER)
        #: Timers that are due at the same time fire in the order in which they were set.
        self.order = order
        self.handle = handle

    @property
    def name(self) -> str:
        """Name of the timer: its location without scope and number."""
        return self.location.rpartition("/")[2].partition("#")[0]

    def __lt__(self, other: TimerOperation) -> bool:
        return (self.due, self.order) < (other.due, other.order)


class RunOperation(OpenOperation):
    """A run whose result is awaited."""

    __slots__ = ("asked_at", "returns")
    kind = RecordKind.CHILD
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], asked_at: int, returns: Any, digest: str) -> None:
        super().__init__(location, future, digest)
        #: Workflow time at which the run was asked for.
        self.asked_at = asked_at
        #: Type that the result is decoded to.
        self.returns = returns


class WatchOperation(RunOperation):
    """A run that is not a child, whose result or outputs are awaited."""

    __slots__ = ("event", "key", "target", "wants")
    compares_arguments = True

    def __init__(
        self,
        location: str,
        future: OperationFuture[Any],
        asked_at: int,
        target: str,
        returns: Any,
        key: str,
        digest: str,
    ) -> None:
        super().__init__(location, future, asked_at, returns, digest)
        self.target = target
        #: Whether the target is a sticky event, which is created by the first wait for it.
        self.event = False
        #: Outputs that are awaited; None: the result.
        self.wants: WantedOutput | None = None
        #: Key of the inbox entry that has the outcome. Another attempt, and a run that continues as new, wait anew.
        self.key = key


class ChildOperation(RunOperation):
    """A child run whose result is awaited."""

    __slots__ = ("bound", "call", "child_id", "options", "siblings")

    def __init__(
        self,
        location: str,
        future: OperationFuture[Any],
        asked_at: int,
        call: Call[Any],
        child_id: str,
        options: ChildOptions,
        digest: str,
    ) -> None:
        super().__init__(location, future, asked_at, call.returns, digest)
        self.call = call
        self.child_id = child_id
        self.options = options
        #: Whether the child ends with its parent.
        self.bound = options.on_close is not OnClose.ABANDON
        #: Children of the run that were under way at that time.
        self.siblings = 0  # equivalent: constant: set by the caller, which counts them


class ScopeOperation(OpenOperation):
    """A checkpoint of a scope; complete as soon as it is recorded."""

    __slots__ = ("checkpoint", "drop", "type")
    kind = RecordKind.SCOPE

    def __init__(
        self, location: str, future: OperationFuture[Any], checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> None:
        super().__init__(location, future)
        self.checkpoint = checkpoint
        #: Type that the checkpoint's value is decoded to.
        self.type = type
        #: Paths whose records are trimmed then.
        self.drop = drop


class RemovedOperation(OpenOperation):
    """An operation that the history has and the code no longer asks for."""

    __slots__ = ("was",)
    #: A kind that completes nothing, so that the operation is not mistaken for the one that it stands in for.
    kind = RecordKind.ATTEMPT
    future: OperationFuture[Any]

    def __init__(self, location: str, future: OperationFuture[Any], was: RecordKind) -> None:
        super().__init__(location, future)
        self.was = was


class Timers(Struct):
    """Heap of a run's timers, the first due on top. Cancelled ones are skipped there."""

    #: Empty if there is nothing to wait for.
    heap: list[TimerOperation] = []
    _count: int = 0
    _room: int = 64

    def set(
        self,
        location: str,
        now: int,
        due: int,
        future: OperationFuture[None] | None = None,
        handle: RunTimerHandle | None = None,
    ) -> TimerOperation:
        """Set a timer at the workflow time `now`."""
        self._count += 1
        if len(self.heap) > self._room:
            # Most timers bound something that ends well before; their remains would stay until they are due.
            self.heap = [timer for timer in self.heap if timer.open]
            heapq.heapify(self.heap)
            self._room = 2 * len(self.heap) + 64  # equivalent: constant: only how often the heap is cleaned
        operation = TimerOperation(location, future, now, due, self._count, handle)
        heapq.heappush(self.heap, operation)
        return operation

    def first(self) -> TimerOperation | None:
        """Return the open timer that is due first."""
        while self.heap and not self.heap[0].open:
            heapq.heappop(self.heap)
        return self.heap[0] if self.heap else None

    def first_of(self, name: str) -> TimerOperation | None:
        """Return the open timer of that name that is due first."""
        return min((timer for timer in self.heap if timer.open and timer.name == name), default=None)

    def move(self, timer: TimerOperation, due: int) -> None:
        """Change the time at which a timer is due."""
        timer.due = due
        heapq.heapify(self.heap)

    def clear(self) -> None:
        """Remove all timers."""
        self.heap.clear()


#: Name of the timers that bound receives.
RECEIVE_TIMEOUT = "receive.timeout"


class RunOrigin(Struct, frozen=True, kw_only=True):
    """Identity of a run, and the origin of its time and randomness."""

    run_id: str
    type: str
    started_at: int
    seed: str
    generation: int
    attempt: int
    #: Whether an earlier holder of this attempt ran the workflow to its first wait and ended its claim in order.
    taken_up_before: bool = False
    #: Options of the run, with its headers.
    options: str = NO_OPTIONS

    @property
    def randomness(self) -> str:
        """Seed of the run's random numbers."""
        return random_source(self.seed, self.generation)

    @property
    def life(self) -> int:
        """Generation that began with nothing, which this one continues."""
        return root_generation(self.seed, self.generation)


_NO_TOPICS: frozenset[str] = frozenset()


class OperationsApi(ABC):
    """Implements the calls of `Runtime` that open operations and cause effects."""

    # Attributes that every run reads. In a `__dict__` there would be too many for CPython to share their names among
    # runs; class attributes are slow to read.
    __slots__ = (
        "__dict__", "__weakref__", "_codec", "_earlier", "_mailbox", "_open", "_origin", "_root", "_unawaited",
        "checkpoints", "dropped", "effects", "fresh", "has_ephemeral", "loop", "replaying", "run_id", "time", "timers",
        "topics", "undos",
    )  # fmt: skip

    # Class attributes: most of very many runs never change them, and no step reads them.
    #: Difference between the randomness of a fork and that of its origin.
    _salt = ""
    #: The trace that the run belongs to, if it is not that of its headers.
    trace: RunTrace | None = None
    _open_children = 0
    #: By the name of its message: type and validator of a question.
    validators: Mapping[str, tuple[Any, Callable[[Any], object]]] = MappingProxyType({})

    def __init__(self, origin: RunOrigin, earlier: EarlierAttempts, checkpoints: Checkpoints, codec: Codec) -> None:
        self.run_id = origin.run_id
        self.time = origin.started_at
        #: New operations, and abandoned ones that had begun, that the worker has not collected.
        self.fresh: list[OpenOperation] = []
        self.dropped: list[OpenOperation] = []
        #: Effects that the worker has not collected.
        self.effects: list[Effect] = []
        self.checkpoints = checkpoints
        self.loop = loop = RunLoop(origin.run_id, self, origin.started_at)
        self.undos: UndoLog | None = None
        self.replaying = True
        #: Topics of broadcasts that the run has subscribed to.
        self.topics = _NO_TOPICS
        #: Whether the run has ever asked for an ephemeral step, which does not wait for earlier records.
        self.has_ephemeral = False
        self._origin = origin
        self._codec = codec
        self._earlier = earlier
        self._open: dict[str, OpenOperation] = {}
        self._root = loop.root
        self._unawaited: dict[int, OperationFuture[Any]] = {}
        self.timers = Timers()
        self._mailbox = Mailbox(codec, origin.run_id, checkpoints.received)

    # What few runs need is made on first use.

    @property
    def headers(self) -> Headers:
        """Headers of the run."""
        return headers_of(self._origin.options)

    @property
    def log_fields(self) -> dict[str, object]:
        """Fields of log records of the workflow."""
        fields: dict[str, object] = {"run_id": self.run_id, "run_type": self._origin.type}
        fields["attempt"] = self._origin.attempt
        if trace_id := trace_id_of(self.headers) if self.trace is None else self.trace.trace_id:
            fields["trace_id"] = trace_id
        return fields

    @cached_property
    def _closed_children(self) -> dict[str, str]:
        """By location, the digests of children whose outcome the workflow has, or does not need any more."""
        return {}

    @cached_property
    def _given_up(self) -> dict[str, str]:
        """By location, the digests of children that the workflow has cancelled and whose end is not recorded."""
        return {}

    @cached_property
    def _early_children(self) -> dict[str, Record]:
        """By location, outcomes of children that the workflow has not asked for yet."""
        return {}

    @cached_property
    def _versions(self) -> dict[str, int]:
        """By location, the latest version that the code knows."""
        return {}

    @cached_property
    def _removed(self) -> set[str]:
        """Locations of removed operations."""
        return set()

    @property
    def _parent(self) -> str:
        """Base of the ids of children."""
        return children_base(self.run_id, self._origin.life)

    @property
    def _key(self) -> str:
        """Base of keys."""
        return f"{self.run_id}:{self._origin.life}"

    @abstractmethod
    def _resolve(self, operation: OpenOperation, record: Record) -> None:
        """Resolve an operation's future with its record."""

    @abstractmethod
    def _warn_of_state(self, location: str) -> None:
        """Warn that a loop goes on from a checkpoint although it began with another state."""

    @abstractmethod
    def _set_refused_aside(self) -> None:
        """Set messages aside that could not be decoded."""

    # called by the worker

    def next_timer(self) -> TimerOperation | None:
        """Return the timer that is due first."""
        return self.timers.first() if self.timers.heap else None

    def sleep(self) -> TimerOperation | None:
        """Return the sleep that ends first. Timers that bound something do not count."""
        return self.timers.first_of("sleep")

    def move_timer(self, location: str, due: int) -> bool:
        """Change the time at which a timer is due; False if there is no such timer."""
        timer = self._open.get(location)
        if not isinstance(timer, TimerOperation):
            return False
        self.timers.move(timer, due)
        return True

    def open_operations(self) -> list[OpenOperation]:
        """Return the open operations, in the order in which they were asked for."""
        return list(self._open.values())

    def awaited_messages(self) -> list[str]:
        """Return the names of the messages that the workflow waits for."""
        return self._mailbox.awaited_names()

    def message_waits(self) -> list[Wait]:
        """Return the messages that the workflow waits for, with times."""
        return self._mailbox.waits()

    def is_from_earlier_generation(self, message: Message) -> bool:
        """True if a message is the end of a child that an earlier call has started, or of a run that is not waited for.

        That is a child of an earlier generation, or one that failed in an earlier attempt and was retried by itself.
        Another child may be at the same location now.
        """
        if message.kind is RecordKind.CHILD and message.key.startswith(WATCH_KEY):
            awaited = self._open.get(message.name)
            return not isinstance(awaited, WatchOperation) or awaited.key != message.key
        if message.kind is not RecordKind.CHILD or not message.key.startswith("child:"):
            return False
        called = self._open.get(message.name)
        if isinstance(called, ChildOperation):
            return not message.key.startswith(f"child:{called.child_id}:")
        failures = self._earlier.failures(message.name)
        failed = [child_id(self._parent, child_place(message.name, number)) for number in range(failures)]
        if message.key.startswith(tuple(f"child:{id}:" for id in failed)):
            return True
        current = child_id(self._parent, child_place(message.name, failures))
        return self._origin.life > 1 and not message.key.startswith(f"child:{current}:")

    def forget_watches(self, answered: Collection[str]) -> None:
        """Do not register waits for other runs whose outcomes, by their keys, are there."""
        self.fresh = [one for one in self.fresh if not isinstance(one, WatchOperation) or one.key not in answered]

    def unreceived(self) -> list[tuple[str, int, str]]:
        """Return the messages that were not received: name, number of the record, payload."""
        return [(name, seq, payload) for name, (seq, payload) in self._mailbox.unreceived()]

    # called by the workflow (`Runtime`)

    @property
    def random(self) -> WorkflowRandom:
        """Random generator of the current scope.

        The attempt is not part of the seed, so that idempotency keys stay the same.
        """
        self._check_inside()
        scope = current_scope.get(self._root)
        if scope.random is None or scope.random[0] != self._salt:
            where = f":{scope.path}" if scope.path else ""
            scope.random = self._salt, WorkflowRandom(f"{self._origin.randomness}{self._salt}{where}")
        return scope.random[1]

    def step(self, request: StepRequest) -> asyncio.Future[Any]:
        """Ask for a step at the next location of its name."""
        loop = self.loop
        # As `is_current` says; inlined, because every step passes here.
        if loop.thread != thread_id():
            self._check_inside()
        name, identity = request.name, request.spec.identity
        scope = _scope(self._root)
        if scope.functions.get(name) is not identity:
            check_function(scope, name, identity, self._origin)
        args, kwargs = request.args, request.kwargs
        for value in args:
            if type(value) not in FIXED:
                digest, request = self._codec.digest((args, kwargs), name), request.owned()
                break
        else:
            if kwargs:
                digest, request = self._codec.digest((args, kwargs), name), request.owned()
            else:
                digest = self._codec.digest_of_fixed(args, name)
        location = scope.next(name)
        if loop.closed:
            return new_operation_future(loop, scope, location, None)
        # As `new_operation_future` and `_opened` do; inlined, because every step passes here. The running loop is the
        # one that the future gets.
        future: OperationFuture[Any] = OperationFuture()
        if scope.path:
            number = loop.next_hash_in(scope)
        else:
            scope.futures += 1
            number = loop.hash_base + scope.futures
        future.stable_hash = number
        future.label = location
        future.unawaited = unawaited = self._unawaited
        unawaited[number] = future
        operation = _new_step(StepOperation)
        _init_step(operation, location, future, request, digest)
        if operation.ephemeral:
            self.has_ephemeral = True
        self._open[location] = operation
        self.fresh.append(operation)
        future.watcher, future.operation = self, operation
        loop.idle_callbacks = 0
        return future

    def step_at(self, location: str, request: StepRequest) -> asyncio.Future[Any]:
        """Ask for a step at a location that was reserved before."""
        digest = self._codec.digest((request.args, request.kwargs), request.name)
        future = self._watch(current_scope.get(self._root), location)
        operation = StepOperation(location, future, request.owned(), digest)
        if operation.ephemeral:
            self.has_ephemeral = True
        return self._opened(operation, future)

    def reserve_location(self, request: StepRequest) -> str:
        """Reserve the next location of a step."""
        self._check_inside()
        scope = current_scope.get(self._root)
        check_function(scope, request.name, request.spec.identity, self._origin)
        self._codec.digest((request.args, request.kwargs), request.name)
        return scope.next(request.name)

    def observe(self, operation: asyncio.Future[Any], ended: Callable[[asyncio.Future[Any]], None]) -> str:
        """Call back when an operation has ended, without awaiting it; return its label."""
        assert isinstance(operation, OperationFuture)
        operation.observe(ended)
        return operation.label

    def sleep_until(self, due: int) -> asyncio.Future[None]:
        """Sleep until a time."""
        self._check_inside()
        location, future = self._place("sleep")
        return self._opened(self.timers.set(location, self.time, due, future), future)

    def receive(self, expected: Sequence[ExpectedMessage], due: int | None, *, named: bool) -> asyncio.Future[Any]:
        """Receive the next message of some names, until `due` if that is given."""
        self._check_inside()
        names = [one.name for one in expected]
        scope = current_scope.get(self._root)
        future = self._watch(scope, f"receive({', '.join(map(repr, names))})")
        if self.loop.closed:
            return future
        self._mailbox.receive(expected, future, scope, named=named, since=self.time, until=due or 0)
        if self._mailbox.refused:
            self._set_refused_aside()
        if due is not None and not future.done():
            location = scope.next(RECEIVE_TIMEOUT)
            expired = new_operation_future(self.loop, scope, location, None)
            bound(future, self._opened(self.timers.set(location, self.time, due, expired), expired), names)
        return future

    def validate_questions(self, expected: ExpectedMessage, validate: Callable[[Any], object]) -> None:
        """Validate questions of a name from now on; a later validator replaces an earlier one."""
        self._check_inside()
        self.validators = {**self.validators, expected.name: (expected.type, validate)}

    def call(self, call: Call[Any], options: ChildOptions) -> asyncio.Future[Any]:
        """Call a child and await its result."""
        self._check_inside()
        location, future = self._place(call.type)
        self._begin_child(call, options, location, future)
        return future

    def spawn(self, call: Call[Any], options: ChildOptions) -> SpawnedChild:
        """Start a child without awaiting it."""
        self._check_inside()
        scope = current_scope.get(self._root)
        location = scope.next(call.type)
        # Not listed as unawaited: a spawned child need not be awaited.
        future = new_operation_future(self.loop, scope, location, None)
        return SpawnedChild(self._begin_child(call, options, location, future).child_id, location, future)

    def start(self, call: Call[Any], options: ChildOptions, wake_at: int) -> str:
        """Start an independent run; return its id."""
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
            options=inherit_headers(placed.options, self._origin.options, options.headers),
            held_back=placed.is_single,
            attributes=options.attributes,
            write_id=short_key(f"{self._key}:{location}"),
        )
        if not self.loop.closed:
            self.effects.append(new)
        return new.id

    def watch(
        self, name: str, target: str, returns: Any, *, event: bool = False, wants: WantedOutput | None = None
    ) -> asyncio.Future[Any]:
        """Wait for the end of any run, for outputs of it, or for an event."""
        self._check_inside()
        location, future = self._place(name)
        key = watch_key(self._origin.life, self._origin.attempt, location, target)
        digest = self._codec.digest(target if wants is None else [target, wants.kind.value, wants.name])
        watch = WatchOperation(location, future, self.time, target, returns, key, digest)
        watch.event, watch.wants = event, wants
        return self._opened(watch, future)

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
        """Encode a value of the workflow. Raises `EncodeError`."""
        return self._codec.encode(value, f"{what} of run {self.run_id!r}", declared)

    def decode(self, payload: str, type: Any, what: str) -> Any:
        """Decode a value for the workflow. Raises `DecodeError`."""
        return self._codec.decode(payload, type, f"{what}, in run {self.run_id!r}")

    def effect(self, name: str, make: Callable[[str], Effect]) -> None:
        """Cause an effect with the next turn, under a key.

        The attempt is not part of the key, so that another attempt does not send it again.
        """
        self._check_inside()
        location = current_scope.get(self._root).next(f"~{name}")
        effect = make(short_key(f"{self._key}:{location}"))
        if not self.loop.closed:
            self.effects.append(effect)

    def child_cancelled(self, location: str) -> None:
        """Note that the workflow has cancelled a child that it has spawned; it may still wait for its end."""
        operation = self._open.get(location)
        if operation is not None:
            self._given_up[location] = operation.digest

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Subscribe to a topic of broadcasts."""
        self._check_inside()
        if subscription.topic not in self.topics:
            self.topics |= {subscription.topic}
            self.effect("listen", lambda _: subscription)

    def has_arrived(self, name: str) -> bool:
        """True if a message of that name could be received at once."""
        return self._mailbox.has(name)

    def open_scope(self, name: str) -> Scope:
        """Open a scope at the next location of its name."""
        self._check_inside()
        return Scope(current_scope.get(self._root).next(name) + "/")

    def digest_of_state(self, state: object) -> str:
        """Return the digest of the state that a loop begins with; empty if it has none."""
        try:
            return self._codec.digest(state)
        except EncodeError:
            return ""

    def checkpoint(self, scope: Scope, begins: str = "") -> Checkpoint | None:
        """Return the latest checkpoint of a scope, and warn if it is of a loop that began with another state."""
        latest = self.checkpoints.latest(scope.location)
        if latest is not None and begins and latest.begins not in ("", begins):
            self._warn_of_state(scope.location)
        return latest

    def save_checkpoint(
        self, scope: Scope, checkpoint: Checkpoint, type: Any, drop: Sequence[str]
    ) -> asyncio.Future[Any]:
        """Save a checkpoint of a scope, which trims what lies before it."""
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
                    f"{what} of run {self.run_id!r} is still under way though its part of the workflow is over; "
                    "await it inside of that part"
                )
        self.loop.drop_generators(lambda path: is_location_over(path, scope.path, checkpoint.upto, drop))
        future = self._watch(current_scope.get(self._root), scope.location)
        return self._opened(ScopeOperation(scope.location, future, checkpoint, type, drop), future)

    def _leave_behind(self, operation: ChildOperation, *, stop: bool) -> None:
        """Let go of a child whose part of the workflow is over: stop it if its branch lost, or let it go on."""
        if stop:
            operation.future.cancel()
        elif not operation.bound:
            self._close(operation)
            self._closed_children[operation.location] = operation.digest

    def finished_iterations(self, scope: Scope, upto: int) -> list[str]:
        """Return the paths of a loop's iterations before `upto` that have records."""
        return self.checkpoints.finished_iterations(scope.path, upto)

    def _check_inside(self) -> None:
        if not self.loop.is_current:
            raise WorkflowError(self._use_outside())

    def _use_outside(self) -> str:
        """Say where a context is used that is not its workflow, and what to do there."""
        step = current_step.get(None)
        if step is not None:
            return (
                f"the context was used in the step {step.location!r}, where replay would not see it; a step calls "
                "other functions directly, and gets values as arguments"
            )
        used = f"the context of run {self.run_id!r} was used"
        if self.loop.closed:
            return (
                f"{used} after its workflow function had ended; use a context only inside that function, and "
                "asyncio.sleep and the like elsewhere"
            )
        where = "in another thread, " if _get_running_loop() is None else ""
        return (
            f"{used} {where}outside of its workflow, where replay would not see it; use it only in the workflow's "
            "own code, with `await ctx.step(function, ...)` for work in a thread and asyncio.gather for several at once"
        )

    # timers of asyncio

    def add_timer(self, when: float, handle: RunTimerHandle, *, is_sleep: bool) -> None:
        """Set a durable timer for a handle of asyncio."""
        handle.location = current_scope.get(self._root).next("sleep" if is_sleep else "timer")
        if self.loop.closed:
            return
        due = min(when * 1e6, float(NEVER - self._origin.started_at))
        due_at = self._origin.started_at + math.ceil(due)
        operation = self.timers.set(handle.location, self.time, due_at, handle=handle)
        self._open[handle.location] = operation
        self.fresh.append(operation)
        self.loop.idle_callbacks = 0

    def drop_timer(self, handle: RunTimerHandle) -> None:
        """Cancel the durable timer of a handle."""
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
        # A run that is being evicted gets futures that never resolve: an exception could be caught and the call retried
        # without end.
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
        """Close an operation that the workflow has cancelled."""
        if operation.open:
            self._close(operation)
            if isinstance(operation, RunOperation):
                self._closed_children[operation.location] = operation.digest
            if isinstance(operation, ChildOperation):
                self._given_up[operation.location] = operation.digest
            if not self.replaying:
                self.dropped.append(operation)


def check_function(scope: Scope, name: str, function: object, origin: RunOrigin) -> None:
    """Raise `DuplicateName` if another function was a step of that name in this scope.

    Only in this scope: locations elsewhere differ, and replay does not know what a finished iteration did.
    """
    known = scope.functions.setdefault(name, function)
    if known is not function and known != function:
        raise DuplicateName(
            f"two different functions are steps named {name!r} in run {origin.run_id!r} of {origin.type}; "
            'give one of them a name of its own: `ctx.options(name="...").step(...)`'
        )
