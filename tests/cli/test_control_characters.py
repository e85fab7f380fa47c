"""Stored text and arguments reach a terminal escaped, whatever command prints them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from perdure import Context, workflow
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
    await stage.engine(control).start(control(EVIL), id="victim")
    error = json.dumps(
        {"type": f"E{EVIL}", "message": EVIL, "notes": [EVIL], "traceback": EVIL, "cause": {"type": EVIL}}
    )
    await damage(stage, "UPDATE perdure_runs SET status = 'failed', finished_at = 1, error = :bad", bad=error)
    await damage(stage, "UPDATE perdure_runs SET id = :id, queue = :id", id=f"v{EVIL}")
    for command in (["runs"], ["dead-letters"], ["audit"], ["workers"], ["queues"], ["show"], ["why"]):
        one = [f"v{EVIL}"] if command in (["show"], ["why"]) else []
        for more in ([], ["--json"]):
            await asyncio.to_thread(perdure, [*command, stage.url, *one, *more])
            said = capsys.readouterr()
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
