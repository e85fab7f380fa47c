"""Workflows for the tests of worker processes. Their steps wait until the test makes a file, and until then do what the
test is about."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from perdure import Context, Retry, StepTimeout, activity, activity_info, step_info, workflow
from perdure.errors import StepInterrupted
from perdure.workflow.discover import Definable
from tests.faults.app import Flaky, begin, effect, mended, note, read


def gate(ledger: str) -> Path:
    """The file for which the steps wait."""
    return Path(ledger).with_name("gate")


async def waits(ledger: str) -> str:
    value = begin(ledger, "waits")
    try:
        while not gate(ledger).exists():  # noqa: ASYNC110 - the test makes a file
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(ledger, did="cancelled", value=value)
        raise
    return value


def waits_in_a_thread(ledger: str) -> str:
    value = begin(ledger, "waits in a thread")
    while not gate(ledger).exists():
        time.sleep(0.01)
    note(ledger, did="returned", value=value)
    return value


async def blocks(ledger: str) -> str:
    """Blocks the event loop of the first process that executes it."""
    others = any(line.get("location") == "blocks" for line in read(Path(ledger)))
    value = begin(ledger, "blocks")
    while not others and not gate(ledger).exists():
        time.sleep(0.01)  # noqa: ASYNC251 - blocks the loop on purpose
    return value


def kills(ledger: str) -> str:
    begin(ledger, "kills")
    os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@workflow("labour.waiting.v1")
async def waiting(ctx: Context, ledger: str, *, in_a_thread: bool = False) -> list[str]:
    first = ctx.step(waits_in_a_thread, ledger) if in_a_thread else ctx.step(waits, ledger)
    return [await first, await ctx.step(effect, ledger, "after")]


@workflow("labour.blocking.v1")
async def blocking(ctx: Context, ledger: str) -> str:
    return await ctx.step(blocks, ledger)


@workflow("labour.killing.v1")
async def killing(ctx: Context, ledger: str) -> str:
    return await ctx.step(kills, ledger)


async def harms(ledger: str, deadly: bool, seconds: float) -> None:
    """Take a while, and take the process along if deadly, while the others are still at it."""
    await asyncio.sleep(seconds / 2 if deadly else seconds)
    if deadly:
        begin(ledger, "kills")
        os.kill(os.getpid(), signal.SIGKILL)


@workflow("labour.harming.v1")
async def harming(ctx: Context, ledger: str, deadly: bool, seconds: float) -> None:
    await ctx.step(harms, ledger, deadly, seconds)


@workflow("labour.quick.v1")
async def quick(ctx: Context, ledger: str) -> str:
    return await ctx.step(effect, ledger, "quick")


@workflow("labour.several.v1")
async def several(ctx: Context, ledger: str, steps: int) -> list[str]:
    """A bit of everything that reaches the database."""
    values = [await ctx.step(effect, ledger, f"step {number}") for number in range(steps)]
    values.append(await ctx.receive("go", str))
    await ctx.sleep(0.01)
    return [*values, await ctx.call(quick(ledger)), await ctx.step(effect, ledger, "last")]


@workflow("labour.abandoning.v1")
async def abandoning(ctx: Context, ledger: str, threads: int) -> int:
    impatient = ctx.options(timeout=0.05, retry=Retry.never())
    steps = [impatient.step(waits_in_a_thread, ledger) for _ in range(threads)]
    return sum(isinstance(error, StepTimeout) for error in await asyncio.gather(*steps, return_exceptions=True))


@activity("labour.fragile.v1", retry=Retry.fixed(0.05, attempts=2))
async def fragile(ledger: str) -> str:
    """Waits for the gate the first time that it is executed, and fails until it is mended."""
    first = not any(line.get("location") == "labour.fragile.v1" for line in read(Path(ledger)))
    value = begin(ledger, "fragile")
    while first and not gate(ledger).exists():  # noqa: ASYNC110 - the test makes a file
        await asyncio.sleep(0.01)
    if not mended(ledger):
        raise Flaky(f"attempt {activity_info().attempt}")
    return value


async def counts(ledger: str) -> int:
    """Waits for the gate; the number of the attempt."""
    begin(ledger, "counts")
    while not gate(ledger).exists():  # noqa: ASYNC110 - the test makes a file
        await asyncio.sleep(0.01)
    return step_info().attempt


@workflow("labour.counting.v1")
async def counting(ctx: Context, ledger: str) -> int:
    return await ctx.options(retry=Retry.never()).step(counts, ledger)


@activity("labour.counted.v1", retry=Retry.never())
async def counted(ledger: str) -> int:
    info = activity_info()
    attempt = await counts(ledger)
    assert info.attempt == info.max_attempts == attempt
    return attempt


async def charges(ledger: str) -> str:
    """Takes a while, so that a kill comes before, within and after it."""
    value = begin(ledger, "charges")
    await asyncio.sleep(0.05)
    return value


@workflow("labour.charging.v1")
async def charging(ctx: Context, ledger: str, count: int) -> list[str]:
    """Steps that must not run twice, many of them in a row."""
    ended: list[str] = []
    for number in range(count):
        try:
            ended.append(await ctx.options(at_most_once=True, name=f"charge-{number}").step(charges, ledger))
        except StepInterrupted:
            ended.append("interrupted")
    return ended


@activity("labour.deadly.v1")
def deadly(ledger: str) -> str:
    """Takes its worker with it until it is mended."""
    value = begin(ledger, "deadly")
    if not mended(ledger):
        os._exit(17)
    return value


@workflow("labour.relying.v1")
async def relying(ctx: Context, ledger: str) -> str:
    """What to do about a failure is its decision."""
    try:
        return await ctx.call(fragile(ledger))
    except Flaky as error:
        return f"without it: {error}"


WORKFLOWS: list[Definable] = [
    waiting, blocking, killing, harming, quick, several, abandoning, fragile, deadly, relying, counting, counted,
    charging,
]  # fmt: skip
