from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver import Chrome

from perdure import Engine, Handle
from tests.dashboard.chromium import browser, log_of, missing
from tests.dashboard.shop import WORKFLOWS, browsing, populate
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up


@dataclass
class Shop:
    """An engine with runs in every state, a worker, and a client of its pages."""

    engine: Engine
    runs: dict[str, Handle[Any]]
    client: httpx.AsyncClient


@pytest.fixture
async def shop(on_disk: Stage) -> AsyncIterator[Shop]:
    async with on_disk.engine(*WORKFLOWS, audit="full") as engine, engine.worker(slots=10, grace=0):
        runs = await populate(engine)
        async with browsing(engine) as client:
            yield Shop(engine, runs, client)


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    assert not missing(), f"no page is tried in a browser: {missing()}"
    with browser() as found:
        yield found


@pytest.fixture
def driver(chrome: Chrome) -> Chrome:
    """A browser whose logs tell nothing of earlier tests."""
    for name in ("browser", "performance"):
        log_of(chrome, name)
    return chrome


@pytest.fixture(params=["file", "postgres"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage
