from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure import Context, Engine, workflow
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from tests.helpers import eventually


class SlowToEnd:
    """A store that keeps outcomes until its gate is opened."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.kept = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        if any(isinstance(turn.next, Finish) for turn in turns):
            self.kept += 1
            await self.gate.wait()
        verdicts: list[TurnOutcome] = await self._store.commit(turns, actor)
        return verdicts


async def test_the_next_run_is_taken_while_the_outcome_of_the_last_is_being_written() -> None:
    begun: list[int] = []

    async def begin(number: int) -> None:
        begun.append(number)

    @workflow("slots.one.v1")
    async def one(ctx: Context, number: int) -> int:
        await ctx.step(begin, number)
        return number

    host = Host()
    store: Any = SlowToEnd(open_store("sqlite://", host, inline=True))
    async with Engine("sqlite://", [one], system=host, store=store) as engine:
        runs = await engine.start_many([one(number) for number in range(4)])
        async with engine.worker(slots=1) as worker:
            await eventually(lambda: len(begun) == 2)
            assert store.kept == 1
            assert len(await store.leases(worker.id)) == 2
            store.gate.set()
            assert [await run.result("20s") for run in runs] == [0, 1, 2, 3]
    assert begun == [0, 1, 2, 3]
