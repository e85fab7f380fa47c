"""The store on SQLite: one writer and a few readers, each on a lane of its own.

A database in memory, and one that is driven inline, has one connection for all. Heartbeats go before whatever else waits
for the writer. A process that was forked from the one that opened the store must open its own.
"""

from __future__ import annotations

import builtins
import logging
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from perdure.core.errors import EngineClosed, SchemaMismatch
from perdure.core.model import (
    Claimed,
    ClaimRequest,
    Created,
    Event,
    Lease,
    Loaded,
    Message,
    NewMessage,
    NewRun,
    Page,
    Record,
    Run,
    RunFilter,
    SendOutcome,
    Swept,
    Turn,
    Verdict,
    WorkerInfo,
)
from perdure.core.system import System
from perdure.store import migrations, reads, workers
from perdure.store.dialect import Row
from perdure.store.messages import cancel, send
from perdure.store.migrations import MigrationStatus
from perdure.store.protocol import Change, Listener
from perdure.store.runs import create, unblock
from perdure.store.sqlite.claim import claim
from perdure.store.sqlite.commit import commit
from perdure.store.sqlite.connection import SQLITE, Body, Clock, SqliteConnection, SqliteTransaction, Trace
from perdure.store.sqlite.lane import Lane
from perdure.store.url import SqliteUrl

T = TypeVar("T")

_READERS = 2

_log = logging.getLogger("perdure.store")


class SqliteStore:
    """The verbs of `Store` over one SQLite database."""

    def __init__(self, url: SqliteUrl, system: System, *, migrate: bool = True, inline: bool = False) -> None:
        # Nobody else can write to a database in memory, so there is nothing to ask for.
        self.poll_interval = 60.0 if url.path is None else 0.05
        self._url = url
        self._system = system
        self._migrate = migrate
        self._clock = Clock(system)
        self._listeners: list[Listener] = []
        self._process = 0
        self._writer = SqliteConnection(url, system, self._clock, writes=True)
        self._writing = Lane(system, inline=inline, idle=self._writer.rest)
        self._readers = [(self._writer, self._writing)]
        if url.path is not None and not inline:
            connections = [SqliteConnection(url, system, self._clock, writes=False) for _ in range(_READERS)]
            self._readers = [(one, Lane(system, inline=False, idle=one.rest)) for one in connections]

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed."""
        await self._connect()
        try:
            if await self._read("status", self._pending):
                if not self._migrate:
                    raise SchemaMismatch(f"{self._writer.where} lacks tables of Perdure. Run `perdure migrate` once.")
                await self._write("migrate", "", lambda tx: migrations.migrate(tx, SQLITE))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Let go of every connection."""
        if self._process == os.getpid():
            self._process = 0
            self._writer.hurry()
            for reader, lane in self._readers:
                await lane.run(reader.close)
            await self._writing.run(self._writer.close)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes made through this object."""
        self._listeners = [*self._listeners, listener]

        def unsubscribe() -> None:
            self._listeners = [one for one in self._listeners if one is not listener]

        return unsubscribe

    async def changed(self) -> bool:
        """Whether another connection may have written since the last call."""
        self._check_open()
        return await self._writing.run(self._noticed)

    async def now(self) -> int:
        """The database's time."""
        self._check_open()
        return self._clock.now()

    async def create(self, runs: Sequence[NewRun], actor: str) -> builtins.list[Created]:
        """Create runs; one whose id or idempotency key is taken yields the run that is there."""
        return await self._write("create", actor, lambda tx: create(tx, runs))

    async def get(self, run_id: str) -> Run | None:
        """One run."""
        return await self._read("get", lambda tx: reads.get(tx, run_id))

    async def get_many(self, run_ids: Sequence[str]) -> builtins.list[Run]:
        """Those of the runs that exist."""
        return await self._read("get_many", lambda tx: reads.get_many(tx, run_ids))

    async def list(self, filter: RunFilter, limit: int, cursor: str | None) -> Page:
        """Runs, newest first."""
        return await self._read("list", lambda tx: reads.list_runs(tx, filter, limit, cursor))

    async def history(self, run_id: str) -> builtins.list[Record]:
        """Every record of a run."""
        return await self._read("history", lambda tx: reads.history(tx, run_id))

    async def inbox(self, run_id: str, after: int) -> builtins.list[Message]:
        """The unread inbox entries of a run past `after`."""
        return await self._read("inbox", lambda tx: reads.inbox(tx, run_id, after))

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run."""
        return await self._read("events", lambda tx: reads.events(tx, run_id))

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes, wake who waits and mark who runs."""
        return await self._write("send", actor, lambda tx: send(tx, messages))

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Ask a run to stop."""
        return await self._write("cancel", actor, lambda tx: cancel(tx, run_id, reason, key))

    async def unblock(
        self, run_ids: Sequence[str] | None, types: Sequence[str], reasons: Sequence[str], actor: str
    ) -> int:
        """Make blocked runs pending again."""
        return await self._write("unblock", actor, lambda tx: unblock(tx, run_ids, types, reasons))

    async def register(self, worker: WorkerInfo) -> None:
        """Begin a life."""
        await self._write("register", worker.id, lambda tx: workers.register(tx, worker))

    async def heartbeat(self, worker_id: str) -> bool:
        """Renew the worker's one row."""
        return await self._write("heartbeat", worker_id, lambda tx: workers.heartbeat(tx, worker_id), urgent=True)

    async def retire(self, worker_id: str) -> None:
        """End a life in order."""
        await self._write("retire", worker_id, lambda tx: workers.retire(tx, worker_id))

    async def sweep(self, limit: int) -> Swept:
        """Declare overdue workers dead, give back their runs and fail what is past its deadline."""
        return await self._write("sweep", "sweep", lambda tx: workers.sweep(tx, limit))

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was lately."""
        return await self._read("workers", workers.workers)

    async def holdings(self, worker_id: str) -> builtins.list[Lease]:
        """What the worker is said to hold."""
        return await self._read("holdings", lambda tx: workers.holdings(tx, worker_id))

    async def claim(self, request: ClaimRequest) -> Claimed:
        """Wake what is due, then take ready runs."""
        return await self._write("claim", request.worker, lambda tx: claim(tx, request, self._system.entropy))

    async def load(self, run_ids: Sequence[str]) -> builtins.list[Loaded]:
        """Histories and unread inboxes."""
        return await self._read("load", lambda tx: reads.load(tx, run_ids))

    async def marked(self, worker_id: str) -> builtins.list[Message]:
        """Unread inbox entries of the runs that this worker is running."""
        return await self._read("marked", lambda tx: reads.marked(tx, worker_id))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[Verdict]:
        """Make turns durable."""
        return await self._write("commit", actor, lambda tx: commit(tx, turns))

    async def migrations(self) -> builtins.list[MigrationStatus]:
        """Each migration and when it was applied; works on a store that is not open, and does not open it."""
        await self._connect()
        try:
            return await self._read("status", lambda tx: migrations.status(tx, SQLITE, self._url.prefix))
        finally:
            await self.close()

    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """One SELECT over the tables, called `perdure_…` whatever their prefix. For tests and tools."""
        return await self._read("query", lambda tx: tx.fetch(sql, params))

    async def trace(self, callback: Trace | None) -> None:
        """Show every statement of the writer to a callback. For tests and tools."""
        await self._writing.run(lambda: self._writer.trace(callback))

    async def _connect(self) -> None:
        await self._writing.run(self._writer.open)
        self._process = os.getpid()
        try:
            for reader, lane in self._readers:
                if reader is not self._writer:
                    await lane.run(reader.open)
        except BaseException:
            await self.close()
            raise

    async def _pending(self, tx: SqliteTransaction) -> bool:
        return bool(await migrations.pending(tx, SQLITE, self._url.prefix))

    async def _write(self, verb: str, actor: str, body: Body[T], *, urgent: bool = False) -> T:
        self._check_open()
        return await self._writing.run(lambda: self._run(self._writer, verb, actor, body), urgent=urgent)

    async def _read(self, verb: str, body: Body[T]) -> T:
        self._check_open()
        # A long listing must not hold up the loading of a run.
        reader, lane = min(self._readers, key=lambda pair: pair[1].queue)
        return await lane.run(lambda: self._run(reader, verb, "", body))

    def _run(self, connection: SqliteConnection, verb: str, actor: str, body: Body[T]) -> T:
        answer, stirred = connection.transact(verb, actor, body)
        if stirred:
            self._tell(stirred)
        return answer

    def _noticed(self) -> bool:
        # Whoever asks takes the news away from everybody else who would have asked, so all are told.
        changed = self._writer.changed()
        if changed:
            self._tell(Change.ALL)
        return changed

    def _tell(self, change: Change) -> None:
        for listener in self._listeners:
            try:
                listener(change)
            except Exception:
                _log.exception("A listener of the store failed; the write itself is done.")

    def _check_open(self) -> None:
        if self._process == os.getpid():
            return
        if self._process:
            raise EngineClosed(
                "This store was opened by the process that this one was forked from. Open one after the fork."
            )
        raise EngineClosed("The store is closed. Open it first, or create another one.")
