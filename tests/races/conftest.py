"""Races need two workers, so their database is a file, or on a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up


@pytest.fixture(params=["file", "postgres", "mysql"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage
