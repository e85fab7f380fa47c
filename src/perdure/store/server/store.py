"""Base of the stores on database servers: connections, transactions on them, and repetition after an error.

A verb is a transaction on one connection. After a lost connection it is repeated as a whole, a few times. After a lost
race (a deadlock, a serialization failure, a lock wait that timed out) it is repeated after growing random pauses, for
as long as a statement may take. Every verb may be repeated. After that the caller gets `StoreUnavailable`.
"""

from __future__ import annotations

import asyncio
import builtins
import os
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar

from perdure.core.audit import Audit
from perdure.core.model.attempt_reports import AttemptReport, ReportKind, ReportOutcome
from perdure.core.model.outputs import BroadcastResult
from perdure.core.model.record import NewMessage, RecordKind, SendOutcome
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.model.worker_info import HeartbeatResult, WorkerInfo
from perdure.core.process_fork import never_finalize, watch_forks
from perdure.core.routing import TypeInfo
from perdure.core.system import System
from perdure.core.time.schedule import FiringResult
from perdure.errors import StoreUnavailable
from perdure.store.contract import Change
from perdure.store.server.clock import ServerClock
from perdure.store.server.commit_batch import RecordsExist
from perdure.store.server.identity import ServerReplaced, ServerTracker
from perdure.store.server.pool import DEFAULT_TIMEOUTS, LoopPools, Pool, PooledConnection
from perdure.store.sql import schedules, workers
from perdure.store.sql.dialect import Dialect, Transaction, TransactionNotices, counted
from perdure.store.sql.rows import known
from perdure.store.sql.runs.attempt_reports import lock_breaker, report_attempt
from perdure.store.sql.runs.inbox import broadcast, cancel, send
from perdure.store.sql.runs.terminate import terminate
from perdure.store.sql.store import SqlStore, Trace
from perdure.store.sql.turn import NO_FENCE, Fence
from perdure.store.user_connections.transaction_step import TransactionStep, run_transaction_step

T = TypeVar("T")

#: How often a transaction that loses its connection is tried before its caller is told.
TRIES = 5
#: The longest pause after the first failure, and after any failure, in seconds. Pauses are random, so that conflicting
#: transactions do not meet again.
FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.5
#: The longest pause after a commit all of whose rows were busy, in seconds.
PAUSE = 0.05


C = TypeVar("C", bound=PooledConnection)


class ServerTransaction(Transaction, TransactionNotices, Protocol):
    """A transaction that has things to tell when it is over."""

    @property
    def epoch(self) -> int:
        """Of its connection."""


X = TypeVar("X", bound=ServerTransaction)


class ServerStore(SqlStore, Generic[C, X]):
    """The verbs of `Store` over a server. `time` replaces the server's clock in tests."""

    #: Connections for functions of the user.
    _lent: LoopPools[C]

    def __init__(
        self,
        dialect: Dialect,
        tables: str,
        system: System,
        *,
        migrate: bool,
        audit: Audit,
        pool: int,
        time: Callable[[], int] | None,
    ) -> None:
        self._clock = ServerClock(system, time)
        super().__init__(dialect, tables, self._clock.now, migrate=migrate, audit=audit)
        # What an idle worker costs: two looks in three seconds.
        self.poll_interval = 1.5
        self.lanes = 1
        self._system = system
        self._tracker = ServerTracker(lambda: self.where, lambda: self._tell(Change.REPLACED))
        self._pools: LoopPools[C] = LoopPools(system, self._open_connection, self._say_goodbye, pool, self._is_current)
        self._timeouts = DEFAULT_TIMEOUTS
        self._trace: Trace | None = None

    async def close(self) -> None:
        """Let go of every connection."""
        if self._process == os.getpid():
            self._process = 0
            await self._pools.close()
            await self._lent.close()

    def announce(self, change: Change) -> None:
        """Announce something to other processes that no commit announces."""
        self._announce(int(change))

    async def poll_changes(self, *, watch: bool = True) -> bool:
        """True: it cannot be known without asking, and asking is as dear as claiming."""
        self._check_open()
        return True

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes in one transaction; wake waiting runs and mark running ones."""

        async def body(tx: X) -> builtins.list[SendOutcome]:
            ends = [message.run_id for message in messages if message.kind is RecordKind.CANCEL]
            if ends or len(messages) > 1:
                await self._lock_in_order(tx, [message.run_id for message in messages], ends)
            return await send(tx, messages)

        return await self._transact("send", actor, body)

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Request a run's cancellation."""

        async def body(tx: X) -> SendOutcome:
            await self._lock_in_order(tx, [run_id], [run_id])
            return await cancel(tx, run_id, reason, key)

        return await self._transact("cancel", actor, body)

    async def terminate(self, run_id: str, reason: str, key: str, actor: str, *, undo: bool = False) -> OrderOutcome:
        """End a run as failed, in whatever status it is, without its code."""

        async def body(tx: X) -> OrderOutcome:
            await self._lock_in_order(tx, [run_id], [run_id])
            return await terminate(tx, run_id, reason, key, undo=undo)

        return await self._transact("terminate", actor, body)

    async def report_attempt(self, report: AttemptReport, actor: str) -> ReportOutcome:
        """Write a report from outside about an attempt at an activity."""

        async def body(tx: X) -> ReportOutcome:
            run_id = report.token.run_id
            await lock_breaker(tx, report)
            await self._lock_in_order(tx, [run_id], [run_id] if report.kind is ReportKind.COMPLETED else [])
            return await report_attempt(tx, report)

        return await self._transact("report_attempt", actor, body)

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """Send a message to the next `limit` runs that subscribe to a topic."""

        async def body(tx: X) -> BroadcastResult:
            async def deliver(messages: Sequence[NewMessage]) -> Sequence[SendOutcome]:
                await self._lock_in_order(tx, [message.run_id for message in messages], [])
                return await self._deliver(tx, messages)

            return await broadcast(tx, topic, payload, key, after, limit, deliver)

        return await self._transact("broadcast", actor, body)

    async def fire_schedules(self, limit: int, actor: str) -> FiringResult:
        """Start one run for each fire time that is due; one statement as long as none is."""
        self._check_open()
        self._pass_crash_point("fire_schedules.enter")
        due = await self._read("fire_schedules", schedules.next_due)
        if due <= self.clock():
            return await self._transact("fire_schedules", actor, lambda tx: schedules.fire(tx, limit), entered=True)
        self._pass_by("fire_schedules")
        return FiringResult(runs=(), next_due=due)

    async def trace(self, callback: Trace | None) -> None:
        """Show every statement to a callback. For tests and tools."""
        self._trace = callback
        self._pools.here().flush()

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> tuple[str, ...]:
        """Register a worker; from now on wait for the server no longer than its lease allows."""
        patience = self._timeouts.within(worker.lease / 1e6)
        if patience != self._timeouts:
            self._timeouts = patience
            self._limit_connections()

        async def body(tx: X) -> tuple[str, ...]:
            elsewhere = await workers.enlist(tx, serves)
            await self._register(tx, worker)
            self._tracker.register(worker.id, tx.epoch)
            return elsewhere

        return await self._transact("register", worker.id, body)

    def _limit_connections(self) -> None:
        """Apply the patience to the connections of this loop: new ones take the place of those that are idle."""
        self._pools.here().flush()

    async def heartbeat(self, worker_id: str, running: str | None = None) -> HeartbeatResult:
        """Renew the worker's row; also LOST if it registered on a server that another one has replaced."""
        life = self._tracker.registration(worker_id)
        try:
            beat = await self._at_once(
                "heartbeat", worker_id, lambda tx: self._beat(tx, worker_id, 0 if life is None else life.beat, running)
            )
        except ServerReplaced:
            return HeartbeatResult.LOST
        if beat is None:
            if life is not None and await self._went_back(worker_id, life.beat):
                self._tracker.record_loss()
            return HeartbeatResult.LOST
        at, draining = beat
        if life is not None:
            life.beat = at
        return HeartbeatResult.DRAIN if draining else HeartbeatResult.RENEWED

    async def _went_back(self, worker_id: str, beat: int) -> bool:
        return await self._read("heartbeat", lambda tx: workers.went_back(tx, worker_id, beat))

    @abstractmethod
    async def _beat(self, tx: X, worker_id: str, last: int, running: str | None) -> tuple[int, bool] | None:
        """Renew the row if it is not older than `last`; None if it was not renewed.

        Returns the time that the row has then, and whether the worker is ordered to drain.
        """

    async def transact(self, step: TransactionStep) -> TurnOutcome:
        """Run a function of the user's and write the record of its result in one transaction."""
        self._check_open()
        fence = self._fence(step.actor)
        try:
            return await run_transaction_step(
                step, self._home, lambda: self._lend_to(step.actor), self._pass_crash_point, self._limit(), fence
            )
        except ServerReplaced:
            return TurnOutcome.LOST

    async def turn_outcome(self, turn: Turn, actor: str) -> TurnOutcome:
        """Outcome of a turn with one record: APPLIED, LOST, or BUSY."""
        try:
            return await super().turn_outcome(turn, actor)
        except ServerReplaced:
            return TurnOutcome.LOST

    @abstractmethod
    def _lend_to(self, worker: str) -> AbstractAsyncContextManager[object]:
        """A connection for a function of the user's in a run that the worker holds. Raises `ServerReplaced`."""

    def _fence(self, worker: str) -> Fence:
        """Proof of a worker's lease in a transaction of the user's."""
        return NO_FENCE

    def _is_current(self, connection: C) -> bool:
        return connection.epoch == self._tracker.epoch

    async def _register(self, tx: X, worker: WorkerInfo) -> None:
        await workers.register(tx, worker)

    @abstractmethod
    async def _open_connection(self) -> C:
        """A connection to a server that fits."""

    @abstractmethod
    async def _say_goodbye(self, connection: C) -> None:
        """End a connection in order."""

    @abstractmethod
    def _transaction(self, connection: C, actor: str, *, locking: bool) -> X:
        """A transaction on a connection; not begun yet."""

    @abstractmethod
    async def _begin(self, tx: X) -> None:
        """Begin it."""

    @abstractmethod
    async def _end(self, tx: X) -> None:
        """Make it durable."""

    @abstractmethod
    async def _rolled_back(self, connection: C) -> bool:
        """End what may be open on a connection; whether it can be used again."""

    @abstractmethod
    async def _lock_in_order(self, tx: X, run_ids: Sequence[str], ends: Sequence[str]) -> None:
        """Lock these runs, and parents of those that may end, in everybody's order: no two may wait for each other."""

    @abstractmethod
    async def _deliver(self, tx: X, messages: Sequence[NewMessage]) -> builtins.list[SendOutcome]:
        """Put messages into the inboxes of runs whose rows are locked."""

    @abstractmethod
    async def _commit_in(self, tx: X, turns: Sequence[Turn], *, doubtful: bool) -> builtins.list[TurnOutcome]:
        """Write the turns; raises `RecordsExist`, unless told that records may be there already."""

    def _learn(self, error: Exception) -> None:
        """Take note of what an error says about the way to the server."""

    @abstractmethod
    def _is_race(self, error: Exception) -> bool:
        """True if trying again may help."""

    @abstractmethod
    def _is_lost(self, error: Exception) -> bool:
        """True if another connection may help."""

    @abstractmethod
    def _translated(self, error: Exception) -> Exception:
        """The error that the contract knows; one that it knows already is left as it is."""

    def _after_fork_in_child(self) -> None:
        """Leave the parent's connections alone, and keep the child from using them by accident."""
        self._pools.silence()
        self._lent.silence()
        never_finalize(self)

    async def _connect(self) -> None:
        self._process = os.getpid()
        watch_forks(self._after_fork_in_child)
        limit = asyncio.timeout(self.first_answer_seconds)
        try:
            async with limit:
                await self.now()
        except BaseException as error:
            await self.close()
            if limit.expired() and isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"{self.where} did not answer within {self.first_answer_seconds:.0f} s; check that it runs, and "
                    "that the host and the port in the URL are right"
                ) from error
            raise

    async def _write(self, verb: str, actor: str, body: Callable[[X], Coroutine[Any, Any, T]]) -> T:
        return await self._transact(verb, actor, body)

    async def _read(self, verb: str, body: Callable[[X], Coroutine[Any, Any, T]]) -> T:
        read = counted(body)
        return await self._with(verb, lambda connection: read(self._transaction(connection, "", locking=False)))

    async def _transact(
        self, verb: str, actor: str, body: Callable[[X], Coroutine[Any, Any, T]], *, entered: bool = False
    ) -> T:
        """Run a verb in a transaction of its own.

        `entered`: it continues an earlier preview, and is not repeated on another connection.
        """
        self._check_open()
        if self._clock.is_old:
            await self.now()
        if not entered:
            self._pass_crash_point(f"{verb}.enter")

        async def attempt(connection: C) -> tuple[T, X]:
            tx = self._transaction(connection, actor, locking=True)
            await self._begin(tx)
            self._pass_crash_point(f"{verb}.begun")
            answer = await body(tx)
            self._pass_crash_point(f"{verb}.written")
            await self._end(tx)
            return answer, tx

        # A life ends on whatever server is there.
        life = "" if verb in ("register", "retire") else actor
        answer, tx = await self._with(verb, attempt, entered=entered, life=life)
        self._committed(verb, tx)
        return answer

    async def _at_once(
        self, verb: str, actor: str, body: Callable[[X], Coroutine[Any, Any, T | None]], *, entered: bool = False
    ) -> T | None:
        """Run a verb that is one round trip. None: nothing was written, and it takes a transaction."""
        self._check_open()
        if self._clock.is_old:
            await self.now()
        if not entered:
            self._pass_crash_point(f"{verb}.enter")

        async def attempt(connection: C) -> tuple[T | None, X]:
            tx = self._transaction(connection, actor, locking=True)
            self._pass_crash_point(f"{verb}.begun")
            self._pass_crash_point(f"{verb}.written")
            return await body(tx), tx

        answer, tx = await self._with(verb, attempt, entered=entered, life=actor)
        if answer is not None:
            self._committed(verb, tx)
        return answer

    async def _commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Make turns durable in a transaction of their own."""
        try:
            verdicts = await self._transact("commit", actor, lambda tx: self._commit_in(tx, turns, doubtful=False))
        except RecordsExist:
            verdicts = await self._transact("commit", actor, lambda tx: self._commit_in(tx, turns, doubtful=True))
        if verdicts and all(verdict is TurnOutcome.BUSY for verdict in verdicts):
            # The holder of the rows needs a moment; an immediate repetition would only cost the server.
            await self._system.sleep(PAUSE * self._system.random())
            await self._held_up()
        return verdicts

    async def _held_up(self) -> None:
        """Every row of a batch was busy: see whether that has another cause than other transactions."""

    def _committed(self, verb: str, tx: X) -> None:
        self._pass_crash_point(f"{verb}.committed")
        self._done(tx)
        if tx.announced:
            self._announce(tx.announced)

    @abstractmethod
    def _announce(self, change: int) -> None:
        """Announce changes to other processes, given as one integer: combining flags is slow."""

    def _pass_by(self, verb: str) -> None:
        for place in ("begun", "written", "committed"):
            self._pass_crash_point(f"{verb}.{place}")

    async def _with(self, verb: str, work: Callable[[C], Awaitable[T]], *, entered: bool = False, life: str = "") -> T:
        """Do something on a connection, again and again while that may help.

        What a worker does in its `life` is done on the server on which that began: raises `ServerReplaced` otherwise.
        """
        self._check_open()
        failures, until = 0, 0.0
        while True:
            try:
                pool = self._pools.here()
                connection = await pool.take(verb)
                try:
                    if life:
                        self._tracker.check(life, connection.epoch)
                    answer = await work(connection)
                except Exception as error:
                    await self._put_back(pool, connection, error)
                    raise
                except BaseException:
                    # Cancelled in the middle of something: the server rolls back when the connection goes.
                    pool.drop(connection)
                    raise
                pool.give(connection, verb)
                return answer
            except Exception as error:
                self._learn(error)
                failures += 1
                # A race may be lost for as long as a statement may take, counted from the first failure.
                until = until or self._system.monotonic() + self._timeouts.statement
                if not self._is_worth_repeating(error, failures, until, entered=entered):
                    translated = known(self._translated(error), verb, self.where)
                    if translated is error:
                        raise
                    raise translated from error
            await self._system.sleep(_pause(failures) * self._system.random())

    def _is_worth_repeating(self, error: Exception, failures: int, until: float, *, entered: bool) -> bool:
        """True if a verb is to be repeated: a lost race while there is time, a lost connection a few times."""
        if self._is_race(error):
            return self._system.monotonic() < until
        return self._is_lost(error) and not entered and failures < TRIES

    async def _put_back(self, pool: Pool[C], connection: C, error: Exception) -> None:
        """After an error: as it was, or not at all."""
        if not self._is_lost(error) and await self._rolled_back(connection):
            pool.give(connection)
        else:
            pool.drop(connection)
            # A server that went away took all of them with it.
            pool.flush()


def _pause(failures: int) -> float:
    """The longest pause after so many failures in a row, in seconds."""
    return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
