"""Admission of runs: one transaction grants permits to as many runs as a worker has room for.

It locks gates first (`LockedGates`), then runs, skipping rows locked by other transactions, so that no two wait for
each other. An arriving run joins the waitlist of the gate that refuses it, or passes. Then waiting runs pass at the
gates that are due, one gate after another, until the worker is full or no run may pass. A run that passes gets its
permits and is claimed in the same transaction.

`LockedGates` also applies releases and reports to the gates that a request has locked. Gates that a step, a report or a
named run needs are waited for, in the order of names. All others are locked only if they are free: the transaction that
holds one is admitting runs there, and waiting for it would delay everything locked here. A release that could not be
applied is returned, to be repeated soon.

A permit is deleted only under the lock of its gate, so that no two requests wait for each other's rows. Missing gates
are created in a transaction of their own, because a creation blocks other creators of the same gate.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from perdure.core.limits.admission_requests import AdmissionRequest, AdmissionResult, RunArrival, StepDeparture
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import LimitBounds, PermitScope, RequiredGate
from perdure.core.model.claim import ClaimedRun, ClaimRequest
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Run, Status
from perdure.store.contract import Change
from perdure.store.sql.audit import note_inserted
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.limits.admit_steps import STEPS, StepAdmitter, gates_of_steps, release_steps, steps_before
from perdure.store.sql.limits.breakers import barred, half_open, update_breakers
from perdure.store.sql.limits.gate_decision import GateState
from perdure.store.sql.limits.gates import (
    count_held,
    due_gates,
    grant,
    in_chunks,
    lift_limit_pause,
    lock_gates,
    missing_gates,
    next_due,
    permits_of,
    release,
    save_gates,
    waited_at,
)
from perdure.store.sql.limits.waitlist import (
    AGE_SHARE,
    FairQueue,
    Waitlist,
    WaitlistEntry,
    announce_next,
    heads,
    join,
    leave,
    places,
)
from perdure.store.sql.pauses import unpaused
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.runs.claim import LAST, Suspect, assign, block_as_poison, group, is_poison, is_suspect


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
        #: Arrivals all of whose gates are locked.
        self.arrivals: list[RunArrival] = []
        #: Released permits to report again.
        self.undelivered: list[tuple[str, int]] = []
        self.undelivered_steps: list[StepDeparture] = []
        #: Gates that have to be made.
        self.missing: dict[str, LimitBounds] = {}
        #: Another transaction holds a gate that was asked for.
        self.busy = False

    async def lock(self, due: Sequence[str]) -> bool:
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

    async def lock_more(self, those: Iterable[WaitlistEntry]) -> None:
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


#: Gates that one transaction looks at because they are due.
GATES = 20
_IN_WAITLIST = (Reason.LIMIT, Reason.BREAKER)

_HELD_BEFORE = f"""
SELECT progress, {RUN}
FROM perdure_runs
WHERE status = 'running' AND worker = :worker AND nonce = :nonce
ORDER BY priority, wake_at, id
"""

_ALIVE = "SELECT 1 FROM perdure_workers WHERE id = :worker AND status = 'alive'"
_PAUSES = "SELECT kind, name FROM perdure_pauses WHERE kind IN ('type', 'queue')"

#: The first column is true of a run that a bare INSERT made.
_RUNS = f"""
SELECT write_id = '', progress, home, {RUN}
FROM perdure_runs {{use PRIMARY}}
WHERE id IN ({{names}})
{{skip_locked}}
"""
_KEPT = "SELECT run_id, gate FROM perdure_permits WHERE run_id IN ({names}) AND location = '' AND hold = 'run'"
_CANCELLED = f"""
SELECT m.run_id
FROM perdure_messages m
JOIN perdure_runs r ON r.id = m.run_id
WHERE m.run_id IN ({{names}}) AND m.kind = '{RecordKind.CANCEL.value}' AND m.seq > r.inbox_read
"""

_LATER = "UPDATE perdure_runs SET status = 'waiting', reason = 'timer' WHERE id = :run_id AND status = 'pending'"


async def admit(
    tx: Transaction, request: AdmissionRequest, entropy: Callable[[int], bytes]
) -> tuple[AdmissionResult, dict[str, LimitBounds]]:
    """Admit runs, and claim them. Also returns the gates that have to be created first."""
    locked = LockedGates(tx, request)
    # A step passes without a slot.
    slotless = tuple(type for type in request.types if type == STEPS)
    due = await due_gates(tx, request.types if request.limit and not request.only else slotless, GATES)
    taken = await locked.lock(due)
    before = await tx.fetch(_HELD_BEFORE, {"worker": request.worker, "nonce": request.nonce})
    if not taken and not before:
        return AdmissionResult(busy=True, undelivered=request.released, undelivered_steps=request.left, now=tx.now), {}
    if before or not await tx.fetch(_ALIVE, {"worker": request.worker}):
        runs = tuple(ClaimedRun(to_run(row[1:]), row[0]) for row in before)
        admitted = AdmissionResult(
            runs=runs,
            counted=frozenset(one.run.id for one in runs),
            barred=tuple(await barred(tx, [one.run for one in runs], request.failing)),
            steps=await steps_before(tx, request.steps),
            next_due=await next_due(tx, request.types),
            now=tx.now,
        )
        return admitted, {}
    await locked.apply()
    return await _RunAdmitter(tx, request, locked, entropy).run(), locked.missing


class _RunAdmitter:
    """One admission transaction."""

    def __init__(
        self, tx: Transaction, request: AdmissionRequest, locked: LockedGates, entropy: Callable[[int], bytes]
    ) -> None:
        self._tx = tx
        self._request = request
        self._entropy = entropy
        self._locked = locked
        self._gates = locked.gates
        #: Locked runs, and the number of the last record of each.
        self._runs: dict[str, tuple[int, Run]] = {}
        #: Those that a bare INSERT made.
        self._inserted: set[str] = set()
        self._last: dict[str, int] = {}
        #: Waitlist and turn that each run had before.
        self._placed: dict[str, tuple[str, int]] = {}
        #: Entries to write: of runs that are not in that waitlist yet, or not as waiting runs.
        self._joining: dict[str, WaitlistEntry] = {}
        self._passing: list[tuple[WaitlistEntry, tuple[RequiredGate, ...]]] = []
        #: Runs to set aside as poison.
        self._poison: list[WaitlistEntry] = []
        self._gone: list[str] = []
        self._counted: frozenset[str] = frozenset()
        #: Runs that already hold a permit until their end, with its gate; and cancelled runs.
        self._kept: set[tuple[str, str]] = set()
        self._cancelled: set[str] = set()
        #: Runs that are claimed only to learn that a breaker is open, and until when.
        self._barred: dict[str, int] = {}
        #: Gates that steps have passed or wait at.
        self._passed_by_steps: set[str] = set()
        #: Last worker of each locked run; whether suspects were passed over; and the suspects that pass alone.
        self._homes: dict[str, str | None] = {}
        self._suspects = False
        self._group: frozenset[str] = frozenset()

    async def run(self) -> AdmissionResult:
        """Read, admit, write."""
        tx, request, locked = self._tx, self._request, self._locked
        lines = await self._heads()
        arrived = [WaitlistEntry(one.run_id, one.gating) for one in locked.arrivals]
        await self._lock_runs([*(one.run_id for line in lines.values() for one in line), *(a.run_id for a in arrived)])
        steps = StepAdmitter(tx, self._gates)
        await steps.read_first(
            [name for name, gate in self._gates.items() if gate.due_at <= tx.now and STEPS in request.types]
        )
        await locked.lock_more([*(one for line in lines.values() for one in line), *steps.waiting])
        await count_held(tx, self._gates.values())
        self._queue = FairQueue(tx, self._gates)
        await steps.run(request.steps, self._queue, lines)
        direct = await self._sort_arrivals(arrived, lines)
        await self._admit_in_turns(lines, direct)
        await steps.rest(self._queue)
        self._passed_by_steps = steps.touched
        runs = await self._write(lines)
        await announce_next(tx, self._gates, locked.freed, request)
        due_at = await next_due(tx, request.types)
        return AdmissionResult(
            runs=runs,
            counted=self._counted,
            barred=tuple(self._barred.items()),
            steps=tuple(steps.verdicts),
            called=steps.called,
            next_due=due_at,
            suspects=self._suspects,
            busy=locked.busy,
            undelivered=tuple(locked.undelivered),
            undelivered_steps=tuple(locked.undelivered_steps),
            now=tx.now,
        )

    async def _heads(self) -> dict[str, list[WaitlistEntry]]:
        """The first waiting runs at gates that are due."""
        request, now = self._request, self._tx.now
        due = [gate.name for gate in sorted(self._gates.values(), key=lambda gate: gate.due_at) if gate.due_at <= now]
        if not due or not request.limit or request.only:
            return {}
        served = unpaused(
            ClaimRequest(
                worker="",
                nonce="",
                limit=0,
                types=tuple(type for type in request.types if type != STEPS),
                queues=request.queues,
            ),
            [(kind, name) for kind, name in await self._tx.fetch(_PAUSES, {})],
        )
        if not served.types or not served.queues:
            return {}
        enough = request.limit if len(due) <= 2 else max(4, 2 * request.limit // len(due))
        return await heads(self._tx, due, served.types, served.queues, enough, enough // AGE_SHARE)

    async def _lock_runs(self, run_ids: Sequence[str]) -> None:
        for inserted, progress, home, *row in await in_chunks(self._tx, _RUNS, run_ids):
            run = to_run(tuple(row))
            self._runs[run.id] = progress, run
            if inserted:
                self._inserted.add(run.id)
            self._homes[run.id] = home
        self._last = dict(await in_chunks(self._tx, LAST, [id for id, (_, run) in self._runs.items() if run.claims]))
        begun = [id for id, (_, run) in self._runs.items() if run.token]
        self._kept = {(row[0], row[1]) for row in await in_chunks(self._tx, _KEPT, begun)}
        self._placed = await places(self._tx, [one.run_id for one in self._locked.arrivals])

    async def _sort_arrivals(
        self, arrived: list[WaitlistEntry], lines: dict[str, list[WaitlistEntry]]
    ) -> list[tuple[WaitlistEntry, tuple[RequiredGate, ...]]]:
        """Arrivals that no waitlist keeps from passing; the others join one."""
        tx, now = self._tx, self._tx.now
        tokens = {one.run_id: one.token for one in self._locked.arrivals}
        present: list[WaitlistEntry] = []
        for one in arrived:
            run = self._runs[one.run_id][1] if one.run_id in self._runs else None
            if run is None or run.status is not Status.PENDING or run.token != tokens[one.run_id]:
                continue
            if run.wake_at > now:
                await tx.execute(_LATER, {"run_id": run.id})
                continue
            one.priority = run.priority
            present.append(one)
        runs = [self._runs[one.run_id][1] for one in present]
        told = [run.id for run in runs if run.inbox_seq > run.inbox_read]
        self._cancelled = {row[0] for row in await in_chunks(tx, _CANCELLED, told)}
        direct: list[tuple[WaitlistEntry, tuple[RequiredGate, ...]]] = []
        behind: dict[str, list[WaitlistEntry]] = {}
        for one in present:
            passes = self._passes(one)
            place = self._placed.get(one.run_id)
            line = next((wanted.gate for wanted in passes if self._gates[wanted.gate].waited_at), None)
            if self._fails_at_breaker(one, passes):
                direct.append((one, ()))
            elif line is None or self._request.only:
                direct.append((one, passes))
            elif place is not None and place[0] in self._gates:
                one.gate, one.turn = place
                self._joining[one.run_id] = one
            else:
                behind.setdefault(line, []).append(one)
        for gate, those in behind.items():
            await self._enqueue(gate, those)
            if gate in lines:
                lines[gate] += those
        return direct

    def _passes(self, one: WaitlistEntry) -> tuple[RequiredGate, ...]:
        """Gates that a run has yet to pass: none that it holds a permit of, and none at all if it was cancelled."""
        passes = () if one.run_id in self._cancelled else one.gating.passes
        return tuple(wanted for wanted in passes if (one.run_id, wanted.gate) not in self._kept)

    async def _enqueue(self, gate: str, those: list[WaitlistEntry]) -> None:
        await self._queue.assign(gate, those)
        self._joining |= {one.run_id: one for one in those}

    async def _admit_in_turns(
        self, lines: dict[str, list[WaitlistEntry]], direct: list[tuple[WaitlistEntry, tuple[RequiredGate, ...]]]
    ) -> None:
        """Admit runs by turns: one of each waitlist, and one of the new arrivals."""
        taking = deque([Waitlist(gate, line) for gate, line in lines.items()])
        coming = deque(direct)
        while self._has_room and (taking or coming):
            if coming:
                one, passes = coming.popleft()
                refused = self._refused_by(passes)
                if refused is not None and not self._fails_at_breaker(one, passes):
                    await self._enqueue(refused, [one])
                elif not self._admit(one, () if refused else passes):
                    await self._keep_waiting(one)
            if taking and self._has_room:
                line = taking.popleft()
                if await self._admit_first(line):
                    taking.append(line)
        for one, _ in coming:
            await self._keep_waiting(one)

    async def _keep_waiting(self, one: WaitlistEntry) -> None:
        """Let a run wait that this worker cannot claim, or not now. A run without gates stays ready."""
        if passes := self._passes(one):
            await self._enqueue(passes[0].gate, [one])

    @property
    def _has_room(self) -> bool:
        return len(self._passing) < (len(self._group) or self._request.limit)

    async def _admit_first(self, line: Waitlist) -> bool:
        """Admit the first of a waitlist; True if it is worth trying the next."""
        one = line.first()
        if one is None:
            return False
        run = self._runs.get(one.run_id)
        passes = self._passes(one)
        refused = self._refused_by(passes)
        if refused is not None and self._fails_at_breaker(one, passes):
            passes, refused = (), None
        if refused == line.gate:
            return False
        line.pop()
        if run is None:
            # Another transaction has it locked; it keeps its place.
            return True
        if not self._is_in_waitlist(run[1], one):
            self._gone.append(one.run_id)
        elif refused is None:
            if self._admit(one, passes):
                gate = self._gates[line.gate]
                gate.turn, gate.changed = max(gate.turn, one.turn), True
        elif refused in self._gates:
            if one.run_id not in self._joining:
                self._placed[one.run_id] = line.gate, one.turn
            await self._enqueue(refused, [one])
        return True

    def _is_in_waitlist(self, run: Run, one: WaitlistEntry) -> bool:
        return one.run_id in self._joining or (run.status is Status.WAITING and run.reason in _IN_WAITLIST)

    def _refused_by(self, passes: Sequence[RequiredGate]) -> str | None:
        """The first gate that does not let it pass."""
        for wanted in passes:
            gate = self._gates.get(wanted.gate)
            if gate is None or not gate.has_room(self._tx.now):
                return wanted.gate
        return None

    def _fails_at_breaker(self, one: WaitlistEntry, passes: Sequence[RequiredGate]) -> bool:
        """True if an open breaker makes the run fail."""
        for wanted in passes:
            breaker = self._gates[wanted.gate].breaker if wanted.gate in self._gates else None
            if breaker is not None and wanted.rule is not None and wanted.rule.fails:
                gate = self._gates[wanted.gate]
                if breaker.lacks(gate.held) or (gate.waited_at and breaker.circuit is not Circuit.CLOSED):
                    self._barred[one.run_id] = breaker.until
                    return True
        return False

    def _admit(self, one: WaitlistEntry, passes: tuple[RequiredGate, ...]) -> bool:
        """Admit a run. A suspect is admitted only with its group, or is blocked as poison."""
        if self._is_suspect(one.run_id):
            if is_poison(self._runs[one.run_id][1].claims, self._request.poison_after):
                self._poison.append(one)
                return True
            if not self._passing and self._request.alone:
                self._group = self._group_of(one.run_id)
            if one.run_id not in self._group:
                self._suspects = True
                return False
        elif self._group:
            return False
        for wanted in passes:
            self._gates[wanted.gate].let_pass(self._tx.now)
        self._passing.append((one, passes))
        return True

    async def _write(self, lines: dict[str, list[WaitlistEntry]]) -> tuple[ClaimedRun, ...]:
        tx = self._tx
        for one in self._poison:
            await block_as_poison(tx, one.run_id, self._runs[one.run_id][1].claims)
        passing = self._passing
        taken = {one.run_id for one, _ in passing} | {one.run_id for one in self._poison}
        joining = [one for one in self._joining.values() if one.run_id not in taken]
        await leave(tx, [*taken, *self._gone])
        await join(tx, joining, {id: run for id, (_, run) in self._runs.items()}, self._placed, self._reasons(joining))
        locked = [self._runs[one.run_id] for one, _ in passing]
        await note_inserted(tx, [run.id for _, run in locked if run.id in self._inserted])
        request = self._request
        claimed = await assign(
            tx, locked, request.worker, request.nonce, self._entropy, build=request.build, admitted=True
        )
        await self._permit(passing, {one.run.id: one.run.token for one in claimed})
        joined = {one.gate for one in joining}
        # A deleted stale permit made room without an announcement.
        roomy = {gate.name for gate in self._gates.values() if gate.waits_for == "room" and gate.has_room(tx.now)}
        touched = joined | lines.keys() | self._passed_by_steps | roomy
        waited = joined | await waited_at(tx, touched - joined)
        for name in touched:
            self._gates[name].settle(tx.now, waited_at=name in waited)
            if name not in waited:
                await lift_limit_pause(tx, self._gates[name])
        await save_gates(tx, self._gates.values())
        await self._queue.save()
        return tuple(claimed)

    def _reasons(self, joining: Sequence[WaitlistEntry]) -> dict[str, str]:
        kinds = {True: Reason.BREAKER.value, False: Reason.LIMIT.value}
        return {one.gate: kinds[self._gates[one.gate].breaker is not None] for one in joining}

    def _is_suspect(self, run_id: str) -> bool:
        progress, run = self._runs[run_id]
        return is_suspect(run.claims, progressed=self._last.get(run_id, -1) > progress)

    def _group_of(self, run_id: str) -> frozenset[str]:
        """The run, and those of its group that were looked at."""
        others = [id for id in self._runs if id != run_id and self._is_suspect(id)]
        suspects = [Suspect(id, self._runs[id][1].claims, self._homes[id]) for id in (run_id, *others)]
        return frozenset(group(suspects, self._request.limit))

    async def _permit(
        self, passing: Sequence[tuple[WaitlistEntry, tuple[RequiredGate, ...]]], tokens: dict[str, int]
    ) -> None:
        rows = [
            {
                "gate": wanted.gate,
                "run_id": one.run_id,
                "token": tokens[one.run_id],
                "hold": wanted.hold.value,
                "now": self._tx.now,
            }
            for one, passes in passing
            for wanted in passes
            if wanted.hold is PermitScope.RUN or self._gates[wanted.gate].counts
        ]
        await grant(self._tx, [one.run_id for one, _ in passing], rows)
        kept = {run_id for run_id, _ in self._kept}
        self._counted = frozenset(str(row["run_id"]) for row in rows) | (kept & tokens.keys())
