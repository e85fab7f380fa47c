"""The commit of a `ctx.transaction` is lost on its way, or its answer is: what the user wrote is there exactly once."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import Any

import pytest

from perdure import Context, Engine, workflow
from perdure.host import Host
from perdure.store import open_store
from tests.faults.proxy import Fault, Loss, Proxy
from tests.faults.served import Served
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.store.user_connections.tables import put, table_at

TIMES = 50 if os.environ.get("PERDURE_PROVE") else 5


class Trouble:
    """Befalls the commit of each transaction when it is tried for the first time."""

    def __init__(self, proxy: Proxy, loss: Loss) -> None:
        self.faults: dict[int, Fault] = {}
        self.tries: list[int] = []
        self._proxy = proxy
        self._loss = loss

    def order(self, number: int) -> None:
        """The next durable message is that commit, unless the worker sweeps or claims just then."""
        self.tries.append(number)
        if number not in self.faults:
            self.faults[number] = self._proxy.lose(self._loss)

    async def deliver(self) -> None:
        """What is late arrives once the worker has had time to ask what became of it."""
        for number in range(TIMES):
            await eventually(lambda: number in self.faults and self.faults[number].fired)  # noqa: B023 - asked at once
            await asyncio.sleep(0.03)  # that it asks cannot be seen: it is held up by what is late
            await self.faults[number].deliver()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("loss", Loss)
async def test_what_a_transaction_writes_is_there_once_whatever_becomes_of_its_commit(
    served: Served, loss: Loss
) -> None:
    async with served.place() as (url, proxy):
        mine = table_at(url)
        trouble = Trouble(proxy, loss)

        async def write(connection: Any, number: int) -> int:
            await put(connection, mine, number)
            trouble.order(number)
            return number

        @workflow("lost.transactions.v1")
        async def writes(ctx: Context) -> list[int]:
            return [await ctx.transaction(write, number) for number in range(TIMES)]

        direct = open_store(url, Host())
        await direct.open()
        await direct.query(f"DROP TABLE IF EXISTS {mine}")
        await direct.query(f"CREATE TABLE {mine} (value INTEGER)")
        async with Engine(proxy.url, [writes]) as engine, engine.worker(lease=60), asyncio.TaskGroup() as group:
            run = await engine.start(writes())
            delivering = group.create_task(trouble.deliver())
            assert await run.result(timeout=300) == list(range(TIMES))
            await delivering
        rows = [value for (value,) in await direct.query(f"SELECT value FROM {mine} ORDER BY value")]
        assert rows == list(range(TIMES))
        assert all(fault.fired for fault in trouble.faults.values())
        # Only what did not arrive is done again.
        again = [number for number, count in Counter(trouble.tries).items() if count > 1]
        assert bool(again) is (loss is Loss.REQUEST)
        assert await scan_store(direct.query) == []
        await direct.query(f"DROP TABLE {mine}")
        await direct.close()
