"""Webhooks between processes: a receiver of its own, and workers that are killed in the middle."""

from __future__ import annotations

import json
import os
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


#: Imports once, and forks a worker for each line of its input.
PROGRAM = """
import asyncio, os, signal, sys
from tests.push import test_webhook_processes as module
module.KEY = sys.argv[3]
async def main():
    async with module.engine_for(sys.argv[1], sys.argv[2]) as engine:
        await engine.worker(lease="2s", slots=8).run()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in sys.stdin:
    if pid := os.fork():
        print(pid, flush=True)
    else:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asyncio.run(main())
        os._exit(0)
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


@contextmanager
def workers(url: str, port: str) -> Iterator[subprocess.Popen[str]]:
    """A process that forks workers."""
    command = [sys.executable, "-c", PROGRAM, url, port, KEY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


async def killed_when(forking: subprocess.Popen[str], path: Path, count: int) -> None:
    """Work in another process until so many events have arrived, then kill it."""
    assert forking.stdin is not None
    assert forking.stdout is not None
    forking.stdin.write("fork\n")
    forking.stdin.flush()
    worker = int(forking.stdout.readline())
    try:
        await eventually(lambda: len(received(path)) >= count, saying=f"the arrival of {count} events")
    finally:
        os.kill(worker, signal.SIGKILL)


async def test_every_event_arrives_in_order_and_signed_although_workers_are_killed(
    stage: Stage, tmp_path: Path
) -> None:
    path = tmp_path / "received"
    with receiving(path, 0.2) as port:
        async with engine_for(stage.url, port) as engine:
            for number in range(RUNS):
                await engine.start(counts(number), id=f"r-{number}")
            with workers(stage.url, port) as forking:
                for count in (3, 10, 17):
                    await killed_when(forking, path, count)
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
