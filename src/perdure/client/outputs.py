"""Outputs of a run, read from outside at any time: the states that it publishes and the streams that it emits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Generic, TypeVar

from msgspec import Struct

from perdure.client.results import OutputWatch
from perdure.client.session import Session
from perdure.core.ids import check_name
from perdure.core.model.outputs import Output, OutputKind
from perdure.errors import UsageError
from perdure.store.contract import Store

T = TypeVar("T")

#: Items of a stream that are read at a time, and states that a run may have.
CHUNK = 500
STATES = 10_000


class StreamItem(Struct, Generic[T], frozen=True):
    """An item of a stream and its position, from 0, by which reading goes on after it."""

    position: int
    value: T
    #: Execution of a step that emitted the item: the same for all its items, another one if the step begins anew. Empty
    #: for items of workflow code.
    source: str = ""


async def state(session: Session, run_id: str, key: str, type: Any, default: Any) -> Any:
    """Return the latest value that a run published under a key, or the default."""
    await session.find(run_id)
    store = await session.opened()
    found = await store.outputs(run_id, OutputKind.STATE, check_name(key, "key of a state"), -1, 1)
    return _value(session, found[0], type) if found else default


async def states(session: Session, run_id: str) -> dict[str, Any]:
    """Return everything that a run has published, by key."""
    await session.find(run_id)
    store = await session.opened()
    found = await store.outputs(run_id, OutputKind.STATE, None, -1, STATES)
    return {output.name: _value(session, output, Any) for output in found}


async def stream(
    session: Session, run_id: str, name: str, type: Any, after: int | None, *, follow: bool
) -> AsyncGenerator[StreamItem[Any]]:
    """Yield the items of a stream past a position until the run ends; without `follow`, those that are there."""
    check_name(name, "name of a stream")
    last = -1 if after is None else after
    if last < -1:
        raise UsageError(f"stream(after={after}): positions begin with 0; leave it out to read from the beginning")
    await session.find(run_id)
    store = await session.opened()
    with OutputWatch(store, session.system) as watch:
        while True:
            # The run is read before its outputs: all of them are there when it has ended.
            if watch.replaced():
                last = await _reached(store, run_id, name, last)
            ended = not follow or (await session.find(run_id)).status.finished
            items = await store.outputs(run_id, OutputKind.STREAM, name, last, CHUNK)
            for item in items:
                last = item.position
                yield StreamItem(item.position, _value(session, item, type), item.source)
            if items:
                watch.found()
            if len(items) == CHUNK:
                continue
            if ended:
                return
            await watch.arrive()


async def _reached(store: Store, run_id: str, name: str, last: int) -> int:
    """Return the last existing position up to `last`: items lost in a failover are emitted anew, in their places."""
    reached = -1
    while items := await store.outputs(run_id, OutputKind.STREAM, name, reached, CHUNK):
        if items[-1].position >= last:
            return last
        reached = items[-1].position
    return reached


def _value(session: Session, output: Output, type: Any) -> Any:
    return session.codec.decode(output.payload, type, f"{output.kind} {output.name!r} of run {output.run_id!r}")
