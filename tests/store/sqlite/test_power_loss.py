"""Power loss: a log cut off at every commit, or torn anywhere in between, leaves a database that keeps promises."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sqlite3
import struct
from pathlib import Path

from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Lease, Park, Release, RetryLater, Turn
from perdure.core.time.duration import NEVER
from perdure.store import SqlStore, open_store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    ManualSystem,
    a_child,
    a_message,
    a_record,
    a_run,
    a_worker,
    claim,
)
from tests.invariants import Known, scan

_HEADER = 32
_FRAME = 24
TORN = 2000 if os.environ.get("PERDURE_PROVE") else 60


async def a_day_of_work(store: SqlStore, system: ManualSystem) -> None:
    """Some of everything that the store can do."""
    for day in range(4):
        await store.create([a_run(f"{day}-{name}") for name in ("parent", "plain", "retried", "stopped")], ACTOR)
        leases = {one.run.id: one.lease for one in (await claim(store, "w1", nonce=f"{day}")).runs}
        parent = leases[f"{day}-parent"]
        children = tuple(a_child(f"{day}-{name}", parent.run_id) for name in ("a", "b"))
        await store.commit([Turn(lease=parent, children=children, records=(a_record(0),))], "w1")
        await work_off(store, leases, day)
        leases |= {one.run.id: one.lease for one in (await claim(store, "w1", nonce=f"{day}-children")).runs}
        done = Finish(Status.COMPLETED, "1")
        turns = [
            Turn(lease=parent, next=Park(NEVER, Reason.CHILD, 0)),
            *(Turn(lease=leases[f"{day}-{name}"], records=(a_record(0),), next=done) for name in ("a", "b")),
        ]
        await store.commit(turns, "w1")
        words = [
            a_record(1 + n, f"call-{day}-{name}", kind=RecordKind.CHILD, inbox_seq=1 + n)
            for n, name in enumerate(("a", "b"))
        ]
        await store.commit([Turn(lease=parent, records=tuple(words), read=2, next=done)], "w1")
        await store.heartbeat("w1")
        system.advance(1)
        await store.sweep(10)
    await store.register(a_worker("w2"))
    system.advance(60)
    await store.heartbeat("w2")
    await store.sweep(10)


async def work_off(store: SqlStore, leases: dict[str, Lease], day: int) -> None:
    plain, retried, stopped = (leases[f"{day}-{name}"] for name in ("plain", "retried", "stopped"))
    await store.commit([Turn(lease=lease, records=(a_record(0),)) for lease in (plain, retried, stopped)], "w1")
    await store.send([a_message(plain.run_id, "m")], ACTOR)
    read = a_record(1, "news", kind=RecordKind.MESSAGE, inbox_seq=1)
    await store.commit([Turn(lease=plain, records=(read,), read=1, next=Park(NEVER, Reason.MESSAGE, 1))], "w1")
    await store.send([a_message(plain.run_id, "n")], ACTOR)
    await store.commit([Turn(lease=retried, next=RetryLater(START + 3 * SECOND, '{"type": "x"}'))], "w1")
    await store.cancel(stopped.run_id, "enough", "stop", ACTOR)
    await store.commit([Turn(lease=stopped, next=Release())], "w1")


def commits_of(log: bytes) -> list[int]:
    """Where in a write-ahead log each commit ends."""
    page = struct.unpack(">I", log[8:12])[0]
    size = _FRAME + page
    frames = range(_HEADER, len(log) - size + 1, size)
    return [at + size for at in frames if struct.unpack(">I", log[at + 4 : at + 8])[0]]


def lay_out(file: Path, path: Path, log: bytes) -> None:
    """Put a database and its log where they can be opened."""
    shutil.copy(file, path)
    Path(f"{path}-wal").write_bytes(log)


def examine(folder: Path, name: str, log: bytes) -> tuple[list[str], int]:
    """Open what would be found after a power loss; the broken promises, and how much there is."""
    path = folder / name
    lay_out(folder / "kept.db", path, log)
    connection = sqlite3.connect(path)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'perdure_events'").fetchall():
            return [], 0
        assert connection.execute("PRAGMA quick_check").fetchone() == ("ok",)
        events: int = connection.execute("SELECT COUNT(*) FROM perdure_events").fetchone()[0]
        return scan(connection.execute), events
    finally:
        connection.close()
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)


async def test_the_log_cut_at_any_point_leaves_a_sound_database(tmp_path: Path) -> None:
    system = ManualSystem()
    store = open_store(f"sqlite:///{tmp_path}/work.db", system)
    await store.open()
    await a_day_of_work(store, system)
    # Too little was written for a checkpoint, so the log holds every commit and the file none.
    log = await asyncio.to_thread(Path(f"{tmp_path}/work.db-wal").read_bytes)
    shutil.copy(tmp_path / "work.db", tmp_path / "kept.db")
    assert await store.query("SELECT COUNT(*) > 50 FROM perdure_events") == [(1,)]
    await store.close()

    commits = commits_of(log)
    assert len(commits) > 50
    seen = set()
    for number, end in enumerate(commits):
        broken, events = examine(tmp_path, f"commit{number}.db", log[:end])
        assert broken == [], f"after commit {number}"
        seen.add(events)
    assert len(seen) > 20
    dice = random.Random(1)
    for number in range(TORN):
        end = dice.randrange(len(log))
        broken, _ = examine(tmp_path, f"torn{number}.db", log[:end])
        assert broken == [], f"torn at {end}"


async def test_after_a_power_loss_the_work_goes_on(tmp_path: Path) -> None:
    system = ManualSystem()
    store = open_store(f"sqlite:///{tmp_path}/work.db", system)
    await store.open()
    await a_day_of_work(store, system)
    log = await asyncio.to_thread(Path(f"{tmp_path}/work.db-wal").read_bytes)
    commits = commits_of(log)
    lay_out(tmp_path / "work.db", tmp_path / "after.db", log[: commits[len(commits) // 2]])
    await store.close()

    store = open_store(f"sqlite:///{tmp_path}/after.db", system)
    await store.open()
    system.advance(3600)
    while (await store.sweep(100)).more:
        pass
    finished = 0
    while got := (await claim(store, "w3", nonce=f"{finished}", alone=True)).runs:
        finished += len(got)
        await store.commit([Turn(lease=one.lease, next=Finish(Status.COMPLETED, "1")) for one in got], "w3")
    assert finished > 3
    unfinished = "SELECT COUNT(*) FROM perdure_runs WHERE status NOT IN ('completed', 'failed', 'cancelled')"
    assert await store.query(unfinished) == [(0,)]
    starts = frozenset(row[0] for row in await store.query("SELECT id FROM perdure_runs"))
    connection = sqlite3.connect(tmp_path / "after.db")
    assert scan(connection.execute, Known(starts=starts)) == []
    connection.close()
    await store.close()
