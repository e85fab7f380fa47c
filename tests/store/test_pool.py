"""The pools of a server's connections, one for each event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from perdure.host import Host
from perdure.store.server.pool import LoopPools, Timeouts


def test_a_short_lease_shortens_every_timeout() -> None:
    usual = Timeouts(statement=12.0, connect=5.0, lock=2.0)
    assert usual.within(30.0) == usual
    assert usual.within(5.0) == Timeouts(statement=4.0, connect=2.0, lock=1.0)
    assert usual.within(0.5) == Timeouts(statement=1.0, connect=0.5, lock=0.25)


async def test_a_forked_child_cuts_off_the_connections_of_every_loop() -> None:
    pools: LoopPools[Any] = LoopPools(Host(), cast("Any", None), cast("Any", None), 1, cast("Any", None))
    silenced: list[int] = []
    for number in range(2):
        loop = cast("asyncio.AbstractEventLoop", number)
        pools._pools[loop] = cast("Any", SimpleNamespace(silence=lambda number=number: silenced.append(number)))
    pools.silence()
    assert silenced == [0, 1]
