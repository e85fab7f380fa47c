"""Freeze a worker at every crash point until others have done its work, then thaw it: none of its writes are taken."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from perdure.testing.crash import Trap
from tests.faults import app
from tests.faults.evidence import Snapshot, judge, snapshot
from tests.faults.family import Child, Family
from tests.faults.homes import Home, Homes
from tests.faults.prepared import PREPARED
from tests.faults.roles import LEASE
from tests.helpers import eventually

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
AT_ONCE = 4
#: Cases on a server, where each takes longer and passes the same code, when not proving.
SOME = 4
TRIES = 8
#: Seconds that others may take for everything there is to do, beyond the lease of a frozen worker.
BOUND = 60.0

#: The verbs with which a worker writes, and the points at which it holds no transaction open.
VERBS = ("register", "unblock", "heartbeat", "claim", "commit", "sweep", "retire")
OUTSIDE = (
    *(f"{verb}.{point}" for verb in VERBS for point in ("enter", "committed")),
    "step.returned",
    "shutdown.begin",
    "shutdown.released",
)
INSIDE = tuple(f"{verb}.{point}" for verb in VERBS for point in ("begun", "written"))

#: What must have been refused at least once: heartbeats, claims, and turns of each kind.
TURNS = ("go on", "park", "finish", "retrylater", "block", "release")
REFUSED = {"heartbeat", "claim", *TURNS}


class Zombies:
    """Runs cases, a few at a time, each in a directory of its own."""

    def __init__(self, processes: Family, homes: Homes, directory: Path) -> None:
        self._processes = processes
        self._homes = homes
        self._directory = directory
        self._room = asyncio.Semaphore(AT_ONCE)
        self.fired: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._dries = 0
        #: How many held rows or the database when they were frozen.
        self.locking = 0

    async def dry(self) -> Child:
        """A worker that was not disturbed, for the points that it passed."""
        self._dries += 1
        async with self._homes.at(self._directory / f"dry-{self._dries}") as home:
            worker = await self._processes.fork("work", home.directory)
            client = await self._processes.fork("ask", home.directory)
            assert await client.ended() == 0, client.noise()
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0, worker.noise()
            return worker

    async def run(self, name: str, trap: Trap) -> None:
        """A trap that was missed is set a little earlier, in a new case."""
        async with self._room:
            for again in range(TRIES):
                async with self._homes.at(self._directory / f"{name}-{again}") as home:
                    if await self._run(home, trap):
                        return
                trap = Trap(point=trap.point, hit=random.randint(1, max(1, trap.hit - 1)), signal=trap.signal)
        raise AssertionError(f"no worker passes {trap}")

    async def _run(self, home: Home, trap: Trap) -> bool:
        """Whether a worker was frozen there and did no harm."""
        frozen = await self._freeze(home, trap)
        if frozen is None:
            return False
        try:
            wrong = await (self._thaw_inside(frozen) if frozen.inside else self._thaw(frozen))
        except BaseException:
            # What it may still have locked would keep the tables from being removed.
            frozen.worker.signal(signal.SIGKILL)
            raise
        wrong += await judge(home, [frozen.state], frozen.worker.pid)
        told = f"frozen at {trap}, in {home.directory}:\n" + "\n".join(wrong)
        assert not wrong, f"{told}\n{frozen.worker.noise()}"
        shutil.rmtree(home.directory)
        if self._homes.is_file and frozen.inside != (trap.point in INSIDE):
            return False
        self.fired[trap.point or ""] += 1
        return True

    async def _freeze(self, home: Home, trap: Trap) -> Frozen | None:
        directory = home.directory
        worker = await self._processes.fork("work", directory, trap=msgspec.to_builtins(trap))
        client = await self._processes.fork("ask", directory)
        freezing = asyncio.ensure_future(worker.stopped())
        asking = asyncio.ensure_future(client.ended())
        await asyncio.wait([freezing, asking], return_when=asyncio.FIRST_COMPLETED)
        if not freezing.done():
            worker.signal(signal.SIGTERM)
        if not await freezing:
            assert worker.code == 0, worker.noise()
            asking.cancel()
            return None
        assert worker.caught is not None
        # While one thread passes a point, another may be in the middle of a transaction.
        locked = await home.is_locked()
        self.locking += locked
        # On a server, the rows of a frozen worker are taken from it.
        inside = locked and self._homes.is_file
        return Frozen(home, trap, worker, asking, await snapshot(home, "frozen"), inside=inside)

    async def _finish(self, frozen: Frozen) -> None:
        bury = 0 if frozen.inside else frozen.worker.pid
        last = await self._processes.fork("drive", frozen.worker.directory, last=True, bury=bury)
        try:
            async with asyncio.timeout(None if frozen.inside else LEASE + BOUND):
                ended = await last.ended(), await frozen.asking
        except TimeoutError:
            ended = (-1, -1)
        assert ended == (0, 0), f"frozen at {frozen.trap}:\n{last.noise()}"

    async def _thaw(self, frozen: Frozen) -> list[str]:
        """Let others finish, then let it go on; what it did that it should not have done."""
        worker, directory = frozen.worker, frozen.worker.directory
        await self._finish(frozen)
        before = (await snapshot(frozen.home, "before")).finished()
        one_more = await self._processes.fork("ask_for_one_more", directory)
        await eventually(lambda: any(line.get("run") == "one more" for line in app.read(directory / "ledger")))
        frozen.thawed = time.monotonic()
        worker.signal(signal.SIGCONT)
        if frozen.was_claiming and random.random() < 0.3:
            self._tell_to_stop(worker)
        await eventually(
            lambda: worker.code is not None or frozen.begins_another_life(),
            saying=f"in {directory}, frozen at {frozen.trap}, a new life",
        )
        if worker.code is not None:
            await self._finish(frozen)
        assert await one_more.ended() == 0, one_more.noise()
        await self._end(worker)
        after = (await snapshot(frozen.home, "after")).finished()
        return frozen.late_writes(set(before), self.refused) + [
            f"the zombie changed run {id!r}: {known} became {after.get(id)}"
            for id, known in before.items()
            if after.get(id) != known
        ]

    async def _thaw_inside(self, frozen: Frozen) -> list[str]:
        """It holds the database, so no worker can take its runs away; it goes on in one life or the next."""
        loop = asyncio.get_running_loop()
        limit = loop.time() + 1.5 * LEASE
        finishing = asyncio.ensure_future(self._finish(frozen))
        await eventually(lambda: loop.time() > limit)
        frozen.worker.signal(signal.SIGCONT)
        await eventually(lambda: frozen.worker.code is not None or frozen.goes_on(), saying=f"{frozen.trap}: going on")
        await self._end(frozen.worker)
        await finishing
        return []

    async def _end(self, worker: Child) -> None:
        self._tell_to_stop(worker)
        assert await worker.ended() == 0, worker.noise()

    def _tell_to_stop(self, worker: Child) -> None:
        # One that was frozen while it stopped may be gone already; told twice, it may have done with signals and die of
        # the second.
        if not worker.told_to_stop:
            with suppress(ProcessLookupError):
                worker.signal(signal.SIGTERM)

    async def run_all(self, traps: Iterator[Trap]) -> None:
        async with asyncio.TaskGroup() as group:
            for number, trap in enumerate(traps):
                group.create_task(self.run(f"{self.fired.total()}-{number:05}", trap))


class Frozen:
    """A worker that stands still, and the client that waits beside it."""

    def __init__(
        self, home: Home, trap: Trap, worker: Child, asking: asyncio.Future[int], state: Snapshot, *, inside: bool
    ) -> None:
        self.home = home
        self.trap = trap
        self.worker = worker
        self.asking = asking
        self.state = state
        self.inside = inside
        self.thawed = 0.0
        self._answers = len(worker.answers())
        #: It had started by then, and so takes a signal as a wish.
        self.was_claiming = any(line["verb"] == "claim" for line in worker.answers())

    def goes_on(self) -> bool:
        return any(line["verb"] == "claim" for line in self.worker.answers()[self._answers :])

    def begins_another_life(self) -> bool:
        verbs = [line["verb"] for line in self.worker.answers()[self._answers :]]
        return "register" in verbs and "claim" in verbs[verbs.index("register") :]

    def late_writes(self, finished: set[str], refused: Counter[str]) -> list[str]:
        """What was taken of it although it came too late; what was not is counted.

        What it had asked for before may have been done before, and only its answer was late.
        """
        taken = []
        dead = self.worker.caught not in ("register.enter", "retire.committed")
        for line in self.worker.answers()[self._answers :]:
            if line["verb"] == "register":
                dead = False
            elif line["verb"] == "claim" and dead and line["asked"] > self.thawed:
                refused["claim"] += 1
                taken += [f"a dead worker claimed {id!r}" for id in line["answer"]]
            elif line["verb"] == "heartbeat" and not line["answer"]:
                refused["heartbeat"] += 1
            elif line["verb"] == "commit" and line["answer"] == "lost":
                refused[line["turn"]] += 1
            elif line["verb"] == "commit" and line["answer"] == "busy":
                continue  # nothing was written: another one held the row
            elif line["verb"] == "commit" and line["run"] in finished and line["asked"] > self.thawed:
                taken.append(f"a late turn was taken: {line}")
        return taken


def traps(passed: list[str], points: tuple[str, ...], homes: Homes) -> Iterator[Trap]:
    """Every passing of every point; or, bounded, one of each; or, on a server, of some."""
    if not WHOLE and not homes.is_file and len(points) > SOME:
        points = tuple(random.sample([point for point in points if point in passed], SOME))
    for point, often in Counter(point for point in passed if point in points).items():
        for hit in random.sample(range(1, often + 1), often if WHOLE else 1):
            yield Trap(point=point, hit=hit, signal=signal.SIGSTOP)


def frozen_before(turn: str, hit: int) -> Trap:
    """The commit that carries the `hit`-th turn of a kind; an earlier one if there are fewer."""
    return Trap(point=f"turn.{turn}", hit=hit, signal=signal.SIGSTOP)


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_zombie_changes_nothing(processes: Family, homes: Homes, tmp_path: Path) -> None:
    zombies = Zombies(processes, homes, tmp_path)
    dry = await zombies.dry()
    assert set(OUTSIDE) <= set(dry.passed), "these points are never passed"
    await zombies.run_all(traps(dry.passed, OUTSIDE, homes))
    if not WHOLE and not homes.is_file:
        # Each of the few may have been where it had nothing to write.
        for _ in range(TRIES):
            if zombies.refused:
                return
            await zombies.run_all(iter([frozen_before(random.choice(TURNS), 1)]))
        raise AssertionError("nothing was refused")
    for number in range(TRIES):
        # A worker that is frozen right before such a turn leaves has one that is too late.
        await zombies.run_all(frozen_before(turn, number + 1) for turn in sorted(set(TURNS) - set(zombies.refused)))
        if set(zombies.refused) >= REFUSED:
            break
    assert set(OUTSIDE) <= set(zombies.fired), "these points never fired"
    assert set(zombies.refused) >= REFUSED, "these were never refused"


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_worker_frozen_inside_a_transaction_breaks_nothing_and_on_a_server_delays_no_other_worker(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    zombies = Zombies(processes, homes, tmp_path)
    await zombies.run_all(traps((await zombies.dry()).passed, INSIDE, homes))
    if WHOLE or homes.is_file:
        assert set(INSIDE) <= set(zombies.fired), "these points never fired"


@pytest.mark.timeout(7200 if WHOLE else 300)
async def test_a_worker_frozen_before_the_execution_of_what_it_has_prepared_delays_no_other_worker(
    processes: Family, tmp_path: Path
) -> None:
    """Where no limit of the server's ends its transaction, those who find it overdue do."""
    homes = Homes("postgres")
    zombies = Zombies(processes, homes, tmp_path)
    passed = (await zombies.dry()).passed
    for number in range(TRIES):
        await zombies.run_all(traps(passed, (PREPARED,), homes) if WHOLE or not number else some_more(passed))
        if zombies.locking:
            return
    raise AssertionError("no worker had locked anything")


def some_more(passed: list[str]) -> Iterator[Trap]:
    """Two passings of the point that is in the middle of transactions."""
    for hit in random.sample(range(1, passed.count(PREPARED) + 1), 2):
        yield Trap(point=PREPARED, hit=hit, signal=signal.SIGSTOP)
