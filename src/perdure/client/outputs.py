"""What a run shows, read from outside at any time: the states that it publishes and the streams that it emits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from msgspec import Struct

from perdure.client.results import News
from perdure.core.ids import check_name
from perdure.core.model.outputs import Output, OutputKind
from perdure.errors import UsageError

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.store.contract import Store

T = TypeVar("T")

#: How many items of a stream are read at a time, and how many states there may be.
CHUNK = 500
STATES = 10_000


class StreamItem(Struct, Generic[T], frozen=True):
    """An item of a stream and its position, from 0, by which reading goes on after it."""

    position: int
    value: T
    #: Of an item that a step emitted: the same for all that one execution of it emitted, another one if it begins anew. Otherwise
    #: empty.
    source: str = ""


async def state(engine: Engine, run_id: str, key: str, type: Any, default: Any) -> Any:
    """The latest value that a run published under a key."""
    await engine._run(run_id)
    store = await engine._opened()
    found = await store.outputs(run_id, OutputKind.STATE, check_name(key, "key of a state"), -1, 1)
    return _value(engine, found[0], type) if found else default


async def states(engine: Engine, run_id: str) -> dict[str, Any]:
    """Everything that a run has published, by key."""
    await engine._run(run_id)
    store = await engine._opened()
    found = await store.outputs(run_id, OutputKind.STATE, None, -1, STATES)
    return {output.name: _value(engine, output, Any) for output in found}


async def stream(
    engine: Engine, run_id: str, name: str, type: Any, after: int | None, *, follow: bool
) -> AsyncGenerator[StreamItem[Any]]:
    """The items of a stream past a position, as they come; ends when the run has ended, or at once if nobody follows."""
    check_name(name, "name of a stream")
    last = -1 if after is None else after
    if last < -1:
        raise UsageError(f"stream(after={after}): positions begin with 0; leave it out to read from the beginning")
    await engine._run(run_id)
    store = await engine._opened()
    with News(store, engine._system) as news:
        while True:
            # Looked at first: what a run shows is there when it has ended.
            if news.replaced():
                last = await _reached(store, run_id, name, last)
            ended = not follow or (await engine._run(run_id)).status.finished
            items = await store.outputs(run_id, OutputKind.STREAM, name, last, CHUNK)
            for item in items:
                last = item.position
                yield StreamItem(item.position, _value(engine, item, type), item.source)
            if items:
                news.found()
            if len(items) == CHUNK:
                continue
            if ended:
                return
            await news.arrive()


async def _reached(store: Store, run_id: str, name: str, last: int) -> int:
    """The last position up to `last` that is there: what a failover lost is emitted anew, in the same places."""
    reached = -1
    while items := await store.outputs(run_id, OutputKind.STREAM, name, reached, CHUNK):
        if items[-1].position >= last:
            return last
        reached = items[-1].position
    return reached


def _value(engine: Engine, output: Output, type: Any) -> Any:
    return engine._codec.decode(output.payload, type, f"{output.kind} {output.name!r} of run {output.run_id!r}")
