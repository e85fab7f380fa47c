"""Telemetry: what the engine tells about its own work, for metrics and traces.

`System.telemetry` is the one bus of an engine: worker, journal, claimer, limits and store have it at hand, because they
have the `System`. `Telemetry` has one attribute for each *signal*. The attribute is None while nothing listens, and a
function otherwise, so a signal without a listener costs one look at an attribute:

    if (tell := system.telemetry.replayed) is not None:
        tell(run, records, seconds)

A listener is a subclass of `Listener`, whose methods are the signals. `attach` makes the functions: only the methods
that a listener overrides are called, in the order in which listeners were attached. An error of a listener is logged
once in a while and never reaches the engine. Signals come from the worker's loop, except for those that say otherwise.
A listener must be quick, must not block and must not await.

Signals of the hot path come in batches: `claimed` and `committed` are one call for many runs. Turns tell nearly all
that happens to runs: the records of steps and attempts with their times, parks, retries and outcomes. Only
`attempt_started` is a call for each step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perdure.core.model.claim import ClaimedRun
from perdure.core.model.run import Run
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.model.worker_info import RunningStep, SweepResult

logger = logging.getLogger("perdure.telemetry")


class ObservedRun(Protocol):
    """A held run, as a listener sees it."""

    #: The row as it was claimed.
    run: Run
    #: `activity`, or `run` for a workflow.
    scope: str


class ObservedAttempt(Protocol):
    """An attempt at a step or an activity, as a listener sees it."""

    run_id: str
    #: The operation; its `location` is that of the step.
    operation: Any
    number: int
    #: Time of the database, in microseconds.
    started_at: int


class ObservedWorker(Protocol):
    """A worker, as a listener sees it."""

    id: str

    @property
    def held_runs(self) -> int:
        """Number of slots in use."""

    @property
    def free_slots(self) -> int:
        """Number of runs that may be claimed."""

    @property
    def claims_failing_for(self) -> float:
        """Seconds since claims began to fail; 0 while they succeed."""

    @property
    def now(self) -> int:
        """Time of the database."""

    def running_steps(self, least: int = ..., /) -> Sequence[RunningStep]:
        """Return the attempts that have been under way for at least so many microseconds. Called from any thread."""


class Listener:
    """Base class of listeners: override the signals that you want to hear."""

    def worker_started(self, worker: ObservedWorker) -> None:
        """Hear that a worker of this process begins to claim. Called once, whatever lives it has."""

    def worker_stopped(self, worker: ObservedWorker) -> None:
        """Hear that a worker of this process has stopped."""

    def claimed(self, runs: Sequence[ClaimedRun], asked: int, now: int, seconds: float) -> None:
        """Hear the answer to a claim for `asked` runs, or to a request for admission; it took `seconds`.

        `now` is the time of the database. While pending, each run was ready since its `wake_at`.
        """

    def attempt_started(self, held: ObservedRun, attempt: ObservedAttempt) -> None:
        """Hear that the function of a step or an activity is about to be called.

        Context variables that are set here are those of the function.
        """

    def committed(
        self, turns: Sequence[tuple[ObservedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int, seconds: float
    ) -> None:
        """Hear that a batch of turns has its verdicts; the commit took `seconds`, repetitions included.

        Only turns with the verdicts APPLIED and AWAKE are durable, and an AWAKE one has not parked its run. `seconds`
        is 0 for the turn of a transaction step.
        """

    def replayed(self, run: Run, records: int, seconds: float) -> None:
        """Hear that a workflow has gone through its history."""

    def timer_fired(self, run: Run, due: int, now: int) -> None:
        """Hear that a timer of a workflow, due at `due`, is recorded as over; both are times of the database."""

    def lease_lost(self, run: Run) -> None:
        """Hear that this worker drops a run because its lease is gone."""

    def swept(self, result: SweepResult) -> None:
        """Hear what a sweep of this worker did: dead workers, and the runs that it took from them."""

    def schedules_fired(self, runs: Sequence[str], due: int, now: int) -> None:
        """Hear that schedules were due at `due`, and which runs were started for them by `now`."""

    def loop_failed(self, loop: str, error: BaseException) -> None:
        """Hear of an error that a background loop has survived. Called from any thread."""

    def store_failed(self, error: BaseException) -> None:
        """Hear that a verb of the store failed, even if it is repeated. Called from any thread."""

    def reconnected(self) -> None:
        """Hear that a connection was opened after attempts that had failed. Called from any thread."""


#: Names of the signals.
SIGNALS = tuple(name for name in vars(Listener) if not name.startswith("_"))


class Telemetry:
    """The signals of one engine, each a function that tells its listeners, or None while there are none."""

    __slots__ = ("listeners", *SIGNALS)

    worker_started: Callable[[ObservedWorker], None] | None
    worker_stopped: Callable[[ObservedWorker], None] | None
    claimed: Callable[[Sequence[ClaimedRun], int, int, float], None] | None
    attempt_started: Callable[[ObservedRun, ObservedAttempt], None] | None
    committed: Callable[[Sequence[tuple[ObservedRun, Turn]], Sequence[TurnOutcome], int, float], None] | None
    replayed: Callable[[Run, int, float], None] | None
    timer_fired: Callable[[Run, int, int], None] | None
    lease_lost: Callable[[Run], None] | None
    swept: Callable[[SweepResult], None] | None
    schedules_fired: Callable[[Sequence[str], int, int], None] | None
    loop_failed: Callable[[str, BaseException], None] | None
    store_failed: Callable[[BaseException], None] | None
    reconnected: Callable[[], None] | None

    def __init__(self) -> None:
        #: Listeners, in the order in which they were attached.
        self.listeners: tuple[Listener, ...] = ()
        self._connect()

    def attach(self, listener: Listener) -> Callable[[], None]:
        """Attach a listener; the returned function detaches it."""
        self.listeners = (*self.listeners, listener)
        self._connect()

        def detach() -> None:
            self.listeners = tuple(one for one in self.listeners if one is not listener)
            self._connect()

        return detach

    def _connect(self) -> None:
        for name in SIGNALS:
            own = getattr(Listener, name)
            heard = tuple(getattr(one, name) for one in self.listeners if getattr(type(one), name) is not own)
            setattr(self, name, _teller(name, heard) if heard else None)


def _teller(name: str, heard: tuple[Callable[..., None], ...]) -> Callable[..., None]:
    failures = 0

    def tell(*args: Any) -> None:
        nonlocal failures
        for method in heard:
            try:
                method(*args)
            except Exception:
                failures += 1
                # At the first failure, the second, the fourth and so on: a broken listener fails at every signal.
                if failures & (failures - 1) == 0:
                    logger.exception("a listener failed %d time(s) at the signal %s", failures, name)

    return tell
