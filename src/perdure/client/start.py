"""Starting runs: options of a start, the row that follows from them, and its creation.

A run is created in a transaction of the store, or in one that is open on a connection of the caller. There a refused
start leaves nothing behind, so that the caller may go on with the transaction. Starts are refused, or wait, once enough
runs are queued.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, TypedDict

from perdure.core.codec.codec import Codec
from perdure.core.ids import check_id, check_name, uuid7
from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, CreatedRun, NewRun, Run, root_generation
from perdure.core.option_checks import check_priority, no_option
from perdure.core.policy.singleton import Debounce, Singleton
from perdure.core.policy.watermark import WAIT, Watermark
from perdure.core.printed_text import brief
from perdure.core.system import System
from perdure.core.time.duration import FAR, Duration, instant
from perdure.errors import BadArguments, DecodeError, Overloaded, RunExists, StoreUnavailable, UsageError
from perdure.store.contract import Store
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs.create import create, is_single
from perdure.store.sql.watermarks import depth, watermarks
from perdure.store.user_connections.errors import is_duplicate
from perdure.workflow.definition import Call, Definition
from perdure.workflow.run_settings import RunSettings

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


def new_run(call: Call[Any], encoded_input: str, options: StartOptions, system: System, now: int) -> NewRun:
    """Make the row of a run from a call and options, at the database's time `now`. Raises `InvalidId` and the like."""
    run_id = options.get("id")
    queue = options.get("queue")
    key = options.get("idempotency_key")
    at = options.get("at")
    deadline = options.get("deadline")
    priority = options.get("priority")
    if unknown := options.keys() - StartOptions.__annotations__.keys():
        raise BadArguments(no_option("start", unknown, StartOptions.__annotations__))
    call = _single(call, options)
    wake_at = 0 if at is None else instant(at, now)
    placed = call.place(
        max(wake_at, now),
        None if queue is None else check_name(queue, "queue"),
        None if priority is None else check_priority(priority),
        FAR if deadline is None else instant(deadline, now),
    )
    return NewRun(
        id=uuid7(now, system.entropy(10)) if run_id is None else check_id(run_id),
        type=check_name(call.type, "workflow type"),
        input=encoded_input,
        queue=placed.queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if placed.priority is None else placed.priority,
        wake_at=wake_at,
        deadline=placed.deadline,
        close_by=placed.close_by,
        max_attempts=placed.max_attempts,
        options=placed.options,
        idempotency_key=None if key is None else check_id(key, "idempotency key"),
        write_id=system.entropy(16).hex(),
    )


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
            async with store.borrowed(connection, actor, locking=locking) as tx:
                created = await create(tx, runs)
                duplicates.check_created(created, runs, calls)
                return created
        except Exception as error:
            # A concurrent start was faster and has committed by now; the next attempt finds its run.
            if tries == _TRIES or not (isinstance(error, StoreUnavailable) or is_duplicate(error)):
                raise
    raise AssertionError("unreachable")


#: Seconds for which watermarks, and depths, are used without reading them again.
MARKS_FRESH = 3.0
DEPTH_FRESH = 1.0

#: `queue` or `type`, and its name.
Place = tuple[str, str]


class WatermarkReader(Protocol):
    """Reads watermarks and depths: the store, or a connection of the caller."""

    async def watermarks(self) -> list[Watermark]:
        """Read every watermark that is set."""

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Count the runs that wait, up to `limit`."""


class _Gauge:
    """Last known depth of one place."""

    def __init__(self) -> None:
        self.counted_at = float("-inf")
        self.depth = 0
        #: Runs of `depth` that this engine started since the count. Some of them may be done by now.
        self.started = 0
        self.full = False


class Backpressure:
    """Watermarks and depths as one engine knows them, by which starts are held back.

    An engine reads the watermarks every few seconds, and counts each queue or type at most once a second. In between it
    adds the runs that it started itself, so that one producer alone does not overshoot. Children of workflows and runs
    of schedules are always admitted: work that has begun must be able to end.
    """

    def __init__(self, system: System, own: Iterable[Watermark]) -> None:
        self._system = system
        self._own = {(mark.kind, mark.name): mark for mark in own}
        self._marks = self._own
        self._looked_at = float("-inf")
        self._gauges: dict[Place, _Gauge] = {}

    @property
    def is_idle(self) -> bool:
        """True while no watermark is known and that knowledge is fresh: nothing has to be read."""
        return not self._marks and self._system.monotonic() - self._looked_at < MARKS_FRESH

    async def admit(self, runs: Sequence[NewRun], reader: WatermarkReader, *, may_wait: bool) -> None:
        """Let runs be started, or wait until they may be. Raises `Overloaded`."""
        now = self._system.monotonic()
        if now - self._looked_at >= MARKS_FRESH:
            self._looked_at = now
            self._marks = {**self._own, **{(mark.kind, mark.name): mark for mark in await reader.watermarks()}}
        counts: dict[Place, int] = {}
        for run in runs:
            for place in (("queue", run.queue), ("type", run.type)):
                counts[place] = counts.get(place, 0) + 1
        for place in counts:
            if place in self._marks:
                await self._admit(place, self._marks[place], reader, may_wait=may_wait)
        for place, count in counts.items():
            if place in self._gauges:
                self._gauges[place].depth += count
                self._gauges[place].started += count

    def forget(self) -> None:
        """Read the watermarks again before the next start."""
        self._looked_at = float("-inf")

    async def _admit(self, place: Place, mark: Watermark, reader: WatermarkReader, *, may_wait: bool) -> None:
        gauge = self._gauges.setdefault(place, _Gauge())
        while True:
            now = self._system.monotonic()
            if now - gauge.counted_at >= DEPTH_FRESH:
                # Set before the count, so that one of many concurrent starts counts.
                gauge.counted_at, gauge.started = now, 0
                gauge.depth = await reader.depth(*place, mark.high + 1)
            gauge.full = gauge.depth >= (mark.floor if gauge.full else mark.high)
            if not gauge.full:
                return
            # An estimate is no reason to refuse: wait for the next count.
            if not may_wait or (mark.when_full != WAIT and not gauge.started):
                raise _refused(mark, gauge.depth)
            left = gauge.counted_at + DEPTH_FRESH - self._system.monotonic()
            await self._system.sleep(max(0.0, left) + 0.01 * self._system.random())


class ConnectionReader:
    """Reads watermarks on a connection of the caller, in the transaction that is open there."""

    def __init__(self, store: Store, connection: object, actor: str) -> None:
        self._store = store
        self._connection = connection
        self._actor = actor

    async def watermarks(self) -> list[Watermark]:
        """Read every watermark that is set."""
        async with self._transaction() as tx:
            return await watermarks(tx)

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Count the runs that wait, up to `limit`."""
        async with self._transaction() as tx:
            return await depth(tx, kind, name, limit)

    def _transaction(self) -> AbstractAsyncContextManager[Transaction]:
        return self._store.borrowed(self._connection, self._actor, locking=False)


def _refused(mark: Watermark, depth: int) -> Overloaded:
    return Overloaded(
        f"the {mark.kind} {mark.name!r} has {depth} runs or more that wait for a worker, and {mark.high} are enough; "
        f"nothing was started; try again when fewer than {mark.floor} wait, start more workers, or raise the watermark",
        depth=depth,
        high=mark.high,
    )
