"""What the shared SQL needs to know of a database, and the transaction that it runs in.

Verbs are written once, as coroutines over a `Transaction`, in SQL that every database understands: `:name` parameters,
tables called `perdure_…`, and `{…}` where databases differ. Rendering fills those gaps and puts the user's own prefix in.
A transaction of a database without an asynchronous driver never suspends its verb, so a plain thread can drive it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from perdure.errors import StoreError
from perdure.store.contract import Change, NewEvent

T = TypeVar("T")
Row = tuple[Any, ...]
Params = Mapping[str, Any]

DEFAULT_PREFIX = "perdure_"

_NAME = re.compile(r"\bperdure_(\w+)")
_USE = re.compile(r"\{use (\w+)\}")
_OF_STATE = re.compile(r"\{(\w+) of (pending|waiting)\}")
_IN_STATE = re.compile(r"\{(pending|waiting) (\w+\.)?(\w+)\}")
_TABLES = frozenset({
    "runs", "history", "messages", "events", "outputs", "topics", "pauses", "schedules", "workers", "health", "registry", "migrations",
    "gates", "lines", "permits", "shares",
    "locks", "singletons", "successors", "watermarks",
    "runs_view", "events_view", "types_view", "workers_view",
})  # fmt: skip


class Dialect(Struct, frozen=True, kw_only=True):
    """A database as a value."""

    name: str
    #: Appended to an INSERT so that a duplicate key is no error and changes nothing.
    or_ignore: str
    #: Appended to a SELECT of rows that are about to be written; empty where the transaction owns the whole database.
    for_update: str
    #: The same for rows of which those that somebody else has locked are left out.
    skip_locked: str
    #: Appended to an INSERT into gates, as `or_ignore` is, where that is no error either.
    keep_gate: str
    #: What makes a SELECT use an index, with its name for `{}`; empty where the planner finds it by itself.
    use_index: str
    #: Where there are no partial indexes: by state and column, a column that has its value in that state only, and NULL in any other.
    #: Of `{pending queue} = :queue` becomes a comparison with that, or else one of the state and one of the column; of
    #: `{queue of pending}` the name alone.
    only_in: dict[str, str] = {}
    #: A query that yields a row if the table `:name` exists.
    table_exists: str
    #: An expression for the database's time in microseconds; empty where that is the time of this machine.
    time: str = ""

    def render(self, sql: str, tables: str) -> str:
        """The statement as this database wants it; `tables` is how the names of tables begin, after their schema if any."""
        text = sql.replace("{or_ignore}", self.or_ignore).replace("{for_update}", self.for_update)
        if "{" in text:
            text = text.replace("{skip_locked}", self.skip_locked).replace("{keep_gate}", self.keep_gate)
            text = _USE.sub(lambda index: self.use_index.format(index[1]), text)
            text = _OF_STATE.sub(lambda found: self._column(found[2], found[1]), text)
            text = _IN_STATE.sub(lambda found: self._in_state(found[1], found[2] or "", found[3]), text)
        if tables == DEFAULT_PREFIX:
            return text
        # An index is made in the schema of its table, and must not name it.
        others = tables.rpartition(".")[2]
        return _NAME.sub(lambda name: (tables if name[1] in _TABLES else others) + name[1], text)

    def _column(self, state: str, column: str) -> str:
        return self.only_in.get(f"{state} {column}", column)

    def _in_state(self, state: str, table: str, column: str) -> str:
        found = f"{table}{self._column(state, column)}"
        return found if f"{state} {column}" in self.only_in else f"{table}status = '{state}' AND {found}"


class Transaction(Protocol):
    """One open transaction. Events noted in it are written with it; a stir is passed on once it is durable."""

    @property
    def now(self) -> int:
        """The database's time when the transaction got its locks."""

    @property
    def actor(self) -> str:
        """Who caused it, for the audit trail."""

    @property
    def notes(self) -> bool:
        """Whether anything is noted at all. To be asked before a line is made for each of many."""

    @property
    def has_observers(self) -> bool:
        """Whether somebody listens to what is noted, when it is durable."""

    @property
    def repeats(self) -> bool:
        """Whether the audit trail is told what only repeats."""

    async def execute(self, sql: str, params: Params) -> int:
        """Run one statement; how many rows it changed."""

    async def execute_many(self, sql: str, rows: Sequence[Params]) -> int:
        """Run one statement once per row of parameters; how many rows were changed in all."""

    async def fetch(self, sql: str, params: Params) -> list[Row]:
        """Run a query."""

    def note(self, run_id: str, kind: str, data: str = "{}") -> None:
        """Add a line to the audit trail, if it is of the level that is written."""

    def notify(self, change: Change) -> None:
        """Say what this changes for somebody who waits."""


class TransactionNotices(Protocol):
    """What a transaction has to tell when it is over."""

    @property
    def changes(self) -> Change:
        """Everything that was said to change."""

    @property
    def observed(self) -> Sequence[NewEvent] | None:
        """Lines of the audit trail for those who listen; None: nobody does."""


#: What a verb does in a transaction.
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
        "A verb waited inside a transaction that cannot wait. This is a defect in Perdure; please report it."
    )


def placeholders(name: str, values: Sequence[object]) -> tuple[str, dict[str, object]]:
    """A list for `IN (…)` and its parameters."""
    params = {f"{name}{index}": value for index, value in enumerate(values)}
    return ", ".join(f":{key}" for key in params), params
