"""Attempts at steps that an earlier holder of a run did not finish.

A step costs one row, when it ends; its beginning is not written. So a takeover knows which steps were open, and not
which of them had begun: a step that was open when the worker was lost counts as interrupted, unless it was waiting for
its next attempt or for a limit. A worker that stops in order names the steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Record
from perdure.core.model.run import Run
from perdure.core.system import System
from perdure.errors import StoreError
from perdure.replay.operations import StepOperation
from perdure.store.contract import Store
from perdure.store.sql.reads import interruptions
from perdure.worker.limits.step_limits import is_limited
from perdure.worker.run.held_run import Stage

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun

logger = logging.getLogger("perdure.worker")

#: A lease that ends without a park raises the token by one, and the claim after it by another.
EARLIEST_TOKEN = 3


async def read_interruptions(held: WorkflowRun, store: Store, system: System) -> None:
    """Read the interruptions of a run and hand them over. Retries until the database answers."""
    while held.stage is Stage.REPLAYING:
        try:
            found = await interruptions(store, held.run.id)
        except StoreError as error:
            logger.warning("cannot read the interruptions of run %s, trying again: %s", held.run.id, error)
            await system.sleep(0.2)
        else:
            asyncio.get_running_loop().call_soon(held.take_interruptions, found)
            return


def count_interruptions(
    found: Sequence[Interruption],
    steps: Iterable[StepOperation],
    asked: Mapping[str, int],
    failures: Sequence[Record],
    run: Run,
) -> dict[str, int]:
    """Count the interrupted attempts at each open step that has any.

    `asked`: by location, the number of the record that led to the step. Steps that are missing there were asked for
    before the first record.
    """
    relevant = [one for one in found if (one.generation, one.attempt) == (run.generation, run.attempt)]
    failed = {record.location: record for record in failures}
    counted: dict[str, int] = {}
    for step in steps if relevant else ():
        location = step.location
        number = sum(_interrupts(one, step, asked.get(location, -1), failed.get(location)) for one in relevant)
        if number:
            counted[location] = number
    return counted


def count_interrupted_activity_attempts(found: Sequence[Interruption], failed: Record | None) -> int:
    """Count the interrupted attempts at an activity.

    `found`: interruptions since the run began or was requeued; `failed`: record of the last attempt that failed. An
    attempt at an activity is one at its run, so interruptions of earlier attempts at the run count, too.
    """
    return sum(
        one.steps is not None or failed is None or failed.seq > one.last or failed.retry_at <= one.at for one in found
    )


def _interrupts(interruption: Interruption, step: StepOperation, asked: int, failed: Record | None) -> bool:
    if interruption.steps is not None:
        return step.location in interruption.steps
    if asked > interruption.last or is_limited(step):
        return False
    return failed is None or failed.seq > interruption.last or failed.retry_at <= interruption.at
