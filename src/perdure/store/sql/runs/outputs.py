"""Outputs of runs: states, streams and replies.

They are written under the lock of the run's row, which keeps the positions of a stream dense. An existing key is not
written again, nor is a second reply to the same message; an unchanged state keeps the time at which it was set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from perdure.core.model.outputs import NUMBERED, REPLACED, NewOutput, Output, OutputKind
from perdure.core.model.set_aside_messages import set_aside_of
from perdure.store.contract import STREAM_NAMES, Change
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import OUTPUT, to_json, to_output, values
from perdure.store.sql.runs.attributes import set_shown_attributes

T = TypeVar("T")
#: Run, kind and name.
Place = tuple[str, str, str]

#: How many lookups travel in one statement.
_CHUNK = 100
#: Characters of an error that an event has.
_SHOWN = 200

#: Plain numbers tell the answers apart: a parameter in a list of columns has no type.
_LAST = """
SELECT {place} AS place, MAX(position)
FROM perdure_outputs
WHERE run_id = :run{place} AND kind = :kind{place} AND name = :name{place}
"""
_KNOWN = """
SELECT {place} AS place, 1
FROM perdure_outputs
WHERE run_id = :run{place} AND output_key = :key{place}
"""

_INSERT = """
INSERT INTO perdure_outputs (run_id, kind, name, position, payload, failed, at, output_key)
VALUES (:run_id, :kind, :name, :position, :payload, :failed, :at, :key)
"""

_REPLACE = """
UPDATE perdure_outputs
SET payload = :payload, failed = :failed, at = :at
WHERE run_id = :run_id AND kind = :kind AND name = :name AND position = :position
  AND (payload <> :payload OR failed <> :failed)
"""

_READ = f"""
SELECT {OUTPUT}
FROM perdure_outputs
WHERE run_id = :run_id AND kind = :kind AND name = :name AND position > :after
ORDER BY run_id, kind, name, position
LIMIT :limit
"""

_READ_ALL = f"""
SELECT {OUTPUT}
FROM perdure_outputs
WHERE run_id = :run_id AND kind = :kind AND position > :after
ORDER BY run_id, kind, name, position
LIMIT :limit
"""


_READ_LATEST = f"""
SELECT {OUTPUT}
FROM perdure_outputs
WHERE run_id = :run_id AND kind = :kind AND name = :name AND position > :after AND position < :before
ORDER BY run_id DESC, kind DESC, name DESC, position DESC
LIMIT :limit
"""

_NEXT_NAME = """
SELECT MIN(name)
FROM perdure_outputs
WHERE run_id = :run_id AND kind = :kind AND name > :name
"""


_LOCK_ALL = """
SELECT id
FROM perdure_runs
WHERE id IN ({chosen})
ORDER BY id
{for_update}
"""

_DELETE_OLD_LINES = """
DELETE FROM perdure_outputs
WHERE run_id = :run_id AND kind = 'log' AND name = '' AND position <= :upto
"""


async def write_outputs(tx: Transaction, shown: Sequence[tuple[str, NewOutput]]) -> None:
    """Write what is not there yet, in this order; each with the id of its run, whose row is locked."""
    if attributes := [one for one in shown if one[1].kind is OutputKind.ATTRIBUTE]:
        await set_shown_attributes(tx, attributes)
        shown = [one for one in shown if one[1].kind is not OutputKind.ATTRIBUTE]
    last = await _last(tx, {(run_id, new.kind.value, new.name) for run_id, new in shown})
    known = await _known(tx, {(run_id, new.key) for run_id, new in shown if new.kind not in REPLACED})
    inserted: dict[tuple[Place, int], Params] = {}
    replaced: dict[tuple[Place, int], Params] = {}
    for run_id, new in shown:
        place = (run_id, new.kind.value, new.name)
        position = last.get(place)
        if new.kind in REPLACED:
            there = position is not None
            (replaced if there else inserted)[place, 0] = _row(place, 0, new, None, tx.now)
        elif (run_id, new.key) not in known and (position is None or new.kind in NUMBERED):
            known.add((run_id, new.key))
            last[place] = 0 if position is None else position + 1
            inserted[place, last[place]] = _row(place, last[place], new, new.key, tx.now)
            if new.kind is OutputKind.SET_ASIDE:
                tx.note(run_id, "message_set_aside", _set_aside(new, last[place]))
    written = await tx.execute_many(_INSERT, list(inserted.values()))
    if written + await tx.execute_many(_REPLACE, list(replaced.values())):
        tx.notify(Change.OUTPUT)


async def keep_log(tx: Transaction, lines: Sequence[tuple[str, NewOutput]], most: int) -> None:
    """Add lines to the logs of those runs that exist, and delete all but the latest lines of each."""
    by_run: dict[str, list[tuple[str, NewOutput]]] = {}
    for one in lines:
        by_run.setdefault(one[0], []).append(one)
    chosen, params = placeholders("id", sorted(by_run))
    there = [run_id for (run_id,) in await tx.fetch(_LOCK_ALL.replace("{chosen}", chosen), params)]
    # A repetition would add a line again that was deleted at once.
    await write_outputs(tx, [one for run_id in there for one in by_run[run_id][-most:]])
    last = await _last(tx, {(run_id, OutputKind.LOG.value, "") for run_id in there})
    too_many = [(run_id, position - most) for (run_id, _, _), position in last.items() if position >= most]
    await tx.execute_many(_DELETE_OLD_LINES, [{"run_id": run_id, "upto": upto} for run_id, upto in too_many])


async def outputs(
    tx: Transaction, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int
) -> list[Output]:
    """Outputs of a run past a position, in the order of name and position."""
    params = {"run_id": run_id, "kind": kind.value, "name": name, "after": after, "limit": limit}
    return values(to_output, await tx.fetch(_READ_ALL if name is None else _READ, params))


async def latest_outputs(
    tx: Transaction, run_id: str, kind: OutputKind, name: str | None, after: int, limit: int, before: int
) -> list[Output]:
    """The latest outputs of a name, or of each name, between two positions, in the order of name and position."""
    found: list[Output] = []
    params = {"run_id": run_id, "kind": kind.value, "after": after, "before": before, "limit": limit}
    names, last = ([] if name is None else [name]), ""
    while name is None and len(names) < STREAM_NAMES:
        [(last,)] = await tx.fetch(_NEXT_NAME, {"run_id": run_id, "kind": kind.value, "name": last})
        if last is None:
            break
        names.append(last)
    for one in names:
        rows = await tx.fetch(_READ_LATEST, {**params, "name": one})
        found += values(to_output, reversed(rows))
    return found


def _set_aside(new: NewOutput, position: int) -> str:
    message = set_aside_of(
        Output(run_id="", kind=new.kind, name="", position=position, payload=new.payload, failed=True, at=0)
    )
    error = {"error": message.error.type, "message": message.error.message[:_SHOWN]}
    return to_json({"name": message.name, "number": position, **error})


def _row(place: Place, position: int, new: NewOutput, key: str | None, now: int) -> Params:
    run_id, kind, name = place
    return {
        "run_id": run_id,
        "kind": kind,
        "name": name,
        "position": position,
        "payload": new.payload,
        "failed": int(new.failed),
        "at": now,
        "key": key,
    }


async def _last(tx: Transaction, places: Iterable[Place]) -> dict[Place, int]:
    found: dict[Place, int] = {}
    for some in _chunks(sorted(places)):
        params = {
            f"{column}{number}": value
            for number, place in enumerate(some)
            for column, value in zip(("run", "kind", "name"), place, strict=True)
        }
        for number, position in await tx.fetch(_each(_LAST, len(some)), params):
            if position is not None:
                found[some[number]] = position
    return found


async def _known(tx: Transaction, keys: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for some in _chunks(sorted(keys)):
        params = {f"run{number}": run_id for number, (run_id, _) in enumerate(some)}
        params |= {f"key{number}": key for number, (_, key) in enumerate(some)}
        found.update(some[number] for number, _ in await tx.fetch(_each(_KNOWN, len(some)), params))
    return found


def _each(lookup: str, count: int) -> str:
    return " UNION ALL ".join(lookup.replace("{place}", str(place)) for place in range(count))


def _chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[at : at + _CHUNK] for at in range(0, len(items), _CHUNK))
