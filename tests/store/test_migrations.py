from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import perdure.store.migrations
from perdure.errors import SchemaMismatch, UsageError
from perdure.host import Host
from perdure.store import migration_script, migration_status, open_store
from perdure.store.migrations import known
from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE
from perdure.testing import conformance
from perdure.testing.conformance.harness import ACTOR, a_run, claim_ids
from tests.invariants import scan_store


class TestMigrations(conformance.Migrations): ...


def test_a_number_means_one_migration_on_every_database() -> None:
    """A database that needs a file of its own has a number of its own for it."""
    names: dict[int, set[str]] = {}
    for dialect in (SQLITE, POSTGRES, MYSQL):
        files = known(dialect)
        assert len({one.version for one in files}) == len(files)
        for one in files:
            names.setdefault(one.version, set()).add(one.name)
    assert all(len(those) == 1 for those in names.values()), names


async def test_without_leave_to_migrate_missing_tables_are_reported(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db", Host(), migrate=False)
    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await store.open()


async def test_without_leave_to_migrate_a_complete_schema_is_enough(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    for migrate in (True, False):
        store = open_store(url, Host(), migrate=migrate)
        await store.open()
        [answer] = await store.create([a_run(f"migrated-{migrate}")], ACTOR)
        assert answer.created
        await store.close()


async def test_the_status_tells_what_was_applied_and_applies_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    assert {one.applied_at for one in await migration_status(url, Host())} == {0}
    store = open_store(url, Host())
    await store.open()
    await store.close()
    status = await migration_status(url, Host())
    assert [one.version for one in status] == sorted({one.version for one in status})
    assert all(one.applied_at for one in status)


async def test_the_printed_script_makes_the_same_schema(tmp_path: Path) -> None:
    schema = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE '%_migrations%' ORDER BY name"
    store = open_store(f"sqlite:///{tmp_path}/a.db?prefix=shop_", Host())
    await store.open()
    applied = await store.query(schema)
    await store.close()
    by_hand = sqlite3.connect(":memory:")
    by_hand.executescript(migration_script("sqlite://?prefix=shop_"))
    assert by_hand.execute(schema).fetchall() == applied
    assert {name.split("_")[0] for name, _ in applied} - {"sqlite"} == {"shop"}
    by_hand.close()


async def test_two_prefixes_share_a_database_and_nothing_else(tmp_path: Path) -> None:
    stores = [open_store(f"sqlite:///{tmp_path}/a.db?prefix={prefix}", Host()) for prefix in ("a_", "b_")]
    for store in stores:
        await store.open()
    await stores[0].create([a_run("r1", idempotency_key="k")], ACTOR)
    assert await stores[1].get("r1") is None
    assert await claim_ids(stores[1]) == []
    assert await claim_ids(stores[0]) == ["r1"]
    for store in stores:
        assert await scan_store(store.query) == []
        await store.close()


@pytest.mark.parametrize("prefix", ["", "Shop_", "1_", "a-b", "a b", "x" * 42, "a;drop"])
def test_a_prefix_that_cannot_begin_a_name_is_refused(prefix: str) -> None:
    with pytest.raises(UsageError):
        open_store(f"sqlite://?prefix={prefix}", Host())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "shop.db",
        "oracle://x/y",
        "mysql://x",
        "mysql://x/y?pool=0",
        "mysql://x:port/y",
        "mysql://x/y?ssl=maybe",
        "mysql://x/y?schema=z",
        "postgresql://x/y?pool=0",
        "postgresql://x/y?schema=a-b",
        "sqlite:/shop.db#x",
        "sqlite://host/shop.db",
        "sqlite://?wal=off",
        "sqlite://?busy=x",
    ],
)
def test_a_url_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(UsageError):
        open_store(url, Host())


@pytest.mark.parametrize("database", ["sqlite", "postgres", "mysql"])
def test_no_two_migrations_have_one_number(database: str) -> None:
    folder = Path(perdure.store.migrations.__file__).parent / "migrations" / database
    numbers = [path.name.partition("_")[0] for path in folder.glob("*.sql")]
    assert numbers
    assert len(numbers) == len(set(numbers))
