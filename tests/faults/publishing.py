"""A workflow that publishes events, and the process that delivers them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from perdure import Context, Engine, workflow
from perdure.host import Host
from perdure.outbox import CloudEvent, Subscription
from tests.helpers import eventually

EVENTS = 3
RUN = "published"


@workflow("faults.publishes.v1")
async def publishes(ctx: Context) -> None:
    for index in range(EVENTS):
        ctx.publish_event("counted", index, key="one")
        ctx.publish_event("counted", index, key="other", id=f"other-{index}")
        if index:
            await ctx.step(pause)


def pause() -> None: ...


async def publish(directory: Path, system: Host, *, url: str) -> None:
    """Publish, and work until every event has arrived in two places and every run has ended."""

    file = directory / "arrived"

    async def keep(name: str, event: CloudEvent) -> None:
        line = json.dumps([name, event.partitionkey, event.data, event.id]) + "\n"
        with file.open("a") as out:
            out.write(line)

    outbox = [Subscription(name, partial(keep, name)) for name in ("a", "b")]
    async with Engine(url, [publishes], outbox=outbox, system=system) as engine:
        await engine.start(publishes(), id=RUN)

        async def over() -> bool:
            runs = (await engine.runs.list(limit=100)).runs
            return len(runs) == 1 + 2 * EVENTS * 3 and all(run.status.finished for run in runs)

        async with engine.worker(lease="1s"):
            await eventually(over)
