"""The recorder: counts the signals of an engine."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence

from perdure.core.model.claim import ClaimedRun
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run, Status
from perdure.core.model.turn import Block, Finish, NextState, Park, RetryLater, Turn, TurnOutcome
from perdure.core.model.worker_info import SweepResult
from perdure.core.pinning import base_queue
from perdure.core.system import System
from perdure.core.telemetry import Listener, ObservedRun, ObservedWorker
from perdure.metrics import instruments
from perdure.metrics.cells import Cells, Labels, Readings
from perdure.metrics.instruments import OTHER, Instrument

#: Seconds between two samples of slots and of the lag of an event loop.
SAMPLE_INTERVAL = 1.0

# Looking up an enum member through its class is slow; these are needed for every turn.
_APPLIED, _AWAKE = TurnOutcome.APPLIED, TurnOutcome.AWAKE
_STEP, _ATTEMPT = RecordKind.STEP, RecordKind.ATTEMPT
_COMPLETED = Status.COMPLETED
_STEP_MICROSECONDS = [round(one * 1e6) for one in instruments.STEP_DURATION.buckets]
_RUN_BUCKETS = instruments.RUN_DURATION.buckets
_WAIT_BUCKETS = instruments.QUEUE_WAIT.buckets

#: Called with each value of a histogram, besides being counted.
ValueSink = Callable[[Instrument, Labels, float], None]


class _OfType:
    """Places of the series of one type that every step and run needs."""

    __slots__ = ("completed", "label", "run", "run_sum", "started", "step", "step_sum")

    def __init__(self, cells: Cells, label: str) -> None:
        self.label = label
        self.started = cells.place(instruments.RUNS_STARTED, label)
        self.completed = cells.place(instruments.RUNS_FINISHED, label, Status.COMPLETED.value)
        self.run = cells.place(instruments.RUN_DURATION, label)
        self.run_sum = self.run + len(_RUN_BUCKETS) + 1
        self.step = cells.place(instruments.STEP_DURATION, label)
        self.step_sum = self.step + len(_STEP_MICROSECONDS) + 1


class Recorder(Listener):
    """Counts in cells. Types and queues beyond the bounds are counted together, as `other`."""

    def __init__(self, system: System, cells: Cells, *, types: int, queues: int) -> None:
        self.cells = cells
        #: What shows the numbers.
        self.shown_by: object = None
        #: Gets each value of a histogram; None: nothing does.
        self.sink: ValueSink | None = None
        #: Loop of the worker that started last.
        self.loop: asyncio.AbstractEventLoop | None = None
        self._system = system
        self._types: dict[str, _OfType] = {}
        #: Series of the types beyond the bound, once there is one.
        self._beyond: _OfType | None = None
        self._type_bound = types
        self._queues: dict[str, tuple[int, str]] = {}
        self._queue_bound = queues
        #: Labels of types whose attempts were seen under way: without them, the last number would stay.
        self._seen_running: set[str] = set()
        self._workers: dict[ObservedWorker, asyncio.Task[None]] = {}

    # counting

    def count(self, instrument: Instrument, *labels: str, amount: float = 1.0) -> None:
        """Add to a counter."""
        self.cells.values[self.cells.place(instrument, *labels)] += amount

    def observe(self, instrument: Instrument, value: float, *labels: str) -> None:
        """Add a value to a histogram."""
        place, values = self.cells.place(instrument, *labels), self.cells.values
        # Clocks of two machines differ a little: a wait may come out as negative.
        value = max(0.0, value)
        values[place + bisect_left(instrument.buckets, value)] += 1.0
        values[place + len(instrument.buckets) + 1] += value
        if self.sink is not None:
            self.sink(instrument, labels, value)

    def _set(self, instrument: Instrument, value: float, *labels: str) -> None:
        self.cells.values[self.cells.place(instrument, *labels)] = value

    def _of_type(self, type: str) -> _OfType:
        known = self._types.get(type)
        if known is None:
            # Names of types beyond the bound are not kept: there may be any number of them.
            label = type if len(self._types) < self._type_bound else OTHER
            known = self._beyond if label is OTHER and self._beyond is not None else _OfType(self.cells, label)
            if label is OTHER:
                self._beyond = known
            else:
                self._types[type] = known
        return known

    def _of_queue(self, queue: str) -> tuple[int, str]:
        """Return the place of the waits in a queue, and the queue's label."""
        known = self._queues.get(queue)
        if known is None:
            label = base_queue(queue)
            labels = {one for _, one in self._queues.values()}
            is_beyond = label not in labels and len(labels) >= self._queue_bound
            known = (
                self.cells.place(instruments.QUEUE_WAIT, OTHER if is_beyond else label),
                OTHER if is_beyond else label,
            )
            if not is_beyond:
                self._queues[queue] = known
        return known

    # signals

    def claimed(self, runs: Sequence[ClaimedRun], asked: int, now: int, seconds: float) -> None:
        """Count a claim, and the waits of its runs."""
        self.observe(instruments.CLAIM_DURATION, seconds)
        self.observe(instruments.CLAIM_BATCH, len(runs))
        values, sink = self.cells.values, self.sink
        for one in runs:
            run = one.run
            place, queue = self._queues.get(run.queue) or self._of_queue(run.queue)
            # Clocks of two machines differ a little: a wait may come out as negative.
            wait = max(0.0, (now - max(run.wake_at, run.created_at)) / 1e6)
            values[place + bisect_left(_WAIT_BUCKETS, wait)] += 1.0
            values[place + len(_WAIT_BUCKETS) + 1] += wait
            if sink is not None:
                sink(instruments.QUEUE_WAIT, (queue,), wait)
            if run.token == 1:
                values[(self._types.get(run.type) or self._of_type(run.type)).started] += 1.0

    def committed(
        self, turns: Sequence[tuple[ObservedRun, Turn]], verdicts: Sequence[TurnOutcome], now: int, seconds: float
    ) -> None:
        """Count a batch, the attempts that its turns record, and the new states of the runs."""
        if seconds:
            self.observe(instruments.COMMIT_DURATION, seconds)
            self.observe(instruments.COMMIT_BATCH, len(turns))
        types, values, is_plain = self._types, self.cells.values, self.sink is None
        # Sums are added up once a batch. Microseconds are compared as they are.
        own, type, step, total = None, "", 0, 0
        for (held, turn), verdict in zip(turns, verdicts, strict=True):
            if verdict is not _APPLIED and verdict is not _AWAKE:
                continue
            run = held.run
            # Most runs of a batch are of the same type.
            if own is None or run.type != type:
                if own is not None:
                    values[own.step_sum] += total / 1e6
                    total = 0
                type = run.type
                own = types.get(type) or self._of_type(type)
                step = own.step
            for record in turn.records:
                if is_plain and record.kind is _STEP and not record.failed and (began := record.started_at):
                    # The usual case. That it succeeded follows from the other numbers (`add_successes`).
                    duration = record.at - began
                    values[step + bisect_left(_STEP_MICROSECONDS, duration)] += 1.0
                    total += duration
                else:
                    self._recorded(held, record, own.label)
            if turn.next is not None and verdict is _APPLIED:
                self._left(held, turn.next, own, now)
        if own is not None:
            values[own.step_sum] += total / 1e6

    def _recorded(self, held: ObservedRun, record: Record, label: str) -> None:
        """Count the attempt of a record, if it has one."""
        if record.kind is not _STEP and record.kind is not _ATTEMPT:
            return
        duration = (record.at - record.started_at) / 1e6 if record.started_at else 0.0
        if held.scope == "activity":
            self._activity_ended(label, "retrying", duration)
            return
        if record.failed:
            self.count(instruments.STEP_ATTEMPTS, label, "retrying" if record.kind is _ATTEMPT else "failed")
        self.observe(instruments.STEP_DURATION, duration, label)

    def _left(self, held: ObservedRun, after: NextState, own: _OfType, now: int) -> None:
        """Count the new state of a run that its worker has released."""
        label = own.label
        if type(after) is Finish:
            run, values = held.run, self.cells.values
            duration = (now - run.started_at) / 1e6 if run.started_at else 0.0
            if after.status is _COMPLETED:
                values[own.completed] += 1.0
            else:
                self.count(instruments.RUNS_FINISHED, label, after.status.value)
            values[own.run + bisect_left(_RUN_BUCKETS, duration)] += 1.0
            values[own.run_sum] += duration
            if self.sink is not None:
                self.sink(instruments.RUN_DURATION, (label,), duration)
            if held.scope == "activity":
                word = "success" if after.status is _COMPLETED else after.status.value
                self._activity_ended(label, word, duration)
        elif isinstance(after, Park):
            self.count(instruments.RUNS_PARKED, label)
        elif isinstance(after, RetryLater):
            self.count(instruments.RUNS_RETRIED, label)
        elif isinstance(after, Block):
            self.count(instruments.RUNS_BLOCKED, label)

    def _activity_ended(self, label: str, status: str, duration: float) -> None:
        self.count(instruments.ACTIVITY_ATTEMPTS, label, status)
        self.observe(instruments.ACTIVITY_DURATION, duration, label)

    def replayed(self, run: Run, records: int, seconds: float) -> None:
        """Count a replay."""
        self.observe(instruments.REPLAY_DURATION, seconds)

    def timer_fired(self, run: Run, due: int, now: int) -> None:
        """Count how late a timer was."""
        self.observe(instruments.TIMER_LATENESS, (now - due) / 1e6)

    def lease_lost(self, run: Run) -> None:
        """Count a lease that was lost."""
        self.count(instruments.LEASE_LOSSES)

    def swept(self, result: SweepResult) -> None:
        """Count dead workers, and the runs that were taken from them."""
        self.count(instruments.TAKEOVERS, amount=result.released)
        self.count(instruments.DEAD_WORKERS, amount=len(result.dead_workers))
        self.count(instruments.RUNS_EXPIRED, amount=result.expired)

    def schedules_fired(self, runs: Sequence[str], due: int, now: int) -> None:
        """Count runs of schedules, and how late they are. A worker that has just started may not know the fire time."""
        self.count(instruments.SCHEDULE_FIRES, amount=len(runs))
        if due:
            self.observe(instruments.SCHEDULE_LATENESS, (now - due) / 1e6)

    def loop_failed(self, loop: str, error: BaseException) -> None:
        """Count an error of a background loop."""
        with self.cells.lock:
            self.count(instruments.LOOP_ERRORS, loop)

    def store_failed(self, error: BaseException) -> None:
        """Count an error of the database, by its class."""
        with self.cells.lock:
            self.count(instruments.STORE_ERRORS, type(error).__name__)

    def reconnected(self) -> None:
        """Count a reconnection."""
        with self.cells.lock:
            self.count(instruments.STORE_RECONNECTS)

    # samples

    def worker_started(self, worker: ObservedWorker) -> None:
        """Sample a worker from now on."""
        self.loop = asyncio.get_running_loop()
        self._workers[worker] = self._system.spawn(self._keep_sampling(), "perdure metrics")
        self.sample()

    def worker_stopped(self, worker: ObservedWorker) -> None:
        """Stop sampling a worker."""
        sampling = self._workers.pop(worker, None)
        if sampling is not None:
            sampling.cancel()
        self.sample()

    def sample(self) -> None:
        """Measure the slots and the running attempts of this process. From any thread."""
        workers = list(self._workers)
        self._set(instruments.WORKERS, len(workers))
        self._set(instruments.CLAIMS_FAILING, max((one.claims_failing_for for one in workers), default=0.0))
        self._set(instruments.WORKER_SLOTS, sum(one.held_runs for one in workers), "used")
        self._set(instruments.WORKER_SLOTS, sum(max(0, one.free_slots) for one in workers), "free")
        running: dict[str, list[float]] = {label: [] for label in self._seen_running}
        for worker in workers:
            now = worker.now
            for step in worker.running_steps(0):
                running.setdefault(self._of_type(step.type).label, []).append((now - step.since) / 1e6)
        self._seen_running |= running.keys()
        for label, ages in running.items():
            self._set(instruments.ATTEMPTS_RUNNING, len(ages), label)
            self._set(instruments.ATTEMPTS_OLDEST_AGE, max(ages, default=0.0), label)

    async def _keep_sampling(self) -> None:
        while True:
            before = self._system.monotonic()
            await self._system.sleep(SAMPLE_INTERVAL)
            self.observe(instruments.LOOP_LAG, self._system.monotonic() - before - SAMPLE_INTERVAL)
            self.sample()


def add_successes(readings: Readings) -> None:
    """Add the number of successful attempts at steps: all timed attempts minus the failed ones."""
    for name, labels in list(readings):
        if name == instruments.STEP_DURATION.name:
            attempts = instruments.STEP_ATTEMPTS.name
            failed = [readings.get((attempts, (*labels, word)), [0.0])[0] for word in ("retrying", "failed")]
            readings[attempts, (*labels, "success")] = [sum(readings[name, labels][:-1]) - sum(failed)]
