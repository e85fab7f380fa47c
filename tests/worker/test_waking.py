from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import Context, workflow
from perdure.admin import WorkerInfo
from perdure.host import Host
from perdure.store import open_store
from perdure.store.contract import Change
from tests.stage import Stage, until_recorded


async def test_a_write_of_another_process_noticed_by_one_is_told_to_all(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ours, theirs = open_store(url, Host()), open_store(url, Host())
    await ours.open()
    await theirs.open()
    told: list[Change] = []
    ours.subscribe(told.append)
    await ours.poll_changes()
    told.clear()
    await theirs.register(WorkerInfo(id="w", host="h", pid=1, queues=(), types=(), slots=1, lease=1))
    # The watch of the file may have noticed it before the poll; it is told once.
    assert await ours.poll_changes() or told
    assert told == [Change.ALL]
    assert not await ours.poll_changes()
    assert told == [Change.ALL]
    await ours.close()
    await theirs.close()


async def test_waiting_for_results_does_not_make_a_worker_miss_messages(on_disk: Stage) -> None:
    gates: dict[str, asyncio.Event] = {}

    async def hold(run_id: str) -> None:
        await gates[run_id].wait()

    @workflow("wake.hold.v1")
    async def holding(ctx: Context) -> int:
        held = asyncio.ensure_future(ctx.step(hold, ctx.run_id))
        number = await ctx.receive("number", int)
        gates[ctx.run_id].set()
        await held
        return number

    engine, client = on_disk.engine(holding), on_disk.engine()
    async with engine.worker():
        for number in range(20):
            run_id = f"run-{number}"
            gates[run_id] = asyncio.Event()
            run = await engine.start(holding(), id=run_id)
            waiting = [asyncio.ensure_future(run.result("30s")) for _ in range(3)]
            await client.send(run_id, "number", number)
            assert await asyncio.gather(*waiting) == [number] * 3
            await until_recorded(run, 2)
