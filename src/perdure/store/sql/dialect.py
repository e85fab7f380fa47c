"""Dialects of the databases, and the transaction that shared SQL runs in.

Verbs are written once, as coroutines over a `Transaction`, in SQL that every database understands: `:name` parameters,
tables called `perdure_…`, and `{…}` where databases differ. Rendering fills those gaps and inserts the user's prefix.
On a database without an asynchronous driver a transaction never suspends its verb, so a plain thread can drive it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol, TypeVar, cast

from msgspec import Struct

from perdure.core.audit import NEXT, REPEATED, Audit
from perdure.errors import StoreError
from perdure.store.contract import Change, NewEvent

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, Any]

DEFAULT_PREFIX = "perdure_"

_NAME = re.compile(r"\bperdure_(\w+)")
_USE = re.compile(r"\{use (\w+)\}")
_SIZE = re.compile(r"\{size (\w+)\}")
_OF_STATE = re.compile(r"\{(\w+) of (pending|waiting)\}")
_IN_STATE = re.compile(r"\{(pending|waiting) (\w+\.)?(\w+)\}")
_TABLES = frozenset({
    "runs", "attributes", "history", "messages", "events", "outputs", "topics", "waiters", "observers", "pauses",
    "schedules", "workers", "health", "registry", "migrations",
    "gates", "lines", "permits", "shares",
    "locks", "singletons", "successors", "watermarks", "tokens", "documents", "graph_checkpoints",
    "runs_view", "events_view", "types_view", "workers_view",
})  # fmt: skip
#: Names in the schema of the tables: the tables, and a function on PostgreSQL.
_IN_SCHEMA = _TABLES | {"announce"}


class Dialect(Struct, frozen=True, kw_only=True):
    """Differences of one database, as a value."""

    name: str
    #: Appended to an INSERT so that a duplicate key is no error and changes nothing.
    or_ignore: str
    #: Appended to a SELECT of rows that are about to be written; empty where the transaction owns the whole database.
    for_update: str
    #: The same for a SELECT that skips rows locked by other transactions.
    skip_locked: str
    #: Appended to an INSERT into gates, as `or_ignore` is, where that is no error either.
    keep_gate: str
    #: What makes a SELECT use an index, with its name for `{}`; empty where the planner finds it by itself.
    use_index: str
    #: Where there are no partial indexes: by state and column, a column that is NULL in any other state.
    #: Of `{pending queue} = :queue` becomes a comparison with that, or else one of the state and one of the column; of
    #: `{queue of pending}` the name alone.
    only_in: dict[str, str] = {}
    #: A query that yields a row if the table `:name` exists.
    table_exists: str
    #: Statuses of which an index gives the runs in the order of their creation.
    listed: frozenset[str]
    #: True if an index gives the deleted runs in that order, too.
    lists_deleted: bool = False
    #: True if another statement costs no round trip, so that the values of a range are looked up first.
    seeks_values: bool = False
    #: Length of a text, in characters or bytes.
    size_of: str = "LENGTH({})"
    #: An expression for the database's time in microseconds; empty where that is the time of this machine.
    time: str = ""

    def render(self, sql: str, tables: str) -> str:
        """The statement in this database's spelling.

        `tables` is the prefix of table names, after their schema if any.
        """
        text = sql.replace("{or_ignore}", self.or_ignore).replace("{for_update}", self.for_update)
        if "{" in text:
            text = text.replace("{skip_locked}", self.skip_locked).replace("{keep_gate}", self.keep_gate)
            text = _USE.sub(lambda index: self.use_index.format(index[1]), text)
            text = _SIZE.sub(lambda column: self.size_of.format(column[1]), text)
            text = _OF_STATE.sub(lambda found: self._column(found[2], found[1]), text)
            text = _IN_STATE.sub(lambda found: self._in_state(found[1], found[2] or "", found[3]), text)
        if tables == DEFAULT_PREFIX:
            return text
        # An index is made in the schema of its table, and must not name it.
        others = tables.rpartition(".")[2]
        return _NAME.sub(lambda name: (tables if name[1] in _IN_SCHEMA else others) + name[1], text)

    def _column(self, state: str, column: str) -> str:
        return self.only_in.get(f"{state} {column}", column)

    def _in_state(self, state: str, table: str, column: str) -> str:
        found = f"{table}{self._column(state, column)}"
        return found if f"{state} {column}" in self.only_in else f"{table}status = '{state}' AND {found}"


SQLITE = Dialect(
    name="sqlite",
    or_ignore="ON CONFLICT DO NOTHING",
    for_update="",
    skip_locked="",
    keep_gate="ON CONFLICT DO NOTHING",
    use_index="",
    table_exists="SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = :name",
    listed=frozenset({"pending", "running", "waiting", "failed", "cancelled", "blocked"}),
    lists_deleted=True,
    seeks_values=True,
)

POSTGRES = Dialect(
    name="postgres",
    or_ignore="ON CONFLICT DO NOTHING",
    # Weaker than FOR UPDATE, so that inserts of users with foreign keys to our rows do not wait for us.
    for_update="FOR NO KEY UPDATE",
    skip_locked="FOR NO KEY UPDATE SKIP LOCKED",
    keep_gate="ON CONFLICT DO NOTHING",
    use_index="",
    table_exists="SELECT 1 WHERE to_regclass(:name) IS NOT NULL",
    listed=frozenset({"failed", "cancelled", "blocked"}),
    # Of a compressed text, the length in bytes is known without reading it.
    size_of="OCTET_LENGTH({})",
    # At the moment of evaluation, not at the start of the transaction.
    time="(extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
)

#: MySQL and MariaDB.
MYSQL = Dialect(
    name="mysql",
    # Every way to ignore a duplicate hides other errors or counts as a change, so it is an error here.
    or_ignore="",
    for_update="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    keep_gate="ON DUPLICATE KEY UPDATE name = name",
    use_index="FORCE INDEX ({})",
    # Generated columns, so that changes of a run in other states do not touch their indexes.
    only_in={"pending queue": "ready_queue", "waiting wake_at": "waits_until"},
    table_exists="SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name",
    listed=frozenset({"pending", "running", "waiting", "completed", "failed", "cancelled", "blocked"}),
    # At the start of the statement.
    time="TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))",
)


class Transaction(Protocol):
    """One open transaction. It writes its audit events, and announces its changes once it has committed."""

    @property
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    @property
    def actor(self) -> str:
        """Cause of the transaction, for the audit trail."""

    @property
    def notes(self) -> bool:
        """True if events are gathered at all. Check it before making many of them."""

    @property
    def has_observers(self) -> bool:
        """True if observers are to be called with the events after the commit."""

    @property
    def repeats(self) -> bool:
        """True if repetitive events are gathered, too."""

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; returns the number of changed rows."""

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement once per row of parameters; returns the number of changed rows."""

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add an audit event, if its level is written or observed."""

    def note_past(self, run_id: str, at: int, kind: str, actor: str, data: str) -> None:
        """Add the audit event of an earlier cause, which wrote none itself."""

    def notify(self, change: Change) -> None:
        """Announce a change to waiting code after the commit."""

    def bury(self, run_id: str, error: str) -> None:
        """Log a run that fails or is blocked without its code, after the commit. `error`: its `Failure`, as JSON."""


class TransactionNotices(Protocol):
    """Announcements of a transaction after its commit."""

    @property
    def announced(self) -> int:
        """All announced changes, as one integer."""

    @property
    def observed(self) -> Sequence[NewEvent] | None:
        """Events for observers; None: there are none."""

    @property
    def buried(self) -> Sequence[tuple[str, str]]:
        """Runs that failed or were blocked without their code, each with its error."""


_FULL, _OFF = Audit.FULL, Audit.OFF
#: Kinds of events that are never written, and those that the lower levels do not write.
_SPOKEN = frozenset({NEXT})
_UNWRITTEN = REPEATED | _SPOKEN


class TransactionLog(ABC):
    """Audit events and changes that a transaction gathers; the half of a `Transaction` that needs no database."""

    #: Runs that failed or were blocked without their code, each with its error. A class attribute: hardly ever set.
    buried: tuple[tuple[str, str], ...] = ()

    def __init__(self, actor: str, audit: Audit, *, has_observers: bool) -> None:
        self.actor = actor
        self.audit = audit
        #: Whether any event is gathered.
        self.notes = audit is not _OFF or has_observers
        #: Whether repetitive events are gathered, too. Check it before making one: there may be many.
        self.repeats = audit is _FULL
        #: Events for observers, including those that are not written; None: there are no observers.
        self.observed: list[NewEvent] | None = [] if has_observers else None
        self._writes = audit is not _OFF
        self._unwritten = _SPOKEN if self.repeats else _UNWRITTEN
        #: All announced changes, as one integer: combining flags is slow.
        self.announced = 0
        self._lines: list[NewEvent] = []

    @property
    @abstractmethod
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    @property
    def has_observers(self) -> bool:
        """True if observers are to be called with the events after the commit."""
        return self.observed is not None

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add an audit event, if its level is written or observed."""
        # Looked up once a transaction, and not asked of the level for every line.
        if self._writes and kind not in self._unwritten:
            self._lines.append((run_id, self.now, kind, self.actor, data))
        if self.observed is not None:
            self.observed.append((run_id, self.now, kind, self.actor, data))

    def note_past(self, run_id: str, at: int, kind: str, actor: str, data: str) -> None:
        """Add the audit event of an earlier cause, which wrote none itself."""
        if self._writes and kind not in self._unwritten:
            self._lines.append((run_id, at, kind, actor, data))
        if self.observed is not None:
            self.observed.append((run_id, at, kind, actor, data))

    def observe(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Pass an event to the observers that a statement writes by itself."""
        if self.observed is not None:
            self.observed.append((run_id, self.now, kind, self.actor, data))

    def notify(self, change: Change) -> None:
        """Announce a change to waiting code after the commit."""
        self.announced |= int(change)

    def bury(self, run_id: str, error: str) -> None:
        """Log a run that fails or is blocked without its code, after the commit."""
        self.buried = (*self.buried, (run_id, error))

    def _take_lines(self) -> list[NewEvent]:
        """Take the gathered events, to write them."""
        lines, self._lines = self._lines, []
        return lines


#: What a verb does in a transaction.
X = TypeVar("X", bound=Transaction)
Body = Callable[[Transaction], Coroutine[Any, Any, T]]


def drive(verb: Coroutine[Any, Any, T]) -> T:
    """Run a verb whose transaction never suspends."""
    try:
        verb.send(None)
    except StopIteration as stop:
        value: T = stop.value
        return value
    verb.close()
    raise StoreError(
        "a verb waited inside a transaction that cannot wait; this is a defect in Perdure, please report it"
    )


#: Lengths of lists in statements that are executed with any number of values.
_LENGTHS = (4, 20, 60, 100)


class StatementCount:
    """Number of statements that reading verbs have sent within `counting_statements`."""

    def __init__(self) -> None:
        self.number = 0


_COUNT: ContextVar[StatementCount | None] = ContextVar("perdure_statements", default=None)


@contextmanager
def counting_statements() -> Generator[StatementCount]:
    """Count the statements of reading verbs that this task calls."""
    count = StatementCount()
    token = _COUNT.set(count)
    try:
        yield count
    finally:
        _COUNT.reset(token)


class _CountedTransaction:
    """A transaction that counts its queries."""

    def __init__(self, tx: Transaction, count: StatementCount) -> None:
        self._tx = tx
        self._count = count

    def fetch(self, sql: str, params: Params) -> Coroutine[Any, Any, list[Row]]:
        """Run a query."""
        self._count.number += 1
        return self._tx.fetch(sql, params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def counted(body: Callable[[X], Coroutine[Any, Any, T]]) -> Callable[[X], Coroutine[Any, Any, T]]:
    """The same body of a reading verb, whose statements are counted if the caller wants to know."""
    count = _COUNT.get()
    return body if count is None else lambda tx: body(cast("X", _CountedTransaction(tx, count)))


def padded(name: str, values: Sequence[object]) -> tuple[str, dict[str, object]]:
    """A list for `IN (…)` of one of a few lengths, so that few statements serve any number of values up to 100."""
    length = next(length for length in _LENGTHS if length >= len(values))
    return placeholders(name, [*values, *[values[-1]] * (length - len(values))])


def placeholders(name: str, values: Sequence[object]) -> tuple[str, dict[str, object]]:
    """A list for `IN (…)` and its parameters."""
    text, names = _numbered(name, len(values))
    return text, dict(zip(names, values, strict=True))


@cache
def _numbered(name: str, count: int) -> tuple[str, tuple[str, ...]]:
    """A list of parameters and their names, which depend on their number alone."""
    names = tuple(f"{name}{index}" for index in range(count))
    return ", ".join(f":{key}" for key in names), names
