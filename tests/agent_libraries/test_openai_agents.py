"""`perdure.openai_agents` with the real SDK: models and tools are fakes, workflows and databases are not."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import RunConfig, Runner

from perdure.errors import UsageError
from perdure.openai_agents import AgentRunner, ToolApproval, response_events, workflow_tool
from perdure.testing import Environment
from perdure.workflow.definition import Workflow
from perdure.workflow.step import current_step
from tests.agent_libraries import openai_flows as flows
from tests.agent_libraries.crashes import CALLS, assert_nothing_recorded_is_repeated

PROVE = bool(os.environ.get("PERDURE_PROVE"))
APPROVALS = [("tool_calls", ToolApproval("call-2", approved=False)), ("tool_calls", ToolApproval("call-1"))]
#: Each takes several seconds, in which other processes import the library.
LONG = [flows.rude, flows.chat, flows.lead, flows.browse]


@pytest.mark.parametrize("flow", [flows.buy, *(LONG if PROVE else [])], ids=lambda flow: flow.type)
async def test_no_recorded_call_is_repeated_after_a_crash(flow: Workflow[..., Any]) -> None:
    await assert_nothing_recorded_is_repeated(flow(), workflows=[flows.research] if flow is flows.lead else ())


async def test_no_recorded_call_is_repeated_after_a_crash_at_an_approval() -> None:
    await assert_nothing_recorded_is_repeated(flows.pay(), messages=APPROVALS)


async def test_no_recorded_call_of_an_agent_that_is_a_tool_is_repeated_after_a_crash() -> None:
    await assert_nothing_recorded_is_repeated(flows.edit(), messages=[("tool_calls", ToolApproval("call-1"))])


EXPECTED: list[tuple[Workflow[..., Any], Any, list[str]]] = [
    (
        flows.buy,
        'bought {"assistant": "buyer"} buyer',
        [
            "buyer.guardrails.polite",
            "buyer.model",
            "buyer.tools.price#3",
            "buyer.tools.price#2",
            "buyer.tools.price",
            "buyer.model#2",
            "clerk.model",
            "clerk.tools.stock",
            "clerk.model#2",
            "buyer.model#3",
            "buyer.guardrails.short",
        ],
    ),
    (flows.rude, "{'input': 'buy the damn tea'}", ["buyer.guardrails.polite"]),
    (flows.chat, ["you said this", "you said this and that"], ["chatter.model", "chatter.model#2"]),
    (
        flows.browse,
        "['article 7']",
        [
            "browser.mcp.catalogue.list-tools",
            "browser.model",
            "browser.mcp.catalogue.find_article",
            "browser.mcp.catalogue.list-tools#2",
            "browser.model#2",
        ],
    ),
    (
        flows.lead,
        "['all about a', 'all about b']",
        ["leader.model", "agents.openai.research.v1", "agents.openai.research.v1#2", "leader.model#2"],
    ),
]


@pytest.mark.parametrize(("flow", "result", "locations"), EXPECTED, ids=lambda one: getattr(one, "type", ""))
async def test_the_steps_of_an_agent_keep_their_names(
    flow: Workflow[..., Any], result: Any, locations: list[str]
) -> None:
    async with Environment([flow, flows.research]) as env:
        run = await env.start(flow())
        assert await run.result() == result
        assert [record.location for record in await run.history()] == locations


async def test_calls_of_an_agent_that_is_a_tool_are_steps_of_their_own() -> None:
    CALLS.clear()
    async with Environment([flows.edit]) as env:
        run = await env.start(flows.edit())
        [pending] = await run.wait_state("tool_calls", bool)
        assert (pending["id"], pending["tool"], pending["agent"]) == ("call-1", "publish", "printer")
        await env.restart()
        await run.send("tool_calls", ToolApproval("call-1"))
        assert await run.result() == "all about tea and That is secret. | published a page"
        locations = [record.location for record in await run.history() if record.kind == "step"]
        assert sorted(CALLS) == sorted(locations)
        assert locations[:2] == ["editor.model", "researcher.model"]
        assert sorted(locations[2:6]) == [
            "researcher.tools.consult",
            "researcher.tools.consult.guardrails.clean",
            "researcher.tools.consult.guardrails.known",
            "researcher.tools.consult.guardrails.known#2",
        ]
        assert locations[6:] == [
            "researcher.model#2",
            "editor.model#2",
            "printer.model",
            "printer.tools.publish",
            "printer.model#2",
            "editor.model#3",
        ]
        assert "run_item_stream_event" in flows.HEARD


async def test_an_agent_that_is_a_tool_runs_as_usual_outside_of_a_workflow() -> None:
    token = current_step.set(cast("Any", SimpleNamespace(location="outside")))
    try:
        result = await Runner.run(flows.researcher, "tea", run_config=RunConfig(tracing_disabled=True))
    finally:
        current_step.reset(token)
    assert result.last_agent is flows.researcher
    assert result.final_output == "all about tea and That is secret."


async def test_a_call_waits_for_its_approval_while_the_worker_is_replaced() -> None:
    CALLS.clear()
    async with Environment([flows.pay]) as env:
        run = await env.start(flows.pay())
        pending = await run.wait_state("tool_calls", bool)
        assert [(one["id"], one["tool"], one["agent"]) for one in pending] == [
            ("call-1", "transfer", "payer"),
            ("call-2", "transfer", "payer"),
        ]
        await env.restart()
        for channel, approval in APPROVALS:
            await run.send(channel, approval)
        assert await run.result() == "paid: ['Tool execution was not approved.', 'transferred 500']"
        assert len(CALLS) == len(set(CALLS)) == 3


async def test_calls_that_nothing_decides_are_rejected_in_time() -> None:
    async with Environment([flows.pay], auto_advance=True) as env:
        run = await env.start(flows.pay())
        assert await run.result() == f"paid: {['Tool execution was not approved.'] * 2}"


async def test_each_event_is_in_the_stream_once_and_in_order() -> None:
    async with Environment([flows.chat]) as env:
        run = await env.start(flows.chat())
        events = [one.event async for one in response_events(run, "speech")]
        words = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert words == ["you", "said", "this", "you", "said", "this", "and", "that"]
        assert [event.type for event in events].count("response.completed") == 2


async def test_options_of_a_tool_override_those_of_the_runner() -> None:
    flows.ERRORS[:] = [ConnectionError("lost"), ConnectionError("lost")]
    async with Environment([flows.fetch_article], auto_advance=True) as env:
        run = await env.start(flows.fetch_article())
        assert await run.result() == "['fetched tea']"
        [tool] = [one for one in await run.history() if one.location == "fetcher.tools.fetch" and one.kind == "step"]
        assert tool.attempts == 3


async def test_what_cannot_be_durable_is_refused() -> None:
    with pytest.raises(UsageError, match="context of the workflow"):
        AgentRunner(object())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="async def"):
        workflow_tool(len)
    async with Environment([flows.shell]) as env:
        run = await env.start(flows.shell())
        with pytest.raises(Exception, match="acts on this machine"):
            await run.result()
