"""Workflows under test: a database in memory, a worker, and a clock that the test moves.

    async with Environment([checkout, ship]) as env:
        run = await env.start(checkout(order))
        await env.advance("3d")
        await env.send(run, "approval", True)
        assert await run.result() == "receipt"

Time passes only in `advance`, from one due timer to the next, and the worker does all there is to do in between. With
`auto_advance`, time also passes while the test waits for a result. Nothing is waited for in real time but steps that
really take some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack

from msgspec import structs

from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.outbox import Subscription
from perdure.client.runs.inspect import explain
from perdure.client.runs.results import Results
from perdure.client.runs.start import StartOptions
from perdure.client.session import Session, session_of
from perdure.core.middleware import Layers
from perdure.core.model.claim import LoadedRun
from perdure.core.model.run import Run, RunFilter, Status
from perdure.core.option_checks import check_datetime, check_flag, check_instance
from perdure.core.time.duration import NEVER, Duration, microseconds, seconds
from perdure.errors import Diverged, NotInWorkflow, PerdureError, UsageError
from perdure.replay.execution import Execution
from perdure.store import open_store
from perdure.testing.clock import VirtualClock
from perdure.testing.hash_seeds import make_request, processes
from perdure.testing.replacement import Replaceable, Replacement, Replacements
from perdure.testing.strict import DeterminismGuard
from perdure.worker import Worker, WorkerOptions, WorkerSettings
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.workflow.definition import Call
from perdure.workflow.discover import Definable

R = TypeVar("R")

START = datetime(2026, 1, 1, tzinfo=UTC)

#: What a worker does by the clock, it does this rarely, so that a year passes in a moment.
_LEASE = "365d"
_POLL = 6 * 3600.0

#: Turns of the event loop in a row in which nothing happened, after which nothing will.
_STILL = 5
#: Turns of the event loop before a step that goes on is given real time, and how much at once.
_SPIN = 100
_NAP = 0.001
#: For how long a result is waited for before another look, in real seconds.
_MOMENT = 0.02
#: Runs read at once.
_PAGE = 100
#: Runs given back or failed in one sweep.
_SWEEP = 500

#: The time of the next timer of a waiting run.
_NEXT_WAKE = "SELECT MIN(wake_at) FROM perdure_runs WHERE status = 'waiting'"
#: The time at which a rate or a breaker lets the next waiting run pass. Room is made by runs, not by time.
_NEXT_ADMISSION = f"""
SELECT MIN(due_at) FROM perdure_gates g
WHERE due_at < {NEVER} AND waits_for <> 'room' AND EXISTS (SELECT 1 FROM perdure_lines l WHERE l.gate = g.name)
"""
#: A worker that did not admit the last run polls so much later at most, in microseconds.
_POLLED_BY = 1_000_000


class StillWaiting(PerdureError, TimeoutError):
    """The run cannot finish by itself: it waits for time to pass, for a message, or for a person."""


class Environment:
    """An engine with a worker on a virtual clock. Use it as an async context manager."""

    def __init__(
        self,
        workflows: Iterable[Definable],
        *,
        errors: Iterable[type[Exception]] = (),
        start_time: datetime = START,
        seed: int = 0,
        patience: Duration = 1.0,
        strict: bool = False,
        auto_advance: bool = False,
        outbox: Iterable[Subscription] = (),
        **worker: Unpack[WorkerOptions],
    ) -> None:
        """`seed` is what ids, jitter and the workflows' randomness grow from.

        `patience` is for how long, in real time, `settle` waits for steps. One that takes longer is taken to wait for
        the clock. With `strict`, every value has to come back from the database as exactly what it was, or it is
        refused. Clocks, randomness and I/O in workflow code raise `NotInWorkflow`. At the end, every run is replayed in
        processes with other hash seeds, which raises `Diverged` if one of them takes another path. With `auto_advance`,
        the wait for a result moves the clock to the next timer of a run whenever nothing else can happen. `outbox`: as
        for `Engine`.
        """
        check_instance("seed", seed, int, "seed=7")
        if check_datetime("start_time", start_time).tzinfo is None:
            raise UsageError("start_time needs a time zone, such as datetime.UTC")
        self._clock = VirtualClock(start_time, seed)
        self._store = open_store("sqlite://", self._clock, inline=True)
        self._store.poll_interval = _POLL
        # A bug in the code under test fails its run at once, instead of blocking it until a deploy.
        options = WorkerOptions(lease=_LEASE, block_on=())
        options.update(worker)
        self._settings = WorkerSettings.of(**options)
        self._patience = seconds(patience)
        self._worker: Worker | None = None
        self._advancing = 0
        errors = tuple(errors)
        self._engine = Engine(
            "sqlite://", workflows, errors=errors, outbox=outbox, system=self._clock, store=self._store
        )
        self._session = session_of(self._engine)
        skip = self.skip_to_next_timer if check_flag("auto_advance", auto_advance) else None
        self._session.results = _CandidResults(self._session, self._rest, self._awaited, self._swallowed, skip)
        self._replacements: Replacements | None = None
        #: The worker does not know the replacements yet.
        self._is_stale = False
        self._errors = errors
        self._guard: DeterminismGuard | None = None
        #: Runs of which the test knows whether they have caught an error of the guard.
        self._told: set[str] = set()
        if check_flag("strict", strict):
            self._session.codec.be_strict()
            self._guard = DeterminismGuard()
            self.use_guard(self._guard)

    def use_guard(self, guard: DeterminismGuard) -> None:
        """Watch workflow code with a guard, from the next worker on."""
        self._settings = structs.replace(self._settings, guard=guard)

    async def __aenter__(self) -> Environment:
        self._worker = await self._new_worker()
        await self._worker.start()
        await self.settle()
        return self

    async def _new_worker(self) -> Worker:
        await self._connect()
        return self._session.make_worker(self._settings)

    async def _connect(self) -> None:
        await self._session.connect()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._stop_worker()
        try:
            if kind is None and self._guard is not None:
                await self._check_strictly(self._guard)
        finally:
            await self._engine.close()

    async def _check_strictly(self, guard: DeterminismGuard) -> None:
        """Raise what a workflow has swallowed, and replay the other runs with other hash seeds."""
        loaded: list[LoadedRun] = []
        cursor: str | None = None
        while True:
            page = await self._store.list(RunFilter(), _PAGE, cursor)
            loaded += await self._store.load([run.id for run in page.runs])
            cursor = page.cursor
            if cursor is None:
                break
        for one in loaded:
            if not _failed_by_guard(one.run) and (swallowed := self._swallowed(one.run.id)) is not None:
                raise swallowed
        request = make_request(self._session, self._errors, [one for one in loaded if one.run.id not in guard.raised])
        differences = await asyncio.to_thread(processes.replay, request) if request.runs else []
        if differences:
            first = differences[0]
            raise Diverged(
                f"run {first.run_id!r} ({first.type}) takes another path in a process with another hash seed: expected "
                f"{first.expected}, found {first.found}; iterate over sorted(...) instead of a set, and do not use "
                "hash(), id() or variables of a module that are written",
                expected=first.expected,
                found=first.found,
            )

    @property
    def engine(self) -> Engine:
        """The engine, with all that it can do."""
        return self._engine

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self._clock.moment()

    # what a test does

    async def start(self, call: Call[R], **options: Unpack[StartOptions]) -> Handle[R]:
        """Start a run, as `Engine.start` does."""
        await self._refresh()
        return await self._engine.start(call, **options)

    async def send(self, run: Handle[Any] | str, name: str, value: object = None, *, key: str | None = None) -> None:
        """Send a message to a run."""
        await self._refresh()
        await self._engine.send(_id_of(run), name, value, key=key)

    async def cancel(self, run: Handle[Any] | str, reason: str = "") -> bool:
        """Ask a run to stop; False if it had finished already."""
        return await self._engine.cancel(_id_of(run), reason)

    def replace(self, step: Replaceable, fake: Callable[..., Any]) -> Replacement:
        """Call `fake` in place of a step or an activity from now on; returns a count of the calls.

        `step` is the function that the workflow calls, a decorated activity, or a name: of the step, a location such as
        `charge#2`, or the type of an activity. `fake` gets the arguments and may be a `def` or an `async def`; that of
        a transaction step gets no connection, and none is opened by `using`. Options such as `retry` stay. Of several
        replacements, the latest holds.
        """
        if self._replacements is None:
            self._replacements = Replacements()
            layers = self._session.layers
            self._session.layers = Layers(
                layers.workflow,
                (*layers.step, self._replacements.step),
                (*layers.activity, self._replacements.activity),
                self._replacements.replaces,
            )
            self._is_stale = self._worker is not None
        return self._replacements.add(step, fake)

    async def advance(self, duration: Duration) -> None:
        """Let time pass, from one due timer to the next, with all that follows from each."""
        await self._advance_to(self._clock.now() + microseconds(duration))

    async def skip_to_next_timer(self) -> bool:
        """Let time pass until the next timer or limit of a run is due, with all that follows; False if none is."""
        await self.settle()
        due = [moment for (moment,) in await self._store.query(_NEXT_WAKE) if moment is not None and moment < NEVER]
        if self._worker is not None and self._worker._held and (timer := self._clock.next_due()) is not None:
            # A run in memory that waits for the next attempt at a step.
            due.append(timer)
        due += await self._next_admission()
        if not due:
            return False
        await self._advance_to(max(min(due), self._clock.now() + 1))
        return True

    async def _next_admission(self) -> list[int]:
        """Time at which time alone lets a run pass its limits."""
        [[admission]] = await self._store.query(_NEXT_ADMISSION)
        if admission is None or admission > self._clock.now():
            return [] if admission is None else [admission]
        timer = self._clock.next_due()
        return [] if timer is None or timer > admission + _POLLED_BY else [timer]

    async def _advance_to(self, until: int) -> None:
        await self._refresh()
        self._advancing += 1
        try:
            await self.settle()
            while (due := self._clock.next_due()) is not None and due <= until:
                self._clock.move_to(due)
                await self.settle()
            self._clock.move_to(until)
            # The worker's own sweep comes round once in a lease; runs that no worker serves expire in time all the
            # same.
            for name in (await self._store.sweep(_SWEEP)).successions:
                await self._store.start_successors([name], "sweep")
            await self.settle()
        finally:
            self._advancing -= 1

    async def settle(self) -> None:
        """Let happen whatever happens without time passing."""
        await self._refresh()
        await self._settle(self._patience)

    async def restart(self) -> None:
        """Replace the worker by another, which has nothing in memory and replays every run that it takes up."""
        await self._stop_worker()
        await self.__aenter__()

    # within

    async def _refresh(self) -> None:
        """Replace a worker that does not know the replacements."""
        if self._is_stale:
            self._is_stale = False
            await self.restart()

    async def _stop_worker(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop(grace=0.0)
        for _ in range(_STILL):
            await asyncio.sleep(0)

    @property
    def _quiet(self) -> bool:
        return self._worker is None or self._worker.quiet

    async def _settle(self, patience: float) -> bool:
        """Wait until nothing is under way, in vain (False) if that takes longer than `patience`."""
        still = spins = 0
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience
        while still < _STILL:
            spins += 1
            await asyncio.sleep(0 if spins < _SPIN else _NAP)
            still = still + 1 if self._quiet else 0
            if spins > _SPIN and loop.time() > give_up:
                return False
        return True

    def _awaited(self, run_id: str) -> str:
        """Names that the code of a run in memory waits for, in words."""
        execution = self._execution_of(run_id)
        if execution is None:
            return ""
        names = [f"message {name!r}" for name in execution.awaited_messages()]
        names += [f"{operation.kind} {operation.location!r}" for operation in execution.open_operations()]
        return f" Its code waits for {', '.join(names)}." if names else ""

    def awaited_messages(self, run_id: str) -> list[str]:
        """Names of the messages that the code of a run in memory waits for."""
        execution = self._execution_of(run_id)
        return [] if execution is None else execution.awaited_messages()

    def _execution_of(self, run_id: str) -> Execution | None:
        if self._worker is None:
            return None
        held = self._worker._held.get(run_id) or self._worker._claimer.residents._parked.get(run_id)
        return held._execution if isinstance(held, WorkflowRun) else None

    def _swallowed(self, run_id: str) -> Exception | None:
        """The error of the guard that the code of a completed run has caught; once."""
        if self._guard is None or run_id in self._told:
            return None
        self._told.add(run_id)
        return self._guard.raised.get(run_id)

    async def _rest(self) -> bool:
        """Wait a moment; return whether nothing happens any more without the test."""
        return await self._settle(_MOMENT) and not self._advancing


class _CandidResults(Results):
    """Results of an engine whose clock stands still: a wait without end raises at once."""

    def __init__(
        self,
        session: Session,
        rest: Callable[[], Awaitable[bool]],
        awaited: Callable[[str], str],
        swallowed: Callable[[str], Exception | None],
        skip: Callable[[], Awaitable[bool]] | None,
    ) -> None:
        super().__init__(session)
        self._skip = skip
        self._swallowed = swallowed
        self._find = session.find
        self._store = session.store
        self._rest = rest
        self._awaited = awaited

    async def wait_for(self, run_id: str, returns: Any, timeout: Duration | None) -> Any:
        """Let the worker rest, then return the result or raise `StillWaiting`."""
        # A timeout is on the virtual clock, which stands still while the test waits here: it never passes.
        resting = False
        while not (run := await self._find(run_id)).status.finished and not resting:
            resting = await self._rest() and (self._skip is None or not await self._skip())
        if run.status.finished:
            result = self.outcome(run, returns)
            if (swallowed := self._swallowed(run_id)) is not None:
                raise swallowed
            return result
        what_to_do = (
            "Retry it, or look at its error"
            if run.status is Status.BLOCKED
            else "Let time pass with `await env.advance(...)`, or send what it waits for with `await env.send(...)`"
        )
        # The row of a run that is parked names what it waits for.
        why = await explain(self._store, run) + ("" if run.status is Status.WAITING else self._awaited(run_id))
        raise StillWaiting(f"run {run_id!r} ({run.type}) has no result yet. {why} {what_to_do}, first")


def _failed_by_guard(run: Run) -> bool:
    """True if the error of the guard has failed the run, so that the test can see it."""
    return run.status is Status.FAILED and NotInWorkflow.__name__ in (run.error or "")


def _id_of(run: Handle[Any] | str) -> str:
    return run if isinstance(run, str) else run.id
