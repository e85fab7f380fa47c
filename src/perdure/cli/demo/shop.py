"""Example shop of `perdure demo`, written as a user would; served by `perdure worker perdure.cli.demo.shop:engine`.

Its steps sleep instead of working. Each writes traces to the working directory: a line in `activity.jsonl` when an
attempt begins, fails or is done, and a line in `effects.log` (step, pid) when it has had its effect.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from perdure.client.engine import Engine
from perdure.core.policy.retry import Retry
from perdure.workflow.context import Context
from perdure.workflow.definition import workflow
from perdure.workflow.step import StepInfo, step, step_info


@dataclass
class Order:
    """Order of a customer."""

    id: str
    item: str
    cents: int


_ACTIVITY = "activity.jsonl"


@step(retry=Retry(attempts=5, initial="300ms", factor=1, jitter=0))
def charge(order: Order) -> str:
    """Charge the customer; fail twice, to show retries."""
    with _work(0.4) as info:
        if _failures(info) < 2:
            raise ConnectionError("the card network is down")
    return f"receipt-{order.id}"


def reserve(item: str) -> str:
    """Reserve the item."""
    with _work(0.3):
        return f"shelf 7, {item}"


def print_label(order: Order) -> str:
    """Print the label, slowly enough to be in flight when the worker is killed."""
    with _work(1.5):
        return f"label-{order.id}"


def ship(order: Order, label: str) -> str:
    """Ship the parcel."""
    with _work(0.6):
        return f"parcel-{order.id}"


def notify(order: Order, parcel: str) -> None:
    """Notify the customer."""
    with _work(0.3):
        return


@workflow("demo.checkout.v1")
async def checkout(ctx: Context, order: Order) -> str:
    """Process an order from payment to delivery."""
    _, _, label = await asyncio.gather(
        ctx.step(charge, order), ctx.step(reserve, order.item), ctx.step(print_label, order)
    )
    if not await ctx.receive("approval", bool):
        return "refused"
    await ctx.sleep("1500ms")
    parcel = await ctx.step(ship, order, label)
    await ctx.step(notify, order, parcel)
    return parcel


engine = Engine("sqlite:///shop.db", [checkout], audit="full")


@contextmanager
def _work(seconds: float) -> Generator[StepInfo, None, None]:
    info = step_info()
    _trace(info, "begins")
    time.sleep(seconds)
    try:
        yield info
    except Exception as error:
        _trace(info, f"fails: {error}")
        raise
    _append("effects.log", f"{info.location} {os.getpid()}")
    _trace(info, "is done")


def _failures(info: StepInfo) -> int:
    """Count the failed attempts at a step; `info.attempt` also counts attempts that a kill interrupted."""
    lines = map(json.loads, Path(_ACTIVITY).read_text().splitlines())
    return sum(line["step"] == info.location and line["what"].startswith("fails") for line in lines)


def _trace(info: StepInfo, what: str) -> None:
    line = {"step": info.location, "attempt": info.attempt, "pid": os.getpid(), "what": what}
    _append(_ACTIVITY, json.dumps(line))


def _append(name: str, line: str) -> None:
    with Path(name).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())
