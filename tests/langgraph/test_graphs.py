"""Graphs in workflows: each node is a step, which a crash does not repeat once its result is recorded."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from langgraph.func import entrypoint

from perdure.errors import UsageError
from perdure.testing import Environment, crash_everywhere
from perdure.testing.crash_report import CrashFinding
from perdure.workflow.definition import Call
from tests.langgraph.graphs import BOOKED, CALLS, WORKFLOWS, WORLD, chat, essay_run, nested, trip, work, write

YES = [("answer", "yes"), ("answer", "yes")]
PAID = {"city": "Rome", "log": ["plan Rome", "flight", "hotel", "paid"], "price": 300, "approved": True}
CASES: list[Any] = [
    pytest.param(trip("Rome"), YES, id="parallel nodes, interrupts and commands"),
    pytest.param(work(), [], id="sends and a loop"),
    pytest.param(nested(), [("answer", "1"), ("answer", "2")], id="a subgraph with two interrupts at once"),
    pytest.param(essay_run(["cats", "dogs"]), [("answer", "fine")], id="tasks of an entrypoint"),
    pytest.param(chat(), [("question", "a"), ("question", "b")], id="messages of two turns"),
]
#: Locations of nodes that are executed at once. They are recorded in any order.
PARALLEL = (
    {"flight", "hotel"},
    {"square", "square#2", "square#3"},
    {"square#4", "square#5", "square#6"},
    {"write", "write#2"},
)


@pytest.fixture(autouse=True)
def _world() -> None:
    CALLS.clear()
    BOOKED.clear()


@pytest.mark.parametrize(("call", "messages"), CASES)
async def test_a_graph_is_killed_everywhere_and_repeats_no_recorded_node(
    call: Call[Any], messages: list[tuple[str, object]]
) -> None:
    report = await crash_everywhere(call, workflows=WORKFLOWS, world=WORLD, messages=messages)
    assert report.isolated
    assert report.crashes > 3
    assert [finding for finding in report.findings if not _is_of_an_unrecorded_node(finding)] == [], report


def _is_of_an_unrecorded_node(finding: CrashFinding) -> bool:
    """True if a node was called again whose record the crash prevented, or one beside the node of that record."""
    found = re.match(
        r"after a crash (before|after) the record of (.+) was written, CALLS has '[^']* at (\S+)' (twice|\d+ times)",
        finding.text,
    )
    if found is None:
        return False
    when, places, repeated = found[1], set(re.split(r", | and ", found[2])), found[3]
    if repeated in places:
        return when == "before"
    return any(repeated in nodes and places & nodes for nodes in PARALLEL)


async def test_interrupts_are_questions_and_messages_are_answers() -> None:
    async with Environment(WORKFLOWS) as env:
        run = await env.start(trip("Rome"))
        await env.settle()
        assert await run.state("questions") == [
            {"id": "1", "value": {"question": "pay?", "price": 300}, "answer_schema": None}
        ]
        await env.send(run, "answer", "yes")
        await env.settle()
        [question] = await run.state("questions")
        assert (question["id"], question["value"]) == ("2", "sure?")
        await env.send(run, "answer.2", "yes")
        assert await run.result() == PAID
        assert await run.state("questions") == []
        items = [item.value async for item in run.stream("progress", follow=False)]
        assert {"mode": "custom", "node": "pay", "data": {"paying": 300}} in items
        assert [item["node"] for item in items if item["mode"] == "updates"][-1] == "pay"
        locations = [record.location for record in await run.history() if record.kind == "step"]
        assert sorted(locations) == ["approve", "approve#2", "approve#3", "flight", "hotel", "pay", "plan"]


async def test_answers_by_id_come_in_any_order() -> None:
    async with Environment(WORKFLOWS) as env:
        run = await env.start(nested())
        await env.settle()
        questions = {one["value"]: one["id"] for one in await run.state("questions")}
        await env.send(run, f"answer.{questions['right?']}", "R")
        await env.settle()
        await env.send(run, "answer", "L")
        # The subgraph adds the log that it was given, as anywhere.
        assert await run.result() == ["outer", "outer", "left L", "right R"]


async def test_tokens_of_a_model_are_items_of_the_stream() -> None:
    async with Environment(WORKFLOWS) as env:
        run = await env.start(chat("tokens"))
        await env.send(run, "question", "a")
        await env.send(run, "question", "b")
        assert await run.result() == ["a", "answer to a", "b", "answer to b"]
        items = [item.value async for item in run.stream("tokens", follow=False)]
        tokens = [item["data"] for item in items if item["mode"] == "tokens"]
        assert "".join(tokens) == "answer to aanswer to b"
        assert len(tokens) > 2


async def test_a_task_is_langgraphs_own_outside_of_a_workflow() -> None:
    @entrypoint()
    async def alone(topic: str) -> str:
        with pytest.raises(UsageError, match="outside of a step"):
            await write(topic)
        return topic

    assert await asyncio.wait_for(alone.ainvoke("cats"), 60) == "cats"
