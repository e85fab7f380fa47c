"""Each kind of timeout, and signs of life that are lost, with workers that are killed or stopped, on each database."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from perdure import Engine, Handle, Status
from perdure.admin import Reason
from perdure.core.codec.failure import Failure
from tests.faults import app, errands, labour
from tests.faults.family import Child, Family
from tests.faults.homes import Home, Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

#: Of a worker whose end others wait for, in a test that counts attempts: a busy machine must not take the lease before
#: the kill.
SHORT = 2.0
#: Of the worker that ends the work, for which no test waits.
LONG = 60.0


class Office:
    """A directory in which workers run errands, and the client's view of it."""

    def __init__(self, processes: Family, home: Home, engine: Engine) -> None:
        self.engine = engine
        self.ledger = home.directory / "ledger"
        self._home = home
        self._directory = home.directory
        self._processes = processes

    async def worker(self, **options: Any) -> Child:
        worker = await self._processes.fork("work", self._directory, **options)
        await eventually(lambda: any(line["verb"] == "claim" for line in worker.answers()))
        return worker

    async def stop(self, worker: Child) -> None:
        """Let it stand still where it has nothing locked: a process that stands still inside a transaction keeps the
        file locked."""

        async def stands_aside() -> bool:
            worker.signal(signal.SIGSTOP)
            # Its other threads go on until the one that is told is scheduled, and may lock something in the meantime.
            assert await worker.stopped(), worker.noise()
            if not await self._home.is_locked():
                return True
            worker.signal(signal.SIGCONT)
            return False

        await eventually(stands_aside, saying="a worker that has nothing locked")

    async def send(self, name: str) -> tuple[Handle[str], Handle[Any]]:
        """A workflow that waits for an errand, and the errand."""
        run = await self.engine.start(errands.send(str(self.ledger), name))

        async def there() -> bool:
            return bool((await self.engine.runs.list(parent=run.id)).runs)

        await eventually(there, saying="the errand being there")
        return run, await self.engine.get(name)

    def begun(self, name: str) -> list[dict[str, Any]]:
        return [line for line in app.read(self.ledger) if line.get("run") == name]

    async def is_begun(self, name: str, times: int = 1) -> None:
        await eventually(lambda: len(self.begun(name)) >= times, saying=f"attempt {times} at {name}")

    def open_gate(self) -> None:
        labour.gate(str(self.ledger)).touch()


@asynccontextmanager
async def office(processes: Family, homes: Homes, directory: Path) -> AsyncIterator[Office]:
    async with homes.at(directory / "office") as home, Engine(home.url, WORKFLOWS) as engine:
        yield Office(processes, home, engine)


async def kinds_of_timeouts(errand: Handle[Any]) -> list[str]:
    states = [Failure.from_json(record.payload or "{}").state or "" for record in await errand.history()]
    return [kind for state in states for kind in ("start_to_close", "heartbeat") if f'"{kind}"' in state]


async def test_an_errand_whose_worker_is_killed_goes_on_from_its_last_sign_of_life(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with office(processes, homes, tmp_path) as place:
        first = await place.worker(lease=SHORT)
        run, errand = await place.send("walk")
        await place.is_begun("walk")

        async def has_said() -> bool:
            why = await errand.why()
            return "last sign of life" in why

        await eventually(has_said, saying="the first sign of life")
        first.signal(signal.SIGKILL)
        await first.ended()
        await place.worker(lease=LONG)
        await place.is_begun("walk", 2)
        place.open_gate()
        result = await run.result(30)
        # An attempt that was killed counts, uses up none of the policy, and left behind how far it had got.
        assert result.startswith("walk from ")
        assert not result.startswith("walk from None")
        assert "at attempt 2:" in result
        assert await errand.history() == []


async def test_an_errand_whose_worker_stands_still_is_done_by_another_and_nothing_of_the_first_is_taken(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with office(processes, homes, tmp_path) as place:
        first = await place.worker(lease=SHORT)
        run, errand = await place.send("walk")
        await place.is_begun("walk")
        await place.stop(first)
        second = await place.worker(lease=LONG)
        await place.is_begun("walk", 2)
        place.open_gate()
        result = await run.result(30)
        ended = await errand.info()
        first.signal(signal.SIGCONT)
        # It wakes up with a result of its own, or is told that it lost the run.
        await eventually(
            lambda: any(line["verb"] == "register" for line in first.answers()[1:]), saying="a new life of the first"
        )
        for worker in (first, second):
            worker.signal(signal.SIGTERM)
            assert await worker.ended() == 0, worker.noise()
        assert await errand.info() == ended
        assert result == place.begun("walk")[1]["value"]


async def test_an_attempt_that_takes_too_long_or_is_silent_is_made_again_also_by_another_worker(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with office(processes, homes, tmp_path) as place:
        first = await place.worker()
        slow, slow_errand = await place.send("dawdle")
        silent, silent_errand = await place.send("stand")
        # A busy machine may take the lease of the first attempt before its time is over, which is no timeout.
        await eventually(lambda: kinds_of_timeouts(slow_errand), saying="a timeout being recorded")
        await place.is_begun("dawdle", 2)
        # In the middle of a later attempt.
        first.signal(signal.SIGKILL)
        await first.ended()
        await place.worker()
        place.open_gate()
        await slow.result(30)
        await silent.result(30)
        made = [line["attempt"] for line in place.begun("dawdle")]
        assert made == list(range(1, len(made) + 1))
        assert len(made) >= 3
        assert (await kinds_of_timeouts(slow_errand))[0] == "start_to_close"
        assert (await kinds_of_timeouts(silent_errand))[:1] in (["heartbeat"], [])


async def test_an_errand_that_no_worker_begins_in_time_is_given_up_by_those_who_do_not_take_it(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with office(processes, homes, tmp_path) as place:
        able = await place.worker(queues=["elsewhere"])
        # The only one that could begin it stands still, and another one that could not sees to it.
        await place.stop(able)
        other = await place.worker()
        run, errand = await place.send("unbegun")
        assert await run.result(30) == "not started"
        assert (await errand.info()).status is Status.FAILED
        assert place.begun("unbegun") == []
        able.signal(signal.SIGKILL)
        await able.ended()
        assert other.code is None


async def test_an_errand_that_is_not_done_in_all_its_time_fails_though_its_worker_is_gone(
    processes: Family, homes: Homes, tmp_path: Path
) -> None:
    async with office(processes, homes, tmp_path) as place:
        first = await place.worker()
        run, errand = await place.send("late")
        await place.is_begun("late")
        await place.stop(first)
        await place.worker()
        assert await run.result(30) == "expired"
        ended = await errand.info()
        assert ended.status is Status.FAILED
        assert ended.finished_at >= ended.deadline
        first.signal(signal.SIGKILL)
        await first.ended()


async def test_an_errand_that_kills_its_workers_is_set_aside(processes: Family, homes: Homes, tmp_path: Path) -> None:
    async with office(processes, homes, tmp_path) as place:
        errand = await place.engine.start(errands.kill(str(place.ledger)), id="kill")
        deaths = 0
        while not await is_set_aside(errand):
            worker = await place.worker(poison_after=3)

            async def is_over(worker: Child = worker) -> bool:
                return worker.code is not None or await is_set_aside(errand)

            await eventually(is_over, saying="its end, or that of its worker")
            deaths += worker.code is not None
        # Each attempt counts, and none is a failure of the policy. A worker that got no processor for a lease has lost
        # the run before the function began.
        attempts = [line["attempt"] for line in place.begun("kill")]
        assert attempts == sorted({*attempts})
        assert (len(attempts), attempts[-1]) == (deaths, 3)


async def is_set_aside(errand: Handle[Any]) -> bool:
    row = await errand.info()
    return row.status is Status.BLOCKED and row.reason == Reason.POISON
