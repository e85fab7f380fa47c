"""Databases in memory: each is a new one, whatever the ones before it held."""

from __future__ import annotations

import pytest

from perdure.host import Host
from perdure.store import SqlStore, open_store
from perdure.testing.conformance.harness import a_run

_SCHEMA = "SELECT type, name, sql FROM sqlite_master ORDER BY type, name"


async def opened(url: str = "sqlite://") -> SqlStore:
    store = open_store(url, Host())
    await store.open()
    return store


@pytest.mark.parametrize("first", ["sqlite://", "sqlite://?prefix=first_"])
async def test_a_later_database_has_the_tables_of_the_first_and_none_of_its_rows(first: str) -> None:
    earlier = await opened(first)
    await earlier.create([a_run("a")], actor="test")
    later = await opened(first)

    assert await later.query(_SCHEMA) == await earlier.query(_SCHEMA)
    assert await later.query("SELECT version, checksum FROM perdure_migrations") == await earlier.query(
        "SELECT version, checksum FROM perdure_migrations"
    )
    assert await later.query("SELECT id FROM perdure_runs") == []

    await later.create([a_run("b")], actor="test")
    assert await earlier.query("SELECT id FROM perdure_runs") == [("a",)]
    await earlier.close()
    await later.close()


async def test_databases_with_different_prefixes_do_not_get_each_others_tables() -> None:
    plain, other = await opened(), await opened("sqlite://?prefix=other_")

    names = {name for _, name, _ in await other.query("SELECT type, name, sql FROM sqlite_master WHERE type = 'table'")}

    assert "other_runs" in names
    assert not {name for name in names if name.startswith("perdure_")}
    await plain.close()
    await other.close()
