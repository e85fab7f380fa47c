"""Admission of steps: the run of a step is held meanwhile, or waits and is woken when the step may begin.

A refused step joins a waitlist on its own, by its run and location. When it is next in line, the transaction that finds
it reserves a permit for a while (`hold = 'turn'`) and wakes the run; the worker that claims the run asks again and gets
that permit for its lease. A step has one row for each gate that counts permits, by which a repeated request is
recognised; other gates, such as a closed breaker, it may pass again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.core.audit import NEXT
from perdure.core.limits.admission_requests import StepAdmission, StepArrival, StepDeparture
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import RequiredGate
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import FINISHED, Status
from perdure.core.time.duration import NEVER
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.gate_decision import GateState
from perdure.store.sql.limits.gates import RESERVED, in_chunks
from perdure.store.sql.limits.waitlist import FairQueue, WaitlistEntry, read_gating
from perdure.store.sql.runs.inbox import deliver

#: Type and queue of waiting steps: any worker may admit them.
STEPS = ""
#: So many at each gate are looked at together.
_ENOUGH = 50

_FIRST = """
SELECT * FROM (
  SELECT gate, priority, turn, run_id, location, gating
  FROM perdure_lines {use perdure_lines_by_priority}
  WHERE gate = :gate# AND type = ''
  ORDER BY priority, turn, run_id
  LIMIT :limit
) part#
"""

_RUNS = "SELECT id, status, token FROM perdure_runs {use PRIMARY} WHERE id IN ({names}) {skip_locked}"
_TOKENS = "SELECT id, token FROM perdure_runs WHERE id IN ({names})"
_PERMITS = """
SELECT run_id, location, gate, token, hold, granted_at
FROM perdure_permits
WHERE run_id IN ({names}) AND location <> ''
"""
_PLACES = "SELECT run_id, location, gate FROM perdure_lines WHERE run_id IN ({names}) AND location <> ''"

_JOIN = """
INSERT INTO perdure_lines (run_id, location, gate, queue, type, priority, turn, gating, since)
VALUES (:run_id, :place, :gate, '', '', :priority, :turn, :gating, :now)
"""
_MOVE = """
UPDATE perdure_lines
SET gate = :gate, turn = :turn, gating = :gating
WHERE run_id = :run_id AND location = :place
"""
_LEAVE = "DELETE FROM perdure_lines WHERE run_id = :run_id AND location = :place AND since <= :stood_at"

_PERMIT = """
INSERT INTO perdure_permits (gate, run_id, location, token, hold, granted_at)
VALUES (:gate, :run_id, :place, :token, :hold, :now)
"""
_CONVERT = """
UPDATE perdure_permits
SET token = :token, hold = 'lease', granted_at = :now
WHERE run_id = :run_id AND location = :place
"""
_FORGET = "DELETE FROM perdure_permits WHERE run_id = :run_id AND location = :place"
_RELEASE = "DELETE FROM perdure_permits WHERE run_id = :run_id AND location = :place AND token <= :token"


class WaitingStep(WaitlistEntry):
    """A step that stands in a line, or is about to."""

    location: str = ""


class StepAdmitter:
    """Admission of the steps of one transaction."""

    def __init__(self, tx: Transaction, gates: dict[str, GateState]) -> None:
        self._tx = tx
        self._gates = gates
        self.waiting: list[WaitingStep] = []
        self.verdicts: list[StepAdmission] = []
        #: Runs of those that stand in lines, which are locked: status and token.
        self._runs: dict[str, tuple[str, int]] = {}
        #: Gates at which something may have changed.
        self.touched: set[str] = set()
        self.called = 0

    async def read_first(self, due: Sequence[str]) -> None:
        """Read the first waiting steps at gates that are due."""
        tx = self._tx
        self.touched |= set(due)
        broken: list[tuple[str, str]] = []
        if due:
            parts = " UNION ALL ".join(_FIRST.replace("#", str(number)) for number in range(len(due)))
            names = {f"gate{number}": name for number, name in enumerate(due)}
            for gate, priority, turn, run_id, place, text in await tx.fetch(parts, {**names, "limit": _ENOUGH}):
                gating = read_gating(text, run_id, place)
                if gating is None:
                    broken.append((run_id, place))
                    continue
                one = WaitingStep(run_id, gating, priority, turn, gate)
                one.location = place
                self.waiting.append(one)
        ids = sorted({one.run_id for one in self.waiting}.union(run_id for run_id, _ in broken))
        self._runs = {run_id: (status, token) for run_id, status, token in await in_chunks(tx, _RUNS, ids)}
        for run_id, place in broken:
            if run_id in self._runs:
                await self._ask_anew(run_id, place)

    async def _ask_anew(self, run_id: str, place: str) -> None:
        """Remove a step from a waitlist whose entry cannot be read; its run is told and asks again."""
        tx = self._tx
        await tx.execute(_LEAVE, {"run_id": run_id, "place": place, "stood_at": NEVER})
        if Status(self._runs[run_id][0]) not in FINISHED:
            key = f" call:{tx.now}:{place}"
            await deliver(tx, NewMessage(run_id=run_id, kind=RecordKind.CALL, name=place, key=key))

    async def run(
        self, arrivals: Sequence[StepArrival], queue: FairQueue, runs: Mapping[str, Sequence[WaitlistEntry]]
    ) -> None:
        """Admit waiting steps that are ahead of the first waiting run, and steps that have just arrived."""
        first = {gate: min(one.place for one in line) for gate, line in runs.items() if line}
        before = [one for one in self.waiting if one.gate not in first or one.place < first[one.gate]]
        self.waiting = [one for one in self.waiting if one not in before]
        await self._call_all(before, queue)
        await self._arrive(arrivals, queue)

    async def rest(self, queue: FairQueue) -> None:
        """Let pass who may of the others, when the runs have had their turn."""
        await self._call_all(self.waiting, queue)

    async def _call_all(self, those: Sequence[WaitingStep], queue: FairQueue) -> None:
        full: set[str] = set()
        for one in those:
            if one.gate not in full and not await self._call(one, queue):
                full.add(one.gate)

    async def _call(self, one: WaitingStep, queue: FairQueue) -> bool:
        """Let one that stands in a line pass; whether it is worth asking that line again."""
        tx = self._tx
        if one.run_id not in self._runs:
            return True
        status, token = self._runs[one.run_id]
        place = {"run_id": one.run_id, "place": one.location}
        if Status(status) in FINISHED:
            await tx.execute(_LEAVE, {**place, "stood_at": tx.now})
            return True
        barred = self._barred_until(one.gating.passes)
        refused = None if barred else self._refused_by(one.gating.passes)
        if refused == one.gate:
            return False
        if refused is not None:
            if refused in self._gates:
                await queue.assign(refused, [one])
                await tx.execute(_MOVE, {**place, "gate": refused, "turn": one.turn, "gating": one.gating.to_json()})
                self.touched.add(refused)
            return True
        if not barred:
            await self._permit(one.run_id, one.location, token, "turn", one.gating.passes)
        gate = self._gates[one.gate]
        gate.turn, gate.changed = max(gate.turn, one.turn), True
        await tx.execute(_LEAVE, {**place, "stood_at": tx.now})
        key = f" call:{tx.now}:{one.location}"
        self.called += 1
        await deliver(tx, NewMessage(run_id=one.run_id, kind=RecordKind.CALL, name=one.location, key=key))
        if Status(status) is not Status.RUNNING:
            tx.note(one.run_id, NEXT)
        return True

    async def _arrive(self, arrivals: Sequence[StepArrival], queue: FairQueue) -> None:
        tx = self._tx
        ids = sorted({one.run_id for one in arrivals})
        tokens = {one.run_id: one.token for one in arrivals}
        permits: dict[tuple[str, str], set[str]] = {}
        for run_id, place, gate, token, hold, granted_at in await in_chunks(tx, _PERMITS, ids):
            asked = next((one for one in arrivals if (one.run_id, one.place) == (run_id, place)), None)
            reserved = hold == "turn" and granted_at > tx.now - RESERVED
            if asked is not None and (reserved or (hold == "lease" and token == asked.token)):
                permits.setdefault((run_id, place), set()).add(gate)
            elif asked is None and hold == "lease" and token < tokens[run_id]:
                # Of a step that ended while its worker died.
                await tx.execute(_RELEASE, {"run_id": run_id, "place": place, "token": token})
        places = {(run_id, place): gate for run_id, place, gate in await in_chunks(tx, _PLACES, ids)}
        # As of now: the request may be late, and a later holder of the run has its own permits.
        owned = {(run_id, token) for run_id, token in await in_chunks(tx, _TOKENS, ids)}
        for one in arrivals:
            if (one.run_id, one.token) not in owned:
                self.verdicts.append(StepAdmission(one.run_id, one.place, gate=one.gating.passes[0].gate))
                continue
            stands_at = places.get((one.run_id, one.place))
            await self._arrived(one, permits.get((one.run_id, one.place), set()), stands_at, queue)

    async def _arrived(self, one: StepArrival, has: set[str], stands_at: str | None, queue: FairQueue) -> None:
        tx, passes = self._tx, one.gating.passes
        place = {"run_id": one.run_id, "place": one.place}
        counting = [wanted for wanted in passes if self._gates[wanted.gate].remembers]
        if has and has >= {wanted.gate for wanted in counting}:
            await tx.execute(_CONVERT, {**place, "token": one.token, "now": tx.now})
            self._let_begin(one)
            return
        refused_until = self._barred_until(passes)
        if refused_until:
            self.verdicts.append(StepAdmission(one.run_id, one.place, refused_until=refused_until))
            return
        line = next((wanted.gate for wanted in passes if self._gates[wanted.gate].waited_at), None)
        refused = stands_at or line or self._refused_by(passes)
        # Rows of an earlier lease count no more; nor does a turn that was kept for less than is asked for now.
        await tx.execute(_FORGET, place)
        if refused is None:
            await self._permit(one.run_id, one.place, one.token, "lease", counting)
            self._let_begin(one, permit=bool(counting))
            return
        if stands_at is None:
            new = WaitingStep(one.run_id, one.gating, one.priority)
            await queue.assign(refused, [new])
            row = {"gate": refused, "turn": new.turn, "gating": one.gating.to_json(), "priority": one.priority}
            await tx.execute(_JOIN, {**place, **row, "now": tx.now})
            self.touched.add(refused)
        self.verdicts.append(StepAdmission(one.run_id, one.place, gate=refused))

    def _let_begin(self, one: StepArrival, *, permit: bool = True) -> None:
        breakers = [self._gates[wanted.gate].breaker for wanted in one.gating.passes]
        probe = any(breaker is not None and breaker.circuit is Circuit.HALF_OPEN for breaker in breakers)
        self.verdicts.append(StepAdmission(one.run_id, one.place, permit=permit, probe=probe))

    async def _permit(self, run_id: str, place: str, token: int, hold: str, passes: Sequence[RequiredGate]) -> None:
        for wanted in passes:
            self._gates[wanted.gate].let_pass(self._tx.now)
        row = {"run_id": run_id, "place": place, "token": token, "hold": hold, "now": self._tx.now}
        await self._tx.execute_many(_PERMIT, [{**row, "gate": wanted.gate} for wanted in passes])

    def _refused_by(self, passes: Sequence[RequiredGate]) -> str | None:
        for wanted in passes:
            gate = self._gates.get(wanted.gate)
            if gate is None or not gate.has_room(self._tx.now):
                return wanted.gate
        return None

    def _barred_until(self, passes: Sequence[RequiredGate]) -> int:
        """Until when a breaker does not let pass what is to fail then; 0 if it may pass."""
        for wanted in passes:
            gate = self._gates.get(wanted.gate)
            breaker = gate.breaker if gate is not None and wanted.rule is not None and wanted.rule.fails else None
            if gate is not None and breaker is not None and breaker.lacks(gate.held):
                return breaker.until
        return 0


async def gates_of_steps(tx: Transaction, left: Sequence[StepDeparture]) -> dict[tuple[str, str], set[str]]:
    """By run and location, the gates that departed steps passed or wait at."""
    steps = {(one.run_id, one.place): one for one in left}
    ids = sorted({one.run_id for one in left})
    found: dict[tuple[str, str], set[str]] = {}
    for run_id, place, gate, token, _, _ in await in_chunks(tx, _PERMITS, ids):
        if (run_id, place) in steps and token <= steps[run_id, place].token:
            found.setdefault((run_id, place), set()).add(gate)
    standing = sorted({one.run_id for one in left if one.waiting_since})
    for run_id, place, gate in await in_chunks(tx, _PLACES, standing):
        if (run_id, place) in steps and steps[run_id, place].waiting_since:
            found.setdefault((run_id, place), set()).add(gate)
    return found


async def release_steps(tx: Transaction, left: Sequence[StepDeparture]) -> None:
    """Delete the permits and waitlist entries of departed steps."""
    rows = [{"run_id": one.run_id, "place": one.place, "token": one.token} for one in left]
    await tx.execute_many(_RELEASE, rows)
    standing = [
        {"run_id": one.run_id, "place": one.place, "stood_at": one.waiting_since} for one in left if one.waiting_since
    ]
    await tx.execute_many(_LEAVE, standing)


async def steps_before(tx: Transaction, steps: Sequence[StepArrival]) -> tuple[StepAdmission, ...]:
    """Outcome of steps that were requested before; an unknown step has to be requested again."""
    ids = sorted({one.run_id for one in steps})
    granted = {
        (run_id, place, token)
        for run_id, place, _, token, hold, _ in await in_chunks(tx, _PERMITS, ids)
        if hold == "lease"
    }
    places = {(run_id, place): gate for run_id, place, gate in await in_chunks(tx, _PLACES, ids)}
    verdicts: list[StepAdmission] = []
    for one in steps:
        if (one.run_id, one.place, one.token) in granted:
            verdicts.append(StepAdmission(one.run_id, one.place, permit=True, probe=True))
        elif (one.run_id, one.place) in places:
            verdicts.append(StepAdmission(one.run_id, one.place, gate=places[one.run_id, one.place]))
    return tuple(verdicts)
