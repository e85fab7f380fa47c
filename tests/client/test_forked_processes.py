"""Engines that are used before their process forks: the child connects anew, and the parent goes on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.client import forked
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there is no fork"),
    pytest.mark.every_database,
]


@pytest.fixture(params=["file", "postgres", "mysql"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


async def run(scenario: str, url: str) -> None:
    """In a process of its own: what a test runner has open would be forked, too."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.client.forked", scenario, url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(4 * forked.HANGS):
        out, complaints = await process.communicate()
    assert (process.returncode, out.decode(), complaints.decode()) == (0, "ok\n", "")


async def test_a_blocking_engine_goes_on_in_parent_and_children(place: Stage) -> None:
    await run("blocking", place.url)


async def test_an_engine_goes_on_in_a_child_that_was_forked_by_its_event_loop(place: Stage) -> None:
    await run("looped", place.url)


async def test_an_engine_goes_on_in_a_child_that_was_forked_between_two_event_loops(place: Stage) -> None:
    await run("between", place.url)


async def test_a_child_goes_on_when_its_parent_is_gone(place: Stage) -> None:
    await run("outlived", place.url)


async def test_parent_and_children_write_at_once(place: Stage) -> None:
    await run("crowd", place.url)


async def test_a_lock_stays_with_the_process_that_acquired_it(place: Stage) -> None:
    await run("held", place.url)


async def test_a_child_that_leaves_a_block_stops_no_worker_and_releases_no_lock_of_its_parent(place: Stage) -> None:
    await run("left", place.url)


async def test_a_database_in_memory_is_closed_in_a_child() -> None:
    await run("memory", "sqlite://")


async def test_a_file_that_is_being_written_cannot_be_opened_in_a_child(on_disk: Stage) -> None:
    await run("busy", on_disk.url)
