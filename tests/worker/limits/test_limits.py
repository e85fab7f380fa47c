"""Limits of concurrency and rate, as a user has them, on every database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from perdure import Context, Fair, Handle, Limit, Retry, Status, UsageError, activity, workflow
from perdure.admin import PermitScope
from perdure.errors import InvalidName
from tests.helpers import eventually
from tests.stage import Stage
from tests.worker.crowd import Crowd

pytestmark = pytest.mark.every_database


async def is_now(run: Handle[Any], status: Status) -> bool:
    return await run.status() is status


async def test_no_more_are_executed_at_once_than_a_concurrency_allows(stage: Stage) -> None:
    crowd = Crowd()

    @activity("limits.visit.v1", limit=Limit(concurrency=3))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    engine = stage.engine(visit)
    runs = [await engine.start(visit(str(number))) for number in range(10)]
    async with engine.worker():
        await eventually(lambda: len(crowd.inside) == 3)
        waiting = await engine.runs.list(status=[Status.WAITING])
        assert {run.reason for run in waiting.runs} == {"limit"}
        [gate] = await engine.limits.list()
        assert (gate.name, gate.held, gate.waiting) == ("type:limits.visit.v1", 3, 7)
        crowd.let_out()
        assert [await run.result("20s") for run in runs] == [str(number) for number in range(10)]
    assert crowd.most == 3
    assert await stage.rows("SELECT * FROM perdure_permits") == []
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def test_a_limit_is_shared_by_its_name_and_apart_by_its_key(stage: Stage) -> None:
    crowd = Crowd()

    @activity("limits.one.v1", limit=Limit("external", concurrency=2))
    async def one(name: str) -> str:
        return await crowd.visit(name)

    @activity(
        "limits.other.v1",
        limit=[Limit("external", concurrency=2), Limit("tenant", key=lambda name: name[0], concurrency=1)],
    )
    async def other(name: str) -> str:
        return await crowd.visit(name)

    engine = stage.engine(one, other)
    runs = [await engine.start(other(name)) for name in ("a1", "a2", "a3")] + [await engine.start(one("b1"))]
    async with engine.worker():
        await eventually(lambda: sorted(crowd.inside) == ["a1", "b1"])
        crowd.let_out()
        assert [await run.result("20s") for run in runs] == ["a1", "a2", "a3", "b1"]
    assert crowd.most == 2


async def test_waiting_for_a_limit_uses_up_no_attempt_and_a_retry_makes_room_for_others(stage: Stage) -> None:
    tried: list[str] = []

    @activity("limits.flaky.v1", limit=Limit(concurrency=1), retry=Retry(attempts=2, initial=3, jitter=0))
    async def flaky(name: str) -> str:
        tried.append(name)
        if tried.count(name) == 1:
            raise OSError(name)
        return name

    engine = stage.engine(flaky)
    runs = [await engine.start(flaky(name)) for name in ("a", "b")]
    async with engine.worker():
        assert [await run.result("60s") for run in runs] == ["a", "b"]
    assert sorted(tried[:2]) == ["a", "b"], "the second had to wait for the first one's retry"
    assert [(await run.info()).attempt for run in runs] == [2, 2]


async def test_a_workflow_counts_until_its_end_however_long_it_waits(stage: Stage) -> None:
    @workflow("limits.patient.v1", limit=Limit("slots", concurrency=1))
    async def patient(ctx: Context) -> str:
        return await ctx.receive("go", str)

    engine = stage.engine(patient)
    first = await engine.start(patient())
    async with engine.worker():
        await eventually(lambda: is_now(first, Status.WAITING))
        second = await engine.start(patient())

        async def stands_in_line() -> bool:
            return (await second.info()).reason == "limit"

        await eventually(stands_in_line)
        assert "slots" in await second.why()
        await first.send("go", "now")
        assert await first.result("20s") == "now"
        await second.send("go", "then")
        # The run that ended reports its permit; the waiting run does not find it by polling.
        assert await second.result("10s") == "then"


async def test_a_limit_is_set_and_cleared_at_run_time(stage: Stage) -> None:
    crowd = Crowd()

    @activity("limits.plain.v1")
    async def plain(name: str) -> str:
        return await crowd.visit(name)

    engine = stage.engine(plain)
    await engine.limits.set("queue:default", concurrency=2)
    runs = [await engine.start(plain(str(number))) for number in range(5)]
    async with engine.worker():
        await eventually(lambda: len(crowd.inside) == 2)
        await engine.limits.set("queue:default", concurrency=3)
        await eventually(lambda: len(crowd.inside) == 3)
        await engine.limits.clear("queue:default")
        await eventually(lambda: len(crowd.inside) == 5)
        crowd.let_out()
        for run in runs:
            await run.result("20s")


async def test_a_key_with_many_waiting_runs_does_not_delay_others(stage: Stage) -> None:
    order: list[str] = []

    @activity(
        "limits.fair.v1",
        limit=Limit(concurrency=1),
        fair=Fair(lambda tenant: tenant, weight={"small": 1, "big": 2}.__getitem__),
    )
    async def fair(tenant: str) -> None:
        order.append(tenant)

    engine = stage.engine(fair)
    runs = [await engine.start(fair("big")) for _ in range(12)] + [await engine.start(fair("small")) for _ in range(4)]
    async with engine.worker():
        for run in runs:
            await run.result("20s")
    # The small one is served for every two of the big one, once both stand in line.
    assert order[:10].count("small") == 3


async def test_a_run_that_waits_for_a_limit_is_cancelled_at_once(stage: Stage) -> None:
    crowd = Crowd()

    @activity("limits.stop.v1", limit=Limit(concurrency=1), retry=Retry(attempts=3, initial=0.01))
    async def stop(name: str) -> str:
        if name == "fails" and name not in crowd.order:
            crowd.order.append(name)
            raise OSError(name)
        return await crowd.visit(name)

    engine = stage.engine(stop)
    async with engine.worker():
        again = await engine.start(stop("fails"))
        await eventually(lambda: "fails" in crowd.order)
        first = await engine.start(stop("first"))
        await eventually(lambda: crowd.inside == ["first"] or crowd.inside == ["fails"])
        second = await engine.start(stop("second"))
        for run in (second, again if crowd.inside == ["first"] else first):
            await run.cancel()
            await eventually(partial(is_now, run, Status.CANCELLED))
        crowd.let_out()


async def test_a_worker_that_cannot_tell_the_gates_signs_off_all_the_same(
    on_disk: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    crowd = Crowd()

    @activity("limits.stuck.v1", limit=Limit(concurrency=1))
    async def visit(name: str) -> str:
        return await crowd.visit(name)

    engine = on_disk.engine(visit)
    run = await engine.start(visit("a"))
    worker = engine.worker()
    await worker.start()
    await eventually(lambda: crowd.inside == ["a"])
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection:
        connection.execute(
            "CREATE TRIGGER stuck BEFORE DELETE ON perdure_permits BEGIN SELECT RAISE(ABORT, 'stuck'); END"
        )
    crowd.let_out()
    await worker.stop()
    assert "could not say what it has let go of" in caplog.text
    assert await on_disk.rows("SELECT status FROM perdure_workers") == [("stopped",)]
    # The step has ended and its permit is free, as its run shows.
    assert await run.result("10s") == "a"
    assert await on_disk.rows("SELECT COUNT(*) FROM perdure_permits") == [(1,)]
    assert [gate.held for gate in await engine.limits.list()] == [0]


def test_a_limit_that_limits_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="needs a concurrency"):
        Limit("nothing")
    with pytest.raises(UsageError, match="is not a rate"):
        Limit("odd", rate="often")
    with pytest.raises(UsageError, match="lets nothing pass"):
        Limit("none", rate="0/s")
    for rate in ("5/00s", "0.0/s", f"1/{'9' * 30}d", f"0.{'0' * 30}1/s"):
        with pytest.raises(UsageError, match="lets nothing pass"):
            Limit("none", rate=rate)
    for rate in ("9" * 5000 + "/s", f"5/{'9' * 5000}s"):
        with pytest.raises(UsageError, match="is not a rate"):
            Limit("odd", rate=rate)
    with pytest.raises(UsageError, match="at least 1"):
        Limit("none", concurrency=0)
    with pytest.raises(UsageError, match="needs a rate"):
        Limit("odd", concurrency=1, burst=2)
    with pytest.raises(InvalidName, match="cannot be a limit"):
        Limit("a/b", concurrency=1)
    with pytest.raises(UsageError, match="'lease' or 'run'"):
        Limit("odd", concurrency=1, hold="ever")
    assert Limit("fine", concurrency=1, hold="run").hold is PermitScope.RUN
