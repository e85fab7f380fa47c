"""Earlier attempts at an activity: the details of the last heartbeat, and the attempts that were interrupted."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from perdure.core.effects import OutputKind
from perdure.core.errors import StoreError
from perdure.core.system import System
from perdure.store.interruptions import interruptions_since_requeue
from perdure.store.protocol import Store
from perdure.worker.interruptions import EARLIEST_TOKEN
from perdure.worker.stage import Stage

if TYPE_CHECKING:
    from perdure.worker.performing import Performance

logger = logging.getLogger("perdure.worker")


async def recall(performance: Performance, store: Store, system: System) -> None:
    """Read both and hand them over, as often as it takes."""
    run_id, token = performance.run.id, performance.run.token
    while performance.stage is Stage.REPLAYING:
        try:
            beats = await store.outputs(run_id, OutputKind.HEARTBEAT, "", -1, 1)
            found = await interruptions_since_requeue(store, run_id) if token >= EARLIEST_TOKEN else ()
        except StoreError as error:
            logger.warning("cannot read the earlier attempts of run %s, trying again: %s", run_id, error)
            await system.sleep(0.2)
        else:
            asyncio.get_running_loop().call_soon(performance.recalled, beats[0].payload if beats else None, found)
            return
