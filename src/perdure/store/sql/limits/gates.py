"""Gates: one row for each limit or breaker, locked by the transaction that admits runs; and permits.

A permit counts while it is valid, which its run tells: held under the same lease, or unfinished. So nothing that ends a
run has to know of permits, and a crash leaves none behind that counts. A permit for the time of a lease is valid under
one token only, so that the next holder of the run needs another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from perdure.core.codec.plain_json import plain_json
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit, breaker_info
from perdure.core.limits.limit import (
    KEYED,
    LimitBounds,
    LimitInfo,
    PermitInfo,
    RequiredGates,
    WaitingRun,
    limit_of_gate,
    queue_gate,
    type_gate,
)
from perdure.core.time.duration import NEVER
from perdure.store.contract import Change
from perdure.store.sql.dialect import Params, Row, Transaction, placeholders
from perdure.store.sql.limits.gate_decision import COLUMNS, GateState, to_bounds
from perdure.store.sql.pauses import LIMITED_QUEUE, LIMITED_TYPE
from perdure.store.sql.rows import UNREADABLE, to_json, unreadable
from perdure.store.sql.runs.create import CHUNK

#: Number of full gates that one recheck re-examines; the others follow when they are due.
_STIRRED = 5000
#: For so long a step's turn is kept for a run that was woken for it, in microseconds.
RESERVED = 30_000_000

_LOCKED = f"SELECT {COLUMNS} FROM perdure_gates WHERE name IN ({{names}}) ORDER BY name {{lock}}"

_THERE = "SELECT name FROM perdure_gates WHERE name IN ({names})"

_MAKE = """
INSERT INTO perdure_gates (name, concurrency, pace, burst)
VALUES (:name, :concurrency, :pace, :burst)
{keep_gate}
"""

_OVERRIDES = "SELECT name, override FROM perdure_gates WHERE name IN ({names}) AND override <> ''"

_SAVE = """
UPDATE perdure_gates
SET concurrency = :concurrency, pace = :pace, burst = :burst, arrival = :arrival, turn = :turn, due_at = :due_at,
    waits_for = :waits_for, breaker = :breaker
WHERE name = :name
"""

#: Whether a permit `p` of a run `r` counts.
VALID = """((p.hold = 'lease' AND r.status = 'running' AND r.token = p.token)
    OR (p.hold = 'run' AND r.status IN ('pending', 'running', 'waiting', 'blocked'))
    OR (p.hold = 'turn' AND p.granted_at > :reserved AND r.status IN ('pending', 'running', 'waiting', 'blocked')))"""

_HELD = f"""
SELECT p.gate, SUM(CASE WHEN {VALID} THEN 1 ELSE 0 END), COUNT(*)
FROM perdure_permits p
LEFT JOIN perdure_runs r ON r.id = p.run_id
WHERE p.gate IN ({{names}})
GROUP BY p.gate
"""

_HOLDERS = f"""
SELECT p.gate, p.run_id, p.location, p.granted_at, r.worker
FROM perdure_permits p
JOIN perdure_runs r ON r.id = p.run_id
WHERE p.gate IN ({{names}}) AND {VALID}
ORDER BY p.gate, p.granted_at, p.run_id, p.location
LIMIT :limit
"""

#: The order is that of the index.
_WAITING = """
SELECT gate, run_id, location, gating, since
FROM perdure_lines {use perdure_lines_by_priority}
WHERE gate IN ({names})
ORDER BY gate, type, priority, turn, run_id
LIMIT :limit
"""

_FORGET = f"""
DELETE FROM perdure_permits
WHERE gate IN ({{names}}) AND NOT EXISTS (
  SELECT 1 FROM perdure_runs r
  WHERE r.id = perdure_permits.run_id AND {VALID.replace("p.", "perdure_permits.")}
)
"""

_SET = """
UPDATE perdure_gates
SET override = :override, changed_at = :now, changed_by = :actor,
    due_at = CASE WHEN due_at < :never THEN :now ELSE due_at END
WHERE name = :name
"""

_FORGET_PAUSE = "DELETE FROM perdure_pauses WHERE kind = :kind AND name = :name"

_PAUSE = """
INSERT INTO perdure_pauses (kind, name, reason, actor, paused_at)
VALUES (:kind, :name, '', :actor, :now)
{or_ignore}
"""

_PAUSED = "SELECT 1 FROM perdure_pauses WHERE kind = :kind AND name = :name"

_PAGE = f"""
SELECT {COLUMNS}, (SELECT COUNT(*) FROM perdure_lines l WHERE l.gate = perdure_gates.name)
FROM perdure_gates
WHERE name > :after
ORDER BY name
LIMIT :limit
"""

#: Gates of single keys of which nothing has to be remembered.
_IDLE = f"""
SELECT g.name
FROM perdure_gates g
WHERE (g.due_at = {NEVER} OR g.due_at <= :now) AND g.name LIKE '%{KEYED}%' AND g.override = '' AND g.breaker = ''
  AND g.arrival <= :now {{among}}
  AND NOT EXISTS (SELECT 1 FROM perdure_lines l WHERE l.gate = g.name)
  AND NOT EXISTS (
    SELECT 1 FROM perdure_permits p JOIN perdure_runs r ON r.id = p.run_id WHERE p.gate = g.name AND {VALID}
  )
ORDER BY g.name
LIMIT :limit
"""
_FORGET_OF = tuple(
    f"DELETE FROM perdure_{table} WHERE {column} IN ({{names}})"
    for table, column in (("permits", "gate"), ("shares", "gate"), ("gates", "name"))
)

_NEXT_LINE = "SELECT MIN(gate) FROM perdure_lines WHERE gate > :after"
_NEVER_DUE = f"SELECT name FROM perdure_gates WHERE name IN ({{names}}) AND due_at >= {NEVER} {{skip_locked}}"
_DUE_NOW = f"UPDATE perdure_gates SET due_at = :now WHERE name IN ({{names}}) AND due_at >= {NEVER}"

_FULL = "SELECT name FROM perdure_gates WHERE waits_for = 'room' ORDER BY name LIMIT :limit {skip_locked}"
_STIR = "UPDATE perdure_gates SET due_at = :now WHERE name IN ({names}) AND waits_for = 'room' AND due_at > :now"


async def lock_gates(
    tx: Transaction, wanted: Mapping[str, LimitBounds], *, waiting: bool = True
) -> dict[str, GateState]:
    """Gates, made if need be, locked in the order of their names; without `waiting`, those that are there and free."""
    lock = _LOCKED.replace("{lock}", "{for_update}" if waiting else "{skip_locked}")
    gates: dict[str, GateState] = {}
    while names := sorted(wanted.keys() - gates.keys()):
        if waiting:
            await make_gates(tx, await missing_gates(tx, {name: wanted[name] for name in names}))
        gates |= {row[0]: GateState(row) for row in await in_chunks(tx, lock, names)}
        # One that was forgotten while it was waited for is made again.
        if not waiting:
            break
    for name, gate in gates.items():
        gate.declare(wanted[name])
    await _override(tx, gates)
    return gates


async def missing_gates(tx: Transaction, wanted: Mapping[str, LimitBounds]) -> dict[str, LimitBounds]:
    """The gates that do not exist."""
    there = {row[0] for row in await in_chunks(tx, _THERE, sorted(wanted))}
    return {name: bounds for name, bounds in wanted.items() if name not in there}


async def make_gates(tx: Transaction, wanted: Mapping[str, LimitBounds]) -> None:
    """Create gates; other creators of the same gate wait until this transaction is over."""
    await tx.execute_many(_MAKE, [{"name": name, **msgspec.structs.asdict(wanted[name])} for name in sorted(wanted)])


async def _override(tx: Transaction, gates: Mapping[str, GateState]) -> None:
    """Apply the override of a limit to each of its keys that has none of its own."""
    bases = sorted({base for name in gates if (base := limit_of_gate(name)) != name})
    overrides: dict[str, LimitBounds | None] = {}
    broken: dict[str, str] = {}
    for name, text in await in_chunks(tx, _OVERRIDES, bases):
        try:
            overrides[name] = to_bounds(text)
        except UNREADABLE as error:
            broken[name] = str(unreadable("perdure_gates", f"name {name!r}, override", error))
    for name, gate in gates.items():
        if gate.override is None and limit_of_gate(name) != name:
            gate.bounds = overrides.get(limit_of_gate(name)) or gate.declared
            if limit_of_gate(name) in broken:
                gate.problems.setdefault("override", broken[limit_of_gate(name)])


async def count_held(tx: Transaction, gates: Iterable[GateState]) -> None:
    """Count the valid permits where that matters, and delete the others."""
    counted = {gate.name: gate for gate in gates if gate.counts}
    stale: list[str] = []
    for name, held, there in await in_chunks(tx, _HELD, sorted(counted), reserved=tx.now - RESERVED):
        counted[name].held = int(held)
        if there > held:
            stale.append(name)
    for start in range(0, len(stale), CHUNK):
        chosen, params = placeholders("name", stale[start : start + CHUNK])
        await tx.execute(_FORGET.replace("{names}", chosen), {**params, "reserved": tx.now - RESERVED})


async def save_gates(tx: Transaction, gates: Iterable[GateState]) -> None:
    """Write the changed gates."""
    await tx.execute_many(_SAVE, [gate.row() for gate in gates if gate.changed])


async def recheck_gates(tx: Transaction) -> None:
    """Re-examine every gate that waits for room, in case a holder died without releasing its permit."""
    # Locked gates are skipped: the transaction that holds one examines it anyway.
    full = [row[0] for row in await tx.fetch(_FULL, {"limit": _STIRRED})]
    for start in range(0, len(full), CHUNK):
        chosen, params = placeholders("name", full[start : start + CHUNK])
        await tx.execute(_STIR.replace("{names}", chosen), {**params, "now": tx.now})
    if full:
        tx.notify(Change.READY)


async def delete_idle_gates(tx: Transaction, limit: int) -> int:
    """Delete gates of unused keys; returns how many."""
    await mend_gates(tx, limit)
    params: dict[str, object] = {"now": tx.now, "limit": limit, "reserved": tx.now - RESERVED}
    found = [row[0] for row in await tx.fetch(_IDLE.replace("{among}", ""), params)]
    locked = sorted(await lock_gates(tx, dict.fromkeys(found, LimitBounds()), waiting=False)) if found else []
    if not locked:
        return 0
    # Checked again: a run may have passed before the lock was acquired.
    chosen, names = placeholders("name", locked)
    rows = await tx.fetch(_IDLE.replace("{among}", f"AND g.name IN ({chosen})"), {**params, **names})
    if rows:
        chosen, names = placeholders("name", [row[0] for row in rows])
        for sql in _FORGET_OF:
            await tx.execute(sql.replace("{names}", chosen), names)
    return len(rows)


async def mend_gates(tx: Transaction, limit: int) -> None:
    """Make gates due that have a waitlist although their row is missing or says otherwise."""
    # Leaps from gate to gate along the index of lines.
    names: list[str] = []
    while len(names) < limit:
        [(name,)] = await tx.fetch(_NEXT_LINE, {"after": names[-1] if names else ""})
        if name is None:
            break
        names.append(name)
    await make_gates(tx, await missing_gates(tx, dict.fromkeys(names, LimitBounds())))
    for start in range(0, len(names), CHUNK):
        chosen, params = placeholders("name", names[start : start + CHUNK])
        idle = [row[0] for row in await tx.fetch(_NEVER_DUE.replace("{names}", chosen), params)]
        if idle:
            chosen, params = placeholders("name", idle)
            await tx.execute(_DUE_NOW.replace("{names}", chosen), {**params, "now": tx.now})
            tx.notify(Change.READY)


async def set_bounds(tx: Transaction, name: str, bounds: LimitBounds | None, reason: str = "") -> None:
    """Override the declared bounds of a gate; None removes the override."""
    gate = (await lock_gates(tx, {name: LimitBounds()}))[name]
    override = "" if bounds is None else plain_json(bounds)
    if gate.override != bounds or "override" in gate.problems:
        await tx.execute(_SET, {"name": name, "override": override, "now": tx.now, "actor": tx.actor, "never": NEVER})
        said = {} if bounds is None else msgspec.json.decode(override)
        kind = "limit_set" if bounds else "limit_cleared"
        tx.note(f"gate:{name}", kind, to_json({**said, **({"reason": reason} if reason else {})}))
    row = _limited_row(name)
    if row is not None and bounds is not None and not await tx.fetch(_PAUSED, row):
        await tx.execute(_PAUSE, {**row, "actor": tx.actor, "now": tx.now})
    if row is not None and bounds is None and not await waited_at(tx, [name]):
        await tx.execute(_FORGET_PAUSE, row)
    tx.notify(Change.READY)


async def lift_limit_pause(tx: Transaction, gate: GateState) -> None:
    """Let plain claims take the runs of a type or queue again whose limit was cleared, once its waitlist is empty."""
    row = _limited_row(gate.name)
    if row is not None and gate.override is None:
        await tx.execute(_FORGET_PAUSE, row)


async def gates(tx: Transaction, after: str, limit: int) -> list[LimitInfo]:
    """Gates in the order of their names, after one."""
    return await _shown(tx, await tx.fetch(_PAGE, {"after": after, "limit": limit}))


async def valid_permits(tx: Transaction, names: Sequence[str], limit: int) -> list[PermitInfo]:
    """Permits of these gates that count, by gate and the oldest first."""
    rows = await in_chunks(tx, _HOLDERS, sorted(set(names)), reserved=tx.now - RESERVED, limit=limit)
    return [
        PermitInfo(limit=gate, run_id=run_id, location=location, granted_at=int(granted_at), worker=worker or None)
        for gate, run_id, location, granted_at, worker in rows[:limit]
    ]


async def waiting_runs(tx: Transaction, names: Sequence[str], limit: int) -> list[WaitingRun]:
    """Runs on the waitlists of these gates, by gate and in the order in which each type is admitted."""
    rows = await in_chunks(tx, _WAITING, sorted(set(names)), limit=limit)
    return [
        WaitingRun(limit=gate, run_id=run_id, location=location, key=_key_of(gating), since=int(since))
        for gate, run_id, location, gating, since in rows[:limit]
    ]


def _key_of(gating: str) -> str:
    try:
        return RequiredGates.from_json(gating).fair_key
    except UNREADABLE:
        return ""


async def one_gate(tx: Transaction, name: str) -> LimitInfo:
    """One gate, as it is."""
    found = await _shown(
        tx, await tx.fetch(_PAGE.replace("name > :after", "name = :after"), {"after": name, "limit": 1})
    )
    if not found:
        problem = f"perdure_gates has no row of the name {name!r}; one is made when the worker sweeps next"
        return LimitInfo(name=name, bounds=LimitBounds(), problem=problem)
    return found[0]


async def _shown(tx: Transaction, rows: Sequence[Row]) -> list[LimitInfo]:
    states = {row[0]: GateState(row[:-1]) for row in rows}
    await _override(tx, states)
    rows_held = await in_chunks(tx, _HELD, sorted(states), reserved=tx.now - RESERVED)
    held = {name: int(count) for name, count, _ in rows_held}
    return [
        LimitInfo(
            name=name,
            bounds=state.bounds,
            override=state.override,
            held=held.get(name, 0),
            waiting=row[-1],
            due_at=state.due_at if state.waited_at else 0,
            problem=state.problem,
            breaker=_shown_breaker(state, tx.now, row[-1]),
        )
        for row, (name, state) in zip(rows, states.items(), strict=True)
    ]


def _shown_breaker(state: GateState, now: int, waiting: int) -> BreakerInfo | None:
    if state.breaker is not None:
        return breaker_info(state.name, state.breaker, now, waiting)
    if not (state.problem and state.name.startswith(PREFIX)):
        return None
    name = state.name.removeprefix(PREFIX)
    return BreakerInfo(name=name, circuit=Circuit.OPEN, since=0, waiting=waiting, problem=state.problem)


def limited(known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Gates of whole types and queues, from the kinds and names among the pauses."""
    of = {LIMITED_TYPE: type_gate, LIMITED_QUEUE: queue_gate}
    return tuple(of[kind](name) for kind, name in known if kind in of)


async def in_chunks(tx: Transaction, sql: str, names: Sequence[str], **others: object) -> list[Row]:
    """The rows of a query over `{names}`, fetched one chunk of names at a time."""
    rows: list[Row] = []
    for start in range(0, len(names), CHUNK):
        chosen, params = placeholders("name", names[start : start + CHUNK])
        rows += await tx.fetch(sql.replace("{names}", chosen), {**params, **others})
    return rows


def _limited_row(gate: str) -> dict[str, object] | None:
    kind, _, name = gate.partition(":")
    kinds = {"type": LIMITED_TYPE, "queue": LIMITED_QUEUE}
    return {"kind": kinds[kind], "name": name} if kind in kinds else None


#: Gates with waiting runs of some types, those that are due first. Phrased to force the plan that scans the gates
#: in order and probes each waitlist along its index: a planner that knows how many wait would rather read them all.
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
#: A type, if it has a waiting run. As a range, to use the index.
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

#: Ordered, to use the index: deleted entries leave a gap at the beginning of the table that is slow to cross.
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
    """The next time at which a gate with waiting runs of these types is due."""
    rows = await _by_due(tx, types, NEVER - 1, 1)
    return int(rows[0][0]) if rows else NEVER


async def due_gates(tx: Transaction, types: Sequence[str], limit: int) -> list[str]:
    """Gates that are due and have waiting runs of these types, longest waiting first."""
    return [row[1] for row in await _by_due(tx, types, tx.now, limit)]


async def waited_at(tx: Transaction, names: Iterable[str]) -> set[str]:
    """The gates with a non-empty waitlist."""
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


async def waitlisted_types(tx: Transaction, types: Sequence[str]) -> set[str]:
    """The types that have a run on a waitlist."""
    return {row[0] for sql, params in _by_type(types) for row in await tx.fetch(sql, params)}


def _by_type(types: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    for start in range(0, len(types), _TYPES):
        params: dict[str, object] = {f"type{number}": type for number, type in enumerate(types[start : start + _TYPES])}
        yield " UNION ALL ".join(_LINED.replace("#", str(number)) for number in range(len(params))), params


#: Permits of runs that are let go of: those for the time of a lease, and those of runs that have ended.
_FREED = """
SELECT p.run_id, p.gate, p.token
FROM perdure_permits p
JOIN perdure_runs r ON r.id = p.run_id
WHERE p.run_id IN ({names}) AND p.location = ''
  AND (p.hold = 'lease' OR r.status IN ('completed', 'failed', 'cancelled'))
"""
_RELEASE = """
DELETE FROM perdure_permits
WHERE gate = :gate AND run_id = :run_id AND location = '' AND token = :token
"""

_STALE = "DELETE FROM perdure_permits WHERE run_id IN ({names}) AND location = '' AND hold = 'lease'"

_PERMIT = """
INSERT INTO perdure_permits (gate, run_id, token, hold, granted_at)
VALUES (:gate, :run_id, :token, :hold, :now)
"""


async def permits_of(tx: Transaction, released: Sequence[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """Run, gate and token of the permits that are no longer needed."""
    tokens = dict(released)
    return [
        (run_id, gate, token)
        for run_id, gate, token in await in_chunks(tx, _FREED, sorted(tokens))
        # A later holder of the run may have a permit of its own.
        if token <= tokens[run_id]
    ]


async def release(tx: Transaction, permits: Sequence[tuple[str, str, int]]) -> None:
    """Delete permits."""
    rows = [{"gate": gate, "run_id": run_id, "token": token} for run_id, gate, token in permits]
    await tx.execute_many(_RELEASE, rows)


async def grant(tx: Transaction, run_ids: Sequence[str], rows: Sequence[Params]) -> None:
    """Insert the permits of runs, and delete those of their earlier leases."""
    for start in range(0, len(run_ids), 400):
        chosen, params = placeholders("name", run_ids[start : start + 400])
        await tx.execute(_STALE.replace("{names}", chosen), params)
    await tx.execute_many(_PERMIT, rows)
