"""Every test of the public interface gets a real database; most of them once in memory and once in a file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.engine.stage import Stage


@pytest.fixture(params=["memory", "file"])
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(None if request.param == "memory" else tmp_path / "runs.db")
    yield stage
    await stage.close()


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "runs.db")
    yield stage
    await stage.close()
