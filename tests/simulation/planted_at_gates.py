"""Faults planted where runs and steps pass gates, each as a patch, to see whether the simulation finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perdure.core.limits.breaker import BreakerReport, BreakerState, Circuit
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits import admit_runs, admit_steps, gates
from perdure.store.sql.limits.gate_decision import GateState
from tests.simulation.planted import Patch, reword


def turns_not_counted(patch: Patch) -> None:
    """A permit that is kept for a step that is next in line does not count."""
    reword(patch, gates, "_HELD", "OR (p.hold = 'turn'", "OR (1 = 0")


def repeated_steps_pass_free(patch: Patch) -> None:
    """A step that is begun again by another worker uses the permit of the one before, which a rate has counted once."""
    reword(
        patch,
        admit_steps,
        "_PERMITS",
        "gate, token, hold",
        "gate, (SELECT token FROM perdure_runs WHERE id = run_id), hold",
    )


def rate_forgotten_without_a_line(patch: Patch) -> None:
    """That something has passed is written down where a run waits."""

    def let_pass(self: GateState, now: int) -> None:
        changed = self.changed
        original(self, now)
        self.changed = changed or self.waited_at

    original = GateState.let_pass
    patch.setattr(GateState, "let_pass", let_pass)


def probes_counted_before_the_lock(patch: Patch) -> None:
    """How many probes there are is known from an earlier look."""
    before: dict[str, int] = {}
    original = gates.count_held

    async def count_held(tx: Transaction, states: Iterable[GateState]) -> None:
        states = list(states)
        await original(tx, states)
        for state in states:
            if state.breaker is not None and state.breaker.circuit is Circuit.HALF_OPEN:
                state.held, before[state.name] = before.get(state.name, 0), state.held

    patch.setattr(admit_runs, "count_held", count_held)


def reports_counted_again(patch: Patch) -> None:
    """A report that is repeated because its answer was lost counts a second time."""

    def add_report(self: BreakerState, worker: str, report: BreakerReport, now: int) -> bool:
        self.heard = {}
        return original(self, worker, report, now)

    original = BreakerState.add_report
    patch.setattr(BreakerState, "add_report", add_report)


PLANTED_AT_GATES: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (
        turns_not_counted,
        repeated_steps_pass_free,
        rate_forgotten_without_a_line,
        probes_counted_before_the_lock,
        reports_counted_again,
    )
}
