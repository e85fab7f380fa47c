"""State that survives a crash, and the execution that goes on from it.

A crash leaves two things behind: the database, and the *world*, which stands for the systems outside of the program.
Everything else is memory of the process and is lost. So a crash needs no signal: `StateRecorder` copies both at each
durable point of one execution, and `resume` goes on from a copy with a new worker.
"""

from __future__ import annotations

import logging
import pickle
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct

from perdure.client.runs.inspect import current_waits, explain
from perdure.client.session import Session
from perdure.core.model.run import Run, Status
from perdure.core.model.waits import WaitKind
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.store import SqlStore
from perdure.testing.clock import VirtualClock
from perdure.testing.environment import START, Environment
from perdure.testing.replacement import Replaceable
from perdure.workflow.discover import Definable

#: Id of the run that is crashed.
RUN_ID = "crash-everywhere"

#: Rounds of an execution: timers that are skipped and messages that are sent.
_ROUNDS = 10_000
#: Virtual seconds between two polls.
_POLL = 10.0 * 365 * 24 * 3600
#: Runs given back in one sweep.
_SWEEP = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Makes the workers of the crashed process overdue.
_KILL = "UPDATE perdure_workers SET heartbeat_at = 0, lease = 0 WHERE status = 'alive'"
#: Lets the new worker look for room at once that the crashed worker did not report, instead of a while later.
_LOOK_FOR_ROOM = "UPDATE perdure_gates SET due_at = 0 WHERE waits_for = 'room'"
_RECORDS = "SELECT run_id, token, seq, kind, location FROM perdure_history ORDER BY at, run_id, seq"
_ENDED = f"SELECT id, type FROM perdure_runs WHERE finished_at > 0 AND id <> '{RUN_ID}' ORDER BY finished_at, id"
_UNFINISHED = "SELECT 1 FROM perdure_runs WHERE finished_at = 0 LIMIT 1"

#: Place of a commit that writes other things than records, such as items of a stream, before the end of the run.
_NO_RECORDS = "a write without records"

_RecordKey = tuple[str, int, int, str, str]


class CrashState(Struct, frozen=True):
    """What a crash leaves behind at one point of an execution."""

    #: The database, as SQLite serializes it.
    database: bytes
    #: The objects outside of the program, pickled.
    world: bytes
    #: Virtual time, in microseconds.
    now: int
    #: False: the crash came before the records of `locations` were written; True: right after.
    written: bool
    #: Locations of the records that are about to be written, or were just written.
    locations: tuple[str, ...]

    @property
    def place(self) -> str:
        """The locations, in words."""
        return ", ".join(dict.fromkeys(self.locations)) or "the end of the run"


class ExecutionEnd(Struct, frozen=True):
    """How an execution ended, and the world at its end."""

    status: str
    output: str | None
    #: JSON of the failure of a run that did not complete.
    error: str | None
    world: bytes
    #: Runs that are blocked because their code does not follow their history: ids and reasons.
    diverged: tuple[tuple[str, str], ...] = ()


class ExecutionPlan(Struct, frozen=True):
    """Code and input of an execution."""

    workflows: tuple[Definable, ...]
    world: tuple[Any, ...] = ()
    messages: tuple[tuple[str, object], ...] = ()
    replacements: tuple[tuple[Replaceable, Callable[..., Any]], ...] = ()
    errors: tuple[type[Exception], ...] = ()

    def environment(self, state: CrashState | None = None) -> CrashEnvironment:
        """Make an environment for this code, with the database and the time of a state."""
        # Another seed, so that the new worker has another id than the one that crashed.
        start, seed = (START, 0) if state is None else (_EPOCH + timedelta(microseconds=state.now), 1)
        env = CrashEnvironment(self.workflows, errors=self.errors, start_time=start, seed=seed)
        env.state = state
        # No other process writes to the database, and each poll takes time.
        env.store.poll_interval = _POLL
        for replaced, fake in self.replacements:
            env.replace(replaced, fake)
        return env


class CrashEnvironment(Environment):
    """An environment whose database is copied, or is a copy."""

    #: State to go on from.
    state: CrashState | None = None
    #: Messages that the run has ended without, with their numbers.
    unsent: Sequence[tuple[int, tuple[str, object]]] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: Names of messages that the run has waited for.
        self.awaited: set[str] = set()

    @property
    def clock(self) -> VirtualClock:
        """The clock of the environment."""
        return self._clock

    @property
    def store(self) -> SqlStore:
        """The store of the environment."""
        return self._store

    @property
    def session(self) -> Session:
        """The session of the engine."""
        return self._session

    async def why(self, run: Run) -> str:
        """Explain why a run does not go on."""
        return await explain(self._store, run)

    def connection(self) -> sqlite3.Connection:
        """The connection to the database in memory."""
        raw = self._store._writer._raw
        assert raw is not None
        return raw

    async def _connect(self) -> None:
        await super()._connect()
        if self.state is None:
            return
        with closing(sqlite3.connect(":memory:")) as source:
            source.deserialize(self.state.database)
            source.backup(self.connection())
        self.state = None
        self.connection().execute(_KILL)
        self.connection().execute(_LOOK_FOR_ROOM)
        await self._store.sweep(_SWEEP)

    async def drive(self, messages: Sequence[tuple[str, object]]) -> Run:
        """Execute until the run ends or cannot go on: skip to timers, and send messages once the run waits for them."""
        self.unsent = unsent = list(enumerate(messages))
        for _ in range(_ROUNDS):
            await self.settle()
            run = await self._session.find(RUN_ID)
            if run.status.finished or run.status is Status.BLOCKED:
                break
            awaited = await self._awaited_names(run)
            self.awaited.update(awaited)
            following = next((one for one in unsent if one[1][0] in awaited), None)
            if following is None and not await self.skip_to_next_timer():
                if not unsent:
                    break
                following = unsent[0]
            if following is not None:
                unsent.remove(following)
                number, (name, value) = following
                # The key keeps a message that was sent before the crash from arriving twice.
                await self.send(RUN_ID, name, value, key=f"{RUN_ID}-{number}")
        return await self._session.find(RUN_ID)

    async def _awaited_names(self, run: Run) -> list[str]:
        """Names of the messages that a run waits for, in memory or parked."""
        if (parked := await current_waits(self._store, run)) is not None:
            return [wait.name for wait in parked.waits if wait.kind is WaitKind.MESSAGE]
        return self.awaited_messages(run.id)

    async def end(self, run: Run, world: Iterable[object]) -> ExecutionEnd:
        """Describe the end of an execution."""
        blocked = await self._store.query("SELECT id, error FROM perdure_runs WHERE status = 'blocked'")
        return ExecutionEnd(
            status=run.status.value,
            output=run.output,
            error=run.error,
            world=dump_world(world),
            diverged=tuple((str(id), str(error or "")) for id, error in blocked),
        )


class StateRecorder:
    """Copies database and world of an environment at each durable point."""

    def __init__(self, env: CrashEnvironment, world: tuple[Any, ...]) -> None:
        self._env = env
        self._world = world
        self._seen: set[tuple[int, bytes]] = set()
        self._known: set[_RecordKey] = set()
        self._ended: set[str] = set()
        self._commits = 0
        #: Points so far.
        self.states: list[CrashState] = []
        #: Points before a commit whose records are not known yet.
        self._unnamed: list[CrashState] = []

    def pass_point(self, name: str) -> None:
        """Copy, if the engine passes a durable point."""
        if name in ("step.returned", "commit.enter", "transact.enter"):
            self._keep(written=False, locations=())
        elif name in ("commit.committed", "transact.committed"):
            self._commits += 1
            locations = self._new_locations()
            self._name_earlier(locations)
            self._keep(written=True, locations=locations)
        elif name == "send.committed":
            self._commits += 1
            self._keep(written=True, locations=("a message that arrives",))

    def finish(self) -> list[CrashState]:
        """Return the points; the execution is over."""
        self._name_earlier(())
        return self.states

    def _keep(self, *, written: bool, locations: tuple[str, ...]) -> None:
        world = dump_world(self._world)
        if (self._commits, world) in self._seen:
            return
        connection = self._env.connection()
        if connection.in_transaction or (written and connection.execute(_UNFINISHED).fetchone() is None):
            # Nothing is left to resume after the end.
            return
        self._seen.add((self._commits, world))
        state = CrashState(connection.serialize(), world, self._env.clock.now(), written, locations)
        (self.states if written else self._unnamed).append(state)

    def _name_earlier(self, locations: tuple[str, ...]) -> None:
        for state in self._unnamed:
            self.states.append(CrashState(state.database, state.world, state.now, False, locations))
        self._unnamed = []

    def _new_locations(self) -> tuple[str, ...]:
        rows: list[_RecordKey] = [tuple(row) for row in self._env.connection().execute(_RECORDS)]
        new = [row for row in rows if row not in self._known]
        self._known.update(new)
        # The success of an activity is an outcome without a record.
        ended = {id: type for id, type in self._env.connection().execute(_ENDED) if id not in self._ended}
        self._ended.update(ended)
        if not new and ended:
            return tuple(ended.values())
        if not new and self._env.connection().execute(_UNFINISHED).fetchone() is not None:
            return (_NO_RECORDS,)
        return tuple(row[4] for row in new)


async def resume(plan: ExecutionPlan, state: CrashState) -> ExecutionEnd:
    """Go on from a state with a new worker, until the run ends or cannot go on."""
    load_world(plan.world, state.world)
    env = plan.environment(state)
    with _silence():
        async with env:
            return await env.end(await env.drive(plan.messages), plan.world)


class _silence:  # noqa: N801 - reads like a function
    """Silences the log: the report has what happens after a crash."""

    def __enter__(self) -> None:
        self._level = logging.getLogger("perdure").level
        logging.getLogger("perdure").setLevel(logging.CRITICAL + 1)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("perdure").setLevel(self._level)


# the world


def dump_world(world: Iterable[object]) -> bytes:
    """Copy the state of objects. Raises `UsageError` for one that cannot be copied."""
    try:
        return pickle.dumps([_state_of(one) for one in world])
    except Exception as error:
        raise UsageError(
            f"the world cannot be copied with pickle: {error}; give objects of plain data, such as lists of calls"
        ) from error


def load_world(world: Sequence[object], dumped: bytes) -> None:
    """Give objects the state that they had, without replacing them: other code may refer to them."""
    for one, state in zip(world, pickle.loads(dumped), strict=True):  # noqa: S301 - of this process, or its parent
        _update(one, state)


def check_world(world: object) -> tuple[Any, ...]:
    """Check the objects outside of the program. Raises `UsageError`."""
    objects = world if isinstance(world, tuple) else () if world is None else (world,)
    for one in objects:
        if not isinstance(one, list | dict | set) and not hasattr(one, "__dict__") and not _slots_of(one):
            raise UsageError(
                f"world has {brief(one)}: give an object with attributes, a list, a dict or a set, or a tuple of these"
            )
    return objects


def _state_of(one: object) -> object:
    if isinstance(one, list | dict | set):
        return one
    slots = {name: getattr(one, name) for name in _slots_of(one) if hasattr(one, name)}
    return {**getattr(one, "__dict__", {}), **slots}


def _slots_of(one: object) -> list[str]:
    """Names of attributes that are not in `__dict__`, as those of a dataclass with `slots=True`."""
    slots = [vars(each).get("__slots__", ()) for each in type(one).__mro__]
    names = [name for some in slots for name in ((some,) if isinstance(some, str) else some)]
    return [name for name in names if not name.startswith("__")]


def _update(one: object, state: Any) -> None:
    if isinstance(one, list):
        one[:] = state
    elif isinstance(one, set):
        one.clear()
        one.update(state)
    elif isinstance(one, dict):
        kept = {key: _updated(one[key], value) if key in one else value for key, value in state.items()}
        one.clear()
        one.update(kept)
    else:
        slots = _slots_of(one)
        for name in slots:
            if name in state:
                setattr(one, name, _updated(getattr(one, name, None), state[name]))
            elif hasattr(one, name):
                delattr(one, name)
        if hasattr(one, "__dict__"):
            _update(vars(one), {name: value for name, value in state.items() if name not in slots})


def _updated(one: object, state: Any) -> object:
    """The same object with another state, if it is a collection; otherwise the state."""
    if type(one) is type(state) and isinstance(one, list | dict | set):
        _update(one, state)
        return one
    return state


def name_of_object(one: object, modules: Iterable[str]) -> tuple[str, str] | None:
    """Find the module and the name of an object at the top level of a module, in `modules` first; None if it is not."""
    for name in dict.fromkeys([*modules, *sys.modules]):
        module = sys.modules.get(name)
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if value is one:
                return name, key
    return None
