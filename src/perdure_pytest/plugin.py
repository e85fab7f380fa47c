"""Fixtures for tests of workflows: `perdure_env` and `perdure_engine`.

pytest loads this module in every project that has Perdure installed, so it imports nothing else until a test asks for a
fixture. It needs no other plugin: an `async def` test that uses one of the fixtures runs with pytest-asyncio or anyio
if they take it, and otherwise on an event loop of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.testing import EngineFactory, EnvironmentFactory

#: URLs of databases, separated by spaces, on which each test with `perdure_engine` runs.
DATABASES = "PERDURE_TEST_DATABASES"

_FIXTURES = frozenset({"perdure_env", "perdure_engine"})


@pytest.fixture
def perdure_env() -> EnvironmentFactory:
    """Make environments whose clocks skip to the next timer.

    Call it in a test: `async with perdure_env(checkout) as env`.
    """
    from perdure.testing import EnvironmentFactory

    return EnvironmentFactory()


@pytest.fixture
def perdure_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineFactory]:
    """Make engines, each with a worker.

    Call it in a test: `async with perdure_engine(checkout) as engine`. All engines of a test share a database, which is
    empty at first: a file of SQLite, or a place of its own on each database that the variable PERDURE_TEST_DATABASES
    names.
    """
    from perdure.testing import EngineFactory

    url = getattr(request, "param", "sqlite://")
    # A database in memory has room for one engine only.
    factory = EngineFactory(f"sqlite:///{tmp_path / 'perdure.db'}" if url == "sqlite://" else url)
    yield factory
    factory.drop()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run tests with `perdure_engine` once for each database of the environment."""
    if "perdure_engine" in metafunc.fixturenames and (urls := os.environ.get(DATABASES, "").split()):
        # A URL may have a password, so it is no part of a name.
        ids = [f"{url.partition(':')[0]}-{number}" for number, url in enumerate(urls)]
        metafunc.parametrize("perdure_engine", urls, ids=ids, indirect=True)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test that uses a fixture of this plugin, if no other plugin does."""
    if _FIXTURES.isdisjoint(pyfuncitem.fixturenames):
        return None
    import inspect

    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    import asyncio

    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
