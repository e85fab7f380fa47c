"""Gates: one row each, locked by whoever lets runs pass; what has passed and counts; what was set at run time.

A permit counts while it is valid, which is seen from its run: held under the same lease, or unfinished. So nothing that ends a run has to know of
permits, and no crash leaves one behind that counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from perdure.core.breakers import BreakerRule, BreakerState, Circuit, view
from perdure.core.gates import KEYED, Bounds, Gate, base_of, of_queue, of_type
from perdure.core.model import FAR
from perdure.store.dialect import Row, Transaction, placeholders
from perdure.store.pauses import LIMITED_QUEUE, LIMITED_TYPE
from perdure.store.protocol import Change
from perdure.store.runs import CHUNK

#: So many full gates are looked at when somebody has gone without a word; the others when they are due.
_STIRRED = 5000
#: When to look again at a gate that waits for others to make room, should nobody tell, in microseconds.
BACKSTOP = 15_000_000

#: For so long a step's turn is kept for a run that was woken for it, in microseconds.
RESERVED = 30_000_000

_COLUMNS = "name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker"

_LOCKED = f"SELECT {_COLUMNS} FROM perdure_gates WHERE name IN ({{names}}) ORDER BY name {{lock}}"

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
SELECT p.gate, COUNT(*)
FROM perdure_permits p
JOIN perdure_runs r ON r.id = p.run_id
WHERE p.gate IN ({{names}}) AND {VALID}
GROUP BY p.gate
"""

_PERMITS = "SELECT gate, COUNT(*) FROM perdure_permits WHERE gate IN ({names}) GROUP BY gate"

_FORGET = f"""
DELETE FROM perdure_permits
WHERE gate = :gate AND NOT EXISTS (
  SELECT 1 FROM perdure_runs r
  WHERE r.id = perdure_permits.run_id AND {VALID.replace("p.", "perdure_permits.")}
)
"""

#: Gates that are waited at by somebody of some types, those that are due first.
_BY_DUE = """
FROM perdure_gates g
WHERE g.due_at <= :until AND EXISTS (SELECT 1 FROM perdure_lines l WHERE l.gate = g.name AND l.type IN ({names}))
ORDER BY g.due_at, g.name
LIMIT :limit
"""

_SET = """
UPDATE perdure_gates
SET override = :override, changed_at = :now, changed_by = :actor, due_at = CASE WHEN due_at < :far THEN :now ELSE due_at END
WHERE name = :name
"""

ANYBODY = "SELECT 1 FROM perdure_lines WHERE gate = :gate LIMIT 1"

_FORGET_PAUSE = "DELETE FROM perdure_pauses WHERE kind = :kind AND name = :name"

_PAUSE = """
INSERT INTO perdure_pauses (kind, name, reason, actor, paused_at)
VALUES (:kind, :name, '', :actor, :now)
{or_ignore}
"""

_PAUSED = "SELECT 1 FROM perdure_pauses WHERE kind = :kind AND name = :name"

_PAGE = f"""
SELECT {_COLUMNS}, (SELECT COUNT(*) FROM perdure_lines l WHERE l.gate = perdure_gates.name)
FROM perdure_gates
WHERE name > :after
ORDER BY name
LIMIT :limit
"""

#: Gates of single keys of which nothing has to be remembered.
_IDLE = f"""
SELECT g.name
FROM perdure_gates g
WHERE g.due_at = {FAR} AND g.name LIKE '%{KEYED}%' AND g.override = '' AND g.breaker = '' AND g.arrival <= :now {{among}}
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

_FULL = "SELECT name FROM perdure_gates WHERE waits_for = 'room' ORDER BY name LIMIT :limit {skip_locked}"
_STIR = "UPDATE perdure_gates SET due_at = :now WHERE name IN ({names}) AND waits_for = 'room' AND due_at > :now"


class GateState:
    """A gate while it is locked: what may pass, and what has."""

    def __init__(self, row: Row) -> None:
        name, concurrency, pace, burst, override, arrival, turn, due_at, waits_for, breaker = row
        self.name: str = name
        self.arrival: int = arrival
        self.turn: int = turn
        self.due_at: int = due_at
        self.waits_for: str = waits_for
        self.declared = Bounds(concurrency, pace, burst)
        self.override = _bounds(override)
        self.bounds = self.override or self.declared
        self.breaker = BreakerState.from_json(breaker) if breaker else None
        self.held = 0
        #: Somebody stands in its line.
        self.waited_at = self.due_at < FAR
        self.changed = False

    def declare(self, bounds: Bounds) -> None:
        """What the code says now."""
        if bounds != self.declared and bounds != Bounds():
            self.declared = bounds
            self.bounds = self.override or bounds
            self.changed = True

    def guard(self, rule: BreakerRule) -> BreakerState:
        """What the code says now about its breaker."""
        if self.breaker is None:
            self.breaker = BreakerState()
            self.changed = True
        self.changed |= self.breaker.declare(rule)
        return self.breaker

    @property
    def counts(self) -> bool:
        """Whether it matters how many have passed."""
        half_open = self.breaker is not None and self.breaker.circuit is Circuit.HALF_OPEN
        return half_open or self.bounds.concurrency > 0

    @property
    def remembers(self) -> bool:
        """Whether one that has passed makes a difference to the next."""
        return self.counts or self.bounds.pace > 0

    def has_room(self, now: int) -> bool:
        """Whether one more may pass now."""
        return self.lacks(now) == ""

    def lacks(self, now: int) -> str:
        """What the next one would have to wait for; nothing if it may pass."""
        if self.breaker is not None and (lacks := self.breaker.lacks(self.held)):
            return lacks
        if self.bounds.concurrency and self.held >= self.bounds.concurrency:
            return "room"
        return "rate" if self.bounds.ready_at(self.arrival) > now else ""

    def let_pass(self, now: int) -> None:
        """One passes."""
        self.held += 1
        # A breaker that is closed stays as it is, so that what passes costs no write.
        self.changed |= self.breaker is None or self.bounds != Bounds()
        if self.bounds.pace:
            self.arrival = max(self.arrival, now) + self.bounds.pace

    def settle(self, now: int, *, waited_at: bool) -> None:
        """Say when it is worth looking again."""
        lacks = self.lacks(now) if waited_at else ""
        due = FAR
        if waited_at:
            due = {"": now, "room": now + BACKSTOP, "open": self._until}.get(lacks, self.bounds.ready_at(self.arrival))
        if (due, lacks) != (self.due_at, self.waits_for):
            self.due_at, self.waits_for, self.changed = due, lacks, True

    @property
    def _until(self) -> int:
        return FAR if self.breaker is None else self.breaker.until

    def row(self) -> dict[str, object]:
        """As it is saved."""
        return {
            "name": self.name,
            "concurrency": self.declared.concurrency,
            "pace": self.declared.pace,
            "burst": self.declared.burst,
            "arrival": self.arrival,
            "turn": self.turn,
            "due_at": self.due_at,
            "waits_for": self.waits_for,
            "breaker": "" if self.breaker is None else self.breaker.to_json(),
        }


async def lock_gates(tx: Transaction, wanted: Mapping[str, Bounds], *, waiting: bool = True) -> dict[str, GateState]:
    """Gates, made if need be, locked in the order of their names; without `waiting`, those that nobody else has locked."""
    lock = _LOCKED.replace("{lock}", "{for_update}" if waiting else "{skip_locked}")
    gates: dict[str, GateState] = {}
    while names := sorted(wanted.keys() - gates.keys()):
        there = {row[0] for row in await in_chunks(tx, _THERE, names)}
        missing = [name for name in names if name not in there]
        await tx.execute_many(_MAKE, [{"name": name, **msgspec.structs.asdict(wanted[name])} for name in missing])
        gates |= {row[0]: GateState(row) for row in await in_chunks(tx, lock, names)}
        # One that was forgotten while it was waited for is made again.
        if not waiting:
            break
    for name, gate in gates.items():
        gate.declare(wanted[name])
    await _override(tx, gates)
    return gates


async def _override(tx: Transaction, gates: Mapping[str, GateState]) -> None:
    """What was set for a limit holds for each of its keys that has nothing of its own."""
    bases = sorted({base for name in gates if (base := base_of(name)) != name})
    overrides = {name: _bounds(text) for name, text in await in_chunks(tx, _OVERRIDES, bases)}
    for name, gate in gates.items():
        if gate.override is None and base_of(name) != name:
            gate.bounds = overrides.get(base_of(name)) or gate.declared


async def count_held(tx: Transaction, gates: Iterable[GateState]) -> None:
    """Find out how many have passed and count, where that matters; forget those that do not count."""
    counted = {gate.name: gate for gate in gates if gate.counts}
    for name, held in await in_chunks(tx, _HELD, sorted(counted), reserved=tx.now - RESERVED):
        counted[name].held = held
    for name, there in await in_chunks(tx, _PERMITS, sorted(counted)):
        if there > counted[name].held:
            await tx.execute(_FORGET, {"gate": name, "reserved": tx.now - RESERVED})


async def save_gates(tx: Transaction, gates: Iterable[GateState]) -> None:
    """Write what has changed."""
    await tx.execute_many(_SAVE, [gate.row() for gate in gates if gate.changed])


async def next_due(tx: Transaction, types: Sequence[str]) -> int:
    """When it is worth looking at a gate for somebody of these types."""
    rows = await _by_due(tx, "g.due_at", types, FAR - 1, 1)
    return rows[0][0] if rows else FAR


async def due_gates(tx: Transaction, types: Sequence[str], limit: int) -> list[str]:
    """Gates at which somebody of these types may pass, those that have waited longest first."""
    return [row[0] for row in await _by_due(tx, "g.name", types, tx.now, limit)]


async def _by_due(tx: Transaction, column: str, types: Sequence[str], until: int, limit: int) -> list[Row]:
    if not types:
        return []
    chosen, params = placeholders("name", types)
    sql = f"SELECT {column} {_BY_DUE.replace('{names}', chosen)}"
    return await tx.fetch(sql, {**params, "until": until, "limit": limit})


async def stir_gates(tx: Transaction) -> None:
    """Have every gate looked at that waits for room: somebody may have gone without a word."""
    # In nobody's way: who has one locked looks at it anyway.
    full = [row[0] for row in await tx.fetch(_FULL, {"limit": _STIRRED})]
    for start in range(0, len(full), CHUNK):
        chosen, params = placeholders("name", full[start : start + CHUNK])
        await tx.execute(_STIR.replace("{names}", chosen), {**params, "now": tx.now})
    if full:
        tx.stir(Change.READY)


async def forget_gates(tx: Transaction, limit: int) -> int:
    """Forget gates of keys that nobody uses any more; how many."""
    params: dict[str, object] = {"now": tx.now, "limit": limit, "reserved": tx.now - RESERVED}
    found = [row[0] for row in await tx.fetch(_IDLE.replace("{among}", ""), params)]
    locked = sorted(await lock_gates(tx, dict.fromkeys(found, Bounds()), waiting=False)) if found else []
    if not locked:
        return 0
    # Looked at again: somebody may have passed before the lock was had.
    chosen, names = placeholders("name", locked)
    rows = await tx.fetch(_IDLE.replace("{among}", f"AND g.name IN ({chosen})"), {**params, **names})
    if rows:
        chosen, names = placeholders("name", [row[0] for row in rows])
        for sql in _FORGET_OF:
            await tx.execute(sql.replace("{names}", chosen), names)
    return len(rows)


async def set_bounds(tx: Transaction, name: str, bounds: Bounds | None) -> None:
    """Override what the code says about a gate, or no longer."""
    gate = (await lock_gates(tx, {name: Bounds()}))[name]
    override = "" if bounds is None else msgspec.json.encode(bounds).decode()
    if gate.override != bounds:
        await tx.execute(_SET, {"name": name, "override": override, "now": tx.now, "actor": tx.actor, "far": FAR})
        tx.note(f"gate:{name}", "limit_set" if bounds else "limit_cleared", override or "{}")
    row = _limited_row(name)
    if row is not None and bounds is not None and not await tx.fetch(_PAUSED, row):
        await tx.execute(_PAUSE, {**row, "actor": tx.actor, "now": tx.now})
    if row is not None and bounds is None and not await tx.fetch(ANYBODY, {"gate": name}):
        await tx.execute(_FORGET_PAUSE, row)
    tx.stir(Change.READY)


async def open_up(tx: Transaction, gate: GateState) -> None:
    """Let claims take the runs of a type or queue again whose limit was cleared, once nobody stands in line there."""
    row = _limited_row(gate.name)
    if row is not None and gate.override is None:
        await tx.execute(_FORGET_PAUSE, row)


async def gates(tx: Transaction, after: str, limit: int) -> list[Gate]:
    """Gates in the order of their names, past one."""
    return await _shown(tx, await tx.fetch(_PAGE, {"after": after, "limit": limit}))


async def one_gate(tx: Transaction, name: str) -> Gate:
    """One gate, as it is."""
    [gate] = await _shown(
        tx, await tx.fetch(_PAGE.replace("name > :after", "name = :after"), {"after": name, "limit": 1})
    )
    return gate


async def _shown(tx: Transaction, rows: Sequence[Row]) -> list[Gate]:
    states = {row[0]: GateState(row[:-1]) for row in rows}
    await _override(tx, states)
    held: dict[str, int] = dict(await in_chunks(tx, _HELD, sorted(states), reserved=tx.now - RESERVED))
    return [
        Gate(
            name=name,
            bounds=state.bounds,
            override=state.override,
            held=held.get(name, 0),
            waiting=row[-1],
            due_at=state.due_at if state.waited_at else 0,
            breaker=None if state.breaker is None else view(name, state.breaker, tx.now, row[-1]),
        )
        for row, (name, state) in zip(rows, states.items(), strict=True)
    ]


def limited(known: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Gates of whole types and queues, from kinds and names among the pauses."""
    of = {LIMITED_TYPE: of_type, LIMITED_QUEUE: of_queue}
    return tuple(of[kind](name) for kind, name in known if kind in of)


async def in_chunks(tx: Transaction, sql: str, names: Sequence[str], **others: object) -> list[Row]:
    """The rows of a query over `{names}`, asked for a part at a time."""
    rows: list[Row] = []
    for start in range(0, len(names), CHUNK):
        chosen, params = placeholders("name", names[start : start + CHUNK])
        rows += await tx.fetch(sql.replace("{names}", chosen), {**params, **others})
    return rows


def _limited_row(gate: str) -> dict[str, object] | None:
    kind, _, name = gate.partition(":")
    kinds = {"type": LIMITED_TYPE, "queue": LIMITED_QUEUE}
    return {"kind": kinds[kind], "name": name} if kind in kinds else None


def _bounds(text: str) -> Bounds | None:
    return msgspec.json.decode(text, type=Bounds) if text else None
