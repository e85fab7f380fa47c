"""Workers on one server, as tests of claiming need them: many at once, and idle ones."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

from perdure import Context, Cron, Engine, workflow
from perdure.core.model.claim import ClaimRequest
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.host import Host
from perdure.store import Store, open_store
from perdure.store.server.store import ServerStore
from perdure.testing.conformance.harness import ACTOR, OTHER_TYPE, TYPE, a_run, a_worker

CLAIMERS = 8


@workflow("idle.v1")
async def nothing_to_do(ctx: Context) -> None: ...


async def create_many(store: Store, count: int, letter: str = "r", **changes: object) -> None:
    """Runs called r000000 and so on."""
    for start in range(0, count, 1000):
        numbers = range(start, min(start + 1000, count))
        await store.create([a_run(f"{letter}{number:06}", **changes) for number in numbers], ACTOR)


def count_races(store: Store, races: Counter[str]) -> None:
    """Count the races that a store on a server loses on its own connections, by their errors."""
    if not isinstance(store, ServerStore):
        return
    is_race = store._is_race

    def counted(error: Exception) -> bool:
        lost = is_race(error)
        races.update([str(error)] if lost else [])
        return lost

    store._is_race = counted  # type: ignore[method-assign] # to look on


async def claimed_by_many(url: str, most: int, races: Counter[str] | None = None) -> Counter[str]:
    """How often each run was taken by eight claimers who take all there are, in no more than so many claims each.

    `races` is told of the races that they lost.
    """
    claimed: Counter[str] = Counter()

    async def work(name: str) -> None:
        mine = open_store(url, Host())
        if races is not None:
            count_races(mine, races)
        await mine.open()
        await mine.register(a_worker(name))
        for number in range(most):
            request = ClaimRequest(worker=name, nonce=f"{name}-{number}", limit=50, by_age=6, types=(TYPE, OTHER_TYPE))
            got = await mine.claim(request)
            assert len(got.runs) <= 50
            claimed.update(one.run.id for one in got.runs)
            turns = [Turn(lease=one.lease, next=Finish(Status.COMPLETED, "1")) for one in got.runs]
            # Another claimer that has just found out that a run is not ready any more may still have its row.
            while turns:
                verdicts = await mine.commit(turns, name)
                assert set(verdicts) <= {TurnOutcome.APPLIED, TurnOutcome.BUSY}
                turns = [turn for turn, verdict in zip(turns, verdicts, strict=True) if verdict is TurnOutcome.BUSY]
            if not got.runs and got.next_wake == NEVER:
                break
        await mine.close()

    await asyncio.gather(*(work(f"w{number}") for number in range(CLAIMERS)))
    return claimed


async def taken_of_timers(store: Store, count: int) -> int:
    """Of so many runs that become due at one instant, how many one worker takes in reasonably many claims."""
    await create_many(store, count, wake_at=await store.now() + 1)
    await store.register(a_worker())
    taken: set[str] = set()
    for number in range(count // 10):
        request = ClaimRequest(worker="w1", nonce=f"n{number}", limit=100, types=(TYPE,))
        taken.update(one.run.id for one in (await store.claim(request)).runs)
        if len(taken) == count:
            break
    return len(taken)


async def statements_of_idle_workers(url: str) -> Counter[str]:
    """What eight workers with nothing to do ask of the server in four seconds, by how it begins."""
    host = Host()
    stores = [open_store(url, host) for _ in range(8)]
    seen: list[str] = []
    engines = [Engine(url, [nothing_to_do], system=host, store=store) for store in stores]
    async with AsyncExitStack() as stack:
        for engine, store in zip(engines, stores, strict=True):
            await stack.enter_async_context(engine)
            await store.trace(seen.append)
            await stack.enter_async_context(engine.worker())
        # When it is due is known to all of them, and asked by none.
        await engines[0].schedules.create("yearly", nothing_to_do(), Cron("@yearly"))
        # Polls begin quickly and become slower while nothing happens.
        await asyncio.sleep(8)
        seen.clear()
        await asyncio.sleep(4)  # statements are counted over a time
        return Counter(text[:60] for text in seen)
