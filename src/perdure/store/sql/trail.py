"""The audit trail over all runs: a page of it, and forgetting what is old.

Numbers are given when a line is written and not when its transaction commits, so that a line with a lower number may appear after
one with a higher. Whoever follows the trail has to look back a little.
"""

from __future__ import annotations

from perdure.core.audit import EventFilter
from perdure.core.model.run import Event
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import EVENT, to_event, values

_COLUMNS = ", ".join("e." + column for column in EVENT.split(", "))

_OF_TYPE = "EXISTS (SELECT 1 FROM perdure_runs r WHERE r.id = e.run_id AND r.type = :type)"

_FORGET = """
DELETE FROM perdure_events
WHERE id <= :upto AND at < :before
"""


async def events_page(
    tx: Transaction, filter: EventFilter, limit: int, *, before: int | None, after: int | None
) -> list[Event]:
    """Lines before a number, the newest first; or after one, the oldest first."""
    terms, params = _where(filter)
    if before is not None:
        terms.append("e.id < :before")
    if after is not None:
        terms.append("e.id > :after")
    where = f"WHERE {' AND '.join(terms)}" if terms else ""
    # The run comes first in the index that lists a run's lines.
    order = "ASC" if after is not None else "DESC"
    by = f"e.run_id {order}, e.id {order}" if filter.run_id is not None else f"e.id {order}"
    sql = f"SELECT {_COLUMNS} FROM perdure_events e {where} ORDER BY {by} LIMIT :limit"
    return values(to_event, await tx.fetch(sql, {**params, "before": before, "after": after, "limit": limit}))


async def forget_events(tx: Transaction, upto: int, before: int) -> None:
    """Delete the lines up to a number that are older than a time."""
    await tx.execute(_FORGET, {"upto": upto, "before": before})


def _where(filter: EventFilter) -> tuple[list[str], Params]:
    terms: list[str] = []
    params: dict[str, object] = {}
    for column in ("run_id", "actor"):
        value = getattr(filter, column)
        if value is not None:
            terms.append(f"e.{column} = :{column}")
            params[column] = value
    if filter.kinds is not None:
        chosen, kinds = placeholders("kind", filter.kinds)
        terms.append(f"e.kind IN ({chosen})" if kinds else "1 = 0")
        params |= kinds
    if filter.type is not None:
        terms.append(_OF_TYPE)
        params["type"] = filter.type
    if filter.since is not None:
        terms.append("e.at >= :since")
        params["since"] = filter.since
    if filter.until is not None:
        terms.append("e.at < :until")
        params["until"] = filter.until
    return terms, params
