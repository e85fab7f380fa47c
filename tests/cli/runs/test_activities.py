from __future__ import annotations

import asyncio

from perdure import Engine, Pending, Retry, activity, activity_info
from perdure.admin import Reason
from tests.cli.conftest import URL, Perdure
from tests.helpers import eventually


def ask(*run_ids: str) -> list[str]:
    """Start activities that wait for their completion; their tokens."""
    tokens: dict[str, str] = {}

    @activity("till.pay.v1", retry=Retry.never())
    def pay() -> int:
        tokens[activity_info().run_id] = activity_info().token
        return Pending

    async def begin() -> None:
        async with Engine(URL, [pay]) as engine, engine.worker():
            for run_id in run_ids:
                run = await engine.start(pay(), id=run_id)

                async def parked(run=run) -> bool:  # type: ignore[no-untyped-def] # noqa: ANN001 # bound now
                    return (await run.info()).reason is Reason.COMPLETION

                await eventually(parked)

    asyncio.run(begin())
    return [tokens[run_id] for run_id in run_ids]


def test_a_pending_activity_is_completed_failed_and_kept_alive(perdure: Perdure) -> None:
    first, second = ask("one", "two")
    assert "completion from outside since" in perdure("why", URL, "one").out
    alive = perdure("activities", "heartbeat", URL, first, "--details", "7")
    assert (alive.out, alive.err) == ("The heartbeat is recorded.\n", "")
    assert perdure("activities", "complete", URL, first, "--value", "5").out == "The activity has completed.\n"
    done = perdure("activities", "complete", URL, first, "--value", "5", "--json")
    assert done.json == {"token": first, "completed": True}
    late = perdure("activities", "complete", URL, first, "--value", "6")
    assert (late.code, "has ended, with another outcome" in late.err) == (1, True)
    forged = perdure("activities", "complete", URL, "x")
    assert (forged.code, "there is no attempt with this token" in forged.err) == (1, True)
    failed = perdure("activities", "fail", URL, second, "declined", "--type", "shop.Declined", "--json")
    assert failed.json == {"token": second, "failed": True}
    assert perdure("why", URL, "one").out.startswith("It completed")
    assert perdure("why", URL, "two").out.startswith("It is ready, but no worker is alive")
