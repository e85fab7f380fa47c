from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.http.serving import WORKFLOWS, Served, served
from tests.stage import Stage


@pytest.fixture
async def site(stage: Stage) -> AsyncIterator[Served]:
    """A server on each database, with a worker."""
    async with served(stage.engine(*WORKFLOWS)) as site:
        yield site


@pytest.fixture
async def local(on_disk: Stage) -> AsyncIterator[Served]:
    """A server on SQLite, with a worker."""
    async with served(on_disk.engine(*WORKFLOWS)) as site:
        yield site


@pytest.fixture
async def idle(on_disk: Stage) -> AsyncIterator[Served]:
    """A server on SQLite without a worker."""
    async with served(on_disk.engine(*WORKFLOWS), work=False) as site:
        yield site
