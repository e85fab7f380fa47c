"""Agents on each database, whose worker process is killed in the middle of a tool call."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from perdure import Engine
from tests.agent_libraries.killed_worker import killed
from tests.stage import Stage


async def test_another_worker_repeats_only_the_call_that_was_interrupted(stage: Stage, tmp_path: Path) -> None:
    if stage.url == "sqlite://":
        pytest.skip("a database in memory has no other process")
    notes = tmp_path / "notes.txt"
    notes.touch()
    async with Engine(stage.url, [killed]) as engine:
        run = await engine.start(killed(), id="killed")
        codes = await _work(stage.url, notes, times=3)
        assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
        assert await run.result() == "done and done"
        recorded = [record.location for record in await run.history()]
    calls = Counter(notes.read_text(encoding="utf-8").split())
    assert sorted(calls) == sorted(recorded)
    assert {name for name, count in calls.items() if count > 1} == {"typed.tools.second", "scripted.tools.second"}


async def _work(url: str, notes: Path, *, times: int) -> list[int]:
    """Work in so many processes, one after another; return their exit codes."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.agent_libraries.killed_worker",
        url,
        str(times),
        env={**os.environ, "AGENT_NOTES": str(notes)},
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    return [int(code) for code in printed.split()]
