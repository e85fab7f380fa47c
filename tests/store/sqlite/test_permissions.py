"""Permissions of the files of a database."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.host import Host
from perdure.store import open_store
from perdure.testing.conformance.harness import ACTOR, a_run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other permissions")


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


async def modes_of_a_database_in_use(path: Path) -> dict[str, int]:
    store = open_store(f"sqlite:///{path}", Host())
    await store.open()
    await store.create([a_run("r1")], ACTOR)
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in path.parent.iterdir() if one.is_file()}
    await store.close()
    return modes


async def test_a_new_database_can_only_be_read_by_its_user(tmp_path: Path) -> None:
    modes = await modes_of_a_database_in_use(tmp_path / "app.db")
    assert {"app.db", "app.db-wal", "app.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o600}


async def test_a_database_that_exists_keeps_its_permissions_and_shares_them(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    path.touch()
    path.chmod(0o660)
    modes = await modes_of_a_database_in_use(path)
    assert {"app.db", "app.db-wal", "app.db-shm"} <= modes.keys()
    assert set(modes.values()) == {0o660}


async def test_files_of_a_database_made_before_stay_usable(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    await modes_of_a_database_in_use(path)
    path.chmod(0o644)
    modes = await modes_of_a_database_in_use(path)
    assert modes["app.db"] == 0o644
