from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest

from perdure import Context, Every, Retry, Status, activity, workflow
from perdure.core.model.attributes import make_attribute, past_prefix
from perdure.errors import InvalidCursor, RunFailed, UsageError
from perdure.store.sql.runs.attributes import set_attributes
from tests.helpers import eventually
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database


class Tier(StrEnum):
    GOLD = "gold"


async def nothing() -> None: ...


@workflow("attributes.order.v1")
async def order(ctx: Context, customer: str) -> str:
    ctx.set_attributes({"customer": customer, "phase": "new", "tries": 1})
    await ctx.step(nothing)
    ctx.set_attributes({"phase": "paid", "tries": None, "at": datetime(2026, 1, 1, tzinfo=UTC)})
    await ctx.receive("go")
    ctx.set_attributes({"phase": "done"})
    return customer


@activity("attributes.ship.v1")
async def ship(number: int) -> int:
    return number


@workflow("attributes.family.v1")
async def family(ctx: Context) -> list[str]:
    await ctx.call(ship(1), id="called", attributes={"place": "called"})
    child = ctx.spawn(ship(2), id="spawned", attributes={"place": "spawned"})
    started = ctx.start(ship(3), id="started", attributes={"place": "started"})
    await child
    return [started]


@workflow("attributes.failing.v1", retry=Retry(attempts=2, initial=0.01))
async def failing(ctx: Context) -> None:
    ctx.set_attributes({"seen": True})
    raise RuntimeError("the Card was declined")


@workflow("attributes.again.v1")
async def again(ctx: Context, left: int) -> int:
    ctx.set_attributes({"left": left, f"round{left}": True})
    if left:
        ctx.continue_as_new(again(left - 1))
    return left


@workflow("attributes.wrong.v1")
async def wrong(ctx: Context) -> str:
    try:
        ctx.set_attributes({"amount": math.nan})
    except UsageError as error:
        return str(error)
    return ""


async def test_a_run_is_found_by_what_its_start_and_its_code_said(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order("acme"), id="o1", attributes={"origin": "web", "customer": "unknown"})
        await until(run, Status.WAITING)
        found = await run.info()
        expected = {"at": datetime(2026, 1, 1, tzinfo=UTC), "customer": "acme", "origin": "web", "phase": "paid"}
        assert found.attributes == expected
        page = await engine.runs.list(attributes={"customer": "acme", "origin": ("prefix", "we")})
        assert [(one.id, one.attributes) for one in page.runs] == [("o1", expected)]
        await run.send("go")
        assert await run.result() == "acme"
    assert ((await run.info()).attributes or {})["phase"] == "done"


async def test_another_worker_that_replays_the_run_changes_nothing(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order("acme"))
        await until(run, Status.WAITING)
    before = await stage.rows("SELECT * FROM perdure_attributes ORDER BY name")
    # A replay that set it again would be seen.
    assert stage.store is not None
    by_hand = {run.id: {"phase": make_attribute("phase", "by hand")}}
    await stage.store._write("attributes", "test", lambda tx: set_attributes(tx, by_hand))
    async with engine.worker(resident=0):
        await engine.send(run.id, "other")
        await eventually(lambda: _has_read(stage, run.id))
    after = await stage.rows("SELECT * FROM perdure_attributes ORDER BY name")
    assert [row[:3] for row in after] == [row[:3] for row in before]
    assert ((await run.info()).attributes or {})["phase"] == "by hand"


async def _has_read(stage: Stage, run_id: str) -> bool:
    [(status, unread)] = await stage.rows("SELECT status, inbox_seq - inbox_read FROM perdure_runs")
    return bool(status == "waiting" and unread == 0)


async def test_children_and_started_runs_have_their_own(stage: Stage) -> None:
    engine = stage.engine(family, ship)
    async with engine.worker():
        run = await engine.start(family(), attributes={"place": "root"})
        await run.result()
        await (await engine.get("started")).result()
    for name in ("called", "spawned", "started"):
        page = await engine.runs.list(attributes={"place": name})
        assert [one.id for one in page.runs] == [name]
    assert [one.id for one in (await engine.runs.list(roots=True, order="oldest")).runs] == [run.id, "started"]


async def test_attempts_generations_and_forks_keep_them(stage: Stage) -> None:
    engine = stage.engine(failing, again)
    async with engine.worker():
        run = await engine.start(failing(), id="f", attributes={"customer": "acme"})
        with pytest.raises(RunFailed):
            await run.result()
        kept = {"customer": "acme", "seen": True}
        assert (await run.info()).attributes == kept
        assert [one.id for one in (await engine.runs.list(error="card WAS", attributes={"seen": True})).runs] == ["f"]
        fork = await run.fork(id="g")
        assert ((await fork.info()).attributes or {})["customer"] == "acme"
        with pytest.raises(RunFailed):
            await fork.result()
        await run.retry()
        with pytest.raises(RunFailed):
            await run.result()
        assert (await run.info()).attributes == kept
        rounds = await engine.start(again(2))
        assert await rounds.result() == 0
        assert (await rounds.info()).attributes == {"left": 0, "round0": True, "round1": True, "round2": True}


async def test_a_schedule_gives_its_runs_attributes(stage: Stage) -> None:
    engine = stage.engine(ship)
    schedules = engine.schedules
    await schedules.create("nightly", ship(1), Every("1h"), attributes={"origin": "nightly"})
    with pytest.raises(UsageError, match="attribute 'origin'"):
        await schedules.change("nightly", attributes={"origin": object()})  # type: ignore[dict-item] # what is refused
    await schedules.trigger("nightly")
    await schedules.change("nightly", attributes={"origin": "changed"})
    await schedules.trigger("nightly")
    await schedules.change("nightly", timing=Every("2h"))
    await schedules.trigger("nightly")
    await schedules.change("nightly", attributes=None)
    await schedules.trigger("nightly")
    page = await engine.runs.list(schedule="nightly", order="oldest")
    assert [one.attributes for one in page.runs] == [
        {"origin": "nightly"}, {"origin": "changed"}, {"origin": "changed"}, {}
    ]  # fmt: skip


async def test_many_runs_are_started_with_the_same(stage: Stage) -> None:
    engine = stage.engine(ship)
    await engine.start_many([ship(number) for number in range(3)], attributes={"batch": 7})
    assert len((await engine.runs.list(attributes={"batch": 7})).runs) == 3


async def test_a_page_is_full_however_many_runs_are_in_between(stage: Stage) -> None:
    engine = stage.engine(ship, order)
    await engine.start_many([ship(0)], ids=["first"])
    await engine.start_many([order("x") for _ in range(40)])
    await engine.start_many([ship(0)], ids=["last"])
    page = await engine.runs.list(type="attributes.ship.v1", limit=2)
    assert [one.id for one in page.runs] == ["last", "first"]
    part = await engine.runs.list(type="attributes.ship.v1", limit=2, scan=10)
    assert [one.id for one in part.runs] == ["last"]
    assert part.cursor is not None
    rest = await engine.runs.list(type="attributes.ship.v1", limit=2, cursor=part.cursor)
    assert [one.id for one in rest.runs] == ["first"]
    back = await engine.runs.list(type="attributes.ship.v1", limit=2, cursor=rest.previous)
    assert [one.id for one in back.runs] == ["last"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (math.nan, "finite"),
        (-math.inf, "finite"),
        (2**53 + 1, "as text"),
        (-(10**400), "as text"),
        ("\0", "NUL"),
        ("\ud800", "surrogate"),
        ("x" * 256, "256 bytes"),
        ("\N{GRINNING FACE}" * 64, "256 bytes"),
        (datetime(2026, 1, 1), "time zone"),
        (date(2026, 1, 1), "type date"),
        (Decimal(1), "type Decimal"),
        (b"x", "type bytes"),
        ([1], "type list"),
        (None, "type NoneType"),
    ],
)
async def test_a_value_that_no_index_can_hold_is_refused(stage: Stage, value: Any, problem: str) -> None:
    engine = stage.engine(ship)
    with pytest.raises(UsageError, match=problem):
        await engine.start(ship(1), attributes={"amount": value})
    assert (await engine.runs.list()).runs == ()


@pytest.mark.parametrize("name", ["", "a/b", " a", "x" * 101, "\0", 7])
async def test_a_name_that_is_none_is_refused(stage: Stage, name: Any) -> None:
    with pytest.raises(UsageError):
        await stage.engine(ship).start(ship(1), attributes={name: 1})


async def test_too_many_at_once_and_other_things_are_refused(stage: Stage) -> None:
    engine = stage.engine(ship)
    for given in ({f"a{number}": 1 for number in range(51)}, ["a"], "a=1"):
        with pytest.raises(UsageError, match="attributes"):
            await engine.start(ship(1), attributes=given)  # type: ignore[arg-type] # what is refused


@pytest.mark.parametrize(
    "wanted",
    [
        {"a": ("~", 1)},
        {"a": ["x", "y"]},
        {"a": ("in", "text")},
        {"a": ("in", [1, "x"])},
        {"a": ("in", list(range(51)))},
        {"a": ("prefix", 1)},
        {"a": ("<", True)},
        {"a": None},
        ["a"],
    ],
)
async def test_a_filter_that_makes_no_sense_is_refused(stage: Stage, wanted: Any) -> None:
    with pytest.raises(UsageError, match="attribute"):
        await stage.engine(ship).runs.list(attributes=wanted)


async def test_other_filters_that_make_no_sense_are_refused(stage: Stage) -> None:
    engine = stage.engine(ship)
    wrong_ones: list[dict[str, Any]] = [
        {"order": "random"}, {"error": ""}, {"roots": 1}, {"id_prefix": 1}, {"scan": 0}, {"colour": "red"}
    ]  # fmt: skip
    for wanted in wrong_ones:
        with pytest.raises(UsageError):
            await engine.runs.list(**wanted)
    for cursor in ("PDw", "PT0x", "W1s"):
        with pytest.raises(InvalidCursor):
            await engine.runs.list(cursor=cursor)


async def test_a_wrong_value_in_workflow_code_is_an_error_there(stage: Stage) -> None:
    engine = stage.engine(wrong)
    async with engine.worker():
        assert "attribute 'amount' is nan" in await (await engine.start(wrong())).result()


async def test_text_of_a_subclass_is_plain_text(stage: Stage) -> None:
    engine = stage.engine(ship)
    run = await engine.start(ship(1), attributes={"tier": Tier.GOLD})
    [(name, value)] = ((await run.info()).attributes or {}).items()
    assert (name, value, type(value)) == ("tier", "gold", str)
    assert len((await engine.runs.list(attributes={"tier": Tier.GOLD})).runs) == 1


def test_the_end_of_a_prefix_is_the_next_code_point() -> None:
    assert past_prefix("ab") == "ac"
    assert past_prefix("a\ud7ff") == "a\ue000"
    assert past_prefix("a\U0010ffff") == "b"
    assert past_prefix("\U0010ffff") is None
    assert past_prefix("") is None
