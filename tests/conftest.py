"""What every test shares: how hard Hypothesis looks (`make prove` sets PERDURE_PROVE and looks a hundred times harder), and
places on the test servers, if there are any."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

# Here, because the first directory that imports the suite decides whether its assertions explain themselves.
pytest.register_assert_rewrite("perdure.testing.conformance")

for name, examples in {"usual": 100, "prove": 10_000}.items():
    settings.register_profile(
        name, max_examples=examples, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("prove" if os.environ.get("PERDURE_PROVE") else "usual")


def pytest_collection_finish() -> None:
    # Thousands of tests and all that they import are there to the end: looking at them in every collection took a tenth of the time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def schemas() -> Iterator[Schemas]:
    schemas = Schemas()
    yield schemas
    schemas.drop()


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    databases = Databases()
    yield databases
    databases.drop()
