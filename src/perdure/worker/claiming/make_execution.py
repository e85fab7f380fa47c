"""Making a claimed run ready to execute."""

from __future__ import annotations

import logging
from typing import Any

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.model.run import Record, Run
from perdure.replay.execution import Execution
from perdure.replay.run_origin import Origin
from perdure.worker.run.policy import delay_of_run
from perdure.worker.services import Crew
from perdure.workflow.definition import Workflow


def _was_taken_up(run: Run) -> bool:
    """Whether a claim before this one led to an orderly end in this attempt: the run was parked or given back.

    Both set the count of claims to 0, while a death leaves it: what a worker said that died is not known. The token tells
    claims of the first attempt apart. A later attempt starts when its run is ready; when it is taken up again, that was later.
    """
    if run.claims != 1:
        return False
    return run.attempt == run.generation == 1 or run.wake_at > run.started_at


def make_execution(run: Run, workflow: Workflow[Any, Any], records: tuple[Record, ...], crew: Crew) -> Execution:
    """The execution of a run, not yet begun. Raises `DecodeError` when its input does not fit the workflow."""
    return execution_of(run, workflow, records, crew.codec, crew.errors, crew.logger)


def execution_of(
    run: Run,
    workflow: Workflow[Any, Any],
    records: tuple[Record, ...],
    codec: Codec,
    errors: ErrorTypes,
    logger: logging.Logger,
) -> Execution:
    """The same, for whoever is no worker."""
    signature = workflow.signature
    arguments = signature.decode(run.input, codec, f"input of run {run.id!r} ({run.type})")
    origin = Origin(
        run_id=run.id,
        type=run.type,
        started_at=run.started_at,
        seed=run.seed,
        generation=run.generation,
        attempt=run.attempt,
        taken_up_before=run.token > 1 and _was_taken_up(run),
    )

    def gives_up(error: BaseException, now: int) -> bool:
        # Without a random number: on replay the answer has to be the same.
        delay = delay_of_run(run, workflow.retry, error, 0.0)
        return delay is None or now + int(delay * 1e6) >= run.deadline

    return Execution(
        lambda context: signature.call(context, arguments),
        signature.returns,
        origin,
        records,
        codec=codec,
        errors=errors,
        logger=logger,
        gives_up=gives_up,
    )
