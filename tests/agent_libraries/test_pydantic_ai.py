"""`perdure.pydantic_ai` with the real library: models and tools are fakes, workflows and databases are not."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.models.test import TestModel

from perdure.errors import UsageError
from perdure.pydantic_ai import PerdureDurability, ToolDecision, agent_events, workflow_context
from perdure.testing import Environment
from perdure.workflow.definition import Workflow
from tests.agent_libraries import pydantic_flows as flows
from tests.agent_libraries import pydantic_mcp_flows as mcp_flows
from tests.agent_libraries.crashes import CALLS, assert_nothing_recorded_is_repeated

PROVE = bool(os.environ.get("PERDURE_PROVE"))
DECISIONS = [
    ToolDecision("call-0"),
    ToolDecision("call-1", approved=False, reason="too much"),
    ToolDecision("call-7"),
    ToolDecision("call-2", result=900),
]
#: Each takes several seconds, in which other processes import the library.
CRASHED = [flows.buy, flows.handling]
LONG = [flows.greet, flows.speaking, mcp_flows.browsing, flows.choosing, flows.leading, flows.worrying]


@pytest.mark.parametrize("flow", CRASHED + (LONG if PROVE else []), ids=lambda flow: flow.type)
async def test_no_recorded_call_is_repeated_after_a_crash(flow: Workflow[..., Any]) -> None:
    await assert_nothing_recorded_is_repeated(flow(), workflows=[flows.research] if flow is flows.leading else ())


@pytest.mark.parametrize(
    ("flow", "channel"), [(flows.asking, "desk"), *([(flows.paying, "tool_calls")] if PROVE else [])]
)
async def test_no_recorded_call_is_repeated_after_a_crash_at_an_approval(
    flow: Workflow[..., Any], channel: str
) -> None:
    await assert_nothing_recorded_is_repeated(flow(), messages=[(channel, decision) for decision in DECISIONS])


EXPECTED: list[tuple[Workflow[..., Any], list[str]]] = [
    (flows.greet, ["greeter.model", "greeter.tools.name_of", "greeter.model#2"]),
    (flows.speaking, ["speaker.model", "speaker.tools.name_of", "speaker.model#2"]),
    (
        flows.handling,
        ["handled.model", "handled.events", "handled.tools.name_of", "handled.events#2", "handled.model#2"],
    ),
    (
        mcp_flows.browsing,
        [
            "browser.mcp.catalogue.list-tools",
            "browser.mcp.catalogue.instructions",
            "browser.model",
            "browser.mcp.catalogue.find_article",
            "browser.mcp.catalogue.instructions#2",
            "browser.model#2",
            "browser.mcp.catalogue.find_article#2",
            "browser.mcp.catalogue.instructions#3",
            "browser.model#3",
        ],
    ),
]


@pytest.mark.parametrize(("flow", "locations"), EXPECTED, ids=lambda one: getattr(one, "type", ""))
async def test_the_steps_of_an_agent_keep_their_names(flow: Workflow[..., Any], locations: list[str]) -> None:
    async with Environment([flow]) as env:
        run = await env.start(flow())
        await run.result()
        assert [record.location for record in await run.history()] == locations


async def test_parallel_tool_calls_are_recorded_as_they_end_and_answered_in_order() -> None:
    async with Environment([flows.buy]) as env:
        run = await env.start(flows.buy())
        assert await run.result() == flows.Offer(article="tea", cents=1)
        found = [record.location for record in await run.history() if "price" in record.location]
        assert found == ["buyer.tools.price#3", "buyer.tools.price#2", "buyer.tools.price"]


@pytest.mark.parametrize(("flow", "channel"), [(flows.paying, "tool_calls"), (flows.asking, "desk")])
async def test_a_deferred_call_waits_for_a_message_while_the_worker_is_replaced(
    flow: Workflow[..., Any], channel: str
) -> None:
    CALLS.clear()
    async with Environment([flow]) as env:
        run = await env.start(flow())
        pending = await run.wait_state(channel, bool)
        assert [(one["id"], one["tool"], one["needs"]) for one in pending] == [
            ("call-0", "transfer", "approval"),
            ("call-1", "transfer", "approval"),
            ("call-2", "weigh", "result"),
        ]
        await env.restart()
        for decision in DECISIONS:
            await run.send(channel, decision)
        assert await run.result() == "['900', 'transferred 500']"
        assert len(CALLS) == len(set(CALLS)) == 3
        assert await run.state(channel) == []


async def test_calls_that_nothing_decides_are_denied_in_time() -> None:
    async with Environment([flows.asking]) as env:
        run = await env.start(flows.asking())
        await run.wait_state("desk", bool)
        await run.send("desk", DECISIONS[0])
        await env.advance("3d")
        assert await run.result() == "['The tool call was not made.', 'transferred 500']"


@pytest.mark.parametrize("flow", [flows.speaking, flows.handling], ids=lambda flow: flow.type)
async def test_each_event_is_in_the_stream_once_and_in_order(flow: Workflow[..., Any]) -> None:
    async with Environment([flow]) as env:
        run = await env.start(flow())
        events = [one async for one in agent_events(run, "speech")]
        kinds = [one.event.event_kind for one in events]
        assert kinds.count("function_tool_call") == kinds.count("function_tool_result") == 1
        assert kinds.index("function_tool_call") < kinds.index("function_tool_result") < kinds.index("final_result")
        text = [one.event.delta.content_delta for one in events if one.event.event_kind == "part_delta"
                and one.event.delta.part_delta_kind == "text"]  # fmt: skip
        assert "".join(text).endswith("day, guest 7")
        assert not any(one.restarted for one in events)


async def test_options_of_a_tool_override_those_of_the_agent() -> None:
    flows.ERRORS[:] = [ConnectionError("lost"), ConnectionError("lost")]
    async with Environment([flows.worrying], auto_advance=True) as env:
        run = await env.start(flows.worrying())
        assert await run.result() == "['article 0', 'article 1']"
        found = [record for record in await run.history() if "find_article" in record.location]
        first = next(record for record in found if record.kind == "step")
        assert first.attempts == 3


async def test_an_error_that_a_retry_repeats_is_not_retried() -> None:
    flows.ERRORS[:] = [UserError("wrong")]
    async with Environment([flows.worrying], auto_advance=True) as env:
        run = await env.start(flows.worrying())
        with pytest.raises(Exception, match="wrong") as caught:
            await run.result()
        assert "UserError" in str(caught.value)
        assert [record.attempts for record in await run.history() if record.failed] == [1]


async def test_a_retry_after_uses_up_no_attempt_and_is_waited_for() -> None:
    limited = [ModelHTTPError(429, "model", headers={"retry-after": "7"}) for _ in range(5)]
    flows.ERRORS[:] = list(limited)
    async with Environment([flows.worrying], auto_advance=True) as env:
        run = await env.start(flows.worrying())
        assert await run.result() == "['article 0', 'article 1']"
        assert (await run.info()).finished_at - (await run.info()).started_at >= 35_000_000


async def test_workflow_code_gets_errors_of_models_as_what_they_are() -> None:
    flows.ERRORS[:] = [ModelHTTPError(400, "model", {"why": "because"}, headers={})]
    async with Environment([flows.catching], auto_advance=True) as env:
        assert await (await env.start(flows.catching())).result() == "400 {'why': 'because'}"


async def test_outside_of_a_workflow_the_agent_is_an_ordinary_one() -> None:
    durable = Agent(TestModel(), name="plain", capabilities=[PerdureDurability(stream="agent")])
    assert (await durable.run("hello")).output == "success (no tool calls)"
    assert workflow_context(default=None) is None
    with pytest.raises(UsageError, match="outside of workflow code"):
        workflow_context()


def test_bad_options_are_refused_when_the_agent_is_made() -> None:
    with pytest.raises(UsageError, match="retries"):
        PerdureDurability(model={"retries": 3})  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        PerdureDurability(stream="a/b")
