"""The store on MySQL 8.0.17 and newer and on MariaDB 10.6 and newer.

A verb is a transaction on one connection, in READ COMMITTED. Statements are sent in packets of several, so that the hot
verbs take one or two round trips. The SQL is what both servers understand.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial

from perdure.core.model.claim import ClaimRequest, ClaimResult, LoadedRun
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import CreatedRun, NewRun
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.model.worker_info import SweepResult, WorkerInfo
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.errors import StoreError, StoreUnavailable
from perdure.store import migrations
from perdure.store.contract import Change
from perdure.store.file_watch import Doorbell
from perdure.store.mysql import errors
from perdure.store.mysql.claim import MysqlPreview, claim, preview_claim
from perdure.store.mysql.commit import commit, commit_simply, deliver, is_simple
from perdure.store.mysql.driver import AlreadyThere, MysqlConnection, MysqlConnector
from perdure.store.mysql.errors import ERRORS, is_made
from perdure.store.mysql.runs import create_new_runs, load_runs
from perdure.store.mysql.session import (
    clean_session,
    identity_query,
    parse_identity,
    prepare_lending,
    server_name,
    set_up_session,
)
from perdure.store.mysql.transaction import MysqlTransaction, Sql, StatementTemplates, sql_list
from perdure.store.server.identity import ServerReplaced
from perdure.store.server.pool import LoopPools, lend
from perdure.store.server.store import ServerStore
from perdure.store.sql import workers
from perdure.store.sql.dialect import MYSQL, Row, Transaction
from perdure.store.sql.pauses import unpaused
from perdure.store.sql.runs.create import is_single
from perdure.store.sql.runs.observers import UNSEEN
from perdure.store.sql.runs.waiters import UNTOLD
from perdure.store.sql.turn import Fence
from perdure.store.url import MysqlUrl

#: Tells whether there is anything to sweep, in one cheap statement. DISTINCT skips along the index, so that the cost
#: is one read per worker and not one per run.
SWEEP_PREVIEW = f"""
SELECT :now,
  EXISTS (SELECT 1 FROM perdure_workers WHERE status = 'alive' AND heartbeat_at + lease < :now)
  OR EXISTS (SELECT 1 FROM perdure_workers WHERE status <> 'alive' AND heartbeat_at < :now - :remembered)
  OR EXISTS (
    SELECT 1 FROM perdure_runs
    WHERE finished_at = 0 AND status IN ('pending', 'waiting') AND deadline < {NEVER} AND deadline <= :now
  )
  OR EXISTS (SELECT 1 FROM perdure_singletons) OR EXISTS (SELECT 1 FROM perdure_successors)
  OR {UNTOLD} OR {UNSEEN}
  OR EXISTS (
    SELECT 1
    FROM (SELECT DISTINCT worker FROM perdure_runs WHERE status = 'running') holder
    LEFT JOIN perdure_workers w ON w.id = holder.worker AND w.status = 'alive'
    WHERE w.id IS NULL AND EXISTS (
      SELECT 1 FROM perdure_runs r FORCE INDEX (perdure_runs_held)
      WHERE r.status = 'running' AND r.worker = holder.worker AND r.lease_until <= :now
    )
  ),
  ({workers.LEASE_ENDS.format(now=":now")}) - :now
"""


#: Every row that sending touches, including parents of runs that it may end. All transactions that wait for several
#: locks take them in the order of ids; otherwise two of them would deadlock.
_PARENTS = "SELECT parent_id FROM perdure_runs WHERE id IN (:ids) AND parent_id IS NOT NULL"
_LOCK_IN_ORDER = "SELECT 1 FROM perdure_runs FORCE INDEX (PRIMARY) WHERE id IN (:ids) ORDER BY id FOR UPDATE"

#: LAST_INSERT_ID makes the server return twice the time that it wrote, and 1 more if the worker is ordered to drain.
#: The time of a statement is that of its beginning: one that was overtaken must not set the row back.
_BEAT = """
UPDATE perdure_workers
SET
  heartbeat_at = LAST_INSERT_ID(
    2 * IF(heartbeat_at BETWEEN :now AND :now + lease, heartbeat_at, :now) + (drain <> '')
  ) DIV 2,
  running = :running
WHERE id = :id AND status = 'alive' AND heartbeat_at >= :last AND :who <=> :server
"""


#: Seconds before a cancellation that the driver may have swallowed is repeated.
_CANCEL_AGAIN = 0.05


class MysqlStore(ServerStore[MysqlConnection, MysqlTransaction]):
    """The `Store` over one MySQL or MariaDB database. `time` replaces the server's clock in tests."""

    def __init__(
        self, url: MysqlUrl, system: System, *, migrate: bool = True, time: Callable[[], int] | None = None
    ) -> None:
        super().__init__(MYSQL, url.prefix, system, migrate=migrate, audit=url.audit, pool=url.pool, time=time)
        # While the server writes one batch, this process prepares the next.
        self.lanes = 2
        self.where = url.where
        self._database = url.database
        self._connector = MysqlConnector(url)
        self._templates = StatementTemplates(url.prefix)
        self._doorbell: Doorbell | None = None
        #: True: several servers of a cluster accept writes.
        self._clustered = False
        #: The paused types and queues that the last preview found.
        self._paused: frozenset[tuple[str, str]] = frozenset()
        self._lent = LoopPools(system, self._open_lent, MysqlConnection.close_gracefully, url.pool, self._is_current)

    async def close(self) -> None:
        """Close every connection."""
        await super().close()
        if self._doorbell is not None:
            self._doorbell.close()
            self._doorbell = None

    async def poll_changes(self, *, watch: bool = True) -> bool:
        """True: only a query can tell. With `watch`, commits of other processes of this machine are then heard of."""
        if watch:
            self._bell().hear()
        return await super().poll_changes(watch=watch)

    def _announce(self, change: int) -> None:
        self._bell().ring()

    def _bell(self) -> Doorbell:
        if self._doorbell is None:
            # Processes may have different URLs of one server, so it names itself.
            name = f"{self._tracker.server or self.where} {self._database} {self._tables}"
            self._doorbell = Doorbell(name, self._system, lambda: self._tell(Change.ALL))
        return self._doorbell

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[object]:
        """Lend a connection to a function of the user."""
        async with self._lend(None) as connection:
            yield connection.driver

    @asynccontextmanager
    async def _lend_to(self, worker: str) -> AsyncGenerator[object]:
        async with self._lend(partial(self._tracker.check, worker)) as connection:
            yield connection.driver

    def _lend(self, check: Callable[[int], object] | None) -> AbstractAsyncContextManager[MysqlConnection]:
        return lend(
            self._lent,
            lambda connection: None,
            MysqlConnection.is_left_clean,
            clean=lambda connection: clean_session(connection, self._database),
            check=check,
        )

    def _fence(self, worker: str) -> Fence:
        return Fence(written=self._clustered)

    async def now(self) -> int:
        """Return the server's time."""

        async def ask(tx: MysqlTransaction) -> int:
            asked = self._clock.start_measurement()
            [answer] = await tx.send(f"SELECT {MYSQL.time}")
            return self._clock.finish_measurement(asked, answer.rows[0][0])

        return await self._read("now", ask)

    async def create(
        self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False
    ) -> builtins.list[CreatedRun]:
        """Create runs; in one round trip unless one of them exists."""

        async def quickly(tx: MysqlTransaction) -> builtins.list[CreatedRun] | None:
            try:
                return await create_new_runs(tx, runs)
            except AlreadyThere as error:
                await self._roll_back(tx.connection, error)
                return None

        alone = any(new.attributes or is_single(new) for new in runs)
        made = None if alone else await self._at_once("create", actor, quickly)
        return await super().create(runs, actor, all_or_none=all_or_none) if made is None else made

    async def _beat(
        self, tx: MysqlTransaction, worker_id: str, last: int, running: str | None
    ) -> tuple[int, bool] | None:
        """Write a heartbeat with the server's time, unless a proxy leads to another server than before."""
        clustered = tx.connection.clustered
        server = None if clustered else self._tracker.server
        who = Sql("NULL") if server is None else server_name(tx.connection)
        since = 0 if clustered else last
        beat = tx.fill(_BEAT, id=worker_id, now=self._time(), last=since, who=who, server=server, running=running)
        [answer] = await tx.send(beat)
        if answer.count:
            # A server of a cluster may lag behind what another one has acknowledged.
            beat_at, draining = divmod(answer.last_insert_id, 2)
            return 0 if clustered else beat_at, bool(draining)
        if not clustered:
            known = self._tracker.snapshot()
            [answer] = await tx.send(identity_query(tx.connection))
            self._tracker.record(parse_identity(answer.rows[0]), known)
        return None

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Make due runs ready, then claim ready runs."""
        self._check_open()
        self._pass_crash_point("claim.enter")
        preview, request = await self._preview(request)
        if preview.nothing:
            self._pass_by("claim")
            return preview.empty_handed()
        return await self._transact(
            "claim", request.worker, lambda tx: claim(tx, request, preview, self._system.entropy), entered=True
        )

    async def _preview(self, request: ClaimRequest) -> tuple[MysqlPreview, ClaimRequest]:
        """Preview a claim; return the preview and the request without paused types and queues.

        The preview assumes what the last one found paused, so that one query is mostly enough.
        """
        wanted = unpaused(request, self._paused)
        preview = await self._read("claim", lambda tx: self._preview_once(tx, wanted))
        if preview.paused != self._paused:
            self._paused = preview.paused
            wanted = unpaused(request, preview.paused)
            preview = await self._read("claim", lambda tx: self._preview_once(tx, wanted))
        return preview, wanted

    async def sweep(self, limit: int) -> SweepResult:
        """Declare workers dead, reclaim their runs and so on; one statement as long as there is nothing to do."""
        self._check_open()
        self._pass_crash_point("sweep.enter")
        anything, lease_ends_in = await self._read("sweep", self._prepare_sweep)
        if anything:
            return await self._transact("sweep", "sweep", lambda tx: workers.sweep(tx, limit), entered=True)
        self._pass_by("sweep")
        return SweepResult(dead_workers=(), released=0, expired=0, more=False, lease_ends_in=lease_ends_in)

    async def load(self, run_ids: Sequence[str]) -> builtins.list[LoadedRun]:
        """Load runs with their histories and unread messages from one snapshot."""
        return await self._read("load", lambda tx: load_runs(tx, run_ids, self.inbox_page))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Commit turns; in one round trip if they touch no other run."""
        try:
            return await self._commit_turns(turns, actor)
        except ServerReplaced:
            return [TurnOutcome.LOST] * len(turns)

    async def _commit_turns(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        if is_simple(turns):
            written = await self._at_once("commit", actor, lambda tx: self._commit_simply(tx, turns))
            if written is not None:
                return written
        return await self._commit(turns, actor)

    async def _commit_simply(self, tx: MysqlTransaction, turns: Sequence[Turn]) -> builtins.list[TurnOutcome] | None:
        try:
            written = await commit_simply(tx, turns)
        except errors.ERRORS as error:
            if not errors.is_refusal(error):
                raise
            await self._roll_back(tx.connection, error)
            written = False
        return [TurnOutcome.APPLIED] * len(turns) if written else None

    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """Run a SELECT with `?` parameters over tables called `perdure_…`, whatever their prefix.

        For tests and tools.
        """
        pieces = sql.split("?") if params else [sql]
        named = "".join(f"{piece}:p{place} " for place, piece in enumerate(pieces[:-1])) + pieces[-1]
        values = {f"p{place}": value for place, value in enumerate(params)}
        return await self._read("query", lambda tx: tx.fetch(named, values))

    async def _register(self, tx: MysqlTransaction, worker: WorkerInfo) -> None:
        try:
            await workers.register(tx, worker)
        except AlreadyThere:
            # An earlier attempt of the same request has registered it.
            return

    async def _open_connection(self) -> MysqlConnection:
        # The driver may swallow a cancellation while it connects, so it is shielded from ours.
        opening = self._system.spawn(self._opened(), "perdure connecting")
        try:
            # The driver's own timeout ends when the socket is connected, even if the server never answers.
            async with asyncio.timeout(self._timeouts.connect):
                return await asyncio.shield(opening)
        except (asyncio.CancelledError, TimeoutError):
            opening.add_done_callback(_let_go)
            self._cancel(opening)
            raise

    def _cancel(self, opening: asyncio.Task[MysqlConnection]) -> None:
        """Cancel an opening again until it ends; a silent server would keep it, and its socket, for ever."""
        if not opening.done():
            opening.cancel()
            self._system.call_later(_CANCEL_AGAIN, lambda: self._cancel(opening))

    async def _opened(self) -> MysqlConnection:
        connection = await self._connector.connect(self._timeouts)
        connection.trace = self._trace
        try:
            known = self._tracker.snapshot()
            connection.epoch = self._tracker.record(await set_up_session(connection, self.where), known)
            self._clustered |= connection.clustered
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _open_lent(self) -> MysqlConnection:
        connection = await self._open_connection()
        try:
            await prepare_lending(connection)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _say_goodbye(self, connection: MysqlConnection) -> None:
        await connection.close_gracefully()

    def _transaction(self, connection: MysqlConnection, actor: str, *, locking: bool) -> MysqlTransaction:
        return MysqlTransaction(
            connection,
            self._templates,
            self._clock,
            actor,
            self.audit,
            locking=locking,
            has_observers=self._has_observers,
        )

    async def _begin(self, tx: MysqlTransaction) -> None:
        tx.begin()

    async def _end(self, tx: MysqlTransaction) -> None:
        tx.write_notes()
        await tx.commit()

    async def _roll_back(self, connection: MysqlConnection, error: Exception) -> None:
        """Roll back a transaction after an error. A connection on which that fails counts as lost."""
        if not await self._rolled_back(connection):
            raise ConnectionError(f"{self.where}: a connection was lost during ROLLBACK") from error

    async def _rolled_back(self, connection: MysqlConnection) -> bool:
        if connection.in_transaction and not connection.is_closed():
            try:
                await connection.send(["ROLLBACK"])
                connection.in_transaction = False
            except errors.ERRORS:
                return False
        return not connection.is_closed()

    def _is_race(self, error: Exception) -> bool:
        return errors.is_race(error)

    def _is_lost(self, error: Exception) -> bool:
        return errors.is_lost(error)

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, StoreError) or not isinstance(error, errors.ERRORS):
            return error
        return errors.translate(error, self.where)

    async def _migrate(self, tx: Transaction) -> None:
        assert isinstance(tx, MysqlTransaction)
        await migrate(tx, self._tables, self._system)

    def _time(self) -> Sql | int:
        """Return the time for a statement: the server's clock, or the time of a test."""
        told = self._clock.told
        return Sql(MYSQL.time) if told is None else told

    async def _preview_once(self, tx: MysqlTransaction, request: ClaimRequest) -> MysqlPreview:
        asked = self._clock.start_measurement()
        preview = await preview_claim(tx, request, self._time(), self._clock.now())
        return preview.at(self._clock.finish_measurement(asked, preview.now))

    async def _lock_in_order(self, tx: MysqlTransaction, run_ids: Sequence[str], ends: Sequence[str]) -> None:
        parents: builtins.list[str] = []
        if ends:
            [answer] = await tx.send(tx.fill(_PARENTS, ids=sql_list(ends)))
            parents = [row[0] for row in answer.rows]
        await tx.send(tx.fill(_LOCK_IN_ORDER, ids=sql_list([*run_ids, *parents])))
        tx.locked()

    async def _deliver(self, tx: MysqlTransaction, messages: Sequence[NewMessage]) -> builtins.list[SendOutcome]:
        return await deliver(tx, messages)

    async def _commit_in(
        self, tx: MysqlTransaction, turns: Sequence[Turn], *, doubtful: bool
    ) -> builtins.list[TurnOutcome]:
        return await commit(tx, turns, doubtful=doubtful)

    async def _prepare_sweep(self, tx: MysqlTransaction) -> tuple[bool, int | None]:
        """Tell whether a sweep would find something, and in how many microseconds the next lease ends."""
        asked = self._clock.start_measurement()
        [answer] = await tx.send(tx.fill(SWEEP_PREVIEW, now=self._time(), remembered=workers.REMEMBERED))
        [(now, anything, lease_ends_in)] = answer.rows
        self._clock.finish_measurement(asked, now)
        return bool(anything), lease_ends_in


def _let_go(opening: asyncio.Task[MysqlConnection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()


#: Seconds to wait for another process; microseconds until the row expires; and how often to check the row.
_PATIENCE = 10
_EXPIRES = 10_000_000
_TRIES = 60
_PAUSE = 0.2

_LOCK = "SELECT GET_LOCK(CONCAT('perdure ', LEFT(SHA2(CONCAT(DATABASE(), :tables), 256), 40)), :patience)"
_UNLOCK = "DO RELEASE_LOCK(CONCAT('perdure ', LEFT(SHA2(CONCAT(DATABASE(), :tables), 256), 40)))"

_TAKE = """
INSERT INTO perdure_migrations (version, name, checksum, applied_at)
VALUES (:version, 'in progress', :nonce, :expires)
"""

_TAKE_OVER = """
UPDATE perdure_migrations
SET checksum = :nonce, applied_at = :expires
WHERE version = :version AND applied_at < :now
"""

_GIVE_BACK = "DELETE FROM perdure_migrations WHERE version = :version AND checksum = :nonce"


async def migrate(tx: MysqlTransaction, tables: str, system: System) -> None:
    """Apply the missing migrations. Raises `StoreUnavailable` if another process takes too long.

    Every DDL statement commits by itself, so each statement of the files can be run again after a crash. One process at
    a time migrates: a lock of the server keeps the others out, and so does a row that expires, because in a cluster the
    lock is local to one node.
    """
    nonce = system.entropy(16).hex()
    [answer] = await tx.send(tx.fill(_LOCK, tables=tables, patience=_PATIENCE))
    try:
        if answer.rows[0][0] != 1:
            raise StoreUnavailable("another process migrates this database; try again when it is done")
        await tx.execute(migrations.TABLE, {})
        await _take(tx, nonce, system)
        await migrations.migrate(tx, MYSQL, is_made)
        await tx.execute(_GIVE_BACK, {"version": migrations.IN_PROGRESS, "nonce": nonce})
    except Exception:
        # Keep the error that stopped the migration. A lost or dropped connection releases its lock.
        with suppress(*ERRORS):
            await tx.send(tx.fill(_UNLOCK, tables=tables))
        raise
    await tx.send(tx.fill(_UNLOCK, tables=tables))


async def _take(tx: MysqlTransaction, nonce: str, system: System) -> None:
    # The row of a process that was killed in the middle stays in the way until it expires.
    for _ in range(_TRIES):
        row = {"version": migrations.IN_PROGRESS, "nonce": nonce, "now": tx.now, "expires": tx.now + _EXPIRES}
        try:
            await tx.execute(_TAKE, row)
            return
        except AlreadyThere:
            if await tx.execute(_TAKE_OVER, row) == 1:
                return
        await system.sleep(_PAUSE)
        tx.locked()
    raise StoreUnavailable("another process migrates this database and does not finish; check whether it still runs")
