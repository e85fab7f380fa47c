"""Long histories that workers pack while they hold the runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import Context, Engine, Handle, RunFailed, Status, workflow
from perdure.client.session import session_of
from perdure.client.workers import EngineWorker
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Reason
from perdure.errors import StoreCorrupt, StoreFull
from perdure.store.sql import rows as stored_rows
from perdure.worker.run.packing import HistoryPacking
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.stage import Stage, until, until_recorded

#: Records that share a row here, except where the usual number is the point.
SEGMENT = 20

_OVERDUE = "UPDATE perdure_workers SET heartbeat_at = 0 WHERE status = 'alive'"


class Work:
    """Steps of a long run, some of which fail or wait for the test."""

    def __init__(self) -> None:
        self.executed: list[int] = []
        self.waiting = 0
        self.go_on = asyncio.Event()
        self.fails = True

    async def act(self, number: int) -> str:
        self.executed.append(number)
        return f"ü{number}"

    async def wait(self, number: int) -> int:
        self.waiting += 1
        await self.go_on.wait()
        return number

    async def end(self) -> None:
        if self.fails:
            raise ValueError("not yet")


def long_run(work: Work, steps: int, *, ephemeral: bool = False) -> Any:
    @workflow("packing.long.v1")
    async def long(ctx: Context, *, fails: bool = False) -> int:
        total = 0
        act = ctx.options(ephemeral=True).step if ephemeral else ctx.step
        for number in range(steps):
            total += len(await act(work.act, number))
            if number % 50 == 10:
                await ctx.sleep("1us")
        total += await ctx.step(work.wait, 1000)
        if fails:
            await ctx.options(retry=1).step(work.end)
        return total

    return long


async def rows(stage: Stage, run_id: str) -> list[tuple[int, str]]:
    sql = "SELECT seq, kind FROM perdure_history WHERE run_id = ? ORDER BY seq"
    return [(seq, kind) for seq, kind in await stage.rows(sql.replace("?", f"'{run_id}'"))]


async def packed(stage: Stage, run_id: str) -> int:
    return sum(kind == "packed" for _, kind in await rows(stage, run_id))


async def until_packed(stage: Stage, run: Handle[Any], count: int) -> None:
    async def there() -> bool:
        return await packed(stage, run.id) >= count

    await eventually(there, saying=f"{count} packed rows")


async def execute(stage: Stage, sql: str, **params: object) -> None:
    """Write to the tables."""
    assert stage.store is not None

    async def write(tx: Any) -> None:
        await tx.execute(sql, params)

    await stage.store._write("test", "", write)


async def declare_dead(stage: Stage, worker: EngineWorker) -> None:
    """Have a sweep find the worker overdue, as after a SIGKILL. It begins again under another id."""
    assert stage.store is not None
    await execute(stage, _OVERDUE)
    await stage.store.sweep(100)
    # It would learn of it by its next heartbeat. With a lease so short that this is soon, it dies whenever the machine
    # stops for a while.
    assert worker._worker is not None
    assert worker._worker._heartbeat is not None
    await worker._worker._heartbeat.renew()


def plain(records: list[Record]) -> list[tuple[object, ...]]:
    """Records without the times, which differ from run to run."""
    return [(r.seq, r.kind, r.location, r.payload, r.failed, r.digest, r.attempts, r.run_attempt) for r in records]


async def history(engine: Engine, run_id: str) -> list[Record]:
    return await session_of(engine).store.history(run_id)


async def test_a_packed_run_is_taken_over_forked_and_retried(stage: Stage) -> None:
    work = Work()
    long = long_run(work, 110)
    engine = stage.engine(long)
    async with engine.worker(lease="1h", pack_history=SEGMENT) as worker:
        run = await engine.start(long(fails=True), id="packed")
        await until_packed(stage, run, 3)
        await eventually(lambda: work.waiting, saying="the last step")
        before = await history(engine, run.id)
        assert [record.seq for record in before] == list(range(len(before)))
        await declare_dead(stage, worker)
        work.go_on.set()
        with pytest.raises(RunFailed, match="not yet"):
            await run.result("60s")
        ended = await history(engine, run.id)
        assert ended[: len(before)] == before
        assert len(ended) == 114
        assert work.executed == list(range(110))
        assert len(await rows(stage, run.id)) < 70
        work.fails = False
        fork = await run.fork(from_step="Work.wait", id="forked")
        assert await fork.result("60s") == await retried(run) == 1330
        assert plain(await history(engine, "forked"))[:100] == plain(before)[:100]
        assert work.executed == list(range(110))
        assert (await engine.check()).ok


async def retried(run: Handle[Any]) -> Any:
    await run.retry()
    return await run.result("60s")


async def test_a_history_of_thousands_of_records_takes_few_rows_and_replays(on_disk: Stage) -> None:
    work = Work()
    long = long_run(work, 3100, ephemeral=True)
    engine = on_disk.engine(long)
    async with engine.worker():
        run = await engine.start(long())
        await until_packed(on_disk, run, 2)
        await until(run, Status.RUNNING)
        whole = await history(engine, run.id)
    assert len(await rows(on_disk, run.id)) < 1700
    # Another worker replays what is packed.
    work.go_on.set()
    async with engine.worker(pack_history=0):
        assert await run.result("60s") == sum(len(f"ü{number}") for number in range(3100)) + 1000
    assert (await history(engine, run.id))[: len(whole)] == whole
    assert work.executed == list(range(3100))


async def test_no_history_is_packed_if_the_option_is_off_or_the_history_is_short(on_disk: Stage) -> None:
    work = Work()
    work.go_on.set()
    long = long_run(work, 2 * SEGMENT - 3)
    engine = on_disk.engine(long)
    async with engine.worker(pack_history=SEGMENT):
        await (await engine.start(long(), id="short")).result("60s")
    async with engine.worker(pack_history=0):
        await (await engine.start(long(fails=False), id="off")).result("60s")
    assert await packed(on_disk, "short") == await packed(on_disk, "off") == 0


def test_one_packing_of_a_run_is_under_way_at_a_time() -> None:
    packing = HistoryPacking(cast("Any", None), SEGMENT)
    assert packing.begin(2 * SEGMENT)
    assert not packing.begin(3 * SEGMENT)


async def test_a_packing_that_fails_is_made_up_for(on_disk: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    long = long_run(work, 110)
    engine = on_disk.engine(long)
    assert on_disk.store is not None
    pack, asked = on_disk.store.pack, list[int]()

    async def fail_first(lease: Any, first: int, last: int, actor: str) -> bool:
        asked.append(first)
        if len(asked) <= 2:
            raise StoreFull("a fault of the test")
        return await pack(lease, first, last, actor)

    monkeypatch.setattr(on_disk.store, "pack", fail_first)
    async with engine.worker(pack_history=SEGMENT):
        run = await engine.start(long())
        await until_packed(on_disk, run, 3)
        work.go_on.set()
        await run.result("60s")
    assert asked[:3] == [0, 0, 0]


async def test_a_run_that_parks_where_it_would_be_packed_is_packed_by_its_next_holder(on_disk: Stage) -> None:
    @workflow("packing.cold.v1")
    async def cold(ctx: Context) -> int:
        total = await ctx.step(len, "first")
        for number in range(2 * SEGMENT):
            for _ in range(3):
                total += await ctx.step(len, "x" * number)
            await ctx.receive("next", int)
        return total

    engine = on_disk.engine(cold)
    # No parked run stays in memory, so that each message is read by a new holder. The run parks at 40 records.
    async with engine.worker(resident=0, pack_history=SEGMENT):
        run = await engine.start(cold())
        for records in range(4, 2 * SEGMENT + 8, 4):
            await until_recorded(run, records)
            await until(run, Status.WAITING)
            await run.send("next", records)
        await until_packed(on_disk, run, 1)
        history = await run.history()
        assert [record.seq for record in history] == list(range(len(history)))


async def a_packed_run(stage: Stage, work: Work) -> tuple[Engine, Handle[Any]]:
    """An engine and a run with packed rows that no worker holds."""
    long = long_run(work, 110)
    engine = stage.engine(long)
    worker = engine.worker(pack_history=SEGMENT, grace=0)
    await worker.start()
    run = await engine.start(long(), id="packed")
    await until_packed(stage, run, 3)
    await eventually(lambda: work.waiting, saying="the last step")
    await worker.stop(0)
    work.go_on.set()
    return engine, run


async def test_a_worker_that_does_not_know_packed_rows_blocks_the_run_and_the_next_one_that_does_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    engine, run = await a_packed_run(stage, work)
    with monkeypatch.context() as older:
        older.setattr(stored_rows, "PACKED", "unknown to an older version")
        async with engine.worker(pack_history=0):
            await until(run, Status.BLOCKED)
            assert (await run.info()).reason is Reason.UNDECODABLE
            assert "unknown kind 'packed'" in await run.why()
    async with engine.worker():
        assert await run.result("60s") == 1330
    assert work.executed == list(range(110))


async def test_a_packed_row_that_cannot_be_read_blocks_its_run_alone_and_says_where(stage: Stage) -> None:
    work = Work()
    engine, run = await a_packed_run(stage, work)
    [[seq, payload]] = await stage.rows(
        "SELECT seq, payload FROM perdure_history WHERE kind = 'packed' ORDER BY seq LIMIT 1"
    )
    await execute(stage, "UPDATE perdure_history SET payload = :payload WHERE seq = :seq", payload="[[", seq=seq)
    async with engine.worker():
        await until(run, Status.BLOCKED)
        neighbour = await engine.start(long_run(work, 110)(), id="neighbour")
        assert await neighbour.result("60s") == 1330
        assert (await run.info()).reason is Reason.UNDECODABLE
        assert f"seq {seq}" in await run.why()
        with pytest.raises(StoreCorrupt, match=f"seq {seq}"):
            await run.history()
        with pytest.raises(StoreCorrupt, match=f"seq {seq}"):
            await run.fork(from_step="Work.wait")
        await execute(stage, "UPDATE perdure_history SET payload = :payload WHERE seq = :seq", payload=payload, seq=seq)
        await run.retry()
        assert await run.result("60s") == 1330
    assert work.executed == [*range(110), *range(110)]


async def test_a_packed_run_is_exported_checked_shown_and_sound(stage: Stage, tmp_path: Path) -> None:
    work = Work()
    engine, run = await a_packed_run(stage, work)
    before = await run.history()
    exported = await engine.runs.export(tmp_path / "histories")
    assert exported.runs == 1
    assert (await engine.runs.replay(tmp_path / "histories")).ok
    report = await run.report()
    steps = [step for step in report.steps if step.location.startswith("Work.act")]
    assert [step.location for step in steps[:3]] == ["Work.act", "Work.act#2", "Work.act#3"]
    assert len(steps) == 110
    assert stage.store is not None
    assert await scan_store(stage.store.query) == []
    # A fork from the middle of a packed row copies the records before it, each as a row of its own.
    fork = await run.fork(from_step="Work.act#30", id="forked")
    copied = await fork.history()
    assert copied[29].kind is RecordKind.FORK
    assert plain(copied)[:29] == plain(before)[:29]
    assert await packed(stage, "forked") == 0


async def test_code_that_differs_from_a_packed_record_is_told_with_its_location(on_disk: Stage) -> None:
    work = Work()
    _, run = await a_packed_run(on_disk, work)

    @workflow("packing.long.v1")
    async def changed(ctx: Context, *, fails: bool = False) -> int:
        for number in range(110):
            await ctx.step(work.act, number)
        return 0

    [finding] = (await on_disk.engine(changed).check()).findings
    assert finding.run_id == run.id
    assert "sleep" in finding.expected
