"""Graphs of LangGraph in workflows, and the world that their nodes change."""

from __future__ import annotations

import asyncio
import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.config import get_stream_writer
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, RetryPolicy, Send, interrupt

from perdure import Context, Workflow, step_info, workflow
from perdure.langgraph import DurableGraph, task

#: Calls of nodes with the location of their step, in order; a node whose record was written is never in it twice.
CALLS: list[str] = []
#: Effects of nodes, with the key of their step.
BOOKED: set[tuple[str, str]] = set()
WORLD = (CALLS, BOOKED)


def book(what: str) -> None:
    """An effect as it should be: with a key, so that a repetition changes nothing."""
    location = step_info().location
    CALLS.append(f"{what} at {location}")
    BOOKED.add((location, what))


class Trip(TypedDict, total=False):
    city: str
    log: Annotated[list[str], operator.add]
    price: int
    approved: bool


async def plan(state: Trip) -> Trip:
    book("plan")
    return {"log": [f"plan {state['city']}"]}


async def flight(state: Trip) -> Trip:
    await asyncio.sleep(0.01)
    book("flight")
    return {"log": ["flight"], "price": 300}


def hotel(state: Trip) -> Trip:
    book("hotel")
    return {"log": ["hotel"]}


async def approve(state: Trip) -> Command[Any]:
    first = interrupt({"question": "pay?", "price": state["price"]})
    second = interrupt("sure?")
    book("approve")
    return Command(update={"approved": first == "yes" and second == "yes"}, goto="pay" if first == "yes" else END)


async def pay(state: Trip) -> Trip:
    get_stream_writer()({"paying": state["price"]})
    book("pay")
    return {"log": ["paid"]}


def trip_graph() -> Any:
    graph = StateGraph(Trip)
    for node in (plan, flight, hotel, approve, pay):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "flight")
    graph.add_edge("plan", "hotel")
    graph.add_edge(["flight", "hotel"], "approve")
    graph.add_edge("pay", END)
    return graph.compile()


TRIP = trip_graph()


@workflow("langgraph.trip.v1")
async def trip(ctx: Context, city: str) -> dict[str, Any]:
    values: dict[str, Any] = await DurableGraph(ctx, TRIP, stream="progress").run({"city": city, "log": []})
    return values


# fan-out by Send, a routing function, and a loop


class Work(TypedDict, total=False):
    items: list[int]
    done: Annotated[list[int], operator.add]
    rounds: int


class Item(TypedDict):
    item: int


@dataclass
class Verdict:
    """A result that JSON does not give back."""

    good: bool


def scatter(state: Work) -> list[Send]:
    return [Send("square", {"item": item}) for item in state["items"]]


async def square(state: Item) -> Work:
    await asyncio.sleep(0.001 * (5 - state["item"]))
    book(f"square {state['item']}")
    return {"done": [state["item"] ** 2]}


async def count(state: Work) -> dict[str, Any]:
    book("count")
    return {"rounds": state.get("rounds", 0) + 1}


def again(state: Work) -> Any:
    return scatter(state) if state["rounds"] < 2 else END


def work_graph() -> Any:
    graph = StateGraph(Work)
    graph.add_node("square", square)
    graph.add_node("count", count)
    graph.add_conditional_edges(START, scatter, ["square"])
    graph.add_edge("square", "count")
    graph.add_conditional_edges("count", again, ["square", END])
    return graph.compile()


WORK = work_graph()


@workflow("langgraph.work.v1")
async def work(ctx: Context) -> dict[str, Any]:
    values: dict[str, Any] = await DurableGraph(ctx, WORK).run({"items": [1, 2, 3], "done": []})
    return values


# a subgraph, and two interrupts at once


async def ask_left(state: Trip) -> Trip:
    return {"log": [f"left {interrupt('left?')}"]}


async def ask_right(state: Trip) -> Trip:
    return {"log": [f"right {interrupt('right?')}"]}


async def outer(state: Trip) -> Trip:
    book("outer")
    return {"log": ["outer"]}


def nested_graph() -> Any:
    inner = StateGraph(Trip)
    inner.add_node("ask_left", ask_left)
    inner.add_node("ask_right", ask_right)
    inner.add_edge(START, "ask_left")
    inner.add_edge(START, "ask_right")
    graph = StateGraph(Trip)
    graph.add_node("outer", outer)
    graph.add_node("inner", inner.compile())
    graph.add_edge(START, "outer")
    graph.add_edge("outer", "inner")
    return graph.compile()


NESTED = nested_graph()


@workflow("langgraph.nested.v1")
async def nested(ctx: Context) -> list[str]:
    values = await DurableGraph(ctx, NESTED).run({"log": []})
    log: list[str] = values["log"]
    return log


# the functional API


@task
async def write(topic: str) -> str:
    book(f"write {topic}")
    return f"essay on {topic}"


@task
async def score(essay: str) -> Verdict:
    book("score")
    return Verdict(len(essay) > 3)


@entrypoint()
async def essays(topics: list[str]) -> dict[str, Any]:
    found = await asyncio.gather(*(write(topic) for topic in topics))
    verdict = await score(found[0])
    answer = interrupt({"essays": found, "good": verdict.good})
    return {"essays": found, "answer": answer}


@workflow("langgraph.essays.v1")
async def essay_run(ctx: Context, topics: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = await DurableGraph(ctx, essays).run(topics)
    return values


# an agent with a model and messages


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def model(state: Chat) -> Chat:
    book("model")
    fake = GenericFakeChatModel(messages=iter([AIMessage(f"answer to {state['messages'][-1].content}")]))
    answer = None
    async for chunk in fake.astream(state["messages"]):
        answer = chunk if answer is None else answer + chunk
    assert answer is not None
    return {"messages": [AIMessage(str(answer.content), id=f"a{len(state['messages'])}")]}


def chat_graph() -> Any:
    graph = StateGraph(Chat)
    graph.add_node("model", model, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.001))
    graph.add_edge(START, "model")
    return graph.compile()


CHAT = chat_graph()


@workflow("langgraph.chat.v1")
async def chat(ctx: Context, stream: str | None = None) -> list[str]:
    graph = DurableGraph(ctx, CHAT, stream=stream)
    values: dict[str, Any] = {}
    for number in range(2):
        question = await ctx.receive("question", str)
        values = await graph.run({"messages": [HumanMessage(question, id=f"q{number}")]})
    return [str(message.content) for message in values["messages"]]


WORKFLOWS: list[Workflow[..., Any]] = [trip, work, nested, essay_run, chat]
