"""A small shop whose incidents are recorded: one workflow, an activity behind a limit, a schedule.

`SHOP_URL` names its database, `SHOP_PAYMENTS` the port of the service that it calls, `SHOP_SPANS` the file for its
spans and `SHOP_INSTANCE` the name of the process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from perdure import Context, Engine, Limit, Retry, activity, step, workflow
from perdure.tracing import Tracing

#: Share of the traces that are recorded.
SAMPLED = 0.1


class FileExporter(SpanExporter):
    """Appends spans to a file, one JSON document in each line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write spans down, at once so that a line is never in two parts."""
        lines = "".join(json.dumps(_span_fields(one)) + "\n" for one in spans)
        with self._path.open("a") as file:
            file.write(lines)
        return SpanExportResult.SUCCESS


def _span_fields(span: ReadableSpan) -> dict[str, Any]:
    assert span.context is not None
    assert span.start_time is not None
    assert span.end_time is not None
    return {
        "trace_id": f"{span.context.trace_id:032x}",
        "span_id": f"{span.context.span_id:016x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "name": span.name,
        "kind": span.kind.name.lower(),
        "service": span.resource.attributes["service.name"],
        "instance": span.resource.attributes["service.instance.id"],
        "start": datetime.fromtimestamp(span.start_time / 1e9, UTC).isoformat(timespec="milliseconds"),
        "seconds": round((span.end_time - span.start_time) / 1e9, 4),
        "status": span.status.status_code.name.lower(),
        "description": span.status.description,
        "attributes": dict(span.attributes or {}),
        "links": [f"{one.context.span_id:016x}" for one in span.links],
    }


def provider(service: str) -> TracerProvider:
    """Make a tracer provider that records a part of the traces in the file of this process."""
    resource = Resource({"service.name": service, "service.instance.id": os.environ["SHOP_INSTANCE"]})
    made = TracerProvider(ParentBased(TraceIdRatioBased(SAMPLED)), resource)
    exporter = FileExporter(Path(os.environ["SHOP_SPANS"]))
    made.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=2000))
    return made


async def ask_payments(request: str) -> str:
    """Ask the payment service, over a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ["SHOP_PAYMENTS"]))
    try:
        writer.write(f"{request}\n".encode())
        await writer.drain()
        answer = (await reader.readline()).decode().strip()
    finally:
        writer.close()
    if answer != "ok":
        raise ConnectionError(f"the payment service answers {answer!r}")
    return answer


@step
async def reserve(number: int) -> int:
    await asyncio.sleep(random.uniform(0.005, 0.03))
    return number


@step(retry=Retry(attempts=5, initial="500ms"))
async def charge(number: int) -> str:
    return await ask_payments(f"charge {number}")


@step
def pack(number: int) -> str:
    time.sleep(random.uniform(0.01, 0.05))
    return f"parcel {number}"


@activity("shop.mail.v1", limit=Limit("mail-server", concurrency=8))
async def mail(number: int) -> str:
    await asyncio.sleep(random.uniform(1.5, 2.5))
    return f"sent {number}"


@workflow("shop.order.v1")
async def order(ctx: Context, number: int) -> str:
    await ctx.step(reserve, number)
    await ctx.step(charge, number)
    await ctx.sleep(random_pause(number))
    await ctx.step(pack, number)
    return await ctx.call(mail(number))


def random_pause(number: int) -> float:
    """Seconds until the parcel is packed, the same for each replay."""
    return 2.0 + number % 5


@workflow("shop.stock.v1")
async def stock(ctx: Context) -> int:
    return await ctx.step(reserve, 0)


engine = Engine(os.environ["SHOP_URL"], [order, stock, mail], tracing=Tracing(provider("shop-worker")))
