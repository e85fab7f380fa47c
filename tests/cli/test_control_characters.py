"""Stored text and arguments reach a terminal escaped, whatever command prints them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Context, Every, RunFailed, workflow
from perdure.cli.app import run as perdure
from tests.stage import Stage
from tests.worker.damage import damage

EVIL = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\r\u2028"


@workflow("control.v1")
async def control(ctx: Context, text: str) -> str:
    return text


def control_characters(text: str) -> set[str]:
    return {one for one in text if not one.isprintable() and one != "\n"}


async def test_no_command_emits_what_a_terminal_acts_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage = Stage(tmp_path / "runs.db")
    engine = stage.engine(control)
    await engine.start(control(EVIL), id="victim")
    await engine.schedules.create("s", control(EVIL), Every("1h"))
    await engine.schedules.pause("s", EVIL)
    await engine.limits.set("l", concurrency=1)
    await engine.breakers.open("b")
    await engine.queues.pause(queue="q", reason=EVIL)
    await engine.locks.acquire("k", "1h")
    await engine.tokens.create("t")
    error = json.dumps(
        {"type": f"E{EVIL}", "message": EVIL, "notes": [EVIL], "traceback": EVIL, "cause": {"type": EVIL}}
    )
    await damage(stage, "UPDATE perdure_runs SET status = 'failed', finished_at = 1, error = :bad", bad=error)
    await damage(stage, "UPDATE perdure_runs SET id = :id, queue = :id", id=f"v{EVIL}")
    for table, column in (
        ("schedules", "id"),
        ("gates", "name"),
        ("pauses", "name"),
        ("locks", "name"),
        ("tokens", "name"),
    ):
        await damage(stage, f"UPDATE perdure_{table} SET {column} = {column} || :id", id=EVIL)
    await damage(stage, "UPDATE perdure_locks SET owner = :id", id=EVIL)
    lists = ("dead-letters", "schedules", "limits", "breakers", "locks", "tokens", "queues")
    for command in (
        ["runs"], ["audit"], ["workers"], ["show"], ["why"], ["runs", "count"], *([name, "list"] for name in lists)
    ):  # fmt: skip
        one = [f"v{EVIL}"] if command in (["show"], ["why"]) else []
        for more in ([], ["--json"]):
            code = await asyncio.to_thread(perdure, [*command, stage.url, *one, *more])
            said = capsys.readouterr()
            # The id is refused; the others list what there is.
            assert code == bool(one), (command, more, said.err)
            assert not control_characters(said.out + said.err), (command, more)
    await stage.close()


@pytest.mark.parametrize(
    "arguments", [[EVIL], ["runs", f"sqlite:///{EVIL}.db"], ["show", "x:y", EVIL], ["show", EVIL, "r"]]
)
@pytest.mark.parametrize("more", [[], ["--json"], ["--debug"]])
def test_an_argument_is_repeated_escaped(
    arguments: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert perdure([*arguments, *more])
    said = capsys.readouterr()
    assert not control_characters(said.out + said.err)


async def test_the_lines_of_an_error_are_below_the_sentence(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    @workflow("cli.lines.v1")
    async def failing(ctx: Context) -> None:
        raise ValueError("one\n  - two\x1b[2J")

    engine = stage.engine(failing)
    async with engine.worker():
        run = await engine.start(failing(), id="lines")
        with pytest.raises(RunFailed):
            await run.result("20s")
    assert await asyncio.to_thread(perdure, ["why", stage.url, "lines"]) == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith(": ValueError: one")
    assert second == "      - two\\x1b[2J."
    assert third.strip().startswith("Once the cause is gone")
    await stage.close()
