"""Attributes of runs: one row for each, written under the lock of the run's row.

A row repeats the time at which its run was created, so that an index gives the runs of a value in the order of a
listing. A row with another time than its run belongs to an earlier run of the same id, which a worker of an older
version has pruned; it counts as absent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import force_setattr

from perdure.core.model.attributes import Attribute, AttributeKind, AttributeValue, attributes_from_json
from perdure.core.model.outputs import NewOutput
from perdure.core.model.run import NewRun, Run
from perdure.core.time.duration import moment_of
from perdure.errors import StoreCorrupt
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction, padded
from perdure.store.sql.rows import UNREADABLE, readable, unreadable

#: Attributes to set, by run and name; None removes one.
Changes = Mapping[str, Mapping[str, Attribute | None]]

_CHUNK = 100
_COLUMNS = "kind, text_value, number_value, time_value"

_OF_RUNS = """
SELECT r.id, a.name, a.kind, a.text_value, a.number_value, a.time_value
FROM perdure_runs r
JOIN perdure_attributes a ON a.run_id = r.id AND a.created_at = r.created_at
WHERE r.id IN ({})
ORDER BY r.id, a.name
"""

_OF_READ_RUNS = f"""
SELECT run_id, created_at, name, {_COLUMNS}
FROM perdure_attributes {{use PRIMARY}}
WHERE run_id IN ({{chosen}})
ORDER BY run_id, name
"""

_TO_COMPARE = """
SELECT r.id, r.created_at, a.created_at, a.name, a.kind, a.text_value, a.number_value, a.time_value
FROM perdure_runs r
LEFT JOIN perdure_attributes a ON a.run_id = r.id
WHERE r.id IN ({})
"""

_INSERT = f"""
INSERT INTO perdure_attributes (run_id, name, {_COLUMNS}, created_at)
VALUES (:run_id, :name, :kind, :text_value, :number_value, :time_value, :created_at)
"""

_UPDATE = """
UPDATE perdure_attributes
SET kind = :kind, text_value = :text_value, number_value = :number_value, time_value = :time_value,
    created_at = :created_at
WHERE run_id = :run_id AND name = :name
"""

_REMOVE = """
DELETE FROM perdure_attributes
WHERE run_id = :run_id AND name = :name
"""


async def read_attributes(tx: Transaction, run_ids: Sequence[str]) -> dict[str, dict[str, AttributeValue]]:
    """Attributes of runs that have any. An unreadable one raises `StoreCorrupt`."""
    found: dict[str, dict[str, AttributeValue]] = {}
    for start in range(0, len(run_ids), _CHUNK):
        chosen, params = padded("id", run_ids[start : start + _CHUNK])
        for run_id, name, *columns in await tx.fetch(_OF_RUNS.format(chosen), params):
            found.setdefault(run_id, {})[name] = to_value(run_id, name, *columns)
    return found


async def with_attributes(tx: Transaction, runs: Sequence[Run]) -> list[Run]:
    """These runs with their attributes. An unreadable attribute is left out, so that it does not spoil a listing."""
    # By both, since an attribute of another time belongs to an earlier run of that id.
    found: dict[tuple[str, int], dict[str, AttributeValue]] = {(run.id, run.created_at): {} for run in runs}
    for start in range(0, len(runs), _CHUNK):
        chosen, params = padded("id", [run.id for run in runs[start : start + _CHUNK]])
        rows = await tx.fetch(_OF_READ_RUNS.replace("{chosen}", chosen), params)
        for run_id, of, name, kind, text, number, time in rows:
            own = found.get((run_id, of))
            if own is None:
                continue
            # The usual kinds without a call: a page has hundreds.
            if kind == "text" and text is not None:
                own[name] = text
                continue
            try:
                own[name] = to_value(run_id, name, kind, text, number, time)
            except StoreCorrupt:
                continue
    for run in runs:
        # The runs were just read for this page; a copy of each would cost a tenth of it.
        force_setattr(run, "attributes", found[run.id, run.created_at])
    return [*runs]


def to_value(run_id: str, name: str, kind: str, text: str | None, number: Any, time: int | None) -> AttributeValue:
    """The value of a row. Raises `StoreCorrupt`."""
    # The usual kinds without an object in between.
    if kind == "text" and text is not None:
        return text
    if number is not None and kind in ("integer", "bool"):
        return int(number) if kind == "integer" else number != 0
    try:
        if time is not None and kind == "time":
            return moment_of(time)
        return Attribute(name, AttributeKind(kind), text, number, time).value
    except UNREADABLE as error:
        raise unreadable("perdure_attributes", f"run_id {run_id!r}, name {name!r}", error) from error


async def set_attributes(tx: Transaction, changes: Changes) -> None:
    """Set and remove attributes of existing runs whose rows are locked. A value that is there is not written again."""
    inserted: list[dict[str, object]] = []
    updated: list[dict[str, object]] = []
    removed: list[dict[str, object]] = []
    created_at, there = await _there(tx, list(changes))
    for run_id, wanted in changes.items():
        for name, one in wanted.items():
            known = there.get((run_id, name))
            if one is None:
                if known is not None:
                    removed.append({"run_id": run_id, "name": name})
                continue
            row = _row(run_id, one, created_at[run_id])
            if known is None:
                inserted.append(row)
            elif known != row:
                updated.append(row)
    await tx.execute_many(_INSERT, inserted)
    await tx.execute_many(_UPDATE, updated)
    await tx.execute_many(_REMOVE, removed)
    if inserted or updated or removed:
        tx.notify(Change.OUTPUT)


async def set_first_attributes(tx: Transaction, runs: Sequence[NewRun]) -> None:
    """Write the attributes of runs that were created just now."""
    changes = {new.id: {one.name: one for one in new.attributes} for new in runs if new.attributes}
    if changes:
        await set_attributes(tx, changes)


async def set_shown_attributes(tx: Transaction, shown: Sequence[tuple[str, NewOutput]]) -> None:
    """Write the attributes that turns have set, in order; each with the id of its run."""
    changes: dict[str, dict[str, Attribute | None]] = {}
    for run_id, output in shown:
        of_run = changes.setdefault(run_id, {})
        if output.payload == "null":
            of_run[output.name] = None
        else:
            [of_run[output.name]] = attributes_from_json(output.payload)
    await set_attributes(tx, changes)


def attributes_of_schedule(schedule_id: str, text: str) -> tuple[Attribute, ...]:
    """Attributes that a schedule gives its runs. Raises `StoreCorrupt`."""
    return readable(attributes_from_json, text, "perdure_schedules", f"id {schedule_id!r}")


async def _there(
    tx: Transaction, run_ids: Sequence[str]
) -> tuple[dict[str, int], dict[tuple[str, str], dict[str, object]]]:
    """Creation times of runs, and the rows of their attributes by run and name."""
    created_at: dict[str, int] = {}
    there: dict[tuple[str, str], dict[str, object]] = {}
    for start in range(0, len(run_ids), _CHUNK):
        chosen, params = padded("id", run_ids[start : start + _CHUNK])
        for run_id, run_created_at, row_created_at, name, *row in await tx.fetch(_TO_COMPARE.format(chosen), params):
            created_at[run_id] = run_created_at
            if name is not None:
                names = ("run_id", "name", "kind", "text_value", "number_value", "time_value", "created_at")
                there[run_id, name] = dict(zip(names, (run_id, name, *row, row_created_at), strict=True))
    return created_at, there


def _row(run_id: str, one: Attribute, created_at: int) -> dict[str, object]:
    return {
        "run_id": run_id,
        "name": one.name,
        "kind": one.kind.value,
        "text_value": one.text,
        "number_value": one.number,
        "time_value": one.time,
        "created_at": created_at,
    }
