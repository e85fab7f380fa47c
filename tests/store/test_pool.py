"""The pools of a server's connections, one for each event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from perdure.host import Host
from perdure.store.server.pool import LoopPools


async def test_a_forked_child_cuts_off_the_connections_of_every_loop() -> None:
    pools: LoopPools[Any] = LoopPools(Host(), cast("Any", None), cast("Any", None), 1, cast("Any", None))
    silenced: list[int] = []
    for number in range(2):
        loop = cast("asyncio.AbstractEventLoop", number)
        pools._pools[loop] = cast("Any", SimpleNamespace(silence=lambda number=number: silenced.append(number)))
    pools.silence()
    assert silenced == [0, 1]
