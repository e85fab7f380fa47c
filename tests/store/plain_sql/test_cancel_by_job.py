"""A program without Perdure cancels runs by inserting a bulk action, which is a run."""

from __future__ import annotations

import pytest

from perdure import Context, Engine, RunCancelled, workflow
from perdure.core.model.run import Reason, Status
from tests.helpers import eventually
from tests.store.plain_sql.places import Plain

CANCEL = """
INSERT INTO {}runs (id, type, queue, input)
VALUES ('stop', 'perdure.bulk.v1', 'perdure.bulk',
  '{{"job": {{"action": "cancel", "ids": ["begun", "later"], "reason": "enough"}}}}')
"""


@workflow("mail.wait.v1")
async def waiting(ctx: Context) -> str:
    return await ctx.receive("go", str)


async def test_an_inserted_bulk_action_cancels_a_run_that_waits_and_one_that_has_not_begun(plain: Plain) -> None:
    async with Engine(plain.url, [waiting]) as engine, engine.worker(), engine.runs.bulk_worker():
        begun, later = await engine.start(waiting(), id="begun"), await engine.start(waiting(), id="later", at="1d")

        async def waits() -> bool:
            run = await plain.store.get("begun")
            return run is not None and (run.status, run.reason) == (Status.WAITING, Reason.MESSAGE)

        await eventually(waits)
        await plain.execute(CANCEL.format(plain.tables))
        for run in (begun, later):
            with pytest.raises(RunCancelled):
                await run.result("60s")
        report = await (await engine.get("stop")).result("60s")
        assert report["done"] == 2
        assert (await plain.events("later"))[-2:] == ["cancel_requested", "cancelled"]
