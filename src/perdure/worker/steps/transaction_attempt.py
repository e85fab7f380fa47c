"""One attempt at a function that runs in a transaction together with the record of its result.

It is a step in everything but its end: the record is not left to the run's next turn but written by the transaction itself. For
that it needs the run's seal (see `sealing`): before its function is called where a transaction shuts out every other one, or
else when the function has returned. Where the commit was not answered, the database is asked what became of it.
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
from perdure.worker.callbacks import ResultRecipient
from perdure.worker.services import Services
from perdure.worker.steps.attempt import Attempt
from perdure.worker.steps.emit import EmittingRun
from perdure.worker.steps.threads import StepThreads
from perdure.workflow.step_info import StepInfo, current_step

if TYPE_CHECKING:
    from perdure.worker.run.commit_lock import CommitLock

logger = logging.getLogger("perdure.worker")

#: How long to wait before the database is asked again what became of a commit, in seconds.
_PAUSE = 0.2


class CommitGrant(Struct, frozen=True):
    """The right to write the run's next record."""

    lease: Lease
    seq: int
    #: The workflow's time, before which no record may be.
    time: int
    run_attempt: int


class Committed(Struct, frozen=True):
    """A record that is durable, and what the workflow gets."""

    record: Record
    value: Any
    #: How many of the run's pending items were committed with it.
    items: int = 0


class LeaseLost(Exception):
    """Another worker has the run; nothing was written."""


class _Unwanted(Exception):
    """Nobody waits for it any more; it is rolled back."""


class TransactionRun(ResultRecipient, EmittingRun, Protocol):
    """A run of whose steps some are transactions."""


class TransactionAttempt(Attempt):
    """See the module."""

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
        self._going = False
        self._turn: Turn | None = None
        self._made: Committed | None = None

    def start(self, threads: StepThreads, run_deadline: int) -> None:
        """See `Attempt`."""
        self._threads = threads
        self._deadline = run_deadline
        if self._services.store.exclusive:
            self._commit_lock.want(self)
        else:
            self._go()

    @property
    def begun(self) -> bool:
        """Whether its function is being called, or was."""
        return self._going

    @property
    def may_wait(self) -> bool:
        """See `EmittingAttempt`. The run writes nothing while it is sealed."""
        return not self._services.store.exclusive

    @property
    def has_pending(self) -> bool:
        """Whether it has emitted items that no turn has taken."""
        return self._emission is not None and self._emission.items > 0

    @property
    def wanted(self) -> bool:
        """Whether it still has a use for the seal."""
        return not self._over and self._timed_out is None

    def granted(self, grant: CommitGrant) -> None:
        """It has the seal now, and ends with it."""
        self._grant = grant
        if self._going:
            self._reply()
        else:
            self._go()

    def _go(self) -> None:
        self._going = True
        request = self.operation.request
        timeout = request.options.timeout
        due = self._deadline
        if timeout is not UNSET:
            due = min(due, self.started_at + int(timeout * 1e6))
        info = self._info(due)
        using = request.options.using
        blocks = self._services.store.blocks if using is UNSET else not request.spec.is_async
        if blocks:
            assert self._threads is not None
            self._job = self._threads.submit(
                lambda: drive(self._perform(info, in_thread=True)), lambda *end: self._thread_done(info, *end)
            )
        else:
            self._task = self._system.spawn(self._run(info), self.operation.location)
        if timeout is not UNSET:
            self._pending = self._system.call_later(timeout, lambda: self._time_out(timeout))

    async def _run(self, info: StepInfo, awaitable: Any = None) -> None:
        await super()._run(info, self._perform(info, in_thread=False))

    async def _perform(self, info: StepInfo, *, in_thread: bool) -> Committed:
        current_step.set(info)
        request = self.operation.request

        def work(connection: Any) -> Any:
            given = request.copied()
            return request.spec.function(connection, *given.args, **given.kwargs)

        async def seal(result: Any) -> Turn:
            return await self._sealed(result, in_thread=in_thread)

        using = None if request.options.using is UNSET else request.options.using
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
        assert self._made is not None
        return self._made

    async def _sealed(self, result: Any, *, in_thread: bool) -> Turn:
        """The turn to be written with the function's own writes, once everything before it is durable."""
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
        # On a server they are durable by now: the commit lock is only granted then.
        items = self._services.emit_buffer.peek(self.recipient) if self._services.store.exclusive else []
        self._made = Committed(record, value, len(items))
        self._turn = Turn(lease=grant.lease, records=(record,), outputs=tuple(items))
        return self._turn

    def _ask_from_thread(self) -> CommitGrant | None:
        answers: queue.SimpleQueue[CommitGrant | None] = queue.SimpleQueue()
        try:
            self._loop.call_soon_threadsafe(self._ask, answers.put)
        except RuntimeError:  # the loop has been closed: nobody is left who could want it
            return None
        return answers.get()

    async def _ask_here(self) -> CommitGrant | None:
        if self._grant is not None and self.wanted:
            self._settle_for_good()
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
            self._commit_lock.want(self)

    def _reply(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            self._settle_for_good()
            answer(self._grant)

    def _settle_for_good(self) -> None:
        # From here on only the database decides; a timeout would leave it open what became of the transaction.
        if self._pending is not None:
            self._pending.cancel()
            self._pending = None

    def _stop(self) -> None:
        super()._stop()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(None)

    def _arrive(self, result: Any, error: BaseException | None) -> None:
        if isinstance(error, CommitUnknown) and not self._over:
            self._task = self._system.spawn(self._resolve(error), self.operation.location)
            return
        if isinstance(error, Interrupted) and error.__cause__ is not None:
            again = is_transient(error.__cause__) and self._commit_lock.may_begin_again(self.operation.location)
            error = error if again else error.__cause__
        super()._arrive(result, error)

    async def _resolve(self, doubt: CommitUnknown) -> None:
        try:
            verdict = await self._became()
        except Exception as error:
            asyncio.get_running_loop().call_soon(self.recipient.block, error)
            return
        if verdict is TurnOutcome.APPLIED:
            super()._arrive(self._made, None)
        elif verdict is TurnOutcome.LOST:
            super()._arrive(None, LeaseLost())
        else:
            interrupted = Interrupted()
            interrupted.__cause__ = doubt.__cause__
            self._arrive(None, interrupted)

    async def _became(self) -> TurnOutcome:
        """Ask what became of the commit, until there is an answer."""
        assert self._turn is not None
        while True:
            try:
                return await self._services.store.recorded(self._turn, self._actor)
            except StoreCorrupt:
                raise
            except StoreError as error:
                logger.warning(
                    "cannot see what became of a transaction of run %s, trying again: %s", self.run_id, error
                )
                await self._system.sleep(_PAUSE)
