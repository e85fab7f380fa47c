"""Starting runs: options of a start, the row that follows from them, and its creation.

A run is created in a transaction of the store, or in one that is open on a connection of the caller. There a refused
start leaves nothing behind, so that the caller may go on with the transaction.

Starts of one process share commits, as turns do. While as many creations are in progress as the store can use at a
time, further starts of the event loop wait; the first of those leads the next batch. Nothing waits while the store is
idle, so that a single start is as fast as ever.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from perdure.core.codec.codec import Codec
from perdure.core.ids import check_id, check_name, uuid7, uuid8
from perdure.core.model.attributes import AttributeValue, make_attributes
from perdure.core.model.headers import check_headers, with_headers
from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, CreatedRun, NewRun, Run, root_generation
from perdure.core.option_checks import check_priority, no_option
from perdure.core.policy.singleton import Debounce, Singleton
from perdure.core.printed_text import brief
from perdure.core.system import System
from perdure.core.time.duration import NEVER, Duration, instant
from perdure.errors import BadArguments, DecodeError, RunExists, StoreUnavailable, UsageError
from perdure.store.contract import Store
from perdure.store.sql.runs.create import create, is_single
from perdure.store.user_connections.errors import is_duplicate
from perdure.workflow.definition import Call, Definition
from perdure.workflow.run_settings import RunSettings

#: Maximum number of starts in one transaction.
LARGEST_BATCH = 500

#: A moment: a datetime with a time zone, or a duration from now.
Moment = datetime.datetime | Duration


class StartOptions(TypedDict, total=False):
    """Options of `Engine.start`, apart from the workflow's own arguments."""

    #: The run's id; a UUIDv7 by default. Starting the same id with the same input again gives the same run.
    id: str | None
    #: Not before then.
    at: Moment | None
    #: Lower goes first; 100 by default.
    priority: int | None
    queue: str | None
    #: Fail the run if it is not finished by then.
    deadline: Moment | None
    #: At most one run is ever created with this key.
    idempotency_key: str | None
    #: At most one run of a key goes on at a time.
    singleton: Singleton | None
    #: Start once, some time after the last of several starts.
    debounce: Debounce | None
    #: Text, numbers, bools and times by name, by which others find the run; stored as plain text.
    attributes: Mapping[str, AttributeValue] | None
    #: Texts by name that travel with the run to its steps, children and activities.
    headers: Mapping[str, str] | None


def _single(call: Call[Any], options: StartOptions) -> Call[Any]:
    """Attach the singleton or debounce of the options to the call."""
    singleton, debounce = options.get("singleton"), options.get("debounce")
    if debounce is not None:
        if singleton is not None or options.get("at") is not None or options.get("idempotency_key") is not None:
            raise UsageError(
                "debounce decides when a run starts; it cannot be combined with singleton, at or idempotency_key"
            )
        if not isinstance(debounce, Debounce):
            raise UsageError(f"debounce={brief(debounce)}: give a Debounce, such as Debounce('5s')")
        return replace(call, settings=RunSettings(single=debounce.to_stored(call.type)).over(call.settings))
    return call if singleton is None else call.options(singleton=singleton)


class RunMaker:
    """Makes the rows of up to `count` runs that are started with the same options, at the database's time `now`.

    The options are checked once. Raises `InvalidId` and the like. With `repeatable`, ids follow from the random bytes
    alone and not from the time, so that a repetition with the same bytes makes the same ids.
    """

    def __init__(
        self, options: StartOptions, system: System, now: int, count: int = 1, *, repeatable: bool = False
    ) -> None:
        if unknown := options.keys() - StartOptions.__annotations__.keys():
            raise BadArguments(no_option("start", unknown, StartOptions.__annotations__))
        at, deadline = options.get("at"), options.get("deadline")
        queue, priority = options.get("queue"), options.get("priority")
        attributes, headers, key = options.get("attributes"), options.get("headers"), options.get("idempotency_key")
        self._options = options
        self._is_single = options.get("singleton") is not None or options.get("debounce") is not None
        self._now = now
        self._wake_at = 0 if at is None else instant(at, now)
        self._queue = None if queue is None else check_name(queue, "queue")
        self._priority = None if priority is None else check_priority(priority)
        self._deadline = NEVER if deadline is None else instant(deadline, now)
        self._attributes = () if attributes is None else make_attributes(attributes)
        self._headers = None if headers is None else check_headers(headers)
        self._key = None if key is None else check_id(key, "idempotency key")
        # 16 bytes for each request, 8 for each id.
        self._entropy = system.entropy(24 * count)
        self._repeatable = repeatable
        self._made = 0
        self._type = ""

    def make(self, call: Call[Any], encoded_input: str, run_id: str | None = None) -> NewRun:
        """Make the next row, with the id of the options if none is given."""
        if self._is_single:
            call = _single(call, self._options)
        if run_id is None:
            run_id = self._options.get("id")
        if call.type != self._type:
            self._type = check_name(call.type, "workflow type")
        placed = call.place(max(self._wake_at, self._now), self._queue, self._priority, self._deadline)
        made, entropy = self._made, self._entropy
        self._made += 1
        return NewRun(
            id=self._new_id(made) if run_id is None else check_id(run_id),
            type=self._type,
            input=encoded_input,
            queue=placed.queue or DEFAULT_QUEUE,
            priority=DEFAULT_PRIORITY if placed.priority is None else placed.priority,
            wake_at=self._wake_at,
            deadline=placed.deadline,
            close_by=placed.close_by,
            max_attempts=placed.max_attempts,
            options=placed.options if self._headers is None else with_headers(placed.options, self._headers),
            attributes=self._attributes,
            idempotency_key=self._key,
            write_id=entropy[24 * made + 8 : 24 * made + 24].hex(),
        )

    def _new_id(self, made: int) -> str:
        entropy = self._entropy[24 * made : 24 * made + 24]
        # A microsecond apart, so that runs of one call stay in its order.
        return uuid8(entropy) if self._repeatable else uuid7(self._now + made, entropy[:8])


class DuplicateCheck:
    """Compares an existing run of the same id or key with the one that is wanted, by type and input."""

    def __init__(self, codec: Codec, workflows: Mapping[str, Definition[Any, Any]]) -> None:
        self._codec = codec
        self._workflows = workflows

    def check(self, there: Run | NewRun, wanted: NewRun, call: Call[Any]) -> None:
        """Raise `RunExists` if the existing run has another type or another input, as far as that is known."""
        if isinstance(there, Run) and root_generation(there.seed, there.generation) > 1:
            # It began anew, and its first input is not stored any more.
            return
        if there.id == wanted.id:
            which = f"run {there.id!r}"
        else:
            which = f"idempotency key {wanted.idempotency_key!r} (run {there.id!r})"
        if there.type != wanted.type:
            raise RunExists(f"{which} exists with type {there.type!r}, not {wanted.type!r}; choose another id")
        if there.input != wanted.input and not self.is_same_input(there.input, wanted.input, call):
            raise RunExists(f"{which} of type {there.type!r} exists with another input; choose another id")

    def check_created(
        self, created: Iterable[CreatedRun], wanted: Sequence[NewRun], calls: Sequence[Call[Any]]
    ) -> None:
        """Raise `RunExists` if a run that was not created differs from the one wanted."""
        for answer, new, call in zip(created, wanted, calls, strict=True):
            if not answer.created and not answer.attached:
                self.check(answer.run, new, call)

    def check_among(self, wanted: Sequence[NewRun], calls: Sequence[Call[Any]]) -> None:
        """Raise `RunExists` if two wanted runs share an id and differ."""
        first: dict[str, NewRun] = {}
        for new, call in zip(wanted, calls, strict=True):
            self.check(first.setdefault(new.id, new), new, call)

    def is_same_input(self, there: str, wanted: str, call: Call[Any]) -> bool:
        """Compare two inputs by value: sets and dicts may have been written in another order."""
        what = f"input of {call.type}"
        workflow = call.definition or self._workflows.get(call.type)
        if workflow is None:
            return bool(self._codec.decode(there, Any, what) == self._codec.decode(wanted, Any, what))
        decode = workflow.signature.decode
        try:
            one, other = decode(there, self._codec, what), decode(wanted, self._codec, what)
        except DecodeError:
            return False
        return self._codec.digest(one) == self._codec.digest(other)


#: Attempts at a creation that loses against a concurrent one of the same id.
_TRIES = 3


async def create_all(
    store: Store, actor: str, runs: Sequence[NewRun], calls: Sequence[Call[Any]], duplicates: DuplicateCheck
) -> list[str]:
    """Create runs, all of them or none, and return their ids. Existing runs that are the same are left as they are."""
    wanted = {run.id: (run, call) for run, call in zip(runs, calls, strict=True)}
    ids = {run.id: run.id for run in runs}
    while wanted:
        answers = await store.create([run for run, _ in wanted.values()], actor, all_or_none=True)
        taken = [answer.run for answer in answers if not answer.created and not answer.attached]
        if not taken:
            ids.update(zip(wanted, (answer.run.id for answer in answers), strict=True))
            break
        for run in taken:
            duplicates.check(run, *wanted.pop(run.id))
    return [ids[run.id] for run in runs]


async def create_on(
    connection: object,
    store: Store,
    actor: str,
    runs: Sequence[NewRun],
    calls: Sequence[Call[Any]],
    duplicates: DuplicateCheck,
) -> list[CreatedRun]:
    """Create runs on the caller's connection; none of them if one exists and differs."""
    for tries in range(1, _TRIES + 1):
        try:
            # The first attempt takes no lock: on MySQL, locks on rows that do not exist yet let two crossing starts
            # deadlock. Singletons read other rows first, so they have to lock them.
            locking = tries > 1 or any(is_single(run) for run in runs)
            async with store.user_transaction(connection, actor, locking=locking) as tx:
                created = await create(tx, runs)
                duplicates.check_created(created, runs, calls)
                return created
        except Exception as error:
            # A concurrent start was faster and has committed by now; the next attempt finds its run.
            if tries == _TRIES or not (isinstance(error, StoreUnavailable) or is_duplicate(error)):
                raise
    raise AssertionError("unreachable")


class _WaitingStart:
    """A start that waits for a batch: for its answer, to lead the next batch, or to be tried alone."""

    def __init__(self, run: NewRun, loop: asyncio.AbstractEventLoop) -> None:
        self.run = run
        #: None: this one leads the next batch. An empty list: the batch failed, and each is tried alone.
        self.word: asyncio.Future[CreatedRun | list[CreatedRun] | None] = loop.create_future()

    @property
    def is_leader(self) -> bool:
        """True if it was told to lead, even if its task has been cancelled since."""
        word = self.word
        return word.done() and not word.cancelled() and word.exception() is None and word.result() is None


class _StartQueue:
    """Starts of one actor in one event loop."""

    def __init__(self) -> None:
        self.running = 0
        self._waiting: deque[_WaitingStart] = deque()

    def join(self, run: NewRun) -> _WaitingStart:
        """Wait behind the others."""
        waiting = _WaitingStart(run, asyncio.get_running_loop())
        self._waiting.append(waiting)
        return waiting

    def take(self) -> list[_WaitingStart]:
        """Return those that share the batch of the one that leads it."""
        taken: list[_WaitingStart] = []
        while self._waiting and len(taken) < LARGEST_BATCH - 1:
            one = self._waiting.popleft()
            if not one.word.done():
                taken.append(one)
        return taken

    def pass_on(self) -> None:
        """End a creation: the first that waits leads the next."""
        while self._waiting:
            one = self._waiting.popleft()
            if not one.word.done():
                one.word.set_result(None)
                return
        self.running -= 1


#: One transaction names one actor in the audit trail.
_QueueKey = tuple[asyncio.AbstractEventLoop, str]


class StartBatches:
    """Creates single runs, those of one event loop and one actor together."""

    def __init__(self, connect: Callable[[], Awaitable[Store]]) -> None:
        self._connect = connect
        self._queues: dict[_QueueKey, _StartQueue] = {}

    async def create(self, run: NewRun, actor: str) -> CreatedRun:
        """Create a run, or find the one that is there."""
        store = await self._connect()
        if run.attributes or is_single(run):
            # These need more than one statement, which would slow down the others.
            return await _create_alone(store, run, actor)
        loop = asyncio.get_running_loop()
        key = (loop, actor)
        queue = self._queues.get(key) or self._queues.setdefault(key, _StartQueue())
        if queue.running < store.lanes:
            queue.running += 1
            return await self._lead(key, queue, store, run, [])
        waiting = queue.join(run)
        try:
            word = await waiting.word
        except asyncio.CancelledError:
            if waiting.is_leader:
                self._pass_on(key, queue)
            raise
        if word is None:
            return await self._lead(key, queue, store, run, queue.take())
        return word if isinstance(word, CreatedRun) else await _create_alone(store, run, actor)

    async def _lead(
        self, key: _QueueKey, queue: _StartQueue, store: Store, run: NewRun, others: list[_WaitingStart]
    ) -> CreatedRun:
        actor = key[1]
        try:
            mine, *theirs = await store.create([run, *(one.run for one in others)], actor)
        except BaseException as error:
            for one in others:
                if one.word.done():
                    continue
                if isinstance(error, StoreUnavailable):
                    one.word.set_exception(error)
                else:
                    # Another start may be to blame, or only the task of this one was cancelled.
                    one.word.set_result([])
            if others and isinstance(error, Exception) and not isinstance(error, StoreUnavailable):
                return await _create_alone(store, run, actor)
            raise
        else:
            for one, answer in zip(others, theirs, strict=True):
                if not one.word.done():
                    one.word.set_result(answer)
            return mine
        finally:
            self._pass_on(key, queue)

    def _pass_on(self, key: _QueueKey, queue: _StartQueue) -> None:
        queue.pass_on()
        if queue.running == 0:
            self._queues.pop(key, None)


async def _create_alone(store: Store, run: NewRun, actor: str) -> CreatedRun:
    [created] = await store.create([run], actor)
    return created
