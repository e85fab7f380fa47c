"""Checkpoints of graphs, and the writes that belong to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.core.model.graph_checkpoints import GraphDeletion, GraphEntry, GraphQuery
from perdure.store import Store
from perdure.testing.conformance.harness import ACTOR

Verb = Callable[[Store], Awaitable[object]]


def an_entry(checkpoint: str = "1", **fields: str) -> GraphEntry:
    """Make a checkpoint."""
    given: dict[str, Any] = {"thread": "t", "checkpoint": checkpoint, "body": "O'é\\n", **fields}
    return GraphEntry(**given)


def a_write(checkpoint: str = "1", entry: str = "task/0", body: str = "{}", *, replaces: bool = False) -> GraphEntry:
    """Make a write."""
    return GraphEntry(thread="t", checkpoint=checkpoint, entry=entry, body=body, replaces=replaces)


async def prepare_save_graph_entries(store: Store) -> Verb:
    """One entry is there, and another one is not."""
    await store.save_graph_entries([an_entry(body="old")], ACTOR)
    return lambda store: store.save_graph_entries([an_entry(), an_entry("2"), a_write()], ACTOR)


async def prepare_copy_graph_thread(store: Store) -> Verb:
    """A thread with a checkpoint and a write, and a target that has one of them."""
    await store.save_graph_entries([an_entry(), a_write(), an_entry(thread="u")], ACTOR)
    return lambda store: store.copy_graph_thread("t", "u", ACTOR)


async def prepare_delete_graph_entries(store: Store) -> Verb:
    """A thread with checkpoints of two invocations."""
    await store.save_graph_entries([an_entry(), a_write(), an_entry("2", run="r")], ACTOR)
    return lambda store: store.delete_graph_entries(GraphDeletion(thread="t", runs=("r",)), ACTOR)


async def keys(store: Store, **query: str) -> list[str]:
    """Checkpoints and writes of a query, as texts."""
    given: dict[str, Any] = {"limit": 100, **query}
    found = await store.graph_checkpoints(GraphQuery(**given))
    return [":".join(filter(None, (one.thread, one.space, one.checkpoint, one.entry))) for one in found]


class GraphCheckpoints:
    """A thread has spaces, a space checkpoints, and a checkpoint writes."""

    async def test_an_entry_comes_back_as_it_was_stored(self, store: Store) -> None:
        entry = an_entry(parent="0", run="r", metadata="{}", space="a|b")
        await store.save_graph_entries([entry], ACTOR)
        assert await store.graph_checkpoints(GraphQuery(thread="t")) == [entry]
        assert await store.graph_checkpoints(GraphQuery(thread="T")) == []
        [brief] = await store.graph_checkpoints(GraphQuery(thread="t", brief=True))
        assert (brief.body, brief.metadata) == ("", "{}")

    async def test_the_latest_checkpoint_comes_first_with_its_writes(self, store: Store) -> None:
        made = [an_entry("1"), an_entry("3"), a_write("3", "b/0"), a_write("3", "a/0"), a_write("1"), an_entry("2")]
        await store.save_graph_entries(made, ACTOR)
        assert await keys(store) == ["t:3", "t:3:a/0", "t:3:b/0", "t:2", "t:1", "t:1:task/0"]
        assert await keys(store, checkpoint="2") == ["t:2"]
        assert await keys(store, before="2") == ["t:1", "t:1:task/0"]

    async def test_pages_follow_each_other_without_a_gap(self, store: Store) -> None:
        made = [an_entry(str(n), thread=thread, space=space) for n in (1, 2) for thread in "tu" for space in ("", "s")]
        await store.save_graph_entries(made, ACTOR)
        found: list[GraphEntry] = []
        after = None
        while page := await store.graph_checkpoints(GraphQuery(limit=3, after=after)):
            found += page
            after = page[-1].checkpoint, page[-1].thread, page[-1].space
        assert [(one.checkpoint, one.thread, one.space) for one in found] == [
            (n, thread, space) for n in "21" for thread in "tu" for space in ("", "s")
        ]

    async def test_a_checkpoint_is_replaced_and_a_write_is_kept(self, store: Store) -> None:
        await store.save_graph_entries([an_entry(body="1"), a_write(body="1"), a_write(entry="task/-3")], ACTOR)
        again = [an_entry(body="2"), a_write(body="2"), a_write(entry="task/-3", body="3", replaces=True)]
        await store.save_graph_entries(again, ACTOR)
        found = await store.graph_checkpoints(GraphQuery(thread="t"))
        assert [one.body for one in found] == ["2", "3", "1"]

    async def test_a_write_may_come_before_its_checkpoint(self, store: Store) -> None:
        await store.save_graph_entries([a_write()], ACTOR)
        assert await keys(store) == []
        await store.save_graph_entries([an_entry()], ACTOR)
        assert await keys(store) == ["t:1", "t:1:task/0"]

    async def test_a_copy_leaves_what_the_target_has(self, store: Store) -> None:
        there = an_entry(thread="u", body="own")
        await store.save_graph_entries([an_entry("1"), a_write("1"), an_entry("2", space="s"), there], ACTOR)
        for _ in range(2):
            await store.copy_graph_thread("t", "u", ACTOR)
        assert await keys(store, thread="u") == ["u:s:2", "u:1", "u:1:task/0"]
        own, _ = await store.graph_checkpoints(GraphQuery(thread="u", checkpoint="1"))
        assert own.body == "own"
        await store.copy_graph_thread("t", "t", ACTOR)
        assert len(await keys(store, thread="t")) == 3

    async def test_a_deletion_takes_the_writes_along(self, store: Store) -> None:
        made = [an_entry("1"), a_write("1"), an_entry("2", run="r"), a_write("2"), an_entry("3", thread="u", run="r")]
        await store.save_graph_entries(made, ACTOR)
        await store.delete_graph_entries(GraphDeletion(runs=("r", "none")), ACTOR)
        assert await keys(store) == ["t:1", "t:1:task/0"]
        await store.delete_graph_entries(GraphDeletion(thread="t"), ACTOR)
        await store.save_graph_entries([an_entry("1"), an_entry("2")], ACTOR)
        assert await keys(store) == ["t:2", "t:1"]

    async def test_a_deletion_spares_later_checkpoints_and_those_to_keep(self, store: Store) -> None:
        made = [an_entry(str(n)) for n in range(1, 6)] + [a_write("2"), a_write("3"), an_entry("1", space="s")]
        await store.save_graph_entries(made, ACTOR)
        await store.delete_graph_entries(GraphDeletion(thread="t", space="", before="4", keep=("2",)), ACTOR)
        assert await keys(store) == ["t:5", "t:4", "t:2", "t:2:task/0", "t:s:1"]
