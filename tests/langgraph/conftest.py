"""Databases on which graphs store their checkpoints."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.homes import KINDS, Homes


@pytest.fixture(params=KINDS)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """URL of an empty database."""
    async with Homes(request.param).at(tmp_path / "home") as home:
        yield home.url
