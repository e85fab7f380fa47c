"""The processes of a fault test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.faults.family import Family, family


@pytest.fixture
async def processes() -> AsyncIterator[Family]:
    async with family() as members:
        yield members
