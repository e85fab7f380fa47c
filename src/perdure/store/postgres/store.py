"""The store on PostgreSQL 14 and newer.

A verb is a transaction on one connection, in READ COMMITTED; the hottest verbs are one statement each. A verb that
loses a race or its connection is run again as a whole, a few times, which every verb allows; after that the caller
gets `StoreUnavailable`. No session state is used. If a pooler turns out to be in between, statements are no longer
prepared.
"""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from msgspec import structs

from perdure.core.model.claim import ClaimRequest, ClaimResult, LoadedRun
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import CreatedRun, NewRun, Run
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.model.worker_info import SweepResult, WorkerInfo
from perdure.core.routing import TypeInfo
from perdure.core.system import System
from perdure.errors import StoreError, UsageError
from perdure.store import migrations
from perdure.store.contract import Listener
from perdure.store.postgres import errors
from perdure.store.postgres.claim import PostgresPreview, claim, claim_ready
from perdure.store.postgres.commit import append_records, commit, commit_simply, deliver, is_simple, only_append
from perdure.store.postgres.driver import (
    AlreadyThere,
    PostgresConnection,
    close_gracefully,
    connect,
    is_left_clean,
    start_lending,
)
from perdure.store.postgres.notify import Notifier
from perdure.store.postgres.runs import create_new_runs, get_runs, load_runs
from perdure.store.postgres.session import (
    NOTHING_KNOWN,
    TIMELINE,
    ServerSession,
    end_abandoned,
    fence,
    on_timeline,
    read_identity,
    session_name,
    timeline_of,
)
from perdure.store.postgres.sweep import SweepPreview, merge_swept, preview_sweep, reclaim_runs
from perdure.store.postgres.transaction import PostgresTransaction, StatementCache, begin
from perdure.store.server.identity import IdentitySnapshot, ServerReplaced
from perdure.store.server.pool import LoopPools, lend
from perdure.store.server.store import ServerStore
from perdure.store.sql import workers
from perdure.store.sql.dialect import POSTGRES, Row, Transaction
from perdure.store.sql.runs.create import is_single
from perdure.store.sql.turn import NO_FENCE, Fence
from perdure.store.url import PostgresUrl

T = TypeVar("T")
Body = Callable[[PostgresTransaction], Coroutine[Any, Any, T]]

_log = logging.getLogger("perdure.store")

_OLDEST_SERVER = 14

_NOTHING = SweepResult(dead_workers=(), released=0, expired=0, more=False)

_BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: Locks every row that sending touches, including parents of runs that it may end. All transactions that lock several
#: rows use the order of ids; otherwise two of them would deadlock, which the server notices after a second.
_LOCK_IN_ORDER = """
SELECT 1
FROM perdure_runs
WHERE id = ANY ($1::text[] || ARRAY(
  SELECT parent_id FROM perdure_runs WHERE id = ANY ($2::text[]) AND parent_id IS NOT NULL
))
ORDER BY id
FOR NO KEY UPDATE
"""

#: Of the runs' table, because the trigger that announces for other programs knows nothing else.
_CHANNEL = "'perdure_' || CAST('perdure_runs' AS regclass)::oid"
_NOTIFY = f"SELECT pg_notify({_CHANNEL}, $1)"

_TIME = f"SELECT {POSTGRES.time}"

_BEAT = f"""
UPDATE perdure_workers
SET heartbeat_at = COALESCE($2::bigint, {POSTGRES.time}), running = $4::text
WHERE id = $1 AND status = 'alive' AND heartbeat_at >= $3::bigint
RETURNING heartbeat_at, drain <> '', {{told}}
"""
_BEATS = {True: _BEAT.format(told=TIMELINE), False: _BEAT.format(told="''")}


class PostgresStore(ServerStore[PostgresConnection, PostgresTransaction]):
    """The `Store` over one PostgreSQL database. `time` replaces the server's clock in tests."""

    def __init__(
        self, url: PostgresUrl, system: System, *, migrate: bool = True, time: Callable[[], int] | None = None
    ) -> None:
        super().__init__(POSTGRES, url.tables, system, migrate=migrate, audit=url.audit, pool=url.pool, time=time)
        if url.authority_file and not os.access(url.authority_file, os.R_OK):
            # The driver's own error would not name it.
            raise UsageError(f"sslrootcert of the database URL names {url.authority_file}, which cannot be read")
        # While the server writes one batch, this process prepares the next; more lanes only make batches smaller.
        self.lanes = 2
        self.where = url.where
        self._url = url
        self._statements = StatementCache(url.tables)
        self._lent = LoopPools(
            system, lambda: self._open_connection(lent=True), close_gracefully, url.pool, self._is_current
        )
        #: Behind a pooler, the timeline that every statement checks that proves a lease; else empty.
        self._fenced = ""
        self._prepares = True
        self._notifier = Notifier(url, system, self._tell, self._notify, self._read_channel)
        self._warned = False

    async def open(self) -> None:
        """Connect, check versions and settings, and apply migrations if allowed."""
        await super().open()
        self._notifier.start()

    async def close(self) -> None:
        """Close every connection."""
        if self._process == os.getpid():
            await self._notifier.stop()
            await super().close()

    announces = True

    @property
    def is_notified(self) -> bool:
        """True while notifications arrive."""
        return self._notifier.arrives

    def _announce(self, change: int) -> None:
        self._notifier.announce(change)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call the listener after changes made through this object, or announced by other processes."""
        unsubscribe = super().subscribe(listener)
        self._notifier.listen()
        return unsubscribe

    async def _notify(self, payload: str) -> None:
        statement = self._statements.plain(_NOTIFY)
        await self._with("notify", lambda connection: connection.execute(statement, payload))

    async def _read_channel(self) -> str:
        statement = self._statements.plain(f"SELECT {_CHANNEL}")
        channel: str = await self._with("notify", lambda connection: connection.fetchval(statement))
        return channel

    def _after_fork_in_child(self) -> None:
        super()._after_fork_in_child()
        self._notifier.silence()

    async def now(self) -> int:
        """Return the server's time."""

        async def ask(connection: PostgresConnection) -> int:
            asked = self._clock.start_measurement()
            return self._clock.finish_measurement(asked, await connection.fetchval(_TIME))

        return await self._with("now", ask)

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """Create runs; in one statement unless one of them exists."""

        async def quickly(tx: PostgresTransaction) -> builtins.list[CreatedRun] | None:
            try:
                return await create_new_runs(tx, runs)
            except AlreadyThere:
                return None

        alone = any(new.attributes or is_single(new) for new in runs)
        made = None if alone else await self._at_once("create", actor, quickly)
        return await super().create(runs, actor, all_or_none=all_or_none) if made is None else made

    async def register(self, worker: WorkerInfo, serves: Sequence[TypeInfo] = ()) -> tuple[str, ...]:
        """Register a worker; warn once if the server need not prove its identity."""
        if self._url.is_unverified and not self._warned:
            self._warned = True
            _log.warning(
                "%s is on another machine and its certificate is not verified, so a program in between could read the "
                "password and every run; add sslmode=verify-full to the URL, and sslrootcert=FILE if the certificate "
                "was issued by an authority of your own",
                self.where,
            )
        return await super().register(worker, serves)

    async def _beat(
        self, tx: PostgresTransaction, worker_id: str, last: int, running: str | None
    ) -> tuple[int, bool] | None:
        """Write a heartbeat with the time of the server's clock."""
        asked, fenced = self._clock.start_measurement(), self._fenced
        rows = await tx.run(_BEATS[bool(fenced)], worker_id, self._clock.told, last, running)
        if not rows:
            return None
        [(beat, draining, timeline)] = rows
        self._clock.finish_measurement(asked, beat)
        if timeline != fenced:
            self._moved(timeline)
            return None
        return int(beat), bool(draining)

    def _moved(self, timeline: str) -> None:
        """Record that a pooler leads to another server than before."""
        self._tracker.record(on_timeline(self._tracker.server, timeline), NOTHING_KNOWN)

    async def _held_up(self) -> None:
        """Check the timeline if every row is busy: a pooler may lead to another server, on which no lease holds."""
        if fenced := self._fenced:
            timeline = await self._with("commit", lambda connection: connection.fetchval(f"SELECT {TIMELINE}"))
            if timeline != fenced:
                self._moved(timeline)

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Make due runs ready, then claim ready runs."""
        self._check_open()
        self._pass_crash_point("claim.enter")

        async def quickly(tx: PostgresTransaction) -> tuple[PostgresPreview, ClaimResult | None]:
            return await claim_ready(tx, request, self._clock, self._system.entropy)

        one = self._at_once if self._prepares else self._transact
        answer = await one("claim", request.worker, quickly, entered=True)
        assert answer is not None
        preview, claimed = answer
        self._notifier.workers = len(preview.alive)
        if claimed is not None:
            return claimed
        return await self._transact(
            "claim", request.worker, lambda tx: claim(tx, request, preview, self._system.entropy), entered=True
        )

    async def sweep(self, limit: int) -> SweepResult:
        """Declare workers dead and reclaim their runs in one statement; a transaction does the rest if there is any."""
        self._check_open()
        self._pass_crash_point("sweep.enter")
        preview = await self._read("sweep", self._prepare_sweep)
        swept, rest = _NOTHING, preview.rest
        if preview.orphans:
            one = self._at_once if self._prepares else self._transact
            buried = await one("sweep", "sweep", lambda tx: reclaim_runs(tx, limit, self._clock), entered=True)
            assert buried is not None
            swept, poison = buried
            rest = rest or poison
        if rest:
            others = await self._transact("sweep", "sweep", lambda tx: workers.sweep(tx, limit), entered=True)
            swept = merge_swept(swept, others)
        elif not preview.orphans:
            self._pass_by("sweep")
        return structs.replace(swept, lease_ends_in=preview.lease_ends_in)

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Load runs with their histories and unread messages from one snapshot."""
        return await self._with("load", lambda connection: self._load(connection, run_ids))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """Return those of the runs that exist, with one statement for any number of ids."""
        return await self._read("get_many", lambda tx: get_runs(tx, run_ids))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Commit turns; in one statement if they touch no other run."""
        try:
            return await self._commit_turns(turns, actor)
        except ServerReplaced:
            return [TurnOutcome.LOST] * len(turns)

    async def _commit_turns(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        left_out: set[str] | None = None
        if self._prepares and is_simple(turns):
            if only_append(turns):
                left_out = await self._append(turns, actor)
            else:
                left_out = await self._at_once("commit", actor, lambda tx: _commit_simply(tx, turns))
        if left_out is None:
            return await self._commit(turns, actor)
        if not left_out:
            return [TurnOutcome.APPLIED] * len(turns)
        verdicts = iter(await self._commit([turn for turn in turns if turn.lease.run_id in left_out], actor))
        return [next(verdicts) if turn.lease.run_id in left_out else TurnOutcome.APPLIED for turn in turns]

    async def _append(self, turns: Sequence[Turn], actor: str) -> set[str] | None:
        """Append records without a transaction, as `_at_once` does but in fewer calls: each step waits for this."""
        passes = self._pass_crash_point
        passes("commit.enter")

        async def attempt(connection: PostgresConnection) -> set[str] | None:
            passes("commit.begun")
            passes("commit.written")
            try:
                return await append_records(connection, self._statements, turns)
            except AlreadyThere:
                return None

        left_out = await self._with("commit", attempt, life=actor)
        if left_out is not None:
            passes("commit.committed")
        return left_out

    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """Run a SELECT with `?` parameters over tables called `perdure_…`, whatever their prefix.

        For tests and tools.
        """
        places = iter(range(1, len(params) + 1))
        text = "".join(f"${next(places)}" if letter == "?" else letter for letter in sql) if params else sql
        return await self._read("query", lambda tx: tx.run(text, *params))

    def lend(self) -> AbstractAsyncContextManager[PostgresConnection]:
        """Lend a connection to a function of the user."""
        return lend(self._lent, start_lending, is_left_clean)

    def _lend_to(self, worker: str) -> AbstractAsyncContextManager[PostgresConnection]:
        return lend(self._lent, start_lending, is_left_clean, check=lambda epoch: self._tracker.check(worker, epoch))

    def _fence(self, worker: str) -> Fence:
        life = self._tracker.registration(worker)
        return Fence(fence(timeline_of(life.server))) if life is not None and life.server is not None else NO_FENCE

    async def _migrate(self, tx: Transaction) -> None:
        assert isinstance(tx, PostgresTransaction)
        await migrate(tx, self._tables, self._url.schema)

    async def _open_connection(self, *, lent: bool = False) -> PostgresConnection:
        unique, called = self._system.entropy(8).hex(), session_name(self._url.called, announces=not lent)
        connection = await connect(
            self._url.dsn, unique, self._timeouts, called=called, prepares=self._prepares, lent=lent
        )
        if not lent:
            # A worker with a shorter lease may have registered meanwhile.
            connection.limit(self._timeouts.statement)
        if connection.get_server_version().major < _OLDEST_SERVER:
            version = connection.get_server_version().major
            connection.terminate()
            raise StoreError(f"{self.where} is PostgreSQL {version}; Perdure needs {_OLDEST_SERVER} or newer")
        known = self._tracker.snapshot()
        try:
            self._met(connection, await read_identity(connection), known)
        except BaseException:
            connection.terminate()
            raise
        trace = self._trace
        if trace is not None:
            connection.add_query_logger(lambda logged: trace(logged.query))
        return connection

    def _met(self, connection: PostgresConnection, session: ServerSession, known: IdentitySnapshot) -> None:
        """Record the server's identity; behind a pooler, have each commit check it."""
        connection.epoch = self._tracker.record(session.who, known)
        connection.is_pooled = session.pooled
        fenced = session.timeline if session.pooled else ""
        if fenced != self._fenced:
            self._fenced = fenced
            self._statements = StatementCache(self._url.tables, fence(fenced) if fenced else "")

    def _limit_connections(self) -> None:
        # Each transaction sets its limits on the server, so that open connections can stay.
        for connection in self._pools.here().opened():
            connection.limit(self._timeouts.statement)

    async def _say_goodbye(self, connection: PostgresConnection) -> None:
        await close_gracefully(connection)

    async def _begin(self, tx: PostgresTransaction) -> None:
        await tx.connection.execute(begin(self._timeouts))

    def _limit(self) -> str:
        # A worker that has stopped is declared dead, but without this its locks would last as long as its socket.
        return f"SET LOCAL idle_in_transaction_session_timeout = {int(1250 * self._timeouts.statement)}"

    async def _end(self, tx: PostgresTransaction) -> None:
        await tx.write_notes()
        await tx.connection.execute("COMMIT")

    async def _rolled_back(self, connection: PostgresConnection) -> bool:
        if connection.is_in_transaction():
            with suppress(*errors.ERRORS):
                await connection.execute("ROLLBACK")
        return not connection.is_closed() and not connection.is_in_transaction()

    def _learn(self, error: Exception) -> None:
        if errors.is_pooled(error):
            self._prepares = False

    def _is_race(self, error: Exception) -> bool:
        # Nothing was executed of a statement that a pooler refused.
        return errors.is_race(error) or errors.is_pooled(error)

    def _is_lost(self, error: Exception) -> bool:
        return errors.is_lost(error)

    def _translated(self, error: Exception) -> Exception:
        return errors.translate(error, self.where) if isinstance(error, errors.ERRORS) else error

    def _transaction(self, connection: PostgresConnection, actor: str, *, locking: bool) -> PostgresTransaction:
        return PostgresTransaction(
            connection,
            self._statements,
            self._clock,
            actor,
            self.audit,
            locking=locking,
            has_observers=self._has_observers,
        )

    async def _lock_in_order(self, tx: PostgresTransaction, run_ids: Sequence[str], ends: Sequence[str]) -> None:
        await tx.run(_LOCK_IN_ORDER, list(run_ids), list(ends))

    async def _deliver(self, tx: PostgresTransaction, messages: Sequence[NewMessage]) -> builtins.list[SendOutcome]:
        return await deliver(tx, messages)

    async def _commit_in(
        self, tx: PostgresTransaction, turns: Sequence[Turn], *, doubtful: bool
    ) -> builtins.list[TurnOutcome]:
        return await commit(tx, turns, doubtful=doubtful)

    async def _prepare_sweep(self, tx: PostgresTransaction) -> SweepPreview:
        """Read what there is to sweep, and end sessions in which overdue workers have left rows locked."""
        preview = await preview_sweep(tx, self._clock)
        if preview.orphans or preview.rest or preview.deaths:
            await end_abandoned(tx, self._timeouts.statement)
        return preview

    async def _load(self, connection: PostgresConnection, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        await connection.execute(_BEGIN_SNAPSHOT)
        loaded = await load_runs(self._transaction(connection, "", locking=False), run_ids, self.inbox_page)
        await connection.execute("COMMIT")
        return loaded


async def _commit_simply(tx: PostgresTransaction, turns: Sequence[Turn]) -> set[str] | None:
    try:
        return await commit_simply(tx, turns)
    except AlreadyThere:
        return None


#: Seconds that a statement, or the migration of another process, may take.
_PATIENCE = 3600.0

#: A client that is idle between two statements has stopped, and every other client waits for it.
_WAIT = (
    "SET LOCAL lock_timeout = 0; SET LOCAL statement_timeout = 0; "
    "SET LOCAL idle_in_transaction_session_timeout = '1min'"
)
#: The number is arbitrary; it must never change.
_LOCK = "SELECT pg_advisory_xact_lock(1885697124, hashtext($1))"
_HURRY = "SET LOCAL lock_timeout = '2s'"
#: Read from the catalog: the caches of a session that waited for the lock may not know the new schema yet.
_SCHEMA_EXISTS = "SELECT 1 FROM pg_namespace WHERE nspname = $1"


async def migrate(tx: PostgresTransaction, tables: str, schema: str | None) -> None:
    """Apply the missing migrations, in one transaction and by one process at a time.

    A process waits for the migration of another one as long as that takes, and a statement may take long on a large
    table. The wait for a table lock is short, because all other users of the table would queue up behind it; the
    transaction is retried instead.
    """
    tx.patience = _PATIENCE
    await tx.connection.execute(_WAIT)
    await tx.connection.execute(_LOCK, tables, timeout=_PATIENCE)
    await tx.connection.execute(_HURRY)
    if schema is not None and not await tx.run(_SCHEMA_EXISTS, schema):
        await tx.connection.execute(f'CREATE SCHEMA "{schema}"')
    await migrations.migrate(tx, POSTGRES)
