"""One attempt at a transaction step, which commits the record of its result together with its own writes.

Unlike that of other steps, the record is not left to the run's next turn, so the attempt needs the run's commit lock
(`commit_lock`). It gets the lock before its function is called if the database allows one writer at a time, otherwise
when the function has returned. If the answer to the commit is lost, the database is asked what happened.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Struct

from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run
from perdure.core.model.turn import Lease, Turn, TurnOutcome
from perdure.errors import StoreCorrupt, StoreError, StoreUnavailable
from perdure.replay.operations import StepOperation
from perdure.store.sql.dialect import drive
from perdure.store.user_connections.errors import CommitUnknown, Interrupted, is_transient
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.worker.batched_calls import ResultRecipient
from perdure.worker.services import Services
from perdure.worker.steps.attempt import Attempt, context_of_step
from perdure.worker.steps.emit import EmittingRun
from perdure.worker.steps.threads import StepThreads
from perdure.workflow.runtime import StepRequest
from perdure.workflow.step import StepInfo, current_step

if TYPE_CHECKING:
    from perdure.worker.run.commit_lock import CommitLock

logger = logging.getLogger("perdure.worker")

#: Seconds before the database is asked again what happened to a commit.
_PAUSE = 0.2


class CommitGrant(Struct, frozen=True):
    """The right to write the run's next record."""

    lease: Lease
    seq: int
    #: Workflow time; no record may be older.
    time: int
    run_attempt: int


class Committed(Struct, frozen=True):
    """A durable record and its value for the workflow."""

    record: Record
    value: Any
    #: Number of pending items that were committed with it.
    items: int = 0


class LeaseLost(Exception):
    """Another worker has the run; nothing was written."""


class _Unwanted(Exception):
    """The result is not needed any more; the transaction is rolled back."""


class TransactionRun(ResultRecipient, EmittingRun, Protocol):
    """A run that has transaction steps."""


class TransactionAttempt(Attempt):
    """A call of a transaction step's function."""

    __slots__ = ("_actor", "_answer", "_crew", "_deadline", "_going", "_grant", "_loop", "_made", "_seal", "_turn")

    recipient: TransactionRun

    def __init__(
        self,
        operation: StepOperation,
        run: Run,
        now: int,
        services: Services,
        recipient: TransactionRun,
        seal: CommitLock,
    ) -> None:
        super().__init__(operation, run.id, now, services.system, services.results, recipient)
        self._services = services
        self._actor = services.actor()
        self._commit_lock = seal
        self._loop = asyncio.get_running_loop()
        self._grant: CommitGrant | None = None
        self._answer: Callable[[CommitGrant | None], object] | None = None
        self._called = False
        self._turn: Turn | None = None
        self._committed: Committed | None = None

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """Call the function, or request the commit lock first where writers exclude each other."""
        self._threads = threads
        self._deadline = run_deadline
        if self._services.store.exclusive:
            self._commit_lock.request(self)
        else:
            self._call()

    @property
    def is_called(self) -> bool:
        """True if the function was called."""
        return self._called

    @property
    def may_wait(self) -> bool:
        """True if emitting may block. Not under the commit lock: the run writes nothing then."""
        return not self._services.store.exclusive

    @property
    def has_pending(self) -> bool:
        """True if there are emitted items that no turn has taken."""
        return self._emission is not None and self._emission.items > 0

    @property
    def wanted(self) -> bool:
        """True if the attempt still needs the commit lock."""
        return not self.over and self.timed_out is None

    def granted(self, grant: CommitGrant) -> None:
        """Go on with the commit lock, which ends with this attempt."""
        self._grant = grant
        if self._called:
            self._reply()
        else:
            self._call()

    def _call(self) -> None:
        self._called = True
        context_of_step(self.operation).run(self.call_in_context)

    def call_in_context(self) -> None:
        """Call the function, in the context of the step."""
        request = self.operation.request
        timeout = request.options.timeout
        due = self._deadline
        if timeout is not UNSET:
            due = min(due, self.started_at + int(timeout * 1e6))
        info = self._info(due)
        blocks = self._services.store.blocks if self.opener() is None else not request.spec.is_async
        if blocks:
            assert self._threads is not None
            self._job = self._threads.submit(
                lambda: drive(self._perform(info, in_thread=True)), lambda *end: self._thread_done(info, *end)
            )
        else:
            self.task = self._system.spawn(self.run(info), self.operation.location)
        if timeout is not UNSET:
            self.pending = self._system.call_later(timeout, lambda: self._time_out(timeout))

    async def run(self, info: StepInfo, awaitable: Any = None) -> None:
        """Run the transaction with the function in it, and report the end."""
        await super().run(info, self._perform(info, in_thread=False))

    async def _perform(self, info: StepInfo, *, in_thread: bool) -> Committed:
        current_step.set(info)
        request = self.operation.request

        def work(connection: Any) -> Any:
            return self._call_function(connection, request.copied())

        async def seal(result: Any) -> Turn:
            return await self._make_turn(result, in_thread=in_thread)

        using = self.opener()
        try:
            verdict = await self._services.store.transact(
                TransactionStep(
                    function=work, is_async=request.spec.is_async, make_turn=seal, using=using, actor=self._actor
                )
            )
        except StoreUnavailable as error:
            raise (Interrupted if self._turn is None else CommitUnknown) from error
        if verdict is TurnOutcome.LOST:
            raise LeaseLost
        assert self._committed is not None
        return self._committed

    def opener(self) -> Callable[[], Any] | None:
        """Return what opens the user's connection; None: the connection is the engine's own."""
        using = self.operation.request.options.using
        return None if using is UNSET else using

    def _call_function(self, connection: Any, request: StepRequest) -> Any:
        return request.spec.function(connection, *request.args, **request.kwargs)

    async def _make_turn(self, result: Any, *, in_thread: bool) -> Turn:
        """Make the turn to be committed with the function's own writes, once everything before it is durable."""
        operation, codec = self.operation, self._services.codec
        what = f"result of transaction {operation.location!r} of run {self.run_id!r}"
        payload, value = codec.store(result, operation.request.spec.returns, what)
        grant = self._ask_from_thread() if in_thread else await self._ask_here()
        if grant is None:
            raise _Unwanted
        record = Record(
            seq=grant.seq, kind=RecordKind.STEP, location=operation.location, payload=payload,
            at=max(grant.time, self._services.read_clock().now), started_at=self.started_at, digest=operation.digest,
            attempts=self.number, run_attempt=grant.run_attempt,
        )  # fmt: skip
        # On a server, the commit lock is only granted once emitted items are durable.
        items = self._services.emit_buffer.peek(self.recipient) if self._services.store.exclusive else []
        self._committed = Committed(record, value, len(items))
        self._turn = Turn(lease=grant.lease, records=(record,), outputs=tuple(items))
        return self._turn

    def _ask_from_thread(self) -> CommitGrant | None:
        answers: queue.SimpleQueue[CommitGrant | None] = queue.SimpleQueue()
        try:
            self._loop.call_soon_threadsafe(self._ask, answers.put)
        except RuntimeError:  # the loop was closed
            return None
        return answers.get()

    async def _ask_here(self) -> CommitGrant | None:
        if self._grant is not None and self.wanted:
            self._cancel_timeout()
            return self._grant
        answer: asyncio.Future[CommitGrant | None] = self._loop.create_future()
        self._ask(lambda grant: None if answer.done() else answer.set_result(grant))
        return await answer

    def _ask(self, answer: Callable[[CommitGrant | None], object]) -> None:
        if not self.wanted:
            answer(None)
            return
        self._answer = answer
        if self._grant is not None:
            self._reply()
        else:
            self._commit_lock.request(self)

    def _reply(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._cancel_timeout()
            answer(self._grant)

    def _cancel_timeout(self) -> None:
        # From here on only the database decides; after a timeout the outcome of the transaction would be unknown.
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None

    def stop(self) -> None:
        """Stop the function, and answer it if it asks for the commit lock."""
        super().stop()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(None)

    def report_end(self, result: Any, error: BaseException | None) -> None:
        """Report the end; after a commit whose outcome is unknown, find it out first."""
        if isinstance(error, CommitUnknown) and not self.over:
            self.task = self._system.spawn(self._resolve(error), self.operation.location)
            return
        if isinstance(error, Interrupted) and error.__cause__ is not None:
            again = is_transient(error.__cause__) and self._commit_lock.may_begin_again(self.operation.location)
            error = error if again else error.__cause__
        super().report_end(result, error)

    async def _resolve(self, doubt: CommitUnknown) -> None:
        try:
            verdict = await self._read_verdict()
        except Exception as error:
            asyncio.get_running_loop().call_soon(self.recipient.block, error, context=self._results.context)
            return
        if verdict is TurnOutcome.APPLIED:
            self.report_end(self._committed, None)
        elif verdict is TurnOutcome.LOST:
            self.report_end(None, LeaseLost())
        else:
            interrupted = Interrupted()
            interrupted.__cause__ = doubt.__cause__
            self.report_end(None, interrupted)

    async def _read_verdict(self) -> TurnOutcome:
        """Ask the database what happened to the commit, until it answers."""
        assert self._turn is not None
        while True:
            try:
                return await self._services.store.turn_outcome(self._turn, self._actor)
            except StoreCorrupt:
                raise
            except StoreError as error:
                logger.warning(
                    "cannot see what became of a transaction of run %s, trying again: %s", self.run_id, error
                )
                await self._system.sleep(_PAUSE)
