"""A database that lets one process down in every way that a real one may.

Each process has its own view of the one shared database. A call may be slow on its way there or back, fail before
anything was written, or be carried out and its answer lost. A process that is killed inside a transaction leaves
nothing of it behind. Where clocks differ, a process knows the database's time as it does on servers (`store.clock`),
and its transactions go by what it knows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, cast

from msgspec import Struct

from perdure.core.limits.admission_requests import AdmissionResult, StepAdmission
from perdure.core.model.claim import ClaimByIdResult, ClaimResult, LoadedRun
from perdure.core.model.outputs import BroadcastResult
from perdure.core.model.turn import Lease, Release, Turn, TurnOutcome
from perdure.errors import StoreUnavailable
from perdure.store import MUTATING_VERBS
from perdure.store.contract import Change, Listener
from perdure.store.server.clock import ServerClock
from perdure.store.sqlite.connection import SqliteStatement
from perdure.store.sqlite.store import SqliteStore
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Crashed, Process, SimLoop
from tests.simulation.system import EPOCH, SimSystem
from tests.simulation.turnstile import Turnstile

READING_VERBS = (
    "now", "get", "get_many", "list", "count", "history", "attributes", "inbox", "waits", "events", "events_page",
    "outputs", "workers", "leases", "load", "unread_messages_of_worker", "unread_messages", "pauses", "turn_outcome",
    "records", "snapshot", "schedule", "schedules", "types", "list_dead_letters", "get_dead_letter",
    "ready_run_ids", "locks", "watermarks", "depth", "backlog", "run_times", "token", "tokens", "documents",
    "list_fires", "updated_at", "graph_checkpoints",
    "preview_admission", "waitlisted_types", "waitlist_position", "gates", "permits", "waiting_runs",
)  # fmt: skip
WRITING_VERBS = frozenset(MUTATING_VERBS)
#: Verbs that on servers are answered with the server's time, and the one that goes by it.
_MEASURING = frozenset({"now", "claim", "heartbeat", "sweep", "acquire_lock", "extend_lock"})
_BY_THE_SERVER = "heartbeat"
_VERBS = frozenset(READING_VERBS) | WRITING_VERBS


class Odds(Struct, kw_only=True):
    """How likely each kind of trouble is; all of them 0 once the world has healed."""

    error_before: float = 0.0
    reply_lost: float = 0.0
    slow: float = 0.0
    #: The longest delay, in seconds.
    delay: float = 0.0
    #: That a process dies at a crash point.
    crash: float = 0.0
    #: That a process dies between a transaction step and its next commit.
    crash_after_deed: float = 0.0
    #: A row that another process has locked, which is then passed over.
    busy: float = 0.0

    def heal(self) -> None:
        """No more trouble."""
        self.error_before = self.reply_lost = self.slow = self.crash = self.crash_after_deed = self.busy = 0.0


class Database:
    """The one database, and who is calling it just now."""

    def __init__(self, loop: SimLoop, ledger: Ledger, rng: Random, odds: Odds) -> None:
        self.loop = loop
        self.ledger = ledger
        self.rng = rng
        self.odds = odds
        self.commits = 0
        self.caller: FaultStore | None = None
        self.store: SqliteStore | None = None
        #: Where something has to pass gates.
        self.turnstile: Turnstile | None = None
        self.clocks_differ = False
        #: What the caller asks for.
        self._verb = ""

    def has_packed(self, run_id: str) -> bool:
        """Whether records of a run are packed."""
        assert self.store is not None
        rows = self.store._writer._open().execute(
            "SELECT 1 FROM perdure_history WHERE run_id = ? AND kind = 'packed'", (run_id,)
        )
        return bool(rows.fetchall())

    def let_clocks_differ(self) -> None:
        """Have each transaction go by the time that its caller takes for the database's."""
        assert self.store is not None
        self.clocks_differ = True
        self.store._clock.now = self._time_of_caller  # type: ignore[method-assign] # the clock of the caller

    def _time_of_caller(self) -> int:
        by_itself = self.caller is None or self.caller.known is None or self._verb == _BY_THE_SERVER
        return self.time() if by_itself or self.caller is None else self.caller.clock()

    def time(self) -> int:
        """The database's own time."""
        return EPOCH + self.loop.now()

    @contextmanager
    def called(self, caller: FaultStore, verb: str) -> Generator[SqliteStore]:
        """The database, in the hands of a caller."""
        assert self.store is not None
        self.caller, self._verb = caller, verb
        try:
            yield self.store
        finally:
            self.caller = None
            if self.turnstile is not None:
                self.turnstile.look()

    def guard(self, turnstile: Turnstile) -> None:
        """Have gates: who passes them is seen, and rows that are passed over where another process has them locked are,
        perhaps."""
        assert self.store is not None
        writer = self.store._writer
        render = writer._render

        def sharing(sql: str) -> SqliteStatement:
            return render(f"SELECT * FROM ({sql}) WHERE is_free()" if "{skip_locked}" in sql else sql)

        writer._open().create_function("is_free", 0, self._is_free)
        writer._render = sharing  # type: ignore[method-assign]  # the one way in: SQLite locks no rows
        turnstile.install(writer._open())
        self.turnstile = turnstile

    def _is_free(self) -> bool:
        free = self.rng.random() >= self.odds.busy
        self.ledger.sometimes["another process had a gate or a run locked"] += not free
        return free

    def on_change(self, change: Change) -> None:
        """Something was committed that a process may be waiting for; only the process that wrote it is told."""
        self.commits += 1
        if self.caller is not None:
            for listener in self.caller.listeners:
                listener(change)

    def on_crash_point(self, _: Process, name: str) -> None:
        """Execution is at a point of a transaction."""
        if self.caller is not None:
            self.maybe_crash(self.caller.process, name)

    def kill(self, process: Process) -> None:
        """End a process, here and now."""
        self.ledger.died(process.name)
        self.loop.kill(process)

    def maybe_crash(self, process: Process, name: str) -> None:
        """Kill a process, perhaps."""
        self._perhaps_kill(process, name, self.odds.crash)

    def maybe_crash_after_deed(self, process: Process) -> None:
        """Kill a process whose transaction step is durable, perhaps, before anything that follows from it is."""
        self._perhaps_kill(process, "transacted", self.odds.crash_after_deed)

    def _perhaps_kill(self, process: Process, name: str, odds: float) -> None:
        if odds and process.name.startswith("worker") and self.rng.random() < odds:
            self.ledger.note(process.name, "dies at", name)
            self.ledger.sometimes["a process died around a transaction"] += 1
            self.kill(process)
            raise Crashed(process.name)


class FaultStore:
    """The verbs of `Store`, as one process has them."""

    poll_interval = 1.0
    lanes = 1
    exclusive = True
    blocks = False
    announces = is_notified = False

    def __init__(self, database: Database, system: SimSystem) -> None:
        self.process = system.process
        self.listeners: list[Listener] = []
        self._database = database
        self._system = system
        self._known_commits = 0
        self._registered = False
        self._lost: Sequence[Turn] | None = None
        #: Whether the worker of this process, if it is one, is aware of a run.
        self.knows: Callable[[str], bool] | None = None
        self._told_of: set[Lease] = set()
        assert database.store is not None
        self.inbox_page = database.store.inbox_page
        self.audit = database.store.audit
        #: The database's time as this process knows it; None: exactly.
        self.known: ServerClock | None = None
        if database.clocks_differ:
            self.known = ServerClock(system, None)
            self.known.finish_measurement(self.known.start_measurement(), database.time())

    async def open(self) -> None:
        """It is open."""

    async def close(self) -> None:
        """Others go on using it."""

    def announce(self, change: Change) -> None:
        """Announce nothing to other processes, which poll."""

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of changes made by this process."""
        self.listeners = [*self.listeners, listener]

        def unsubscribe() -> None:
            self.listeners = [one for one in self.listeners if one is not listener]

        return unsubscribe

    async def poll_changes(self, *, watch: bool = True) -> bool:
        """Whether anybody may have written since the last call."""
        commits = self._database.commits
        changed, self._known_commits = commits != self._known_commits, commits
        return changed

    def clock(self) -> int:
        """The database's time."""
        return self._database.time() if self.known is None else self.known.now()

    async def broadcast(
        self, topic: str, payload: str | None, key: str, after: str | None, limit: int, actor: str
    ) -> BroadcastResult:
        """As the verb, in the smallest of chunks, so that few runs are several."""
        chunk = await self._call("broadcast", topic, payload, key, after, min(limit, 1), actor)
        return cast("BroadcastResult", chunk)

    async def waitlisted_types(self, types: Sequence[str]) -> set[str]:
        """As the verb; none where nothing has to pass gates."""
        return (
            set() if self._database.turnstile is None else cast("set[str]", await self._call("waitlisted_types", types))
        )

    async def recheck_gates(self, actor: str) -> None:
        """As the verb, where there are any."""
        if self._database.turnstile is not None:
            await self._call("recheck_gates", actor)

    async def delete_idle_gates(self, limit: int, actor: str) -> int:
        """As the verb, where there are any."""
        if self._database.turnstile is None:
            return 0
        return cast("int", await self._call("delete_idle_gates", limit, actor))

    def __getattr__(self, name: str) -> Any:
        if name not in _VERBS:
            raise AttributeError(name)
        return functools.partial(self._call, name)

    async def _call(self, verb: str, *args: Any, **options: Any) -> Any:
        database, odds, rng = self._database, self._database.odds, self._database.rng
        asked = 0 if self.known is None else self.known.start_measurement()
        await self._delay()
        if rng.random() < odds.error_before:
            database.ledger.note(self.process.name, verb, "fails")
            raise StoreUnavailable(f"{verb}: the database cannot be reached")
        answer = await self._ask(verb, args, options)
        if verb == "transact":
            database.maybe_crash_after_deed(self.process)
        time = database.time()
        database.ledger.note(self.process.name, verb, _summary(answer))
        # Of transactions there are few, and what follows from a lost answer is their hardest part.
        likely = odds.reply_lost * (5 if verb == "transact" else 1)
        if verb in WRITING_VERBS and rng.random() < likely:
            database.ledger.note(self.process.name, verb, "answer lost")
            self._lost = args[0] if verb == "commit" else self._lost
            raise StoreUnavailable(f"{verb}: the answer was lost")
        self._observe(verb, args, answer)
        await self._delay()
        if self.known is not None and verb in _MEASURING:
            self.known.finish_measurement(asked, time)
        return answer

    async def _ask(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        database = self._database
        if self.process.dead:
            raise Crashed(self.process.name)
        with database.called(self, verb) as store:
            answer = await getattr(store, verb)(*args, **options)
        if database.turnstile is not None and verb == "admit":
            database.turnstile.admitted(args[0], answer)
        return answer

    async def _delay(self) -> None:
        database = self._database
        if database.rng.random() < database.odds.slow:
            await self._system.sleep(database.rng.random() * database.odds.delay)
        elif database.rng.random() < 0.5:
            await self._system.sleep(0.001 * database.rng.random())

    def _observe(self, verb: str, args: tuple[Any, ...], answer: Any) -> None:
        ledger = self._database.ledger
        if verb == "commit":
            ledger.committed(args[0], answer)
            self._count_repeated(args[0], answer)
            self._look_for_dropped(args[0], answer)
        elif verb == "transact":
            ledger.sometimes["a transaction of a former owner was refused"] += answer is TurnOutcome.LOST
        elif verb == "pack":
            ledger.sometimes["a former owner packed nothing"] += not answer
        elif verb == "turn_outcome":
            ledger.sometimes["a transaction whose answer was lost was found"] += answer is TurnOutcome.APPLIED
        elif verb in ("claim", "admit"):
            for claimed in cast("ClaimResult | AdmissionResult", answer).runs:
                ledger.claimed(claimed.run, claimed.lease, self.process.name)
                self._told_of.add(claimed.lease)
        elif verb == "claim_by_id" and (taken := cast("ClaimByIdResult", answer).claimed) is not None:
            ledger.claimed(taken.run, taken.lease, self.process.name)
        elif verb == "register":
            ledger.sometimes["a worker that had been declared dead began again"] += self._registered
            self._told_of.clear()
            self._registered = True
        elif verb == "load":
            for loaded in cast("list[LoadedRun]", answer):
                ledger.loaded(loaded.run, loaded.records)
                ledger.sometimes["a packed history was loaded"] += self._database.has_packed(loaded.run.id)

    def _count_repeated(self, turns: Sequence[Turn], verdicts: Sequence[TurnOutcome]) -> None:
        if self._lost == turns and TurnOutcome.APPLIED in verdicts:
            self._database.ledger.sometimes["a commit whose answer was lost was recognised"] += 1
        self._lost = None

    def _look_for_dropped(self, turns: Sequence[Turn], verdicts: Sequence[TurnOutcome]) -> None:
        """A worker gives back what it knows nothing of. What it was told of, it knows; gates may make it give that back
        at once."""
        if self.knows is None or self._database.turnstile is not None:
            return
        # One that was taken from it, it may drop; giving that back says that it is done.
        self._told_of -= {
            turn.lease for turn, verdict in zip(turns, verdicts, strict=True) if verdict is TurnOutcome.LOST
        }
        for turn, verdict in zip(turns, verdicts, strict=True):
            if isinstance(turn.next, Release) and verdict is TurnOutcome.APPLIED and turn.lease in self._told_of:
                run_id = turn.lease.run_id
                if not self.knows(run_id):
                    name = self.process.name
                    self._database.ledger.violated(f"{name} was told that it holds run {run_id}, and dropped it")
        # Of one that it ended itself it knows nothing any more, and may give it back late.
        self._told_of -= {
            turn.lease
            for turn, verdict in zip(turns, verdicts, strict=True)
            if turn.next is not None and verdict is TurnOutcome.APPLIED
        }


def _summary(answer: Any) -> str:
    if isinstance(answer, AdmissionResult):
        return " ".join([*(f"{one.run.id}/{one.run.token}" for one in answer.runs), *map(_verdict, answer.steps)])
    if isinstance(answer, ClaimResult):
        return " ".join(f"{claimed.run.id}/{claimed.run.token}" for claimed in answer.runs)
    if isinstance(answer, list) and answer and isinstance(answer[0], TurnOutcome):
        return " ".join(answer)
    return ""


def _verdict(step: StepAdmission) -> str:
    return f"{step.run_id}:{step.place}={step.gate or step.refused_until or 'passes'}"
