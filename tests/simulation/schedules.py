"""A simulation of schedules: workers, clients and faults in one process, from a seed.

No worker serves the scheduled type; runs end by being cancelled now and then. One schedule is never changed, one ends
soon, one lets its fire times wait, and one is changed in every way. Through crashes, stalls and lost answers, each
fire time is handled once.
"""

from __future__ import annotations

import asyncio
from itertools import pairwise
from random import Random
from typing import Any

import msgspec

from perdure import Call, Engine, Every, PerdureError
from perdure.admin import Schedule
from perdure.core.audit import Event
from perdure.core.time.duration import instant, moment_of
from perdure.core.time.schedule import run_id_of
from perdure.store import open_store
from tests.invariants import scan_store
from tests.simulation.loop import Violation
from tests.simulation.nemesis import Nemesis
from tests.simulation.simulate import _undisturbed
from tests.simulation.system import EPOCH, SimSystem
from tests.simulation.world import World

CALL: Call[Any] = Call.named("simulated.tick.v1")
SECOND = 1_000_000
#: Steps of each client, and for how long the world has to catch up when it has healed, in virtual seconds.
STEPS = 25
CATCH_UP = 60.0
#: Microseconds after which the schedule `bounded` ends.
BOUND = 20 * SECOND

STEADY = {"overlap": "allow", "misfire": "all"}
LINE = {"overlap": "queue", "misfire": "all"}


class Keeper:
    """A client that steers schedules and ends runs."""

    def __init__(self, engine: Engine, rng: Random) -> None:
        self._engine = engine
        self._rng = rng

    async def act(self) -> None:
        """Do one thing after the other; what fails has perhaps been done."""
        for _ in range(STEPS):
            await asyncio.sleep(self._rng.expovariate(1.0))
            deed = self._rng.choice((self._steer, self._change, self._start, self._end, self._end))
            try:
                await deed()
            except PerdureError:
                continue

    async def create(self, id: str, **options: Any) -> None:
        """Make a schedule, however often that takes."""
        while True:
            try:
                await self._engine.schedules.create(id, CALL, Every("1s"), **options)
                return
            except PerdureError:
                await asyncio.sleep(0.1)

    async def _steer(self) -> None:
        schedules = self._engine.schedules
        if self._rng.random() < 0.5:
            await schedules.pause("busy")
        else:
            await schedules.resume("busy", catch_up=self._rng.random() < 0.5)

    async def _change(self) -> None:
        if self._rng.random() < 0.4:
            # Changes nothing about which slots there are.
            await self._engine.schedules.change(self._rng.choice(("steady", "line")), priority=self._rng.randrange(9))
            return
        overlap = self._rng.choice(("allow", "skip", "queue", "cancel"))
        options: dict[str, Any] = {"overlap": overlap, "misfire": self._rng.choice(("skip", "once", "all", 3))}
        options["jitter"] = self._rng.choice((0, 0.5, 3))
        if self._rng.random() < 0.3:
            options["timing"] = Every(self._rng.choice((1, 2, 0.7)))
        if self._rng.random() < 0.2:
            options["skip"] = self._rng.choice(([], [moment_of(EPOCH).date()]))
        await self._engine.schedules.change("busy", grace=self._rng.choice((0, 2, 60)), **options)

    async def _start(self) -> None:
        if self._rng.random() < 0.5:
            await self._engine.schedules.trigger("busy")
            return
        now = await self._engine._session.store.now()
        schedule = await self._engine.schedules.get("busy")
        slots = [now // SECOND * SECOND - number * SECOND for number in range(1, 4)]
        await self._engine._session.store.trigger(schedule.id, slots, "", "keeper")

    async def _end(self) -> None:
        id = self._rng.choice(("line", "line", "busy"))
        last = (await self._engine.schedules.get(id)).last_run
        if last:
            await self._engine.cancel(last)


class TimedWorld(World):
    """A world with schedules and a client that changes them."""

    async def _main(self) -> list[str]:
        system = SimSystem(self.loop, self._observer, self._fork("observer"), self.database.on_crash_point)
        self.database.store = open_store("sqlite://?audit=full", system, inline=True)
        await self.store.open()
        self.store.subscribe(self.database.on_change)
        keepers = [self._keeper(number) for number in range(2)]
        bounded: dict[str, Any] = {**STEADY, "ends": moment_of(self.store.clock() + BOUND)}
        made: dict[str, dict[str, Any]] = {"steady": STEADY, "bounded": bounded, "line": LINE, "busy": {}}
        for id, options in made.items():
            await self._do(keepers[0][0].create(id, **options), keepers[0][1])
        for _ in range(self.rng.randint(1, 3)):
            self.begin_life()
        nemesis = Nemesis(self, self._fork("nemesis"))
        trouble = asyncio.get_running_loop().create_task(nemesis.run(), name="perdure nemesis")
        await asyncio.wait([self._do(keeper.act(), context) for keeper, context in keepers])
        trouble.cancel()
        await asyncio.wait([trouble])
        await self._heal(nemesis)
        await asyncio.sleep(CATCH_UP)
        await self._end()
        return [*await self._wrong(), *(str(one) for one in await scan_store(self.store.query))]

    def _keeper(self, number: int) -> tuple[Keeper, Any]:
        engine, context = self.client_engine(f"keeper{number}")
        engine.workflows.clear()
        return Keeper(engine, self._fork(f"keeper{number} plan")), context

    def _do(self, what: Any, context: Any) -> asyncio.Task[None]:
        return self.loop.create_task(what, name="perdure keeper", context=context)

    async def _wrong(self) -> list[str]:
        wrong: list[str] = []
        for schedule in await self.store.schedules("", 10):
            events = await self.store.events(schedule.trail)
            fired = [slot for event in events if event.kind == "schedule_fired" and (slot := _data(event)["slot"])]
            if len(fired) != len(set(fired)):
                wrong.append(f"{schedule.id}: a slot was fired twice")
            for slot in fired:
                if await self.store.get(run_id_of(schedule.id, slot)) is None:
                    wrong.append(f"{schedule.id}: the slot {slot} has no run")
            if schedule.id != "busy":
                wrong += _unaccounted(schedule, fired, events)
            if schedule.due_at < self.store.clock() - 10 * SECOND and not schedule.paused:
                wrong.append(f"{schedule.id}: it was due and was not fired")
        return wrong + await self._overlapping()

    async def _overlapping(self) -> list[str]:
        """Of those that wait in line, each begins when the one before has ended."""
        rows = await self.store.query(
            "SELECT id, created_at, finished_at FROM perdure_runs WHERE id LIKE 'line@%' ORDER BY created_at, id"
        )
        pairs = pairwise(rows)
        return [f"{after[0]} began before {one[0]} had ended" for one, after in pairs if not 0 < one[2] <= after[1]]


def _unaccounted(schedule: Schedule, fired: list[int], events: list[Event]) -> list[str]:
    """Fire times of an unchanged schedule that neither started a run nor wait, nor were skipped with a reason."""
    known = {*fired, *schedule.waiting}
    for event in events:
        if event.kind == "schedule_passed":
            data = _data(event)
            known |= set(range(data["from"], data["to"] + 1, SECOND))
    timing = schedule.timing
    assert isinstance(timing, Every)
    assert timing.start is not None
    first = int(timing.start.timestamp() * SECOND)
    ends = schedule.window.ends
    end = schedule.next_fire_time if ends is None else min(schedule.next_fire_time, instant(ends, 0))
    slots = set(range(first, end, SECOND))
    return [] if known == slots else [f"{schedule.id}: unaccounted for are {sorted(known ^ slots)[:5]}"]


def _data(event: Event) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(event.data)
    return data


def simulate(seed: int) -> tuple[list[str], int]:
    """Run the world of a seed; returns the violations found and the number of runs."""
    with _undisturbed():
        world = TimedWorld(seed)
        try:
            wrong = world.run()
            raw = world.store._writer._open()
            [(runs,)] = raw.execute("SELECT COUNT(*) FROM perdure_runs")
        except Violation as violation:
            wrong, runs = [str(violation)], 0
        finally:
            world.close()
    return wrong, runs
