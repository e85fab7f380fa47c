from __future__ import annotations

import asyncio
import sys

import pytest

from perdure.cli.console.target import load_engine
from tests.cli.conftest import URL, Perdure, work
from tests.helpers import eventually


def test_a_run_is_paused_and_resumed(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("runs", "pause", URL, "a", "--reason", "not yet", "--json").json == {"run_id": "a", "paused": True}
    assert perdure("runs", "pause", URL, "a").out == "a was paused already, or has finished.\n"
    assert "not yet" in perdure("why", URL, "a").out
    assert perdure("show", URL, "a", "--json").json["run"]["reason"] == "paused"
    assert perdure("runs", "resume", URL, "a").out == "a is resumed.\n"
    assert perdure("runs", "resume", URL, "a", "--json").json == {"run_id": "a", "resumed": False}


@pytest.mark.parametrize("named", [("--type", "checkout"), ("default",)], ids=["type", "queue"])
def test_a_type_and_a_queue_are_paused_and_resumed(perdure: Perdure, named: tuple[str, ...]) -> None:
    kind, name = ("type", named[1]) if len(named) == 2 else ("queue", named[0])
    perdure("start", "shop:engine", "checkout", "--input", '[{"id": "o", "cents": 1}]', "--id", "o")
    assert perdure("queues", "list", URL).err == "No queue and no type is paused.\n"
    assert perdure("queues", "pause", URL, *named, "--reason", "stocktaking").out == f"{name} is paused.\n"
    assert perdure("queues", "list", URL).out.split()[3:] == [kind, name, "stocktaking"]
    [pause] = perdure("queues", "list", URL, "--json").json
    assert (pause["kind"], pause["name"]) == (kind, name)
    assert "stocktaking" in perdure("why", URL, "o").out
    assert perdure("queues", "resume", URL, *named).out == f"{name} is resumed.\n"
    work("o")
    assert "completed" in perdure("why", URL, "o").out


@pytest.mark.parametrize("arguments", [(), (URL, "a", "--type", "b"), ("a", "b", "c")])
def test_one_queue_or_one_type_is_paused(perdure: Perdure, arguments: tuple[str, ...]) -> None:
    assert perdure("queues", "pause", *arguments).code == 2
    assert perdure("queues", "resume", *arguments).code == 2


async def work_until_set_aside(run_id: str, count: int) -> None:
    sys.modules.pop("shop", None)
    engine = load_engine("shop:engine")
    async with engine, engine.worker():
        run = await engine.get(run_id)

        async def there() -> bool:
            return len(await run.set_aside_messages()) == count

        await eventually(there, saying="the messages being set aside")


def test_messages_that_were_set_aside_are_listed_delivered_and_dropped(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("messages", URL, "a").err == "a has set aside no message.\n"
    for value in ('"maybe"', "[]"):
        perdure("send", URL, "a", "approval", value)
    asyncio.run(work_until_set_aside("a", 2))
    listed = perdure("messages", "list", URL, "a", "--json").json
    assert [(one["number"], one["name"], one["payload"]) for one in listed["messages"]] == [
        (0, "approval", '"maybe"'),
        (1, "approval", "[]"),
    ]
    assert "undecided" in perdure("messages", URL, "a").out
    assert "Messages that were set aside" in perdure("show", URL, "a").out
    assert len(perdure("show", URL, "a", "--json").json["set_aside"]) == 2
    assert perdure("messages", "drop", URL, "a", "1").out == "Dropped message 1 of a.\n"
    assert "before" in perdure("messages", "deliver", URL, "a", "1").err
    assert perdure("messages", "deliver", URL, "a", "0", "--value", "true", "--json").json["delivered"]
    work("a")
    assert "completed" in perdure("why", URL, "a").out


def test_a_run_is_terminated(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("terminate", URL, "a", "--reason", "enough", "--json").json == {"id": "a", "terminated": True}
    assert perdure("runs", "terminate", URL, "a").out == "a had finished already.\n"
    assert "RunTerminated: run 'a' was terminated: enough" in perdure("why", URL, "a").out
    assert perdure("terminate", URL, "b").err == "perdure: there is no run 'b' to terminate\n"


def test_a_run_is_terminated_with_its_undos(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("terminate", URL, "a", "--undo").out == "a undoes its steps and ends.\n"
    assert "RunTerminated" in perdure("why", URL, "a").out


def test_a_run_without_a_worker_cannot_be_evicted(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("runs", "evict", URL, "a").out == "a is held by no worker.\n"
    assert perdure("runs", "evict", URL, "a", "--json").json == {"id": "a", "evicted": False}


def test_a_run_for_later_is_woken(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a", "--at", "10d")
    assert perdure("runs", "wake", URL, "a", "--at", "1h").out == "a will be woken at that time.\n"
    assert perdure("runs", "wake", URL, "a", "--json").json == {"id": "a", "woken": True}
    refused = perdure("runs", "wake", URL, "a")
    assert refused.code == 1
    assert "not asleep" in refused.err


def test_a_misspelt_name_of_a_message_is_told_by_send(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    perdure("send", URL, "a", "approval", '"maybe"')
    asyncio.run(work_until_set_aside("a", 1))
    sent = perdure("send", URL, "a", "aproval", "true")
    assert sent.out == "Sent aproval to a.\n"
    assert "a waits for approval, not for aproval" in sent.err
    assert perdure("send", URL, "a", "approval", "true").err == ""
