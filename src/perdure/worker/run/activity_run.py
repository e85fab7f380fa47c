"""An activity's run while a worker holds it: one attempt, and the turn that follows from its end.

An activity is not replayed: a claim is an attempt, and the end of the attempt is one turn, with the outcome or with the
error and the time of the next attempt. Details of heartbeats are stored with the run, so that the next attempt can go
on from there. An activity that returns `Pending` is parked until its end is reported from outside, or it times out; no
worker holds it meanwhile. A cancelled activity is asked to stop; one that does not check for that is interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from typing import Any

from msgspec.structs import replace

from perdure.core.background_loops import Wakeup
from perdure.core.codec.failure import Failure
from perdure.core.model.attempt_reports import PendingAttempt, pending_from_json, pending_output
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.outputs import Interruption, NewOutput, Output, OutputKind
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.run_orders import termination_message
from perdure.core.model.turn import Finish, NextState, Park, Release, RetryLater, Turn, TurnOutcome
from perdure.core.model.waits import Wait, WaitKind, waits_to_json
from perdure.core.policy.retry import Retry
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.errors import ActivityTimeout, PerdureError, RunTerminated, StoreError, UsageError
from perdure.replay.outcome import cancelled
from perdure.store.contract import Store
from perdure.store.sql.reads import interruptions_since_requeue
from perdure.worker.batched_calls import ClockReading, guarded
from perdure.worker.commit.attempt_log import ACTIVITY
from perdure.worker.run.held_run import HeldRun, Stage
from perdure.worker.run.interrupted_steps import EARLIEST_TOKEN, count_interrupted_activity_attempts
from perdure.worker.run.pause_and_evict import RunOrders
from perdure.worker.run.policy import fail_expired
from perdure.worker.services import Services
from perdure.worker.steps.activity_attempt import ActivityAttempt
from perdure.worker.steps.attempt import Attempt
from perdure.worker.tracing import trace_interrupted_activity
from perdure.workflow.activity import Activity, Pending
from perdure.workflow.run_settings import RunSettings

logger = logging.getLogger("perdure.worker")

#: Seconds between two writes of heartbeat details. The last details are always written.
HEARTBEAT_INTERVAL = 0.2
#: Longest time between two checks of the deadline, in seconds.
DEADLINE_RECHECK = 3600.0
#: Time until the lease is checked again when it was not safe enough to begin, in seconds.
LEASE_RECHECK = 0.1
#: An attempt that is due within this many microseconds begins at once: clocks differ by that much.
CLOCK_TOLERANCE = 100_000


class ActivityRun(HeldRun):
    """An activity's run that this worker holds."""

    scope = ACTIVITY

    def __init__(
        self, claimed: ClaimedRun, activity: Activity[Any, Any], records: tuple[Record, ...], services: Services
    ) -> None:
        super().__init__(claimed, services)
        self._activity = activity
        #: Number of the next record.
        self._seq = records[-1].seq + 1 if records else 0
        #: Start of the first attempt, and the earliest time of the next one: others may have woken the run before that.
        self._begun_at = records[0].started_at if records else claimed.run.started_at
        self._not_before = _next_attempt_at(claimed.run, records[-1]) if records else 0
        self._last_failed = records[-1] if records else None
        #: Interrupted attempts. They count in an attempt's number, but not for the retry policy.
        self._interrupted = 0
        self._attempt: ActivityAttempt | None = None
        self._arguments: dict[str, Any] = {}
        self._settings = activity.settings
        self._last_heartbeat: Any = None
        #: Next state of the run once the attempt has ended, and the attempt's record until a turn carries it.
        self._after: NextState | None = None
        self._record: Record | None = None
        #: Reason of the cancellation; None: the run was not cancelled.
        self._cancelled: str | None = None
        #: Its inbox entry, which counts as read when the run has ended or the activity has taken it back.
        self._cancel_entry = 0
        #: Details of the last heartbeat that no turn has carried yet.
        self._details: str | None = None
        self._known_details: str | None = None
        self._interruption: NewOutput | None = None
        #: The attempt, if its function has returned `Pending`, and time of its last heartbeat from outside.
        self._pending: PendingAttempt | None = None
        self._heard_at = 0
        self._may_write_details_at = 0.0
        self._beat = Wakeup(services.system)
        self._silence = Wakeup(services.system)

    @property
    def idle(self) -> bool:
        """True if no attempt and no commit is under way."""
        return self._attempt is None and not self._committing and self.stage is not Stage.REPLAYING

    def attempts_under_way(self) -> Sequence[Attempt]:
        """Return the attempt that is under way. Called from any thread."""
        attempt = self._attempt
        return () if attempt is None else (attempt,)

    # beginning

    def begin(self, reading: ClockReading) -> None:
        """Decode the arguments and begin the attempt. Called from a plain callback of the loop."""
        if self.stage is not Stage.REPLAYING:
            return
        run, services = self.run, self._services
        what = f"input of run {run.id!r} ({run.type})"
        self._arguments = self._activity.signature.decode(run.input, services.codec, what)
        self._settings = RunSettings.from_json(run.options).over(self._activity.settings)
        if self._settings.schedule_to_close is not None and run.deadline == NEVER and run.generation == 1:
            # The creator of the run did not know the activity's code: a producer in plain SQL, for example.
            self.run = replace(run, deadline=self._begun_at + int(self._settings.schedule_to_close * 1e6))
        if run.token > 1:
            services.owner.read_earlier_attempts(self)
        else:
            self.take_earlier_attempts(None, (), None)

    @guarded
    def take_earlier_attempts(
        self, heartbeat: Output | None, interruptions: Sequence[Interruption], pending: PendingAttempt | None = None
    ) -> None:
        """Take the last heartbeat, the interruptions, and the attempt that was pending. From a plain callback."""
        if self.stage is not Stage.REPLAYING:
            return
        if heartbeat is not None:
            what = f"heartbeat of run {self.run.id!r}"
            self._last_heartbeat = self._services.codec.decode(heartbeat.payload, Any, what)
            self._heard_at = heartbeat.at
        if pending is not None and (pending.generation, pending.number) == (self.run.generation, self._seq):
            self._pending = pending
        self._interrupted = count_interrupted_activity_attempts(interruptions, self._last_failed)
        if self.trace is not None and self._interrupted:
            trace_interrupted_activity(self.trace, interruptions, self._seq - 1, self.run, self._interrupted)
        self.stage = Stage.ACTIVE
        if not self.take_backlog():
            self.settle(self._services.read_clock())

    # events

    @guarded
    def receive(self, messages: Iterable[Message]) -> None:
        """Take in new inbox entries, in order."""
        if self.stage is Stage.REPLAYING:
            self._backlog.extend(messages)
            return
        if self.stage is not Stage.ACTIVE or self._forced is not None:
            return
        self._orders = self._orders or RunOrders(self, self._services)
        for message in self._orders.accept(messages):
            self.seen = message.seq
            if message.kind is RecordKind.CANCEL:
                self._cancel(message)
            elif message.kind is RecordKind.REPORT:
                self._take_reported_failure(message)
            elif message.kind is RecordKind.MESSAGE:
                logger.warning(
                    "activity %s of run %s takes no messages; %r is ignored", self.run.type, self.run.id, message.name
                )
        self.settle(self._services.read_clock())

    def _cancel(self, message: Message) -> None:
        if self._is_stopping or isinstance(self._after, Finish):
            return
        services = self._services
        reason = "" if message.payload is None else services.codec.decode(message.payload, Any, "reason")
        if message.failed:
            # It is terminated: an activity has nothing to undo, and is not waited for.
            self._cancel_attempts()
            error = RunTerminated(termination_message(self.run.id, str(reason or "")), run_id=self.run.id)
            self._after = Finish(Status.FAILED, Failure.of(error, services.codec).to_json())
            return
        self._cancelled, self._cancel_entry = str(reason or ""), message.seq
        if self._attempt is None:
            self._end_cancelled()
        elif self._attempt.ask_to_stop():
            self._wakeup.arm(services.settings.grace, self._interrupt)
        else:
            self._interrupt()

    @property
    def _is_stopping(self) -> bool:
        """True if the run was cancelled and its attempt has not taken that back."""
        return self._cancelled is not None and (self._attempt is None or self._attempt.stop_asked)

    @guarded
    def _interrupt(self) -> None:
        """Interrupt an attempt that was asked to stop and did not."""
        if self._attempt is None or self._after is not None:
            return
        reading = self._services.read_clock()
        if self._is_stopping:
            self._cancel_attempts()
            self._end_cancelled()
            self.settle(reading)
        else:
            self._wake_at_deadline(reading)

    def _end_cancelled(self, error: BaseException | None = None) -> None:
        """End as cancelled; `error`: what the activity raised. A value that it returned is its partial result."""
        returned = self._after.payload if isinstance(self._after, Finish) else None
        outcome = cancelled(
            self.run.id, self.run.type, self._cancelled or "", self._services.codec,
            partial=None if returned == "null" else returned, cause=error if isinstance(error, Exception) else None,
        )  # fmt: skip
        self._after = Finish(outcome.status, outcome.payload)

    def step_ended(
        self, attempt: ActivityAttempt, result: Any, error: BaseException | None, reading: ClockReading
    ) -> None:
        """Turn the end of the attempt into the run's next state."""
        if attempt is not self._attempt:
            return
        if not self._is_stopping:
            self._cancelled = None
        self._attempt = None
        self._take_details(attempt)
        self._wakeup.disarm()
        self._silence.disarm()
        pending = error is None and result is Pending
        if self._cancelled is None and not pending:
            self._report_to_breaker(error)
        failed = self._succeeded(result) if error is None and not pending else error
        if self._cancelled is not None:
            self._end_cancelled(failed)
        elif pending:
            self._pending = self._pending_since(attempt, reading.now)
        elif failed is not None:
            self._failed(attempt.started_at, failed, reading.now)
        self.settle(reading)

    def _report_to_breaker(self, error: BaseException | None) -> None:
        """Let the breaker of the activity, if it has one, count the end of an attempt."""
        gatekeeper = self._services.gatekeeper
        if (breaker := gatekeeper.breaker_of(self.run)) is not None:
            gatekeeper.report_run_outcome(breaker, error, self._policy(), self.run)

    def _succeeded(self, result: Any) -> PerdureError | None:
        codec, returns = self._services.codec, self._activity.signature.returns
        try:
            stored = codec.store(result, returns, f"result of run {self.run.id!r} ({self.run.type})")
        except PerdureError as error:
            return error
        self._after = Finish(Status.COMPLETED, stored[0])
        return None

    def _failed(self, started_at: int, error: BaseException, now: int) -> None:
        """Decide what follows from a failed attempt."""
        failure = Failure.of(error, self._services.codec)
        limit = error.kind if isinstance(error, ActivityTimeout) else ""
        policy = self._policy()
        number = self.run.attempt
        requested = policy.requested_delay(error, now)
        delay = requested
        if requested is None and not isinstance(error, UsageError):
            delay = policy.next_delay(number, error, self._services.system.random())
        retry_at = self.run.deadline if delay is None else now + int(delay * 1e6)
        if delay is None or retry_at >= self.run.deadline:
            used_up = policy.attempts is not None and number >= policy.attempts
            final = isinstance(error, UsageError) or not policy.is_worth_retrying(error)
            given_up = "fatal" if final and not used_up else "exhausted"
            self._after = Finish(Status.FAILED, replace(failure, given_up=given_up).to_json(), limit)
            return
        self._record = Record(
            seq=self._seq, kind=RecordKind.ATTEMPT, location=self.run.type, payload=failure.to_json(), failed=True,
            at=now, started_at=started_at, attempts=number - (requested is not None), retry_at=retry_at,
            run_attempt=self.run.attempt,
        )  # fmt: skip
        if requested is None:
            self._after = RetryLater(retry_at, failure.to_json(), limit)
        else:
            self._after = Park(retry_at, Reason.RETRY, self.seen)

    # pending attempts

    def _pending_since(self, attempt: ActivityAttempt, now: int) -> PendingAttempt:
        close, heartbeat = self._settings.start_to_close, self._settings.heartbeat
        breaker = self._services.gatekeeper.breaker_of(self.run)
        return PendingAttempt(
            generation=self.run.generation,
            number=self._seq,
            started_at=attempt.started_at,
            since=now,
            close_at=NEVER if close is None else attempt.started_at + int(close * 1e6),
            heartbeat=0 if heartbeat is None else int(heartbeat * 1e6),
            breaker="" if breaker is None else breaker.gate,
            admitted_at=self.run.wake_at,
        )

    def _wait_outside(self, pending: PendingAttempt, now: int) -> None:
        """Park the run until its end is reported from outside, or time the attempt out."""
        due = pending.due(self._heard_at)
        if due <= now + CLOCK_TOLERANCE:
            error = self._timeout(pending)
            self._report_to_breaker(error)
            self._failed(pending.started_at, error, now)
            return
        wait = Wait(
            kind=WaitKind.COMPLETION, name=self.run.type, since=pending.since, until=due if due < NEVER else 0
        )  # fmt: skip
        waits = waits_to_json(self.lease.token, [wait], 1)
        self._after = Park(min(due, self.run.deadline), Reason.COMPLETION, self.seen, waits)

    def _timeout(self, pending: PendingAttempt) -> ActivityTimeout:
        run = self.run
        if pending.due(self._heard_at) == pending.close_at:
            seconds = (pending.close_at - pending.started_at) / 1e6
            return ActivityTimeout(
                f"activity {run.type!r} of run {run.id!r} returned Pending, and its end was not reported within "
                f"{seconds:g} s of its start",
                kind="start_to_close",
            )
        return ActivityTimeout(
            f"activity {run.type!r} of run {run.id!r} returned Pending, and no heartbeat was reported for "
            f"{pending.heartbeat / 1e6:g} s; report heartbeats more often, or allow more time",
            kind="heartbeat",
        )

    def _take_reported_failure(self, message: Message) -> None:
        """End the attempt with an error that was reported from outside."""
        ending = self._after is not None and not self._waits_outside
        if ending or message.name != f"{self.run.generation}.{self._seq}":
            return
        attempt, pending = self._attempt, self._pending
        started_at = attempt.started_at if attempt else pending.started_at if pending else self.run.started_at
        self._cancel_attempts()
        if self._cancelled is not None:
            self._end_cancelled()
            return
        error = self._services.errors.restore(Failure.read(message.payload), run_id=self.run.id)
        self._report_to_breaker(error)
        self._failed(started_at, error, self._services.read_clock().now)

    @property
    def _waits_outside(self) -> bool:
        return isinstance(self._after, Park) and self._after.reason is Reason.COMPLETION

    def _policy(self) -> Retry:
        policy = self._settings.retry or self._services.settings.retry
        return replace(policy, attempts=self.run.max_attempts) if self.run.max_attempts else policy

    def release(self) -> None:
        """Give the run back unfinished, and note that its attempt was interrupted."""
        if self._attempt is not None:
            self._interruption = self._stop_notice(self._seq - 1, (self.run.type,))
        super().release()

    # heartbeats and emitted items

    def emit(self, attempt: ActivityAttempt, stream: str, value: object) -> None:
        """Buffer an emitted item for the next turn. Called from any thread."""
        self._services.emit_buffer.emit(self, attempt, stream, value)

    @guarded
    def emitted(self) -> None:
        """Write items that were emitted. Called from a plain callback of the loop."""
        if self.stage is Stage.OVER:
            self._services.emit_buffer.take(self)
        else:
            self._write_progress()

    @guarded
    def heartbeat_received(self, attempt: ActivityAttempt) -> None:
        """Write the details of a heartbeat. Called from a plain callback of the loop."""
        if attempt is self._attempt:
            self._take_details(attempt)
            self._write_progress()

    def _take_details(self, attempt: ActivityAttempt) -> None:
        # The end of an attempt may overtake the announcement of its last heartbeat, so every end calls this, too.
        details = attempt.details
        if details is not self._known_details:
            self._details = self._known_details = details

    def _write_progress(self) -> None:
        """Submit a turn for emitted items and heartbeat details while the attempt goes on."""
        if self.stage is not Stage.ACTIVE or self._committing:
            return
        wait = self._may_write_details_at - self._services.system.monotonic()
        if self in self._services.emit_buffer.pending or (self._details is not None and wait <= 0):
            self._services.journal.submit(self)
        elif self._details is not None:
            self._beat.arm(wait, self._write_progress)

    @guarded
    def _check_heartbeat(self) -> None:
        """Time the attempt out if its last heartbeat is too old."""
        limit, attempt = self._settings.heartbeat, self._attempt
        if limit is None or attempt is None:
            return
        left = attempt.last_beat + limit - self._services.system.monotonic()
        if left <= 0:
            attempt.time_out_heartbeat(limit)
        else:
            self._silence.arm(left, self._check_heartbeat)

    # turns

    def settle(self, reading: ClockReading) -> None:
        """Begin the attempt, write a turn, or wait."""
        if self.stage is not Stage.ACTIVE:
            return
        if self._forced is None and self._after is None:
            if self.run.deadline <= reading.now:
                self.end_as(fail_expired(self.run, self._services))
                return
            if self._attempt is None and not (self._orders is not None and self._orders.blocks_steps):
                if self._pending is not None:
                    self._wait_outside(self._pending, reading.now)
                elif self._not_before > reading.now + CLOCK_TOLERANCE:
                    self._after = Park(self._not_before, Reason.RETRY, self.seen)
                else:
                    self._start(reading)
        if not self._committing and self._must_write():
            self._services.journal.submit(self)

    def _start(self, reading: ClockReading) -> None:
        services = self._services
        if services.owner.stopping:
            return
        if not reading.may_start:
            self._wakeup.arm(LEASE_RECHECK, self._recheck)
            return
        if (breaker_error := services.gatekeeper.breaker_error(self.run)) is not None:
            self._after = Finish(
                Status.FAILED, replace(Failure.of(breaker_error, services.codec), given_up="fatal").to_json()
            )
            return
        policy = self._policy()
        self._attempt = services.attempts.activity(
            self.run, self._activity, self._arguments, self._settings, policy.attempts, self._last_heartbeat,
            self._interrupted, self._seq, reading.now, services.system, services.codec, services.results, self,
        )  # fmt: skip
        if (tell := services.system.telemetry.attempt_started) is None:
            self._attempt.start(services.threads, self.run.deadline)
        else:
            copy_context().run(self._start_told, self._attempt, tell)
        if self._settings.heartbeat is not None:
            self._silence.arm(self._settings.heartbeat, self._check_heartbeat)
        self._wake_at_deadline(reading)

    def _start_told(self, attempt: ActivityAttempt, tell: Callable[[ActivityRun, ActivityAttempt], None]) -> None:
        tell(self, attempt)
        attempt.start(self._services.threads, self.run.deadline)

    def _wake_at_deadline(self, reading: ClockReading) -> None:
        self._wakeup.arm(min(DEADLINE_RECHECK, max(0.0, (self.run.deadline - reading.now) / 1e6)), self._recheck)

    @guarded
    def _recheck(self) -> None:
        reading = self._services.read_clock()
        self.settle(reading)
        if self._attempt is not None and not self._is_stopping:
            self._wake_at_deadline(reading)

    def _must_write(self) -> bool:
        if self._forced is not None or self._after is not None:
            return True
        if self._attempt is not None:
            return False
        return self._services.owner.stopping or (
            self._orders is not None and self._orders.next_state(ended=False) is not None
        )

    def make_turn(self, reading: ClockReading) -> Turn | None:
        """Make the run's next turn; None if there is nothing to write."""
        if self.stage is not Stage.ACTIVE:
            return None
        self._verdict_next = state = self._next_state()
        if isinstance(state, Finish):
            self._services.owner.ending(self)
        outputs = self._services.emit_buffer.take(self) if self._services.emit_buffer.pending else []
        if self._attempt is not None:
            self._take_details(self._attempt)
        if self._details is not None:
            key = f"heartbeat:{self.lease.token}"
            outputs.append(NewOutput(kind=OutputKind.HEARTBEAT, name="", payload=self._details, key=key))
            self._details = None
            self._may_write_details_at = self._services.system.monotonic() + HEARTBEAT_INTERVAL
        if self._pending is not None and not isinstance(state, Finish | RetryLater):
            # Also with a turn that pauses or releases the run. The same again is not written.
            outputs.append(pending_output(self._pending))
        if self._interruption is not None and isinstance(state, Release):
            outputs.append(self._interruption)
        self._expect_failure(state)
        record, self._record = self._record, None
        if record is not None:
            self._announce_failure()
        if state is None and record is None and not outputs:
            return None
        self._committing = True
        return Turn(
            lease=self.lease,
            records=() if record is None else (record,),
            read=self._read(state),
            outputs=tuple(outputs),
            next=state,
        )

    def _read(self, state: NextState | None) -> int:
        """Last inbox entry that counts as read; 0: none. A cancellation stays unread until the run ends by it."""
        read = self.seen
        if self._is_stopping and not isinstance(state, Finish):
            read = min(read, self._cancel_entry - 1)
        return read if read > self.run.inbox_read else 0

    def _next_state(self) -> NextState | None:
        if self._forced is not None and (
            self._after is None or self._leaves_entries or not isinstance(self._forced, Release)
        ):
            return self._forced
        if self._waits_outside and self._orders is not None and self._orders.blocks_steps:
            self._after = None
        if isinstance(self._after, Park):
            return replace(self._after, seen=self.seen if self._orders is None else self._orders.inbox_known)
        if self._after is not None:
            return self._after
        if self._attempt is not None:
            return None
        steered = None if self._orders is None else self._orders.next_state(ended=False)
        return steered or (Release() if self._services.owner.stopping else None)

    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        """Go on after a commit, or let go of the run."""
        self._committing = False
        after, self._verdict_next = self._verdict_next, None
        if self.stage is Stage.OVER:
            return
        if verdict is TurnOutcome.LOST:
            self.lose()
        elif verdict is TurnOutcome.AWAKE and self._forced is None:
            self._services.owner.read_inbox(self)
        elif verdict is TurnOutcome.AWAKE or after is None:
            self._leaves_entries = verdict is TurnOutcome.AWAKE
            self.settle(reading)
            self._write_progress()
        else:
            self._let_go(after)

    def drop(self) -> None:
        """Let go of the run at once, writing nothing."""
        self.stage = Stage.OVER
        self._cancel_attempts()
        self._wakeup.disarm()
        self._silence.disarm()
        self._beat.disarm()
        self._orders = None
        self._services.emit_buffer.take(self)

    def _cancel_attempts(self) -> None:
        if not self._is_stopping:
            self._cancelled = None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
            self._take_details(attempt)


def _next_attempt_at(run: Run, failed: Record) -> int:
    """Earliest time of the next attempt after a failed one; 0: at once, because the run was retried by hand since.

    A retry by hand counts attempts anew and starts anew. Otherwise the failure led to this attempt, or to a wait within
    it.
    """
    led_here = failed.run_attempt == run.attempt - 1
    within = failed.run_attempt == run.attempt and run.started_at <= failed.at
    return failed.retry_at if led_here or within else 0


async def read_earlier_attempts(held: ActivityRun, store: Store, system: System) -> None:
    """Read the last heartbeat and the interruptions of an activity, and hand them over. Retries on errors."""
    run_id, token = held.run.id, held.run.token
    while held.stage is Stage.REPLAYING:
        try:
            heartbeats = await store.outputs(run_id, OutputKind.HEARTBEAT, "", -1, 1)
            pending = await store.outputs(run_id, OutputKind.PENDING, "", -1, 1)
            found = await interruptions_since_requeue(store, run_id) if token >= EARLIEST_TOKEN else ()
        except StoreError as error:
            logger.warning("cannot read the earlier attempts of run %s, trying again: %s", run_id, error)
            await system.sleep(0.2)
        else:
            asyncio.get_running_loop().call_soon(
                held.take_earlier_attempts,
                heartbeats[0] if heartbeats else None,
                found,
                pending_from_json(pending[0].payload) if pending else None,
            )
            return
