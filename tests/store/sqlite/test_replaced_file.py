"""A file that another one replaces while it is open: nothing is acknowledged that only the file which is gone has."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from perdure.core.model.turn import Turn, TurnOutcome
from perdure.errors import StoreUnavailable
from perdure.host import Host
from perdure.store import open_store
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.testing.conformance.harness import ACTOR, a_record, a_run, claim, commit, held


def _move(one: Path, other: Path) -> None:
    """With its log, which SQLite would otherwise apply to whatever file is there."""
    for end in ("", "-wal", "-shm"):
        Path(f"{one}{end}").replace(f"{other}{end}")


async def test_a_file_that_an_older_copy_replaces_takes_no_writes_until_it_is_back(tmp_path: Path) -> None:
    file, copy, kept = tmp_path / "shop.db", tmp_path / "copy.db", tmp_path / "kept.db"
    store = open_store(f"sqlite:///{file}", Host())
    await store.open()
    lease = await held(store)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("VACUUM INTO ?", [str(copy)])
    await commit(store, lease, a_record(0))
    _move(file, kept)
    copy.rename(file)
    with pytest.raises(StoreUnavailable, match="was replaced"):
        await commit(store, lease, a_record(1))
    with pytest.raises(StoreUnavailable, match="was replaced"):
        await store.history("r1")

    def work(connection: sqlite3.Connection) -> None:
        """Write nothing of its own."""

    async def seal(result: object) -> Turn:
        return Turn(lease=lease, records=(a_record(1),))

    with pytest.raises(StoreUnavailable, match="was replaced"):
        await store.transact(TransactionStep(function=work, is_async=False, make_turn=seal))
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM perdure_history").fetchone() == (0,)
    _move(kept, file)
    assert await commit(store, lease, a_record(1)) is TurnOutcome.APPLIED
    await store.close()


async def test_a_file_that_is_gone_takes_no_writes(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    store = open_store(f"sqlite:///{file}", Host())
    await store.open()
    await claim(store)
    file.unlink()
    with pytest.raises(StoreUnavailable, match="is gone"):
        await store.create([a_run()], ACTOR)
    await store.close()
