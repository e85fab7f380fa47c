"""After all migrations, the schemas of all databases are the same, as the databases describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store import migration_script, migration_status
from perdure.testing.conformance.harness import a_record, commit, held
from tests.store.migrations.conftest import KINDS, Place, Servers, a_place
from tests.store.migrations.schema import Index, Schema

#: Indexes that differ between databases, with the reason.
DIFFERENT = {
    (
        "runs",
        "suspect",
    ): "SQLite's claim index carries `claims`; MySQL has no partial indexes, and few runs have `claims`",
    ("runs", "marked"): "MySQL's index of what is held carries `marked`",
    ("runs", "blocked"): "MySQL finds what is blocked by its status",
    ("runs", "to_expire"): "MySQL has no partial indexes, and what a run ends with changes less often than its status",
    ("runs", "by_end"): "MySQL finds what ended at a time by the index of deadlines",
    ("runs", "deleted_by_age"): "servers read few deleted runs fast enough; MySQL has no partial indexes",
    ("events", "by_run"): "PostgreSQL's key begins with the run already",
    ("events", "by_id"): "elsewhere the number is the key",
}
#: Keys that differ between databases, with the reason.
KEYS = {
    (
        "postgres",
        "perdure_events",
    ): "one index less to write; elsewhere a number that the database gives has to be the key",
}
#: Columns that replace partial indexes: they have the value of another column in one status only.
IN_ONE_STATE = {"ready_queue": "queue", "waits_until": "wake_at"}


@pytest.fixture
async def schema_of(tmp_path: Path, servers: Servers) -> dict[str, Schema]:
    found = {}
    for kind in KINDS:
        async with a_place(kind, tmp_path, servers) as place:
            async with place.store():
                pass
            found[kind] = await place.schema()
    return found


async def test_tables_columns_and_keys_are_the_same(schema_of: dict[str, Schema]) -> None:
    ours = schema_of["sqlite"]
    for kind, theirs in schema_of.items():
        assert theirs.keys() == ours.keys()
        for name, table in theirs.items():
            assert table.columns == ours[name].columns, (kind, name)
            assert (table.key != ours[name].key) == ((kind, name) in KEYS), (kind, name)
            assert set(ours[name].key) <= set(table.key)


async def test_every_column_of_a_run_may_be_left_out_of_an_insert(schema_of: dict[str, Schema]) -> None:
    for schema in schema_of.values():
        assert [name for name, one in schema["perdure_runs"].columns.items() if not one.optional] == []


async def test_indexes_lead_to_the_same_rows(schema_of: dict[str, Schema]) -> None:
    by_name: dict[tuple[str, str], list[Index]] = {}
    for schema in schema_of.values():
        for table, described in schema.items():
            for name, index in described.indexes.items():
                by_name.setdefault((table.removeprefix("perdure_"), name), []).append(index)
    same = {place for place, found in by_name.items() if len(found) == len(schema_of) and _are_alike(found)}
    assert by_name.keys() - same == DIFFERENT.keys()


def _are_alike(indexes: list[Index]) -> bool:
    columns = [tuple(IN_ONE_STATE.get(column, column) for column in index.columns) for index in indexes]
    if any(one[0] != "status" for one in columns):
        # Without partial indexes, the status is the first column instead.
        columns = [one[1:] if one[0] == "status" else one for one in columns]
    # Columns after the shortest key only save reading the row.
    shortest = min(columns, key=len)
    return len({index.unique for index in indexes}) == 1 and all(one[: len(shortest)] == shortest for one in columns)


async def test_a_script_that_is_run_by_hand_is_all_that_a_worker_needs(place: Place) -> None:
    script = migration_script(place.url)
    await place.run(script)
    by_hand = await place.schema()
    # A user may run it again to be sure.
    await place.run(script)
    async with place.store(migrate=False) as store:
        lease = await held(store)
        await commit(store, lease, a_record(0))
    assert all(one.applied_at for one in await migration_status(place.url, Host()))
    assert await place.schema() == by_hand


async def test_the_script_makes_what_migrating_makes(servers: Servers, tmp_path: Path) -> None:
    for kind in KINDS:
        made = []
        for way in ("script", "migrate"):
            folder = tmp_path / kind / way
            folder.mkdir(parents=True)
            async with a_place(kind, folder, servers) as place:
                if way == "script":
                    await place.run(migration_script(place.url))
                else:
                    async with place.store():
                        pass
                made.append(await place.schema())
        assert made[0] == made[1]


async def test_applying_a_file_again_changes_nothing(place: Place) -> None:
    async with place.store() as store:
        lease = await held(store)
        await commit(store, lease, a_record(0))
        before = await place.schema()
        await place.run(migration_script(place.url))
        assert await place.schema() == before
        await commit(store, lease, a_record(1))
        assert [record.seq for record in await store.history(lease.run_id)] == [0, 1]
