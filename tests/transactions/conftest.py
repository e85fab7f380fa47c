"""A real database with a table of the user's beside the engine's own, for every library that can reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.stage import Stage
from tests.servers.schemas import Schemas
from tests.transactions.libraries import ALL, Customer, customer


@pytest.fixture
async def on_postgres(schemas: Schemas) -> AsyncIterator[Stage]:
    async with schemas.one() as url:
        stage = Stage(None, url)
        yield stage
        await stage.close()


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    yield stage
    await stage.close()


@pytest.fixture(params=ALL, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace(" ", "-"))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas
) -> AsyncIterator[tuple[Stage, Customer]]:
    """A stage, and somebody who has a connection to the same database."""
    database, library = request.param
    if database == "sqlite":
        stage = Stage(tmp_path / "runs.db")
        async with customer(database, library, stage.url) as someone:
            yield stage, someone
        await stage.close()
        return
    async with schemas.one() as url:
        stage = Stage(None, url)
        async with customer(database, library, url) as someone:
            yield stage, someone
        await stage.close()
