"""A pooler in transaction mode: each transaction may get another session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from perdure import Context, Engine, workflow
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.store.postgres.store import PostgresStore
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.servers.pgbouncer import Pgbouncer
from tests.servers.schemas import Schemas

ENGINES = 3
RUNS = 40


@pytest.fixture
async def through(pooler: Pgbouncer, schemas: Schemas) -> AsyncIterator[str]:
    """Return a URL that leads through the pooler."""
    async with schemas.one() as url:
        yield f"{pooler.dsn}?schema={url.rpartition('schema=')[2]}"


def a_store(url: str) -> PostgresStore:
    store = open_store(url, Host())
    assert isinstance(store, PostgresStore)
    return store


async def add(left: int, right: int) -> int:
    return left + right


@workflow("pooler.sum.v1")
async def summing(ctx: Context, numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total = await ctx.step(add, total, number)
    await ctx.sleep("1ms")
    return total + await ctx.receive("more", int)


async def test_engines_that_share_few_sessions_do_not_notice(through: str) -> None:
    stores = [a_store(through) for _ in range(ENGINES)]
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(Engine(through, [summing], store=Retrying(store, Host())))
            for store in stores
        ]
        for engine in engines:
            await stack.enter_async_context(engine.worker(slots=20))
        runs = [await engines[n % ENGINES].start(summing([n, 1, 2])) for n in range(RUNS)]
        await asyncio.gather(*(run.send("more", 10) for run in runs))
        assert [await run.result("60s") for run in runs] == [number + 13 for number in range(RUNS)]
        known = Known(starts=frozenset(run.id for run in runs), settled=frozenset())
        assert await scan_store(stores[0].query, known) == []
        # A store that learns of the pooler stops preparing statements.
        assert not all(store._prepares for store in stores)


@pytest.mark.usefixtures("straight")
async def test_statements_are_never_mistaken_for_those_of_others(store: PostgresStore, url: str) -> None:
    other = a_store(url)
    await other.open()
    names = []
    for one in (store, other):
        await one.create([a_run(f"r{id(one)}")], ACTOR)
        found = await one.query("SELECT name FROM pg_prepared_statements")
        names.append({name for (name,) in found if name})
    await other.close()
    assert all(names)
    assert not names[0] & names[1]
    assert all(name.startswith("perdure_") for name in names[0] | names[1])


async def test_verbs_in_flight_when_the_pooler_is_noticed_are_not_disturbed(through: str) -> None:
    store = a_store(through)
    await store.open()
    await asyncio.gather(*(store.create([a_run(f"r{number}")], ACTOR) for number in range(30)))

    async def is_noticed() -> bool:
        found = await asyncio.gather(*(store.get(f"r{number}") for number in range(30)))
        assert all(found)
        return not store._prepares

    # Which of the pooler's sessions a statement meets is chance.
    await eventually(is_noticed, saying="the pooler")
    await store.close()


async def test_a_pooler_that_is_restarted_is_found_again(pooler: Pgbouncer, through: str) -> None:
    store = a_store(through)
    reliable = Retrying(store, Host())
    await reliable.open()
    await reliable.create([a_run("r1")], ACTOR)
    before = await reliable.get("r1")
    assert before is not None
    pooler.kill()
    pooler.start()
    assert await reliable.get("r1") == before
    await reliable.close()
