"""Breakers at locked gates: reports are counted, open breakers become half open, and people may override them.

Every change of state is an audit event of the gate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from perdure.core.limits.admission_requests import RunArrival, StepArrival
from perdure.core.limits.breaker import BreakerReport, BreakerState, Circuit
from perdure.core.limits.call_limits import call_limits_of
from perdure.core.limits.limit import LimitBounds
from perdure.core.model.run import Run
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.gate_decision import GateState
from perdure.store.sql.limits.gates import in_chunks, lock_gates, save_gates
from perdure.store.sql.rows import UNREADABLE, to_json

_STATES = "SELECT name, breaker FROM perdure_gates WHERE name IN ({names}) AND breaker <> ''"
_PERMITTED = "SELECT run_id, gate FROM perdure_permits WHERE run_id IN ({names}) AND location = ''"


def update_breakers(
    tx: Transaction,
    gates: Mapping[str, GateState],
    arrivals: Iterable[RunArrival | StepArrival],
    reports: Sequence[BreakerReport],
    worker: str,
) -> None:
    """Apply the declared rules and the reports of attempts, and half open the breakers that are due."""
    for arrival in arrivals:
        for wanted in arrival.gating.passes:
            if wanted.rule is not None and "breaker" not in gates[wanted.gate].problems:
                gates[wanted.gate].guard(wanted.rule)
    for report in reports:
        gate = gates[report.gate]
        if "breaker" in gate.problems:
            continue
        before = gate.guard(report.rule).circuit
        if gate.guard(report.rule).add_report(worker, report, tx.now):
            gate.changed = True
        _tell(tx, gate, before)
    half_open(tx, gates.values())


async def count_success(tx: Transaction, name: str, admitted_at: int) -> None:
    """Count the success of an attempt whose end was reported from outside."""
    gate = (await lock_gates(tx, {name: LimitBounds()}))[name]
    if gate.breaker is None:
        return
    before = gate.breaker.circuit
    if gate.breaker.count(admitted_at, 0, 1, tx.now):
        gate.changed = True
        _tell(tx, gate, before)
        await save_gates(tx, [gate])


def half_open(tx: Transaction, gates: Iterable[GateState]) -> None:
    """Half open the breakers that have been open long enough."""
    for gate in gates:
        if gate.breaker is not None and gate.breaker.wake(tx.now):
            _tell(tx, gate, Circuit.OPEN)


def _tell(tx: Transaction, gate: GateState, before: Circuit) -> None:
    state = gate.breaker
    if state is None or state.circuit is before:
        return
    gate.changed = True
    if gate.waited_at:
        gate.due_at, gate.waits_for = tx.now, ""
        tx.notify(Change.READY)
    note(tx, gate.name, state)


def note(tx: Transaction, name: str, state: BreakerState, reason: str = "") -> None:
    """Note the state of a breaker in the audit trail."""
    said = {"by_hand": True} if state.by_hand else {"until": state.until} if state.circuit is Circuit.OPEN else {}
    because = {"reason": reason} if reason else {}
    tx.note(f"gate:{name}", f"breaker_{state.circuit.value}", to_json({**said, **because}))


async def set_breaker(tx: Transaction, name: str, circuit: Circuit | None, reason: str = "") -> None:
    """Hold a breaker open or closed; None returns it to its rule with empty counters."""
    gate = (await lock_gates(tx, {name: LimitBounds()}))[name]
    state = gate.breaker = gate.breaker or BreakerState()
    wanted, by_hand = circuit or Circuit.CLOSED, circuit is not None
    changed = (state.circuit, state.by_hand) != (wanted, by_hand) or "breaker" in gate.problems
    gate.mend("breaker")
    if not changed and (by_hand or not state.ring):
        return
    state.turn(wanted, tx.now, by_hand=by_hand)
    gate.changed = True
    if gate.waited_at:
        gate.due_at, gate.waits_for = tx.now, ""
        tx.notify(Change.READY)
    if changed:
        note(tx, name, state, reason)
    await save_gates(tx, [gate])


async def barred(tx: Transaction, runs: Sequence[Run], failing: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    """Claimed runs that an open breaker refuses, and until when."""
    declared = dict(failing)
    gates = {run.id: gate for run in runs if (gate := _fails_at(run, declared))}
    states: dict[str, str] = dict(await in_chunks(tx, _STATES, sorted(set(gates.values()))))
    known: dict[str, BreakerState] = {}
    for name, text in states.items():
        # One that cannot be read lets nothing pass, so none of these came from there.
        with suppress(*UNREADABLE):
            known[name] = BreakerState.from_json(text)
    permitted = {(run_id, gate) for run_id, gate in await in_chunks(tx, _PERMITTED, list(gates))}
    return [
        (run_id, known[gate].until)
        for run_id, gate in gates.items()
        if gate in known and known[gate].circuit is not Circuit.CLOSED and (run_id, gate) not in permitted
    ]


def _fails_at(run: Run, declared: Mapping[str, str]) -> str | None:
    """The gate of the breaker at which a run fails that does not let it pass."""
    try:
        given = call_limits_of(run.options).breaker
    except UNREADABLE:
        # It is set aside when it is taken up.
        return None
    if given is None:
        return declared.get(run.type)
    return given.breaker.gate if given.rule.fails else None
