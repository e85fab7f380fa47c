"""Which gates are worth looking at, and when: those at which somebody stands whom the asker could work on.

Asked by every worker at every look. So it costs as much where very many stand in line as where a few do, and next to nothing where all who
stand there are others' to work on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from perdure.core.model.run import FAR
from perdure.store.sql.dialect import Row, Transaction, placeholders
from perdure.store.sql.runs.create import CHUNK

#: Gates that are waited at by somebody of some types, those that are due first. Said so that there is no other way than to go through the gates
#: in order and look for the first in line along its index: a planner that knows how many wait would rather read them all.
_BY_DUE = """
SELECT g.due_at, g.name
FROM (SELECT due_at, name FROM perdure_gates WHERE due_at <= :until ORDER BY due_at, name) g
WHERE EXISTS (
  SELECT 1
  FROM ({lined}) served
  WHERE (
    SELECT 1
    FROM perdure_lines l {use perdure_lines_by_priority}
    WHERE l.gate = g.name AND l.type = served.type
    ORDER BY l.priority, l.turn, l.run_id
    LIMIT 1
  ) = 1
)
ORDER BY g.due_at, g.name
LIMIT :limit
"""
#: A type, if somebody of it stands in a line. As a range, for the sake of the index.
_LINED = """
SELECT * FROM (
  SELECT type FROM perdure_lines {use perdure_lines_by_type}
  WHERE type >= :type# AND type <= :type#
  ORDER BY type
  LIMIT 1
) part#
"""
#: So many types are asked about together.
_TYPES = 60

#: In an order, for the sake of its index: those who have passed leave a gap at the beginning of a table, which takes time to cross.
_WAITED_AT = """
SELECT g.name
FROM perdure_gates g
WHERE g.name IN ({names}) AND (
  SELECT 1
  FROM perdure_lines l {use perdure_lines_by_priority}
  WHERE l.gate = g.name
  ORDER BY l.type, l.priority, l.turn, l.run_id
  LIMIT 1
) = 1
"""


async def next_due(tx: Transaction, types: Sequence[str]) -> int:
    """When it is worth looking at a gate for somebody of these types."""
    rows = await _by_due(tx, types, FAR - 1, 1)
    return int(rows[0][0]) if rows else FAR


async def due_gates(tx: Transaction, types: Sequence[str], limit: int) -> list[str]:
    """Gates at which somebody of these types may pass, those that have waited longest first."""
    return [row[1] for row in await _by_due(tx, types, tx.now, limit)]


async def waited_at(tx: Transaction, names: Iterable[str]) -> set[str]:
    """Those of the gates in whose lines somebody stands."""
    found: set[str] = set()
    asked = sorted(names)
    for start in range(0, len(asked), CHUNK):
        chosen, params = placeholders("name", asked[start : start + CHUNK])
        found |= {row[0] for row in await tx.fetch(_WAITED_AT.replace("{names}", chosen), params)}
    return found


async def _by_due(tx: Transaction, types: Sequence[str], until: int, limit: int) -> list[Row]:
    found: dict[str, Row] = {}
    for lined, params in _by_type(types):
        rows = await tx.fetch(_BY_DUE.replace("{lined}", lined), {**params, "until": until, "limit": limit})
        found |= {row[1]: row for row in rows}
    return sorted(found.values())[:limit]


async def lined(tx: Transaction, types: Sequence[str]) -> set[str]:
    """Those of the types of which somebody stands in a line."""
    return {row[0] for sql, params in _by_type(types) for row in await tx.fetch(sql, params)}


def _by_type(types: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    for start in range(0, len(types), _TYPES):
        params: dict[str, object] = {f"type{number}": type for number, type in enumerate(types[start : start + _TYPES])}
        yield " UNION ALL ".join(_LINED.replace("#", str(number)) for number in range(len(params))), params
