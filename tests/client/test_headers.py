"""Headers: texts that travel with a run to its steps, children and activities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure import Activity, Context, Every, Limit, Status, activity, activity_info, blocking, step_info, workflow
from perdure.core.limits.call_limits import has_call_limits
from perdure.core.model.headers import check_headers, headers_of, inherit_headers, with_headers
from perdure.errors import DecodeError, RunFailed, UsageError
from perdure.workflow.run_settings import RunSettings
from tests.stage import Stage, until
from tests.worker.damage import damage
from tests.workflow.crunching import headers_here

Found = dict[str, dict[str, str]]


async def in_step() -> dict[str, str]:
    return dict(step_info().headers)


def in_thread() -> dict[str, str]:
    return dict(step_info().headers)


async def in_transaction(connection: object) -> dict[str, str]:
    return dict(step_info().headers)


@activity("headers.leaf.v1")
async def leaf() -> dict[str, str]:
    return dict(activity_info().headers)


leaf_in_process: Activity[[], dict[str, str]] = activity("headers.process_leaf.v1", process=True)(headers_here)


@workflow("headers.child.v1")
async def child(ctx: Context) -> Found:
    return {"child": dict(ctx.headers), "grandchild": await ctx.call(leaf())}


@workflow("headers.all.v1")
async def everywhere(ctx: Context) -> Found:
    found = {"workflow": dict(ctx.headers)}
    found["step"] = await ctx.step(in_step)
    found["thread"] = await ctx.step(in_thread)
    found["transaction"] = await ctx.transaction(in_transaction)
    found["activity"] = await ctx.call(leaf())
    found |= await ctx.call(child())
    spawned = ctx.spawn(leaf())
    found["spawned"] = await spawned
    ctx.start(child(), id="independent")
    return found


@workflow("headers.blocking.v1")
def from_def(ctx: blocking.Context) -> Found:
    return {"workflow": dict(ctx.headers), "thread": ctx.step(in_thread), "activity": ctx.call(leaf())}


HEADERS = {"tenant": "acme", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "city": "Köln"}


async def test_headers_reach_steps_children_and_activities(stage: Stage) -> None:
    async with stage.engine(everywhere, child, leaf) as engine, engine.worker():
        run = await engine.start(everywhere(), headers=HEADERS)
        found = await run.result()
        assert found == dict.fromkeys(found, HEADERS)
        assert len(found) == 8
        assert (await run.info()).headers == HEADERS
        assert await (await engine.get("independent")).result() == {"child": HEADERS, "grandchild": HEADERS}


async def test_a_run_without_headers_has_none_and_stores_nothing(stage: Stage) -> None:
    async with stage.engine(everywhere, child, leaf) as engine, engine.worker():
        found = await (await engine.start(everywhere())).result()
        assert found == {place: {} for place in found}
        assert await stage.rows("SELECT DISTINCT options FROM perdure_runs") == [("{}",)]
        await (await engine.start(leaf(), headers={})).result()
        assert await stage.rows("SELECT DISTINCT options FROM perdure_runs") == [("{}",)]


async def test_a_def_workflow_has_headers(stage: Stage) -> None:
    async with stage.engine(from_def, leaf) as engine, engine.worker():
        found = await (await engine.start(from_def(), headers=HEADERS)).result()
        assert found == dict.fromkeys(found, HEADERS)


@workflow("headers.process.v1")
async def processes(ctx: Context) -> list[dict[str, str]]:
    return [await ctx.options(process=True).step(headers_here), await ctx.call(leaf_in_process())]


async def test_headers_reach_processes(on_disk: Stage) -> None:
    async with on_disk.engine(processes, leaf_in_process) as engine, engine.worker(step_processes=1):
        assert await (await engine.start(processes(), headers=HEADERS)).result("60s") == [HEADERS, HEADERS]


@workflow("headers.overrides.v1")
async def overrides(ctx: Context) -> list[dict[str, str]]:
    spawned = ctx.spawn(leaf(), headers={"user": "eve"})
    ctx.start(leaf(), id="started", headers={"tenant": "other"})
    return [await ctx.call(leaf(), headers={"tenant": "globex", "more": "1"}), await spawned, dict(ctx.headers)]


async def test_a_child_may_have_other_headers_besides_the_inherited_ones(stage: Stage) -> None:
    async with stage.engine(overrides, leaf) as engine, engine.worker():
        run = await engine.start(overrides(), headers={"tenant": "acme", "user": "ada"})
        assert await run.result() == [
            {"tenant": "globex", "user": "ada", "more": "1"},
            {"tenant": "acme", "user": "eve"},
            {"tenant": "acme", "user": "ada"},
        ]
        assert await (await engine.get("started")).result() == {"tenant": "other", "user": "ada"}


async def test_a_child_gets_headers_of_its_own_from_a_parent_without_any(stage: Stage) -> None:
    async with stage.engine(overrides, leaf) as engine, engine.worker():
        assert await (await engine.start(overrides())).result() == [
            {"tenant": "globex", "more": "1"},
            {"user": "eve"},
            {},
        ]


@workflow("headers.too_many.v1")
async def too_many(ctx: Context) -> str:
    try:
        await ctx.call(leaf(), headers={f"child{number}": "" for number in range(20)})
    except UsageError as error:
        return str(error)
    return "started"


async def test_inherited_and_given_headers_are_counted_together(stage: Stage) -> None:
    async with stage.engine(too_many, leaf) as engine, engine.worker():
        run = await engine.start(too_many(), headers={f"parent{number}": "" for number in range(20)})
        assert "40 headers are too many" in await run.result()


@workflow("headers.again.v1")
async def again(ctx: Context, left: int) -> dict[str, str]:
    if left:
        ctx.continue_as_new(again(left - 1))
    return await ctx.step(in_step)


async def test_headers_outlast_continue_as_new(stage: Stage) -> None:
    async with stage.engine(again) as engine, engine.worker():
        assert await (await engine.start(again(2), headers=HEADERS)).result() == HEADERS


failing: set[str] = set()


@workflow("headers.fails.v1")
async def fails(ctx: Context) -> dict[str, str]:
    found = await ctx.step(in_step)
    if ctx.run_id in failing:
        raise ValueError("not yet")
    return {**found, "again": str(ctx.headers == found)}


@activity("headers.fails_as_activity.v1", retry=1)
async def fails_as_activity() -> dict[str, str]:
    info = activity_info()
    if info.run_id in failing:
        raise ValueError("not yet")
    return dict(info.headers)


async def test_headers_outlast_a_retry_and_a_fork(stage: Stage) -> None:
    async with stage.engine(fails, fails_as_activity) as engine, engine.worker():
        failing.update({"one", "two"})
        one = await engine.start(fails(), id="one", headers={"tenant": "acme"})
        two = await engine.start(fails_as_activity(), id="two", headers={"tenant": "acme"})
        for run in (one, two):
            with pytest.raises(RunFailed):
                await run.result()
        failing.clear()
        fork = await one.fork(from_step="in_step")
        assert await fork.result() == {"tenant": "acme", "again": "True"}
        await one.retry()
        assert await one.result() == {"tenant": "acme", "again": "True"}
        await two.retry(start_to_close="1m", retry=3)
        assert await two.result() == {"tenant": "acme"}


async def test_the_runs_of_a_schedule_have_its_headers(stage: Stage) -> None:
    async with stage.engine(leaf, child) as engine:
        made = await engine.schedules.create("nightly", leaf(), Every("1d"), headers={"tenant": "acme"})
        assert made.headers == {"tenant": "acme"}
        run = await engine.schedules.trigger("nightly")
        changed = await engine.schedules.change("nightly", call=child())
        assert (changed.type, changed.headers) == ("headers.child.v1", {"tenant": "acme"})
        assert (await engine.schedules.change("nightly", priority=3)).headers == {"tenant": "acme"}
        assert (await engine.schedules.change("nightly", headers={"tenant": "b"})).headers == {"tenant": "b"}
        assert (await engine.schedules.change("nightly", headers=None)).options == "{}"
        async with engine.worker():
            assert await run.result() == {"tenant": "acme"}


async def test_many_runs_are_started_with_the_same_headers(stage: Stage) -> None:
    async with stage.engine(leaf) as engine, engine.worker():
        runs = await engine.start_many([leaf(), leaf()], headers=HEADERS)
        assert [await run.result() for run in runs] == [HEADERS, HEADERS]


def test_the_blocking_engine_takes_headers(on_disk: Stage) -> None:
    with blocking.Engine(on_disk.url, [leaf]) as engine, engine.worker():
        assert engine.start(leaf(), headers=HEADERS).result() == HEADERS


@activity("headers.limited.v1", limit=Limit("headers", concurrency=1))
async def limited() -> dict[str, str]:
    return dict(activity_info().headers)


async def test_headers_with_the_names_of_settings_are_headers_only(stage: Stage) -> None:
    names = {"limits": "a", "breaker": "b", "fair": "c", "single": "d", "headers": "e", "retry": "f"}
    async with stage.engine(leaf, limited) as engine, engine.worker():
        for call in (leaf(), limited(), leaf().options(limit=Limit("mine", concurrency=1)), leaf().options(retry=2)):
            assert await (await engine.start(call, headers=names)).result() == names


def test_call_limits_are_told_from_headers() -> None:
    assert not has_call_limits(with_headers("{}", {"limits": "1", "fair": "2"}))
    given = leaf().options(limit=Limit("mine", concurrency=1)).settings.to_json()
    assert has_call_limits(with_headers(given, {"limits": "1"}))
    assert has_call_limits('{"headers":{"a":"b"},"limits":"damaged"}')


async def test_headers_that_cannot_be_read_block_the_run(stage: Stage) -> None:
    async with stage.engine(child, leaf) as engine:
        for number, call in enumerate((child(), leaf())):
            run = await engine.start(call, id=f"run-{number}")
            options = json.dumps({"headers": {"tenant": 1}})
            await damage(stage, "UPDATE perdure_runs SET options = :options WHERE id = :id", options=options, id=run.id)
            async with engine.worker():
                await until(run, Status.BLOCKED)
            info = await run.info()
            assert info.reason == "undecodable"
            assert info.headers == {}


def test_the_options_of_a_run_keep_their_headers() -> None:
    stored = RunSettings.from_json('{"heartbeat":5.0,"headers":{"tenant":"acme"}}')
    assert stored.headers == {"tenant": "acme"}
    assert json.loads(stored.to_json()) == {"heartbeat": 5.0, "headers": {"tenant": "acme"}}
    with pytest.raises(DecodeError, match="control characters"):
        RunSettings.from_json('{"headers":{"tenant":"a\\nb"}}')


def test_inherited_headers_are_overridden_one_by_one() -> None:
    parent = with_headers('{"heartbeat":5.0}', {"a": "1", "b": "2"})
    assert headers_of(inherit_headers("{}", parent, {"b": "3"})) == {"a": "1", "b": "3"}
    assert inherit_headers('{"x":1}', "{}", {}) == '{"x":1}'
    assert with_headers(with_headers("{}", {"a": "1"}), {}) == "{}"


@pytest.mark.parametrize(
    ("headers", "complaint"),
    [
        ("tenant", "headers='tenant': give texts by name"),
        ({"tenant": 1}, "the header 'tenant' is 1; give a text"),
        ({"tenant": None}, "the header 'tenant' is None; give a text"),
        ({1: "a"}, "1 cannot be the name of a header"),
        ({"": "a"}, "'' cannot be the name of a header"),
        ({"a b": "a"}, "'a b' cannot be the name"),
        ({"a\n": "a"}, "cannot be the name"),
        ({"-a": "a"}, "cannot be the name"),
        ({"a" * 65: "a"}, "cannot be the name"),
        ({"a": "x" * 1025}, "has 1,025 characters, and 1,024 are allowed"),
        ({"a": "x\r\ny"}, "control characters are not allowed"),
        ({"a": "\x00"}, "control characters are not allowed"),
        ({"a": "\ud800"}, "control characters are not allowed"),
        ({f"h{number}": "" for number in range(33)}, "33 headers are too many; a run has at most 32"),
    ],
)
async def test_other_headers_are_refused_before_anything_is_written(
    on_disk: Stage, headers: Any, complaint: str
) -> None:
    async with on_disk.engine(leaf) as engine:
        with pytest.raises(UsageError, match=complaint):
            await engine.start(leaf(), headers=headers)
        with pytest.raises(UsageError, match=complaint):
            await engine.schedules.create("nightly", leaf(), Every("1d"), headers=headers)
        assert not (await engine.runs.list()).runs


def test_the_largest_headers_are_taken() -> None:
    most = {f"{number:02}{'n' * 62}": "x" * 1024 for number in range(32)}
    assert check_headers(most) == most


async def test_headers_are_seen_in_plain_sql(stage: Stage) -> None:
    async with stage.engine(leaf) as engine:
        await engine.start(leaf(), headers={"tenant": "acme"})
        [(options,)] = await stage.rows("SELECT options FROM perdure_runs")
        assert json.loads(options) == {"headers": {"tenant": "acme"}}


async def test_a_redacted_history_has_redacted_headers(on_disk: Stage, tmp_path: Path) -> None:
    async with on_disk.engine(child, leaf) as engine, engine.worker():
        run = await engine.start(child(), headers={"tenant": "acme", "api_token": "secret"})
        await run.result()
        file = tmp_path / "histories"
        await engine.runs.export(file, redact_keys=["*_token"])
        assert "secret" not in file.read_text()
        assert "acme" in file.read_text()
