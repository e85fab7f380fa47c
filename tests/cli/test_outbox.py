from __future__ import annotations

import asyncio

from perdure import Engine, Retry, Status
from perdure.outbox import CloudEvent, Subscription
from tests.cli.conftest import URL, Perdure
from tests.helpers import eventually


async def deliver(count: int) -> list[CloudEvent]:
    """Work until so many deliveries have ended."""
    got: list[CloudEvent] = []

    async def fails(event: CloudEvent) -> None:
        raise ConnectionError("away")

    outbox = [Subscription("good", got.append), Subscription("bad", fails, events="order.%", retry=Retry.never())]
    async with Engine(URL, outbox=outbox) as engine, engine.worker():

        async def ended() -> bool:
            runs = (await engine.runs.list(status=[Status.COMPLETED, Status.FAILED])).runs
            return len([run for run in runs if run.type.startswith("perdure.delivery.")]) >= count

        await eventually(ended)
    return got


def test_events_are_published_listed_shown_and_replayed(perdure: Perdure) -> None:
    asyncio.run(_migrate())
    assert perdure("outbox", "list", URL).err == "No events.\n"
    said = perdure("outbox", "publish", URL, "order.paid", '{"order": 42}', "--key", "o-42", "--id", "paid-42").out
    assert said == "Published order.paid as paid-42.\n"
    other = perdure("outbox", "publish", URL, "tick", "1", "--source", "/clock", "--json").json["id"]
    shown = perdure("outbox", "show", URL, "paid-42")
    assert "no worker has handed it on yet" in shown.err
    assert {event.id for event in asyncio.run(deliver(3))} == {"paid-42", other}
    listed = perdure("outbox", URL).out
    assert "paid-42" in listed
    assert "/clock" in listed
    first = perdure("outbox", "list", URL, "--limit", "1")
    assert "There are more: --cursor" in first.err
    [event] = perdure("outbox", "list", URL, "--type", "order.%", "--key", "o-42", "--json").json["events"]
    assert (event["event"]["data"], event["status"], len(event["deliveries"])) == ({"order": 42}, "completed", 2)
    shown = perdure("outbox", "show", URL, "paid-42")
    assert "ConnectionError" in shown.out
    assert "good" in shown.out
    deliveries = perdure("outbox", "show", URL, "paid-42", "--json").json["deliveries"]
    assert {one["subscription"]: one["status"] for one in deliveries} == {"good": "completed", "bad": "failed"}
    said = perdure("outbox", "replay", URL, "paid-42", "--to", "good").out
    assert said.startswith("paid-42: is delivered again to good, by run ")
    assert [event.id for event in asyncio.run(deliver(4))] == ["paid-42"]
    letters = perdure("dead-letters", "list", URL, "--type", "perdure.delivery.%", "--json").json["letters"]
    assert len(letters) == 1


def test_an_event_that_does_not_exist_is_an_error(perdure: Perdure) -> None:
    asyncio.run(_migrate())
    refused = perdure("outbox", "replay", URL, "unknown")
    assert (refused.code, "there is no run 'unknown'" in refused.err) == (1, True)


async def _migrate() -> None:
    async with Engine(URL):
        pass
