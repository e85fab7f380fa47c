"""Who has passed the gates of a simulated world, and whether that was right.

Told by the executions themselves when they begin and end, and by triggers when a run is claimed or let go of and when a
breaker changes. So what is judged is what was executed under a valid lease, whatever the engine takes for the number of
its permits. Of a rate, the times that count are those at which the database let pass what was executed.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.limits.admission_requests import AdmissionRequest, AdmissionResult
from perdure.core.limits.breaker import BreakerState, Circuit
from perdure.core.limits.limit import limit_of_gate, stored_location
from perdure.store.sql.invariants import FINISHED, GATES
from tests.simulation.guards import Bound
from tests.simulation.ledger import Ledger
from tests.simulation.loop import SimLoop

#: One in so many transactions is followed by a look at everything.
_SELDOM = 8

_SEEN = "CREATE TEMP TABLE seen (seq INTEGER PRIMARY KEY, kind TEXT, name TEXT, place TEXT, said TEXT, number INTEGER)"
#: What is seen, when, and what of it.
_TRIGGERS = (
    ("run", "UPDATE OF status, token ON perdure_runs", "NEW.id, '', NEW.status, NEW.token"),
    ("cancel", "INSERT ON perdure_messages WHEN NEW.kind = 'cancel'", "NEW.run_id, '', '', 0"),
    ("permit", "INSERT ON perdure_permits WHEN NEW.location <> ''",
     "NEW.run_id, NEW.location, NEW.gate, NEW.hold = 'turn'"),
    ("gone", "DELETE ON perdure_permits WHEN OLD.location <> ''", "OLD.run_id, OLD.location, OLD.gate, 0"),
    ("gate", "UPDATE OF breaker ON perdure_gates WHEN NEW.breaker <> ''", "NEW.name, '', NEW.breaker, 0"),
    ("bounds", "UPDATE OF override ON perdure_gates WHEN NEW.override <> ''", "NEW.name, '', NEW.override, 0"),
)  # fmt: skip


class Grant(Struct, frozen=True):
    """Something was let pass."""

    at: int
    #: Breakers that were half open then.
    half_open: frozenset[str]


class Inside(Struct, frozen=True, eq=False):
    """An execution that goes on."""

    run_id: str
    token: int
    #: The gates that it has passed, and which of them as a probe.
    gates: frozenset[str]
    probes: frozenset[str]


class Turnstile:
    """See the module."""

    def __init__(self, loop: SimLoop, ledger: Ledger) -> None:
        self._loop = loop
        self._ledger = ledger
        self._raw: Any = None
        self._looks = 0
        #: By run, the token under which it is held.
        self._held: dict[str, int] = {}
        self._cancelled: set[str] = set()
        self._circuits: dict[str, Circuit] = {}
        #: By breaker, executions that did not succeed since it is what it is.
        self._failures: Counter[str] = Counter()
        #: By gate, the greatest concurrency that anybody has ever set there.
        self._set: defaultdict[str, int] = defaultdict(int)
        #: When a run was claimed: by its token, and for the first time since it was unfinished.
        self._claims: dict[tuple[str, int], Grant] = {}
        self._first: dict[str, Grant] = {}
        #: Of steps, by run, place and gate: turns that are kept for them, and what else they were granted, by token.
        self._turns: dict[tuple[str, str, str], Grant] = {}
        self._granted: dict[tuple[str, str, int], dict[str, Grant]] = {}
        #: What steps have passed and begun.
        self._used: set[tuple[str, str, int]] = set()
        self._inside: list[Inside] = []
        #: By gate, unfinished runs that have begun and count until their end.
        self._whole: defaultdict[str, set[str]] = defaultdict(set)
        self._passed: defaultdict[str, list[int]] = defaultdict(list)

    def install(self, raw: Any) -> None:
        """Look at a database from now on."""
        self._raw = raw
        raw.execute(_SEEN)
        for kind, event, what in _TRIGGERS:
            raw.execute(
                f"CREATE TEMP TRIGGER see_{kind} AFTER {event} "
                f"BEGIN INSERT INTO seen (kind, name, place, said, number) VALUES ('{kind}', {what}); END"
            )

    def look(self) -> None:
        """See what the last transaction has done."""
        if self._raw.in_transaction:
            return
        rows = self._raw.execute("SELECT kind, name, place, said, number FROM seen ORDER BY seq").fetchall()
        if not rows:
            return
        self._raw.execute("DELETE FROM seen")
        # Within a transaction gates are written last, and are what they are from its beginning.
        for kind, name, _, said, _ in rows:
            if kind == "gate":
                self._gate(name, BreakerState.from_json(said))
            elif kind == "bounds":
                self._set[name] = max(self._set[name], msgspec.json.decode(said)["concurrency"])
        for kind, name, place, said, number in rows:
            if kind == "run":
                self._run(name, said, number)
            elif kind == "cancel":
                self._cancelled.add(name)
            elif kind == "permit" and number:
                self._turns[name, place, said] = self._now()
            elif kind in ("permit", "gone"):
                self._forget(name, place, said)
        self._looks += 1
        if self._looks % _SELDOM == 0:
            self._scan()

    def _scan(self) -> None:
        """What is true of lines and permits at every moment."""
        for rule in GATES:
            for row in self._raw.execute(rule.broken_by):
                self._ledger.violated(f"run {row[0]}: not true that {rule.promise}; the database has {tuple(row[1:])}")

    def _gate(self, name: str, state: BreakerState) -> None:
        if state.circuit is self._circuits.get(name, Circuit.CLOSED):
            return
        before, self._circuits[name] = self._circuits.get(name, Circuit.CLOSED), state.circuit
        failures = self._failures.pop(name, 0)
        self._ledger.sometimes["a breaker was half open"] += state.circuit is Circuit.HALF_OPEN
        self._ledger.sometimes["a breaker closed again"] += (
            before is Circuit.HALF_OPEN and state.circuit is Circuit.CLOSED
        )
        if before is Circuit.CLOSED and not state.by_hand and failures < state.rule.failures:
            self._ledger.violated(f"{name} has opened after {failures} failures, and not after {state.rule.failures}")

    def _run(self, run_id: str, status: str, token: int) -> None:
        if status == "running":
            if self._held.get(run_id) != token:
                grant = self._claims[run_id, token] = self._now()
                self._first.setdefault(run_id, grant)
            self._held[run_id] = token
            return
        self._held.pop(run_id, None)
        if status in FINISHED:
            self._first.pop(run_id, None)
            for runs in self._whole.values():
                runs.discard(run_id)

    def _forget(self, run_id: str, place: str, gate: str) -> None:
        self._turns.pop((run_id, place, gate), None)
        for (of, at, _), granted in self._granted.items():
            if (of, at) == (run_id, place):
                granted.pop(gate, None)

    def _now(self) -> Grant:
        half_open = frozenset(name for name, circuit in self._circuits.items() if circuit is Circuit.HALF_OPEN)
        return Grant(self._loop.now(), half_open)

    def admitted(self, request: AdmissionRequest, answer: AdmissionResult) -> None:
        """The database has let steps pass, or kept them; whether anybody will be told is another matter."""
        asked = {(one.run_id, one.place): one for one in request.steps}
        for verdict in answer.steps:
            self._ledger.sometimes["a step stood in line"] += bool(verdict.gate)
            self._ledger.sometimes["a step was kept out by a breaker"] += bool(verdict.refused_until)
            if verdict.gate or verdict.refused_until:
                continue
            step = asked[verdict.run_id, verdict.place]
            granted = self._granted.setdefault((step.run_id, step.place, step.token), {})
            for wanted in step.gating.passes:
                turn = self._turns.pop((step.run_id, step.place, wanted.gate), None)
                if turn is not None:
                    self._ledger.sometimes["a step was called"] += 1
                    granted[wanted.gate] = turn
                else:
                    granted.setdefault(wanted.gate, self._now())

    # what the executions say

    @contextmanager
    def step(
        self, run_id: str, location: str, token: int, bounds: Mapping[str, Bound], *, again: bool = False
    ) -> Generator[None]:
        """A step's function is being called; perhaps `again` for one attempt, of which nothing else is left."""
        place = run_id, stored_location(location), token
        granted = self._granted.pop(place, {})
        if not granted and again and place in self._used:
            with self._execution(run_id, token, bounds, {}):
                yield
            return
        self._used.add(place)
        missing = sorted(bounds.keys() - granted.keys())
        if missing and self._held.get(run_id) == token:
            self._ledger.violated(f"{location} of run {run_id} was begun and has not passed {missing}")
        grants = {gate: granted[gate] for gate in bounds if gate in granted}
        with self._execution(run_id, token, bounds, grants):
            yield

    @contextmanager
    def activity(self, run_id: str, token: int, bounds: Mapping[str, Bound]) -> Generator[None]:
        """An activity's function is being called."""
        grant = self._claims[run_id, token]
        first = self._first.get(run_id, grant)
        grants = {gate: first if bound.whole else grant for gate, bound in bounds.items()}
        with self._execution(run_id, token, bounds, grants):
            yield

    def workflow(self, run_id: str, token: int | None, bounds: Mapping[str, Bound]) -> None:
        """A workflow's function is being called, for the first time or again."""
        if self._held.get(run_id) == token and run_id not in self._cancelled:
            self._begin(run_id, bounds)
            self._check(run_id, bounds)

    @contextmanager
    def _execution(
        self, run_id: str, token: int, bounds: Mapping[str, Bound], grants: Mapping[str, Grant]
    ) -> Generator[None]:
        lasting = frozenset(gate for gate, bound in bounds.items() if not bound.whole)
        probes = frozenset(gate for gate in lasting if gate in grants and gate in grants[gate].half_open)
        inside = Inside(run_id, token, lasting, probes)
        for gate, bound in bounds.items():
            if bound.pace and gate in grants and not (bound.whole and run_id in self._whole[gate]):
                insort(self._passed[gate], grants[gate].at)
                self._check_rate(gate, bound)
        if self._held.get(run_id) == token:
            self._begin(run_id, bounds)
        self._inside.append(inside)
        try:
            self._check(run_id, bounds)
            yield
        except BaseException:
            self._failures.update(bounds.keys())
            raise
        finally:
            self._inside.remove(inside)

    def _begin(self, run_id: str, bounds: Mapping[str, Bound]) -> None:
        for gate, bound in bounds.items():
            if bound.whole:
                self._whole[gate].add(run_id)

    # judging

    def _check(self, run_id: str, bounds: Mapping[str, Bound]) -> None:
        valid = [one for one in self._inside if self._held.get(one.run_id) == one.token]
        for gate, bound in bounds.items():
            held = sum(gate in one.gates for one in valid) + len(self._whole[gate])
            most = max(bound.concurrency, self._set[gate], self._set[limit_of_gate(gate)])
            if bound.concurrency:
                self._ledger.sometimes["a limit of concurrency was reached"] += held == most
            if bound.concurrency and held > most:
                self._ledger.violated(f"{held} are inside {gate} with {run_id}, and {most} may be")
            probes = [one.run_id for one in valid if gate in one.probes]
            self._ledger.sometimes["a probe was executed"] += bool(probes)
            if bound.probes and len(probes) > bound.probes:
                self._ledger.violated(f"{gate} is probed by {probes} at once, and {bound.probes} may do that")

    def _check_rate(self, gate: str, bound: Bound) -> None:
        arrival = 0
        for at in self._passed[gate]:
            if arrival - (bound.burst - 1) * bound.pace > at:
                self._ledger.violated(f"{gate} was passed too early at {at}: {self._passed[gate]}, where {bound} holds")
            arrival = max(arrival, at) + bound.pace
            self._ledger.sometimes["a rate was used up"] += arrival - (bound.burst - 1) * bound.pace > at
