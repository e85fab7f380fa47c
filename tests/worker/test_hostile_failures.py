"""Errors in the database that no worker of ours has written: clients and parents get an error, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Context, Retry, RunFailed, Status, activity, workflow
from perdure.cli.app import run as perdure
from tests.stage import Stage, until
from tests.worker.damage import damage

pytestmark = pytest.mark.every_database

PAYLOADS = [
    "boom",
    "",
    "null",
    "[1, 2]",
    "{",
    '{"type":5,"message":["m"],"args":[1],"state":7,"notes":"n","cause":"c","members":{},"not_undone":3}',
    '{"type":"ValueError","message":"m","args":"[\\"m\\"]","state":"{\\"add_note\\":1,\\"args\\":3}","notes":["n"]}',
    '{"type":"UnicodeEncodeError","message":"q","args":"[\\"utf-8\\",\\"x\\",-5,-4,\\"r\\"]"}',
    '{"type":"wave.Error","message":"m"}',
    '{"type":"StopIteration","message":"m"}',
    '{"type":"ExceptionGroup","members":[{"type":"SystemExit"}],"state":"{\\"exceptions\\":1}"}',
    '{"cause":' * 5_000 + "{}" + "}" * 5_000,
    json.dumps({"type": "ValueError", "message": "x" * 1_000_000}),
]


@activity("hostile.leaf.v1", retry=Retry.never())
async def leaf() -> int:
    raise ValueError("the original")


@workflow("hostile.parent.v1")
async def parent(ctx: Context) -> str:
    try:
        await ctx.call(leaf())
    except Exception as error:
        return type(error).__name__
    return "?"


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload[:30])
async def test_a_stored_error_never_breaks_the_result(stage: Stage, payload: str) -> None:
    engine = stage.engine(leaf)
    run = await engine.start(leaf(), id="victim")
    await damage(stage, "UPDATE perdure_runs SET status = 'failed', finished_at = 1, error = :bad", bad=payload)
    with pytest.raises(RunFailed, match="victim") as failed:
        await run.result("60s")
    assert isinstance(failed.value.__cause__, Exception)
    assert await engine.runs.why("victim")
    assert (await run.report()).errors
    [letter] = (await engine.dead_letters.list()).letters
    assert letter.run_id == "victim"


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload[:30])
async def test_the_parent_of_a_run_that_failed_with_it_goes_on(stage: Stage, payload: str) -> None:
    engine = stage.engine(parent, leaf)
    run = await engine.start(parent(), id="p")
    async with engine.worker(types=[parent.type]):
        await until(run, Status.WAITING)
    async with engine.worker(types=[leaf.type]):
        await until(run, Status.PENDING)
    # As a worker in another language might have written it.
    assert await damage(stage, "UPDATE perdure_messages SET payload = :bad WHERE run_id = 'p'", bad=payload) == 1
    async with engine.worker(types=[parent.type]):
        assert await run.result("60s") != "?"


async def test_the_command_line_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(tmp_path / "runs.db")
    run = await stage.engine(leaf).start(leaf(), id="victim")
    for payload in PAYLOADS:
        await damage(stage, "UPDATE perdure_runs SET status = 'failed', finished_at = 1, error = :bad", bad=payload)
        for command in (
            ["show", stage.url, run.id],
            ["why", stage.url, run.id],
            ["dead-letters", "show", stage.url, run.id],
        ):
            for more in ([], ["--json"]):
                assert await asyncio.to_thread(perdure, [*command, *more]) == 0, (command, payload[:50])
    assert "Traceback" not in capsys.readouterr().err
    await stage.close()
