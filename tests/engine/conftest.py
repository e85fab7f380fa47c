"""Every test of the public interface gets a real database; most of them once in memory, once in a file, once on each server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.stage import Stage
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas


@pytest.fixture(params=["memory", "file", "postgres", "mysql"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    if request.param in ("postgres", "mysql"):
        async with (schemas if request.param == "postgres" else databases).one() as url:
            stage = Stage(None, url)
            yield stage
            await stage.close()
        return
    stage = Stage(None if request.param == "memory" else tmp_path / "runs.db")
    yield stage
    await stage.close()


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    yield stage
    await stage.close()
