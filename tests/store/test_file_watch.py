"""Commits of other processes that a process hears of without polling."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.host import Host
from perdure.store import open_store
from perdure.store.contract import Change
from perdure.store.file_watch import Doorbell
from perdure.store.sqlite.files import is_watchable
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.helpers import eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is a part of Linux")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def _fork_once() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def _files(directory: Path) -> list[Path]:
    return [one for one in directory.rglob("*") if one.is_file()]


async def test_a_commit_to_a_file_is_heard_of_without_a_poll_whatever_program_makes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    before = ours.is_notified
    await ours.poll_changes()
    assert (before, ours.is_notified) == (False, True)
    told: list[Change] = []
    ours.subscribe(told.append)
    for number in range(3):
        told.clear()
        await theirs.create([a_run(f"r{number}")], ACTOR)
        await eventually(lambda: Change.ALL in told, saying="the commit being heard of")
    told.clear()
    with closing(sqlite3.connect(tmp_path / "runs.db")) as plain:
        plain.execute("INSERT INTO perdure_runs (id, type) VALUES ('plain', 'x')")
        await asyncio.sleep(0.05)
        assert not told
        plain.commit()
        await eventually(lambda: Change.ALL in told, saying="the commit of plain SQL being heard of")
    await theirs.close()
    await ours.close()
    assert not ours.is_notified


async def test_a_poll_that_wants_no_watch_leaves_the_file_alone_until_the_next_poll(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    await ours.poll_changes(watch=False)
    assert not ours.is_notified
    told: list[Change] = []
    ours.subscribe(told.append)
    statements: list[str] = []
    store: Any = ours
    await store.trace(statements.append)
    for number in range(5):
        await theirs.create([a_run(f"r{number}")], ACTOR)
        await asyncio.sleep(0.02)
    assert (told, statements) == ([], [])
    assert await ours.poll_changes(watch=False)
    assert told == [Change.ALL]
    assert not await ours.poll_changes(watch=False)
    await ours.close()
    await theirs.close()


async def test_a_watch_that_no_poll_has_wanted_for_long_ends_with_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that once waited for a result must not check the file for ever."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    monkeypatch.setattr("perdure.store.sqlite.store.WATCH_LAPSE", 0.0)
    monkeypatch.setattr("perdure.store.sqlite.store.LONGEST_LAPSE", 0.0)
    await ours.poll_changes()
    statements: list[str] = []
    store: Any = ours
    await store.trace(statements.append)
    await theirs.create([a_run("r1")], ACTOR)
    await eventually(lambda: not ours.is_notified, saying="the end of the watch")
    assert statements == []
    monkeypatch.undo()
    assert await ours.poll_changes()
    assert ours.is_notified
    await ours.close()
    await theirs.close()


async def test_a_poll_tells_of_a_commit_that_the_watch_has_seen_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    await ours.poll_changes()
    told: list[Change] = []
    ours.subscribe(told.append)
    await theirs.create([a_run("r1")], ACTOR)
    await eventually(lambda: Change.ALL in told, saying="the commit being heard of")
    assert await ours.poll_changes()
    await ours.close()
    await theirs.close()


async def test_our_own_commits_are_not_taken_for_those_of_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    await ours.poll_changes()
    told: list[Change] = []
    ours.subscribe(told.append)
    for number in range(20):
        await ours.create([a_run(f"r{number}")], ACTOR)
    await theirs.create([a_run("theirs")], ACTOR)
    await eventually(lambda: Change.ALL in told, saying="the commit being heard of")
    assert told[: told.index(Change.ALL)] == [Change.READY] * 20
    await ours.close()
    await theirs.close()


async def test_a_log_that_is_gone_for_a_moment_is_watched_again(tmp_path: Path) -> None:
    """A fork closes all connections, and SQLite deletes its log with the last of them."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours = open_store(url, Host())
    await ours.open()
    await ours.poll_changes()
    told: list[Change] = []
    ours.subscribe(told.append)
    _fork_once()
    await ours.create([a_run("again")], ACTOR)
    theirs = open_store(url, Host())
    await theirs.open()
    await eventually(lambda: ours.is_notified, saying="the log being watched again")
    told.clear()
    await theirs.create([a_run("theirs")], ACTOR)
    await eventually(lambda: Change.ALL in told, saying="the commit being heard of")
    await ours.close()
    await theirs.close()


async def test_where_nothing_can_be_watched_the_file_is_polled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Host, "watch_file", lambda *_: None)
    store = open_store(f"sqlite:///{tmp_path / 'runs.db'}", Host())
    await store.open()
    assert not await store.poll_changes()
    assert not store.is_notified
    assert store.poll_interval <= 1.5
    await store.close()


async def test_a_database_in_memory_has_nothing_to_watch() -> None:
    store = open_store("sqlite://", Host())
    await store.open()
    await store.poll_changes()
    assert not store.is_notified
    await store.close()


@pytest.mark.parametrize(("kind", "watchable"), [("ext4", True), ("fuse.vmhgfs", False), ("9p", False), ("", False)])
def test_only_a_file_system_of_this_machine_alone_is_relied_on(tmp_path: Path, kind: str, watchable: bool) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"none / tmpfs rw\nnone {tmp_path} {kind or 'unknown'} rw\n")
    assert is_watchable(str(tmp_path / "runs.db"), str(mounts)) is watchable


async def test_a_doorbell_is_heard_by_others_and_not_by_the_one_who_rings(temporary: Path) -> None:
    rings: list[str] = []
    ours = Doorbell("shop", Host(), lambda: rings.append("ours"))
    theirs = Doorbell("shop", Host(), lambda: rings.append("theirs"))
    other = Doorbell("another database", Host(), lambda: rings.append("other"))
    for bell in (ours, theirs, other):
        bell.hear()
    ours.ring()
    await eventually(lambda: rings, saying="the ring")
    theirs.ring()
    await eventually(lambda: len(rings) == 2, saying="the other ring")
    assert rings == ["theirs", "ours"]
    for bell in (ours, theirs, other):
        bell.close()
    files = _files(temporary)
    assert {stat.S_IMODE(file.parent.stat().st_mode) for file in files} == {0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_a_doorbell_whose_file_was_deleted_is_made_anew(temporary: Path) -> None:
    rings: list[str] = []
    ours = Doorbell("shop", Host(), lambda: rings.append("ours"))
    theirs = Doorbell("shop", Host(), lambda: None)
    ours.hear()
    for file in _files(temporary):
        file.unlink()

    def heard() -> bool:
        theirs.ring()
        return bool(rings)

    await eventually(heard, saying="a ring of the new file")
    ours.close()
    theirs.close()


async def test_a_directory_of_another_user_is_not_used(temporary: Path) -> None:
    (temporary / f"perdure-{os.geteuid()}").symlink_to(temporary)
    bell = Doorbell("shop", Host(), lambda: None)
    bell.ring()
    bell.hear()
    bell.close()
    assert _files(temporary) == []


async def test_a_doorbell_does_not_grow_without_bound(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.store.file_watch._LARGEST", 10)
    rings: list[str] = []
    ours = Doorbell("shop", Host(), lambda: rings.append("ours"))
    theirs = Doorbell("shop", Host(), lambda: None)
    ours.hear()
    for _ in range(100):
        theirs.ring()
    await eventually(lambda: rings, saying="a ring")
    assert all(one.stat().st_size <= 11 for one in _files(temporary))
    ours.close()
    theirs.close()
