"""The gates that one admission request has locked, and the releases and reports that it applies to them.

Gates that a step, a report or a named run needs are waited for, in the order of names. All others are locked only if
they are free: the transaction that holds one is admitting runs there, and waiting for it would delay everything locked
here. A release that could not be applied is returned, to be repeated soon.

A permit is deleted only under the lock of its gate, so that no two requests wait for each other's rows. Missing gates
are created in a transaction of their own, because a creation blocks other creators of the same gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from perdure.core.limits.admission_requests import AdmissionRequest, RunArrival, StepDeparture
from perdure.core.limits.limit import LimitBounds
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.admit_steps import gates_of_steps, release_steps
from perdure.store.sql.limits.breakers import half_open, update_breakers
from perdure.store.sql.limits.gate_decision import GateState
from perdure.store.sql.limits.gates import lock_gates, missing_gates, permits_of, release
from perdure.store.sql.limits.waitlist import WaitlistEntry


class LockedGates:
    """Gates locked by one request."""

    def __init__(self, tx: Transaction, request: AdmissionRequest) -> None:
        self._tx = tx
        self._request = request
        self.gates: dict[str, GateState] = {}
        #: What is given back: run, gate and token of permits; gates of steps, by run and place.
        self._freed: list[tuple[str, str, int]] = []
        self._left: dict[tuple[str, str], set[str]] = {}
        #: The gates where that makes room, and for how many at the most.
        self.freed: Counter[str] = Counter()
        #: Of the arrivals those all of whose gates are locked.
        self.arrivals: list[RunArrival] = []
        #: What has to be told again.
        self.undelivered: list[tuple[str, int]] = []
        self.undelivered_steps: list[StepDeparture] = []
        #: Gates that have to be made.
        self.missing: dict[str, LimitBounds] = {}
        #: Another transaction holds a gate that was asked for.
        self.busy = False

    async def take(self, due: Sequence[str]) -> bool:
        """Lock the gates that are needed, due or released; False if there is nothing to do with them."""
        tx, request = self._tx, self._request
        self._freed = await permits_of(tx, request.released)
        self._left = await gates_of_steps(tx, request.left)
        needed = {report.gate: LimitBounds() for report in request.reports}
        needed |= {one.gate: one.bounds for step in request.steps for one in step.gating.passes}
        others = dict.fromkeys([*due, *self._told], LimitBounds())
        others |= {one.gate: one.bounds for arrival in request.arrivals for one in arrival.gating.passes}
        if request.wait_for_locks:
            needed, others = {**others, **needed}, {}
        self.gates = await lock_gates(tx, needed)
        more = {name: bounds for name, bounds in others.items() if name not in needed}
        self.gates |= await lock_gates(tx, more, waiting=False)
        self.busy = not self.gates.keys() >= more.keys()
        self.arrivals = [one for one in request.arrivals if all(gate.gate in self.gates for gate in one.gating.passes)]
        return bool(self.gates or self.arrivals) or not self.busy

    @property
    def _told(self) -> set[str]:
        return {gate for _, gate, _ in self._freed}.union(*self._left.values())

    async def apply(self) -> None:
        """Release permits, and update the breakers."""
        tx, request = self._tx, self._request
        await self._give_back()
        for name in self._told & self.gates.keys():
            gate = self.gates[name]
            # A run that waits for room there may have it now, here or on another worker.
            if gate.waits_for == "room":
                gate.due_at, gate.waits_for, gate.changed = tx.now, "", True
                tx.notify(Change.READY)
        update_breakers(tx, self.gates, (*self.arrivals, *request.steps), request.reports, request.worker)

    async def take_more(self, those: Iterable[WaitlistEntry]) -> None:
        """Lock other gates that waiting runs have to pass; busy ones are left for another time."""
        those = list(those)
        for one in (one for standing in those for one in standing.gating.passes if one.gate in self.gates):
            if self.gates[one.gate].problem:
                self.gates[one.gate].declare(one.bounds)
        wanted = {
            one.gate: one.bounds for standing in those for one in standing.gating.passes if one.gate not in self.gates
        }
        if not wanted:
            return
        more = await lock_gates(self._tx, wanted, waiting=False)
        half_open(self._tx, more.values())
        self.gates |= more
        if others := {name: bounds for name, bounds in wanted.items() if name not in more}:
            self.missing = await missing_gates(self._tx, others)
            self.busy |= len(self.missing) < len(others)

    async def _give_back(self) -> None:
        """Delete released permits under the locks of their gates; others are reported for another time."""
        tokens = dict(self._request.released)
        busy = {run_id for run_id, gate, _ in self._freed if gate not in self.gates}
        self.undelivered = [(run_id, tokens[run_id]) for run_id in sorted(busy)]
        released = [one for one in self._freed if one[1] in self.gates]
        await release(self._tx, released)
        done: list[StepDeparture] = []
        for one in self._request.left:
            free = self._left.get((one.run_id, one.place), set()) <= self.gates.keys()
            (done if free else self.undelivered_steps).append(one)
        await release_steps(self._tx, done)
        self.freed.update(gate for _, gate, _ in released)
        self.freed.update(gate for one in done for gate in self._left.get((one.run_id, one.place), ()))
