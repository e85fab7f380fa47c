"""The store on SQLite: one writing and a few reading connections, each with a thread of its own.

A database in memory, and an inline store, have one connection for everything. Heartbeats overtake other jobs of the
writer.
"""

from __future__ import annotations

import builtins
import logging
import os
import sqlite3
import threading
from collections.abc import Coroutine, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from perdure.core.model.claim import ClaimRequest, ClaimResult
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.core.process_fork import never_finalize, watch_forks
from perdure.core.system import System
from perdure.store.contract import Change
from perdure.store.file_watch import WriteWatch
from perdure.store.sql.dialect import SQLITE, Row, counted
from perdure.store.sql.store import SqlStore, Trace
from perdure.store.sqlite.claim import claim
from perdure.store.sqlite.commit import commit
from perdure.store.sqlite.connection import Body, SerialThread, SqliteClock, SqliteConnection
from perdure.store.sqlite.files import is_watchable, note_inherited
from perdure.store.url import SqliteUrl

T = TypeVar("T")

_READERS = 2
#: Seconds that a fork waits until no transaction is open.
_FORK_SECONDS = 5.0

_busyness = attrgetter("thread.unfinished")

_log = logging.getLogger("perdure.store")


#: Seconds without a poll that wants a watch, after which the log is not watched: more than an idle worker waits.
WATCH_LAPSE = 90.0
LONGEST_LAPSE = 3600.0


class SqliteStore(SqlStore):
    """The `Store` over one SQLite database."""

    exclusive = True

    def __init__(self, url: SqliteUrl, system: System, *, migrate: bool = True, inline: bool = False) -> None:
        self._clock = SqliteClock(system)
        super().__init__(SQLITE, url.prefix, self._clock.now, migrate=migrate, audit=url.audit)
        # No other process can write to a database in memory, so polling is of little use.
        self.poll_interval = 60.0 if url.path is None else 0.05
        # There is one writer, and it holds the interpreter while it works.
        self.lanes = 1
        self._url = url
        self._file = url.path
        self._system = system
        self._writer = SqliteConnection(url, system, self._clock, writes=True, inline=inline, on_commit=self._done)
        self.where = self._writer.where
        self._readers = [self._writer]
        self.blocks = not inline
        self._is_inline = inline
        #: Sees the commits of other processes, once something waits for them; None: not yet, or they are polled.
        self._watch: WriteWatch | None = None
        self._is_watchable: bool | None = None
        self._seen_by_watch = False
        self._watch_wanted_at = self._watch_until = 0.0
        #: The connection threads that a forking thread holds, by the id of that thread.
        self._held_threads: dict[int, builtins.list[SerialThread]] = {}
        if url.path is not None and not inline:
            self._readers = [
                SqliteConnection(url, system, self._clock, writes=False, on_commit=self._done) for _ in range(_READERS)
            ]

    async def open(self) -> None:
        """Connect, check versions and settings, apply migrations if allowed. Raises `SchemaMismatch`."""
        await super().open()
        if self._url.path is None and self._may_migrate:
            await self._writer.thread.run(self._writer.keep_tables)

    async def close(self) -> None:
        """Close every connection."""
        if self._process == os.getpid():
            self._process = 0
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            await self._disconnect()

    async def _disconnect(self) -> None:
        self._writer.hurry()
        for connection in self._connections:
            await connection.thread.run(connection.close)

    async def poll_changes(self, *, watch: bool = True) -> bool:
        """Tell whether another connection may have written since the last call."""
        if self._process != os.getpid():
            self._check_open()
        if watch:
            self._watch_log()
        changed = self._check_at_once()
        if changed is None:
            changed = await self._writer.thread.run(self._check_changed)
        # The watch may have seen the change first, and a change shows once only.
        seen, self._seen_by_watch = self._seen_by_watch, False
        return changed or seen

    @property
    def is_notified(self) -> bool:
        """True while the kernel reports the commits of other processes."""
        return self._watch is not None and self._watch.is_working and self._process == os.getpid()

    async def now(self) -> int:
        """Return the database's time."""
        self._check_open()
        return self._clock.now()

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        """Make due runs ready, then claim ready runs."""
        return await self._write("claim", request.worker, partial(claim, request=request, entropy=self._system.entropy))

    async def commit(self, turns: Sequence[Turn], actor: str) -> builtins.list[TurnOutcome]:
        """Commit turns in one transaction."""
        return await self._write("commit", actor, partial(commit, turns=turns))

    async def query(self, sql: str, params: Sequence[object] = ()) -> builtins.list[Row]:
        """Run a SELECT with `?` parameters over tables called `perdure_…`, whatever their prefix.

        For tests and tools.
        """
        return await self._read("query", lambda tx: tx.fetch(sql, params))

    async def trace(self, callback: Trace | None) -> None:
        """Pass every statement of the writer to a callback. For tests and tools."""
        await self._writer.thread.run(lambda: self._writer.trace(callback))

    @contextmanager
    def lend(self) -> Generator[sqlite3.Connection]:
        """Lend a connection that may write: a new one to a file, or the only one to a database in memory."""
        if self._url.path is None:
            with self._writer.thread.held():
                before = self._writer.temporary_items()
                try:
                    yield self._writer.begin()
                finally:
                    self._writer.clean(before)
            return
        own = msgspec.structs.replace(self._url, quick_check="off")
        connection = SqliteConnection(own, self._system, self._clock, writes=True)
        connection.open()
        try:
            connection.check_file(self._writer.file)
            yield connection.begin()
        finally:
            connection.close()

    def _before_fork(self) -> None:
        """Close the connections, because SQLite does not allow a child to inherit them.

        The next use opens them again.
        """
        if self._process != os.getpid() or self._url.path is None or self._is_inline:
            return
        until = self._system.monotonic() + _FORK_SECONDS
        held = self._held_threads[threading.get_ident()] = []
        for connection in self._connections:
            if not connection.thread.hold(max(0.0, until - self._system.monotonic())):
                _log.warning(
                    "%s is in use while this process forks; the child cannot use the database through this engine",
                    self.where,
                )
                self._after_fork_in_parent()
                return
            held.append(connection.thread)
        for connection in self._connections:
            connection.suspend()

    def _after_fork_in_parent(self) -> None:
        for thread in self._held_threads.pop(threading.get_ident(), ()):
            thread.release()

    def _after_fork_in_child(self) -> None:
        if self._process and self._url.path is not None:
            note_inherited(self._url.path, closed=threading.get_ident() in self._held_threads)
        never_finalize(self)

    @property
    def _connections(self) -> builtins.list[SqliteConnection]:
        """All connections: the readers, then the writer."""
        return [*(one for one in self._readers if one is not self._writer), self._writer]

    async def _connect(self) -> None:
        try:
            await self._writer.thread.run(self._writer.open)
            if self._url.path is None and self._may_migrate:
                await self._writer.thread.run(self._writer.copy_tables)
            self._process = os.getpid()
            watch_forks(self._after_fork_in_child, before=self._before_fork, in_parent=self._after_fork_in_parent)
            for reader in self._readers:
                if reader is not self._writer:
                    await reader.thread.run(reader.open)
        except BaseException:
            # A thread may still be opening its connection, and closes it next.
            self._process = 0
            await self._disconnect()
            raise

    def _write(self, verb: str, actor: str, body: Body[T]) -> Coroutine[Any, Any, T]:
        if self._process != os.getpid():
            self._check_open()
        work = partial(self._writer.transact, verb, actor, body, self.audit, has_observers=bool(self._observers))
        return self._writer.thread.run(work, urgent=verb == "heartbeat")

    def _read(self, verb: str, body: Body[T]) -> Coroutine[Any, Any, T]:
        if self._process != os.getpid():
            self._check_open()
        # The least busy reader, so that a long listing does not delay the loading of a run.
        reader = min(self._readers, key=_busyness)
        return reader.thread.run(partial(reader.transact, verb, "", counted(body), self.audit))

    def _watch_log(self) -> None:
        """See the next write to the log. A process that never waits, or only shows live pages, has no watch."""
        if self._watch is None and self._is_watchable is None:
            # Read once: it takes longer than a poll.
            self._is_watchable = self._file is not None and not self._is_inline and is_watchable(self._file)
        if self._is_watchable and self._file is not None and (self._watch is None or self._watch.is_lost):
            if self._watch is not None:
                self._watch.close()
            log = f"{os.path.realpath(self._file)}-wal"
            self._watch = WriteWatch(log, self._system, self._check_written)
            self._watch_wanted_at = self._system.monotonic()
        if self._watch is not None:
            now = self._system.monotonic()
            # Longer for a worker whose polls are further apart.
            self._watch_until = now + max(WATCH_LAPSE, min(3 * (now - self._watch_wanted_at), LONGEST_LAPSE))
            self._watch_wanted_at = now
            self._watch.arm()

    def _check_written(self) -> bool:
        """Check because the log was written; the next poll tells of a change, too."""
        if self._watch is not None and self._system.monotonic() > self._watch_until:
            self._watch.close()
            self._watch = None
            return False
        changed = bool(self._check_at_once())
        self._seen_by_watch |= changed
        return changed

    def _check_at_once(self) -> bool | None:
        """Check on the calling thread, which takes microseconds; None if the connection is in use or not open."""
        writer = self._writer
        if self._is_inline or not writer.is_open or not writer.thread.hold(0):
            return None
        try:
            changed = writer.changed_at_once()
        finally:
            writer.thread.release()
        if changed:
            self._tell(Change.ALL)
        return changed

    def _check_changed(self) -> bool:
        # The change shows once only, so every listener is told.
        changed = self._writer.changed()
        if changed:
            self._tell(Change.ALL)
        return changed
