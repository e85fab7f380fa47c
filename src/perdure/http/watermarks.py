"""Handlers for watermarks, and for the depths that they bound."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.core.policy.watermark import Watermark
from perdure.http.api import ApiRequest, Reason, ReasonQuery
from perdure.http.views import Done, Page


class DepthQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Most runs that are counted."""

    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000


class DepthView(Struct, frozen=True):
    """Number of runs that are ready and wait for a worker."""

    depth: int


async def queue_depth(api: ApiRequest, queue: str, query: DepthQuery) -> DepthView:
    """Count the runs of a queue that are ready and wait for a worker."""
    return DepthView(await api.engine.queues.watermarks.depth(queue=queue, limit=query.limit))


async def type_depth(api: ApiRequest, type: str, query: DepthQuery) -> DepthView:
    """Count the runs of a type that are ready and wait for a worker."""
    return DepthView(await api.engine.queues.watermarks.depth(type=type, limit=query.limit))


class WatermarkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of waiting runs from which starts are refused or wait, and below which they resume."""

    high: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    low: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    when_full: str = "refuse"
    reason: Reason = ""


async def list_watermarks(api: ApiRequest) -> Page[Watermark]:
    """List the watermarks that are set in the database."""
    return Page(tuple(await api.engine.queues.watermarks.list()))


async def set_queue_watermark(api: ApiRequest, queue: str, body: WatermarkBody) -> Watermark:
    """Set the watermark of a queue."""
    return await _set_watermark(api, body, queue=queue)


async def set_type_watermark(api: ApiRequest, type: str, body: WatermarkBody) -> Watermark:
    """Set the watermark of a type."""
    return await _set_watermark(api, body, type=type)


async def _set_watermark(
    api: ApiRequest, body: WatermarkBody, *, queue: str | None = None, type: str | None = None
) -> Watermark:
    watermark = Watermark(queue=queue, type=type, high=body.high, low=body.low, when_full=body.when_full)
    await api.engine.queues.watermarks.set(watermark, body.reason)
    return watermark


async def remove_queue_watermark(api: ApiRequest, queue: str, query: ReasonQuery) -> Done:
    """Remove the watermark of a queue."""
    await api.engine.queues.watermarks.remove(queue=queue, reason=query.reason)
    return Done(True)


async def remove_type_watermark(api: ApiRequest, type: str, query: ReasonQuery) -> Done:
    """Remove the watermark of a type."""
    await api.engine.queues.watermarks.remove(type=type, reason=query.reason)
    return Done(True)
