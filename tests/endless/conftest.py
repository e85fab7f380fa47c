"""Endless runs are worked on by other processes, so their database is a file, or on a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.endless.labour import Labour
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, kinds_for, set_up


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "stage" in metafunc.fixturenames:
        kinds = kinds_for(metafunc.definition.nodeid, shared=True)
        metafunc.parametrize("stage", kinds, indirect=True)


@pytest.fixture
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture
async def labour(stage: Stage, tmp_path: Path) -> AsyncIterator[Labour]:
    labour = Labour(stage, tmp_path)
    yield labour
    await labour.end()
