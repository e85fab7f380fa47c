"""Functions of keys and weights that raise: the run is blocked as one with broken code, and its neighbours go on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Context, Engine, Fair, Limit, Status, activity, workflow
from perdure.admin import Reason
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Workflow
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database

#: Arguments with which functions were called, and whether the code is corrected by now.
called: list[str] = []
corrected: list[bool] = []


@pytest.fixture(autouse=True)
def _reset() -> None:
    called.clear()
    corrected.clear()


def key(which: str) -> str:
    if which == "bad" and not corrected:
        raise LookupError("no tenant")
    return which


WEIGHTS = {"fine": 1.0, "good": 2.0, "late": 1.0}


def weight(key: str) -> float:
    return 1.0 if corrected else WEIGHTS[key]


def zero(key: str) -> float:
    return 1.0 if corrected or key != "bad" else 0.0


def same(which: str) -> str:
    return which


TURNS = Limit("turns", concurrency=1)


@activity("brokenkeys.keyed.v1", limit=Limit("keyed", concurrency=1, key=key))
async def keyed(which: str) -> str:
    called.append(which)
    return which


@activity("brokenkeys.fair.v1", limit=TURNS, fair=Fair(key))
async def fair(which: str) -> str:
    called.append(which)
    return which


@activity("brokenkeys.weighed.v1", limit=TURNS, fair=Fair(same, weight))
async def weighed(which: str) -> str:
    called.append(which)
    return which


@activity("brokenkeys.zero.v1", fair=Fair(same, zero))
async def weightless(which: str) -> str:
    called.append(which)
    return which


@workflow("brokenkeys.flow.v1", limit=[TURNS, Limit("keyed", concurrency=1, key=key)], block_on=[])
async def flow(ctx: Context, which: str) -> str:
    called.append(which)
    return which


KINDS: list[Activity[[str], str] | Workflow[[str], str]] = [keyed, fair, weighed, weightless, flow]
ERRORS = {keyed: "LookupError", fair: "LookupError", weighed: "KeyError", weightless: "UsageError", flow: "LookupError"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.type))
async def test_a_run_whose_key_or_weight_cannot_be_computed_is_blocked_alone(
    stage: Stage, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stage.engine(*KINDS)
    before, victim, after = [await engine.start(kind(one), id=one) for one in ("fine", "bad", "good")]
    with caplog.at_level(logging.ERROR, "perdure.worker"):
        async with engine.worker() as worker:
            await until(victim, Status.BLOCKED)
            assert [await run.result("60s") for run in (before, after)] == ["fine", "good"]
            assert await (await engine.start(kind("late"))).result("60s") == "late"
            assert not worker.errors
    run = await victim.info()
    assert (run.reason, sorted(called)) == (Reason.BROKEN, ["fine", "good", "late"])
    assert ERRORS[kind] in (run.error or "")
    assert "broken" in await _why(engine, "bad")
    [told] = [one.getMessage() for one in caplog.records if "run bad" in one.getMessage()]
    assert "is blocked: the key or weight of its limit cannot be computed" in told
    corrected.append(True)
    async with engine.worker():
        assert await victim.result("60s") == "bad"
    assert await stage.rows("SELECT * FROM perdure_permits") == []


async def _why(engine: Engine, run_id: str) -> str:
    return str(await (await engine.get(run_id)).why())


async def test_a_key_that_fails_in_the_middle_of_a_run_blocks_it_where_it_is(stage: Stage) -> None:
    failing: list[bool] = []

    def named(which: str) -> str:
        if failing:
            raise LookupError("no tenant")
        return which

    @workflow("brokenkeys.later.v1", limit=Limit("later", concurrency=1, key=named, hold="lease"))
    async def later(ctx: Context, which: str) -> str:
        called.append(which)
        return await ctx.receive("go", str)

    engine = stage.engine(later)
    run = await engine.start(later("a"), id="a")
    async with engine.worker():
        await until(run, Status.WAITING)
        failing.append(True)
        await run.send("go", "on")
        await until(run, Status.BLOCKED)
        assert (await run.info()).reason is Reason.BROKEN
    failing.clear()
    async with engine.worker():
        assert await run.result("60s") == "on"
