from __future__ import annotations

import asyncio
import inspect
from random import Random

import pytest

from perdure.store import Store
from tests.simulation.faults import READING_VERBS, WRITING_VERBS, FaultStore
from tests.simulation.loop import Process, SimLoop, Violation


def new_loop(seed: int = 0) -> SimLoop:
    return SimLoop(Random(seed))  # type: ignore[abstract] # the rest of a loop is never used


async def ticking(name: str, log: list[str], times: int = 4) -> None:
    for _ in range(times):
        log.append(name)
        await asyncio.sleep(0)


def interleaving(seed: int) -> list[str]:
    loop = new_loop(seed)
    log: list[str] = []

    async def main() -> None:
        tasks = [loop.create_task(ticking(name, log), context=Process(name).context()) for name in "abc"]
        await asyncio.wait(tasks)

    loop.run(main(), Process("main"))
    return log


def test_the_same_seed_gives_the_same_order() -> None:
    assert interleaving(3) == interleaving(3)


def test_other_seeds_give_other_orders() -> None:
    assert len({tuple(interleaving(seed)) for seed in range(20)}) > 5


def test_callbacks_of_one_lane_run_in_order() -> None:
    for seed in range(20):
        loop = new_loop(seed)
        log: list[int] = []

        async def main(loop: SimLoop = loop, log: list[int] = log) -> None:
            for number in range(5):
                loop.call_soon(log.append, number)
            await asyncio.sleep(1)

        loop.run(main(), Process("main"))
        assert log == [0, 1, 2, 3, 4]


def test_time_jumps_to_the_next_timer() -> None:
    loop = new_loop()

    async def main() -> float:
        async with asyncio.timeout(7200):
            await asyncio.sleep(3600)
        return loop.time()

    assert loop.run(main(), Process("main")) == 3600


def test_asyncio_works_on_it() -> None:
    loop = new_loop()

    async def slow(value: int) -> int:
        await asyncio.sleep(value)
        return value

    async def main() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(slow(value)) for value in (3, 1, 2)]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await slow(2)
        return [*[task.result() for task in tasks], *await asyncio.gather(slow(1), slow(2))]

    assert loop.run(main(), Process("main")) == [3, 1, 2, 1, 2]


def test_a_killed_process_never_runs_again() -> None:
    loop = new_loop()
    victim = Process("victim")
    log: list[str] = []

    async def main() -> None:
        loop.create_task(ticking("still here", log, 1000), context=victim.context())
        for _ in range(20):
            await asyncio.sleep(0)
        loop.kill(victim)
        heard = len(log)
        await asyncio.sleep(60)
        assert len(log) == heard < 1000

    loop.run(main(), Process("main"))
    loop.close()


def test_a_stalled_process_goes_on_where_it_was() -> None:
    loop = new_loop()
    victim = Process("victim")
    moments: list[float] = []

    async def sleeper() -> None:
        while True:
            await asyncio.sleep(1)
            moments.append(loop.time())

    async def main() -> None:
        loop.create_task(sleeper(), context=victim.context())
        await asyncio.sleep(2.5)
        victim.main.stalls += 1
        await asyncio.sleep(10)
        victim.main.stalls -= 1
        await asyncio.sleep(2)

    loop.run(main(), Process("main"))
    loop.close()
    assert moments == [1, 2, 12.5, 13.5]


def test_waiting_for_what_can_never_happen_is_a_violation() -> None:
    loop = new_loop()

    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Violation, match="deadlock"):
        loop.run(main(), Process("main"))
    loop.close()


def test_a_violation_in_a_task_is_not_lost_when_the_task_is() -> None:
    loop = new_loop()

    async def broken() -> None:
        try:
            loop.violations.append("broken")
            raise Violation("broken")
        except BaseException:
            await asyncio.sleep(1)

    async def main() -> None:
        loop.create_task(broken())
        await asyncio.sleep(10)

    with pytest.raises(Violation, match="broken"):
        loop.run(main(), Process("main"))
    loop.close()


def test_a_callback_that_raises_is_a_violation() -> None:
    loop = new_loop()

    def broken() -> None:
        raise ZeroDivisionError("oh")

    async def main() -> None:
        loop.call_soon(broken)
        await asyncio.sleep(1)

    with pytest.raises(Violation, match="ZeroDivisionError: oh"):
        loop.run(main(), Process("main"))
    loop.close()


def test_a_simulated_process_has_every_verb_of_a_store() -> None:
    verbs = {name for name, value in inspect.getmembers(Store) if inspect.iscoroutinefunction(value)}
    assert verbs <= {*READING_VERBS, *WRITING_VERBS, *vars(FaultStore)}
