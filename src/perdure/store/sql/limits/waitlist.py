"""Waitlists at gates: ready runs that may not pass yet, in fair order.

A run is on one waitlist at a time, at the gate that refuses it. Positions follow start-time fair queueing: the next
position of a key is one stride after its last one, but not before the position that passed last. So a key that was away
gains nothing by that, and a key with a thousand waiting runs gets one admission while others get theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping, Sequence

from msgspec import Struct

from perdure.core.audit import NEXT
from perdure.core.limits.admission_requests import AdmissionPreview, AdmissionRequest, UnadmittedRun
from perdure.core.limits.call_limits import call_limits_of
from perdure.core.limits.limit import STRIDE, RequiredGates, WaitlistPosition
from perdure.core.model.run import Run
from perdure.core.pinning import base_queue
from perdure.core.time.duration import NEVER
from perdure.errors import StoreCorrupt
from perdure.store.contract import Change
from perdure.store.sql.dialect import Params, Row, Transaction, placeholders
from perdure.store.sql.limits.gate_decision import LAST_TURN, GateState
from perdure.store.sql.limits.gates import in_chunks, next_due, one_gate
from perdure.store.sql.rows import UNREADABLE, readable

_log = logging.getLogger("perdure.store")

#: How many parts a statement may have.
_PARTS = 60
#: One in so many is let pass by its turn alone, whatever its priority.
AGE_SHARE = 8
#: No weight costs more than that.
LAST_STRIDE = 1000 * STRIDE
#: Shares that say nothing any more are forgotten each time that so many turns have passed.
_FORGET_AFTER = 1024 * STRIDE

_ARRIVED = """
SELECT * FROM (
  SELECT r.id, r.type, r.queue, r.token, r.input, r.options
  FROM perdure_runs r {use perdure_runs_to_claim}
  WHERE {pending r.queue} = :queue# AND r.type = :type# AND NOT EXISTS (
    SELECT 1 FROM perdure_pauses p
    WHERE (p.kind = 'type' AND p.name = :type#) OR (p.kind = 'queue' AND p.name = :base#)
  )
  ORDER BY r.priority, r.wake_at, r.id
  LIMIT :limit
) part#
"""

_FIRST, _LAST = "r.priority, r.wake_at, r.id", "r.priority DESC, r.wake_at DESC, r.id DESC"

_HEADS = """
SELECT * FROM (
  SELECT gate, priority, turn, run_id, location, gating, queue
  FROM perdure_lines {use perdure_lines_by_priority}
  WHERE gate = :gate# AND type = :type# {queues}
  ORDER BY priority, turn, run_id
  LIMIT :limit
) part#
"""

_OLDEST = """
SELECT * FROM (
  SELECT gate, priority, turn, run_id, location, gating, queue
  FROM perdure_lines {use perdure_lines_by_turn}
  WHERE gate = :gate# AND type = :type# {queues}
  ORDER BY turn, run_id
  LIMIT :by_age
) part#
"""

_SHARES = "SELECT gate, fair_key, turn FROM perdure_shares WHERE gate = :gate AND fair_key IN ({names})"

_NEW_SHARE = "INSERT INTO perdure_shares (gate, fair_key, turn) VALUES (:gate, :fair_key, :turn)"
_SHARE = "UPDATE perdure_shares SET turn = :turn WHERE gate = :gate AND fair_key = :fair_key"
_FORGET_SHARES = "DELETE FROM perdure_shares WHERE gate = :gate AND turn <= :turn"

_IN_LINE = "SELECT run_id, gate, turn FROM perdure_lines WHERE run_id IN ({names}) AND location = ''"
_LEAVE = "DELETE FROM perdure_lines WHERE run_id IN ({names}) AND location = ''"

_JOIN = """
INSERT INTO perdure_lines (run_id, gate, queue, type, priority, turn, gating, since)
VALUES (:run_id, :gate, :queue, :type, :priority, :turn, :gating, :since)
"""

_MOVE = """
UPDATE perdure_lines
SET gate = :gate, turn = :turn, gating = :gating
WHERE run_id = :run_id AND location = ''
"""

_STANDING = "SELECT gate, type, priority, turn, since FROM perdure_lines WHERE run_id = :run_id ORDER BY since LIMIT 1"
#: Each part along the index.
_AHEAD = """
SELECT COUNT(*) FROM (
  SELECT 1 FROM (
    SELECT 1 FROM perdure_lines
    WHERE gate = :gate AND type = :type AND priority < :priority
    ORDER BY priority, turn, run_id
    LIMIT 1000
  ) more_urgent
  UNION ALL
  SELECT 1 FROM (
    SELECT 1 FROM perdure_lines
    WHERE gate = :gate AND type = :type AND priority = :priority AND turn < :turn
    ORDER BY priority, turn, run_id
    LIMIT 1000
  ) earlier
) ahead
"""

_STAND = f"""
UPDATE perdure_runs
SET status = 'waiting', reason = :reason, wake_at = {NEVER}
WHERE id IN ({{names}}) AND status = 'pending'
"""


_FREE = "SELECT id FROM perdure_runs {use PRIMARY} WHERE id IN ({names}) {skip_locked}"
_READY_AGAIN = """
UPDATE perdure_runs
SET status = 'pending', reason = NULL, wake_at = :now
WHERE id = :run_id AND status = 'waiting' AND reason IN ('limit', 'breaker')
"""

_START_BY = """
UPDATE perdure_runs
SET close_by = deadline, deadline = :start_by
WHERE id = :run_id AND deadline > :start_by
"""


class WaitlistEntry(Struct):
    """A run that wants to pass a gate."""

    run_id: str
    gating: RequiredGates
    priority: int = 0
    #: Where it stands; -1 until that is known.
    turn: int = -1
    #: The line that it stands in; empty if it has only just arrived.
    gate: str = ""

    @property
    def place(self) -> tuple[int, int, str]:
        """Sort key: priority, position, run."""
        return self.priority, self.turn, self.run_id


async def preview_admission(
    tx: Transaction, pairs: Sequence[tuple[str, str]], limit: int, *, newest: bool
) -> AdmissionPreview:
    """Preview of admission: ready runs of these queues and types, and when the next waiting run may pass."""
    rows: list[Row] = []
    for start in range(0, len(pairs), _PARTS):
        part = pairs[start : start + _PARTS]
        params: dict[str, object] = {"limit": limit}
        for number, (queue, type) in enumerate(part):
            params |= {f"queue{number}": queue, f"base{number}": base_queue(queue), f"type{number}": type}
        arrived_by = _ARRIVED.replace(_FIRST, _LAST) if newest else _ARRIVED
        sql = " UNION ALL ".join(arrived_by.replace("#", str(number)) for number in range(len(part)))
        rows += await tx.fetch(sql, params)
    arrived = tuple(UnadmittedRun(*row) for row in rows)
    types = list(dict.fromkeys(type for _, type in pairs))
    return AdmissionPreview(arrived=arrived, next_due=await next_due(tx, types), now=tx.now)


async def heads(
    tx: Transaction, gates: Sequence[str], types: Sequence[str], queues: Sequence[str], limit: int, by_age: int
) -> dict[str, list[WaitlistEntry]]:
    """The first in some lines, those of each by their turns within priorities, and by turns alone."""
    found: dict[str, dict[str, WaitlistEntry]] = {gate: {} for gate in gates}
    broken: list[str] = []
    named, among = placeholders("queue", list(queues))
    asked = [
        (sql, gate, type) for gate in gates for type in types for sql in ((_HEADS, _OLDEST) if by_age else (_HEADS,))
    ]
    for start in range(0, len(asked), _PARTS):
        params: dict[str, object] = {**among, "limit": limit}
        if by_age:
            params["by_age"] = by_age
        parts: list[str] = []
        for number, (sql, gate, type) in enumerate(asked[start : start + _PARTS]):
            params |= {f"gate{number}": gate, f"type{number}": type}
            parts.append(sql.replace("#", str(number)).replace("{queues}", f"AND queue IN ({named})"))
        for gate, priority, turn, run_id, _, text, _ in await tx.fetch(" UNION ALL ".join(parts), params):
            gating = read_gating(text, run_id, "")
            if gating is None:
                broken.append(run_id)
            else:
                found[gate][run_id] = WaitlistEntry(run_id, gating, priority, turn, gate)
    await _arrive_anew(tx, broken)
    return {gate: list(those.values()) for gate, those in found.items()}


def read_gating(text: str, run_id: str, location: str) -> RequiredGates | None:
    """Gates that a waiting run has to pass; None, with an error in the log, if they cannot be read."""
    try:
        return readable(RequiredGates.from_json, text, "perdure_lines", f"run_id {run_id!r}, location {location!r}")
    except StoreCorrupt as error:
        _log.error("a place in line is given up and asked for anew: %s", error)
        return None


async def _arrive_anew(tx: Transaction, run_ids: Sequence[str]) -> None:
    """Remove runs from waitlists whose gates cannot be read, and make them ready: their code declares them anew."""
    for row in await in_chunks(tx, _FREE, sorted(set(run_ids))):
        await tx.execute(_LEAVE.replace("{names}", ":run_id"), {"run_id": row[0]})
        await tx.execute(_READY_AGAIN, {"run_id": row[0], "now": tx.now})
        tx.notify(Change.READY)


async def announce_next(
    tx: Transaction, gates: Mapping[str, GateState], freed: Mapping[str, int], request: AdmissionRequest
) -> None:
    """Announce the next runs, as many as there is new room for, if this request itself takes none from a waitlist."""
    if not tx.has_observers or (request.limit and not request.only):
        return
    for name in [name for name in freed if gates[name].waited_at and gates[name].has_room(tx.now)]:
        found: list[Row] = []
        for start in range(0, len(request.types), _PARTS):
            part = request.types[start : start + _PARTS]
            params: dict[str, object] = {f"type{number}": type for number, type in enumerate(part)}
            params |= {f"gate{number}": name for number in range(len(part))}
            sql = " UNION ALL ".join(_HEADS.replace("#", str(number)) for number in range(len(part)))
            found += await tx.fetch(sql.replace("{queues}", "AND location = ''"), {**params, "limit": freed[name]})
        for row in sorted(found, key=lambda row: row[1:4])[: freed[name]]:
            tx.note(row[3], NEXT)


class FairQueue:
    """Assigns positions at locked gates by start-time fair queueing."""

    def __init__(self, tx: Transaction, gates: Mapping[str, GateState]) -> None:
        self._tx = tx
        self._gates = gates
        self._shares: dict[tuple[str, str], int] = {}
        self._there: set[tuple[str, str]] = set()
        self._before = {name: gate.turn for name, gate in gates.items()}

    async def assign(self, gate: str, those: Sequence[WaitlistEntry]) -> None:
        """Assign the next positions at a gate, in this order."""
        state = self._gates[gate]
        self._before.setdefault(gate, state.turn)
        keys = sorted({one.gating.fair_key for one in those} - {key for name, key in self._shares if name == gate})
        for start in range(0, len(keys), 400):
            chosen, params = placeholders("name", keys[start : start + 400])
            rows = await self._tx.fetch(_SHARES.replace("{names}", chosen), {**params, "gate": gate})
            for name, key, turn in rows:
                self._shares[name, key] = turn
                self._there.add((name, key))
        for one in those:
            share = gate, one.gating.fair_key
            before = min(max(state.turn, self._shares.get(share, 0)), LAST_TURN)
            one.turn = self._shares[share] = before + min(max(1, one.gating.stride), LAST_STRIDE)
            one.gate = gate

    async def save(self) -> None:
        """Write the last position of each key, and delete those that have no effect any more."""
        rows = [{"gate": gate, "fair_key": key, "turn": turn} for (gate, key), turn in self._shares.items()]
        await self._tx.execute_many(_SHARE, [row for row in rows if (row["gate"], row["fair_key"]) in self._there])
        await self._tx.execute_many(
            _NEW_SHARE, [row for row in rows if (row["gate"], row["fair_key"]) not in self._there]
        )
        for name, gate in self._gates.items():
            empty = gate.changed and gate.due_at == NEVER
            before = self._before.get(name, gate.turn)
            if (empty and before != gate.turn) or before // _FORGET_AFTER != gate.turn // _FORGET_AFTER:
                await self._tx.execute(_FORGET_SHARES, {"gate": name, "turn": gate.turn})


async def waitlist_position(tx: Transaction, run_id: str) -> WaitlistPosition | None:
    """Position of a run on a waitlist."""
    rows = await tx.fetch(_STANDING, {"run_id": run_id})
    if not rows:
        return None
    gate, type, priority, turn, since = rows[0]
    [(ahead,)] = await tx.fetch(_AHEAD, {"gate": gate, "type": type, "priority": priority, "turn": turn})
    return WaitlistPosition(gate=await one_gate(tx, gate), ahead=min(ahead, 1000), since=since)


async def places(tx: Transaction, run_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Gate and turn of those of the runs that stand in a line."""
    return {run_id: (gate, turn) for run_id, gate, turn in await in_chunks(tx, _IN_LINE, run_ids)}


async def join(
    tx: Transaction,
    given: Sequence[WaitlistEntry],
    runs: Mapping[str, Run],
    there: Container[str],
    reason: Mapping[str, str],
) -> None:
    """Put runs on the waitlists where they were assigned positions; `there` are those that were on one before."""
    rows = [
        {
            "run_id": one.run_id,
            "gate": one.gate,
            "queue": runs[one.run_id].queue,
            "type": runs[one.run_id].type,
            "priority": runs[one.run_id].priority,
            "turn": one.turn,
            "gating": one.gating.to_json(),
            "since": tx.now,
        }
        for one in given
    ]
    new = [row for row, one in zip(rows, given, strict=True) if one.run_id not in there]
    await tx.execute_many(_JOIN, new)
    await tx.execute_many(_START_BY, _start_by(tx.now, [runs[str(row["run_id"])] for row in new]))
    moved = [
        {"run_id": one.run_id, "gate": one.gate, "turn": one.turn, "gating": one.gating.to_json()}
        for one in given
        if one.run_id in there
    ]
    await tx.execute_many(_MOVE, moved)
    for why in sorted(set(reason.values())):
        standing = [one.run_id for one in given if reason[one.gate] == why]
        for start in range(0, len(standing), 400):
            chosen, params = placeholders("name", standing[start : start + 400])
            await tx.execute(_STAND.replace("{names}", chosen), {**params, "reason": why})


def _start_by(now: int, runs: Sequence[Run]) -> list[Params]:
    """Deadlines for the first start of runs that had to join a waitlist."""
    found: list[Params] = []
    for run in runs:
        try:
            within = call_limits_of(run.options).start_within
        except UNREADABLE:
            # It is set aside when it is taken up.
            continue
        if within is not None and run.attempt == 1 and run.close_by == 0:
            found.append({"run_id": run.id, "start_by": now + int(within * 1e6)})
    return found


async def leave(tx: Transaction, run_ids: Sequence[str]) -> None:
    """Remove runs from their waitlists."""
    for start in range(0, len(run_ids), 400):
        chosen, params = placeholders("name", run_ids[start : start + 400])
        await tx.execute(_LEAVE.replace("{names}", chosen), params)


class Waitlist:
    """First entries of a waitlist in the order of admission: by priority, and now and then by position alone."""

    def __init__(self, gate: str, those: list[WaitlistEntry]) -> None:
        self.gate = gate
        self._those = those
        self._asked = 0

    def first(self) -> WaitlistEntry | None:
        """The next entry."""
        if not self._those:
            return None
        if self._asked % AGE_SHARE == AGE_SHARE - 1:
            return min(self._those, key=lambda one: (one.turn, one.run_id))
        return min(self._those, key=lambda one: one.place)

    def pop(self) -> None:
        """Remove the next entry."""
        first = self.first()
        assert first is not None
        self._asked += 1
        self._those.remove(first)
