"""A workflow's run while a worker holds it: its lease, its execution, and the steps under way.

The invariant: completions are applied at once, but nothing leaves the run (no step begins, no child is started, no
result is visible outside) before the records that led to it are durable. At most one turn is in flight; what happens
meanwhile goes into the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.core.audit import Audit
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes, Failure
from perdure.core.middleware import Invocation, Layer, surround
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.headers import HEADERS_KEY, headers_of
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Run, Status
from perdure.core.model.turn import (
    Block,
    ContinueAsNew,
    Finish,
    NextState,
    Park,
    Release,
    RetryLater,
    StepTurn,
    Turn,
    TurnOutcome,
)
from perdure.core.policy.retry import Retry
from perdure.core.system import NO_TRACE, LoopTrace
from perdure.core.time.duration import NEVER
from perdure.errors import ChildLimit, Diverged, PerdureError
from perdure.replay.execution import Execution
from perdure.replay.operations import (
    ChildOperation,
    OpenOperation,
    RunOrigin,
    ScopeOperation,
    StepOperation,
    WatchOperation,
)
from perdure.worker.batched_calls import ClockReading, guarded
from perdure.worker.limits.step_limits import StepLimits, is_limited
from perdure.worker.run.commit_lock import CommitLock
from perdure.worker.run.held_run import HeldRun, Stage
from perdure.worker.run.interrupted_steps import EARLIEST_TOKEN, count_interruptions
from perdure.worker.run.operation_log import OperationLog
from perdure.worker.run.packing import HistoryPacking, first_packing, next_packing
from perdure.worker.run.pause_and_evict import UNRECORDED, RunOrders
from perdure.worker.run.policy import (
    after_failed_attempt,
    delay_of_run,
    fail_expired,
    next_wake,
    park,
    state_after_outcome,
    why_given_up,
)
from perdure.worker.run.turn_draft import TurnDraft
from perdure.worker.services import Services
from perdure.worker.steps.attempt import Attempt, context_of_step, is_misuse
from perdure.worker.steps.transaction_attempt import CommitGrant, Committed
from perdure.worker.tracing import note_children, trace_interruptions
from perdure.workflow.context import Context
from perdure.workflow.definition import Workflow
from perdure.workflow.step import NO_STEP_SETTINGS

logger = logging.getLogger("perdure.worker")

#: Replay yields to the worker's loop after this long, in seconds.
REPLAY_SLICE = 0.004

#: Time until the lease is checked again when it was not safe enough to begin a step, in seconds.
LEASE_RECHECK = 0.1

# Looking up an enum member through its class is slow; these are needed for every step or record.
_REPLAYING, _ACTIVE, _OVER = Stage.REPLAYING, Stage.ACTIVE, Stage.OVER
_APPLIED, _LOST, _AWAKE = TurnOutcome.APPLIED, TurnOutcome.LOST, TurnOutcome.AWAKE
_ATTEMPT, _MESSAGE = RecordKind.ATTEMPT, RecordKind.MESSAGE
_COMPLETED = Status.COMPLETED
_FULL = Audit.FULL
#: Class of the usual attempts, if they have `begin`.
_PLAIN_ATTEMPT = Attempt if Attempt.has_begin else None
# A class that is called enters the interpreter once more, which takes longer than the rest of making an attempt.
_new_attempt, _init_attempt = Attempt.__new__, Attempt.__init__


class WorkflowRun(HeldRun):
    """A workflow's run that this worker holds."""

    # A class attribute: most runs never set it.
    #: Failed attempts at steps in this attempt at the run, until the interruptions are counted.
    _failures: tuple[Record, ...] = ()
    #: Attempts whose beginning is recorded and has to be durable first: in no turn yet, and in the last one.
    _announced: tuple[Attempt, ...] = ()
    _beginning: tuple[Attempt, ...] = ()
    #: Time at which the replay of a history began, on the monotonic clock.
    _replay_began = 0.0
    #: Notes timers and children for the audit trail; None at the usual level.
    _operation_log: OperationLog | None = None
    #: Packs the history, once it is long.
    _packing: HistoryPacking | None = None

    def __init__(
        self, claimed: ClaimedRun, workflow: Workflow[Any, Any], records: tuple[Record, ...], services: Services
    ) -> None:
        super().__init__(claimed, services)
        self._workflow = workflow
        self._records = records
        self._execution: Execution | None = None
        self._attempts: dict[str, Attempt] = {}
        self._ready: list[StepOperation] = []
        self._draft = TurnDraft(services.codec)
        self._commit_lock: CommitLock | None = None
        self._step_limits: StepLimits | None = None
        #: Whether emitted items are pending that have to be written soon.
        self._has_emitted = False
        #: By location, interrupted attempts of earlier holders; None: not read.
        self._interrupted: dict[str, int] | None = None
        #: False once the run has had limits, transactions, orders, announced steps or notes.
        self._is_usual = True
        #: While nothing else happens to the run: the one step that the turn under way has led to, then its attempt.
        self._sole: StepOperation | Attempt | None = None
        #: Length of the history at which it is packed next.
        self._pack_at = 2 * services.settings.pack_history or NEVER

    @property
    def last(self) -> int:
        """Number of the last record; -1 if there is none."""
        return -1 if self._execution is None else self._execution.next_seq - 1

    @property
    def idle(self) -> bool:
        """True if no step and no commit is under way."""
        return not self._attempts and not self._committing and self.stage is not Stage.REPLAYING

    def attempts_under_way(self) -> Sequence[Attempt]:
        """Return the attempts that are under way. Called from any thread."""
        return list(self._attempts.values())

    # beginning and resuming

    def begin(self, reading: ClockReading) -> None:
        """Call the workflow function and replay its history. Called from a plain callback of the loop."""
        if self.stage is not _REPLAYING:
            return
        run = self.run
        if run.deadline <= reading.now:
            self._expire()
            return
        records = self._records
        if records:
            self._records = ()
            if run.token >= EARLIEST_TOKEN:
                self._failures = tuple(
                    one for one in records if one.kind is _ATTEMPT and one.run_attempt == run.attempt
                )
        if self._services.store.audit is _FULL:
            self._operation_log = OperationLog()
            self._is_usual = False
        execution = self._execution = make_execution(run, self._workflow, records, self._services)
        execution.trace = self.trace
        if execution.repeats_past:
            self._records = records
        execution.begin(reading.drain_context)
        if records:
            self._replay_began = self._services.system.monotonic()
            self._replay()
        else:
            execution.end_replay()
            self._replayed(reading)

    @guarded
    def _replay(self) -> None:
        if self.stage is not Stage.REPLAYING or self._execution is None:
            return
        monotonic = self._services.system.monotonic
        pause_at = monotonic() + REPLAY_SLICE
        try:
            done = self._execution.replay(lambda: monotonic() < pause_at)
        except Diverged as error:
            if not self._execution.repeats_past:
                raise
            self._begin_without_past(self._execution, error)
            done = False
        if not done:
            asyncio.get_running_loop().call_soon(self._replay)
            return
        self._records = ()
        if (tell := self._services.system.telemetry.replayed) is not None:
            tell(self.run, self._execution.next_seq, monotonic() - self._replay_began)
        self._pack_at = first_packing(self._services.settings.pack_history, self._execution.next_seq)
        for warning in self._execution.warnings:
            logger.warning("run %s: %s", self.run.id, warning, extra=self.log_fields)
        if self._execution.replayed:
            # The start of a child is part of the turn of the record that led to it, so it is durable with the record.
            fresh, known = self._execution.fresh, self._execution.known_fresh
            fresh[:known] = [operation for operation in fresh[:known] if not isinstance(operation, ChildOperation)]
            del self._execution.effects[: self._execution.known_effects]
        elif self.run.attempt == self.run.generation == 1:
            # A child whose outcome has arrived was started; a repeated start would only be looked up.
            told = {message.name for message in self._backlog if message.kind is RecordKind.CHILD}
            self._execution.fresh = [
                operation
                for operation in self._execution.fresh
                if operation.location not in told or not isinstance(operation, ChildOperation)
            ]
        if self._backlog:
            # A run whose end has arrived is not asked about again. Any other is: this run may have ended, and been
            # reopened, since it began to wait.
            answered = {message.key for message in self._backlog if message.kind is RecordKind.CHILD}
            self._execution.forget_watches(answered)
        self._replayed(self._services.read_clock())

    def _begin_without_past(self, led: Execution, error: Diverged) -> None:
        """Begin a later attempt at a fork anew, as one of any run: other code may do as it likes in another attempt."""
        logger.warning(
            "run %s: attempt %d at this fork does not follow the history that was copied, but recalls results; it may "
            "send again what the run that was forked has sent: %s",
            self.run.id, self.run.attempt, error, extra=self.log_fields,
        )  # fmt: skip
        self._evict(led)
        execution = make_execution(self.run, self._workflow, self._records, self._services, repeats_past=False)
        self._execution = execution
        execution.trace = self.trace
        execution.begin()

    def _replayed(self, reading: ClockReading) -> None:
        if self.run.token >= EARLIEST_TOKEN and self._interrupted is None and self._open_steps():
            # An earlier holder may have begun these steps without parking the run.
            self._services.owner.read_interruptions(self)
            return
        self.stage = _ACTIVE
        assert self._execution is not None
        if self._operation_log is not None:
            taken_up = self._execution.replayed or (self.run.token > 1 and _was_taken_up(self.run))
            self._operation_log.remember(self._execution, timers=bool(taken_up))
        if self.is_recorded and self.trace is not None:
            note_children(self.trace, self._execution)
        if self._execution.replayed and (interrupted := self._execution.record_interruptions(reading.now)):
            self._draft.urgent = True
            for _ in range(interrupted):
                self._announce_failure()
        # Results of an earlier attempt come before what has arrived since, so that a cancellation finds them.
        if self._backlog and any(message.kind is RecordKind.CANCEL for message in self._backlog):
            self._execution.cancel_waits = True
            self._collect(reading.now)
            self._execution.cancel_waits = False
        else:
            self._collect(reading.now)
        if not self._backlog or not self.take_backlog():
            self.settle(reading)

    def _open_steps(self) -> list[StepOperation]:
        assert self._execution is not None
        return [one for one in self._execution.fresh if isinstance(one, StepOperation) and one.open]

    @guarded
    def take_interruptions(self, found: Sequence[Interruption]) -> None:
        """Take the interruptions that were read for the run. Called from a plain callback of the loop."""
        if self.stage is not Stage.REPLAYING or self._execution is None:
            return
        asked, failures = self._execution.asked or {}, self._failures
        self._interrupted = count_interruptions(found, self._open_steps(), asked, failures, self.run)
        if self.trace is not None:
            trace_interruptions(self.trace, found, self._execution, self._interrupted, self._open_steps())
        self._failures = ()
        self._replayed(self._services.read_clock())

    @guarded
    def resume(self, claimed: ClaimedRun) -> None:
        """Go on in memory after a park, under a new lease. The history has not changed since."""
        self.run = claimed.run
        self.lease = claimed.lease
        self.stage = Stage.ACTIVE
        reading = self._services.read_clock()
        if self.run.deadline <= reading.now:
            self._expire()
            return
        if self._execution is not None and self._execution.next_seq >= self._pack_at:
            self._pack(self._execution)
        self.settle(reading)

    # events

    @guarded
    def receive(self, messages: Iterable[Message]) -> None:
        """Take in new inbox entries, in order."""
        if self.stage is Stage.REPLAYING or self.stage is Stage.LOCKED:
            self._backlog.extend(messages)
            return
        # Entries that come after the run was given up are for its next holder.
        if self.stage is not _ACTIVE or self._execution is None or self._forced is not None:
            return
        reading = self._services.read_clock()
        messages = list(messages)
        if self.trace is not None:
            self.trace.arrived(messages)
        if self._orders is not None or not UNRECORDED.isdisjoint([message.kind for message in messages]):
            self._orders = self._orders or RunOrders(self, self._services)
            self._is_usual = False
            messages = self._orders.accept(messages)
            if self._step_limits is not None:
                self._step_limits.ask_again(messages)
        self.seen = take_in(self._execution, self._draft, messages, self.seen, reading.now)
        self.settle(reading)

    def step_ended(self, attempt: Attempt, result: Any, error: BaseException | None, reading: ClockReading) -> None:
        """Record the end of an attempt at a step and let the workflow go on."""
        if self._commit_lock is not None and self._commit_lock.attempt_ended(attempt, result, error, reading):
            return
        execution, operation = self._execution, attempt.operation
        ended = self._attempts.pop(operation.location, None)
        if self._step_limits is not None:
            self._step_limits.ended(operation, error)
        if ended is None or execution is None or not operation.open:
            return
        failed = error
        if failed is None:
            failed = self._record_result(execution, attempt, result, reading)
        if failed is not None and self._record_failure(execution, attempt, failed, reading):
            self._ready.append(operation)
        if failed is not None or not operation.ephemeral:
            self._draft.urgent = True
        self.settle(reading)

    # the fast way

    def step_returned(self, attempt: Attempt, result: Any, reading: ClockReading) -> None:
        """Record the result of a step, let the workflow go on, and make the turn: the fast way of the usual step.

        `step_ended`, `settle` and `make_turn` come to the same. They take over where anything is unusual.
        """
        execution, operation, services = self._execution, attempt.operation, self._services
        if self._sole is not attempt and not self._is_alone_with(attempt):
            self.step_ended(attempt, result, None, reading)
            return
        stored = services.codec.store_quickly(result, operation.request.spec.returns)
        if stored is None or execution is None or self._attempts.pop(operation.location, None) is None:
            self.step_ended(attempt, result, None, reading)
            return
        payload, value = stored
        execution.step_succeeded(
            operation, payload, value, reading.now, attempt.started_at, attempt.number, reading.drain_context
        )
        fresh = execution.fresh
        if (
            len(fresh) != 1 or type(following := fresh[0]) is not StepOperation or following.ephemeral
            or not following.open or execution.outcome is not None or execution.effects or execution.dropped
            or services.emit_buffer.pending or self.run.deadline <= reading.now
        ):  # fmt: skip
            self._draft.urgent = True
            self.settle(reading)
            return
        self._ready.append(following)
        self._sole = following if execution.next_seq < self._pack_at else None
        self._committing = True
        records = tuple(execution.unsaved)
        execution.fresh, execution.unsaved = [], []
        services.journal.add(self, StepTurn(lease=self.lease, records=records))

    def _is_alone_with(self, attempt: Attempt) -> bool:
        """Tell whether an attempt is all that happens to the run: the door to the fast way.

        What the attempt leads to is looked at afterwards. Until `_sole` is set to None, nothing of this changes.
        """
        execution, draft = self._execution, self._draft
        return (
            self._is_usual and execution is not None and attempt.operation.open and not attempt.operation.ephemeral
            and not self._interrupted and len(self._attempts) == 1 and not self._ready
            and not self._committing and self._forced is None and not self._has_emitted
            and not draft.filled and not draft.read and not draft.unrecorded
            and not execution.has_earlier and not execution.checkpoints.has_trimmed
            and self.stage is _ACTIVE and self._wakeup.timer is None
        )  # fmt: skip

    def _begin_following(self, following: StepOperation, reading: ClockReading) -> bool:
        """Begin the step that the turn that is durable now has led to; False if it is not as usual any more."""
        services, run = self._services, self.run
        system, make = services.system, services.attempts.step
        if (
            not following.is_usual or not reading.may_start or run.deadline <= reading.now
            or system.telemetry.attempt_started is not None
        ):  # fmt: skip
            return False
        self._ready.clear()
        attempt: Attempt
        if make is _PLAIN_ATTEMPT:
            self._sole = attempt = _new_attempt(Attempt)
            self._attempts[following.location] = attempt
            _init_attempt(attempt, following, run.id, reading.now, system, services.results, self)
            attempt.begin(run.deadline)
            return True
        attempt = make(following, run.id, reading.now, system, services.results, self)
        self._attempts[following.location] = self._sole = attempt
        if attempt.has_begin:
            attempt.begin(run.deadline)
        else:
            attempt.start(services.threads, run.deadline)
        return True

    def _record_result(
        self, execution: Execution, attempt: Attempt, result: Any, reading: ClockReading
    ) -> PerdureError | None:
        """Record the result of a step; return the error if it cannot be stored or has the wrong type."""
        operation, codec = attempt.operation, self._services.codec
        returns = operation.request.spec.returns
        stored = codec.store_quickly(result, returns)
        if stored is None:
            try:
                stored = codec.store(result, returns, f"result of step {operation.location!r} of run {self.run.id!r}")
            except PerdureError as error:
                return error
        execution.step_succeeded(
            operation, *stored, reading.now, attempt.started_at, attempt.number, reading.drain_context
        )
        return None

    def _record_failure(
        self, execution: Execution, attempt: Attempt, error: BaseException, reading: ClockReading
    ) -> bool:
        """Record that an attempt failed; True if another one follows."""
        operation, services, now = attempt.operation, self._services, reading.now
        self._announce_failure()
        failure = Failure.of(error, services.codec)
        if type(error) is TypeError and is_misuse(error):
            # The call does not fit the function: its only frame is the one that called it.
            failure = replace(failure, traceback="")
        number = attempt.number - attempt.interrupted
        another = after_failed_attempt(operation, number, error, services, self.run.deadline, now)
        if another is None:
            failure = replace(failure, given_up=why_given_up(operation, number, error, services))
            execution.record(
                RecordKind.STEP, operation.location, failure.to_json(), now, failed=True,
                started_at=attempt.started_at, digest=operation.digest, attempts=attempt.number,
            )  # fmt: skip
            return False
        execution.record(
            RecordKind.ATTEMPT, operation.location, failure.to_json(), now, failed=True, started_at=attempt.started_at,
            digest=operation.digest, attempts=another.attempts, retry_at=another.retry_at,
        )  # fmt: skip
        return True

    def emit(self, attempt: Attempt, stream: str, value: object) -> None:
        """Buffer an item that a step emits. Called from any thread."""
        self._services.emit_buffer.emit(self, attempt, stream, value)

    @guarded
    def emitted(self) -> None:
        """Write items that were emitted. Called from a plain callback of the loop."""
        if self.stage is not _ACTIVE and self.stage is not Stage.LOCKED:
            self._services.emit_buffer.take(self)
        elif self in self._services.emit_buffer.pending:
            self._has_emitted = True
            self.settle(self._services.read_clock())

    def _take_emitted(self) -> None:
        self._has_emitted = False
        self._draft.add_items(self._services.emit_buffer.take(self))

    @guarded
    def _on_timer(self) -> None:
        execution = self._execution
        if self.stage is not _ACTIVE or execution is None or self._forced or isinstance(self._verdict_next, Park):
            return
        reading = self._services.read_clock()
        if self.run.deadline <= reading.now:
            self._expire()
            return
        while not self._paused and (timer := execution.next_timer()) is not None and timer.due <= reading.now:
            self._draft.urgent = True
            if (tell := self._services.system.telemetry.timer_fired) is not None:
                tell(self.run, timer.due, reading.now)
            if self.trace is not None:
                self.trace.fired(timer.location)
            execution.record(RecordKind.TIMER, timer.location, None, reading.now, started_at=timer.asked_at)
        self.settle(reading)

    # dispatching

    def settle(self, reading: ClockReading) -> None:
        """Collect what the workflow asked for, then write a turn, begin steps, or wait."""
        self._sole = None
        if self.stage is not _ACTIVE:
            return
        now = reading.now
        execution = self._execution
        if self._forced is None:
            assert execution is not None
            if execution.fresh or execution.dropped or execution.effects:
                self._collect(now)
            durable = not (self._committing or execution.unsaved)
            if self._ready and (durable or execution.has_ephemeral or self.run.deadline <= now):
                if self._orders is None or not self._orders.blocks_steps:
                    self._dispatch(reading, durable=durable)
            elif not (durable or self._committing) and self._draft.urgent and self._commit_lock is None:
                # Shortcut for the usual case, a step that has ended; the checks below come to the same.
                self._services.journal.submit(self)
                return
        if self._committing or (self._commit_lock is not None and self._commit_lock.grant()):
            return
        if self._must_write(now):
            self._services.journal.submit(self)
        # The usual run waits for a step only and needs no timer.
        elif (
            self._ready
            or self.run.deadline < NEVER
            or self._wakeup.timer is not None
            or (execution is not None and execution.timers.heap)
        ):
            self._arm(now)

    def _collect(self, now: int) -> None:
        execution = self._execution
        assert execution is not None
        first, *others = execution.fresh or (None,)
        if type(first) is StepOperation and first.open and not (
            others or execution.dropped or execution.effects or execution.has_earlier
        ):  # fmt: skip
            # Shortcut for the usual case, one new step; `_collect_all` would do the same.
            self._ready.append(first)
            execution.fresh = []
        else:
            if execution.effects and self._services.emit_buffer.pending:  # equivalent: condition: takes nothing else
                # Items that a step emitted come before what the workflow does after the step.
                self._take_emitted()
            self._collect_all(execution, now)
        if self._step_limits is not None:
            self._step_limits.release_unneeded()

    def _collect_all(self, execution: Execution, now: int) -> None:
        """Collect all that the workflow asked for and gave up.

        Steps become ready, other effects go into the draft, and abandoned operations are stopped.
        """
        while execution.fresh or execution.dropped or execution.effects:
            if execution.effects:
                effects, execution.effects = execution.effects, []
                self._draft.add(effects)
            dropped, execution.dropped = execution.dropped, []
            for operation in dropped:
                self._give_up(operation)
            fresh, execution.fresh = execution.fresh, []
            for operation in fresh:
                # A workflow that has an outcome needs no results of earlier attempts.
                if not operation.open or (execution.outcome is None and execution.recall(operation, now)):
                    continue
                if isinstance(operation, StepOperation):
                    self._ready.append(operation)
                elif isinstance(operation, ScopeOperation):
                    self._draft.urgent = True
                    execution.record_checkpoint(operation, now)
                elif isinstance(operation, ChildOperation):
                    self._start_child(execution, operation, now)
                elif isinstance(operation, WatchOperation):
                    self._draft.watch(operation, self.run)

    def _give_up(self, operation: OpenOperation) -> None:
        if isinstance(operation, StepOperation):
            attempt = self._attempts.pop(operation.location, None)
            if attempt is not None:
                attempt.cancel()
        elif isinstance(operation, ChildOperation):
            self._draft.stop_child(operation, self.run)
            if self.trace is not None and not operation.open:
                self.trace.left(operation.location)
        elif isinstance(operation, WatchOperation):
            self._draft.unwatch(operation, self.run)

    def _start_child(self, execution: Execution, operation: ChildOperation, now: int) -> None:
        """Start a child with the run's next turn, or record that it cannot be started."""
        run, draft, settings = self.run, self._draft, self._services.settings
        try:
            _check_siblings(operation, run, settings.open_children)
            draft.start_child(operation, run, settings.child_depth, now)
            self._services.unserved_children.note(operation.call.type, operation.child_id, run.id)
        except PerdureError as error:
            # The workflow may never await the child, so this may be the only report.
            logger.warning("run %s cannot start a child: %s", run.id, error, extra=self.log_fields)
            if execution.outcome is None:
                draft.urgent = True
                failure = Failure.of(error, self._services.codec).to_json()
                execution.record(RecordKind.CHILD, operation.location, failure, now, failed=True)

    def _dispatch(self, reading: ClockReading, *, durable: bool) -> None:
        """Begin the steps that are due: once everything before them is durable, or at once if they are ephemeral."""
        if self.run.deadline <= reading.now:
            self._expire()
            return
        waiting: list[StepOperation] = []
        services = self._services
        attempt: Attempt
        for operation in self._ready:
            if not operation.open:
                continue
            if operation.retry_at > reading.now or not reading.may_start or not (durable or operation.ephemeral):
                waiting.append(operation)
                continue
            options = operation.request.options
            if options is not NO_STEP_SETTINGS and is_limited(operation):
                self._step_limits = self._step_limits or StepLimits(self, self._services)
                self._is_usual = False
                if not self._step_limits.may_begin(operation):
                    continue
            if operation.request.transaction:
                self._commit_lock = self._commit_lock or CommitLock(self, self._services)
                self._is_usual = False
                attempt = self._commit_lock.attempt(operation, reading.now)
            else:
                attempt = services.attempts.step(
                    operation, self.run.id, reading.now, services.system, services.results, self
                )
            if self._interrupted:
                attempt.interrupted = self._interrupted.get(operation.location, 0)
                attempt.number += attempt.interrupted
            self._attempts[operation.location] = attempt
            if options is not NO_STEP_SETTINGS and options.at_most_once is True:
                self._announce(attempt, reading.now)
            elif len(operation.context) > 1 or services.system.telemetry.attempt_started is not None:
                context_of_step(operation).run(self._start_attempt, attempt)
            else:
                attempt.start(services.threads, self.run.deadline)
        self._ready = waiting

    def _start_attempt(self, attempt: Attempt) -> None:
        """Start an attempt, in a context of its own, and tell listeners."""
        services = self._services
        if (tell := services.system.telemetry.attempt_started) is not None:
            tell(self, attempt)
        attempt.start(services.threads, self.run.deadline)

    def _announce(self, attempt: Attempt, now: int) -> None:
        """Record the beginning of an attempt; the attempt starts when the record is durable."""
        assert self._execution is not None
        self._execution.record_beginning(attempt.operation, now, attempt.number)
        self._announced += (attempt,)
        self._is_usual = False
        self._draft.urgent = True

    @guarded
    def _start_announced(self) -> None:
        """Start the attempts whose beginning is durable as soon as the lease is safe.

        A worker that is stopping starts them, too, and waits for their end: no other holder would start them.
        """
        begun = [attempt for attempt in self._beginning if not attempt.is_over()]
        self._beginning = ()
        if not begun or self._committing:
            self._beginning = tuple(begun)
        elif not self._services.owner.is_lease_safe:
            self._beginning = tuple(begun)
            self._services.system.call_later(LEASE_RECHECK, self._start_announced)
        else:
            for attempt in begun:
                context_of_step(attempt.operation).run(self._start_attempt, attempt)

    # turns

    def _must_write(self, now: int) -> bool:
        execution = self._execution
        if self._forced is not None or self._draft.filled or self._has_emitted:
            return True
        assert execution is not None
        if execution.outcome is not None:
            return True
        if execution.unsaved and (self._draft.urgent or any(not operation.ephemeral for operation in self._ready)):
            return True
        if execution.unsaved and self._commit_lock is not None and self._commit_lock.is_requested:
            return True
        return not self._attempts and (
            self._may_park(now)
            or self._services.owner.stopping
            or (self._orders is not None and self._orders.next_state(ended=False) is not None)
        )

    def _may_park(self, now: int) -> bool:
        if self._step_limits is not None and self._step_limits.is_asking:
            return False
        for operation in self._ready:
            if operation.retry_at <= now:
                return False
        return self._next_wake() - now > self._services.settings.linger * 1e6

    def _next_wake(self) -> int:
        assert self._execution is not None
        if self._paused:
            return self.run.deadline
        return next_wake(self._execution, self._ready, self.run.deadline)

    @property
    def _paused(self) -> bool:
        return self._orders is not None and self._orders.paused

    def make_turn(self, reading: ClockReading) -> Turn | None:
        """Make the run's next turn; None if the run is not active."""
        if self.stage is not _ACTIVE:
            return None
        records: tuple[Record, ...] = ()
        self._verdict_next = after = self._next_state(reading.now)
        if after is not None and type(after) is not Park:
            if type(after) is not Finish or after.status is not _COMPLETED:
                self._expect_failure(after)
            if type(after) is Finish:
                self._services.owner.ending(self)
        execution = self._execution
        if execution is not None:
            records, execution.unsaved = tuple(execution.unsaved), []
            if self._announced:
                self._beginning, self._announced = self._beginning + self._announced, ()
            if execution.checkpoints.has_trimmed:
                self._draft.trim(execution.checkpoints.take_trimmed(), self.seen)
        if self._has_emitted or self._services.emit_buffer.pending:
            self._take_emitted()
        turn = self._draft.turn(self.lease, records, after)
        if turn.children and self.trace is not None:
            turn = replace(turn, children=tuple(self.trace.traced_child(one, reading.now) for one in turn.children))
            if self.is_recorded and execution is not None:
                note_children(self.trace, execution)
        if self._operation_log is not None and execution is not None and type(after) is not Block:
            notes = self._operation_log.take(execution, records, turn.children, self.run.id)
            turn = replace(turn, notes=notes)
        self._committing = True
        if self._wakeup.timer is not None:
            self._wakeup.disarm()
        return turn

    def _next_state(self, now: int) -> NextState | None:
        execution = self._execution
        outcome = None if execution is None else execution.outcome
        if self._forced is not None and (
            outcome is None or self._leaves_entries or not isinstance(self._forced, Release)
        ):
            return self._forced
        if self._orders is not None and not self._attempts and (outcome is None or outcome.renewed is not None):
            steered = self._orders.next_state(ended=outcome is not None)
            if steered is not None:
                return steered
        if outcome is not None and execution is not None:
            if self._attempts:
                self._cancel_attempts()
            return state_after_outcome(
                outcome, execution, self._draft, self.run, self.seen, self._workflow.retry, self._services, now
            )
        if self._attempts or (self._ready and self._ready[0].retry_at <= now):
            return Release() if self._services.owner.stopping and not self._attempts else None
        if self._may_park(now):
            assert execution is not None
            held_back = {} if self._step_limits is None else self._step_limits.waits()
            token, closed = self.lease.token, self._workflow.declares_channels
            return park(execution, held_back, token, self._next_wake(), self.seen, closed=closed)
        return Release() if self._services.owner.stopping else None

    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        """Go on after a commit: begin steps, park, or let go of the run."""
        self._committing = False
        if type(following := self._sole) is StepOperation:
            if verdict is _APPLIED and self._begin_following(following, reading):
                return
            self._sole = None
        after, self._verdict_next = self._verdict_next, None
        if self._draft.singletons_started:
            names, self._draft.singletons_started = self._draft.singletons_started, ()
            self._services.owner.start_successors(names)
        if self.stage is _OVER:
            return
        if self._beginning and verdict is not _LOST:
            self._start_announced()
        if verdict is _LOST:
            self.lose()
        elif after is None:
            if self._execution is not None and self._execution.next_seq >= self._pack_at:
                self._pack(self._execution)
            self.settle(reading)
        elif verdict is _AWAKE and self._forced is None:
            self._services.owner.read_inbox(self)
        elif verdict is _AWAKE:
            self._leaves_entries = True
            self.settle(reading)
        elif isinstance(after, Park):
            self.stage = Stage.PARKED
            self._services.owner.parked(self, after)
        else:
            if self._step_limits is not None and isinstance(after, Finish | RetryLater | ContinueAsNew):
                self._step_limits.close(ended=True)
            self._let_go(after)

    def _pack(self, execution: Execution) -> None:
        """Pack the history if it has grown by a segment of durable records."""
        durable = execution.unsaved[0].seq if execution.unsaved else execution.next_seq
        if durable < self._pack_at:
            return
        segment = self._services.settings.pack_history
        self._pack_at = next_packing(segment, durable)
        self._packing = self._packing or HistoryPacking(self, segment)
        if self._packing.begin(durable):
            self._services.owner.pack_history(self, self._packing)

    # steps behind limits

    def make_ready(self, operation: StepOperation) -> None:
        """Put a step among those that begin when they are due."""
        self._ready.append(operation)

    def fail_uncalled(self, operation: StepOperation, error: Exception) -> None:
        """Record that a step failed although its function was not called."""
        if self.stage is Stage.LOCKED:
            # The step asks again when the transaction, which has the run to itself, has ended.
            self._ready.append(operation)
            return
        execution = self._execution
        if self.stage is not _ACTIVE or execution is None or not operation.open:
            return
        reading = self._services.read_clock()
        self._draft.urgent = True
        self._announce_failure()
        execution.record(
            RecordKind.STEP, operation.location, Failure.of(error, self._services.codec).to_json(), reading.now,
            failed=True, started_at=reading.now, digest=operation.digest, attempts=operation.attempts,
        )  # fmt: skip
        self.settle(reading)

    # transactions

    def lock_commits(self, *, emitted: bool) -> CommitGrant | None:
        """Leave the next commit to a transaction if everything before it is durable; None if it is not.

        `emitted`: the transaction has emitted items that no turn has taken.
        """
        execution = self._execution
        if self._forced is not None or execution is None or execution.outcome is not None:
            return None
        if execution.unsaved or self._draft.filled:
            return None
        if emitted:
            # The record says that the function has ended, so items that it emitted before have to be durable first.
            self._has_emitted = True
            return None
        self.stage = Stage.LOCKED
        self._wakeup.disarm()
        return CommitGrant(self.lease, execution.next_seq, execution.time, self.run.attempt)

    def begin_again(self, attempt: Attempt, retry_at: int) -> None:
        """Have another attempt instead of one that the database interrupted."""
        operation = self._attempts.pop(attempt.operation.location).operation
        operation.retry_at = retry_at
        self._ready.append(operation)

    def adopt(self, attempt: Attempt, committed: Committed, reading: ClockReading) -> None:
        """Let the workflow see the result of a transaction, which is durable already."""
        record = committed.record
        self._attempts.pop(record.location)
        if self._step_limits is not None:
            self._step_limits.ended(attempt.operation, None)
        execution = self._execution
        assert execution is not None
        assert record.payload is not None
        execution.step_succeeded(
            attempt.operation, record.payload, committed.value, record.at, attempt.started_at, record.attempts,
            reading.drain_context,
        )  # fmt: skip
        turn = Turn(lease=self.lease, records=(record,))
        self._services.journal.attempt_log.log_batch([(self, turn)], [TurnOutcome.APPLIED], reading.now)
        if (tell := self._services.system.telemetry.committed) is not None:
            tell([(self, turn)], [TurnOutcome.APPLIED], reading.now, 0.0)
        # Versions that the workflow asked for may follow the record.
        assert execution.unsaved[0] == record
        del execution.unsaved[0]
        if committed.items:
            self._services.emit_buffer.discard(self, committed.items)
            self._has_emitted = False  # items that are still pending are announced again

    # waiting

    def _arm(self, now: int) -> None:
        wake = self._next_wake()
        if wake >= NEVER:
            if self._wakeup.timer is not None:
                self._wakeup.disarm()
            return
        # A step that is due but has not begun waits until the lease is safe again.
        soonest = LEASE_RECHECK if any(operation.retry_at <= now for operation in self._ready) else 0.0
        self._wakeup.arm(max(soonest, (wake - now) / 1e6), self._on_timer)

    # letting go

    def release(self) -> None:
        """Give the run back unfinished, as it is."""
        if self.stage is Stage.LOCKED and self._commit_lock is not None:
            self._commit_lock.release_later()
            return
        if self._attempts and self._execution is not None:
            self._draft.add_items([self._stop_notice(self._execution.next_seq - 1, tuple(self._attempts))])
        super().release()

    def drop(self) -> None:
        """Let go of the run at once, writing nothing: the lease is lost, or the memory is needed."""
        self.stage = _OVER
        self._sole = None
        if self._attempts:
            self._cancel_attempts()
        if self._step_limits is not None:
            self._step_limits.close(ended=False)
        if self._wakeup.timer is not None:
            self._wakeup.disarm()
        self._commit_lock = self._orders = None
        if self._draft.filled:
            self._draft.clear()
        if self._services.emit_buffer.pending:
            self._services.emit_buffer.take(self)
        execution, self._execution = self._execution, None
        if execution is not None:
            self._evict(execution)

    def _evict(self, execution: Execution) -> None:
        """Let go of an execution, and say so if its code does not end."""
        if not execution.evict():
            logger.warning("run %s has code that would not end; it stays in memory", self.run.id)

    def _expire(self) -> None:
        self._draft.drop_children()
        self.end_as(fail_expired(self.run, self._services))

    def end_as(self, state: NextState) -> None:
        """End the lease with this state. If it blocks the run, nothing of this pass is written but emitted items."""
        self._sole = None
        if isinstance(state, Block) and self._execution is not None:
            self._execution.unsaved.clear()
            self._draft.clear_all_but_emitted()
        super().end_as(state)

    def _cancel_attempts(self) -> None:
        attempts, self._attempts = self._attempts, {}
        for attempt in attempts.values():
            attempt.cancel()


def take_in(execution: Execution, draft: TurnDraft, messages: Iterable[Message], seen: int, now: int) -> int:
    """Record inbox entries, in order, and let the workflow see them; return the number of the last one taken in."""
    together: list[Message] = []
    for message in messages:
        if message.name in execution.validators and message.kind is _MESSAGE and message.seq > seen:
            # The validator sees the state to which the messages before it have led.
            _record_messages(execution, draft, together, now)
            if execution.outcome is None and _is_refused(execution, draft, message):
                seen = message.seq
                continue
        if message.kind is _MESSAGE and message.seq > seen and execution.outcome is None:
            seen = message.seq
            together.append(message)
            continue
        _record_messages(execution, draft, together, now)
        renewed = execution.outcome is not None and execution.outcome.renewed is not None
        if message.kind is not _MESSAGE and (message.kind in UNRECORDED or _says_nothing(message, execution)):
            # A message that came after the end stays unread for another attempt, and so does all that came after it.
            if not renewed and (execution.outcome is None or message.seq == seen + 1):
                seen = max(seen, message.seq)
                draft.took_in(seen)
        elif message.seq > seen and execution.outcome is None:
            seen = draft.read = message.seq
            draft.urgent = True
            _record(execution, message, now)
        elif message.kind is RecordKind.CANCEL and message.seq > seen:
            # The cancellation is too late for this attempt, which has its outcome; but no other may follow.
            execution.cancel_requested = True
        elif message.kind is RecordKind.MESSAGE and message.seq > seen:
            execution.carry(message)
        if renewed:
            seen = max(seen, message.seq)
            draft.carry(seen)
    _record_messages(execution, draft, together, now)
    return seen


def _record_messages(execution: Execution, draft: TurnDraft, together: list[Message], now: int) -> None:
    if together:
        draft.read = together[-1].seq
        draft.urgent = True
        execution.record_messages([(message.name, message.payload, message.seq) for message in together], now)
        together.clear()


def _is_refused(execution: Execution, draft: TurnDraft, message: Message) -> bool:
    """Tell whether a question is refused; its reply leaves with the next turn, which has no record of it."""
    reply = execution.refusal(message.name, message.payload)
    if reply is None:
        return False
    draft.took_in(message.seq)
    draft.add([reply])
    return True


def _says_nothing(message: Message, execution: Execution) -> bool:
    if message.kind is RecordKind.WAKE:
        # A wake-up before the run began only changed when it begins.
        return message.payload is None or execution.sleep() is None
    return execution.is_from_earlier_generation(message)


def _record(execution: Execution, message: Message, now: int) -> None:
    location = message.name
    if message.kind is RecordKind.WAKE:
        sleep = execution.sleep()
        assert sleep is not None
        location = sleep.location
    execution.record(
        message.kind, location, message.payload, now, failed=message.failed, inbox_seq=message.seq
    )  # fmt: skip


def _check_siblings(operation: ChildOperation, run: Run, limit: int) -> None:
    if operation.siblings >= limit:
        raise ChildLimit(
            f"run {run.id!r} ({run.type}) has {operation.siblings} children under way and starts another one; "
            f"the limit is {limit}: start them in portions, or raise the worker's open_children"
        )


def _was_taken_up(run: Run) -> bool:
    """True if an earlier claim in this attempt ended in order: the run was parked or given back.

    Both reset the count of claims, while the death of a worker leaves it: whether the dead worker wrote to the log is
    unknown. In the first attempt, the token tells claims apart. A later attempt starts when its run is ready; `wake_at`
    is later only after another park.
    """
    if run.claims != 1:
        return False
    return run.attempt == run.generation == 1 or run.wake_at > run.started_at


def make_execution(
    run: Run,
    workflow: Workflow[Any, Any],
    records: tuple[Record, ...],
    services: Services,
    *,
    repeats_past: bool = True,
) -> Execution:
    """Make the execution of a run, not yet begun. Raises `DecodeError` if the input or headers do not fit."""
    block_on = services.settings.block_on if workflow.block_on is None else workflow.block_on
    execution = execution_of(
        *(run, workflow, records, services.codec, services.errors, services.logger), block_on, services.results.trace,
        layers=services.layers.workflow, repeats_past=repeats_past,
    )  # fmt: skip
    execution.loop.guard = guard = services.guard
    if guard is not None and guard.trace is not None:
        execution.loop.wrap_drains(guard.trace)
    return execution


def execution_of(
    run: Run,
    workflow: Workflow[Any, Any],
    records: tuple[Record, ...],
    codec: Codec,
    errors: ErrorTypes,
    logger: logging.Logger,
    block_on: tuple[type[Exception], ...] = (),
    trace: LoopTrace = NO_TRACE,
    make: Callable[..., Execution] = Execution,
    layers: tuple[Layer, ...] = (),
    repeats_past: bool = False,
) -> Execution:
    """Make the execution of a run without a worker, as the deploy check does."""
    signature = workflow.signature
    arguments = signature.decode_quickly(run.input)
    if arguments is None:
        arguments = signature.decode(run.input, codec, f"input of run {run.id!r} ({run.type})")
    if HEADERS_KEY in run.options:
        headers_of(run.options)  # raises for what cannot be read
    origin = RunOrigin(
        run_id=run.id,
        type=run.type,
        started_at=run.started_at,
        seed=run.seed,
        generation=run.generation,
        attempt=run.attempt,
        taken_up_before=run.token > 1 and _was_taken_up(run),
        options=run.options,
    )

    return make(
        surround_workflow(layers, run, workflow, arguments) if layers else signature.bound(arguments),
        signature.returns,
        origin,
        records,
        codec=codec,
        errors=errors,
        logger=logger,
        gives_up=partial(_gives_up, run, workflow.retry),
        function=workflow.function,
        block_on=block_on,
        trace=trace,
        repeats_past=repeats_past,
    )


def surround_workflow(
    layers: tuple[Layer, ...], run: Run, workflow: Workflow[Any, Any], arguments: dict[str, Any]
) -> Callable[[Context], Coroutine[Any, Any, Any]]:
    """Return the function of a workflow with middleware around it, as a coroutine function of the context."""
    signature, what = workflow.signature, f"{run.type}()"

    async def start(ctx: Context) -> Any:
        def innermost(call: Invocation) -> Any:
            kept = call.kwargs is arguments and not call.args
            return signature.bound(arguments if kept else signature.bind(call.args, call.kwargs, what))(ctx)

        call = Invocation(
            kind="workflow", run_id=run.id, type=run.type, location="", attempt=run.attempt, args=(), kwargs=arguments,
            headers=run.headers, function=workflow.function,
        )  # fmt: skip
        return await surround(layers, innermost)(call)

    return start


def _gives_up(run: Run, policy: Retry | None, error: BaseException, now: int) -> bool:
    """Tell whether no attempt at the run follows after an error."""
    # No random number: replay has to get the same answer.
    delay = delay_of_run(run, policy, error, 0.0)
    return delay is None or now + int(delay * 1e6) >= run.deadline
