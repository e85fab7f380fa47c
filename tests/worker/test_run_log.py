"""Log lines that workers keep with their runs."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from perdure import Context, Retry, activity, step, workflow
from perdure.core.run_log import clipped, clipped_end
from perdure.errors import StoreFull
from tests.helpers import eventually
from tests.stage import Stage

shop = logging.getLogger("tests.run_log")


@pytest.fixture(autouse=True)
def _informed() -> Iterator[None]:
    shop.setLevel(logging.INFO)
    yield
    shop.setLevel(logging.NOTSET)


@step(retry=Retry.fixed("1ms", attempts=2))
async def charge(order: str) -> str:
    shop.info("charging %s \0", order)
    if order == "broken":
        raise OSError("the bank is closed")
    return order


@step
def pack(order: str) -> None:
    try:
        raise ValueError(order)
    except ValueError:
        shop.exception("packed badly")


@activity
async def deliver(order: str) -> None:
    shop.warning("delivering %s", order)


@workflow("log.order.v1")
async def order(ctx: Context, name: str) -> None:
    shop.info("begins")
    await ctx.step(charge, name)
    await ctx.step(pack, name)
    await ctx.call(deliver(name))
    await asyncio.sleep(0)
    ctx.log.warning("done")


@workflow("log.chatter.v1")
async def chatter(ctx: Context, lines: int) -> None:
    async def talk() -> None:
        for number in range(lines):
            shop.info("line %d", number)

    await ctx.step(talk)


async def test_lines_of_steps_threads_activities_and_workflows_are_kept_with_their_run(stage: Stage) -> None:
    engine = stage.engine(order, deliver)
    shop.info("outside of any run")
    async with engine.worker(keep_log=100):
        run = await engine.start(order("tea"), id="tea")
        await run.result("60s")
    lines = await run.logs()
    shown = [(line.level, line.location, line.attempt, line.text) for line in lines if line.logger == shop.name]
    assert shown == [
        ("INFO", "", 1, "begins"),
        ("INFO", "charge", 1, "charging tea \0"),
        ("ERROR", "pack", 1, "packed badly"),
    ]
    assert [line.text for line in lines if line.text == "done"] == ["done"]
    assert lines[2].traceback.endswith("ValueError: tea\n")
    assert [line.number for line in lines] == list(range(len(lines)))
    assert all(one.at <= two.at for one, two in pairwise(lines))
    [child] = (await engine.runs.list(parent="tea")).runs
    assert [line.text for line in await (await engine.get(child.id)).logs()] == ["delivering tea"]
    assert [line.number for line in await run.logs(after=1, limit=2)] == [2, 3]
    assert [line.number for line in await run.logs(limit=1)] == [lines[-1].number]


async def test_a_run_keeps_its_latest_lines_and_a_worker_without_the_option_keeps_none(stage: Stage) -> None:
    engine = stage.engine(chatter)
    async with engine.worker(keep_log=5):
        many = await engine.start(chatter(50))
        await many.result("60s")
    assert [line.text for line in await many.logs() if line.logger == shop.name][-1] == "line 49"
    assert len(await many.logs()) == 5
    async with engine.worker():
        silent = await engine.start(chatter(3))
        await silent.result("60s")
    assert await silent.logs() == []


async def test_lines_of_a_step_that_hangs_can_be_read_meanwhile(on_disk: Stage) -> None:
    stopped = asyncio.Event()

    @workflow("log.hang.v1")
    async def hang(ctx: Context) -> None:
        async def wait() -> None:
            shop.info("about to wait")
            await stopped.wait()

        await ctx.step(wait)

    engine = on_disk.engine(hang)
    async with engine.worker(keep_log=5):
        run = await engine.start(hang())
        await eventually(run.logs, saying="the line of the step")
        stopped.set()
        await run.result("60s")


CODE = """
import asyncio
import logging
import os

from perdure import Context, Engine, workflow

logging.basicConfig(level="INFO")
log = logging.getLogger("shop")


async def wait() -> None:
    log.info("waiting in %s", os.environ["LOG_WORKER"])
    await asyncio.sleep(3600 if os.environ["LOG_WORKER"] == "first" else 0)


@workflow("log.killed.v1")
async def killed(ctx: Context) -> None:
    await ctx.step(wait)


engine = Engine(os.environ["LOG_URL"], [killed])
"""


@contextmanager
def worker_process(folder: Path, stage: Stage, name: str) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "logging_shop.py").write_text(CODE)
    command = [str(Path(sys.executable).with_name("perdure")), "worker", "logging_shop:engine", "--keep-log", "10"]
    environment = os.environ | {"LOG_URL": stage.url, "LOG_WORKER": name}
    output = subprocess.DEVNULL
    with subprocess.Popen([*command, "--lease", "6s"], cwd=folder, env=environment, stderr=output) as worker:
        try:
            yield worker
        finally:
            worker.kill()


@workflow("log.killed.v1")
async def killed(ctx: Context) -> None:
    raise NotImplementedError("executed by other processes")


async def test_lines_outlive_a_killed_worker_and_the_next_one_adds_its_own(stage: Stage, tmp_path: Path) -> None:
    engine = stage.engine(killed)
    run = await engine.start(killed())

    async def texts() -> list[str]:
        return [line.text for line in await run.logs() if line.logger == "shop"]

    with worker_process(tmp_path, stage, "first") as first:
        await eventually(texts, saying="a line of the first worker")
        first.kill()
    with worker_process(tmp_path, stage, "second"):
        await run.result("120s")

        async def both() -> bool:
            return await texts() == ["waiting in first", "waiting in second"]

        await eventually(both, saying="the lines of both workers")
    assert [line.location for line in await run.logs() if line.logger == "shop"] == ["wait", "wait"]


async def test_lines_that_cannot_be_written_are_dropped_and_harm_nothing(
    on_disk: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = on_disk.engine(chatter)
    assert on_disk.store is not None

    async def fail(*_: object) -> None:
        raise StoreFull("the disk is full")

    monkeypatch.setattr(on_disk.store, "keep_log", fail)
    async with engine.worker(keep_log=5):
        run = await engine.start(chatter(3))
        await run.result("60s")
    assert await run.logs() == []
    assert "were not kept: the disk is full" in caplog.text
    assert not any(type(one).__name__ == "RunLog" for one in logging.getLogger().handlers)


def test_a_text_that_databases_refuse_is_kept_without_what_they_refuse() -> None:
    assert clipped("a \ud800 b", 10) == "a ? b"
    assert (clipped("abcdef", 3), clipped_end("abcdef", 3)) == ("abc…", "…def")
