"""Workflows whose steps have to pass a gate one by one, and the ledger in which each execution writes its beginning and
its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure import Breaker, Context, Limit, Retry, step, step_info, workflow
from tests.faults.app import begin, note, read

#: One at a time; and a breaker that opens at the first failure and closes at the first success.
ONE = Limit("narrow", concurrency=1)
FRAGILE = Breaker("narrow", failures=1, successes=1, reset="20ms")


async def _take_a_while(ledger: str, value: str) -> None:
    try:
        await asyncio.sleep(0.005)  # so long it takes
    finally:
        # A worker that got no processor for its lease cancels its steps before it begins a new life.
        note(ledger, did="end", value=value)


@step(limit=ONE)
async def squeeze(ledger: str, what: str) -> str:
    value = begin(ledger, what)
    await _take_a_while(ledger, value)
    return value


@step(limit=ONE, breaker=FRAGILE, retry=Retry.fixed("5ms", attempts=None))
async def stumble(ledger: str, what: str) -> str:
    value = begin(ledger, what)
    await _take_a_while(ledger, value)
    if step_info().attempt == 1:
        raise ConnectionError("the first attempt")
    return value


@workflow("faults.narrow.v1")
async def narrow(ctx: Context, ledger: str) -> list[str]:
    first = await ctx.step(squeeze, ledger, "first")
    return [first, *await asyncio.gather(*(ctx.step(one, ledger, "beside") for one in (squeeze, squeeze, stumble)))]


def most_at_once(ledger: Path) -> int:
    """How many were inside at once. There is one process after the other, so whatever others had not ended is over."""
    inside: dict[str, int] = {}
    most = 0
    for line in read(ledger):
        if line["did"] == "end":
            inside.pop(line["value"], None)
        elif line["did"] == "step":
            inside = {value: pid for value, pid in inside.items() if pid == line["pid"]} | {line["value"]: line["pid"]}
            most = max(most, len(inside))
    return most
