"""What an activity said before: the details of the last heartbeat of an earlier attempt."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from perdure.core.model.outputs import OutputKind
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.run.stage import Stage

if TYPE_CHECKING:
    from perdure.worker.run.activity_run import Performance

logger = logging.getLogger("perdure.worker")


async def recall(performance: Performance, store: Store, system: System) -> None:
    """Read it and hand it over, as often as it takes."""
    run_id = performance.run.id
    while performance.stage is Stage.REPLAYING:
        try:
            found = await store.outputs(run_id, OutputKind.HEARTBEAT, "", -1, 1)
        except StoreError as error:
            logger.warning("cannot read the last heartbeat of run %s, trying again: %s", run_id, error)
            await system.sleep(0.2)
        else:
            asyncio.get_running_loop().call_soon(performance.recalled, found[0].payload if found else None)
            return
