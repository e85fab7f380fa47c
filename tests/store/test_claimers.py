"""Many claimers of one SQLite file, and many timers in it that are due at one instant; for the servers, see their own
folders."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store import SqlStore, open_store
from tests.servers.claimers import claimed_by_many, create_many, taken_of_timers

RUNS, DUE = (20_000, 100_000) if os.environ.get("PERDURE_PROVE") else (2_000, 2_000)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'perdure.db'}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    store = open_store(url, Host())
    await store.open()
    yield store
    await store.close()


async def test_many_claimers_of_one_file_take_each_run_once_and_all_of_them(store: SqlStore, url: str) -> None:
    await create_many(store, RUNS)
    claimed = await claimed_by_many(url, RUNS)
    assert len(claimed) == RUNS
    assert set(claimed.values()) == {1}


async def test_timers_of_a_file_that_are_due_at_one_instant_are_all_taken(store: SqlStore) -> None:
    assert await taken_of_timers(store, DUE) == DUE
