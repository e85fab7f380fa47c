"""The processes of a fault test, and the databases on which it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.faults.family import Family, family, zygotes
from tests.faults.homes import KINDS, Homes
from tests.faults.served import SERVERS, Served


@pytest.fixture(scope="session")
def door() -> Iterator[Path]:
    with zygotes() as path:
        yield path


@pytest.fixture
async def processes(door: Path) -> AsyncIterator[Family]:
    async with family(door) as members:
        yield members


@pytest.fixture(params=KINDS)
def homes(request: pytest.FixtureRequest) -> Homes:
    return Homes(request.param)


@pytest.fixture(params=SERVERS, scope="session")
def served(request: pytest.FixtureRequest) -> Served:
    return Served.asked_for(request)
