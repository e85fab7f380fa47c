"""Schedules: one row each, locked by the transaction that fires or changes it.

Firing is one transaction: the fire times that are due by the database's clock become runs, the row gets the next fire
time, and the audit trail says which were started and which were skipped. The id of a run follows from its fire time, so
that none has two. A change succeeds only on the version that its author has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.run import FINISHED, NewRun, Run
from perdure.core.policy.singleton import stored_singleton_of
from perdure.core.time.duration import NEVER
from perdure.core.time.firing_plan import plan_firing
from perdure.core.time.schedule import FiringResult, Misfire, Overlap, SaveOutcome, Schedule, run_id_of, trail_of
from perdure.errors import SingletonBusy, StoreCorrupt, StoreUnavailable
from perdure.store.contract import Change
from perdure.store.sql.dialect import Row, Transaction, placeholders
from perdure.store.sql.rows import SHOWN_RUN, UNREADABLE, event_json, to_json, to_listed_runs, unreadable
from perdure.store.sql.runs.attributes import attributes_of_schedule
from perdure.store.sql.runs.create import create
from perdure.store.sql.runs.inbox import cancel

#: How long a schedule that cannot be computed here is left alone, in microseconds; another machine may be able to.
_LEFT_ALONE = 60_000_000

_NAMES = Schedule.__struct_fields__
#: Columns whose names are older than those of their fields.
_STORED = {"next_fire_time": "next_slot", "last_fire_time": "last_slot"}
_COLUMNS = ", ".join(_STORED.get(name, name) for name in _NAMES)

_ONE = f"""
SELECT {_COLUMNS}
FROM perdure_schedules
WHERE id = :id
"""

_LOCKED = f"""
SELECT write_id, {_COLUMNS}
FROM perdure_schedules
WHERE id = :id
{{for_update}}
"""

_PAGE = f"""
SELECT {_COLUMNS}
FROM perdure_schedules
WHERE id > :after
ORDER BY id
LIMIT :limit
"""

#: Ids of runs end with their fire times, so that their order is that of time; those started by hand end otherwise.
_FIRES = f"""
SELECT {SHOWN_RUN}
FROM perdure_runs
WHERE id >= :first AND id < :past AND SUBSTR(id, :start) NOT LIKE '%@%'
ORDER BY id DESC
LIMIT :limit
"""

_DUE = """
SELECT id
FROM perdure_schedules
WHERE due_at <= :now
ORDER BY due_at
LIMIT :limit
"""

_NEXT_DUE = """
SELECT MIN(due_at)
FROM perdure_schedules
"""

_INSERT = f"""
INSERT INTO perdure_schedules ({_COLUMNS}, write_id)
VALUES ({", ".join(f":{name}" for name in _NAMES)}, :write_id)
{{or_ignore}}
"""

_CHANGE = """
UPDATE perdure_schedules
SET spec = :spec, type = :type, input = :input, queue = :queue, priority = :priority, deadline = :deadline,
    start_within = :start_within,
    max_attempts = :max_attempts, options = :options, attributes = :attributes, jitter = :jitter, misfire = :misfire,
    overlap = :overlap,
    paused = :paused, reason = :reason, next_slot = :next_fire_time, due_at = :due_at,
    waiting = :waiting, error = :error, changed_at = :changed_at, version = :version, write_id = :write_id
WHERE id = :id
"""

_ADVANCE = """
UPDATE perdure_schedules
SET next_slot = :next_fire_time, due_at = :due_at, waiting = :waiting, last_slot = :last_fire_time,
    last_run = :last_run, error = :error,
    version = version + 1
WHERE id = :id
"""

_SET_ASIDE = """
UPDATE perdure_schedules
SET due_at = :due_at, error = :error
WHERE id = :id
"""

_DELETE = """
DELETE FROM perdure_schedules
WHERE id = :id
"""

_STATUS = """
SELECT status
FROM perdure_runs
WHERE id = :id
"""


async def schedule(tx: Transaction, schedule_id: str) -> Schedule | None:
    """One schedule."""
    rows = await tx.fetch(_ONE, {"id": schedule_id})
    return to_schedule(rows[0]) if rows else None


async def schedules(tx: Transaction, after: str, limit: int) -> list[Schedule]:
    """Schedules in the order of their ids, past one."""
    return [_shown(row) for row in await tx.fetch(_PAGE, {"after": after, "limit": limit})]


async def list_fires(tx: Transaction, schedule_id: str, limit: int) -> list[Run]:
    """The runs of the latest fire times, latest first."""
    # The id of another schedule may begin with that of this one and an @.
    params = {"first": f"{schedule_id}@0", "past": f"{schedule_id}@:", "start": len(schedule_id) + 2, "limit": limit}
    return to_listed_runs(await tx.fetch(_FIRES, params))


async def save(
    tx: Transaction, schedule: Schedule, version: int, write_id: str, event: str, reason: str = ""
) -> SaveOutcome:
    """Create a schedule (version 0), or change one that is of that version."""
    rows = await tx.fetch(_LOCKED, {"id": schedule.id})
    if rows and rows[0][0] == write_id:
        return SaveOutcome.DONE
    if (rows[0][-1] if rows else 0) != version:
        return SaveOutcome.CONFLICT
    now = tx.now
    stamped = replace(schedule, version=version + 1, changed_at=now, created_at=schedule.created_at or now)
    row = {**_row(stamped), "write_id": write_id}
    if await tx.execute(_CHANGE if rows else _INSERT, row) != 1:
        # Who it was, perhaps this very request at an earlier try, is seen by looking again.
        raise StoreUnavailable(f"another client created the schedule {schedule.id!r} at the same moment; try again")
    tx.note(schedule.trail, event, to_json({"reason": schedule.reason}) if schedule.paused else event_json(reason))
    tx.notify(Change.READY)
    return SaveOutcome.DONE


async def delete(tx: Transaction, schedule_id: str, reason: str = "") -> None:
    """Forget a schedule. The runs that it has started go on."""
    if await tx.execute(_DELETE, {"id": schedule_id}):
        tx.note(trail_of(schedule_id), "schedule_deleted", event_json(reason))


async def trigger(
    tx: Transaction, schedule_id: str, fire_times: Sequence[int], key: str, reason: str = ""
) -> list[str] | None:
    """Start the runs of some fire times, or, without any, one run under a key; returns their ids.

    None if there is no such schedule.
    """
    rows = await tx.fetch(_LOCKED, {"id": schedule_id})
    if not rows:
        return None
    wanted = to_schedule(rows[0][1:])
    by_hand = f"{schedule_id}@{key}"
    ids = {run_id_of(schedule_id, time): time for time in fire_times} or {by_hand: 0}
    started = await _start(tx, wanted, ids, reason)
    if started and not fire_times:
        await tx.execute(_ADVANCE, {**_row(wanted), "last_run": by_hand})
    if stored_singleton_of(wanted.options) is None:
        return list(ids)
    there = await _there(tx, ids)
    return [run_id for run_id in ids if run_id in there]


async def next_due(tx: Transaction) -> int:
    """When a schedule is due next."""
    [(due,)] = await tx.fetch(_NEXT_DUE, {})
    return NEVER if due is None else due


async def fire(tx: Transaction, limit: int) -> FiringResult:
    """Start what is due of some schedules."""
    due = [row[0] for row in await tx.fetch(_DUE, {"now": tx.now, "limit": limit})]
    runs: list[str] = []
    # In one order everywhere: two who fire at once must not wait for each other.
    for schedule_id in sorted(due):
        rows = await tx.fetch(_LOCKED, {"id": schedule_id})
        if not rows:
            continue
        try:
            wanted = to_schedule(rows[0][1:])
            # Another process may have been here while the lock was waited for.
            if wanted.due_at <= tx.now:
                runs += await _fire(tx, wanted)
        except (StoreCorrupt, *UNREADABLE) as error:
            await _set_aside(tx, schedule_id, error)
    return FiringResult(runs=tuple(runs), next_due=await next_due(tx))


async def _set_aside(tx: Transaction, schedule_id: str, error: Exception) -> None:
    """Leave a schedule alone that cannot be read, for a while, in which a person may mend it. Others fire."""
    tx.note(trail_of(schedule_id), "schedule_failed", to_json({"error": str(error)}))
    await tx.execute(_SET_ASIDE, {"id": schedule_id, "due_at": tx.now + _LEFT_ALONE, "error": str(error)})


async def _fire(tx: Transaction, wanted: Schedule) -> list[str]:
    try:
        todo = plan_firing(wanted, tx.now, busy=await _goes_on(tx, wanted.last_run))
    except Exception as error:
        # Whatever is wrong with it, here or for ever, is no reason to leave the others alone.
        tx.note(wanted.trail, "schedule_failed", to_json({"error": str(error)}))
        failed = replace(wanted, due_at=tx.now + _LEFT_ALONE, error=str(error))
        await tx.execute(_ADVANCE, _row(failed))
        return []
    started = await _start(tx, wanted, {run_id_of(wanted.id, time): time for time in todo.start})
    for one in todo.skipped:
        tx.note(wanted.trail, "schedule_passed", to_json({"from": one.first, "to": one.last, "reason": one.why}))
    after = replace(todo.schedule, error="")
    if todo.start:
        after = replace(after, last_run=run_id_of(wanted.id, todo.start[-1]))
    if todo.cancel_for is not None and await _is_stopped(tx, wanted, todo.cancel_for):
        after = replace(after, due_at=tx.now)
    await tx.execute(_ADVANCE, _row(after))
    return started


async def _is_stopped(tx: Transaction, wanted: Schedule, fire_time: int) -> bool:
    """Ask the last run to stop for the sake of a fire time; returns whether it has ended at once."""
    reason = f"the schedule {wanted.id!r} has come to its next fire time"
    await cancel(tx, wanted.last_run, reason, f"schedule:{fire_time}")
    return not await _goes_on(tx, wanted.last_run)


async def _goes_on(tx: Transaction, run_id: str) -> bool:
    rows = await tx.fetch(_STATUS, {"id": run_id}) if run_id else []
    return bool(rows) and rows[0][0] not in FINISHED


async def _start(tx: Transaction, wanted: Schedule, ids: Mapping[str, int], reason: str = "") -> list[str]:
    """Create those of the runs that are not there yet; their ids."""
    there = await _there(tx, ids)
    fresh = [run_id for run_id in ids if run_id not in there]
    new = [_new_run(wanted, run_id, tx.now) for run_id in fresh]
    if stored_singleton_of(wanted.options) is None:
        await create(tx, new)
    else:
        fresh = [one.id for one in new if await _has_its_turn(tx, wanted, one, ids[one.id])]
    for run_id in fresh:
        tx.note(run_id, "scheduled", event_json(reason, schedule=wanted.id, slot=ids[run_id]))
        tx.note(wanted.trail, "schedule_fired", event_json(reason, run=run_id, slot=ids[run_id]))
    return fresh


async def _there(tx: Transaction, ids: Iterable[str]) -> set[str]:
    chosen, params = placeholders("id", list(ids))
    if not params:
        return set()
    return {row[0] for row in await tx.fetch(f"SELECT id FROM perdure_runs WHERE id IN ({chosen})", params)}


async def _has_its_turn(tx: Transaction, wanted: Schedule, new: NewRun, fire_time: int) -> bool:
    """Create a run of which there may be only one, or say why not."""
    try:
        [answer] = await create(tx, [new])
    except SingletonBusy:
        pass
    else:
        if answer.created:
            return True
    tx.note(wanted.trail, "schedule_passed", to_json({"from": fire_time, "to": fire_time, "reason": "singleton"}))
    return False


def _new_run(wanted: Schedule, run_id: str, now: int) -> NewRun:
    finished_by = now + wanted.deadline if wanted.deadline else NEVER
    begun_by = now + wanted.start_within if wanted.start_within else NEVER
    return NewRun(
        id=run_id,
        type=wanted.type,
        input=wanted.input,
        queue=wanted.queue,
        priority=wanted.priority,
        deadline=min(begun_by, finished_by),
        close_by=finished_by if begun_by < finished_by else 0,
        max_attempts=wanted.max_attempts,
        options=wanted.options,
        attributes=attributes_of_schedule(wanted.id, wanted.attributes),
        write_id=wanted.trail,
    )


_misfire = decoder_for(Misfire)


def to_schedule(row: Row) -> Schedule:
    """A row of a schedule. Raises `StoreCorrupt`."""
    fields = dict(zip(_NAMES, row, strict=True))  # equivalent: constant: one value for each name is selected
    try:
        fields["misfire"] = _misfire.decode(fields["misfire"])
        fields["overlap"] = Overlap(fields["overlap"])
        fields["waiting"] = msgspec.json.decode(fields["waiting"], type=tuple[int, ...])
    except (msgspec.MsgspecError, ValueError) as broken:
        raise unreadable("perdure_schedules", f"id {fields['id']!r}", broken) from broken
    return Schedule(**{**fields, "paused": fields["paused"] != 0})


def _shown(row: Row) -> Schedule:
    """A row of a schedule, for people. What cannot be read is left out, and its error says so."""
    try:
        return to_schedule(row)
    except StoreCorrupt as broken:
        fields = dict(zip(_NAMES, row, strict=True))  # equivalent: constant: one value for each name is selected
        fields |= {"misfire": Misfire(), "overlap": Overlap.SKIP, "waiting": (), "error": str(broken)}
        return Schedule(**{**fields, "paused": fields["paused"] != 0})


def _row(schedule: Schedule) -> dict[str, object]:
    return {
        **{name: getattr(schedule, name) for name in _NAMES},
        "misfire": to_json(schedule.misfire),
        "overlap": schedule.overlap.value,
        "paused": int(schedule.paused),
        "waiting": to_json(schedule.waiting),
    }
