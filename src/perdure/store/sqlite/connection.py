"""One SQLite connection: opened with the settings that durability needs, and used in whole transactions only.

A transaction that finds the database busy is rolled back and begun again, with a short random pause, until the bound is
reached. SQLite's own busy handler is off: it starves whoever waits. Every other error is translated on its way out.
Around each transaction the system is told where execution stands, so that a test may end the process there.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct

from perdure.core.audit import Audit
from perdure.core.system import System
from perdure.errors import StoreCorrupt, StoreError, StoreReadOnly, StoreUnavailable
from perdure.store.sql.audit import TransactionLog
from perdure.store.sql.dialect import Dialect, Row, drive
from perdure.store.sql.rows import UNREADABLE, known
from perdure.store.sqlite.errors import is_busy, is_not_text, translate
from perdure.store.sqlite.files import (
    CheckpointLock,
    check_access,
    check_file_system,
    check_inheritance,
    check_version,
    checkpoints_need_care,
)
from perdure.store.url import SqliteUrl

#: How many rows go into one INSERT. Twice as many gain little more.
BATCH_ROWS = 32

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
_VALUES = re.compile(r"\bVALUES\s*(\(\s*\?(?:\s*,\s*\?)*\s*\))")


class SqliteStatement(Struct, frozen=True):
    """A statement, ready to be executed."""

    text: str
    #: Puts named parameters in their order; None: they are in order.
    ordered: Callable[[Any], Sequence[Any]] | None
    #: The same for `BATCH_ROWS` rows; None where it is no INSERT of values.
    crowd: str | None


def prepare(sql: str) -> SqliteStatement:
    """A statement with `:name` or `?` parameters."""
    text = _PARAMETER.sub("?", sql)
    return SqliteStatement(text, _in_order(_PARAMETER.findall(sql)), multi_row_insert(text))


def multi_row_insert(text: str) -> str | None:
    """The INSERT of one row's values as one of `BATCH_ROWS` rows."""
    found = _VALUES.search(text)
    if found is None or not text.lstrip().startswith("INSERT"):
        return None
    return f"{text[: found.start(1)]}{', '.join([found[1]] * BATCH_ROWS)}{text[found.end(1) :]}"


def _in_order(names: Sequence[str]) -> Callable[[Any], Sequence[Any]] | None:
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda params: (params[names[0]],)) if names else None


T = TypeVar("T")

SQLITE = Dialect(
    name="sqlite",
    or_ignore="ON CONFLICT DO NOTHING",
    for_update="",
    skip_locked="",
    keep_gate="ON CONFLICT DO NOTHING",
    use_index="",
    table_exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name",
)

_log = logging.getLogger("perdure.store")

_SMALL = 16 * 1024 * 1024
#: Pauses while another connection writes, in seconds: between attempts, and before the next transaction of ours.
_PAUSE = (0.0002, 0.001)
_GAP = 0.0003
#: For how many transactions of ours another writer is taken to be still about.
_WARY = 64
#: How often to look whether another one is about, in transactions.
_LOOK = 16

#: Before the bytes, spelled out, of a cell of text that is not UTF-8. It is no character, so such a text is neither JSON nor a name.
NOT_TEXT = "\ufdd0"

_NOTE = "INSERT INTO perdure_events (run_id, at, kind, actor, data) VALUES (?, ?, ?, ?, ?)"


class SqliteClock:
    """The system's wall clock, made to never go back within this process."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._last = 0
        #: Whether `now` last gave the time that it had given before, as a virtual clock does.
        self.state = False

    def now(self) -> int:
        """Microseconds since the epoch."""
        now = self._system.now()
        self.state = now <= self._last
        if not self.state:
            self._last = now
        return self._last


class SqliteTransaction(TransactionLog):
    """A transaction, as shared verbs see it. Its coroutines never suspend."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        render: Callable[[str], SqliteStatement],
        now: int,
        actor: str,
        audit: Audit,
        *,
        has_observers: bool,
        clock_stands: bool = False,
        lenient: bool = False,
    ) -> None:
        super().__init__(actor, audit, has_observers=has_observers)
        self._connection = connection
        self._render = render
        self._now = now
        #: Whether other transactions may have had the same time.
        self.clock_stands = clock_stands
        #: Whether text that is not UTF-8 may be read, with `NOT_TEXT` before it.
        self.lenient = lenient

    @property
    def now(self) -> int:
        """The time when the transaction began."""
        return self._now

    async def execute(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> int:
        """Run one statement; how many rows it changed."""
        return self._run(self._render(sql), params).rowcount

    async def execute_many(self, sql: str, rows: Sequence[Mapping[str, Any]] | Sequence[Sequence[Any]]) -> int:
        """Run one statement for each row of parameters; how many rows were changed in all."""
        return self._run_many(self._render(sql), rows) if rows else 0

    async def fetch(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        """Run a query, or a statement with RETURNING, to its end."""
        return self.fetch_now(sql, params)

    def fetch_now(self, sql: str, params: Mapping[str, Any] | Sequence[Any]) -> list[Row]:
        """The same, for code that is only ever run on SQLite."""
        return self._run(self._render(sql), params).fetchall()

    def write_notes(self) -> None:
        """Put the noted lines into the transaction."""
        if self._lines:
            self._run_many(self._render(_NOTE), self._take_lines())

    def _run(self, statement: SqliteStatement, params: Any) -> sqlite3.Cursor:
        ordered = statement.ordered
        return self._connection.execute(statement.text, params if ordered is None else ordered(params))

    def _run_many(self, statement: SqliteStatement, rows: Sequence[Any]) -> int:
        if statement.ordered is not None:
            rows = list(map(statement.ordered, rows))
        in_crowds = 0 if statement.crowd is None else len(rows) - len(rows) % BATCH_ROWS
        written = 0
        for start in range(0, in_crowds, BATCH_ROWS):
            crowd = list(chain.from_iterable(rows[start : start + BATCH_ROWS]))
            written += self._connection.execute(statement.crowd or "", crowd).rowcount
        if in_crowds < len(rows):
            written += self._connection.executemany(statement.text, rows[in_crowds:]).rowcount
        return written


Body = Callable[[SqliteTransaction], Coroutine[Any, Any, T]]


class SqliteConnection:
    """A connection for one thread at a time."""

    def __init__(self, url: SqliteUrl, system: System, clock: SqliteClock, *, writes: bool) -> None:
        self._url = url
        self._system = system
        self._clock = clock
        self._writes = writes
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._rendered: dict[str, SqliteStatement] = {}
        self._pause = threading.Event()
        self._raw: sqlite3.Connection | None = None
        #: Device and number of the file that is open; None: in memory.
        self.file: tuple[int, int] | None = None
        self._lock: CheckpointLock | None = None
        self._warned = False
        self._version = 0
        self._seen_version = 0
        self._transactions = 0
        self._wary = 0
        self._hurry = False
        #: Whether a cell was met that is not UTF-8, so that such cells are read with `NOT_TEXT` before them.
        self._lenient = False
        #: Closed for the time of a fork, and opened again by the next use.
        self._suspended = False
        self.where = "The database in memory" if url.path is None else f"The database {Path(url.path).resolve()}"

    def open(self) -> None:
        """Connect, unless it is connected. Raises what `transact` raises."""
        self._hurry = False
        if self._raw is not None:
            # Another connection to a database in memory would be another database.
            return
        check_version()
        if self._url.path is not None:
            check_inheritance(self._url.path)
            check_file_system(self._url.path)
            check_access(self._url.path)
        try:
            self._raw = self._patiently(lambda: self._connect(checked=True))
            self._make_lock()
        except BaseException:
            self.close()
            raise

    def suspend(self) -> None:
        """Disconnect until the next use. Not in the middle of a transaction."""
        if self._raw is not None:
            self.close()
            self._suspended = True

    def hurry(self) -> None:
        """Do not wait for a busy database any more. From any thread."""
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
    ) -> tuple[T, SqliteTransaction]:
        """Run a verb in a transaction of its own; its answer, and the transaction, which is over and has things to tell."""
        self._system.crash_point(f"{verb}.enter")
        try:
            return self._patiently(lambda: self._attempt(verb, actor, body, audit, has_observers=has_observers))
        except StoreError:
            raise
        except UNREADABLE as error:
            translated = known(error, verb, self.where)
            if translated is error:
                raise
            raise translated from error

    def changed(self) -> bool:
        """Whether another connection has written since the last call."""
        self.rest()
        version = self._patiently(self._data_version)
        changed, self._version = version != self._version, version
        return changed

    def rest(self) -> None:
        """There is nothing to write for now: let another process checkpoint."""
        if self._lock is not None:
            self._lock.give_up()

    def begin(self) -> sqlite3.Connection:
        """Open a transaction for somebody else; who gets the connection also ends it."""
        raw = self._open()
        self._patiently(lambda: raw.execute(self._begin))
        return raw

    def trace(self, callback: Callable[[str], object] | None) -> None:
        """Show every statement to a callback."""
        self._open().set_trace_callback(callback)

    def check_file(self, other: tuple[int, int] | None = None) -> None:
        """Raise `StoreUnavailable` unless the file that is open, or that `other` one, is still where it was."""
        path = self._url.path
        assert path is not None
        try:
            now = os.stat(path)  # noqa: PTH116 - of every transaction, which is to cost little
        except FileNotFoundError as error:
            raise StoreUnavailable(f"{self.where} is gone. Put it back, or stop this process.") from error
        if (now.st_dev, now.st_ino) != (other or self.file):
            raise StoreUnavailable(
                f"{self.where} was replaced by another file while it was open. Restart this process; what it remembers may not fit."
            )

    def _open(self) -> sqlite3.Connection:
        if self._raw is None:
            if not self._suspended:
                raise sqlite3.ProgrammingError("the connection is closed")
            self._raw = self._connect(checked=False)
            self._suspended = False
            self._make_lock()
            # Others may have written in between.
            self._version = self._seen_version = -1
        return self._raw

    def _make_lock(self) -> None:
        if self._writes and self._url.path is not None and checkpoints_need_care():
            self._lock = CheckpointLock(self._url.path)

    def _attempt(
        self, verb: str, actor: str, body: Body[T], audit: Audit, *, has_observers: bool
    ) -> tuple[T, SqliteTransaction]:
        raw = self._open()
        if self.file is not None:
            self.check_file()
        if self._writes:
            self._take_turns(raw)
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
                clock_stands=clock.state,
                lenient=self._lenient,
            )
            self._system.crash_point(f"{verb}.begun")
            answer = drive(body(tx))
            tx.write_notes()
            self._system.crash_point(f"{verb}.written")
            raw.execute("COMMIT")
        except BaseException:
            # SQLite itself rolls back when the disk is full; a second ROLLBACK would be an error of its own.
            if raw.in_transaction:
                with suppress(sqlite3.Error):
                    raw.execute("ROLLBACK")
            raise
        self._system.crash_point(f"{verb}.committed")
        return answer, tx

    def _take_turns(self, raw: sqlite3.Connection) -> None:
        if self._lock is not None and not self._lock.held:
            took = self._lock.take()
            raw.execute(f"PRAGMA wal_autocheckpoint = {1000 if took else 0}")
            if not took and not self._warned:
                self._warned = True
                _log.warning(
                    "%s is written by more than one process, and SQLite %s before 3.51.3 may damage it when they "
                    "checkpoint at once. Only one of them will, but a newer SQLite is safer.",
                    self.where,
                    sqlite3.sqlite_version,
                )
        self._transactions += 1
        if self._transactions % _LOOK == 0:
            version = self._data_version()
            if version != self._seen_version:
                self._seen_version, self._wary = version, _WARY
        if self._wary:
            self._wary -= 1
            self._pause.wait(_GAP)

    def _patiently(self, work: Callable[[], T]) -> T:
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
            self._wary = _WARY
            pause = _PAUSE[0] + self._system.random() * (_PAUSE[1] - _PAUSE[0])
            waited += pause
            self._pause.wait(pause)

    def _read_leniently(self, error: sqlite3.Error) -> None:
        """Go on with a cell that is not UTF-8: what it belongs to is recognised as unreadable where it is decoded, alone.

        Not from the start, because a function in Python is called for every cell of text then.
        """
        _log.error("%s has text that is not UTF-8: %s. What it belongs to is set aside.", self.where, error)
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
            raise StoreReadOnly(f"{self.where} cannot use a write-ahead log (its journal mode stays {mode!r}).")

    def _check(self, raw: sqlite3.Connection, path: str) -> None:
        wanted = self._url.quick_check
        if not self._writes or wanted == "off" or (wanted == "auto" and Path(path).stat().st_size >= _SMALL):
            return
        [verdict] = raw.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreCorrupt(f"{self.where} is damaged: {verdict}. Restore it from a backup.")

    def _data_version(self) -> int:
        version: int = self._open().execute("PRAGMA data_version").fetchone()[0]
        return version

    def _render(self, sql: str) -> SqliteStatement:
        statement = self._rendered.get(sql)
        if statement is None:
            statement = self._rendered[sql] = prepare(SQLITE.render(sql, self._url.prefix))
        return statement


def _read_text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return NOT_TEXT + text.decode(errors="backslashreplace")
