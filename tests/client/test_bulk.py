from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from perdure import Context, Engine, Status, activity, workflow
from perdure.admin import BulkReport
from perdure.errors import BadArguments, RunExists, RunFailed, RunNotFound, UsageError
from tests.stage import Stage, until

pytestmark = pytest.mark.every_database

_tries: dict[str, int] = {}


@workflow("bulk.waits.v1")
async def waits(ctx: Context) -> str:
    return await ctx.receive("go", str)


@activity("bulk.fails.v1", retry=1)
async def fails(name: str) -> str:
    _tries[name] = _tries.get(name, 0) + 1
    raise ValueError(f"try {_tries[name]} of {name}")


async def some(engine: Engine, count: int, **attributes: Any) -> list[str]:
    calls = [waits() for _ in range(count)]
    return [run.id for run in await engine.start_many(calls, attributes=attributes or None)]


async def statuses(engine: Engine, **filter: Any) -> dict[str, int]:
    return {one.value: one.count for one in await engine.runs.count_by("status", type="bulk.waits.v1", **filter)}


async def ended(engine: Engine, job: str) -> BulkReport:
    await (await engine.get(job)).result()
    report = await engine.runs.bulk_progress(job)
    assert report is not None
    return report


async def test_runs_are_cancelled_by_a_filter_and_others_left(stage: Stage) -> None:
    engine = stage.engine(waits)
    await some(engine, 130, batch=1)
    await some(engine, 3, batch=2)
    preview = await engine.runs.preview_bulk(where={"attributes": {"batch": 1}})
    assert (str(preview.count), len(preview.first)) == ("130", 10)
    report = await engine.runs.bulk("cancel", where={"attributes": {"batch": 1}}, reason="sold out")
    assert report == BulkReport(action="cancel", done=130)
    assert await statuses(engine) == {"cancelled": 130, "pending": 3}
    again = await engine.runs.bulk("cancel", where={"attributes": {"batch": 1}})
    assert (again.done, again.skipped, len(again.skipped_runs)) == (0, 130, 100)
    assert "had finished" in next(iter(again.skipped_runs.values()))


async def test_every_action_is_done_or_says_why_not(stage: Stage) -> None:
    engine = stage.engine(waits)
    first, second, third = await some(engine, 3)
    both: list[str] = [first, second, "unknown"]
    expected: dict[str, Any] = {"done": 2, "skipped": 1, "skipped_runs": {"unknown": "there is no run 'unknown'"}}
    assert await engine.runs.bulk("pause", both) == BulkReport(action="pause", **expected)
    assert (await engine.runs.bulk("pause", [first])).skipped_runs == {first: f"run {first!r} was paused already"}
    assert await engine.runs.bulk("resume", both) == BulkReport(action="resume", **expected)
    assert (await engine.runs.bulk("resume", [first])).skipped_runs == {first: f"run {first!r} was not paused"}
    assert await engine.runs.bulk("send", both, message="go", value="now") == BulkReport(action="send", **expected)
    assert [message.name for message in await (await engine.get(first)).inbox()][-1] == "go"
    assert await engine.runs.bulk("terminate", both) == BulkReport(action="terminate", **expected)
    assert (await engine.runs.bulk("terminate", [first])).skipped == 1
    late = await engine.runs.bulk("send", [first], message="go")
    assert late.skipped_runs == {first: f"run {first!r} had finished"}
    deleted = await engine.runs.bulk("delete", [first, third], reason="a test")
    assert (deleted.done, deleted.skipped) == (2, 0)
    purged = await engine.runs.bulk("delete", [third], purge=True)
    assert "cancel it" in purged.skipped_runs[third]
    await engine.runs.undelete(third)
    assert (await engine.runs.bulk("delete", [first])).skipped_runs == {first: f"run {first!r} was deleted before"}
    assert (await engine.runs.bulk("delete", [second], purge=True)).done == 1
    with pytest.raises(RunNotFound):
        await engine.get(second)
    assert await statuses(engine) == {"pending": 1}


async def test_runs_are_retried_once_even_if_they_fail_again(stage: Stage) -> None:
    _tries.clear()
    engine = stage.engine(fails)
    async with engine.worker():
        for name in ("a", "b"):
            with pytest.raises(RunFailed):
                await (await engine.start(fails(name), id=name)).result()
        job = await engine.runs.start_bulk("retry", where={"type": "bulk.fails.v1", "status": Status.FAILED}, id="job")
        # As if the job had done so before a crash, and the run had failed again.
        again = await engine.get("a")
        await again.retry()
        with pytest.raises(RunFailed):
            await again.result()
        async with engine.runs.bulk_worker():
            report = await ended(engine, job)
        assert (report.done, report.skipped) == (1, 1)
        assert "has ended again" in report.skipped_runs["a"]
        with pytest.raises(RunFailed):
            await (await engine.get("b")).result()
    assert _tries == {"a": 2, "b": 2}


async def test_a_job_is_a_run_and_the_same_id_is_the_same_job(stage: Stage) -> None:
    engine = stage.engine(waits)
    ids = await some(engine, 2)
    job = await engine.runs.start_bulk("pause", ids, id="job")
    assert await engine.runs.bulk_progress("job") is None
    assert await engine.runs.start_bulk("pause", ids, id="job") == job
    with pytest.raises(RunExists):
        await engine.runs.start_bulk("resume", ids, id="job")
    assert (await engine.runs.bulk("pause", ids, id="job")).done == 2
    assert (await engine.runs.bulk("pause", ids, id="job")).done == 2
    progress = await engine.runs.bulk_progress("job")
    assert progress is not None
    assert progress.done == 2
    with pytest.raises(UsageError, match="no bulk action"):
        await engine.runs.bulk_progress(ids[0])


async def test_runs_and_jobs_that_come_later_are_left_out(stage: Stage) -> None:
    engine = stage.engine(waits)
    await some(engine, 2)
    job = await engine.runs.start_bulk("cancel", where={})
    later = await some(engine, 1)
    other = await engine.runs.start_bulk("cancel", where={"type": "none"})
    async with engine.runs.bulk_worker():
        report = await ended(engine, job)
        await ended(engine, other)
    assert (report.done, report.failed) == (2, 0)
    assert (await (await engine.get(later[0])).info()).status is Status.PENDING


async def test_an_ordinary_worker_leaves_jobs_alone(stage: Stage) -> None:
    engine = stage.engine(waits)
    job = await engine.runs.start_bulk("cancel", where={"type": "none"})
    async with engine.worker():
        run = await engine.start(waits())
        await until(run, Status.WAITING)
    assert (await (await engine.get(job)).info()).status is Status.PENDING


async def test_progress_is_reported(stage: Stage) -> None:
    engine = stage.engine(waits)
    await some(engine, 1500)
    seen: list[int] = []
    report = await engine.runs.bulk("pause", where={}, on_progress=lambda one: seen.append(one.done))
    assert report.done == 1500
    assert seen == sorted(seen)


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ("explode", {"where": {}}),
        ("cancel", {}),
        ("cancel", {"run_ids": ["a"], "where": {}}),
        ("cancel", {"where": {"colour": "red"}}),
        ("cancel", {"where": ["a"]}),
        ("cancel", {"where": {}, "purge": True}),
        ("cancel", {"where": {}, "message": "go"}),
        ("cancel", {"where": {}, "wreck": True}),
        ("send", {"where": {}}),
        ("cancel", {"run_ids": [str(number) for number in range(10_001)]}),
        ("cancel", {"run_ids": [""]}),
        ("cancel", {"where": {}, "reason": 7}),
    ],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_written(
    stage: Stage, action: str, options: dict[str, Any]
) -> None:
    engine = stage.engine(waits)
    with pytest.raises(UsageError):
        await engine.runs.bulk(action, **options)
    with pytest.raises(UsageError):
        engine.runs.bulk_worker(queues="other")
    assert (await engine.runs.list()).runs == ()


PROGRAM = """
import asyncio, sys
from perdure import Engine

async def main():
    async with Engine(sys.argv[1]) as engine:
        await engine.runs.start_bulk("send", where={"type": "bulk.waits.v1"}, message="go", value="x", id="job")
        async with engine.runs.bulk_worker(lease="1s"):
            while True:
                report = await engine.runs.bulk_progress("job")
                if report is not None:
                    print(report.done, flush=True)
                await asyncio.sleep(0.01)

asyncio.run(main())
"""


def _killed_in_the_middle(url: str) -> int:
    """Work on the job in another process and kill it; how much it had done by then."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        return int(line)


@pytest.mark.parametrize("stage", ["file", "postgres", "mysql"], indirect=True)
async def test_a_job_goes_on_after_kill_9_and_no_run_is_acted_on_twice(stage: Stage) -> None:
    url = stage.url
    async with Engine(url, [waits]) as engine:
        ids = await some(engine, 3000)
        done = await asyncio.to_thread(_killed_in_the_middle, url)
        assert 0 < done < 3000
        report = await engine.runs.bulk("send", where={"type": "bulk.waits.v1"}, message="go", value="x", id="job")
        assert (report.done, report.skipped, report.failed) == (3000, 0, 0)
        for run_id in (ids[0], ids[done - 1], ids[done], ids[-1]):
            assert len(await (await engine.get(run_id)).inbox()) == 1
        counts = await engine._session.store.get_many(ids)
        assert {run.inbox_seq for run in counts} == {1}
        [job] = (await engine.runs.list(id_prefix="job")).runs
        assert job.claims <= 2


async def test_options_and_filters_of_any_type_are_refused_by_name(on_disk: Stage) -> None:
    engine = on_disk.engine(waits)
    mixed: Any = {1: 1, "1": 2, None: 3, 10**5000: 4, "staus": "failed"}
    with pytest.raises(BadArguments, match="runs.list has no option 'staus'; did you mean status"):
        await engine.runs.preview_bulk(where={"staus": "failed"})  # type: ignore[arg-type] # that is the point
    with pytest.raises(BadArguments, match="runs.list has no option"):
        await engine.runs.preview_bulk(where=mixed)
    with pytest.raises(BadArguments, match="runs.list has no option"):
        await engine.runs.bulk("cancel", where=mixed)
    with pytest.raises(BadArguments, match="has no option 'aaaa"):
        await engine.runs.preview_bulk(where={"a" * 1_000_000: 1})  # type: ignore[arg-type] # that is the point
