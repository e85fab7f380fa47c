"""`PerdureSaver`: LangGraph's own conformance suite, graphs that continue a thread, and two processes at once."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from perdure import Engine, blocking
from perdure.errors import DecodeError, InvalidId, UsageError
from perdure.langgraph import PerdureSaver


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def ask(state: Log) -> Log:
    return {"log": [f"answered {interrupt('sure?')}"]}


def note(state: Log) -> Log:
    return {"log": [f"note {len(state['log'])}"]}


def graph_on(saver: PerdureSaver) -> Any:
    graph = StateGraph(Log)
    graph.add_node("note", note)
    graph.add_node("ask", ask)
    graph.add_edge(START, "note")
    graph.add_edge("note", "ask")
    return graph.compile(checkpointer=saver)


def thread(name: str = "t", **more: str) -> Any:
    return {"configurable": {"thread_id": name, **more}}


async def test_langgraphs_conformance_suite_passes_whole(url: str) -> None:
    async with Engine(url) as engine:

        @checkpointer_test(name="perdure")
        async def made() -> AsyncIterator[PerdureSaver]:
            yield PerdureSaver(engine)

        report = await validate(made)
    assert set(report.results) == {capability.value for capability in ALL_CAPABILITIES}
    assert {name: one.failures for name, one in report.results.items() if not one.passed} == {}
    assert sum(one.tests_passed for one in report.results.values()) >= 81


async def test_another_process_continues_a_thread(url: str) -> None:
    async with Engine(url) as engine:
        first = await graph_on(PerdureSaver(engine)).ainvoke({"log": ["begin"]}, thread())
        assert [one.value for one in first["__interrupt__"]] == ["sure?"]
    async with Engine(url) as engine:
        graph = graph_on(PerdureSaver(engine))
        last = await graph.ainvoke(Command(resume="yes"), thread())
        assert last["log"] == ["begin", "note 1", "answered yes"]
        history = [snapshot.next async for snapshot in graph.aget_state_history(thread())]
        assert history == [(), ("ask",), ("note",), ("__start__",)]
        await graph.aupdate_state(thread(), {"log": ["by hand"]}, as_node="ask")
        assert (await graph.aget_state(thread())).values["log"][-1] == "by hand"


async def test_two_processes_that_store_at_once_leave_one_of_the_two_results(url: str) -> None:
    async with Engine(url) as first, Engine(url) as second:
        savers = [PerdureSaver(first), PerdureSaver(second)]
        checkpoint = empty_checkpoint()
        config = await savers[0].aput(thread(checkpoint_ns=""), checkpoint, {"source": "input"}, {})
        writes = [saver.aput_writes(config, [("c", place)], "task") for place, saver in enumerate(savers * 4)]
        puts = [saver.aput(thread(checkpoint_ns=""), checkpoint, {"source": "loop"}, {}) for saver in savers * 4]
        await asyncio.gather(*writes, *puts, savers[0].acopy_thread("t", "u"), savers[1].acopy_thread("t", "u"))
        found = await savers[1].aget_tuple(config)
        assert found is not None
        assert found.metadata["source"] == "loop"
        [(_, _, kept)] = found.pending_writes or []
        again = await savers[0].aget_tuple(config)
        assert again is not None
        assert again.pending_writes == [("task", "c", kept)]
        await asyncio.gather(*(saver.adelete_thread("t") for saver in savers * 3))
        assert await savers[0].aget_tuple(config) is None


async def test_a_pruned_thread_keeps_what_its_latest_checkpoint_is_rebuilt_from(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        saver = PerdureSaver(engine)
        config = thread(checkpoint_ns="")
        made: list[str] = []
        for step in range(6):
            checkpoint = empty_checkpoint()
            # A whole value at every third step, and differences in between.
            checkpoint["channel_values"] = {"plain": step, **({"delta": [step]} if step % 3 == 1 else {})}
            metadata: Any = {"source": "loop", "step": step, "counters_since_delta_snapshot": {"delta": (1, 1)}}
            config = await saver.aput(config, checkpoint, metadata, {})
            await saver.aput_writes(config, [("delta", step)], f"task{step}")
            made.append(checkpoint["id"])
        before = await saver.aget_delta_channel_history(config=config, channels=["delta"])
        await saver.aprune(["t"])
        left = [one.checkpoint["id"] async for one in saver.alist(thread())]
        assert left == [made[5], made[4]]
        assert await saver.aget_delta_channel_history(config=config, channels=["delta"]) == before
        assert before["delta"] == {"writes": [("task4", "delta", 4)], "seed": [4]}


def test_a_blocking_engine_serves_graphs_without_a_loop(tmp_path: Path) -> None:
    with blocking.Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        saver = PerdureSaver(engine)
        graph = graph_on(saver)
        graph.invoke({"log": []}, thread())
        assert graph.invoke(Command(resume=1), thread())["log"] == ["note 0", "answered 1"]
        assert [one.metadata["step"] for one in saver.list(thread(), limit=2)] == [2, 1]
        assert [one.metadata["step"] for one in saver.list(None, filter={"step": 1})] == [1]
        saver.copy_thread("t", "u")
        saver.prune(["t"])
        assert len(list(saver.list(thread()))) == 1
        saver.delete_thread("t")
        saver.delete_for_runs(["none"])
        assert saver.get_tuple(thread()) is None
        assert saver.get_tuple(thread("u")) is not None
        assert asyncio.run(_resumed(graph)) == ["note 0", "answered 1"]


async def _resumed(graph: Any) -> Any:
    return (await graph.aget_state(thread("u"))).values["log"]


async def test_sync_methods_work_from_threads_of_the_loop_and_not_on_it(tmp_path: Path) -> None:
    async with Engine(f"sqlite:///{tmp_path}/a.db") as engine:
        saver = PerdureSaver(engine)
        await graph_on(saver).ainvoke({"log": []}, thread())
        assert await asyncio.to_thread(saver.get_tuple, thread()) is not None
        with pytest.raises(UsageError, match="`ainvoke`"):
            saver.get_tuple(thread())


async def test_wrong_configurations_and_damaged_rows_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with Engine(f"sqlite:///{path}") as engine:
        saver = PerdureSaver(engine)
        with pytest.raises(UsageError, match="names no thread"):
            await saver.aget_tuple({"configurable": {}})
        with pytest.raises(InvalidId, match="thread_id"):
            await saver.aget_tuple(thread("x" * 300))
        with pytest.raises(UsageError, match="keep_latest"):
            await saver.aprune(["t"], strategy="some")
        with pytest.raises(UsageError, match=r"engine=|perdure\.Engine"):
            PerdureSaver("sqlite:///a.db")
        long = "|".join(f"node{number}:{'x' * 30}" for number in range(20))
        await saver.aput(thread(checkpoint_ns=long), empty_checkpoint(), {"source": "loop"}, {})
        [found] = [one async for one in saver.alist(thread())]
        assert found.config["configurable"]["checkpoint_ns"] == long
        assert await saver.aget_tuple(thread(checkpoint_ns=long)) == found
        assert await saver.aget_tuple(thread(checkpoint_ns=f"{long}y")) is None
        import sqlite3

        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE perdure_graph_checkpoints SET body = '{'")
        with pytest.raises(DecodeError, match="of the thread 't' cannot be read"):
            await saver.aget_tuple(thread(checkpoint_ns=long))
