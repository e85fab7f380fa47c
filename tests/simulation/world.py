"""One simulated world: workers, clients and trouble on one database, from a seed.

First everything that can go wrong may go wrong; then the world heals and every run must come to its end within a bound.
What is left in the database is then held against what was promised.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from functools import partial
from random import Random
from typing import Any, TypedDict, Unpack, cast

from msgspec.structs import replace

from perdure.client.engine import Engine
from perdure.client.outbox import Subscription
from perdure.client.session import session_of
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.policy.retry import Retry
from perdure.errors import StoreError
from perdure.store import Retrying, open_store
from perdure.store.contract import Store
from perdure.store.sqlite.store import SqliteStore
from perdure.worker import Worker, WorkerSettings
from tests.simulation.audit import Audit, read_all
from tests.simulation.author import Author
from tests.simulation.client import Client, Operator
from tests.simulation.endings import ENDED, NO_RECORD
from tests.simulation.faults import Database, FaultStore, Odds
from tests.simulation.guards import Guards
from tests.simulation.guest import Guest, Porter
from tests.simulation.interpreter import Interpreter
from tests.simulation.keeper import Keeper
from tests.simulation.ledger import Ledger
from tests.simulation.loop import Process, SimLoop
from tests.simulation.nemesis import LEASE, Nemesis
from tests.simulation.outbox import KEEP_PUBLISHED, PUBLISHED, WANTED
from tests.simulation.programs import EVENTS
from tests.simulation.publisher import Publisher
from tests.simulation.releaser import BUILDS, Releaser
from tests.simulation.steps import Steps
from tests.simulation.supervisor import Supervisor
from tests.simulation.system import TRUE, Clocks, SimSystem
from tests.simulation.talker import Talker
from tests.simulation.turnstile import Turnstile

#: After this many seconds of health, every run that can end has ended.
BOUND = 300.0
#: The same where runs wait for each other.
LINED_BOUND = 1200.0


#: A record may be let go once a scope has got further, or the run has begun anew and no worker has taken it up since.
_NOT_TRIMMED = """
WHEN NOT EXISTS (SELECT 1 FROM perdure_history s WHERE s.run_id = OLD.run_id AND s.kind = 'scope' AND s.seq > OLD.seq)
AND NOT EXISTS (SELECT 1 FROM perdure_runs r
  WHERE r.id = OLD.run_id AND r.generation > 1 AND r.progress = -1 AND r.worker IS NULL)
"""


#: A packed row has the record as it was.
_NOT_PACKED = """
NOT EXISTS (SELECT 1 FROM perdure_history p
  WHERE p.run_id = OLD.run_id AND p.kind = 'packed' AND OLD.seq > p.seq - p.attempts AND OLD.seq <= p.seq
    AND p.run_attempt = OLD.run_attempt AND OLD.failed = 0 AND OLD.retry_at = 0 AND OLD.inbox_seq = 0
    AND json_extract(p.payload, '$[' || (OLD.seq - p.seq + p.attempts - 1) || ']')
      = json_array(OLD.kind, OLD.location, OLD.payload, OLD.at, OLD.started_at, OLD.digest, OLD.attempts))
"""
#: An outcome stays what it is until the run is opened again; it may be hidden, and shown again.
_NOT_HIDDEN = """
WHEN OLD.finished_at > 0 AND OLD.generation = NEW.generation AND (OLD.deleted_at = NEW.deleted_at
  OR (OLD.status, OLD.finished_at, OLD.token, COALESCE(OLD.output, OLD.error))
  <> (NEW.status, NEW.finished_at, NEW.token, COALESCE(NEW.output, NEW.error)))
"""
#: A retry counts the attempts at steps that have not ended anew.
_NOT_COUNTED_ANEW = """
WHEN (NEW.kind <> 'attempt' OR NEW.attempts <> 0 OR NEW.retry_at <> 0 OR NEW.payload IS NOT OLD.payload)
"""
#: Where runs are pruned, they are over by then.
_NOT_OVER = "WHEN OLD.finished_at = 0"
_NOT_PRUNED = "AND EXISTS (SELECT 1 FROM perdure_runs r WHERE r.id = OLD.run_id AND r.finished_at = 0)"


#: How far a wall clock may be ahead, in seconds, and how fast clocks may go.
_AHEAD = (0.0, 0.3, -0.3, LEASE / 2, -LEASE / 2, 3 * LEASE, -3 * LEASE, 3600.0, -3600.0)
_PACES = (1.0, 1.0, 1.0001, 0.9999, 1.02, 0.98)


class Kinds(TypedDict, total=False):
    """What there is in a world besides workflows and messages."""

    #: Activities, and clients who see to what is over.
    activities: bool
    #: Limits and breakers, besides activities.
    limits: bool
    #: Activities and steps that emit and end in one turn of the loop.
    streams: bool
    #: Clocks of processes that differ from the database's.
    clocks: bool
    #: Code that is broken in some processes, and clients who terminate runs and send what cannot be decoded.
    ends: bool
    #: Steps that must not run twice, and code that swallows its cancellation or takes it back.
    once: bool
    #: Runs that wait for runs that are not their children.
    others: bool
    #: Joins and races of other forms, questions that are refused, and sticky events.
    talks: bool
    #: Workers of two builds, and runs that are pinned to the one that begins them.
    builds: bool
    #: Events for other systems.
    outbox: bool
    #: Many transaction steps, and processes that die right after one.
    deeds: bool
    #: Histories that are packed after a few records.
    packing: bool


class Life:
    """A worker in a process of its own."""

    def __init__(self, process: Process, worker: Worker, store: FaultStore, task: asyncio.Task[Any]) -> None:
        self.process = process
        self.worker = worker
        self.store = store
        self.task = task
        self.stopping = False
        #: Whether its code has a bug.
        self.broken = False
        #: Build of its code, where builds differ.
        self.build = ""


class World:
    """See the module."""

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        **kinds: Unpack[Kinds],
    ) -> None:
        self.seed = seed
        self._kinds = kinds
        self._ends = kinds.get("ends", False)
        limits, self._streams = kinds.get("limits", False), kinds.get("streams", False)
        self._activities = kinds.get("activities", False) or limits or self._streams
        self._clocks_differ = kinds.get("clocks", False)
        self._builds = BUILDS if kinds.get("builds") else ()
        self.rng = Random(f"perdure {seed}")
        self.loop = SimLoop(self._fork("loop"))  # type: ignore[abstract]  # it has no sockets
        self.ledger = Ledger(self.loop, keep_trace=keep_trace)
        self.odds = _odds(self.rng)
        self.database = Database(self.loop, self.ledger, self._fork("database"), self.odds)
        self._guards = Guards(self._fork("guards")) if limits else None
        self._turnstile = Turnstile(self.loop, self.ledger) if limits else None
        self.lives: list[Life] = []
        self._clients: list[Client] = []
        self.healed = False
        self._lives_begun = 0
        self._retrying_bound = self.rng.choice((0.0, 0.0, 0.5, 5.0, 30.0))
        self._settings = _settings(self.rng)
        if kinds.get("packing"):
            self._settings = replace(self._settings, pack_history=self._fork("packing").choice((2, 3, 5)))
        self._observer = Process("observer")

    def run(self) -> list[str]:
        """Live through it; what is wrong in the end. Raises `Violation` for what is wrong on the way."""
        return self.loop.run(self._main(), self._observer)

    def close(self) -> None:
        """Let go of everything, in order and in silence."""
        self.loop.close()
        pushers = [worker for client in self._clients if (worker := client.worker) is not None]
        for worker in [*(life.worker for life in self.lives), *pushers]:
            worker.drop_everything()
            worker._claimer.residents.clear()
        if self.database.store is not None:
            for connection in self.database.store._connections:
                connection.close()

    @property
    def store(self) -> SqliteStore:
        """The database itself, without trouble."""
        assert self.database.store is not None
        return self.database.store

    # phases

    async def _main(self) -> list[str]:
        system = SimSystem(self.loop, self._observer, self._fork("observer"), self.database.on_crash_point)
        self.database.store = open_store("sqlite://?audit=full", system, inline=True)
        # Often so small that a few messages are several pages.
        self.store.inbox_page = self._fork("pages").choice((2, 1000))
        await self.store.open()
        self.store.subscribe(self.database.on_change)
        if self._clocks_differ:
            self.database.let_clocks_differ()
        await self._watch_for_overwriting()
        if self._kinds.get("deeds"):
            self.odds.crash_after_deed = self._fork("deeds").choice((0.0, 0.1, 0.3))
        if self._turnstile is not None:
            self.odds.busy = self._fork("busy").choice((0.0, 0.1, 0.4))
            self.database.guard(self._turnstile)
        for _ in range(self.rng.randint(1, 3)):
            self.begin_life()
        author = Author(
            self._fork("author"),
            activities=self._activities,
            guards=self._guards,
            ends=self._ends,
            once=self._kinds.get("once", False),
            others=self._kinds.get("others", False),
            talks=self._kinds.get("talks", False),
            outbox=self._kinds.get("outbox", False),
            deeds=self._kinds.get("deeds", False),
        )
        clients = self._clients = [self._client(number, author) for number in range(2)]
        nemesis = Nemesis(self, self._fork("nemesis"))
        trouble = asyncio.get_running_loop().create_task(nemesis.run(), name="perdure nemesis")
        await asyncio.wait([client.task for client in clients])
        await asyncio.sleep(self.rng.choice((0.0, 2.0, 10.0)))
        trouble.cancel()
        await asyncio.wait([trouble])
        await self._heal(nemesis)
        engine, context = self.client_engine("operator")
        operator = (Porter if self._guards else Operator)(engine, self.store, self.ledger)
        if self._kinds.get("talks"):
            operator.events = EVENTS
        if self._ends:
            operator.curable = ("poison", "broken")
        bound = LINED_BOUND if self._guards else BOUND
        await self.loop.create_task(operator.see_to_the_end(bound), name="perdure operator", context=context)
        await asyncio.gather(*(client.compare() for client in clients))
        await self._end()
        return await self._audit()

    async def _audit(self) -> list[str]:
        failed = [
            f"the task {task.get_name()!r} ended with {task.exception()!r}"
            for task in self.loop.tasks
            if task.done() and not task.cancelled() and task.get_name().startswith("perdure")
            # What an asking ends with, its caller is told.
            and isinstance(task.exception(), Exception)
            and not task.get_name().startswith(("perdure ask", "perdure why"))
        ]  # fmt: skip
        runs, histories = await read_all(self.store)
        raw = self.store._writer._open()
        return failed + Audit(raw.execute, runs, histories, self.ledger, self._guards).findings()

    async def _watch_for_overwriting(self) -> None:
        raw = self.store._writer._open()
        raw.execute("CREATE TABLE deeds (run_id TEXT, location TEXT, result TEXT, generation INTEGER)")
        raw.execute("CREATE TEMP TABLE overwritten (what TEXT)")
        raw.execute(
            "CREATE TEMP TABLE terminated (id TEXT, generation INTEGER, at INTEGER, raised INTEGER, hidden INTEGER)"
        )
        for statement in (ENDED, NO_RECORD, PUBLISHED, KEEP_PUBLISHED):
            raw.execute(statement)
        packing = self._kinds.get("packing")
        not_packed = f"AND {_NOT_PACKED}" if packing else ""
        gone = ("run_id", "kind", "location", "payload", "failed", "seq", "attempts", "run_attempt")
        for kept, columns, event, table, which in (
            ("gone", gone, "DELETE", "history", "OLD"),
            ("letters", ("run_id", "seq", "name", "payload", "kind"), "INSERT", "messages", "NEW"),
            ("ends", ("id", "parent_id", "output", "error", "finished_at"), "UPDATE", "runs", "NEW"),
            ("pruned", ("id", "status"), "DELETE", "runs", "OLD"),
        ):
            raw.execute(f"CREATE TEMP TABLE {kept} ({', '.join(columns)})")
            raw.execute(
                f"CREATE TEMP TRIGGER keep_{kept} AFTER {event} ON perdure_{table} "
                f"{f'WHEN {_NOT_PACKED}' if kept == 'gone' and packing else ''} "
                f"BEGIN INSERT INTO {kept} VALUES ({', '.join(f'{which}.{column}' for column in columns)}); END"
            )
        trimmed = _NOT_TRIMMED + (_NOT_PRUNED if self._activities else "")
        for name, table, event, condition in (
            ("outcome", "runs", "UPDATE", _NOT_HIDDEN),
            ("run", "runs", "DELETE", _NOT_OVER if self._activities else ""),
            ("record_changed", "history", "UPDATE", _NOT_COUNTED_ANEW + not_packed),
            ("record_removed", "history", "DELETE", trimmed + not_packed),
        ):
            old = "OLD.id" if table == "runs" else "OLD.run_id"
            raw.execute(
                f"CREATE TEMP TRIGGER {name} AFTER {event} ON perdure_{table} {condition} "
                f"BEGIN INSERT INTO overwritten VALUES ('{name} of ' || {old}); END"
            )

    async def _heal(self, nemesis: Nemesis) -> None:
        self.ledger.note("the world heals")
        self.healed = True
        self.odds.heal()
        nemesis.undo()
        # Correct code is deployed: what has the bug is stopped.
        for life in self.lives:
            if life.broken and not life.process.dead and not life.stopping:
                self.stop(life)
        for build in self._builds or ("",):
            if not any(not one.process.dead and not one.stopping and one.build == build for one in self.lives):
                self.begin_life(build)

    async def _end(self) -> None:
        for life in self.lives:
            if not life.process.dead and not life.stopping:
                self.stop(life)
        await asyncio.sleep(LEASE)

    # processes

    def begin_life(self, build: str = "") -> Life:
        """Start a worker in a new process, of a build if builds differ."""
        self._lives_begun += 1
        name = f"worker{self._lives_begun}"
        process, system, store = self._process(name)
        # Each process has the code that was deployed by then, or what it was rolled back to.
        broken = self._ends and not self.healed and self._fork(f"{name} code").random() < 0.5
        if self._builds:
            build = build or self._fork(f"{name} build").choice(self._builds)
            self.ledger.note(name, "is of the build", build)
        steps = self._steps(name, broken=broken, build=build)
        worker = self._worker(
            cast("Store", Retrying(cast("Store", store), system, self._retrying_bound)), system, steps
        )
        task = self.loop.create_task(self._start(worker, process), name="start", context=process.context())
        # One that stops gives back what a claim brings that was on its way.
        store.knows = lambda run_id: worker.stopping or worker.knows(run_id)
        life = Life(process, worker, store, task)
        life.broken, life.build = broken, build
        self.lives.append(life)
        self.ledger.note(name, "starts")
        return life

    def _worker(self, store: Store, system: SimSystem, steps: Steps) -> Worker:
        definitions = Interpreter(steps).definitions
        if not self._builds and not self._kinds.get("outbox"):
            return Worker(
                store,
                {definition.type: definition for definition in definitions},
                system=system,
                codec=Codec(),
                errors=ErrorTypes((), ()),
                settings=self._settings,
            )
        # As an engine makes it.
        engine = Engine(
            "sqlite://",
            definitions,
            system=system,
            store=store,
            build=steps.build or "only",
            pinned=bool(self._builds),
            outbox=self._subscriptions(steps) if self._kinds.get("outbox") else (),
            register_sources=False,
        )
        return session_of(engine).make_worker(self._settings)

    def _subscriptions(self, steps: Steps) -> list[Subscription]:
        retry = Retry(attempts=None, initial=0.2, max=2.0)
        return [
            Subscription(name, partial(steps.deliver, name), events=wanted, retry=retry)
            for name, wanted in WANTED.items()
        ]

    async def _start(self, worker: Worker, process: Process) -> None:
        try:
            await worker.start()
        except StoreError as error:
            # A process that could not reach its database at the start is started again.
            self.ledger.note(process.name, "cannot start:", error)
            self.database.kill(process)
            self.loop.call_later(1.0, self.begin_life, context=self._observer.context())

    def stop(self, life: Life) -> None:
        """Let a worker stop in order, on its own lane."""
        life.stopping = True
        self.loop.create_task(self._stop(life), name="perdure stop", context=life.process.context())

    async def _stop(self, life: Life) -> None:
        await asyncio.wait([life.task])
        await life.worker.stop(grace=self.rng.choice((0.0, 1.0)))
        self.ledger.note(life.process.name, "has stopped")

    def client_engine(self, name: str) -> tuple[Engine, Context]:
        """An engine in a process of its own, for clients."""
        process, system, store = self._process(name)
        interpreter = Interpreter(self._steps(name))
        reliable = Retrying(cast("Store", store), system, self._retrying_bound)
        engine = Engine("sqlite://", interpreter.definitions, system=system, store=cast("Store", reliable))
        self.ledger.note(process.name, "connects")
        return engine, process.context()

    def _client(self, number: int, author: Author) -> Client:
        engine, context = self.client_engine(f"client{number}")
        kind = Guest if self._guards else Keeper if self._activities else Supervisor if self._ends else Client
        for one, special in (("talks", Talker), ("builds", Releaser), ("outbox", Publisher)):
            kind = special if self._kinds.get(one) else kind
        client = kind(engine, self.store, self.ledger, author, self._fork(f"client{number} plan"), f"c{number}")
        client.task = self.loop.create_task(client.act(), name=f"perdure client{number}", context=context)
        return client

    def _process(self, name: str) -> tuple[Process, SimSystem, FaultStore]:
        process = Process(name)
        process.main.priority = self.rng.random()
        system = SimSystem(self.loop, process, self._fork(name), self.database.maybe_crash, self._clocks(name))
        return process, system, FaultStore(self.database, system)

    def _clocks(self, name: str) -> Clocks:
        """The clocks of a process, off by less or more than a lease, and slow or fast by up to two percent."""
        if not self._clocks_differ:
            return TRUE
        rng = self._fork(f"{name} clocks")
        clocks = Clocks(int(rng.choice(_AHEAD) * 1e6), rng.choice(_PACES))
        self.ledger.note(name, "is ahead by", clocks.ahead, "at a pace of", clocks.pace)
        self.ledger.sometimes["a wall clock was off by less than a lease"] += 0 < abs(clocks.ahead) < LEASE * 1e6
        self.ledger.sometimes["a wall clock was off by more than a lease"] += abs(clocks.ahead) > LEASE * 1e6
        self.ledger.sometimes["a clock was slow"] += clocks.pace < 1
        self.ledger.sometimes["a clock was fast"] += clocks.pace > 1
        return clocks

    def _steps(self, name: str, *, broken: bool = False, build: str = "") -> Steps:
        rng = self._fork(f"{name} steps")
        return Steps(
            name, rng, self.ledger, self._guards, self._turnstile, streams=self._streams, broken=broken, build=build
        )

    def _fork(self, name: str) -> Random:
        return Random(f"perdure {self.seed} {name}")


def _odds(rng: Random) -> Odds:
    def perhaps(low: float, high: float) -> float:
        return float(low * (high / low) ** rng.random()) if rng.random() < 0.6 else 0.0

    return Odds(
        error_before=perhaps(0.002, 0.1),
        reply_lost=perhaps(0.002, 0.2),
        slow=perhaps(0.01, 0.3),
        delay=rng.choice((0.01, 0.2, LEASE, 2 * LEASE)),
        crash=perhaps(0.002, 0.04),
    )


def _settings(rng: Random) -> WorkerSettings:
    return WorkerSettings(
        slots=rng.choice((1, 2, 2, 4, 8)),
        lease=LEASE,
        grace=rng.choice((0.0, 1.0)),
        resident=rng.choice((0, 1, 100)),
        poison_after=rng.choice((3, 5, 50)),
        linger=rng.choice((0.0, 0.1, 1.0)),
        affinity=rng.choice((0.0, 0.02, 0.5)),
        stall_limit=rng.choice((2 * LEASE, 60.0)),
    )
