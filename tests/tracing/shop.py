"""Workflows whose spans tests look at, and a worker process that sends its spans to a collector."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from perdure import Context, Engine, Retry, activity, activity_info, step_info, workflow
from perdure.errors import StepInterrupted
from perdure.tracing import Tracing
from perdure.workflow.definition import Definition

SOON = Retry(attempts=3, initial="10ms")


async def charge() -> int:
    """Fails at first."""
    if step_info().attempt == 1:
        raise ConnectionError("no answer")
    return 1


def pack() -> str:
    """Runs in a thread."""
    return "packed"


def hang(folder: str) -> str:
    """Never ends where it is called first."""
    return _hang(folder, "step")


def pay(folder: str) -> str:
    """As `hang`, in a step that is not executed again."""
    return _hang(folder, "payment")


@activity("shop.mail.v1")
async def mail(text: str) -> str:
    """Fails at first."""
    if activity_info().attempt == 1:
        raise ConnectionError("no answer")
    return text


@activity("shop.print.v1")
def printed(folder: str) -> str:
    """Never ends where it is called first."""
    return _hang(folder, "activity")


@workflow("shop.ship.v1")
async def ship(ctx: Context) -> str:
    """Is a child."""
    return await ctx.step(pack)


@workflow("shop.order.v1")
async def order(ctx: Context) -> str:
    """Retries, parks, waits for a message, calls a child and an activity."""
    await ctx.options(retry=SOON).step(charge)
    await ctx.sleep(0.2)
    await ctx.receive("go", str)
    await ctx.call(ship())
    return await ctx.call(mail("hello").options(retry=SOON))


@workflow("shop.parcel.v1")
async def parcel(ctx: Context, folder: str) -> str:
    """Retries and parks, then hangs in a step and in an activity until its worker is killed."""
    await ctx.options(retry=SOON).step(charge)
    await ctx.sleep(0.2)
    paid = asyncio.create_task(ctx.options(at_most_once=True).step(pay, folder))
    both = [*await asyncio.gather(ctx.step(hang, folder), ctx.call(printed(folder)))]
    await ctx.receive("go", str)
    try:
        await paid
    except StepInterrupted:
        both.append("unpaid")
    return " ".join([*both, await ctx.call(ship())])


WORKFLOWS: list[Definition[Any, Any]] = [order, parcel, ship, mail, printed]


def _hang(folder: str, name: str) -> str:
    mark = Path(folder, name)
    if not mark.exists():
        mark.touch()
        time.sleep(600)
    return name


async def main(url: str, endpoint: str) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint)))
    async with Engine(url, WORKFLOWS, tracing=Tracing(provider)) as engine:
        await engine.worker(lease=6.0, resident=0, retry=SOON).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
