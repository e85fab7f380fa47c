"""A database that cannot be used has an error of its own, and is left as it was."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure import Context, Engine, Status, StoreUnavailable, UsageError, workflow
from perdure.admin import Reason
from perdure.errors import SchemaMismatch, StoreCorrupt, StoreReadOnly
from tests.stage import Stage, until


async def act(number: int) -> int:
    return number


@workflow("store.act.v1")
async def acting(ctx: Context) -> int:
    number = await ctx.step(act, 7)
    await ctx.receive("go")
    return number


def _files(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions mean nothing to root, so become another user for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "runs.db",
        "mysql://localhost",
        "postgresql://localhost/x?pool=many",
        "sqlite://host/runs.db",
        "sqlite:///a.db?nonsense=1",
        "sqlite:///a?busy=x",
    ],
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Engine(url, [acting])


async def test_a_file_in_a_directory_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path / 'nowhere' / 'runs.db'}", [acting])
    with pytest.raises(StoreUnavailable, match="nowhere/runs.db cannot be opened"):
        await engine.start(acting())
    assert _files(tmp_path) == []
    await engine.close()


async def test_a_directory_is_no_database(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}", [acting])
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await engine.start(acting())
    assert _files(tmp_path) == []


async def test_a_file_that_this_user_may_not_even_read_is_refused(on_disk: Stage) -> None:
    async with on_disk.engine(acting) as engine:
        await engine.start(acting())
    assert on_disk.path is not None
    content = on_disk.path.read_bytes()
    on_disk.path.chmod(0)
    engine = Engine(on_disk.url, [acting])
    with unprivileged(), pytest.raises((StoreReadOnly, StoreUnavailable), match="cannot be"):
        await engine.start(acting())
    on_disk.path.chmod(0o600)
    assert on_disk.path.read_bytes() == content


async def test_a_file_that_this_user_may_not_write_is_read_only(tmp_path: Path) -> None:
    folder = tmp_path
    stage = Stage(folder / "runs.db")
    async with stage.engine(acting) as engine:
        await engine.start(acting())
    assert stage.path is not None
    before = await stage.dump()
    for parent in (folder, *folder.parents[:2]):
        parent.chmod(0o755)
    stage.path.chmod(0o444)
    for leftover in folder.glob("runs.db-*"):
        leftover.unlink()
    folder.chmod(0o555)
    engine = Engine(stage.url, [acting])
    with unprivileged(), pytest.raises(StoreReadOnly, match="cannot be written"):
        await engine.start(acting())
    folder.chmod(0o755)
    stage.path.chmod(0o600)
    assert await stage.dump() == before


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n" * 200)
    content = path.read_bytes()
    engine = Engine(f"sqlite:///{path}", [acting])
    with pytest.raises(StoreCorrupt, match="not a database"):
        await engine.start(acting())
    assert path.read_bytes() == content


async def test_a_damaged_database_is_refused(on_disk: Stage) -> None:
    async with on_disk.engine(acting) as engine:
        await engine.start_many([acting() for _ in range(500)])
    assert on_disk.path is not None
    content = bytearray(on_disk.path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 8192] = os.urandom(8192)
    on_disk.path.write_bytes(bytes(content))
    with pytest.raises(StoreCorrupt, match="restore it from a backup"):
        await Engine(on_disk.url, [acting]).open()


async def test_a_database_without_tables_is_not_migrated_unless_that_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    engine = Engine(f"sqlite:///{path}", [acting], migrate=False)
    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await engine.start(acting())
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == []


async def test_a_database_of_a_newer_version_is_left_alone(on_disk: Stage) -> None:
    async with on_disk.engine(acting) as engine:
        await engine.start(acting())
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection, connection:
        connection.execute("INSERT INTO perdure_migrations VALUES (999, '0999_future', 'x', 1)")
    before = await on_disk.dump()
    with pytest.raises(SchemaMismatch, match="0999_future"):
        await Engine(on_disk.url, [acting]).start(acting())
    assert await on_disk.dump() == before


async def _parked(stage: Stage) -> str:
    engine = stage.engine(acting)
    async with engine.worker():
        run = await engine.start(acting())
        await until(run, Status.WAITING)
    await run.send("go")
    await engine.close()
    return run.id


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("UPDATE perdure_history SET payload = '{'", Reason.UNDECODABLE),
        ("UPDATE perdure_history SET payload = '\"seven\"'", Reason.UNDECODABLE),
        ("UPDATE perdure_history SET location = 'other'", Reason.DIVERGED),
        ("UPDATE perdure_history SET kind = 'timer'", Reason.DIVERGED),
        ("UPDATE perdure_history SET kind = 'nonsense'", Reason.UNDECODABLE),
        ("UPDATE perdure_history SET seq = 5", Reason.UNDECODABLE),
        ("UPDATE perdure_messages SET kind = 'nonsense'", Reason.UNDECODABLE),
        ("UPDATE perdure_runs SET input = 'x'", Reason.UNDECODABLE),
        ("UPDATE perdure_runs SET input = '{\"unknown\": 1}'", Reason.UNDECODABLE),
    ],
)
async def test_a_corrupt_history_blocks_its_run_alone(on_disk: Stage, damage: str, reason: Reason) -> None:
    run_id = await _parked(on_disk)
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection, connection:
        connection.execute(damage)
    before = await on_disk.dump()
    engine = on_disk.engine(acting)
    run = await engine.get(run_id)
    async with engine.worker():
        neighbour = await engine.start(acting())
        await neighbour.send("go")
        assert await neighbour.result("20s") == 7
        await until(run, Status.BLOCKED)
        assert (await run.info()).reason is reason
        why = await run.why()
    assert ("no longer follows its history" if reason is Reason.DIVERGED else "does not fit its code") in why
    after = await on_disk.dump()
    for table in ("history", "messages"):
        assert [row for row in after[table] if row[0] == run_id] == before[table]


async def test_a_corrupt_row_is_named_to_its_reader(on_disk: Stage) -> None:
    run_id = await _parked(on_disk)
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection, connection:
        connection.execute("UPDATE perdure_history SET kind = 'nonsense'")
    before = await on_disk.dump()
    engine = on_disk.engine(acting)
    run = await engine.get(run_id)
    with pytest.raises(StoreCorrupt, match="nonsense"):
        await run.history()
    assert await on_disk.dump() == before
