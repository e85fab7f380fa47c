"""Rounds in which all systems do the same work in turns, each time in a database of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg
from msgspec import Struct

from benchmarks.bench import median
from benchmarks.peers.catalog import Peer
from benchmarks.peers.environments import Environment


class Void(Exception):
    """A sample that shows nothing: the driver failed, or not all of the work was done."""


class PeerSizes(Struct, frozen=True, kw_only=True):
    """How much one sample of this project does; a peer does its share of it."""

    rounds: int = 3
    runs: int = 2000
    steps: int = 1000
    sleep: float = 5.0
    slots: int = 500
    timeout: float = 120.0


class Workload(Struct, frozen=True):
    """What is measured and how it is shown."""

    name: str
    title: str
    unit: str
    #: More is better; otherwise less is.
    rate: bool


WORKLOADS = (
    Workload("start", "bulk start", "runs/s", True),
    Workload("w1", "`w1`", "runs/s", True),
    Workload("w2", "`w2`", "steps/s", True),
    Workload("w3", "`w3`", "ms", False),
    Workload("w4", "`w4`", "steps/s", True),
    Workload("w5", "`w5`", "s late", False),
    Workload("w6", "`w6`", "records/s", True),
)


class Sample(Struct, frozen=True):
    """The figures of one run of a driver, by workload."""

    figures: dict[str, float]


def sizes_of(workload: str, share: float, sizes: PeerSizes) -> dict[str, Any]:
    """Return the arguments of a driver. Runs are divided by the share, or the steps where there is one run."""
    runs, steps = {
        "w1": (5 * sizes.runs, 1),
        "w2": (sizes.runs, 10),
        "w3": (sizes.runs // 10, 1),
        "w4": (1, sizes.steps),
        "w5": (5 * sizes.runs, 0),
        "w6": (1, sizes.steps),
    }[workload]
    if runs == 1:
        steps = max(1, round(steps * share))
    else:
        runs = max(1, round(runs * share))
    return {"runs": runs, "steps": steps, "sleep": sizes.sleep, "slots": sizes.slots}


def figures_of(workload: str, asked: dict[str, Any], answer: dict[str, Any]) -> dict[str, float]:
    """Compute the figures of a sample from the answer of a driver."""
    runs, steps = asked["runs"], asked["steps"]
    if workload == "w3":
        return {"w3": median(answer["latencies_ms"])}
    work = answer["work_s"]
    match workload:
        case "w1":
            figures = {"w1": runs / work}
            return figures | ({"start": runs / answer["start_s"]} if "start_s" in answer else {})
        case "w5":
            return {"w5": max(work - asked["sleep"], 0.0)}
        case _:
            return {workload: runs * steps / work}


def check(peer: Peer, workload: str, asked: dict[str, Any], runs: int, steps: int | None) -> None:
    """Compare the counts of a peer's own tables with what it was asked to do. Raises `Void`."""
    wanted = asked["runs"] + (1 if workload == "w3" else 0)
    if workload != "w6" and runs < wanted:
        raise Void(f"{peer.name} finished {runs} of {wanted} runs")
    if steps is not None and workload != "w5" and steps < wanted * asked["steps"]:
        raise Void(f"{peer.name} recorded {steps} of {wanted * asked['steps']} steps")


async def sample(environment: Environment, workload: str, dsn: str, sizes: PeerSizes) -> Sample:
    """Run one driver in a new database, and check in its tables that it did the work. Raises `Void`."""
    peer = environment.peer
    asked = sizes_of(workload, peer.shares[workload], sizes)
    name = f"peer_{time.time_ns()}"
    await execute(dsn, f"CREATE DATABASE {name}")
    inside = urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))
    try:
        if workload == "w6" and peer.registry:
            await asyncio.to_thread(drive, environment, "w6-prepare", inside, asked, sizes.timeout)
            if peer.release:
                await execute(inside, peer.release)
        answer = await asyncio.to_thread(drive, environment, workload, inside, asked, sizes.timeout)
        counted = answer.get("counted") or {
            "runs": await _count(inside, peer.runs_query),
            "steps": await _count(inside, peer.steps_query) if peer.steps_query else None,
        }
        check(peer, workload, asked, **counted)
    finally:
        await execute(dsn, f"DROP DATABASE {name} WITH (FORCE)")
    return Sample(figures_of(workload, asked, answer))


def drive(environment: Environment, workload: str, dsn: str, asked: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Run a driver as a process; return what it prints. Raises `Void`."""
    command = environment.command(workload, dsn, json.dumps(asked))
    prepares = workload.endswith("-prepare")
    with _process(command, environment.variables()) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise Void(f"{environment.peer.name} took longer than {timeout:.0f} s with {workload}") from error
    if prepares and process.returncode == -signal.SIGKILL:
        return {}
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        reason = (errors.strip().splitlines() or ["it printed nothing"])[-1]
        raise Void(f"{environment.peer.name} failed with {workload}: {reason[:300]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@contextmanager
def _process(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process in a group of its own, with whatever servers it starts, and leave none of them."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=variables, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


async def execute(dsn: str, statement: str) -> None:
    """Run a statement on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def settings_of(dsn: str) -> dict[str, str]:
    """Return the version of a server and the settings on which durability depends."""
    connection = await asyncpg.connect(dsn)
    try:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")
        return {name: await connection.fetchval(f"SHOW {name}") for name in names}
    finally:
        await connection.close()


async def _count(dsn: str, query: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()
