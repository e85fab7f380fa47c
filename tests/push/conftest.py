"""The databases of these tests are those of the public interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

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
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    yield stage
    await stage.close()
