"""What a simulation knows from outside the database: every effect, every acknowledgement, every record that anybody
saw.

It is compared with the database at the end, and, where a broken promise can be seen at once, on the spot.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run
from perdure.core.model.turn import ContinueAsNew, Finish, Lease, Turn, TurnOutcome
from perdure.workflow.channels import question_name
from tests.simulation.emitted import Emitted
from tests.simulation.loop import SimLoop, Violation
from tests.simulation.outbox import Arrivals
from tests.simulation.programs import DEMAND


class Effect(Struct, frozen=True):
    """One execution of a step, with the results and messages that the workflow had seen when it asked for it."""

    run_id: str
    location: str
    attempt: int
    seen: tuple[str, ...]
    ephemeral: bool
    worker: str
    #: Whose results and messages it was told of, if not its own run's.
    asked_by: str | None = None


class Ledger:
    """See the module."""

    def __init__(self, loop: SimLoop, *, keep_trace: bool) -> None:
        self.sometimes: Counter[str] = Counter()
        self.effects: list[Effect] = []
        #: What the steps of a world with streams emit.
        self.emitted = Emitted()
        #: Ids of runs that a client asked for, and of those whose start was acknowledged.
        self.asked: set[str] = set()
        self.started: set[str] = set()
        #: Ids of runs that a client started with headers of their own.
        self.with_headers: set[str] = set()
        #: Run id and key of messages that a client sent, and of those that were acknowledged.
        self.sent: set[tuple[str, str]] = set()
        self.received: set[tuple[str, str]] = set()
        #: By the token of a pending attempt, its run and its result; by run, the result of which a completion was
        #: acknowledged.
        self.permits: dict[str, tuple[str, str]] = {}
        self.completed: dict[str, str] = {}
        #: Keys of broadcasts that a client made.
        self.broadcasts: set[str] = set()
        #: By run, what it was given to begin with, and whenever it began anew.
        self.inputs: defaultdict[str, set[str]] = defaultdict(set)
        #: Run and value of questions that were refused.
        self.refused: set[tuple[str, str]] = set()
        #: Values of sticky events that were to be emitted; by event, the first one that was acknowledged; and events of
        #: which a value was to be replaced.
        self.emitted_events: set[str] = set()
        self.first_events: dict[str, str] = {}
        self.replaced_events: set[str] = set()
        #: By run, the build that executed it first; and runs that were unpinned.
        self.builds: dict[str, str] = {}
        self.unpinned: set[str] = set()
        #: Events for other systems, as they arrive.
        self.outbox = Arrivals(self)
        #: Results that a client was given, as text.
        self.results: dict[str, str] = {}
        self.trace: list[str] = []
        self._loop = loop
        self._keep_trace = keep_trace
        self._hash = hashlib.blake2b(digest_size=16)
        #: Runs whose sleeps may have been moved.
        self.woken: set[str] = set()
        #: Runs that a client asked to stop while they were under way.
        self.to_be_cancelled: set[str] = set()
        #: Runs that a client terminated, and whether with their undos.
        self.terminated: dict[str, bool] = {}
        #: How many messages were sent that cannot be decoded.
        self.garbled = 0
        #: By run and number, what a client decided about a message that was set aside.
        self.decisions: dict[tuple[str, int], str] = {}
        #: By run and result, where it was undone.
        self._undone: dict[tuple[str, str], str] = {}
        self._holders: dict[str, str] = {}
        #: By run and process, the token of the last lease that it was given.
        self._tokens: dict[tuple[str, str], int] = {}
        #: Steps with a durable result, of runs that were never tried again as a whole.
        self._done: set[tuple[str, str]] = set()
        #: Executions of steps that must not run twice, by run, generation and location.
        self._executed: set[tuple[str, int, str]] = set()
        #: Run, generation and value of questions that are recorded.
        self._recorded: set[tuple[str, int, str]] = set()
        #: Runs that were tried again as a whole.
        self.tried_again: set[str] = set()
        self._orphaned: Counter[str] = Counter()
        #: Which generation a lease is of, and which each run is in.
        self._leases: dict[Lease, int] = {}
        self._generations: dict[str, int] = {}
        #: By run, generation and number.
        self._records: dict[tuple[str, int, int], Record] = {}
        #: By run and generation.
        self._outcomes: dict[tuple[str, int | None], Finish] = {}

    def note(self, *what: object) -> None:
        """Add a line to the trace."""
        line = f"{self._loop.now() / 1e6:12.6f} {' '.join(map(str, what))}"
        self._hash.update(line.encode())
        if self._keep_trace:
            self.trace.append(line)

    @property
    def digest(self) -> str:
        """What tells this trace from another."""
        return self._hash.hexdigest()

    def violated(self, what: str) -> None:
        """Stop the simulation: a promise was broken."""
        self._loop.violations.append(what)
        raise Violation(what)

    def effect(self, effect: Effect) -> int:
        """A step's function was called; the number of the call."""
        where = (effect.run_id, effect.location)
        if where in self._done and self._holders.get(effect.run_id) == effect.worker:
            self.violated(f"{effect.location} of run {effect.run_id} has a durable result, and is executed again")
        self.effects.append(effect)
        self.note(effect.worker, "executes", effect.run_id, effect.location, effect.attempt)
        return len(self.effects)

    def once(self, run_id: str, location: str) -> None:
        """Note that a step is executed that must not run twice."""
        where = run_id, self.generation(run_id), location
        if where in self._executed:
            self.violated(f"{location} of run {run_id} must not run twice, and is executed again")
        self._executed.add(where)

    def executes(self, run_id: str, build: str) -> None:
        """Note that the code of a build executes a run, which it must not if another build has begun the run."""
        if build and self.builds.setdefault(run_id, build) != build and run_id not in self.unpinned:
            self.violated(f"run {run_id} is pinned to build {self.builds[run_id]}, and build {build} executes it")

    def validates(self, run_id: str, worker: str, asked: str) -> None:
        """Note that a validator sees a question, which it must not if that is recorded."""
        known = (run_id, self.generation(run_id), asked)
        if known in self._recorded and self._holders.get(run_id) == worker:
            self.violated(f"question {asked} to run {run_id} is recorded, and a validator sees it again")

    def decided(self, run_id: str, number: int, what: str) -> None:
        """Note that a client was told that its decision about a message counts."""
        if (run_id, number) in self.decisions:
            self.violated(f"message {number} of run {run_id} was decided about twice")
        self.decisions[run_id, number] = what

    def undone(self, run_id: str, location: str, result: str) -> None:
        """Note that a result is being undone, which happens at one place."""
        if self._undone.setdefault((run_id, result), location) != location:
            self.violated(f"{result!r} of run {run_id} is undone by {location}, and before at another place")

    def claimed(self, run: Run, lease: Lease, process: str) -> None:
        """A worker was given a run."""
        run_id = run.id
        self.inputs[run_id].add(run.input)
        self._leases[lease] = run.generation
        self._tokens[run_id, process] = lease.token
        renewed = self._generations.get(run_id, 1) < run.generation
        self._generations[run_id] = run.generation
        if run.attempt > 1:
            self.tried_again.add(run_id)
        if run.attempt > 1 or renewed:
            self._done = {where for where in self._done if where[0] != run_id}
        if self._holders.get(run_id, process) != process:
            self.sometimes["a run was taken over from another worker"] += 1
        self._holders[run_id] = process

    def generation(self, run_id: str) -> int:
        """Token of a run that was given out last."""
        return self._generations.get(run_id, 1)

    def token(self, run_id: str, process: str) -> int | None:
        """Of the last lease of a run that a worker was given."""
        return self._tokens.get((run_id, process))

    def is_first_try(self, run_id: str, process: str) -> bool:
        """Whether a worker holds a run, as far as is known, and nothing of it may be done twice."""
        return self._holders.get(run_id) == process and run_id not in self.tried_again

    def may_sleep_less(self, run_id: str) -> bool:
        """Whether a client may have moved its sleeps, or slept them in an earlier attempt."""
        return run_id in self.woken or run_id in self.tried_again

    def died(self, process: str) -> None:
        """A worker is no more, with whatever it held."""
        for run_id, holder in self._holders.items():
            if holder == process:
                self._orphaned[run_id] += 1
                if self._orphaned[run_id] > 1:
                    self.sometimes["a run lost its worker more than once"] += 1

    def committed(self, turns: Sequence[Turn], verdicts: Sequence[TurnOutcome]) -> None:
        """The database said what became of these turns."""
        for turn, verdict in zip(turns, verdicts, strict=True):
            run_id = turn.lease.run_id
            if verdict is TurnOutcome.LOST:
                self.sometimes["a write of a former owner was refused"] += 1
                # Of a lease whose holder never heard of it, and gives it back, nothing is known.
                if (run_id, self._leases.get(turn.lease)) in self._outcomes:
                    self.sometimes["a former owner came back after the end of the run"] += 1
            elif verdict is not TurnOutcome.BUSY:
                self._written(run_id, turn, verdict)

    def _written(self, run_id: str, turn: Turn, verdict: TurnOutcome) -> None:
        self.written(turn)
        if isinstance(turn.next, ContinueAsNew):
            refused = verdict is TurnOutcome.AWAKE
            self.sometimes["a renewal was refused because something came in"] += refused
            self.sometimes["a run began anew"] += not refused
            self.sometimes["a run began anew with messages that it had not received"] += bool(turn.next.carried)
        if verdict is TurnOutcome.AWAKE:
            self.sometimes["a park was refused because something came in"] += 1
        elif turn.next is not None:
            self._holders.pop(run_id, None)
        if isinstance(turn.next, Finish):
            before = self._outcomes.setdefault((run_id, self._leases[turn.lease]), turn.next)
            if before != turn.next:
                self.violated(f"run {run_id} had the outcome {before} and got another: {turn.next}")

    def written(self, turn: Turn) -> None:
        """Note that a worker was told that a turn is durable."""
        if turn.records:
            self._seen(turn.lease.run_id, self._leases[turn.lease], turn.records)

    def _seen(self, run_id: str, generation: int, records: Sequence[Record]) -> None:
        """These records are durable; they stay what they are."""
        again = run_id in self.tried_again or generation < self._generations.get(run_id, 1)
        for record in records:
            before = self._records.setdefault((run_id, generation, record.seq), record)
            if record not in (before, _counted_anew(before)):
                self.violated(f"record {record.seq} of run {run_id} was {before} and is {record}")
            if record.kind is RecordKind.MESSAGE and record.location == question_name(DEMAND):
                asked = msgspec.json.decode(record.payload or "null", type=dict[str, str])
                self._recorded.add((run_id, generation, asked["value"]))
            if record.kind is RecordKind.STEP and not again and record.run_attempt == 1:
                self._done.add((run_id, record.location))

    def loaded(self, run: Run, records: Sequence[Record]) -> None:
        """Note a whole history that was read: it has all that was ever seen of it."""
        run_id = run.id
        self._seen(run_id, run.generation, records)
        end = records[-1].seq + 1 if records else 0
        if (run_id, run.generation, end) in self._records:
            self.violated(f"the history of run {run_id} is shorter than it was: it ends before {end}")


def _counted_anew(record: Record) -> Record:
    """The record after a retry of its run, which counts the attempts at steps that have not ended anew."""
    return replace(record, attempts=0, retry_at=0) if record.kind is RecordKind.ATTEMPT else record
