"""Every test of the public interface gets a real database; most of them once in memory, once in a file, once on each server."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.stage import Stage, set_up
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

#: `make quick` does without.
KINDS = ["memory", "file", "postgres", "mysql"][: 1 if os.environ.get("PERDURE_QUICK") else None]


@pytest.fixture(params=KINDS)
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    yield stage
    await stage.close()
