"""Listing runs: a page by any combination of filters, with a bounded number of rows examined.

A listing has *sources*: queries over one index each that name candidates by creation time and id. An ordered source
gives them in the order of the listing, from the cursor on. An unordered one (a range of ids or of values) is used if it
has few candidates in all. The first source that is that small decides; otherwise the first ordered one. The candidates
are then read by id, a part at a time, and the other filters are checked on them.

The work of one call is bounded by `scan` candidates. A page may have fewer runs than asked for and a cursor, which says
where to go on. A cursor names the last run that was shown or examined, so that runs created meanwhile neither shift the
pages nor appear twice.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.model.attributes import AttributeKind, AttributeValue, Condition, past_prefix
from perdure.core.model.run import CountBy, Run, RunFilter, RunGroup, RunPage, RunTimes, Status
from perdure.core.printed_text import brief
from perdure.errors import InvalidCursor, StoreCorrupt
from perdure.store.sql.dialect import Dialect, Row, Transaction, padded, placeholders
from perdure.store.sql.rows import SHOWN_RUN, to_listed_runs, to_times
from perdure.store.sql.runs.attributes import to_value, with_attributes
from perdure.store.sql.workers import ServedRuns, served_by

#: A source with at most this many candidates in all is the one to use.
FEW = 1000
#: Runs read in one statement, and candidates named in one.
_CHUNK = 100
_MOST_NAMED = 2000

#: A range with at most this many different values is read value by value.
_MOST_VALUES = 4

#: Columns of a run that SQL checks, besides its error.
_CHECKED = "id, status, type, queue, created_at, deleted_at, parent_id"

#: Statuses without an index in the order of creation, by the order of the index that they have.
_OTHER_ORDER = {
    Status.PENDING: "queue, type, priority, wake_at, id",
    Status.RUNNING: "worker, nonce, id",
    Status.WAITING: "wake_at",
}
#: Statuses of runs whose errors are searched, if none is named.
_WITH_ERRORS = (Status.FAILED, Status.CANCELLED, Status.BLOCKED)


class Position(NamedTuple):
    """Place in a listing: creation time and id of a run."""

    created_at: int
    id: str


class _Cursor(Struct, frozen=True):
    """Place from which a page goes on, forwards or backwards, with the run at that place or without it."""

    place: Position
    backwards: bool = False
    inclusive: bool = False

    def encode(self) -> str:
        mark = {(False, False): "", (False, True): "=", (True, False): "<", (True, True): "["}
        text = f"{mark[self.backwards, self.inclusive]}{self.place.created_at}:{self.place.id}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, cursor: str) -> _Cursor:
        try:
            text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
            created_at, _, run_id = text.lstrip("=<[").partition(":")
            marks = text[: len(text) - len(text.lstrip("=<["))]
            if marks not in ("", "=", "<", "[") or not run_id or "\0" in run_id or not 0 <= int(created_at) < 2**63:
                raise ValueError(cursor)
            return cls(Position(int(created_at), run_id), marks in ("<", "["), marks in ("=", "["))
        except (TypeError, ValueError, binascii.Error) as error:
            raise InvalidCursor(
                f"{brief(cursor)} is not a cursor of a listing; pass the cursor of the page before"
            ) from error


class PageBounds(Struct, frozen=True):
    """Part of a listing that is wanted, and its direction."""

    ascending: bool = False
    after: Position | None = None
    inclusive: bool = False
    created_after: int | None = None
    created_before: int | None = None

    def terms(self, id_column: str) -> tuple[list[str], dict[str, object]]:
        """Conditions on `created_at` and the id, for an ordered source."""
        found: list[str] = []
        params: dict[str, object] = {}
        if self.created_after is not None:
            found.append("created_at > :created_after")
            params["created_after"] = self.created_after
        if self.created_before is not None:
            found.append("created_at < :created_before")
            params["created_before"] = self.created_before
        if self.after is not None:
            more = ">" if self.ascending else "<"
            # The first term is implied, but some planners find no range of the index in the second.
            found.append(
                f"created_at {more}= :last_at AND (created_at, {id_column}) {more}{'=' * self.inclusive} "
                "(:last_at, :last_id)"
            )
            params |= {"last_at": self.after.created_at, "last_id": self.after.id}
        return found, params

    @property
    def order(self) -> str:
        """Direction of the listing in SQL."""
        return "ASC" if self.ascending else "DESC"


class Source(Struct, frozen=True):
    """Query of candidates over one index."""

    table: str
    #: Index that MySQL is told to use.
    index: str
    #: Alternatives, each a list of conditions, and their parameters.
    terms: tuple[tuple[str, ...], ...]
    params: dict[str, object]
    #: Order of the index of each alternative, of a source that is not ordered by creation.
    orders: tuple[str, ...] | None = None
    #: Conditions that all its candidates fulfil; others are checked on them.
    fulfilled: tuple[Condition, ...] = ()

    @property
    def id(self) -> str:
        """Column with the id of the run."""
        return "id" if self.table == "perdure_runs" else "run_id"

    def covers(self, filter: RunFilter) -> bool:
        """True if all its candidates fulfil the filter."""
        if self.table != "perdure_runs":
            return False
        rest = replace(filter, oldest=False)
        match self.index:
            case "perdure_runs_by_parent":
                rest = replace(rest, parent_id=None)
            case "perdure_runs_by_status":
                rest = replace(rest, status=None)
            case "perdure_runs_deleted" | "perdure_runs_deleted_by_age":
                rest = replace(rest, deleted=None)
            case "PRIMARY" if self.params:
                rest = replace(rest, id_prefix=None)
            case "PRIMARY":
                rest = replace(rest, status=None)
            case _:
                pass
        if self.orders is None:
            rest = replace(rest, created_after=None, created_before=None)
        return rest == RunFilter(deleted=None)

    def query(self, bounds: PageBounds, limit: int, most: int = FEW + 1) -> tuple[str, dict[str, object]]:
        """Query of up to `limit` candidates in the order of the bounds; an unordered source sorts its first `most`."""
        order = f"ORDER BY created_at {bounds.order}, {{}} {bounds.order} LIMIT {limit}"
        if self.orders is not None:
            terms, params = bounds.terms("id")
            few = self._few(most, bounds.order)
            sql = f"SELECT created_at, id FROM ({few}) AS found {_where(terms)}{order.format('id')}"
            return sql, {**self.params, **params}
        terms, params = bounds.terms(self.id)
        parts = self._parts(terms, [order.format(self.id)] * len(self.terms))
        sql = f"SELECT created_at, id FROM ({_union(parts)}) AS found {order.format('id')}"
        return sql if len(parts) > 1 else parts[0], {**self.params, **params}

    def size(self, bounds: PageBounds, most: int) -> tuple[str, dict[str, object]]:
        """Query of the number of candidates up to `most`; of an unordered source, also those outside of the bounds."""
        terms, params = bounds.terms(self.id) if self.orders is None else ([], {})
        orders = self.orders or [f"created_at {bounds.order}, {self.id} {bounds.order}"] * len(self.terms)
        # Without columns, so that the index alone is read.
        parts = self._parts(terms, [f"ORDER BY {order} LIMIT {most}" for order in orders], "1 AS one")
        found = parts[0] if len(parts) == 1 else f"{_union(parts)} LIMIT {most}"
        return f"SELECT COUNT(*) FROM ({found}) AS counted", {**self.params, **params}

    def rows(self, bounds: PageBounds, limit: int) -> tuple[str, list[str], dict[str, object]]:
        """Query of up to `limit` rows of runs in the order of the index, and what is left to check of the bounds.

        It has the columns that are checked, so that no run is looked up by its id.
        """
        terms, params = bounds.terms("id")
        inner = terms if self.orders is None else []
        orders = self.orders or [f"created_at {bounds.order}, id {bounds.order}"] * len(self.terms)
        parts = self._parts(inner, [f"ORDER BY {order} LIMIT {limit}" for order in orders], _CHECKED)
        found = parts[0] if len(parts) == 1 else f"{_union(parts)} LIMIT {limit}"
        return found, [] if self.orders is None else terms, {**self.params, **params}

    def _few(self, most: int, direction: str) -> str:
        # In the direction of the listing: SQLite keeps the first rows of a sort, and drops later ones at once.
        orders = [", ".join(f"{column} {direction}" for column in order.split(", ")) for order in self.orders or ()]
        parts = self._parts([], [f"ORDER BY {order} LIMIT {most}" for order in orders])
        return parts[0] if len(parts) == 1 else f"{_union(parts)} LIMIT {most}"

    def _parts(self, more: Sequence[str], ends: Sequence[str], columns: str = "") -> list[str]:
        """A query for each alternative. Limits are written out, so that no planner has to guess them."""
        columns = columns or f"created_at, {self.id} AS id"
        return [
            f"SELECT {columns} FROM {self.table} {{use {self.index}}} {_where([*terms, *more])}{end}"
            for terms, end in zip(self.terms, ends, strict=True)
        ]


def _union(parts: Sequence[str]) -> str:
    return " UNION ALL ".join(f"SELECT * FROM ({part}) AS part{number}" for number, part in enumerate(parts))


def is_backwards(cursor: str | None) -> bool:
    """True if a cursor leads to the page before. Raises `InvalidCursor`."""
    return cursor is not None and _Cursor.decode(cursor).backwards


async def list_runs(
    tx: Transaction, filter: RunFilter, limit: int, cursor: str | None, scan: int, dialect: Dialect
) -> RunPage:
    """A page of runs."""
    given = None if cursor is None else _Cursor.decode(cursor)
    backwards = given is not None and given.backwards
    filter = _complete(filter)
    if _is_empty(filter):
        return RunPage((), None)
    served = await served_by(tx) if filter.unserved else ()
    bounds = PageBounds(
        filter.oldest != backwards,
        None if given is None else given.place,
        given is not None and given.inclusive,
        filter.created_after,
        filter.created_before,
    )
    found = await _collect(tx, filter, served, bounds, limit + 1, scan, dialect)
    runs, last = found.runs[:limit], found.stopped_at
    if len(found.runs) > limit:
        last = _place(runs[-1])
    if backwards:
        runs.reverse()
    onwards, back = _cursors(runs, last, given)
    return RunPage(tuple(await with_attributes(tx, runs)), onwards, back)


def _complete(filter: RunFilter) -> RunFilter:
    if filter.unserved:
        # Any other run is served, or waits for something else than a worker.
        wanted = filter.status is None or Status.PENDING in filter.status
        return replace(filter, status=(Status.PENDING,) if wanted else ())
    searched = filter.error is not None and filter.status is None
    return replace(filter, status=_WITH_ERRORS) if searched else filter


def _is_empty(filter: RunFilter) -> bool:
    """True if no run can fulfil it."""
    return filter.status == () or any(not one.values for one in filter.attributes)


def _cursors(runs: list[Run], last: Position | None, given: _Cursor | None) -> tuple[str | None, str | None]:
    """Cursors to the next and the previous page; `last` is where a page that did not reach the end stopped."""
    if given is None or not given.backwards:
        onwards = None if last is None else _Cursor(last).encode()
        if given is None:
            return onwards, None
        back = _Cursor(_place(runs[0]), True) if runs else _Cursor(given.place, True, not given.inclusive)
        return onwards, back.encode()
    forth = _Cursor(_place(runs[-1])) if runs else _Cursor(given.place, False, not given.inclusive)
    return forth.encode(), None if last is None else _Cursor(last, True).encode()


class _Found(Struct):
    """Runs of a page in the direction of the listing, and the last candidate if the scan ended before the end."""

    runs: list[Run]
    stopped_at: Position | None = None


async def _collect(
    tx: Transaction,
    filter: RunFilter,
    served: Sequence[ServedRuns],
    bounds: PageBounds,
    wanted: int,
    scan: int,
    dialect: Dialect,
) -> _Found:
    source = await _chosen(tx, filter, bounds, dialect)
    check = _Check(filter, source.fulfilled, served)
    found = _Found([])
    # A few more where some will fail; for 50 runs still one of the lengths of a padded list.
    size = wanted if source.covers(replace(filter, deleted=None)) else wanted + wanted // 6 + 1
    while True:
        size = min(size, scan)
        sql, params = source.query(bounds, size)
        candidates: list[Row] = await tx.fetch(sql, params)
        await _read(tx, check, candidates, wanted, found)
        scan -= len(candidates)
        if len(found.runs) >= wanted or len(candidates) < size:
            return found
        bounds = replace(bounds, after=Position(*candidates[-1]), inclusive=False)
        if scan <= 0:
            found.stopped_at = bounds.after
            return found
        size = min(4 * size, _MOST_NAMED)


async def _chosen(tx: Transaction, filter: RunFilter, bounds: PageBounds, dialect: Dialect) -> Source:
    """The first source with few candidates, else the first that is ordered."""
    sources = sources_of(filter, dialect)
    if dialect.seeks_values and (by_value := await _by_value(tx, sources)) is not None:
        return by_value
    if len(sources) > 2 or sources[0].orders is not None:
        # The last one is the index of all runs.
        for source in sources[:-1]:
            if source.table != "perdure_runs" and not source.fulfilled and source.orders is None:
                # All runs with an attribute: for want of a better one.
                continue
            sql, params = source.size(bounds, FEW + 1)
            [(count,)] = await tx.fetch(sql, params)
            if count <= FEW:
                return source
    return next(source for source in sources if source.orders is None)


#: Steps from value to value along an index, each by one seek.
_VALUES = f"""
WITH RECURSIVE found (value, number) AS (
  SELECT (SELECT {{column}} FROM perdure_attributes WHERE {{terms}} ORDER BY name, {{column}} LIMIT 1), 1
  UNION ALL
  SELECT (
    SELECT {{column}} FROM perdure_attributes WHERE {{others}} AND {{column}} > found.value
    ORDER BY name, {{column}} LIMIT 1
  ), found.number + 1
  FROM found
  WHERE found.value IS NOT NULL AND found.number <= {_MOST_VALUES}
)
SELECT value FROM found WHERE value IS NOT NULL
"""


async def _by_value(tx: Transaction, sources: Sequence[Source]) -> Source | None:
    """An ordered source for a range of few different values; None if they are many, or another source may be better.

    The index has the runs of each value in the order of creation, so that nothing is counted and sorted.
    """
    first = sources[0]
    alone = all(not source.fulfilled and source.orders is None for source in sources[1:])
    if first.table == "perdure_runs" or first.orders is None or len(sources) > 3 or not alone:
        return None
    column = first.orders[0].split(", ")[1]
    # With two lower bounds, SQLite may begin at the lesser one again.
    above = " AND ".join(term for term in first.terms[0] if not term.startswith(f"{column} >"))
    sql = _VALUES.format(column=column, terms=" AND ".join(first.terms[0]), others=above)
    rows = await tx.fetch(sql, first.params)
    if len(rows) > _MOST_VALUES:
        return None
    others = tuple(term for term in first.terms[0] if not term.startswith(column))
    terms = tuple((*others, f"{column} = :value{number}") for number in range(len(rows)))
    params = {**first.params, **{f"value{number}": value for number, (value,) in enumerate(rows)}}
    # Without any value, the range has nothing, and is read as it is.
    return replace(first, terms=terms, params=params, orders=None) if terms else first


async def _read(tx: Transaction, check: _Check, candidates: Sequence[Row], wanted: int, found: _Found) -> None:
    """Read candidates, as positions, in their order and keep those that pass, until there are enough."""
    for start in range(0, len(candidates), _CHUNK):
        part = candidates[start : start + _CHUNK]
        chosen, params = padded("id", [id for _, id in part])
        rows = await tx.fetch(check.sql.replace("{chosen}", chosen), {**check.params, **params})
        runs = {run.id: run for run in to_listed_runs(rows)}
        complete = check.is_complete
        for created_at, id in part:
            run = runs.get(id)
            # A candidate of another time is an attribute of an earlier run of that id.
            if run is not None and run.created_at == created_at and (complete or check.passes(id, run.error)):
                found.runs.append(run)
                if len(found.runs) == wanted:
                    return


def _place(run: Run) -> Position:
    return Position(run.created_at, run.id)


class _Check:
    """Query of candidates by id with all filters but those of the bounds, and the checks that SQL cannot make."""

    def __init__(self, filter: RunFilter, fulfilled: Sequence[Condition], served: Sequence[ServedRuns] = ()) -> None:
        self.terms, self.params = residual_terms(filter, fulfilled, "r")
        for number, one in enumerate(served):
            term, params = one.exclude("r", f"served{number}")
            self.terms.append(term)
            self.params |= params
        columns = ", ".join(f"r.{column}" for column in SHOWN_RUN.split(", "))
        self.sql = f"SELECT {columns} FROM perdure_runs r {{use PRIMARY}} " + _where(
            ["r.id IN ({chosen})", *self.terms]
        )
        self._error = None if filter.error is None else _folded(filter.error)
        self._schedule = filter.schedule

    @property
    def is_complete(self) -> bool:
        """True if SQL checks everything."""
        return self._error is None and self._schedule is None

    def passes(self, run_id: str, error: str | None) -> bool:
        """Check what SQL has only narrowed down."""
        if self._schedule is not None and run_id.rpartition("@")[0] != self._schedule:
            return False
        if self._error is None:
            return True
        failure = Failure.read(error)
        return self._error in _folded(failure.message) or self._error in _folded(failure.type)


def residual_terms(filter: RunFilter, fulfilled: Sequence[Condition], run: str) -> tuple[list[str], dict[str, object]]:
    """Conditions on the row of a run, called `run` in the query, besides the time of its creation."""
    terms: list[str] = []
    params: dict[str, object] = {}
    if filter.status is not None:
        chosen, params = placeholders("status", [status.value for status in filter.status])
        terms.append(f"{run}.status IN ({chosen})")
    if filter.deleted is not None:
        terms.append(f"{run}.deleted_at {'> 0' if filter.deleted else '= 0'}")
    for column in ("type", "queue", "parent_id", "build"):
        value = getattr(filter, column)
        if value is not None:
            terms.append(f"{run}.{column} = :{column}")
            params[column] = value
    if filter.roots:
        terms.append(f"{run}.parent_id IS NULL")
    for number, prefix in enumerate(_prefixes(filter)):
        more, given = _range(f"{run}.id", f"id{number}", prefix)
        terms, params = [*terms, *more], {**params, **given}
    if filter.error is not None:
        terms.append(f"{run}.error IS NOT NULL")
        if part := _searched(filter.error):
            terms.append(f"LOWER({run}.error) LIKE :error_part ESCAPE '!'")
            params["error_part"] = f"%{part}%"
    for number, one in enumerate(filter.attributes):
        if one not in fulfilled:
            compared, given = _compared("a.", one, f"a{number}")
            any_of = " OR ".join(f"({' AND '.join(part)})" for part in compared)
            # A count, which no planner turns into a join in another order.
            terms.append(
                f"(SELECT COUNT(*) FROM perdure_attributes a WHERE a.run_id = {run}.id AND a.name = :a{number}_name "
                f"AND a.created_at = {run}.created_at AND ({any_of})) > 0"
            )
            params |= {**given, f"a{number}_name": one.name}
    return terms, params


def _prefixes(filter: RunFilter) -> list[str]:
    schedule = None if filter.schedule is None else f"{filter.schedule}@"
    return [prefix for prefix in (filter.id_prefix, schedule) if prefix]


def sources_of(filter: RunFilter, dialect: Dialect) -> list[Source]:
    """Sources of candidates for a filter, the most promising first; the last has all runs."""
    found: list[Source] = []
    if filter.parent_id is not None:
        terms = (("parent_id = :parent_id",),)
        found.append(Source("perdure_runs", "perdure_runs_by_parent", terms, {"parent_id": filter.parent_id}))
    ranges: dict[tuple[str, str], Source] = {}
    for number, one in enumerate(filter.attributes):
        source = _source_of_attribute(one, f"a{number}")
        if source.orders is None:
            found.append(source)
        else:
            # Conditions on the same values are one range.
            there = ranges.get((one.name, source.index))
            ranges[one.name, source.index] = source if there is None else _both(there, source)
    others: list[Source] = []
    if filter.status is not None and Status.COMPLETED not in filter.status:
        listed = all(status.value in dialect.listed for status in filter.status)
        (found if listed else others).append(_source_of_statuses(filter.status, listed=listed))
    elif filter.status is not None and filter.status == (Status.COMPLETED,):
        if Status.COMPLETED.value in dialect.listed:
            found.append(_source_of_statuses(filter.status, listed=True))
        else:
            ends = ("finished_at, deadline, id",)
            others.append(Source("perdure_runs", "perdure_runs_by_end", (("finished_at > 0",),), {}, ends))
    for number, prefix in enumerate(_prefixes(filter)):
        ids, params = _range("id", f"id{number}", prefix)
        others.append(Source("perdure_runs", "PRIMARY", (tuple(ids),), params, orders=("id",)))
    if filter.deleted and dialect.lists_deleted:
        found.append(Source("perdure_runs", "perdure_runs_deleted_by_age", (("deleted_at > 0",),), {}))
    elif filter.deleted:
        others.append(
            Source("perdure_runs", "perdure_runs_deleted", (("deleted_at > 0",),), {}, orders=("deleted_at, id",))
        )
    found += [*ranges.values(), *others]
    for one in filter.attributes:
        if one.operator not in ("=", "in"):
            # Runs that have the attribute at all, for a range that has many.
            found.append(_having(one.name))
            break
    return [*found, Source("perdure_runs", "perdure_runs_by_age", ((),), {})]


def _source_of_statuses(statuses: Sequence[Status], *, listed: bool) -> Source:
    chosen = list(dict.fromkeys(statuses))
    params: dict[str, object] = {f"status{number}": status.value for number, status in enumerate(chosen)}
    # The second condition says the obvious, so that a partial index can be used.
    terms = tuple(
        (f"status = :status{number}",)
        if status is Status.COMPLETED
        else (f"status = :status{number}", "status <> 'completed'")
        for number, status in enumerate(chosen)
    )
    if listed:
        return Source("perdure_runs", "perdure_runs_by_status", terms, params)
    # Named in the text, for partial indexes of one status each.
    literal = tuple((f"status = '{status.value}'",) for status in chosen)
    orders = tuple(_OTHER_ORDER.get(status, "created_at, id") for status in chosen)
    return Source("perdure_runs", "PRIMARY", literal, {}, orders)


def _both(one: Source, other: Source) -> Source:
    """One range from two of the same attribute and index."""
    terms = (tuple(dict.fromkeys((*one.terms[0], *other.terms[0]))),)
    fulfilled = (*one.fulfilled, *other.fulfilled)
    return replace(one, terms=terms, params={**one.params, **other.params}, fulfilled=fulfilled)


def _source_of_attribute(one: Condition, key: str) -> Source:
    column = one.values[0].column
    index = f"perdure_attributes_by_{column.removesuffix('_value')}"
    compared, params = _compared("", one, key)
    terms = tuple((f"name = :{key}_name", *part) for part in compared)
    orders = None if one.operator in ("=", "in") else (f"name, {column}, created_at, run_id",)
    return Source("perdure_attributes", index, terms, {**params, f"{key}_name": one.name}, orders, (one,))


def _compared(table: str, one: Condition, key: str) -> tuple[tuple[tuple[str, ...], ...], dict[str, object]]:
    """Conditions on the value of an attribute, as alternatives, and their parameters."""
    params: dict[str, object] = {}
    if one.operator == "prefix":
        terms, params = _range(f"{table}text_value", key, one.values[0].text or "")
        return (tuple(terms) or (f"{table}text_value IS NOT NULL",),), params
    operator = "=" if one.operator == "in" else one.operator
    alternatives: list[tuple[str, ...]] = []
    for number, value in enumerate(dict.fromkeys(one.values)):
        params[f"{key}_{number}"] = value.stored
        terms = [f"{table}{value.column} {operator} :{key}_{number}"]
        if value.column == "number_value":
            terms.append(f"{table}kind {'=' if value.kind is AttributeKind.BOOL else '<>'} 'bool'")
        alternatives.append(tuple(terms))
    return tuple(alternatives), params


def _range(column: str, key: str, prefix: str) -> tuple[list[str], dict[str, object]]:
    """Conditions for texts with a prefix, as a range of an index."""
    if not prefix:
        return [], {}
    params: dict[str, object] = {f"{key}_from": prefix}
    terms = [f"{column} >= :{key}_from"]
    if (end := past_prefix(prefix)) is not None:
        params[f"{key}_to"] = end
        terms.append(f"{column} < :{key}_to")
    return terms, params


def _where(terms: Sequence[str]) -> str:
    return f"WHERE {' AND '.join(terms)} " if terms else ""


def _folded(text: str) -> str:
    """Text in which upper and lower case of ASCII letters are the same."""
    if text.isascii():
        return text.lower()
    return "".join(one.lower() if one.isascii() else one for one in text)


def _searched(text: str) -> str:
    """The longest part of a text that is the same in every JSON of it, as a pattern of LIKE with `!` as escape."""
    parts = [""]
    for one in _folded(text):
        if one.isascii() and one.isprintable() and one not in "\"'\\/<>&":
            parts[-1] += one
        else:
            parts.append("")
    longest = max(parts, key=len)
    return "".join(f"!{one}" if one in "!%_" else one for one in longest)


_TIMES = """
SELECT type, status, created_at, started_at, finished_at, deleted_at
FROM perdure_runs {use perdure_runs_by_age}
WHERE created_at > :created_after AND created_at < :created_before
ORDER BY created_at DESC, id DESC
LIMIT :limit
"""


async def run_times(tx: Transaction, created_after: int, created_before: int, limit: int) -> list[RunTimes]:
    """Types, statuses and times of the latest runs between two times."""
    params = {"created_after": created_after, "created_before": created_before, "limit": limit}
    return to_times(await tx.fetch(_TIMES, params))


# Counts

#: Candidates whose errors are read for one count.
_ERRORS = 1000
_MOST_GROUPS = 1000

_ANY_DELETED = """
SELECT 1
FROM perdure_runs {use perdure_runs_deleted}
WHERE deleted_at > 0
ORDER BY deleted_at, id
LIMIT 1
"""
#: Columns by which runs are grouped, and by which attributes are.
_GROUPS = {"": "''", "status": "r.status", "type": "r.type", "queue": "r.queue", "build": "r.build"}
_GROUPED_ATTRIBUTE = "a.kind, a.text_value, a.number_value, a.time_value"


async def count_runs(tx: Transaction, filter: RunFilter, by: CountBy, most: int, dialect: Dialect) -> list[RunGroup]:
    """Count runs by groups, from at most about `most` candidates each."""
    filter = _complete(filter)
    if _is_empty(filter):
        return [] if by.is_grouped else [RunGroup("", 0)]
    if filter.deleted is False and not await tx.fetch(_ANY_DELETED, {}):
        # Then the index alone tells the number of many filters.
        filter = replace(filter, deleted=None)
    if by.column != "status":
        return await _count(tx, filter, by, most, dialect)
    groups: list[RunGroup] = []
    for status in filter.status or tuple(Status):
        # Each status by itself, so that many runs of one leave the others exact.
        [one] = await _count(tx, replace(filter, status=(status,)), CountBy(), most, dialect)
        if one.count or not one.exact:
            groups.append(replace(one, value=status.value))
    return sorted(groups, key=lambda one: (-one.count, str(one.value)))


async def _count(tx: Transaction, filter: RunFilter, by: CountBy, most: int, dialect: Dialect) -> list[RunGroup]:
    check_most = min(most, _ERRORS) if filter.error is not None else most
    bounds = PageBounds(created_after=filter.created_after, created_before=filter.created_before)
    served = await served_by(tx) if filter.unserved else ()
    source, candidates = await _smallest(tx, filter, by, bounds, check_most + 1, dialect)
    exact = candidates <= check_most
    if not by.is_grouped and source.covers(filter):
        return [RunGroup("", min(candidates, check_most), exact)]
    check = _Check(filter, source.fulfilled, served)
    if not by.is_grouped and not exact and check.is_complete:
        return [RunGroup("", min(await _counted(tx, source, bounds, check, check_most + 1), check_most), exact)]
    found = await _grouped(tx, source, bounds, check, by, check_most + 1)
    groups = [RunGroup(value, min(count, check_most), exact) for value, count in found]
    return groups or ([] if by.is_grouped else [RunGroup("", 0, exact)])


async def _smallest(
    tx: Transaction, filter: RunFilter, by: CountBy, bounds: PageBounds, limit: int, dialect: Dialect
) -> tuple[Source, int]:
    """The source with the fewest candidates up to a limit, and their number."""
    sources = sources_of(filter, dialect)
    if by.attribute:
        sources.insert(-1, _having(by.attribute))
    best, fewest = sources[-1], limit + 1
    # All runs by their age are a good source for a range of time, or for want of a better one.
    bounded = bounds.created_after is not None or bounds.created_before is not None
    for source in sources if bounded else sources[:-1] or sources:
        sql, params = source.size(bounds, limit)
        [(count,)] = await tx.fetch(sql, params)
        if count < fewest:
            best, fewest = source, count
    return best, fewest


async def _counted(tx: Transaction, source: Source, bounds: PageBounds, check: _Check, limit: int) -> int:
    """Number of runs up to a limit, from at most twice as many candidates: some of them fail the check."""
    if source.table == "perdure_runs":
        sql, terms, params = source.rows(bounds, 2 * limit)
        found = f"FROM ({sql}) AS r {_where([*check.terms, *terms])}"
    else:
        sql, params = source.query(bounds, 2 * limit, 2 * limit)
        found = f"{_joined(sql)}{_where(check.terms)}"
    [(count,)] = await tx.fetch(
        f"SELECT COUNT(*) FROM (SELECT 1 AS one {found}LIMIT {limit}) AS counted", {**params, **check.params}
    )
    return int(count)


def _joined(candidates: str) -> str:
    return f"FROM ({candidates}) AS c JOIN perdure_runs r ON r.id = c.id AND r.created_at = c.created_at "


async def _grouped(
    tx: Transaction, source: Source, bounds: PageBounds, check: _Check, by: CountBy, limit: int
) -> list[tuple[AttributeValue, int]]:
    sql, params = source.query(bounds, limit, limit)
    columns = _GROUPED_ATTRIBUTE if by.attribute else _GROUPS[by.column]
    joined = _joined(sql)
    terms, given = check.terms, {**params, **check.params}
    if by.attribute:
        joined += (
            "JOIN perdure_attributes a ON a.run_id = r.id AND a.name = :group_name AND a.created_at = r.created_at "
        )
        given["group_name"] = by.attribute
    if check.is_complete:
        rows = await tx.fetch(
            f"SELECT {columns}, COUNT(*) AS size {joined}{_where(terms)}"
            + (f"GROUP BY {columns} ORDER BY size DESC, {columns} LIMIT {_MOST_GROUPS}" if by.is_grouped else ""),
            given,
        )
        return [(_group_of(by, row[:-1]), row[-1]) for row in rows]
    found: dict[AttributeValue, int] = {}
    for run_id, error, *row in await tx.fetch(f"SELECT r.id, r.error, {columns} {joined}{_where(terms)}", given):
        if check.passes(run_id, error):
            value = _group_of(by, tuple(row))
            found[value] = found.get(value, 0) + 1
    return sorted(found.items(), key=lambda one: (-one[1], str(one[0])))


def _group_of(by: CountBy, row: Row) -> AttributeValue:
    if not by.attribute:
        return str(row[0])
    try:
        return to_value("", by.attribute, *row)
    except StoreCorrupt:
        return ""


def _having(name: str) -> Source:
    """Runs that have an attribute at all."""
    return Source("perdure_attributes", "perdure_attributes_by_age", (("name = :having",),), {"having": name})
