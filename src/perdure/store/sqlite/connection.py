"""One SQLite connection: its thread, its transactions and its statements.

The connection is opened with the settings that durability needs and runs whole transactions only. A transaction that
finds the database busy is rolled back and run again after a short random pause, until a time limit. SQLite's own busy
handler is off, because it starves waiting connections. Every other error is translated into one of the store contract.
Each transaction passes named crash points, at which a test may end the process.

Statements take parameters by position, and many rows go into one INSERT: SQLite finds a named parameter by walking
through all names before it, and opens every index of a table once per statement. Both together are a third of the cost
of inserting a run or a record.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from perdure.core.audit import Audit
from perdure.core.system import System
from perdure.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from perdure.store.sql.dialect import SQLITE, Row, TransactionLog, drive
from perdure.store.sql.rows import UNREADABLE, known
from perdure.store.sqlite.errors import is_busy, is_not_text, translate
from perdure.store.sqlite.files import (
    check_access,
    check_file_system,
    check_inheritance,
    check_version,
    checkpoints_need_care,
    create_privately,
    open_beside,
)
from perdure.store.url import SqliteUrl

if sys.platform != "win32":
    import fcntl

#: Numbers of rows in one multi-row INSERT: many rows, then the rest. More than the first number gain little.
BATCH_ROWS = 32
SMALL_BATCH_ROWS = 8

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_VALUES = re.compile(r"\bVALUES\s*(\(\s*\?(?:\s*,\s*\?)*\s*\))")


class SqliteStatement(Struct, frozen=True):
    """A statement that is ready to be executed."""

    text: str
    #: Puts named parameters into the order of the statement; None: the parameters are in order.
    order_params: Callable[[Any], Sequence[Any]] | None
    #: Statements for many rows, with the number of rows, the greatest first; empty if it is no INSERT of values.
    multi_row_texts: tuple[tuple[int, str], ...]


def prepare(sql: str) -> SqliteStatement:
    """Prepare a statement with `:name` or `?` parameters."""
    text = _PARAMETER.sub("?", sql)
    return SqliteStatement(text, _in_order(_PARAMETER.findall(sql)), multi_row_inserts(text))


def multi_row_inserts(text: str) -> tuple[tuple[int, str], ...]:
    """Turn an INSERT of one row into INSERTs of many rows, by number of rows; empty for any other statement."""
    found = _VALUES.search(text)
    if found is None or not text.lstrip().startswith("INSERT"):
        return ()
    before, row, after = text[: found.start(1)], found[1], text[found.end(1) :]
    return tuple((count, f"{before}{', '.join([row] * count)}{after}") for count in (BATCH_ROWS, SMALL_BATCH_ROWS))


def _in_order(names: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda params: (params[names[0]],)) if names else None


T = TypeVar("T")

_log = logging.getLogger("perdure.store")

#: Seconds that the thread waits for another job before it ends.
_IDLE_SECONDS = 0.05
#: Seconds that a job waits while another thread holds the connection.
_HOLD_SECONDS = 30.0

_SMALL_FILE = 16 * 1024 * 1024
#: Seconds to pause while another connection writes: between attempts, and before our next transaction.
_PAUSE = (0.0002, 0.001)
_GAP = 0.0003
#: Number of our transactions for which another writer counts as active after it was last seen.
_WARY_FOR = 64
#: Number of transactions between two checks for another writer.
_CHECK_EVERY = 16

#: Prefix of a text cell that is not UTF-8, followed by its escaped bytes. It is no character, so that such a text is
#: neither JSON nor a name.
NOT_TEXT = "\ufdd0"

#: Tables, views and triggers of a connection, but not those of SQLite itself.
_TEMPORARY = (
    "SELECT type, name FROM temp.sqlite_master WHERE type <> 'index' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)
#: Settings of a connection that a function of the user may have changed.
_PRAGMAS = (
    "automatic_index", "busy_timeout", "cache_size", "cell_size_check", "defer_foreign_keys", "foreign_keys",
    "ignore_check_constraints", "legacy_alter_table", "max_page_count", "query_only", "read_uncommitted",
    "recursive_triggers", "reverse_unordered_selects", "secure_delete", "synchronous", "temp_store", "trusted_schema",
    "writable_schema",
)  # fmt: skip

_NOTE = "INSERT INTO perdure_events (run_id, at, kind, actor, data) VALUES (?, ?, ?, ?, ?)"


#: By prefix, the empty tables of a database in memory, as SQLite serializes them. Copying them takes a twentieth of the
#: time that making them does, which a suite of tests pays for each of its engines.
_empty_tables: dict[str, bytes] = {}


class SqliteClock:
    """The system's wall clock, which never goes back within this process."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._last = 0
        #: True: the last `now` returned the same time as the one before, as on a virtual clock.
        self.state = False

    def now(self) -> int:
        """Return the time in microseconds since the epoch."""
        now = self._system.now()
        self.state = now <= self._last
        if not self.state:
            self._last = now
        return self._last


class SqliteTransaction(TransactionLog):
    """A `Transaction` for the shared SQL verbs. Its coroutines never suspend."""

    #: The time when the transaction began. Quicker than a property, and never set later.
    now: int = 0

    def __init__(
        self,
        connection: sqlite3.Connection,
        render: Callable[[str], SqliteStatement],
        now: int,
        actor: str,
        audit: Audit,
        *,
        has_observers: bool,
        clock_stood_still: bool = False,
        lenient: bool = False,
    ) -> None:
        super().__init__(actor, audit, has_observers=has_observers)
        self._connection = connection
        self._render = render
        self.now = now  # pyright: ignore[reportIncompatibleMethodOverride] # a given clock
        #: True: other transactions may have had the same time.
        self.clock_stood_still = clock_stood_still
        #: True: text that is not UTF-8 can be read, with the prefix `NOT_TEXT`.
        self.lenient = lenient

    async def execute(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> int:
        """Run one statement; return how many rows it changed."""
        return self._run(self._render(sql), params).rowcount

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of parameters; return how many rows were changed in all."""
        return self._run_many(self._render(sql), rows) if rows else 0

    async def fetch(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        """Run a query, or a statement with RETURNING; return all of its rows."""
        return self.fetch_now(sql, params)

    def fetch_now(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        """Fetch without a coroutine, for code that only runs on SQLite."""
        return self._run(self._render(sql), params).fetchall()

    def write_notes(self) -> None:
        """Write the audit events to the database, within the transaction."""
        if self._lines:
            self._run_many(self._render(_NOTE), self._lines)
            self._lines = []

    def _run(self, statement: SqliteStatement, params: Any) -> sqlite3.Cursor:
        order = statement.order_params
        return self._connection.execute(statement.text, params if order is None else order(params))

    def _run_many(self, statement: SqliteStatement, rows: Sequence[Any]) -> int:
        if statement.order_params is not None:
            rows = list(map(statement.order_params, rows))
        done = written = 0
        for count, text in statement.multi_row_texts:
            while len(rows) - done >= count:
                batch = list(chain.from_iterable(rows[done : done + count]))
                written += self._connection.execute(text, batch).rowcount
                done += count
        if done < len(rows):
            written += self._connection.executemany(statement.text, rows[done:]).rowcount
        return written


Body = Callable[[SqliteTransaction], Coroutine[Any, Any, T]]


_Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, asyncio.Future[Any]]


class SerialThread:
    """A queue of jobs, and at most one thread that runs them, one at a time and in order.

    The thread is taken from the system when there is work and returned shortly after the last job. Jobs may come from
    any number of event loops; each result goes to the loop of its caller. A cancelled caller stops waiting, but its job
    still runs. An inline `SerialThread` runs each job at once, on the caller's own thread.
    """

    def __init__(self, system: System, *, inline: bool, idle: Callable[[], object]) -> None:
        self._system = system
        self._inline = inline
        self._idle = idle
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._connection_lock = threading.RLock()
        self._has_thread = False
        #: Number of jobs that wait or run.
        self.unfinished = 0
        self._thread: Awaitable[None] | None = None

    async def run(self, work: Callable[[], T], *, urgent: bool = False) -> T:
        """Run a job after those that are queued, or before them if it is urgent."""
        if self._inline:
            with self.held():
                return work()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._changed:
            self.unfinished += 1
            if urgent:
                self._jobs.appendleft((work, loop, answer))
            else:
                self._jobs.append((work, loop, answer))
            if self._has_thread:
                self._changed.notify()
            else:
                self._start_thread()
        return await answer

    @contextmanager
    def held(self) -> Generator[None]:
        """Hold the connection for the calling thread; no job runs meanwhile."""
        self._hold()
        try:
            yield
        finally:
            self._connection_lock.release()

    def hold(self, seconds: float) -> bool:
        """Take the connection for the calling thread, until `release`; False if it is not free in time."""
        return self._connection_lock.acquire(timeout=seconds)

    def release(self) -> None:
        """Give the connection back."""
        self._connection_lock.release()

    def _hold(self) -> None:
        if not self._connection_lock.acquire(timeout=_HOLD_SECONDS):
            raise StoreUnavailable(
                "a transaction has kept the database to itself for too long; inside of its function, pass its "
                "connection as `connection=...` to whatever else writes"
            )

    def _start_thread(self) -> None:
        self._has_thread = True
        try:
            self._thread = asyncio.ensure_future(self._system.in_thread(self._run_jobs))
        except BaseException:
            self._has_thread = False
            raise

    def _run_jobs(self) -> None:
        while True:
            with self._changed:
                if not self._jobs:
                    self._changed.wait(_IDLE_SECONDS)
                if not self._jobs:
                    self._has_thread = False
                    self._become_idle()
                    return
                work, loop, answer = self._jobs.popleft()
            value, error = self._attempt(work)
            with self._changed:
                self.unfinished -= 1
            _deliver(loop, answer, value, error)
            del work, loop, answer, value, error

    def _become_idle(self) -> None:
        try:
            self._idle()
        except Exception:
            _log.exception("the idle callback of a connection failed")

    def _attempt(self, work: Callable[[], Any]) -> tuple[Any, BaseException | None]:
        try:
            self._hold()
            try:
                return work(), None
            finally:
                self._connection_lock.release()
        except BaseException as error:
            return None, error


def _deliver(
    loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    """Deliver a result to its event loop. Never raises, because the thread serves other loops, too."""
    try:
        loop.call_soon_threadsafe(_settle, answer, value, error)
    except RuntimeError:
        # No task of a closed loop waits for the result.
        _log.debug("the event loop was closed before the result of the database came")
    except BaseException:
        _log.exception("the result of the database could not be delivered to its event loop")


def _settle(answer: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(value)


class CheckpointLock:
    """The right to checkpoint a file, held by one process at a time. It ends with the process.

    SQLite before 3.51.3 can corrupt a database when several processes checkpoint and write at the same instant. With
    such a version, only the process that holds the lock on a side file checkpoints.
    """

    def __init__(self, path: str) -> None:
        self._file = open_beside(path, f"{path}-checkpoint")
        self.held = False

    def take(self) -> bool:
        """Try to take the lock without waiting."""
        if not self.held and sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        self.held = True
        return True

    def give_up(self) -> None:
        """Release the lock, so that another process can take it."""
        if self.held and sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_UN)
        self.held = False

    def close(self) -> None:
        """Release the lock for good."""
        os.close(self._file)
        self.held = False


class SqliteConnection:
    """A connection to one SQLite database, used by one thread at a time."""

    def __init__(
        self,
        url: SqliteUrl,
        system: System,
        clock: SqliteClock,
        *,
        writes: bool,
        inline: bool = False,
        on_commit: Callable[[SqliteTransaction], None] = lambda tx: None,
    ) -> None:
        """`on_commit` is called with each transaction that has something to pass on, after its commit."""
        self._url = url
        self._on_commit = on_commit
        self._system = system
        self._clock = clock
        #: Runs everything that uses this connection.
        self.thread = SerialThread(system, inline=inline, idle=self.rest)
        self._writes = writes
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._rendered: dict[str, SqliteStatement] = {}
        self._pause = threading.Event()
        self._raw: sqlite3.Connection | None = None
        #: Device and inode number of the open file; None: in memory.
        self.file: tuple[int, int] | None = None
        self._lock: CheckpointLock | None = None
        self._warned = False
        self._version = 0
        self._seen_version = 0
        self._transactions = 0
        self._wary = 0
        self._hurry = False
        #: True: a cell was not UTF-8, so such cells are read with the prefix `NOT_TEXT` from then on.
        self._lenient = False
        #: Settings of the connection to a database in memory, as it was opened.
        self._opened_with: dict[str, object] = {}
        #: True: closed for a fork; the next use opens it again.
        self._suspended = False
        self.where = "the database in memory" if url.path is None else f"the database {os.path.realpath(url.path)}"

    def open(self) -> None:
        """Connect, unless connected already. Raises the same errors as `transact`."""
        self._hurry = False
        if self._raw is not None:
            # Reconnecting to a database in memory would create another database.
            return
        check_version()
        if self._url.path is not None:
            check_inheritance(self._url.path)
            check_file_system(self._url.path)
            check_access(self._url.path)
            create_privately(self._url.path)
        try:
            self._raw = self._retry_while_busy(lambda: self._connect(checked=True))
            self._make_lock()
        except BaseException:
            self.close()
            raise

    def copy_tables(self) -> None:
        """Give a new database in memory the tables that an earlier one of this process was given by migrations."""
        tables = _empty_tables.get(self._url.prefix)
        if tables is None or self._raw is None or self._raw.execute("SELECT 1 FROM sqlite_master").fetchone():
            return
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(tables)
            source.backup(self._raw)

    def keep_tables(self) -> None:
        """Keep the tables of a database in memory, which has just been migrated, for `copy_tables`."""
        if self._raw is not None and self._url.prefix not in _empty_tables and hasattr(self._raw, "serialize"):
            _empty_tables[self._url.prefix] = self._raw.serialize()

    @property
    def is_open(self) -> bool:
        """True if the connection is open, and not suspended for a fork."""
        return self._raw is not None

    def suspend(self) -> None:
        """Disconnect until the next use. Must not be called within a transaction."""
        if self._raw is not None:
            self.close()
            self._suspended = True

    def hurry(self) -> None:
        """Stop waiting for a busy database. May be called from any thread."""
        self._hurry = True

    def close(self) -> None:
        """Disconnect."""
        self._suspended = False
        if self._raw is not None:
            self._raw.close()
            self._raw = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def transact(
        self, verb: str, actor: str, body: Body[T], audit: Audit = Audit.OFF, *, has_observers: bool = False
    ) -> T:
        """Run a verb in a transaction of its own; return its result."""
        if self._system.crash_point is not None:
            self._system.crash_point(f"{verb}.enter")
        try:
            answer, tx = self._retry_while_busy(
                lambda: self._attempt(verb, actor, body, audit, has_observers=has_observers)
            )
        except StoreError:
            raise
        except UNREADABLE as error:
            translated = known(error, verb, self.where)
            if translated is error:
                raise
            raise translated from error
        if tx.announced or tx.observed or tx.buried:
            self._on_commit(tx)
        return answer

    def changed(self) -> bool:
        """Tell whether another connection has written since the last call."""
        self.rest()
        version = self._retry_while_busy(self._data_version)
        changed, self._version = version != self._version, version
        return changed

    def changed_at_once(self) -> bool | None:
        """Tell whether another connection has written since the last call; None if the file is busy or gone."""
        raw = self._raw
        if raw is None or raw.in_transaction:
            return None
        self.rest()
        try:
            version: int = raw.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error:
            return None
        changed, self._version = version != self._version, version
        return changed

    def rest(self) -> None:
        """Let another process checkpoint, because there is nothing to write for now."""
        if self._lock is not None:
            self._lock.give_up()

    def begin(self) -> sqlite3.Connection:
        """Begin a transaction and return the raw connection; the caller ends the transaction."""
        raw = self._open()
        self._retry_while_busy(lambda: raw.execute(self._begin))
        return raw

    def temporary_items(self) -> frozenset[tuple[str, str]]:
        """Temporary tables, views and triggers of the connection, by kind and name."""
        return frozenset(self._open().execute(_TEMPORARY).fetchall())

    def clean(self, before: frozenset[tuple[str, str]]) -> None:
        """Remove what a function of the user has left on the connection to a database in memory.

        `before` are the temporary items that were there when it was lent. Settings are read first, because setting one
        makes SQLite prepare every statement anew.
        """
        raw = self._open()
        raw.isolation_level = None
        raw.row_factory = None
        raw.text_factory = _read_text if self._lenient else str
        for name, value in self._opened_with.items():
            if _pragma(raw, name) != value:
                raw.execute(f"PRAGMA {name} = {value}")
        for _, name, _ in raw.execute("PRAGMA database_list").fetchall():
            if name == "temp":
                # A table takes its indexes and triggers along.
                for kind, item in self.temporary_items() - before:
                    raw.execute(f"DROP {kind} IF EXISTS temp.{_quoted(item)}")
            elif name != "main":
                raw.execute(f"DETACH {_quoted(name)}")

    def trace(self, callback: Callable[[str], object] | None) -> None:
        """Pass the text of every statement to a callback."""
        self._open().set_trace_callback(callback)

    def check_file(self, other: tuple[int, int] | None = None) -> None:
        """Raise `StoreUnavailable` unless the path still leads to the open file, or to `other`."""
        path = self._url.path
        assert path is not None
        try:
            now = os.stat(path)  # noqa: PTH116 - cheaper, and every transaction does it
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self.where} is gone; put it back, or stop this process") from error
        if (now.st_dev, now.st_ino) != (other or self.file):
            raise StoreUnavailable(
                f"{self.where} was replaced by another file while it was open; restart this process, whose memory is "
                "stale"
            )

    def _open(self) -> sqlite3.Connection:
        if self._raw is None:
            if not self._suspended:
                raise sqlite3.ProgrammingError("the connection is closed")
            self._raw = self._connect(checked=False)
            self._suspended = False
            self._make_lock()
            # Another connection may have written in between.
            self._version = self._seen_version = -1
        return self._raw

    def _make_lock(self) -> None:
        if self._writes and self._url.path is not None and checkpoints_need_care():
            self._lock = CheckpointLock(self._url.path)

    def _attempt(
        self, verb: str, actor: str, body: Body[T], audit: Audit, *, has_observers: bool
    ) -> tuple[T, SqliteTransaction]:
        crash_point = self._system.crash_point
        raw = self._open()
        if self.file is not None:
            self.check_file()
        if self._writes:
            self._yield_to_other_writers(raw)
        raw.execute(self._begin)
        try:
            now, clock = self._clock.now(), self._clock
            tx = SqliteTransaction(
                raw,
                self._render,
                now,
                actor,
                audit,
                has_observers=has_observers,
                clock_stood_still=clock.state,
                lenient=self._lenient,
            )
            if crash_point is not None:
                crash_point(f"{verb}.begun")
            answer = drive(body(tx))
            tx.write_notes()
            if crash_point is not None:
                crash_point(f"{verb}.written")
            raw.execute("COMMIT")
        except BaseException:
            # SQLite rolls back by itself when the disk is full, and a second ROLLBACK would fail.
            if raw.in_transaction:
                with suppress(sqlite3.Error):
                    raw.execute("ROLLBACK")
            raise
        if crash_point is not None:
            crash_point(f"{verb}.committed")
        return answer, tx

    def _yield_to_other_writers(self, raw: sqlite3.Connection) -> None:
        if self._lock is not None and not self._lock.held:
            took = self._lock.take()
            raw.execute(f"PRAGMA wal_autocheckpoint = {1000 if took else 0}")
            if not took and not self._warned:
                self._warned = True
                _log.warning(
                    "%s is written by more than one process; SQLite %s may damage a file that two processes checkpoint "
                    "at once; Perdure lets one of its processes checkpoint, and SQLite 3.51.3 or newer is safe",
                    self.where,
                    sqlite3.sqlite_version,
                )
        self._transactions += 1
        if self._transactions % _CHECK_EVERY == 0:
            version = self._data_version()
            if version != self._seen_version:
                self._seen_version, self._wary = version, _WARY_FOR
        if self._wary:
            self._wary -= 1
            self._pause.wait(_GAP)

    def _retry_while_busy(self, work: Callable[[], T]) -> T:
        waited = 0.0
        while True:
            try:
                return work()
            except sqlite3.Error as error:
                if is_not_text(error) and not self._lenient:
                    self._read_leniently(error)
                    continue
                if not is_busy(error) or waited >= self._url.busy_seconds or self._hurry:
                    raise translate(error, self.where) from error
            self._wary = _WARY_FOR
            pause = _PAUSE[0] + self._system.random() * (_PAUSE[1] - _PAUSE[0])
            waited += pause
            self._pause.wait(pause)

    def _read_leniently(self, error: sqlite3.Error) -> None:
        """Make text that is not UTF-8 readable, so that decoding rejects only the run or record that it belongs to.

        This is not on from the start, because it calls a Python function for every text cell.
        """
        _log.error("%s has text that is not UTF-8: %s; the run that it belongs to is set aside", self.where, error)
        self._lenient = True
        if self._raw is not None:
            self._raw.text_factory = _read_text

    def _connect(self, *, checked: bool) -> sqlite3.Connection:
        path = self._url.path
        raw = sqlite3.connect(
            path or ":memory:", isolation_level=None, timeout=0, check_same_thread=False, cached_statements=256
        )
        if self._lenient:
            raw.text_factory = _read_text
        try:
            for setting in self._settings():
                raw.execute(setting)
            if path is not None:
                self._use_write_ahead_log(raw)
                if checked:
                    self._check(raw, path)
                found = Path(path).stat()
                self.file = found.st_dev, found.st_ino
            else:
                self._opened_with = {name: _pragma(raw, name) for name in _PRAGMAS}
            [self._version] = raw.execute("PRAGMA data_version").fetchone()
            self._seen_version = self._version
        except BaseException:
            raw.close()
            raise
        return raw

    def _settings(self) -> Iterator[str]:
        yield "PRAGMA busy_timeout = 0"
        yield "PRAGMA foreign_keys = ON"
        yield "PRAGMA trusted_schema = OFF"
        yield "PRAGMA mmap_size = 0"
        yield f"PRAGMA synchronous = {self._url.synchronous}"
        yield f"PRAGMA journal_size_limit = {64 * 1024 * 1024}"
        if not self._writes or checkpoints_need_care():
            yield "PRAGMA wal_autocheckpoint = 0"
        if not self._writes:
            yield "PRAGMA query_only = ON"

    def _use_write_ahead_log(self, raw: sqlite3.Connection) -> None:
        [mode] = raw.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            [mode] = raw.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreReadOnly(f"{self.where} cannot use a write-ahead log: its journal mode stays {mode!r}")

    def _check(self, raw: sqlite3.Connection, path: str) -> None:
        wanted = self._url.quick_check
        if not self._writes or wanted == "off" or (wanted == "auto" and Path(path).stat().st_size >= _SMALL_FILE):
            return
        [verdict] = raw.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreCorrupt(f"{self.where} is damaged: {verdict}; restore it from a backup")

    def _data_version(self) -> int:
        version: int = self._open().execute("PRAGMA data_version").fetchone()[0]
        return version

    def _render(self, sql: str) -> SqliteStatement:
        statement = self._rendered.get(sql)
        if statement is None:
            statement = self._rendered[sql] = prepare(SQLITE.render(sql, self._url.prefix))
        return statement


def _pragma(raw: sqlite3.Connection, name: str) -> object:
    # A row factory that the user has set is not used.
    cursor = raw.cursor()
    cursor.row_factory = None
    return cursor.execute(f"PRAGMA {name}").fetchone()[0]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _read_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return NOT_TEXT + text.decode(errors="backslashreplace")
