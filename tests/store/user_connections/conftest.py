"""Real databases, and for each of them every library that can reach it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage
from tests.store.user_connections.libraries import ALL, Customer, customer


@asynccontextmanager
async def a_stage(database: str, path: Path, schemas: Schemas, databases: Databases) -> AsyncIterator[Stage]:
    if database in ("memory", "sqlite"):
        stage = Stage(None if database == "memory" else path / "runs.db")
        yield stage
        await stage.close()
        return
    async with (schemas if database == "postgres" else databases).one() as url:
        stage = Stage(None, url)
        yield stage
        await stage.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "mysql"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    """Open a stage on every database."""
    async with a_stage(request.param, tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture(params=["postgres", "mysql"])
async def on_server(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with a_stage(request.param, tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture
async def on_postgres(tmp_path: Path, schemas: Schemas, databases: Databases) -> AsyncIterator[Stage]:
    async with a_stage("postgres", tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture
async def on_disk(tmp_path: Path, schemas: Schemas, databases: Databases) -> AsyncIterator[Stage]:
    async with a_stage("sqlite", tmp_path, schemas, databases) as stage:
        yield stage


@pytest.fixture(params=ALL, ids=lambda pair: f"{pair[0]}-{pair[1]}".replace(" ", "-"))
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[tuple[Stage, Customer]]:
    """A stage, and a client with a connection to the same database."""
    database, library = request.param
    async with (
        a_stage(database, tmp_path, schemas, databases) as stage,
        customer(database, library, stage.url) as someone,
    ):
        yield stage, someone
