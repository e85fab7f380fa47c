"""Execution of one run: takes a history and completions, produces records and open operations.

Pure: no store, no clock, no threads. The worker feeds it completions; each becomes a record and is applied at once, and
the run's loop is drained until it is idle. Replay applies recorded completions in the same way, so a workflow cannot
tell the two apart. Operations that the workflow asks for while draining are left in `fresh` and `dropped` for the
worker, which lets nothing leave before the records that led to it are durable.

A version is pinned by a record that is made while the loop drains, and so leaves in the same turn as the record that
led there. A history that goes on, or ends, without a pin where the code asks for one was therefore made by code that
did not ask.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio.events import _set_running_loop
from collections.abc import Callable, MutableMapping, Sequence
from contextvars import Context as ContextVars
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import AttemptSummary, ErrorTypes, Failure, attach_attempts
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import (
    Message,
    NewMessage,
    Record,
    RecordKind,
    is_copied,
    last_applied,
    without_broken,
)
from perdure.core.model.run import NewRun, OnClose, Status
from perdure.core.model.run_orders import termination_message
from perdure.core.model.set_aside_messages import set_aside_output
from perdure.core.policy.broken_code import is_broken_code, mark_recorded
from perdure.core.system import DUE, NO_TRACE, LoopTrace
from perdure.errors import DecodeError, Diverged, LoopStuck, RunCancelled, RunTerminated, StepInterrupted, WorkflowError
from perdure.replay.checkpoints import Checkpoints, places_below
from perdure.replay.copied_past import copied_past, repeated
from perdure.replay.divergence import RecordedArguments, diverged, position
from perdure.replay.operations import (
    ChildOperation,
    OpenOperation,
    OperationsApi,
    RemovedOperation,
    RunOperation,
    RunOrigin,
    ScopeOperation,
    StepOperation,
    TimerOperation,
    WatchOperation,
)
from perdure.replay.outcome import (
    BrokenCode,
    CodeHalted,
    OutcomeContext,
    RunOutcome,
    UndoPhase,
    failed,
    outcome_of,
    stopped,
)
from perdure.replay.reused_results import NOTHING, EarlierAttempts
from perdure.replay.run_loop import (
    DrainContext,
    OperationFuture,
    RunTask,
    end_code,
    end_tasks,
    new_operation_future,
    refusal_of,
)
from perdure.workflow.answers import refused
from perdure.workflow.channels import question_key, question_of
from perdure.workflow.context import Context
from perdure.workflow.saga import UNDO, UndoLog
from perdure.workflow.scopes import checkpoint_payload, current_scope

#: Prefix that counts versions apart from other operations of the same name; no name contains a tilde.
_APART = "~version."

#: Any version: the code says that it no longer asks.
_ANY = -1

#: Digest of the record of a cancellation that wins over the end of the code. Earlier versions recorded none: the code
#: decided how the run ended.
_WINS = "wins"

#: Digest of the record of a child that ended after `removed` had answered without it. Code that calls the child again
#: takes that record for its result.
_UNHEARD = "unheard"

#: Policies of children that end with their parent.
_BOUND = (OnClose.CANCEL, OnClose.WAIT)


class RecordIndex:
    """Records of a history by kind and location, indexed on first use."""

    def __init__(self, history: Sequence[Record]) -> None:
        self._history = history
        self._index: dict[tuple[RecordKind, str], Record] | None = None

    def find(self, kind: RecordKind, location: str) -> Record | None:
        """Return the record of that kind at a location."""
        if self._index is None:
            self._index = {(record.kind, record.location): record for record in self._history}
        return self._index.get((kind, location))


NOTHING_RECORDED = RecordIndex(())


# Looking up an enum member through its class is slow; these are needed for every record.
_ASIDE, _ATTEMPT, _BEGIN, _BROKEN, _CANCEL, _CHILD, _FORK, _MESSAGE, _SCOPE, _STEP, _WAKE = (
    RecordKind.ASIDE, RecordKind.ATTEMPT, RecordKind.BEGIN, RecordKind.BROKEN, RecordKind.CANCEL, RecordKind.CHILD,
    RecordKind.FORK, RecordKind.MESSAGE, RecordKind.SCOPE, RecordKind.STEP, RecordKind.WAKE,
)  # fmt: skip


# The classes of asyncio answer sooner than their subclasses, whose methods have to be looked for.
_is_done, _set_result = asyncio.Future.done, asyncio.Future.set_result


class Execution(OperationsApi):
    """The execution of one run, and the `Runtime` that its `Context` calls."""

    __slots__ = (
        "_block_on", "_ending", "_errors", "_gives_up", "_history", "_logger", "_main", "_start", "_trace",
        "_undo_phase", "cancel_requested", "has_earlier", "next_seq", "orphans", "outcome", "unsaved",
    )  # fmt: skip

    recorded = NOTHING_RECORDED  # class attributes, as in `OperationsApi`
    #: True while the results of earlier attempts are recalled, if the inbox has a cancellation that comes after them.
    cancel_waits = False
    #: The record of a cancellation that this attempt cannot obey: it has failed, and waits for children before another.
    unobeyed: Record | None = None
    #: By location, the recorded beginning of an attempt at an open step that has not ended.
    _begun: dict[str, Record] | None = None
    #: Reason of the cancellation that decides the outcome; None: the code decides it.
    _cancelled: str | None = None
    #: True: each cancellation interrupts the code, also one that comes while it cleans up.
    interrupts_again = False
    #: Outcome of the workflow while the run still waits for children (`OnClose.WAIT`).
    _closing: RunOutcome | None = None
    #: Number of entries in `fresh` and `effects` that an earlier holder of the run has handed out already.
    known_fresh = known_effects = 0
    #: Records of this attempt that were there when the run was claimed, and records applied so far.
    replayed = _applied = 0
    _arguments: RecordedArguments | None = None
    #: The past of a fork, as records of this attempt that are not in its history yet.
    _repeated: Sequence[Record] = ()
    #: Number of records after which the replay ends, because the code was broken when the last of them was applied.
    _live_from: int | None = None
    #: Payload of the record that says so.
    _broken_before: str | None = None
    #: By location, the record that led to an operation that was open at the end of the replay.
    asked: dict[str, int] | None = None
    #: Closed operations that a replay does not mind, and the length of `fresh` from which it forgets them.
    _spare = _room = 64

    def __init__(
        self,
        start: Callable[[Context], Any],
        returns: Any,
        origin: RunOrigin,
        history: Sequence[Record],
        *,
        codec: Codec,
        errors: ErrorTypes,
        logger: logging.Logger,
        gives_up: Callable[[BaseException, int], bool] = lambda error, now: True,
        function: Callable[..., Any] | None = None,
        block_on: tuple[type[Exception], ...] = (),
        trace: LoopTrace = NO_TRACE,
        repeats_past: bool = False,
    ) -> None:
        """`repeats_past`: a later attempt at a fork begins with what it has copied, and not by recalling it."""
        earlier: Sequence[Record] = ()
        past: Sequence[Record] = ()
        current = history
        if history:
            if origin.attempt > 1:
                earlier = [record for record in history if record.run_attempt < origin.attempt]
                current = history[len(earlier) :]
            if current and current[-1].kind is _BROKEN:
                self._broken_before = current[-1].payload
            current = without_broken(current)
            if repeats_past and len(earlier) == len(history) and (past := copied_past(earlier)):
                current = self._repeated = repeated(past, history[-1].seq + 1, origin.attempt, origin.started_at)
        checkpoints = Checkpoints.of(earlier, current) if history else Checkpoints()
        super().__init__(origin, EarlierAttempts(earlier, len(past)) if earlier else NOTHING, checkpoints, codec)
        #: Whether earlier attempts have left results for `recall`.
        self.has_earlier = bool(earlier)
        self.cancel_requested = False
        self.outcome: RunOutcome | None = None
        self._main: RunTask[Any] | None = None
        self._undo_phase: UndoPhase | None = None
        #: Children that the ended workflow no longer waits for.
        self.orphans: Sequence[ChildOperation] = ()
        #: Records that no turn has taken yet.
        self.unsaved: list[Record] = []
        self.loop.on_error = self._on_stray_error
        self._logger = logger
        self._trace = trace
        self._start = start
        self._ending = OutcomeContext(origin.run_id, origin.type, returns, codec, function)
        self._history = current
        if current:
            self.recorded = RecordIndex(current)
            self._mailbox.replays = True
            self._mailbox.set_aside = {int(one.digest): one.seq for one in current if one.kind is _ASIDE}
        #: Number of the next record.
        self.next_seq = (self._repeated or history)[-1].seq + 1 if history else 0
        self._errors = errors
        #: Whether an error, at that time, is the end of the run.
        self._gives_up = gives_up
        #: Classes of errors of the workflow's own code that block the run.
        self._block_on = block_on
        if self._broken_before is not None:
            self._live_from = last_applied(current)

    @cached_property
    def warnings(self) -> list[str]:
        """Operations whose arguments differ from the recorded ones; that alone is no divergence."""
        return []

    # running

    def begin(self, drain_context: DrainContext | None = None) -> None:
        """Call the workflow function and run it to its first wait."""
        context = ContextVars()
        context.run(current_scope.set, self._root)
        self._main = context.run(self.loop.create_main_task, self._body(), context)
        self.drain(drain_context)

    async def _body(self) -> Any:
        try:
            return await self._start(Context(self))
        except RuntimeError as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            # The frames are those of the workflow code; the cause says no more.
            raise refusal.with_traceback(error.__traceback__) from None

    def replay(self, budget: Callable[[], bool]) -> bool:
        """Apply recorded completions; True if all are applied, False if `budget()` ended a part. Raises `Diverged`."""
        history = self._history
        asked = self.asked = {} if self.asked is None else self.asked
        # Entered once for all records; each drain would enter it again otherwise.
        with self.loop.inside():
            while self._applied < len(history):
                if self.outcome is not None and not self._needs_no_operation(history[self._applied], None):
                    raise self._diverged(history[self._applied])
                self._applied += 1
                record = history[self._applied - 1]
                if self._applied == self._live_from or (
                    self._applied == len(history) and self._was_committed_alone(record)
                ):
                    self.end_replay()
                before = len(self.fresh)
                if record.kind is _MESSAGE and record.digest:
                    self._replay_batch(record)
                elif self.outcome is None and not (record.kind is _STEP and self._apply_result(record)):
                    self._apply(record)
                for operation in self.fresh[before:]:
                    asked[operation.location] = record.seq
                if len(self.fresh) > self._room and self.replaying:
                    self._forget_closed(asked)
                if self._applied % 32 == 0 and not budget():
                    return False
        if self._arguments is not None:
            self._arguments.check(self._open.values())
        if self.replaying:
            self.end_replay()
        if is_copied(history):
            # A fork has asked for nothing yet. Messages and runs were sent by the run that it was forked from.
            self.known_fresh = self.known_effects = 0
            self.effects = [effect for effect in self.effects if not isinstance(effect, NewMessage | NewRun)]
        self.replayed = 0 if self._repeated else len(history)
        self.asked = {location: seq for location, seq in asked.items() if location in self._open}
        self._history, self.recorded = (), NOTHING_RECORDED
        self.unsaved[:0], self._repeated = self._repeated, ()
        if not self.replayed and (self.outcome is None or self.outcome.renewed is not None):
            self.record_messages([(each.location, each.payload, 0) for each in self._earlier.messages], self.time)
        return True

    @property
    def repeats_past(self) -> bool:
        """True while this attempt at a fork is led through what was copied, of which it has recorded nothing yet."""
        return bool(self._repeated)

    def _forget_closed(self, asked: dict[str, int]) -> None:
        """Forget closed operations: those of a long history take much memory, and time of the garbage collector."""
        self.fresh = [operation for operation in self.fresh if operation.open]
        for location in [location for location in asked if location not in self._open]:
            del asked[location]
        self._room = 2 * len(self.fresh) + self._spare

    def _replay_batch(self, first: Record) -> None:
        """Apply the messages of one batch; `first` is its first record."""
        history, start = self._history, self._applied - 1
        while self._applied < len(history):
            following = history[self._applied]
            if following.kind is not _MESSAGE or following.digest != first.digest:
                break
            self._applied += 1
        if self.outcome is None:
            self._apply_messages(history[start : self._applied])

    def _was_committed_alone(self, record: Record) -> bool:
        """True if a record was committed by a transaction step, without the effects that followed from it."""
        operation = self._open.get(record.location)
        if record.kind is not _STEP or not isinstance(operation, StepOperation) or not operation.request.transaction:
            return False
        return not is_copied(self._history)

    def end_replay(self) -> None:
        """Note that the whole history was applied: from here on everything happens for the first time."""
        self.replaying = False
        if not self._history:
            return
        self._mailbox.replays = False
        self.known_fresh, self.known_effects = len(self.fresh), len(self.effects)

    def record(
        self, kind: RecordKind, location: str, payload: str | None, now: int, *, failed: bool = False,
        started_at: int = 0, digest: str = "", attempts: int = 0, retry_at: int = 0, inbox_seq: int = 0,
    ) -> None:  # fmt: skip
        """Record a completion and let the workflow see it."""
        if kind is _CHILD:
            child = self._open.get(location)
            if isinstance(child, RunOperation):
                started_at, digest = started_at or child.asked_at, child.digest
            else:
                # Without a time: a trace has told of this child when the workflow gave it up.
                digest = self._closed_children.get(location, digest)
        elif kind is _CANCEL:
            digest = _WINS
        record = Record(
            seq=self.next_seq, kind=kind, location=location, payload=payload, failed=failed, at=max(self.time, now),
            started_at=started_at, digest=digest, attempts=attempts, retry_at=retry_at, inbox_seq=inbox_seq,
            run_attempt=self._origin.attempt,
        )  # fmt: skip
        self.next_seq += 1
        self.unsaved.append(record)
        self._apply(record)

    def refusal(self, name: str, payload: str | None) -> NewOutput | None:
        """Let the validator of a question see it; the reply that refuses the question, or None.

        The validator is called outside of the loop, where the context cannot be used. A question that cannot be decoded
        is not shown to it.
        """
        kind, validate = self.validators[name]
        try:
            letter = self._codec.decode(payload or "null", kind, f"question {name!r} to run {self.run_id!r}")
        except DecodeError:
            return None
        try:
            validate(letter.value)
        except Exception as error:
            failure = Failure.of(refused(self.run_id, question_of(name), error), self._codec).to_json()
            return NewOutput(
                kind=OutputKind.REPLY, name=letter.key, payload=failure, failed=True, key=f"reply:{letter.key}"
            )  # fmt: skip
        return None

    def record_messages(self, messages: Sequence[tuple[str, str | None, int]], now: int) -> None:
        """Record a batch of messages (name, payload, inbox number), then hand them over one by one.

        All of them have arrived when the first is received. Their records name the batch by the number of its first
        record, in `digest`, which messages do not use otherwise. So replay has the same messages there at the same
        time.
        """
        at, batch = max(self.time, now), f"{self.next_seq}" if len(messages) > 1 else ""
        records = [
            Record(
                seq=seq, kind=_MESSAGE, location=name, payload=payload, at=at, digest=batch, inbox_seq=entry,
                run_attempt=self._origin.attempt,
            )
            for seq, (name, payload, entry) in enumerate(messages, self.next_seq)
        ]  # fmt: skip
        self.next_seq += len(records)
        self.unsaved += records
        self._apply_messages(records)

    def _apply_messages(self, batch: Sequence[Record]) -> None:
        for record in batch:
            self._mailbox.put(record.location, record.seq, record.payload or "null")
        for record in batch:
            if self.outcome is not None or self._closing is not None:
                break  # the rest of the batch stays unreceived
            if record.at > self.time:
                self.time = record.at
            self.loop.now = self.time
            if self._mailbox.offer(record.location, record.seq):
                self.drain()
            elif self._mailbox.refused:
                self._set_refused_aside()

    def step_succeeded(
        self,
        operation: StepOperation,
        payload: str,
        value: Any,
        now: int,
        started_at: int,
        attempts: int,
        drain_context: DrainContext | None,
    ) -> None:
        """Record the result of an open step and let the workflow see it.

        `payload` is `value` encoded. This is the fast path of `record`.
        """
        if now > self.time:
            self.time = now
        location, origin, seq, loop = operation.location, self._origin, self.next_seq, self.loop
        self.unsaved.append(
            Record(
                seq=seq, kind=_STEP, location=location, payload=payload, at=self.time, started_at=started_at,
                digest=operation.digest, attempts=attempts, run_attempt=origin.attempt,
            )
        )  # fmt: skip
        self.next_seq = seq + 1
        del self._open[location]
        operation.open = False
        future = operation.future
        future.watcher = future.operation = None
        loop.now = self.time
        if not _is_done(future):
            # Each waiter adds a callback to the queue of the loop; `note_waiters` would have them listed.
            ready, unawaited = loop.ready, future.unawaited
            before = len(ready)
            _set_result(future, value)
            if unawaited is not None:
                if len(ready) > before and type(future) is OperationFuture:
                    unawaited.pop(future.stable_hash, None)
                    future.unawaited = None
                else:
                    future.note_waiters()
        if "/" in location:
            self.checkpoints.note(location[: location.rindex("/") + 1], seq)
        self.drain(drain_context)

    def record_beginning(self, operation: StepOperation, now: int, attempt: int) -> None:
        """Record that an attempt at an open step is about to begin. The workflow does not see it."""
        location = operation.location
        self.unsaved.append(
            Record(
                seq=self.next_seq, kind=_BEGIN, location=location, payload=None, at=max(self.time, now), started_at=now,
                digest=operation.digest, attempts=attempt, run_attempt=self._origin.attempt,
            )
        )  # fmt: skip
        if "/" in location:
            self.checkpoints.note(location[: location.rindex("/") + 1], self.next_seq)
        self.next_seq += 1

    def record_interruptions(self, now: int) -> int:
        """Record that steps have begun and not ended, once the replay has ended; return their number.

        Only of steps with `at_most_once`: another attempt follows at others.
        """
        begun, self._begun = self._begun or {}, None
        count = 0
        for location, record in begun.items():
            operation = self._open.get(location)
            if isinstance(operation, StepOperation) and operation.request.options.at_most_once is True:
                self._record_interruption(operation, record, now)
                count += 1
        return count

    def _record_interruption(self, operation: StepOperation, begun: Record, now: int) -> None:
        location = operation.location
        how = "began and did not end before its worker was lost or stopped; whether it had its effect is unknown"
        if begun.digest != operation.digest:
            how = "was begun with other arguments"
        error = StepInterrupted(
            f"step {location!r} of run {self.run_id!r} {how}, and it is not executed again (at_most_once)",
            location=location,
        )
        self.record(
            _STEP, location, replace(Failure.of(error, self._codec), given_up="fatal").to_json(), now, failed=True,
            started_at=begun.started_at, digest=operation.digest, attempts=begun.attempts,
        )  # fmt: skip

    def record_checkpoint(self, operation: ScopeOperation, now: int) -> None:
        """Record a checkpoint and trim what lies before it."""
        self.unsaved, first = self.checkpoints.trim(
            operation.location, operation.checkpoint.upto, operation.drop, self.unsaved, self.next_seq
        )
        payload = checkpoint_payload(replace(operation.checkpoint, first=first))
        self.record(RecordKind.SCOPE, operation.location, payload, now)
        for place in places_below(self._closed_children, operation.drop):
            del self._closed_children[place]
            self._given_up.pop(place, None)

    def record_given_up(self) -> None:
        """Record children as failed that this attempt has cancelled and that have not ended.

        Another attempt follows, which calls each of them anew: as another run, and not as the one that is stopped.
        """
        for location, digest in self._given_up.items():
            error = RunCancelled(
                f"the child at {location!r} of run {self.run_id!r} was told to stop, and had not ended before another "
                "attempt began",
                run_id=self.run_id,
            )
            # Without a time, as in `record`. The workflow, which has its outcome, does not see it.
            self.unsaved.append(
                Record(
                    seq=self.next_seq, kind=_CHILD, location=location, payload=self.describe(error), failed=True,
                    at=self.time, digest=digest, run_attempt=self._origin.attempt,
                )
            )  # fmt: skip
            self.next_seq += 1
        self._given_up.clear()

    def carry(self, message: Message) -> None:
        """Keep a message that came after the decision to continue as new, behind earlier ones."""
        self._mailbox.arrive(message.name, self.next_seq + message.seq, message.payload or "null")

    def recall(self, operation: OpenOperation, now: int) -> bool:
        """Complete an operation with the result of an earlier attempt; False if there is none."""
        if self._earlier is NOTHING:
            return False
        record = self._earlier.recall(operation)
        if record is None:
            begun = self._earlier.begun.get(operation.location)
            if (
                begun is None
                or not isinstance(operation, StepOperation)
                or operation.request.options.at_most_once is not True
            ):
                return False
            self._record_interruption(operation, begun, now)
            return True
        # It takes as long as it did then.
        started_at = max(self.time, now) - (record.at - record.started_at) if record.started_at else 0
        self.record(
            record.kind, record.location, record.payload, now,
            started_at=started_at, digest=record.digest, attempts=record.attempts,
        )  # fmt: skip
        return True

    @property
    def silent(self) -> bool:
        """True if what the workflow does now was done before. Never true of a run without a history."""
        return self.loop.closed or (self.replaying and bool(self._history))

    @property
    def mute(self) -> bool:
        """True if log entries are suppressed.

        A run without a history has written its first entries if it was claimed before.
        """
        return self.silent or (self.replaying and self._origin.taken_up_before)

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """Logger for `ctx.log`. Made each time, because a stored one would make a reference cycle."""
        return ReplayLog(self._logger, self)

    def describe(self, error: Exception) -> str:
        """Encode an exception as a failure."""
        return Failure.of(error, self._codec).to_json()

    def restore(self, failure: str) -> Exception:
        """Decode a failure to an exception."""
        error = self._errors.restore(Failure.read(failure))
        mark_recorded(error)
        return error

    def is_broken(self, error: BaseException) -> bool:
        """True if an error says that the workflow's code is broken, and no step or child has raised it."""
        return bool(self._block_on) and is_broken_code(error, self._block_on)

    def halt(self, error: BaseException) -> asyncio.Future[None]:
        """Block the run because its code is broken; returns a future that never resolves."""
        self.loop.call_soon(_raise, CodeHalted(error))
        return self.loop.create_future()

    def check_main(self, what: str) -> None:
        """Raise `WorkflowError` unless the main task of the workflow is the caller."""
        if asyncio.current_task(self.loop) is not self._main:
            raise WorkflowError(
                f"{what}() was called in a task of run {self.run_id!r}; call it in the workflow function"
            )

    def evict(self) -> bool:
        """End the run's code without side effects; False if some of it did not end."""
        return self.loop.closed or self._let_go()

    # applying records

    def _apply(self, record: Record) -> None:
        kind = record.kind
        if kind is not _MESSAGE and "/" in record.location:
            self.checkpoints.note(record.location[: record.location.rindex("/") + 1], record.seq)
        if kind is _ATTEMPT or kind is _BEGIN:
            self._apply_attempt(record)
            return
        if record.at > self.time:
            self.time = record.at
        self.loop.now = self.time
        if kind is _MESSAGE:
            self._mailbox.arrive(record.location, record.seq, record.payload or "null")
            if self._mailbox.refused:
                self._set_refused_aside()
        elif kind is _CANCEL:
            (self._terminate if record.failed else self._cancel)(record)
        elif kind is _WAKE:
            self._wake(record)
        else:
            self._complete(record)
        if self._closing is None:
            self.drain()
        else:
            self._end(self._closing)

    def _apply_result(self, record: Record) -> bool:
        """Apply the recorded result of a step; False if nothing was done, because it needs the checks of `_apply`.

        This is the fast path of `_apply` for long histories: it does the same, in the same order.
        """
        location = record.location
        operation = self._open.get(location)
        if type(operation) is not StepOperation or record.failed or record.digest != operation.digest or self._begun:
            return False
        future = operation.future
        payload = record.payload
        if payload is None or future.done():
            return False
        try:
            value = self._codec.decode_quickly(payload, operation.request.spec.returns)
        except Exception:
            return False
        if "/" in location:
            self.checkpoints.note(location[: location.rindex("/") + 1], record.seq)
        if record.at > self.time:
            self.time = record.at
        self.loop.now = self.time
        del self._open[location]
        operation.open = False
        future.watcher = future.operation = None
        future.note_waiters()
        future.set_result(value)
        self.drain()
        return True

    def _cancel(self, record: Record) -> None:
        again, self.cancel_requested = self.cancel_requested, True
        if self._closing is not None:
            self._leave_to_next_attempt(record)
            self._stop_children()
            return
        if self._undo_phase is not None:
            return
        assert self._main is not None
        # Once only: cleanup code is not interrupted again, unless it has called `uncancel`.
        if self.interrupts_again or not again or not self._main.cancelling():
            reason = self._reason(record)
            if record.digest == _WINS:
                self._cancelled = reason or ""
            self._main.cancel(reason)

    def uncancel(self) -> bool:
        """Take the cancellation back; True if there was one. The run goes on as if it had not been cancelled.

        Nothing is recorded: replay applies the cancellation at the same place, and the code takes it back again.
        """
        self._check_inside()
        self.check_main("uncancel")
        assert self._main is not None
        if not self.cancel_requested:
            return False
        self.cancel_requested, self._cancelled = False, None
        while self._main.cancelling():
            self._main.uncancel()
        return True

    def interrupt_again(self) -> None:
        """Let each cancellation interrupt the code, also one that comes while it cleans up."""
        self.interrupts_again = True

    def _won(self, outcome: RunOutcome, main: RunTask[Any]) -> RunOutcome:
        """Outcome of a workflow that was cancelled: cancelled, unless its code took the cancellation back."""
        assert self._cancelled is not None
        if main.cancelling() or outcome.status is Status.CANCELLED:
            return stopped(outcome, self._ending, self._cancelled)
        # The code called the method of asyncio's own task.
        self.cancel_requested, self._cancelled = False, None
        return outcome

    def _terminate(self, record: Record) -> None:
        """End the workflow's code and undo its steps. A workflow that has ended keeps its outcome."""
        self.cancel_requested = True
        if self._undo_phase is not None:
            return
        self._let_children_go(_BOUND)
        if self._closing is not None:
            self._leave_to_next_attempt(record)
            return
        message = termination_message(self.run_id, self._reason(record) or "")
        outcome = failed(RunTerminated(message, run_id=self.run_id), self._codec)
        if self.undos is None or not self.undos.needed:
            self._end(outcome)
        else:
            self._undo_without_code(outcome, self.undos)

    def _leave_to_next_attempt(self, record: Record) -> None:
        if self._closing is not None and self._closing.final is False:
            self.unobeyed = record

    def _reason(self, record: Record) -> str | None:
        """Reason of a cancellation; one that cannot be decoded, as it is stored, so that the run can end."""
        try:
            return record.payload and self._codec.decode(record.payload, str, "reason of a cancellation")
        except DecodeError:
            return record.payload

    def _undo_without_code(self, outcome: RunOutcome, undos: UndoLog) -> None:
        assert self._main is not None
        undos.leave_blocks()
        kept = undos.pending.keys()
        for operation in [one for one in self._open.values() if one.location not in kept]:
            if isinstance(operation, StepOperation) and operation.location.endswith(UNDO):
                # A block was undoing this step; the run begins that undo anew.
                undos.append(operation.location.removesuffix(UNDO), operation.request)
            if not isinstance(operation, ChildOperation):
                self._close(operation)
                if not self.replaying:
                    self.dropped.append(operation)
        self._mailbox.close()
        self.timers.clear()
        if not end_code(self.loop, self._main):
            self._logger.warning("run %s was terminated, but some of its code would not end", self.run_id)
        for location, step in undos.pending.items():
            # The tasks that waited for the step are gone; only its undo waits.
            operation = self._open[location]
            future = operation.future = step.future = new_operation_future(self.loop, self._root, location, None)
            future.watcher, future.operation = self, operation
            future.observe(step.ended)
        self._undo_phase = UndoPhase(outcome, undos, self.loop)
        self._main = self._undo_phase.task

    def _wake(self, record: Record) -> None:
        if not self.move_timer(record.location, int(record.payload or 0)) and not self.checkpoints.is_behind(record):
            raise self._diverged(record)

    def _apply_attempt(self, record: Record) -> None:
        operation = self._open.get(record.location)
        if not isinstance(operation, StepOperation):
            if self.checkpoints.is_behind(record) or record.location in self._removed:
                return
            raise self._diverged(record)
        if record.kind is _BEGIN:
            if self._begun is None:
                self._begun = {}
            self._begun[record.location] = record
            return
        if self._begun:
            self._begun.pop(record.location, None)
        operation.attempts = record.attempts
        operation.retry_at = record.retry_at

    def _complete(self, record: Record) -> None:
        operation = self._open.get(record.location)
        if operation is None and record.kind is _CHILD:
            if record.location in self._closed_children:
                self._given_up.pop(record.location, None)
                return
            # A child that this attempt had called has its digest there.
            if self._origin.attempt > 1 and not record.digest:
                self._early_children[record.location] = record
                return
        if operation is None and self.checkpoints.is_behind(record):
            return
        if operation is None or operation.kind is not record.kind:
            if self._needs_no_operation(record, operation):
                return
            raise self._diverged(record)
        if record.kind is _SCOPE:
            self.checkpoints.advance(record)
        if record.digest != operation.digest and record.digest and record.digest != _UNHEARD:
            if self._arguments is None:
                self._arguments = RecordedArguments(self.run_id, self._history)
            self.warnings.append(self._arguments.changed(operation, record))
        elif isinstance(operation, TimerOperation) and record.at < operation.due and self._origin.attempt == 1:
            self.warnings.append(f"timer {record.location!r} was recorded before the time that the code sets it to now")
        if self._begun:
            self._begun.pop(record.location, None)
        if record.kind is _CHILD:
            # A reopened child ends again; its parent keeps the first outcome.
            self._closed_children[record.location] = record.digest
            self._given_up.pop(record.location, None)
        self._close(operation)
        self._resolve(operation, record)

    def _resolve(self, operation: OpenOperation, record: Record) -> None:
        if self._closing is not None:
            return
        if isinstance(operation, TimerOperation) and operation.handle is not None:
            self.loop.fire(operation.handle)
            return
        future = operation.future
        assert future is not None
        future.watcher = future.operation = None
        if future.done():
            return
        future.note_waiters()
        if record.failed:
            failure = Failure.read(record.payload)
            where = f"In the {operation.kind} {operation.location!r}"
            if isinstance(operation, WatchOperation):
                where = f"In run {operation.target!r}"
            error = self._errors.restore(failure, where=where)
            mark_recorded(error)
            if isinstance(error, RunCancelled) and isinstance(operation, RunOperation):
                error.partial = failure.partial_result(operation.returns, self._codec)
            if record.attempts:
                attach_attempts(error, AttemptSummary(record.attempts, failure.given_up))
            future.set_exception(error)
            future._log_traceback = False  # an error that is never awaited becomes `NeverAwaited`
        elif record.payload is None:
            future.set_result(None)
        else:
            future.set_result(self._decode(operation, record.payload))

    def _decode(self, operation: OpenOperation, payload: str) -> Any:
        """Decode a result for the workflow. Raises `DecodeError` if it is not of the declared type."""
        if isinstance(operation, StepOperation):
            returns = operation.request.spec.returns
        elif isinstance(operation, ScopeOperation):
            what = f"what {operation.location!r} of run {self.run_id!r} goes on with"
            return self._codec.decode(operation.checkpoint.value, operation.type, what)
        else:
            assert isinstance(operation, RunOperation)
            returns = operation.returns
        what = f"result of {operation.kind} {operation.location!r} of run {self.run_id!r}"
        if isinstance(operation, WatchOperation):
            what = f"result of run {operation.target!r}, for which run {self.run_id!r} waits"
        return self._codec.decode(payload, returns, what)

    # versions and removed operations

    def version(self, name: str, latest: int) -> int:
        """Version of the code that this run follows."""
        self._check_inside()
        location = self._version_place(name)
        self._versions[location] = latest
        pinned = self.recorded.find(RecordKind.VERSION, location)
        if pinned is not None:
            return int(pinned.payload or 0)
        if self.silent:
            return 0
        self._pin(location, latest)
        return latest

    def removed(self, name: str, kind: RecordKind) -> asyncio.Future[Any]:
        """Accept a record of an operation that the code no longer has; resolves to the recorded result."""
        self._check_inside()
        if kind is RecordKind.VERSION:
            self._versions.setdefault(self._version_place(name), _ANY)
        scope = current_scope.get(self._root)
        location = "" if kind is RecordKind.VERSION else scope.next(name)
        future = new_operation_future(self.loop, scope, location, None)
        if self.loop.closed:
            return future
        self._removed.add(location)
        early = self._early_children.pop(location, None) if kind is RecordKind.CHILD else None
        heard = early or (self.recorded.find(kind, location) if location else None)
        if heard is not None and heard.digest == _UNHEARD:
            heard = None
        if kind is RecordKind.CHILD:
            self._closed_children[location] = _UNHEARD if heard is None else heard.digest
        if heard is None:
            future.set_result(None)
        elif heard is early:
            future.set_result(self._removed_result(heard))
        else:
            self._open[location] = RemovedOperation(location, future, kind)
        return future

    def knows_child(self, location: str) -> bool:
        """True if the workflow has called a child there."""
        return location in self._open or location in self._closed_children

    def position(self, location: str) -> str:
        """Describe what the code waits for instead of the record there."""
        return position(location, self._open.values(), self.awaited_messages(), self.outcome)

    def _diverged(self, record: Record) -> Diverged:
        return diverged(self.run_id, record, self.position(record.location))

    def _version_place(self, name: str) -> str:
        return current_scope.get(self._root).next(_APART + name).replace(_APART, "", 1)

    def _pin(self, location: str, version: int) -> None:
        self.unsaved.append(
            Record(
                seq=self.next_seq, kind=RecordKind.VERSION, location=location, payload=str(version), at=self.time,
                run_attempt=self._origin.attempt,
            )
        )  # fmt: skip
        if "/" in location:
            self.checkpoints.note(location[: location.rindex("/") + 1], self.next_seq)
        self.next_seq += 1

    def _warn_of_state(self, location: str) -> None:
        text = (
            f"loop {location!r} goes on from its checkpoint, which was recorded when the loop began with another state"
        )
        if self.silent:
            self.warnings.append(text)
        else:
            self.log.warning("run %s: %s", self.run_id, text)

    def _set_refused_aside(self) -> None:
        """Set messages aside that could not be decoded, by a record that leaves with the one that led there."""
        refused, self._mailbox.refused = self._mailbox.refused, []
        for one in refused:
            failure, seq = Failure.of(one.error, self._codec), self.next_seq
            self.unsaved.append(
                Record(
                    seq=seq, kind=_ASIDE, location=one.name, payload=failure.to_json(), failed=True, at=self.time,
                    digest=str(one.seq), run_attempt=self._origin.attempt,
                )
            )  # fmt: skip
            self.next_seq += 1
            if one.path:
                self.checkpoints.received(one.path, seq)
            key = f"aside:{self._origin.life}.{one.seq}"
            self.effects.append(set_aside_output(one.name, one.payload, failure, key))
            if (asked := question_key(one.name, one.payload)) is not None:
                reply = NewOutput(
                    kind=OutputKind.REPLY, name=asked, payload=failure.to_json(), failed=True, key=f"reply:{asked}"
                )
                self.effects.append(reply)
            self.log.warning(
                "message %r to run %s is set aside, and the run still waits: %s; send one that fits, or change the "
                "code and deliver it again (`perdure messages list URL %s` shows its number)",
                one.name, self.run_id, one.error, self.run_id,
            )  # fmt: skip

    def _needs_no_operation(self, record: Record, operation: OpenOperation | None) -> bool:
        """True if a record is right although no operation waits for it. Raises `Diverged`."""
        if record.kind is _ASIDE:
            return True
        if record.kind is RecordKind.FORK:
            self._salt = f":{record.payload}"
            return True
        if record.kind is RecordKind.VERSION:
            self._check_version(record)
            return True
        if isinstance(operation, RemovedOperation) and operation.was is record.kind:
            self._close(operation)
            operation.future.set_result(self._removed_result(record))
            return True
        return False

    def _removed_result(self, record: Record) -> Any:
        """Return the result of a removed operation as plain data, because no annotation describes it any more."""
        if record.failed or record.payload is None or record.kind is RecordKind.TIMER:
            return None
        return self._codec.decode(record.payload, Any, f"result of the removed operation {record.location!r}")

    def _check_version(self, record: Record) -> None:
        known = self._versions.get(record.location)
        if known is None:
            name = record.location.rpartition("/")[2].partition("#")[0]
            found = (
                f'the code does not ask for that version; if it is needed no more, say ctx.removed("{name}", "version")'
            )
            raise diverged(self.run_id, record, found)
        if known != _ANY and int(record.payload or 0) > known:
            raise diverged(self.run_id, record, f"it is {record.payload}, and the code knows none after {known}")

    # draining and ending

    def drain(self, drain_context: DrainContext | None = None) -> None:
        """Run the ready callbacks, and end or break the run by its errors. The loop watch looks for its frame."""
        trace, loop = self._trace, self.loop
        if not trace.waiting[DUE]:
            trace.note(trace)
        try:
            if drain_context is None or not drain_context.entered or loop.thread:
                loop.drain()
            else:
                # As `drain` does; inlined, because every step passes here.
                loop.thread = drain_context.thread
                _set_running_loop(loop)
                try:
                    loop.run_ready()
                finally:
                    loop.thread = 0
                    _set_running_loop(drain_context.loop)
        except LoopStuck as error:
            self._end(failed(error, self._codec))
        except CodeHalted as halted:
            self._break(failed(halted.error, self._codec))
        else:
            if self.outcome is None and self._main is not None and _is_done(self._main):
                self._main_ended(self._main)
        finally:
            if not trace.waiting[DUE]:
                trace.note(self)

    def _main_ended(self, main: RunTask[Any]) -> None:
        if self._undo_phase is not None:
            if self._undo_phase.over:
                self._end(self._undo_phase.outcome(self._codec))
            return
        unawaited = self._unawaited
        forgotten = [one.label for one in unawaited.values() if one.is_forgotten] if unawaited else []
        outcome = outcome_of(main, self._ending, forgotten, stopped=self.cancel_requested)
        if self._mailbox.unfit is not None and outcome.error is self._mailbox.unfit:
            # A message that was received before does not fit the code any more: that blocks the run.
            raise self._mailbox.unfit
        if outcome.error is not None and outcome.status is Status.FAILED and self.is_broken(outcome.error):
            self._break(outcome)
            return
        if self._cancelled is not None:
            outcome = self._won(outcome, main)
        if self.undos is None or outcome.error is None or not self.undos.needed:
            self._end(outcome)
        elif self._is_to_be_undone(outcome.error):
            self._undo_phase = UndoPhase(outcome, self.undos, self.loop)
            self.drain()
        else:
            self._end(replace(outcome, final=False))

    def _break(self, outcome: RunOutcome) -> None:
        """End the code, which is broken. The run goes on with other code, from the record that was applied last.

        What the run has done so far is kept, and its children go on. Raises `BrokenCode` on replay, where nothing is
        written.
        """
        if self.silent:
            raise BrokenCode("the workflow's code is broken") from outcome.error
        if not _is_same_failure(self._broken_before, outcome.payload):
            self.unsaved.append(
                Record(
                    seq=self.next_seq, kind=_BROKEN, location="", payload=outcome.payload, failed=True, at=self.time,
                    run_attempt=self._origin.attempt,
                )
            )  # fmt: skip
            self.next_seq += 1
        self.outcome = replace(outcome, broken=True)
        for operation in self._open.values():
            # A child that an earlier record led to has to be started with it.
            operation.open = isinstance(operation, RunOperation)
        self._open.clear()
        self._let_go()

    def _is_to_be_undone(self, error: BaseException) -> bool:
        # A recorded undo shows how this was decided, whatever the policy is by now.
        rest = self._history[self._applied :]
        decided = any(record.location.endswith(UNDO) for record in rest)
        if self.cancel_requested or decided or self._gives_up(error, self.time):
            return True
        # Another attempt could come to the same end before it is cancelled. A recorded cancellation came later than
        # this, either at once or while the run waited for its children; it is obeyed here.
        return self.cancel_waits or any(record.kind is _CANCEL for record in rest)

    def _end(self, outcome: RunOutcome) -> None:
        if self._open:
            children = [operation for operation in self._open.values() if isinstance(operation, ChildOperation)]
            if any(child.options.on_close is OnClose.WAIT for child in children):
                if self._closing is None:
                    self._begin_to_close(outcome)
                return
            # Children that were cancelled when the workflow ended are cancelled again: earlier versions did it only
            # here.
            self.orphans = [*self.orphans, *(child for child in children if child.options.on_close is OnClose.CANCEL)]
            for operation in self._open.values():
                # An abandoned child that has not been started yet is still started.
                operation.open = isinstance(operation, ChildOperation) and not operation.bound
            self._open.clear()
        # A message that is carried over is for the code that follows.
        self._mailbox.close()
        self.outcome = outcome
        self._let_go()

    def _begin_to_close(self, outcome: RunOutcome) -> None:
        """End the workflow but not the run, which waits for children."""
        self._closing = outcome
        if self._is_last(outcome):
            self._closing = outcome if outcome.error is None else replace(outcome, final=True)
            self._let_children_go((OnClose.CANCEL,))
        others = [operation for operation in self._open.values() if not isinstance(operation, ChildOperation)]
        for operation in others:
            self._close(operation)
        self._mailbox.close()
        if not self.replaying:
            self.dropped += others
        self._let_go()
        if self.cancel_requested:
            self._stop_children()

    def _is_last(self, outcome: RunOutcome) -> bool:
        """True if no further attempt at the run follows, which would take up its children again."""
        if outcome.status is not Status.FAILED or outcome.renewed is not None or self.cancel_requested:
            return outcome.final is not False
        return outcome.final is not False and (outcome.error is None or self._gives_up(outcome.error, self.time))

    def _let_children_go(self, policies: tuple[OnClose, ...]) -> None:
        """Cancel children that the run does not wait for. One that was only just asked for is not started."""
        children = [one for one in self._open.values() if isinstance(one, ChildOperation)]
        let_go = [child for child in children if child.options.on_close in policies]
        for child in let_go:
            self._close(child)
            self._closed_children[child.location] = child.digest
        self.orphans = [*self.orphans, *let_go]
        if not self.silent:
            self.dropped += self.orphans

    def _stop_children(self) -> None:
        if not self.replaying:
            self.dropped += [one for one in self._open.values() if isinstance(one, ChildOperation) and one.bound]

    def _let_go(self) -> bool:
        main = self._main
        ended = end_tasks(self.loop, None if main is None or main.done() else main)
        # Break reference cycles, so that the memory is freed at once.
        self._main = None
        self._undo_phase = None
        self._unawaited.clear()
        if self.timers.heap:
            self.timers.clear()
        self.loop.untie()
        return ended

    def _on_stray_error(self, context: dict[str, Any]) -> None:
        self.log.warning("%s in run %s", context.get("message"), self.run_id, exc_info=context.get("exception"))


def _is_same_failure(known: str | None, payload: str | None) -> bool:
    if known is None or payload is None:
        return False
    one, other = Failure.read(known), Failure.read(payload)
    return (one.type, one.message) == (other.type, other.message)


def _raise(error: BaseException) -> None:
    raise error


class ReplayLog(logging.LoggerAdapter[logging.Logger]):
    """Logger that adds the run's id, and is silent during replay and eviction."""

    def __init__(self, logger: logging.Logger, execution: Execution) -> None:
        super().__init__(logger, {})
        self._execution = execution

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name is the standard library's
        """True if an entry of this level is written now."""
        return not self._execution.mute and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run's id, type and attempt."""
        return msg, {**kwargs, "extra": {**self._execution.log_fields, **(kwargs.get("extra") or {})}}
