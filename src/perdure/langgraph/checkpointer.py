"""A checkpointer of LangGraph on the database of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from perdure.client.engine import Engine
from perdure.client.facade import Facade, parts_of
from perdure.client.session import session_of
from perdure.core.model.graph_checkpoints import GraphDeletion, GraphEntry, GraphQuery
from perdure.core.option_checks import check_instance
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.langgraph.entries import (
    Key,
    checkpoint_entry,
    checkpoint_of,
    metadata_of,
    run_key,
    thread_key,
    tuple_of,
    write_entries,
)
from perdure.store.contract import Store

T = TypeVar("T")

#: Checkpoints that one read fetches, with and without their contents.
_PAGE = 20
_HEADS = 500
#: Metadata by which LangGraph names the channels that store differences.
_DELTA_COUNTERS = "counters_since_delta_snapshot"


class PerdureSaver(BaseCheckpointSaver[str]):
    """A checkpointer that stores threads in the database of an engine.

    With a `perdure.Engine`, graphs run by `ainvoke` and `astream`. Its sync methods work from other threads while the
    loop runs that used it first. With a `perdure.blocking.Engine`, graphs run by `invoke` and `stream`, and by the
    async methods, too. `serde` encodes values, such as LangGraph's `EncryptedSerializer`.
    """

    def __init__(self, engine: Engine | Any, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._portal, self._engine = None, engine
        if isinstance(engine, Facade):
            self._portal, self._engine = parts_of(engine)
        check_instance("engine", self._engine, Engine, "a perdure.Engine or a perdure.blocking.Engine")
        self._loop: asyncio.AbstractEventLoop | None = None

    def get_next_version(self, current: str | None, channel: None) -> str:
        """Version of a channel after `current`: larger, and different in two processes that continue one thread."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        nonce = int.from_bytes(session_of(self._engine).system.entropy(7), "big")
        return f"{number + 1:032}.{nonce:017}"

    # reading

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a configuration, or the latest one of its thread; None if there is none."""
        return await self._away(self._get_tuple(config))

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        key = Key.of(config)
        query = GraphQuery(thread=key.thread, space=key.space, checkpoint=key.checkpoint)
        rows = await (await self._store()).graph_checkpoints(query)
        return tuple_of(self.serde, rows[0], rows[1:]) if rows else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the latest first: those of a thread, or all; `filter` compares members of the metadata."""
        items = self._list(config, filter, before, limit)
        try:
            while (item := await self._away(_next(items))) is not None:
                yield item
        finally:
            await self._away(_close(items))

    async def _list(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple]:
        key = None if config is None else Key.of(config)
        query = GraphQuery(
            thread=None if key is None else key.thread,
            space=None if key is None or key.namespace is None else key.space,
            checkpoint=None if key is None else key.checkpoint,
            before=None if before is None else get_checkpoint_id(before),
            limit=_PAGE if limit is None or filter else max(0, min(limit, _PAGE)),
        )
        left = limit
        async for rows in self._pages(query):
            for row, writes in _grouped(rows):
                if left is not None and left <= 0:
                    return
                if filter and not _matches(metadata_of(self.serde, row), filter):
                    continue
                yield tuple_of(self.serde, row, writes)
                left = None if left is None else left - 1

    async def _pages(self, query: GraphQuery) -> AsyncGenerator[list[GraphEntry]]:
        after, store = query.after, await self._store()
        while query.limit:
            rows = await store.graph_checkpoints(_following(query, after))
            heads = [row for row in rows if not row.entry]
            if heads:
                yield rows
            if len(heads) < query.limit:
                return
            after = heads[-1].checkpoint, heads[-1].thread, heads[-1].space

    # writing

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint after the one that the configuration names."""
        key = Key.of(config)
        row = checkpoint_entry(self.serde, key, checkpoint, get_checkpoint_metadata(config, metadata))
        await self._away(self._save([row]))
        place = {"thread_id": config.get("configurable", {})["thread_id"], "checkpoint_ns": key.namespace or ""}
        return {"configurable": {**place, "checkpoint_id": checkpoint["id"]}}

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, which belong to the checkpoint that the task began with."""
        await self._away(self._save(write_entries(self.serde, Key.of(config), writes, task_id, task_path)))

    async def _save(self, rows: Sequence[GraphEntry]) -> None:
        if rows:
            await (await self._store()).save_graph_entries(rows, self._actor)

    # deletion

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        await self._away(self._delete(GraphDeletion(thread=thread_key(thread_id))))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some invocations (`run_id` of the metadata) made, with their writes."""
        if run_ids:
            await self._away(self._delete(GraphDeletion(runs=tuple(run_key(one) for one in run_ids))))

    async def _delete(self, choice: GraphDeletion) -> None:
        await (await self._store()).delete_graph_entries(choice, self._actor)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all of its checkpoints and writes; what the target has already stays."""
        await self._away(self._copy(thread_key(source_thread_id), thread_key(target_thread_id)))

    async def _copy(self, source: str, target: str) -> None:
        await (await self._store()).copy_graph_thread(source, target, self._actor)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads: all but the latest one of each namespace, or all (`"delete"`).

        Checkpoints that the latest one needs stay: a channel that stores differences is rebuilt from the checkpoint
        with its last whole value on.
        """
        if strategy not in ("keep_latest", "delete"):
            raise UsageError(f"strategy is 'keep_latest' or 'delete', not {brief(strategy)}")
        for thread in sorted({thread_key(one) for one in thread_ids}):
            if strategy == "delete":
                await self._away(self._delete(GraphDeletion(thread=thread)))
            else:
                await self._away(self._prune(thread))

    async def _prune(self, thread: str) -> None:
        latest: dict[str, GraphEntry] = {}
        async for rows in self._pages(GraphQuery(thread=thread, limit=_HEADS, brief=True)):
            for row in rows:
                latest.setdefault(row.space, row)
        for space, row in latest.items():
            keep = await self._needed(row)
            # By ids below the latest one, so that a checkpoint that is stored meanwhile stays.
            await self._delete(GraphDeletion(thread=thread, space=space, before=row.checkpoint, keep=keep))

    async def _needed(self, latest: GraphEntry) -> tuple[str, ...]:
        """Ids of the checkpoints from which the channels of the latest one are rebuilt."""
        metadata: Mapping[str, Any] = metadata_of(self.serde, latest)
        missing = set(metadata.get(_DELTA_COUNTERS, ()))
        needed: list[str] = []
        place, store = latest.checkpoint, await self._store()
        while missing:
            rows = await store.graph_checkpoints(GraphQuery(thread=latest.thread, space=latest.space, checkpoint=place))
            if not rows:
                break
            needed.append(place)
            missing -= set(checkpoint_of(self.serde, rows[0])["channel_values"])
            place = rows[0].parent
        return tuple(needed)

    # sync

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a configuration, or the latest one of its thread; None if there is none."""
        return self._wait(self._get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the latest first."""
        items = self._list(config, filter, before, limit)
        try:
            while (item := self._wait(_next(items))) is not None:
                yield item
        finally:
            self._wait(_close(items))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint after the one that the configuration names."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, which belong to the checkpoint that the task began with."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        self._wait(self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that some invocations made, with their writes."""
        self._wait(self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread with all of its checkpoints and writes; what the target has already stays."""
        self._wait(self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints of threads: all but the latest one of each namespace, or all (`"delete"`)."""
        self._wait(self.aprune(thread_ids, strategy=strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Walk the ancestors of a checkpoint for the differences of some channels."""
        return self._wait(self.aget_delta_channel_history(config=config, channels=channels))

    # the engine

    @property
    def _actor(self) -> str:
        return session_of(self._engine).actor

    async def _store(self) -> Store:
        return await session_of(self._engine).connect()

    async def _away(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the loop of the engine, which is this one unless the engine blocks."""
        if self._portal is None:
            self._loop = asyncio.get_running_loop()
            return await work
        return await asyncio.wrap_future(self._portal.submit(work))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work and wait for it, on a thread without a loop."""
        if self._portal is not None:
            return self._portal.wait(work)
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is not None or self._loop is None:
            work.close()
            raise UsageError(
                "a sync method would wait on the engine's own event loop: run the graph by `ainvoke` or `astream`, or "
                "make the saver with a perdure.blocking.Engine"
            )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _following(query: GraphQuery, after: tuple[str, str, str] | None) -> GraphQuery:
    return GraphQuery(
        thread=query.thread,
        space=query.space,
        checkpoint=query.checkpoint,
        before=query.before,
        after=after,
        limit=query.limit,
        brief=query.brief,
    )


def _grouped(rows: Sequence[GraphEntry]) -> Iterator[tuple[GraphEntry, Sequence[GraphEntry]]]:
    """Each checkpoint with its writes, which follow it."""
    heads = [place for place, row in enumerate(rows) if not row.entry]
    for place, end in zip(heads, [*heads[1:], len(rows)], strict=True):
        yield rows[place], rows[place + 1 : end]


def _matches(metadata: CheckpointMetadata, filter: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in filter.items())


async def _next(items: AsyncGenerator[T]) -> T | None:
    return await anext(items, None)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()
