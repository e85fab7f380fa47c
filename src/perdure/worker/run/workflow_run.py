"""A run in a worker's hands: its lease, its execution, and what it has under way.

The rule that keeps it correct: completions are applied at once, but nothing leaves the run (no step begins, no child is started, no result
is seen outside) before the records that led to it are durable. At most one turn is in flight; what comes meanwhile is the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from perdure.core.model.interruption import Interruption
from perdure.core.model.outputs import Renew
from perdure.core.model.run import (
    FAR,
    Again,
    ClaimedRun,
    Finish,
    Kind,
    Message,
    Next,
    Park,
    Reason,
    Record,
    Release,
    Turn,
    Verdict,
)
from perdure.replay.operations import ChildOperation, StepOperation
from perdure.worker.claiming.make_execution import make_execution
from perdure.worker.commit.moment import Moment
from perdure.worker.run.collecting import collect
from perdure.worker.run.commit_lock import Seal
from perdure.worker.run.holding import Holding
from perdure.worker.run.intake import take_in
from perdure.worker.run.interruptions import EARLIEST_TOKEN, count_interruptions
from perdure.worker.run.orders import UNRECORDED, Steering
from perdure.worker.run.policy import end_with, next_wake, reason_to_wait
from perdure.worker.run.recording import record_failure, record_result
from perdure.worker.run.stage import Stage
from perdure.worker.run.step_limits import Passing, has_to_pass
from perdure.worker.run_guard import guarded
from perdure.worker.steps.attempt import Attempt
from perdure.workflow.step import NO_OPTIONS

logger = logging.getLogger("perdure.worker")

#: Replay gives the worker's loop a turn after this long, in seconds.
REPLAY_SLICE = 0.004

#: How soon to look again whether the lease is safe enough to begin a step, in seconds.
LEASE_RECHECK = 0.1

# A member of an enum is slow to find by its class; these are looked at for every step.
_ACTIVE, _OVER, _LOST, _AWAKE = Stage.ACTIVE, Stage.OVER, Verdict.LOST, Verdict.AWAKE


class Held(Holding):
    """See the module."""

    # taking up

    @guarded
    def begin(self, moment: Moment) -> None:
        """Start the workflow function and replay its history. From a plain callback of the loop."""
        if self.stage is not Stage.REPLAYING:
            return
        if self.run.deadline <= moment.now:
            self._expire()
            return
        records, self._records = self._records, ()
        if self.run.token >= EARLIEST_TOKEN:
            self._failures = tuple(
                one for one in records if one.kind is Kind.ATTEMPT and one.run_attempt == self.run.attempt
            )
        execution = self._execution = make_execution(self.run, self._workflow, records, self._crew)
        execution.begin(moment.around)
        if records:
            self._replay()
        else:
            execution.know_all()
            self._replayed(moment)

    @guarded
    def _replay(self) -> None:
        if self.stage is not Stage.REPLAYING or self._execution is None:
            return
        monotonic = self._crew.system.monotonic
        pause_at = monotonic() + REPLAY_SLICE
        if not self._execution.replay(lambda: monotonic() < pause_at):
            asyncio.get_running_loop().call_soon(self._replay)
            return
        for warning in self._execution.warnings:
            logger.warning("run %s: %s", self.run.id, warning)
        if self._execution.replayed:
            # A child start rides in the turn of the record that led to it, so with any record durable they all are.
            fresh, known = self._execution.fresh, self._execution.known
            fresh[:known] = [operation for operation in fresh[:known] if not isinstance(operation, ChildOperation)]
            del self._execution.effects[: self._execution.known_effects]
        elif self.run.attempt == self.run.generation == 1:
            # One whose outcome has come was started; a start that is repeated is looked up.
            told = {message.name for message in self._backlog if message.kind is Kind.CHILD}
            self._execution.fresh = [
                operation
                for operation in self._execution.fresh
                if operation.location not in told or not isinstance(operation, ChildOperation)
            ]
        self._replayed(self._crew.moment())

    def _replayed(self, moment: Moment) -> None:
        if self.run.token >= EARLIEST_TOKEN and self._interrupted is None and self._open_steps():
            # An earlier holder may have begun these, and not parked.
            self._crew.owner.recall_interruptions(self)
            return
        self.stage = Stage.ACTIVE
        # What an earlier attempt got done comes before what has arrived since, so that a cancellation finds it done.
        self._collect(moment.now)
        if not self._take_backlog():
            self.settle(moment)

    def _open_steps(self) -> list[StepOperation]:
        assert self._execution is not None
        return [one for one in self._execution.fresh if isinstance(one, StepOperation) and one.open]

    @guarded
    def recalled(self, found: Sequence[Interruption]) -> None:
        """Take the interruptions of the run. From a plain callback of the loop."""
        if self.stage is not Stage.REPLAYING or self._execution is None:
            return
        asked, failures = self._execution.asked or {}, self._failures
        self._interrupted = count_interruptions(found, self._open_steps(), asked, failures, self.run)
        self._failures = ()
        self._replayed(self._crew.moment())

    @guarded
    def resume(self, claimed: ClaimedRun) -> None:
        """Go on after having been parked, under a new lease. Nobody has written the history since."""
        self.run = claimed.run
        self.lease = claimed.lease
        self.stage = Stage.ACTIVE
        moment = self._crew.moment()
        if self.run.deadline <= moment.now:
            self._expire()
        else:
            self.settle(moment)

    # what happens to it

    @guarded
    def receive(self, messages: Iterable[Message]) -> None:
        """Take in new inbox entries, in order."""
        if self.stage is Stage.REPLAYING or self.stage is Stage.SEALED:
            self._backlog.extend(messages)
            return
        # What comes after it was decided to give the run up is for whoever takes it next.
        if self.stage is not _ACTIVE or self._execution is None or self._forced is not None:
            return
        moment = self._crew.moment()
        messages = list(messages)
        if self._steering is not None or not UNRECORDED.isdisjoint([message.kind for message in messages]):
            self._steering = self._steering or Steering(self)
            messages = self._steering.sift(messages)
            if self._passing is not None:
                self._passing.called(messages)
        self.seen = take_in(self._execution, self._draft, messages, self.seen, moment.now)
        self.settle(moment)

    def step_ended(self, attempt: Attempt, result: Any, error: BaseException | None, moment: Moment) -> None:
        """See `Recipient`."""
        if self._seal is not None and self._seal.took(attempt, result, error, moment):
            return
        execution, operation = self._execution, attempt.operation
        ended = self._attempts.pop(operation.location, None)
        if self._passing is not None:
            self._passing.ended(operation, error)
        if ended is None or execution is None or not operation.open:
            return
        failed = error
        if failed is None:
            failed = record_result(execution, attempt, result, self.run, self._crew, moment)
        if failed is not None and record_failure(execution, attempt, failed, self.run, self._crew, moment):
            self._ready.append(operation)
        if failed is not None or not operation.ephemeral:
            self._draft.urgent = True
        self.settle(moment)

    def emit(self, attempt: Attempt, stream: str, value: object) -> None:
        """See `Recipient`."""
        self._crew.emitting.emit(self, attempt, stream, value)

    @guarded
    def emitted(self) -> None:
        """See `Publisher`."""
        if self.stage is not _ACTIVE and self.stage is not Stage.SEALED:
            self._crew.emitting.take(self)
        elif self in self._crew.emitting.pending:
            self._has_emitted = True
            self.settle(self._crew.moment())

    def _take_emitted(self) -> None:
        self._has_emitted = False
        self._draft.show(self._crew.emitting.take(self))

    @guarded
    def _on_timer(self) -> None:
        execution = self._execution
        if self.stage is not _ACTIVE or execution is None or self._forced or isinstance(self._verdict_next, Park):
            return
        moment = self._crew.moment()
        if self.run.deadline <= moment.now:
            self._expire()
            return
        while not self._paused and (timer := execution.next_timer()) is not None and timer.due <= moment.now:
            self._draft.urgent = True
            execution.record(Kind.TIMER, timer.location, None, moment.now, started_at=timer.asked_at)
        self.settle(moment)

    # what follows from it

    def settle(self, moment: Moment) -> None:
        """Look at what the workflow asked for, and write, dispatch or wait."""
        if self.stage is not _ACTIVE:
            return
        now = moment.now
        execution = self._execution
        if self._forced is None:
            assert execution is not None
            if execution.fresh or execution.dropped or execution.effects:
                self._collect(now)
            durable = not (self._committing or execution.unsaved)
            if self._ready and (durable or execution.hasty or self.run.deadline <= now):
                if self._steering is None or not self._steering.holds_back:
                    self._dispatch(moment, durable=durable)
            elif not (durable or self._committing) and self._draft.urgent and self._seal is None:
                # The usual run, one of whose steps has ended; what is asked below would come to the same.
                self._crew.journal.submit(self)
                return
        if self._committing or (self._seal is not None and self._seal.grant()):
            return
        if self._must_write(now):
            self._crew.journal.submit(self)
        # Of the usual run, which waits for nothing but a step, it is known that there is nothing to set.
        elif (
            self._ready
            or self.run.deadline < FAR
            or self._wakeup.timer is not None
            or (execution is not None and execution.timers.heap)
        ):
            self._arm(now)

    def _collect(self, now: int) -> None:
        execution = self._execution
        assert execution is not None
        first, *others = execution.fresh or (None,)
        if type(first) is StepOperation and first.open and not (
            others or execution.dropped or execution.effects or execution.remembers
        ):  # fmt: skip
            # As `collect` does, for the usual run, which has asked for one step.
            self._ready.append(first)
            execution.fresh = []
        else:
            if execution.effects and self._crew.emitting.pending:
                # What steps emitted before they ended comes before what their workflow does then.
                self._take_emitted()
            collect(execution, self._draft, self._ready, self._attempts, self.run, self._crew, now)
        if self._passing is not None:
            self._passing.tidy()

    def _dispatch(self, moment: Moment, *, durable: bool) -> None:
        """Begin the steps that are due: once everything before them is durable, or, if they are ephemeral, at once."""
        if self.run.deadline <= moment.now:
            self._expire()
            return
        waiting: list[StepOperation] = []
        crew = self._crew
        attempt: Attempt
        for operation in self._ready:
            if not operation.open:
                continue
            if operation.retry_at > moment.now or not moment.may_start or not (durable or operation.ephemeral):
                waiting.append(operation)
                continue
            if operation.request.options is not NO_OPTIONS and has_to_pass(operation):
                self._passing = self._passing or Passing(self)
                if not self._passing.may_begin(operation):
                    continue
            if operation.request.transaction:
                self._seal = self._seal or Seal(self)
                attempt = self._seal.attempt(operation, moment.now)
            else:
                attempt = Attempt(operation, self.run.id, moment.now, crew.system, crew.arrivals, self)
            if self._interrupted:
                attempt.interrupted = self._interrupted.get(operation.location, 0)
                attempt.number += attempt.interrupted
            self._attempts[operation.location] = attempt
            attempt.start(crew.threads, self.run.deadline)
        self._ready = waiting

    # writing

    def _must_write(self, now: int) -> bool:
        execution = self._execution
        if self._forced is not None or self._draft.filled or self._has_emitted:
            return True
        assert execution is not None
        if execution.outcome is not None:
            return True
        if execution.unsaved and (self._draft.urgent or any(not operation.ephemeral for operation in self._ready)):
            return True
        if execution.unsaved and self._seal is not None and self._seal.wanted:
            return True
        return not self._attempts and (
            self._may_park(now)
            or self._crew.owner.stopping
            or (self._steering is not None and self._steering.next_state(ended=False) is not None)
        )

    def _may_park(self, now: int) -> bool:
        if self._passing is not None and self._passing.asks:
            return False
        for operation in self._ready:
            if operation.retry_at <= now:
                return False
        return self._next_wake() - now > self._crew.options.linger * 1e6

    def _next_wake(self) -> int:
        assert self._execution is not None
        if self._paused:
            return self.run.deadline
        return next_wake(self._execution, self._ready, self.run.deadline)

    @property
    def _paused(self) -> bool:
        return self._steering is not None and self._steering.paused

    def make_turn(self, moment: Moment) -> Turn | None:
        """See `Author`."""
        if self.stage is not _ACTIVE:
            return None
        records: tuple[Record, ...] = ()
        self._verdict_next = after = self._next_state(moment.now)
        if type(after) is Finish:
            self._crew.owner.ending(self)
        execution = self._execution
        if execution is not None:
            records, execution.unsaved = tuple(execution.unsaved), []
            if execution.scoping.let_go:
                self._draft.trim(execution.scoping.take_trimmed(), self.seen)
        if self._has_emitted or self._crew.emitting.pending:
            self._take_emitted()
        turn = self._draft.turn(self.lease, records, after)
        self._committing = True
        if self._wakeup.timer is not None:
            self._wakeup.disarm()
        return turn

    def _next_state(self, now: int) -> Next | None:
        execution = self._execution
        outcome = None if execution is None else execution.outcome
        if self._forced is not None and (outcome is None or not isinstance(self._forced, Release)):
            return self._forced
        if self._steering is not None and not self._attempts and (outcome is None or outcome.renewed is not None):
            steered = self._steering.next_state(ended=outcome is not None)
            if steered is not None:
                return steered
        if outcome is not None and execution is not None:
            self._cancel_attempts()
            return end_with(outcome, execution, self._draft, self.run, self.seen, self._workflow.retry, self._crew, now)
        if self._attempts or (self._ready and self._ready[0].retry_at <= now):
            return Release() if self._crew.owner.stopping and not self._attempts else None
        if self._may_park(now):
            assert execution is not None
            reason = reason_to_wait(execution)
            if self._passing is not None and reason in (Reason.RETRY, Reason.TIMER):
                reason = self._passing.reason or reason
            return Park(self._next_wake(), reason, self.seen)
        return Release() if self._crew.owner.stopping else None

    def landed(self, verdict: Verdict, moment: Moment) -> None:
        """See `Author`."""
        self._committing = False
        after, self._verdict_next = self._verdict_next, None
        if self._draft.lined_up:
            names, self._draft.lined_up = self._draft.lined_up, ()
            self._crew.owner.lined_up(names)
        if self.stage is _OVER:
            return
        if verdict is _LOST:
            logger.warning("lease_lost: run %s was taken over by another worker", self.run.id)
            self._finish_here()
        elif verdict is _AWAKE and self._forced is None:
            self._crew.owner.unread(self)
        elif verdict is _AWAKE or after is None:
            self.settle(moment)
        elif isinstance(after, Park):
            self.stage = Stage.PARKED
            self._crew.owner.parked(self, after)
        else:
            if self._passing is not None and isinstance(after, Finish | Again | Renew):
                self._passing.close(ended=True)
            self._finish_here(after)

    # waiting

    def _arm(self, now: int) -> None:
        wake = self._next_wake()
        if wake >= FAR:
            if self._wakeup.timer is not None:
                self._wakeup.disarm()
            return
        # A step that is due and was not begun waits for the lease to be safe again.
        soonest = LEASE_RECHECK if any(operation.retry_at <= now for operation in self._ready) else 0.0
        self._wakeup.arm(max(soonest, (wake - now) / 1e6), self._on_timer)
