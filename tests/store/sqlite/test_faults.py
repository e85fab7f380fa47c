"""What can be wrong with an SQLite database, and what is said about it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from perdure.errors import (
    EngineClosed,
    StoreCorrupt,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from perdure.host import Host
from perdure.store import open_store
from perdure.store.sqlite import files
from perdure.store.sqlite.connection import CheckpointLock, SqliteConnection
from perdure.store.sqlite.store import SqliteStore
from perdure.testing.conformance.harness import ACTOR, a_record, a_run, claim, claim_ids, commit
from tests.invariants import scan_store


async def test_a_directory_that_does_not_exist_is_named(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/nowhere/shop.db", Host())
    with pytest.raises(StoreUnavailable, match=r"nowhere/shop\.db.*directory exists"):
        await store.open()


async def test_a_directory_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}", Host())
    with pytest.raises(StoreUnavailable):
        await store.open()


async def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes. " * 100)
    store = open_store(f"sqlite:///{path}", Host())
    with pytest.raises(StoreCorrupt, match=r"notes\.txt"):
        await store.open()
    assert path.read_text().startswith("These are my notes.")


async def test_a_damaged_database_is_found_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    store = open_store(f"sqlite:///{path}", Host())
    await store.open()
    await store.create([a_run(f"r{number}", input=f'"{"x" * 500}"') for number in range(200)], ACTOR)
    await store.close()
    content = bytearray(path.read_bytes())
    for page in range(4, len(content) // 4096, 2):
        content[page * 4096 : page * 4096 + 200] = b"\xff" * 200
    path.write_bytes(content)
    store = open_store(f"sqlite:///{path}?quick_check=on", Host())
    with pytest.raises(StoreCorrupt, match="backup"):
        await store.open()


async def test_only_the_writer_checks_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bool] = []
    check = SqliteConnection._check

    def note(self: SqliteConnection, raw: sqlite3.Connection, path: str) -> None:
        found: list[str] = []
        raw.set_trace_callback(found.append)
        check(self, raw, path)
        raw.set_trace_callback(None)
        checked.extend(self._writes for sql in found if "quick_check" in sql)

    monkeypatch.setattr(SqliteConnection, "_check", note)
    store = open_store(f"sqlite:///{tmp_path}/shop.db?quick_check=on", Host())
    await store.open()
    assert await store.get("r1") is None
    await store.close()
    assert checked == [True]


async def test_a_full_disk_is_reported_and_loses_nothing(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db", Host())
    assert isinstance(store, SqliteStore)
    await store.open()
    await store.create([a_run("r1")], ACTOR)
    [claimed] = (await claim(store)).runs
    [(pages,)] = await store.query("SELECT page_count FROM pragma_page_count")
    await store._writer.thread.run(
        lambda: store._writer._open().execute(f"PRAGMA max_page_count = {pages + 2}").fetchall()
    )
    with pytest.raises(StoreFull, match=r"shop\.db"):
        await commit(store, claimed.lease, *(a_record(seq, payload=f'"{"x" * 4000}"') for seq in range(20)))
    assert await store.history("r1") == []
    await store._writer.thread.run(lambda: store._writer._open().execute("PRAGMA max_page_count = 1000000").fetchall())
    await commit(store, claimed.lease, *(a_record(seq, payload=f'"{"x" * 4000}"') for seq in range(20)))
    assert len(await store.history("r1")) == 20
    assert await scan_store(store.query) == []
    await store.close()


async def open_and_close(url: str) -> None:
    store = open_store(url, Host())
    await store.open()
    await store.close()


READ_ONLY = """
import asyncio, os, sys
from perdure.errors import StoreReadOnly, StoreUnavailable
from perdure.host import Host
from perdure.store import open_store
store = open_store(sys.argv[1], Host(), inline=True)
os.setgid(65534)
os.setuid(65534)
try:
    asyncio.run(store.open())
except (StoreReadOnly, StoreUnavailable) as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_a_file_that_may_not_be_written_is_reported(mode: str) -> None:
    # Not below pytest's own directory, into which only its owner can look.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.db")
        asyncio.run(open_and_close(f"sqlite:///{path}"))
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.close()
        path.chmod(0o444)
        if os.geteuid() != 0:
            with pytest.raises(StoreReadOnly, match="permissions"):
                asyncio.run(open_and_close(f"sqlite:///{path}"))
            return
        # Permissions mean nothing to root, so another user has to try.
        Path(folder).chmod(0o755)
        command = [sys.executable, "-c", READ_ONLY, f"sqlite:///{path}"]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        assert answer.stdout.startswith("StoreReadOnly"), answer
        assert "shop.db" in answer.stdout


async def test_a_store_does_not_survive_a_fork(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db", Host())
    await store.open()
    store._process = os.getppid()
    with pytest.raises(EngineClosed, match="fork"):
        await store.get("r1")
    store._process = os.getpid()
    await store.close()


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    lines = [
        "/dev/sda / ext4 rw 0 0\n",
        "server:/x /mnt/share nfs4 rw 0 0\n",
        "server:/y /mnt/my\\040files cifs rw 0 0\n",
    ]
    # The innermost file system counts, wherever it is listed.
    for listed in (lines, lines[::-1]):
        mounts.write_text("".join(listed))
        for path in ("/mnt/share/shop.db", "/mnt/share/deep/shop.db", "/mnt/my files/shop.db"):
            with pytest.raises(StoreUnavailable, match="network"):
                files.check_file_system(path, str(mounts))
        for path in ("/mnt/shop.db", "/mnt/shares/shop.db", "/shop.db"):
            files.check_file_system(path, str(mounts))


def test_an_sqlite_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 36, 0))
    with pytest.raises(StoreUnavailable, match=r"3\.37"):
        files.check_version()


async def test_the_settings_are_those_that_durability_needs(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db", Host())
    assert isinstance(store, SqliteStore)
    await store.open()

    def settings() -> dict[str, object]:
        connection = store._writer._open()
        names = ("journal_mode", "synchronous", "busy_timeout", "foreign_keys", "trusted_schema", "mmap_size")
        return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}

    assert await store._writer.thread.run(settings) == {
        "journal_mode": "wal",
        "synchronous": 2,
        "busy_timeout": 0,
        "foreign_keys": 1,
        "trusted_schema": 0,
        "mmap_size": 0,
    }
    await store.close()


async def test_one_process_at_a_time_may_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (CheckpointLock(f"{tmp_path}/shop.db") for _ in range(2))
    assert first.take()
    assert first.take()
    assert not second.take()
    first.give_up()
    assert second.take()
    second.close()
    assert first.take()
    first.close()


async def test_old_versions_of_sqlite_warn_of_a_second_writer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 40, 1))
    stores = [open_store(f"sqlite:///{tmp_path}/shop.db", Host()) for _ in range(2)]
    for store in stores:
        assert isinstance(store, SqliteStore)
        # On a slow machine the time between two transactions is long enough for the lock to be given up.
        store._writer.thread._idle = lambda: None
        await store.open()
    other = CheckpointLock(f"{tmp_path}/shop.db")
    assert not other.take()
    for number in range(5):
        for store in stores:
            await store.create([a_run(f"r{number}")], ACTOR)
    # Threads that earlier tests left behind may log meanwhile, but not about the store.
    [said] = {record.getMessage() for record in caplog.records if record.name == "perdure.store"}
    assert "more than one process" in said
    assert len(await claim_ids(stores[0])) == 5
    for store in stores:
        await store.close()
    other.close()


async def test_a_database_that_stays_locked_is_unavailable_after_the_bound(tmp_path: Path) -> None:
    path = f"{tmp_path}/shop.db"
    store = open_store(f"sqlite:///{path}?busy=0.05", Host())
    await store.open()
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await store.create([a_run("r1")], ACTOR)
    assert await store.get("r1") is None
    holder.execute("COMMIT")
    holder.close()
    [answer] = await store.create([a_run("r1")], ACTOR)
    assert answer.created
    await store.close()


@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("kept", ["in memory", "on disk"])
async def test_a_store_that_is_opened_again_keeps_its_connections_and_its_data(
    tmp_path: Path, kept: str, *, inline: bool
) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db" if kept == "on disk" else "sqlite://", Host(), inline=inline)
    await store.open()
    await store.create([a_run("r1")], ACTOR)
    assert isinstance(store, SqliteStore)
    before = [connection._raw for connection in store._connections]
    await store.open()
    assert [connection._raw for connection in store._connections] == before
    assert await claim_ids(store) == ["r1"]
    await store.close()
