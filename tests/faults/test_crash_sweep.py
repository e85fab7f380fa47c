"""Kill the process at every crash point it passes; another one finishes the work, and nothing is lost, changed or done
twice."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from perdure.store import MUTATING_VERBS, Store
from perdure.testing.crash import Trap
from tests.faults.evidence import judge, snapshot
from tests.faults.family import Family
from tests.faults.homes import Home, Homes

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
PAIRS = 2000 if WHOLE else 10
PAIRS_ON_A_SERVER = 300 if WHOLE else 2
#: Cases on a server, where each takes longer and passes the same code, when not proving.
SOME = 6
AT_ONCE = 4
KILLED = -9
TRIES = 8

LOOKING = {
    "list_dead_letters",
    "get_dead_letter",
    "get",
    "get_many",
    "attributes",
    "count",
    "list",
    "history",
    "records",
    "snapshot",
    "inbox",
    "updated_at",
    "waiting_runs",
    "waits",
    "events",
    "events_page",
    "outputs",
    "pauses",
    "schedule",
    "schedules",
    "list_fires",
    "locks",
    "watermarks",
    "documents",
    "graph_checkpoints",
    "depth",
    "backlog",
    "run_times",
    "token",
    "tokens",
    "types",
    "workers",
    "leases",
    "load",
    "unread_messages_of_worker",
    "unread_messages",
    "turn_outcome",
    "ready_run_ids",
    "preview_admission",
    "waitlist_position",
    "waitlisted_types",
    "gates",
    "permits",
}
READING = LOOKING | {"open", "close", "poll_changes", "now"}
POINTS = [f"{verb}.{point}" for verb in MUTATING_VERBS for point in ("enter", "begun", "written", "committed")] + [
    "step.returned",
    "shutdown.begin",
    "shutdown.released",
]

#: Those that runs pass all the time, each time in another state.
BUSY = [
    point for point in POINTS if point.startswith(("admit", "claim", "commit", "create", "send", "transact", "step"))
]


class Cases:
    """Runs cases, a few at a time, each in a directory of its own."""

    def __init__(self, processes: Family, homes: Homes, directory: Path) -> None:
        self._processes = processes
        self._homes = homes
        self._directory = directory
        self._room = asyncio.Semaphore(AT_ONCE)
        self.fired: Counter[str] = Counter()

    async def dry(self) -> list[str]:
        """The points that an undisturbed process passes."""
        async with self._homes.at(self._directory / "dry") as home:
            child = await self._processes.fork("drive", home.directory)
            assert await child.ended() == 0, child.noise()
            return child.passed

    async def run(self, name: str, *traps: Trap) -> None:
        """Crash at each trap in turn, let another process finish, and look.

        How often a point is passed differs from time to time; a trap that was missed is set a little earlier, in a new
        case.
        """
        async with self._room:
            for again in range(TRIES):
                async with self._homes.at(self._directory / f"{name}-{again}") as home:
                    missed = await self._run(home, traps)
                if missed is None:
                    return
                traps = tuple(_earlier(trap) if trap is missed else trap for trap in traps)
        # Whether a run is loaded, or its inbox read, depends on timing; writing does not.
        assert {trap.point for trap in traps}.isdisjoint([None, *POINTS]), f"no process passes {traps}"

    async def _run(self, home: Home, traps: tuple[Trap, ...]) -> Trap | None:
        crashes = []
        directory = home.directory
        for number, trap in enumerate(traps):
            child = await self._processes.fork("drive", directory, trap=msgspec.to_builtins(trap))
            code = await child.ended()
            if code == 0:
                return trap
            assert code == KILLED, f"a process with a trap at {trap} failed by itself:\n{child.noise()}"
            assert child.caught is not None
            self.fired[child.caught] += 1
            crashes.append(await snapshot(home, f"crash-{number}"))
        last = await self._processes.fork("drive", directory, last=True)
        code = await last.ended()
        told = " then ".join(str(trap) for trap in traps)
        assert code == 0, f"after a crash at {told} no process could finish:\n{last.noise()}"
        wrong = await judge(home, crashes)
        assert not wrong, f"after a crash at {told}, in {directory}:\n" + "\n".join(wrong) + "\n" + last.noise()
        shutil.rmtree(directory)
        return None

    async def run_all(self, cases: Iterator[tuple[Trap, ...]]) -> None:
        await _all(self.run(f"{number:05}", *traps) for number, traps in enumerate(cases))


def _earlier(trap: Trap) -> Trap:
    return Trap(point=trap.point, hit=random.randint(1, max(1, trap.hit - 1)))


async def _all(cases: Iterator[object]) -> None:
    async with asyncio.TaskGroup() as group:
        for case in cases:
            group.create_task(case)  # type: ignore[arg-type] # cases are coroutines


def one_at_a_time(passed: list[str], homes: Homes) -> Iterator[tuple[Trap]]:
    """Every passing of every point; or, bounded, what `chosen` says of it; or, on a server, some."""
    often = Counter(passed)
    if WHOLE:
        yield from ((Trap(point=point, hit=hit),) for point in often for hit in range(1, often[point] + 1))
    elif homes.is_file:
        yield from ((trap,) for trap in chosen(often))
    else:
        for point in random.sample(POINTS, SOME):
            yield (Trap(point=point, hit=random.randint(1, often[point])),)


def chosen(often: Counter[str]) -> Iterator[Trap]:
    """Of busy points one passing; of each other verb one."""
    for point in BUSY:
        yield Trap(point=point, hit=random.randint(1, often[point]))
    for verb in dict.fromkeys(point.partition(".")[0] for point in often if point not in BUSY):
        point = random.choice([point for point in often if point.startswith(f"{verb}.")])
        yield Trap(point=point, hit=random.randint(1, often[point]))


def test_every_verb_of_the_store_either_only_reads_or_is_swept() -> None:
    verbs = {name for name, verb in vars(Store).items() if inspect.iscoroutinefunction(verb)}
    assert verbs - READING == set(MUTATING_VERBS) - {"migrate"}


@pytest.mark.timeout(7200 if WHOLE else 600)
async def test_a_crash_at_any_point_loses_nothing_and_repeats_only_what_was_in_flight(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    cases = Cases(processes, homes, tmp_path)
    passed = await cases.dry()
    assert set(POINTS) <= set(passed), "these points are never passed"
    await cases.run_all(one_at_a_time(passed, homes))
    if WHOLE:
        assert set(POINTS) <= set(cases.fired), "these points never fired"
    elif homes.is_file:
        assert set(BUSY) <= set(cases.fired), "these points never fired"
        assert {point.partition(".")[0] for point in POINTS} <= {point.partition(".")[0] for point in cases.fired}


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_second_crash_during_recovery_changes_nothing(processes: Family, homes: Homes, tmp_path: Path) -> None:
    cases = Cases(processes, homes, tmp_path)
    passed = await cases.dry()
    count = PAIRS if homes.is_file else PAIRS_ON_A_SERVER
    pairs = (
        (Trap(hit=random.randint(1, len(passed))), Trap(hit=random.randint(1, len(passed) // 2))) for _ in range(count)
    )
    await cases.run_all(pairs)
    assert cases.fired.total() >= 2 * count
