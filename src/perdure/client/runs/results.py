"""Results and outputs of runs, read and awaited from outside, and explanations of waits that take long.

All waits of one event loop share one query, made when the database reports a change. Explaining a wait takes a few
queries, so only some of very many slow waits are explained, as examples.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.client.runs.inspect import explain
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.codec.failure import Failure
from perdure.core.ids import check_name
from perdure.core.model.outputs import (
    Output,
    OutputKind,
    StreamItem,
    check_stream,
    is_wanted_state,
    unreached_state,
)
from perdure.core.model.run import Reason, Run, Status
from perdure.core.printed_text import brief
from perdure.core.system import System
from perdure.core.time.duration import Duration, seconds
from perdure.errors import (
    EngineClosed,
    PerdureError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunTerminated,
    StoreCorrupt,
    StoreError,
)
from perdure.store.contract import Change, Store

if TYPE_CHECKING:
    from perdure.client.session import Session


logger = logging.getLogger("perdure.client")

T = TypeVar("T")

#: Runs, or items of a stream, read in one query.
CHUNK = 500
SHORTEST_POLL = 0.005
#: Pause after a round of queries, with more waiters than one query reads: this many times as long as the round, and at
#: most so long.
PAUSES = 5
LONGEST_PAUSE = 2.0
#: Longest poll for outputs, in seconds, so that a reader notices soon that the engine was closed.
LONGEST_POLL = 2.0
#: Seconds after which the log explains a wait.
SLOW = 5.0
#: Explanations under way at a time, and the seconds that one may take when a wait has ended.
AT_ONCE = 10
LAST_LOOK = 2.0


class Results:
    """Waits of one engine for the outcomes of runs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._watches: dict[asyncio.AbstractEventLoop, ResultWatch] = {}
        #: Says why a wait takes long; shared with waits for answers.
        self.explainer = WaitExplainer(session.system, self._explain)

    async def wait_for(self, run_id: str, returns: Any, timeout: Duration | None) -> Any:
        """Wait for a run and return its result. Raises `RunFailed`, `RunCancelled` and `TimeoutError`."""
        if timeout is not None:
            seconds(timeout)
        watch = self._watches.get(asyncio.get_running_loop()) or await self._watch()
        with watch.waiting(run_id) as finished:
            # Read after the wait has begun: a later end is notified.
            run = await self._session.find(run_id)
            if not run.status.finished:
                name, too_late = f"perdure result {run_id}", f"run {run_id!r} did not finish"
                run = await self.explainer.wait(run_id, lambda: watch.ended_run(finished), name, timeout, too_late)
        return self.outcome(run, returns)

    def outcome(self, run: Run, returns: Any) -> Any:
        """Return the result of a finished run, or raise `RunFailed` or `RunCancelled`."""
        if run.status is Status.COMPLETED:
            return self._session.codec.decode(run.output or "null", returns, f"result of run {run.id!r} ({run.type})")
        failure = Failure.read(run.error)
        if run.status is Status.CANCELLED:
            cancelled = RunCancelled(failure.message, run_id=run.id)
            cancelled.partial = failure.partial_result(returns, self._session.codec)
            cause = failure.cause
            raise cancelled from None if cause is None else self._session.errors.restore(cause, where=f"In {run.type}")
        name = failure.type.rpartition(".")[2]
        if name == RunTerminated.__name__:
            raise RunTerminated(failure.message, run_id=run.id, failure=failure)
        raise RunFailed(
            f"run {run.id!r} ({run.type}) failed with {name}: {failure.message}", run_id=run.id, failure=failure
        ) from self._session.errors.restore(failure, where=f"In {run.type}")

    async def close(self) -> None:
        """End the waits of this event loop."""
        watch = self._watches.pop(asyncio.get_running_loop(), None)
        if watch is not None:
            await watch.close()

    async def _watch(self) -> ResultWatch:
        store, loop = await self._session.connect(), asyncio.get_running_loop()
        return self._watches.setdefault(loop, ResultWatch(store, self._session.system))

    async def _explain(self, run_id: str) -> tuple[Run, str]:
        run = await self._session.find(run_id)
        return run, await explain(await self._session.connect(), run)


class ResultWatch:
    """Waiters of one event loop."""

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._guard = LoopGuard("waiting for results", system, LoopHealth(), logger)
        self._waiters: dict[str, set[asyncio.Future[Run]]] = {}
        self._unsubscribe: Callable[[], None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._rung: asyncio.Future[bool] | None = None
        #: True: some run may have ended since the last look.
        self._changed = False

    @contextmanager
    def waiting(self, run_id: str) -> Generator[asyncio.Future[Run]]:
        """Wait for the end of a run: changes from now on are noticed."""
        future: asyncio.Future[Run] = self._loop.create_future()
        if self._unsubscribe is None:
            self._unsubscribe = self._store.subscribe(self._on_change)
        self._waiters.setdefault(run_id, set()).add(future)
        try:
            yield future
        finally:
            if future.done() and not future.cancelled():
                future.exception()  # an error that comes before the wait is not awaited, and needs no warning
            waiting = self._waiters[run_id]
            waiting.discard(future)
            if not waiting:
                del self._waiters[run_id]
            if not self._waiters:
                self._unsubscribe()
                self._unsubscribe = None

    async def ended_run(self, future: asyncio.Future[Run]) -> Run:
        """Return the run of a wait once it has ended."""
        if self._task is None or self._task.done():
            self._task = self._system.spawn(self._guard.keep_going(self._run, self._rest), "perdure watch")
        return await future

    async def close(self) -> None:
        """Stop; waits that are left raise `EngineClosed`."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        self._give_up(EngineClosed("the engine was closed while this waited for a result"))

    def _give_up(self, error: PerdureError) -> None:
        for waiting in list(self._waiters.values()):
            for future in waiting:
                if not future.done():
                    future.set_exception(error)

    def _miss(self, run_ids: set[str]) -> None:
        for run_id in run_ids:
            for future in self._waiters.get(run_id, ()):
                if not future.done():
                    future.set_exception(disappeared(run_id))

    def _on_change(self, change: Change) -> None:
        if change & (Change.FINISHED | Change.REPLACED) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._changed = True
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(True)

    async def _run(self) -> None:
        poll = SHORTEST_POLL
        try:
            while self._waiters:
                if self._changed:
                    self._changed = False
                    begun = self._system.monotonic()
                    if await self._look():
                        poll = SHORTEST_POLL
                    await self._system.sleep(self._pause(self._system.monotonic() - begun))
                if self._waiters and not self._changed:
                    await self._wait(poll)
                    poll = min(poll * 1.5, self._store.poll_interval)
        except EngineClosed as error:
            self._give_up(error)

    async def _rest(self, seconds: float) -> None:
        await self._system.sleep(seconds)
        self._changed = True

    def _pause(self, look: float) -> float:
        """Pause between two rounds of queries, in seconds.

        Each round reads every run that is waited for, so rounds without a pause would cost the square of their number.
        """
        waiters = len(self._waiters)
        return min(0.1, waiters * 5e-6) if waiters <= CHUNK else min(LONGEST_PAUSE, PAUSES * look)

    async def _wait(self, seconds: float) -> None:
        self._rung = self._loop.create_future()
        timer = self._system.call_later(seconds, self._time_out)
        try:
            if not await self._rung and await self._store.poll_changes():
                self._changed = True
        except StoreError:
            self._changed = True
        finally:
            timer.cancel()
            self._rung = None

    def _time_out(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(False)

    async def _look(self) -> bool:
        """Hand out the outcomes that are there; True if there were any."""
        found = False
        ids = list(self._waiters)
        for start in range(0, len(ids), CHUNK):
            chunk = ids[start : start + CHUNK]
            runs, unreadable = await self._get(chunk)
            for run in runs:
                if run.status.finished:
                    found = True
                    for future in self._waiters.get(run.id, ()):
                        if not future.done():
                            future.set_result(run)
            self._miss(set(chunk) - {run.id for run in runs} - unreadable)
        if self._guard.pause:
            self._guard.succeeded()
        return found

    async def _get(self, run_ids: list[str]) -> tuple[list[Run], set[str]]:
        """Read runs, and the ids of unreadable ones, whose waits get the error."""
        try:
            return await self._store.get_many(run_ids), set()
        except StoreCorrupt as error:
            if len(run_ids) == 1:
                for future in self._waiters.get(run_ids[0], ()):
                    if not future.done():
                        future.set_exception(error)
                return [], set(run_ids)
        runs: list[Run] = []
        unreadable: set[str] = set()
        for run_id in run_ids:
            found, not_read = await self._get([run_id])
            runs += found
            unreadable |= not_read
        return runs, unreadable


def disappeared(run_id: str) -> RunNotFound:
    """The error of a wait for a run that is not there any more."""
    return RunNotFound(
        f"run {run_id!r} disappeared while its result was waited for: it was deleted, or lost in a failover"
    )


async def within(
    system: System, work: Callable[[], Coroutine[Any, Any, T]], name: str, timeout: Duration | None, too_late: str
) -> T:
    """Do some work, or raise `TimeoutError` after `timeout` on the system's clock."""
    if timeout is None:
        return await work()
    limit = seconds(timeout)
    waiting = system.spawn(work(), name)
    timer = system.call_later(limit, waiting.cancel)
    try:
        return await waiting
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            waiting.cancel()
            raise
        unit = " s" if isinstance(timeout, int | float) else ""
        raise TimeoutError(f"{too_late} within {brief(timeout)}{unit}") from None
    finally:
        timer.cancel()


class OutputWatch:
    """Waits for changes that may bring outputs: a run published, emitted, answered or ended, in any process."""

    def __init__(self, store: Store, system: System) -> None:
        self._store = store
        self._system = system
        self._loop = asyncio.get_running_loop()
        self._rung: asyncio.Future[bool] | None = None
        self._told = False
        self._replaced = False
        self._poll = SHORTEST_POLL
        self._unsubscribe = store.subscribe(self._on_change)

    def __enter__(self) -> OutputWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unsubscribe()

    def poll_fast(self) -> None:
        """Poll fast again: outputs were there, so more may come soon."""
        self._poll = SHORTEST_POLL

    def take_replaced(self) -> bool:
        """Return whether the database was replaced since the last call, and may lack what was seen or sent."""
        replaced, self._replaced = self._replaced, False
        return replaced

    async def wait(self) -> None:
        """Wait for a change. One that came since the last wait counts."""
        while not self._told:
            if not await self._ring_or_timeout():
                try:
                    # Set only to True: a ring in the meantime counts, too.
                    if await self._store.poll_changes():
                        self._told = True
                except StoreError:
                    self._told = True
            self._poll = min(1.5 * self._poll, self._store.poll_interval, LONGEST_POLL)
        self._told = False

    async def _ring_or_timeout(self) -> bool:
        rung: asyncio.Future[bool] = self._loop.create_future()
        self._rung = rung
        timer = self._system.call_later(self._poll, lambda: self._wake(told=False))
        try:
            return await rung
        finally:
            timer.cancel()
            self._rung = None

    def _on_change(self, change: Change) -> None:
        if change & Change.REPLACED:
            self._replaced = True
        if change & (Change.OUTPUT | Change.FINISHED | Change.REPLACED) and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._told = True
        self._wake(told=True)

    def _wake(self, *, told: bool) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(told)


class WaitExplainer:
    """Explains slow waits in the log, and ended ones in their error. `look` gives a run and the reason why it waits."""

    def __init__(self, system: System, look: Callable[[str], Awaitable[tuple[Run, str]]]) -> None:
        self._system = system
        self._look = look
        self._explaining = 0

    async def wait(
        self,
        run_id: str,
        work: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        timeout: Duration | None,
        too_late: str,
    ) -> T:
        """Wait for something of a run.

        Raises `TimeoutError` after `timeout`, with the reason why the run takes long.
        """
        explaining: list[asyncio.Task[None]] = []

        def explain() -> None:
            if self._explaining < AT_ONCE:
                self._explaining += 1
                task = self._system.spawn(self._explain(run_id, too_late), f"perdure why {run_id}")
                task.add_done_callback(self._explained)
                explaining.append(task)

        timer = self._system.call_later(SLOW, explain)
        try:
            return await within(self._system, work, name, timeout, too_late)
        except TimeoutError as late:
            raise TimeoutError(f"{late}{await self._because(run_id)}") from None
        finally:
            timer.cancel()
            for task in explaining:
                task.cancel()

    def _explained(self, _: asyncio.Task[None]) -> None:
        # A done callback, because a task that is cancelled before it begins runs no code.
        self._explaining -= 1

    async def _explain(self, run_id: str, what: str) -> None:
        try:
            run, why = await self._look(run_id)
        except PerdureError as error:
            logger.warning("%s within %g s, and the database does not say why: %s", what, SLOW, error)
            return
        if not run.status.finished:
            logger.log(_level(run), "%s within %g s: %s", what, SLOW, why)

    async def _because(self, run_id: str) -> str:
        """Sentence for an error; empty if the database does not answer soon."""
        try:
            _, why = await within(self._system, lambda: self._asked(run_id), "perdure why", LAST_LOOK, "no answer")
        except (PerdureError, TimeoutError):
            return ""
        return f": {why[:1].lower()}{why[1:].removesuffix('.')}"

    async def _asked(self, run_id: str) -> tuple[Run, str]:
        return await self._look(run_id)


def _level(run: Run) -> int:
    """Warn only of runs that need help: a worker, a person, or the end of a pause."""
    stands = run.status in (Status.PENDING, Status.BLOCKED) or run.reason is Reason.PAUSED
    return logging.WARNING if stands else logging.INFO


#: States that a run may have.
STATES = 10_000


async def state(session: Session, run_id: str, key: str, type: Any, default: Any) -> Any:
    """Return the latest value that a run published under a key, or the default."""
    await session.find(run_id)
    found = await latest_state(session, run_id, check_name(key, "key of a state"))
    return default if found is None else _value(session, found, type)


async def latest_state(session: Session, run_id: str, name: str) -> Output | None:
    """Return the latest state of a key, None if there is none."""
    found = await (await session.connect()).outputs(run_id, OutputKind.STATE, name, -1, 1)
    return found[0] if found else None


async def wait_state(session: Session, run_id: str, key: str, wanted: Any, type: Any, timeout: Duration | None) -> Any:
    """Wait until a run has published a certain value under a key. Raises `TimeoutError` and `RunFinished`."""
    name = check_name(key, "key of a state")
    if timeout is not None:
        seconds(timeout)
    await session.find(run_id)

    async def until_published() -> Any:
        seen = 0
        while True:
            found, ended = await next_state(session, run_id, name, seen)
            if found is not None and found.at != seen:
                if is_wanted_state(wanted, value := _value(session, found, type)):
                    return value
                seen = found.at
            if ended:
                raise unreached_state(run_id, name)

    too_late = f"run {run_id!r} did not publish the awaited {name!r}"
    return await session.results.explainer.wait(run_id, until_published, f"perdure state {run_id}", timeout, too_late)


async def next_state(session: Session, run_id: str, name: str, seen: int) -> tuple[Output | None, bool]:
    """Wait until a run has published another state than that of the time `seen`, or has ended: state and end."""
    store = await session.connect()
    with OutputWatch(store, session.system) as watch:
        while True:
            # The run is read before its outputs: all of them are there when it has ended.
            ended = (await session.find(run_id)).status.finished
            found = await store.outputs(run_id, OutputKind.STATE, name, -1, 1)
            if ended or (found and found[0].at != seen):
                return (found[0] if found else None), ended
            await watch.wait()


async def states(session: Session, run_id: str) -> dict[str, Any]:
    """Return everything that a run has published, by key."""
    await session.find(run_id)
    store = await session.connect()
    found = await store.outputs(run_id, OutputKind.STATE, None, -1, STATES)
    return {output.name: _value(session, output, Any) for output in found}


async def stream(
    session: Session, run_id: str, name: str, type: Any, after: int | None, *, follow: bool
) -> AsyncGenerator[StreamItem[Any]]:
    """Yield the items of a stream past a position until the run ends; without `follow`, those that are there."""
    last = check_stream(name, after)
    await session.find(run_id)
    store = await session.connect()
    with OutputWatch(store, session.system) as watch:
        while True:
            # The run is read before its outputs: all of them are there when it has ended.
            if watch.take_replaced():
                last = await _reached(store, run_id, name, last)
            ended = not follow or (await session.find(run_id)).status.finished
            items = await store.outputs(run_id, OutputKind.STREAM, name, last, CHUNK)
            for item in items:
                last = item.position
                yield StreamItem(item.position, _value(session, item, type), item.source)
            if items:
                watch.poll_fast()
            if len(items) == CHUNK:
                continue
            if ended:
                return
            await watch.wait()


async def _reached(store: Store, run_id: str, name: str, last: int) -> int:
    """Return the last existing position up to `last`: items lost in a failover are emitted anew, in their places."""
    reached = -1
    while items := await store.outputs(run_id, OutputKind.STREAM, name, reached, CHUNK):
        if items[-1].position >= last:
            return last
        reached = items[-1].position
    return reached


def _value(session: Session, output: Output, type: Any) -> Any:
    return session.codec.decode(output.payload, type, f"{output.kind} {output.name!r} of run {output.run_id!r}")
