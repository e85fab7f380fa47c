from __future__ import annotations

import asyncio
import datetime
import re

import msgspec
import pytest

from perdure import Context, Limit, RunCancelled, RunNotFound, Status, UsageError, activity, workflow
from perdure.admin import Reason, RecordKind, Run
from perdure.errors import InvalidCursor
from tests.helpers import eventually
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database


async def double(value: int) -> int:
    return value * 2


@workflow("look.double.v1")
async def doubling(ctx: Context, value: int) -> int:
    return await ctx.step(double, value)


@workflow("look.wait.v1")
async def waiting(ctx: Context) -> str:
    return await ctx.receive("go", str)


async def test_a_handle_by_id_knows_the_result_type_of_a_registered_workflow(stage: Stage) -> None:
    @workflow("look.tuple.v1")
    async def pair(ctx: Context) -> tuple[int, int]:
        return 1, 2

    engine = stage.engine(pair)
    async with engine.worker():
        await engine.start(pair(), id="one")
        by_id = await engine.get("one")
        assert await by_id.result("20s") == (1, 2)


async def test_a_handle_of_a_run_whose_code_is_not_here_gives_plain_values(on_disk: Stage) -> None:
    @workflow("look.tuple.v1")
    async def pair(ctx: Context) -> tuple[int, int]:
        return 1, 2

    async with on_disk.engine(pair) as engine, engine.worker():
        await (await engine.start(pair(), id="one")).result("20s")
    client = on_disk.engine()
    assert await (await client.get("one")).result("20s") == [1, 2]
    assert await (await client.get("one", pair)).result("20s") == (1, 2)


async def test_a_run_that_is_not_there_is_not_found(stage: Stage) -> None:
    engine = stage.engine(doubling)
    with pytest.raises(RunNotFound, match="'missing'"):
        await engine.get("missing")
    with pytest.raises(LookupError):
        await engine.runs.why("missing")


async def test_the_history_says_what_happened_in_order(stage: Stage) -> None:
    @workflow("look.story.v1")
    async def story(ctx: Context) -> int:
        first = await ctx.step(double, 1)
        word = await ctx.receive("word", str)
        await ctx.sleep("1ms")
        return await ctx.step(double, first + len(word))

    engine = stage.engine(story)
    async with engine.worker():
        run = await engine.start(story())
        await run.send("word", "abc")
        assert await run.result("20s") == 10
    history = await run.history()
    told = [
        (record.kind, record.location, record.payload) for record in history if record.kind is not RecordKind.MESSAGE
    ]
    assert told == [
        (RecordKind.STEP, "double", "2"),
        (RecordKind.TIMER, "sleep", None),
        (RecordKind.STEP, "double#2", "10"),
    ]
    assert [record.location for record in history if record.kind is RecordKind.MESSAGE] == ["word"]
    assert [record.seq for record in history] == list(range(4))
    assert [record.at for record in history] == sorted(record.at for record in history)


async def test_the_audit_trail_tells_the_life_of_a_run(stage: Stage) -> None:
    engine = stage.engine(doubling)
    async with engine.worker() as worker:
        run = await engine.start(doubling(1))
        await run.result("20s")
        events = await run.events()
        assert [event.kind for event in events] == ["created", "started", "completed"]
        assert events[0].actor.startswith("client:")
        assert events[1].actor == events[2].actor == worker.id
        assert msgspec.json.decode(events[0].data) == {"type": "look.double.v1"}


async def test_a_listing_goes_from_the_newest_run_to_the_oldest(stage: Stage) -> None:
    engine = stage.engine(doubling)
    ids = [(await engine.start(doubling(n))).id for n in range(5)]
    page = await engine.runs.list()
    assert [run.id for run in page.runs] == ids[::-1]
    assert page.cursor is None


async def test_a_cursor_leads_through_all_runs_once_though_new_ones_come(stage: Stage) -> None:
    engine = stage.engine(doubling)
    ids = {(await engine.start(doubling(n))).id for n in range(7)}
    seen: list[Run] = []
    page = await engine.runs.list(limit=3)
    seen += page.runs
    while page.cursor is not None:
        await engine.start(doubling(99))
        page = await engine.runs.list(limit=3, cursor=page.cursor)
        seen += page.runs
    assert len(seen) == 7
    assert {run.id for run in seen} == ids


async def test_runs_of_one_transaction_are_paged_without_loss(stage: Stage) -> None:
    engine = stage.engine(doubling)
    runs = await engine.start_many([doubling(n) for n in range(10)])
    first = await engine.runs.list(limit=6)
    second = await engine.runs.list(limit=6, cursor=first.cursor)
    assert {run.id for run in (*first.runs, *second.runs)} == {run.id for run in runs}
    assert (len(first.runs), len(second.runs), second.cursor) == (6, 4, None)


async def test_a_listing_is_filtered_by_what_is_asked_for(stage: Stage) -> None:
    @workflow("look.parent.v1")
    async def parent(ctx: Context) -> int:
        return await ctx.call(doubling(4))

    engine = stage.engine(doubling, waiting, parent)
    async with engine.worker(queues=["default", "other"]):
        done = await engine.start(doubling(1), id="done", queue="other")
        await done.result("20s")
        stuck = await engine.start(waiting(), id="stuck")
        await until(stuck, Status.WAITING)
        await (await engine.start(parent(), id="parent")).result("20s")

        async def ids(**filters: object) -> set[str]:
            # Any of its filters:
            return {run.id for run in (await engine.runs.list(**filters)).runs}  # type: ignore[arg-type] # filters by name

        assert await ids(status=Status.WAITING) == {"stuck"}
        assert await ids(status="waiting") == {"stuck"}
        assert await ids(status=[Status.WAITING, Status.COMPLETED]) == {
            "stuck",
            "done",
            "parent",
            "parent/look.double.v1",
        }
        assert await ids(status=[]) == set()
        assert await ids(type="look.wait.v1") == {"stuck"}
        assert await ids(queue="other") == {"done"}
        assert await ids(parent="parent") == {"parent/look.double.v1"}
        middle = _moment((await stuck.info()).created_at)
        assert await ids(created_before=middle) == {"done"}
        assert await ids(created_after=middle) == {"parent", "parent/look.double.v1"}


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_between_one_and_a_thousand_runs(on_disk: Stage, limit: int) -> None:
    engine = on_disk.engine(doubling)
    with pytest.raises(UsageError, match="between 1 and 1000"):
        await engine.runs.list(limit=limit)


@pytest.mark.parametrize("cursor", ["", "nonsense", "!!", "MTIz", "äöü"])
async def test_a_cursor_that_no_listing_returned_is_refused(on_disk: Stage, cursor: str) -> None:
    engine = on_disk.engine(doubling)
    with pytest.raises(InvalidCursor):
        await engine.runs.list(cursor=cursor)


async def test_why_names_the_reason_in_each_state(stage: Stage) -> None:
    @workflow("look.sleep.v1")
    async def sleeping(ctx: Context) -> None:
        await ctx.sleep("3d")

    @workflow("look.fail.v1")
    async def failing(ctx: Context) -> None:
        raise LookupError("no such customer")

    engine = stage.engine(doubling, waiting, sleeping, failing)
    idle = await engine.start(doubling(1))
    assert "no worker is alive" in await idle.why()
    later = await engine.start(doubling(1), at="3d")
    assert "scheduled" in await later.why()
    async with engine.worker():
        elsewhere = await engine.start(doubling(1), queue="other")
        assert "no live worker takes the queue 'other'" in await elsewhere.why()
        await idle.result("20s")
        assert (await idle.why()).startswith("It completed")
        receiving = await engine.start(waiting())
        await until(receiving, Status.WAITING)
        assert "It waits for message 'go' since " in await receiving.why()
        asleep = await engine.start(sleeping())
        await until(asleep, Status.WAITING)
        assert re.match(r"It sleeps until \w+day \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(in ", await asleep.why())
        failed = await engine.start(failing())
        await until(failed, Status.FAILED)
        assert "LookupError: no such customer" in await failed.why()
        await receiving.cancel("not needed")
        await until(receiving, Status.CANCELLED)
        assert "cancelled" in await receiving.why()


async def test_why_of_a_run_that_no_worker_serves_says_so(on_disk: Stage) -> None:
    client = on_disk.engine(doubling)
    run = await client.start(doubling(1))
    other = on_disk.engine(waiting)
    async with other.worker():
        assert "none of the 1 live worker(s) serves the type 'look.double.v1'" in await run.why()


async def test_why_of_a_running_run_names_its_worker(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        entered.set()
        await go_on.wait()

    @workflow("look.hold.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = stage.engine(holding)
    async with engine.worker() as worker:
        run = await engine.start(holding())
        await entered.wait()
        assert worker.id in await run.why()
        go_on.set()
        await run.result("20s")


async def test_a_waiting_run_says_what_it_waits_for(stage: Stage) -> None:
    @workflow("look.child.v1")
    async def calling(ctx: Context) -> str:
        return await ctx.call(waiting())

    engine = stage.engine(waiting, calling)
    async with engine.worker():
        run = await engine.start(calling(), id="parent")
        await until(run, Status.WAITING)
        assert (await run.info()).reason is Reason.CHILD
        child = await engine.get("parent/look.wait.v1")
        await until(child, Status.WAITING)
        assert (await run.why()).startswith(
            "It waits for its child 'parent/look.wait.v1' (look.wait.v1). "
            "Of that child: It waits for message 'go' since "
        )
        assert (await child.info()).reason is Reason.MESSAGE
        assert (await child.info()).parent_id == "parent"


@activity("look.limited.v1", limit=Limit("look", key=lambda name: name, concurrency=1))
async def limited(name: str) -> str:
    return name


@workflow("look.holder.v1", limit=Limit("look", key=lambda name: name, concurrency=1))
async def holder(ctx: Context, name: str) -> str:
    return await ctx.call(limited(name))


@workflow("look.grandparent.v1")
async def grandparent(ctx: Context) -> str:
    return await ctx.call(holder("a"))


async def test_the_explanation_of_a_child_is_as_good_as_its_own(stage: Stage) -> None:
    engine = stage.engine(limited, holder, grandparent)
    async with engine.worker():
        run = await engine.start(grandparent(), id="parent")
        await until(run, Status.WAITING)
        parent = await engine.get("parent/look.holder.v1")
        await until(parent, Status.WAITING)
        child = await engine.get("parent/look.holder.v1/look.limited.v1")
        await until(child, Status.WAITING)
        assert (await child.info()).reason is Reason.LIMIT
        why = await run.why()
        assert why.startswith(
            "It waits for its child 'parent/look.holder.v1' (look.holder.v1). Of that child: It waits"
        )
        assert "Of that child: It has waited " in why
        assert (
            "for the limit 'look/a' (1 of 1 permits in use); no run of its type is ahead of it; "
            "1 run or step waits for this limit." in why
        )
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result("20s")


@activity("look.paced.v1", limit=Limit("paced", rate="1/h", burst=1))
async def paced() -> None: ...


async def test_the_explanation_counts_the_runs_that_wait_for_a_limit(stage: Stage) -> None:
    engine = stage.engine(paced)
    runs = await engine.start_many([paced()] * 4)
    async with engine.worker():

        async def all_wait() -> bool:
            return [await run.status() for run in runs].count(Status.WAITING) == 3

        await eventually(all_wait, saying="three runs on the waitlist")
        whys = sorted([await run.why() for run in runs])
        limit = "for the limit 'paced' (0.000277778 a second, 1 in a burst); "
        for count, ahead in enumerate(("no run of its type is", "1 run of its type is", "2 runs of its type are")):
            [why] = [one for one in whys if f"{limit}{ahead} ahead of it; 3 runs and steps wait for this limit." in one]
            assert why.startswith("It has waited "), count


async def test_the_fleet_is_listed_with_its_workers(stage: Stage) -> None:
    engine = stage.engine(doubling, waiting)
    async with engine.worker(slots=7, queues=["a", "b"]) as worker:
        [info] = await engine.workers.list()
        assert (info.id, info.slots, info.queues) == (worker.id, 7, ("a", "b"))
        assert info.types == ("look.double.v1", "look.wait.v1")


def _moment(microseconds: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=microseconds)
