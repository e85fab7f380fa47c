"""The store on PostgreSQL 14 and newer.

A verb is a transaction on one connection, in READ COMMITTED; the hottest are one statement each. One that loses a race or its
connection is run again as a whole, a few times, which every verb allows; after that whoever asked is told that the database is
unavailable. No session state is used. Should a pooler turn out to stand in between, statements are no longer prepared.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar

from perdure.core.errors import StoreError
from perdure.core.model import (
    Claimed,
    ClaimRequest,
    Created,
    Kind,
    Loaded,
    NewMessage,
    NewRun,
    Page,
    Run,
    RunFilter,
    SendOutcome,
    Swept,
    Turn,
    Verdict,
    WorkerInfo,
)
from perdure.core.system import System
from perdure.store import reads, workers
from perdure.store.clock import ServerClock
from perdure.store.dialect import Row, Transaction
from perdure.store.lending import lend
from perdure.store.messages import cancel, send
from perdure.store.pool import Pool, Pools
from perdure.store.postgres import creating, errors, loading, migrating
from perdure.store.postgres.claim import Seen, claim
from perdure.store.postgres.commit import Doubtful, commit
from perdure.store.postgres.dialect import NOW, POSTGRES
from perdure.store.postgres.driver import AlreadyThere, Connection, connect, is_busy, say_goodbye
from perdure.store.postgres.notify import Notices
from perdure.store.postgres.patience import Patience
from perdure.store.postgres.ready import claim_ready
from perdure.store.postgres.simple import commit_simply, is_simple
from perdure.store.postgres.sweep import ANYTHING
from perdure.store.postgres.transaction import PostgresTransaction, Statements
from perdure.store.protocol import Change
from perdure.store.server import PAUSE, TRIES
from perdure.store.sql import SqlStore, Trace
from perdure.store.url import PostgresUrl

T = TypeVar("T")
Body = Callable[[PostgresTransaction], Coroutine[Any, Any, T]]

_OLDEST_SERVER = 14

_BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: Every row that sending touches, parents of those that it may end included. Whoever locks several locks them in this order;
#: otherwise two of them wait for each other until the server notices, a second later.
_LOCK_IN_ORDER = """
SELECT 1
FROM perdure_runs
WHERE id = ANY ($1::text[] || ARRAY(
  SELECT parent_id FROM perdure_runs WHERE id = ANY ($2::text[]) AND parent_id IS NOT NULL
))
ORDER BY id
FOR NO KEY UPDATE
"""

_TIME = f"SELECT {NOW}"

_BEAT = f"""
UPDATE perdure_workers
SET heartbeat_at = COALESCE($2::bigint, {NOW})
WHERE id = $1 AND status = 'alive'
RETURNING heartbeat_at
"""


class PostgresStore(SqlStore):
    """The verbs of `Store` over one PostgreSQL database. `time` replaces the server's clock in tests."""

    def __init__(
        self, url: PostgresUrl, system: System, *, migrate: bool = True, time: Callable[[], int] | None = None
    ) -> None:
        super().__init__(POSTGRES, url.tables, migrate=migrate)
        # What an idle worker costs: two looks in three seconds.
        self.poll_interval = 1.5
        # While the server writes one batch, this process prepares the next; more only makes them smaller.
        self.lanes = 2
        self.where = url.where
        self._url = url
        self._system = system
        self._statements = Statements(url.tables)
        self._clock = ServerClock(system, time)
        self._pools = Pools(system, self._open_connection, say_goodbye, url.pool)
        self._lent = Pools(system, lambda: self._open_connection(lent=True), say_goodbye, url.pool)
        self._prepares = True
        self._patience = Patience()
        self._trace: Trace | None = None
        self._notices = Notices(url.listen, url.tables, system, self._tell)

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed."""
        await super().open()
        self._notices.start()

    async def close(self) -> None:
        """Let go of every connection."""
        if self._process == os.getpid():
            await self._notices.stop()
            self._process = 0
            await self._pools.close()
            await self._lent.close()

    async def changed(self) -> bool:
        """True: it cannot be known without asking, and asking is as dear as claiming."""
        self._check_open()
        return True

    def clock(self) -> int:
        """The server's time as last measured, carried on by the monotonic clock."""
        return self._clock.now()

    async def now(self) -> int:
        """The server's time."""

        async def ask(connection: Connection) -> int:
            asked = self._clock.asking()
            return self._clock.answered(asked, await connection.fetchval(_TIME))

        return await self._with("now", ask)

    async def create(self, runs: Sequence[NewRun], actor: str, *, all_or_none: bool = False) -> builtins.list[Created]:
        """Create runs; in one statement unless one of them is there already."""

        async def quickly(tx: PostgresTransaction) -> builtins.list[Created] | None:
            return await creating.create_new(tx, runs)

        made = await self._at_once("create", actor, quickly)
        return await super().create(runs, actor, all_or_none=all_or_none) if made is None else made

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes, wake who waits and mark who runs."""

        async def body(tx: PostgresTransaction) -> builtins.list[SendOutcome]:
            ends = [message.run_id for message in messages if message.kind is Kind.CANCEL]
            if ends or len(messages) > 1:
                await tx.run(_LOCK_IN_ORDER, [message.run_id for message in messages], ends)
            return await send(tx, messages)

        return await self._transact("send", actor, body)

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Ask a run to stop."""

        async def body(tx: PostgresTransaction) -> SendOutcome:
            await tx.run(_LOCK_IN_ORDER, [run_id], [run_id])
            return await cancel(tx, run_id, reason, key)

        return await self._transact("cancel", actor, body)

    async def register(self, worker: WorkerInfo) -> None:
        """Begin a life, and from now on wait for the server no longer than its lease allows."""
        patience = self._patience.within(worker.lease / 1e6)
        if patience != self._patience:
            self._patience = patience
            self._pools.here().flush()
        await super().register(worker)

    async def heartbeat(self, worker_id: str) -> bool:
        """Renew the worker's one row, by the server's own clock."""

        async def beat(tx: PostgresTransaction) -> bool:
            asked = self._clock.asking()
            rows = await tx.run(_BEAT, worker_id, self._clock.told)
            if rows:
                self._clock.answered(asked, rows[0][0])
            return bool(rows)

        return bool(await self._at_once("heartbeat", worker_id, beat))

    async def sweep(self, limit: int) -> Swept:
        """Declare overdue workers dead and so on; one statement as long as there is nothing to do."""
        self._check_open()
        self._system.crash_point("sweep.enter")
        if await self._with("sweep", self._anything_to_sweep):
            return await self._transact("sweep", "sweep", lambda tx: workers.sweep(tx, limit), entered=True)
        self._pass_by("sweep")
        return Swept(dead_workers=(), released=0, expired=0, more=False)

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Wake what is due, then take ready runs."""
        self._check_open()
        self._system.crash_point("claim.enter")

        async def quickly(tx: PostgresTransaction) -> tuple[Seen, Claimed | None]:
            return await claim_ready(tx, request, self._clock, self._system.entropy)

        one = self._at_once if self._prepares else self._transact
        answer = await one("claim", request.worker, quickly, entered=True)
        assert answer is not None
        seen, claimed = answer
        if claimed is not None:
            return claimed
        return await self._transact(
            "claim", request.worker, lambda tx: claim(tx, request, seen, self._system.entropy), entered=True
        )

    async def load(self, run_ids: Sequence[str]) -> builtins.list[Loaded]:
        """Histories and unread inboxes, as of one moment."""
        return await self._with("load", lambda connection: self._load(connection, run_ids))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """Those of the runs that exist; the statement does not depend on how many are asked for."""
        return await self._read("get_many", lambda tx: loading.runs(tx, run_ids))

    async def list(self, filter: RunFilter, limit: int, cursor: str | None) -> Page:
        """Runs, newest first; of several statuses each by its own index."""
        return await self._read("list", lambda tx: reads.list_runs(tx, filter, limit, cursor, apart=True))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[Verdict]:
        """Make turns durable; in one statement if they reach nobody else."""
        left_out: set[str] | None = None
        if self._prepares and is_simple(turns):
            left_out = await self._at_once("commit", actor, lambda tx: commit_simply(tx, turns))
        if left_out is None:
            return await self._commit(turns, actor)
        if not left_out:
            return [Verdict.APPLIED] * len(turns)
        verdicts = iter(await self._commit([turn for turn in turns if turn.lease.run_id in left_out], actor))
        return [next(verdicts) if turn.lease.run_id in left_out else Verdict.APPLIED for turn in turns]

    async def _commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[Verdict]:
        try:
            verdicts = await self._transact("commit", actor, lambda tx: commit(tx, turns, doubtful=False))
        except Doubtful:
            verdicts = await self._transact("commit", actor, lambda tx: commit(tx, turns, doubtful=True))
        if all(verdict is Verdict.BUSY for verdict in verdicts):
            # Whoever holds the rows needs a moment, and asking again at once would only cost the server.
            await self._system.sleep(PAUSE * self._system.random())
        return verdicts

    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """One SELECT over the tables, called `perdure_…` whatever their prefix, with `?` for parameters. For tests and tools."""
        places = iter(range(1, len(params) + 1))
        text = "".join(f"${next(places)}" if letter == "?" else letter for letter in sql) if params else sql
        return await self._read("query", lambda tx: tx.run(text, *params))

    async def trace(self, callback: Trace | None) -> None:
        """Show every statement to a callback. For tests and tools."""
        self._trace = callback
        self._pools.here().flush()

    def lend(self) -> AbstractAsyncContextManager[Connection]:
        """A connection for a function of the user's."""
        return lend(self._lent, is_busy)

    async def _connect(self) -> None:
        self._process = os.getpid()
        try:
            await self.now()
        except BaseException:
            await self.close()
            raise

    async def _migrate(self, tx: Transaction) -> None:
        assert isinstance(tx, PostgresTransaction)
        await migrating.migrate(tx, self._tables, self._url.schema)

    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        return await self._transact(verb, actor, body)

    async def _read(self, verb: str, body: Body[T]) -> T:
        return await self._with(verb, lambda connection: body(self._transaction(connection, "", locking=False)))

    async def _transact(self, verb: str, actor: str, body: Body[T], *, entered: bool = False) -> T:
        """Run a verb in a transaction of its own. What goes on from an earlier look begins anew should the answer be lost."""
        self._check_open()
        if not entered:
            self._system.crash_point(f"{verb}.enter")

        async def attempt(connection: Connection) -> tuple[T, Change]:
            await connection.execute(self._patience.begin)
            tx = self._transaction(connection, actor, locking=True)
            self._system.crash_point(f"{verb}.begun")
            answer = await body(tx)
            await tx.write_notes()
            self._system.crash_point(f"{verb}.written")
            await connection.execute("COMMIT")
            return answer, tx.stirred

        answer, stirred = await self._with(verb, attempt, entered=entered)
        self._committed(verb, stirred)
        return answer

    async def _at_once(self, verb: str, actor: str, body: Body[T], *, entered: bool = False) -> T | None:
        """Run a verb that is one statement. None: a row was there already, nothing was written, and it takes a transaction."""
        self._check_open()
        if not entered:
            self._system.crash_point(f"{verb}.enter")

        async def attempt(connection: Connection) -> tuple[T | None, Change]:
            tx = self._transaction(connection, actor, locking=True)
            self._system.crash_point(f"{verb}.begun")
            self._system.crash_point(f"{verb}.written")
            try:
                return await body(tx), tx.stirred
            except AlreadyThere:
                return None, Change.NONE

        answer, stirred = await self._with(verb, attempt, entered=entered)
        if answer is not None:
            self._committed(verb, stirred)
        return answer

    def _committed(self, verb: str, stirred: Change) -> None:
        self._system.crash_point(f"{verb}.committed")
        if stirred:
            self._tell(stirred)
            self._notices.say(stirred)

    def _pass_by(self, verb: str) -> None:
        for place in ("begun", "written", "committed"):
            self._system.crash_point(f"{verb}.{place}")

    async def _with(self, verb: str, work: Callable[[Connection], Awaitable[T]], *, entered: bool = False) -> T:
        """Do something on a connection, again and again while that may help."""
        self._check_open()
        for left in range(TRIES - 1, -1, -1):
            try:
                return await self._once(work)
            except errors.ERRORS as error:
                if left and errors.is_pooled(error):
                    self._prepares = False
                    continue
                if not left or not (errors.is_race(error) or (errors.is_lost(error) and not entered)):
                    raise errors.translate(error, self.where) from error
            await self._system.sleep(PAUSE * self._system.random() / (left + 1))
        raise StoreError(f"{self.where}: {verb} was given up without an error. This is a defect in Perdure.")

    async def _once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        pool = self._pools.here()
        connection = await pool.take()
        try:
            answer = await work(connection)
        except Exception as error:
            await self._put_back(pool, connection, broken=errors.is_lost(error))
            raise
        except BaseException:
            # Cancelled in the middle of something: the server rolls back when the connection goes.
            pool.drop(connection)
            raise
        pool.give(connection)
        return answer

    async def _put_back(self, pool: Pool[Connection], connection: Connection, *, broken: bool) -> None:
        if not broken and connection.is_in_transaction():
            with suppress(*errors.ERRORS):
                await connection.execute("ROLLBACK")
        if broken or connection.is_closed() or connection.is_in_transaction():
            pool.drop(connection)
            # A server that went away took all of them with it.
            pool.flush()
        else:
            pool.give(connection)

    async def _open_connection(self, *, lent: bool = False) -> Connection:
        name = self._system.entropy(8).hex()
        connection = await connect(self._url.dsn, name, self._patience, prepares=self._prepares, lent=lent)
        trace = self._trace
        if trace is not None:
            connection.add_query_logger(lambda logged: trace(logged.query))
        if connection.get_server_version().major < _OLDEST_SERVER:
            version = connection.get_server_version().major
            connection.terminate()
            raise StoreError(f"{self.where} is PostgreSQL {version}; Perdure needs {_OLDEST_SERVER} or newer.")
        return connection

    def _transaction(self, connection: Connection, actor: str, *, locking: bool) -> PostgresTransaction:
        return PostgresTransaction(connection, self._statements, self._clock, actor, locking=locking)

    async def _anything_to_sweep(self, connection: Connection) -> bool:
        asked = self._clock.asking()
        tx = self._transaction(connection, "", locking=False)
        [(now, anything)] = await tx.run(ANYTHING, self._clock.told, workers.REMEMBERED)
        self._clock.answered(asked, now)
        return bool(anything)

    async def _load(self, connection: Connection, run_ids: Sequence[str]) -> builtins.list[Loaded]:
        await connection.execute(_BEGIN_SNAPSHOT)
        loaded = await loading.load(self._transaction(connection, "", locking=False), run_ids)
        await connection.execute("COMMIT")
        return loaded
