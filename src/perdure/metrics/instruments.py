"""The instruments: names, kinds, labels and buckets of all series, for every exporter.

Names follow the conventions of Prometheus: base units, `_total` for counters. Labels are bounded: types, queues, limits
and statuses, never ids. A type beyond the bound has the label `other`.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Kind(StrEnum):
    """Kind of an instrument."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Instrument(Struct, frozen=True):
    """One instrument: a family of series that differ in their labels."""

    name: str
    kind: Kind
    #: Unit in OpenTelemetry. Not `1` for what is counted: exporters to Prometheus would name such a gauge a ratio.
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    #: Upper bounds of a histogram's buckets, without the last, which has none.
    buckets: tuple[float, ...] = ()
    #: Whether the greatest value of all processes is shown, and not their sum; of gauges.
    greatest: bool = False

    @property
    def size(self) -> int:
        """Number of cells of one series: a number, or the buckets of a histogram and the sum of its values."""
        return len(self.buckets) + 2 if self.kind is Kind.HISTOGRAM else 1

    @property
    def dotted(self) -> str:
        """Name in OpenTelemetry, whose exporters for Prometheus add unit and `_total` to get the name here."""
        name = self.name
        for ending in ("_total", "_seconds", "_per_second"):
            name = name.removesuffix(ending)
        return name.replace("perdure_", "perdure.", 1)


#: Label of everything beyond a bound.
OTHER = "other"

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0)
_CALLS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LONG = (0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
_WAITS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)
_SIZES = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)


def _counter(name: str, unit: str, text: str, *labels: str) -> Instrument:
    return Instrument(name, Kind.COUNTER, unit, text, labels)


def _gauge(name: str, unit: str, text: str, *labels: str, greatest: bool = False) -> Instrument:
    return Instrument(name, Kind.GAUGE, unit, text, labels, greatest=greatest)


def _histogram(name: str, unit: str, buckets: tuple[float, ...], text: str, *labels: str) -> Instrument:
    return Instrument(name, Kind.HISTOGRAM, unit, text, labels, buckets)


RUNS_STARTED = _counter("perdure_runs_started_total", "{run}", "Runs that a worker began for the first time.", "type")
RUNS_FINISHED = _counter(
    "perdure_runs_finished_total", "{run}", "Runs that a worker finished, by outcome.", "type", "status"
)
RUNS_PARKED = _counter("perdure_runs_parked_total", "{park}", "Times that a run was parked, because it waits.", "type")
RUNS_RETRIED = _counter(
    "perdure_runs_retried_total", "{attempt}", "Failed attempts at whole runs that are retried.", "type"
)
RUNS_BLOCKED = _counter("perdure_runs_blocked_total", "{run}", "Runs that were blocked.", "type")
RUN_DURATION = _histogram(
    "perdure_run_duration_seconds", "s", _LONG, "Time from the first claim of the last attempt to the outcome.", "type"
)
STEP_ATTEMPTS = _counter(
    "perdure_step_attempts_total", "{attempt}", "Recorded attempts at steps, by result.", "type", "status"
)
STEP_DURATION = _histogram(
    "perdure_step_duration_seconds", "s", _CALLS, "Duration of recorded attempts at steps.", "type"
)
ACTIVITY_ATTEMPTS = _counter(
    "perdure_activity_attempts_total", "{attempt}", "Recorded attempts at activities, by result.", "type", "status"
)
ACTIVITY_DURATION = _histogram(
    "perdure_activity_duration_seconds", "s", _CALLS, "Duration of recorded attempts at activities.", "type"
)
REPLAY_DURATION = _histogram("perdure_replay_duration_seconds", "s", _SHORT, "Duration of replays of histories.")
TIMER_LATENESS = _histogram(
    "perdure_timer_lateness_seconds", "s", _WAITS, "Time from the end of a timer until its workflow went on."
)
QUEUE_WAIT = _histogram("perdure_queue_wait_seconds", "s", _WAITS, "Time from ready to claimed.", "queue")
CLAIM_DURATION = _histogram("perdure_claim_duration_seconds", "s", _SHORT, "Duration of claims and admissions.")
CLAIM_BATCH = _histogram("perdure_claim_batch_runs", "{run}", _SIZES, "Runs in the answer to a claim or an admission.")
COMMIT_DURATION = _histogram("perdure_commit_duration_seconds", "s", _SHORT, "Duration of commits, with repetitions.")
COMMIT_BATCH = _histogram("perdure_commit_batch_turns", "{turn}", _SIZES, "Turns in a commit.")
LEASE_LOSSES = _counter("perdure_lease_losses_total", "{run}", "Runs that a worker dropped because its lease was gone.")
TAKEOVERS = _counter("perdure_takeovers_total", "{run}", "Runs that a sweep of this worker took from dead workers.")
DEAD_WORKERS = _counter("perdure_dead_workers_total", "{worker}", "Workers that a sweep of this worker declared dead.")
RUNS_EXPIRED = _counter(
    "perdure_runs_expired_total", "{run}", "Runs that a sweep of this worker failed at their deadline."
)
SCHEDULE_FIRES = _counter("perdure_schedule_fires_total", "{run}", "Runs that this worker started for schedules.")
SCHEDULE_LATENESS = _histogram(
    "perdure_schedule_lateness_seconds", "s", _WAITS, "Time from a fire time until its runs were started."
)
STORE_ERRORS = _counter("perdure_store_errors_total", "{error}", "Calls to the database that failed.", "error")
STORE_RECONNECTS = _counter(
    "perdure_store_reconnects_total", "{connection}", "Connections opened after attempts that had failed."
)
LOOP_ERRORS = _counter("perdure_loop_errors_total", "{error}", "Errors that background loops have survived.", "loop")
LOOP_LAG = _histogram("perdure_loop_lag_seconds", "s", _SHORT, "Lateness of a call of the event loop, once a second.")
CLAIMS_FAILING = _gauge(
    "perdure_claims_failing_seconds",
    "s",
    "Time for which no claim of a worker has succeeded; 0 while claims succeed.",
    greatest=True,
)
WORKERS = _gauge("perdure_workers", "{worker}", "Workers behind this end point.")
WORKER_SLOTS = _gauge(
    "perdure_worker_slots", "{slot}", "Slots of the workers behind this end point, used and free.", "state"
)
ATTEMPTS_RUNNING = _gauge(
    "perdure_attempts_running",
    "{attempt}",
    "Attempts at steps and activities that are under way, sampled once a second.",
    "type",
)
ATTEMPTS_OLDEST_AGE = _gauge(
    "perdure_attempts_oldest_age_seconds",
    "s",
    "Age of the oldest attempt that is under way, sampled once a second.",
    "type",
    greatest=True,
)

#: Instruments of worker processes.
WORKER_INSTRUMENTS = (
    RUNS_STARTED, RUNS_FINISHED, RUNS_PARKED, RUNS_RETRIED, RUNS_BLOCKED, RUN_DURATION,
    STEP_ATTEMPTS, STEP_DURATION, ACTIVITY_ATTEMPTS, ACTIVITY_DURATION, REPLAY_DURATION, TIMER_LATENESS,
    QUEUE_WAIT, CLAIM_DURATION, CLAIM_BATCH, COMMIT_DURATION, COMMIT_BATCH,
    LEASE_LOSSES, TAKEOVERS, DEAD_WORKERS, RUNS_EXPIRED, SCHEDULE_FIRES, SCHEDULE_LATENESS,
    STORE_ERRORS, STORE_RECONNECTS, LOOP_ERRORS, LOOP_LAG, CLAIMS_FAILING, WORKERS, WORKER_SLOTS,
    ATTEMPTS_RUNNING, ATTEMPTS_OLDEST_AGE,
)  # fmt: skip

DATABASE_UP = _gauge("perdure_database_up", "{database}", "1 if the database answered the last reading, else 0.")
QUEUE_DEPTH = _gauge("perdure_queue_depth", "{run}", "Ready runs that wait in a queue.", "queue")
QUEUE_OLDEST_AGE = _gauge("perdure_queue_oldest_age_seconds", "s", "Age of the oldest ready run of a queue.", "queue")
LIMIT_HELD = _gauge("perdure_limit_held", "{permit}", "Permits of a limit in use, of all keys.", "limit")
LIMIT_WAITING = _gauge(
    "perdure_limit_waiting", "{waiter}", "Runs and steps that wait for a limit, of all keys.", "limit"
)
LIMIT_CONCURRENCY = _gauge(
    "perdure_limit_concurrency", "{permit}", "Bound of the concurrency of a limit, the least of all keys.", "limit"
)
LIMIT_RATE = _gauge(
    "perdure_limit_rate_per_second",
    "{admission}/s",
    "Bound of the rate of a limit in admissions a second, the least of all keys.",
    "limit",
)
BREAKER_STATE = _gauge(
    "perdure_breaker_state", "{breaker}", "1 for the state that a breaker is in, else 0.", "breaker", "state"
)
BREAKER_WAITING = _gauge("perdure_breaker_waiting", "{waiter}", "Runs and steps that wait for a breaker.", "breaker")
DEAD_LETTERS = _gauge("perdure_dead_letters", "{run}", "Runs that do not continue by themselves.", "status")

#: Instruments that are read from the database, for the whole fleet.
DATABASE_INSTRUMENTS = (
    DATABASE_UP, QUEUE_DEPTH, QUEUE_OLDEST_AGE, LIMIT_HELD, LIMIT_WAITING, LIMIT_CONCURRENCY, LIMIT_RATE,
    BREAKER_STATE, BREAKER_WAITING, DEAD_LETTERS,
)  # fmt: skip

INSTRUMENTS = {one.name: one for one in (*WORKER_INSTRUMENTS, *DATABASE_INSTRUMENTS)}


def samples_per_series(instrument: Instrument) -> int:
    """Number of samples of one series in an exposition: of a histogram its buckets, count and sum."""
    return instrument.size + 1 if instrument.kind is Kind.HISTOGRAM else 1


#: Values of labels that are known beforehand: at most so many series of each instrument differ in them.
_FIXED = {"status": 4, "state": 3, "error": 10, "loop": 30}


def most_samples(*, types: int, queues: int, limits: int = 0, breakers: int = 0) -> int:
    """Greatest number of samples of one end point, with so many types, queues, limits and breakers.

    The bound for what is beyond each bound, `other`, is not part of it: count it as one more type or queue.
    """
    values = {**_FIXED, "type": types, "queue": queues, "limit": limits, "breaker": breakers}
    total = 0
    for one in INSTRUMENTS.values():
        series = 1
        for label in one.labels:
            series *= values[label]
        total += series * samples_per_series(one)
    return total
