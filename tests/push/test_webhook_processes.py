"""Webhooks between processes: a receiver of its own, and workers that are killed in the middle."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perdure import Context, Engine, workflow
from perdure.outbox import Webhook
from perdure.push import SigningKeys
from tests.helpers import eventually
from tests.stage import Stage

KEY = SigningKeys.generate()
RUNS, EVENTS, KEYS = 6, 5, 3


@workflow("webhook.counts.v1")
async def counts(ctx: Context, number: int) -> None:
    for index in range(EVENTS):
        ctx.publish_event(
            "counted", {"run": number, "index": index}, key=f"key-{number % KEYS}", id=f"{number}-{index}"
        )
        await ctx.step(pause)


async def pause() -> None: ...


def engine_for(url: str, port: str) -> Engine:
    return Engine(url, [counts], outbox=[Webhook("hook", f"http://127.0.0.1:{port}/", keys=KEY)])


PROGRAM = """
import asyncio, sys
from tests.push import test_webhook_processes as module
module.KEY = sys.argv[3]
async def main():
    async with module.engine_for(sys.argv[1], sys.argv[2]) as engine:
        await engine.worker(lease="2s", slots=8).run()
asyncio.run(main())
"""


@contextmanager
def receiving(path: Path, pause: float) -> Iterator[str]:
    """A receiver in another process; its port."""
    command = [sys.executable, "-m", "tests.push.webhook_receiver", str(path), str(pause)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def received(path: Path) -> list[dict[str, Any]]:
    """Complete lines of the file."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


async def killed_when(url: str, port: str, path: Path, count: int) -> None:
    """Work in another process until so many events have arrived, then kill it."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, url, port, KEY)
    try:
        await eventually(lambda: len(received(path)) >= count, saying=f"the arrival of {count} events")
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()


async def test_every_event_arrives_in_order_and_signed_although_workers_are_killed(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "received"
    with receiving(path, 0.2) as port:
        async with engine_for(stage.url, port) as engine:
            for number in range(RUNS):
                await engine.start(counts(number), id=f"r-{number}")
            for count in (3, 10, 17):
                await killed_when(stage.url, port, path, count)
            async with engine.worker(lease="2s"):
                await eventually(lambda: len(_ids(path)) == RUNS * EVENTS, saying="the arrival of all events")
    first: dict[str, None] = {}
    for one in received(path):
        SigningKeys(KEY, tolerance="1h").verify(one["body"], one["headers"])
        assert one["headers"]["content-type"].startswith("application/cloudevents+json")
        first.setdefault(json.loads(one["body"])["id"])
    for number in range(RUNS):
        of_run = [id for id in first if id.startswith(f"{number}-")]
        assert of_run == [f"{number}-{index}" for index in range(EVENTS)]


def _ids(path: Path) -> set[str]:
    return {json.loads(one["body"])["id"] for one in received(path)}
