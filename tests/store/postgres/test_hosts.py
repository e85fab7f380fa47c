"""Several hosts in one URL: the store uses the one that accepts writes."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from perdure import Context, Engine, Handle, Status, workflow
from perdure.errors import StoreReadOnly
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually
from tests.invariants import Known, scan_store
from tests.servers.postgres import Postgres, Standby
from tests.servers.private import Missing, skip_without
from tests.stage import until

CLOSED = "127.0.0.1:1"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Postgres, Standby]]:
    servers: list[Postgres] = []
    try:
        servers.append(primary := Postgres(durable=True))
        primary.create()
        servers.append(standby := Standby(primary))
        standby.create()
        yield primary, standby
    except Missing as missing:
        skip_without("two servers are needed", missing)
    finally:
        for server in servers:
            server.remove()


def url_of(*hosts: Postgres | str, options: str = "") -> str:
    places = [host if isinstance(host, str) else host.dsn.partition("@")[2].partition("/")[0] for host in hosts]
    return f"postgresql://postgres@{','.join(places)}/postgres{options}"


@workflow("hosts.patient.v1")
async def patient(ctx: Context) -> str:
    return await ctx.receive("word", str)


@pytest.mark.parametrize("options", ["", "?target_session_attrs=primary", "?target_session_attrs=read-write&pool=3"])
async def test_the_host_that_takes_writes_is_used(pair: tuple[Postgres, Standby], options: str) -> None:
    primary, standby = pair
    store = open_store(url_of(CLOSED, standby, primary, options=options), Host())
    await store.open()
    [answer] = await store.create([a_run(f"run {options}")], ACTOR)
    assert answer.created
    assert await store.query("SELECT pg_is_in_recovery()") == [(False,)]
    await store.close()


async def test_a_host_that_takes_no_writes_is_named_with_what_to_do(pair: tuple[Postgres, Standby]) -> None:
    primary, standby = pair
    store = open_store(url_of(primary), Host())
    await store.open()
    await store.close()
    await eventually(lambda: _has_caught_up(primary), saying="the standby knowing everything")
    store = open_store(url_of(standby), Host())
    await store.open()
    with pytest.raises(StoreReadOnly, match="point the URL at the primary"):
        await store.create([a_run("r1")], ACTOR)
    await store.close()


async def test_work_goes_on_when_another_host_takes_over(pair: tuple[Postgres, Standby]) -> None:
    primary, standby = pair
    url = url_of(primary, standby)
    async with Engine(url, [patient]) as engine, engine.worker(lease="30s"):
        runs: list[Handle[str]] = await engine.start_many([patient() for _ in range(10)])
        for run in runs:
            await until(run, Status.WAITING)
        await eventually(lambda: _has_caught_up(primary), saying="the standby knowing everything")
        primary.kill()
        standby.promote()
        for run in runs:
            await run.send("word", run.id)
        assert [await run.result("60s") for run in runs] == [run.id for run in runs]
    store = open_store(url_of(standby), Host())
    await Retrying(store, Host()).open()
    broken = await scan_store(store.query, Known(starts=frozenset(run.id for run in runs)))
    await store.close()
    assert broken == []


async def _has_caught_up(primary: Postgres) -> bool:
    connection = await asyncpg.connect(primary.dsn)
    try:
        return bool(
            await connection.fetchval("SELECT bool_and(replay_lsn = pg_current_wal_lsn()) FROM pg_stat_replication")
        )
    finally:
        await connection.close()
