"""The workflows that are measured, and the one payload that all of them carry.

Their steps run on the measuring process's own loop and report to the `Probe` that the measurement put there.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

from perdure import Context, Workflow, activity, workflow


@dataclass(frozen=True)
class Receipt:
    """What every step returns: small and typed, as results of steps are."""

    order: str
    cents: int
    paid: bool


#: A receipt as the database has it; what the raw measurement writes too.
PAYLOAD = '{"order":"order-000042","cents":4200,"paid":true}'


class Probe:
    """What the steps of one round report: how many ran, and when."""

    def __init__(self, expected: int) -> None:
        self.times: list[float] = []
        self.reached = asyncio.Event()
        self._left = expected

    def report(self) -> None:
        """A step runs. Costs as little as possible: it is measured with the engine."""
        self._left = left = self._left - 1
        self.times.append(time.perf_counter())
        if left <= 0:
            self.reached.set()


class Stage:
    """Where the steps of this process find the current probe."""

    probe: Probe | None = None


async def pay(number: int) -> Receipt:
    """The usual step: it does nothing but report, so what remains is the engine's own cost."""
    if Stage.probe is not None:
        Stage.probe.report()
    return Receipt("order-000042", 4200, True)


#: An order as it might come in from elsewhere: some 9 KB of JSON.
_ORDER = json.dumps(
    {"lines": [{"article": f"article-{n}", "count": n, "cents": 100 * n, "note": "x" * 40} for n in range(80)]}
)


async def add_up(number: int) -> Receipt:
    """Read an order and write it anew, which keeps a processor busy for a few tenths of a millisecond."""
    order = json.loads(_ORDER)
    cents = sum(line["count"] * line["cents"] for line in order["lines"])
    json.dumps(order)
    if Stage.probe is not None:
        Stage.probe.report()
    return Receipt("order-000042", cents, True)


async def gate() -> None:
    """A step that never ends by itself."""
    if Stage.probe is not None:
        Stage.probe.report()
    await asyncio.get_running_loop().create_future()


@workflow("bench.steps.v1")
async def steps(ctx: Context, count: int) -> int:
    """Steps one after the other."""
    total = 0
    for number in range(count):
        total += (await ctx.step(pay, number)).cents
    return total


@workflow("bench.computing.v1")
async def computing(ctx: Context, count: int) -> int:
    """Steps that compute, one after the other."""
    total = 0
    for number in range(count):
        total += (await ctx.step(add_up, number)).cents
    return total


@workflow("bench.parallel.v1")
async def parallel(ctx: Context, count: int) -> int:
    """Steps side by side."""
    receipts = await asyncio.gather(*[ctx.step(pay, number) for number in range(count)])
    return sum(receipt.cents for receipt in receipts)


@workflow("bench.sleep.v1")
async def sleeper(ctx: Context, seconds: float) -> None:
    """Only a sleep."""
    await ctx.sleep(seconds)


@workflow("bench.resume.v1")
async def resumed(ctx: Context, count: int) -> int:
    """A long history, quickly made, before a step that never ends."""
    total = 0
    quick = ctx.options(ephemeral=True)
    for number in range(count):
        total += (await quick.step(pay, number)).cents
    await ctx.step(gate)
    return total


@workflow("bench.wait.v1")
async def waiter(ctx: Context, number: int) -> int:
    """A step, then a message that never comes."""
    receipt = await ctx.step(pay, number)
    await ctx.receive("go")
    return receipt.cents


@activity("bench.errand.v1")
async def errand(number: int) -> Receipt:
    """The usual step, as a run of its own."""
    return await pay(number)


@workflow("bench.awaiting.v1")
async def awaiting(ctx: Context, number: int) -> int:
    """One activity."""
    return (await ctx.call(errand(number))).cents


@workflow("bench.fanning.v1")
async def fanning(ctx: Context, count: int) -> int:
    """Activities side by side."""
    receipts = await asyncio.gather(*[ctx.call(errand(number)) for number in range(count)])
    return sum(receipt.cents for receipt in receipts)


async def stamp() -> float:
    """Time at which the step is executed."""
    return time.time()


@workflow("bench.stamped.v1")
async def stamped(ctx: Context) -> float:
    """One step that says when it was executed."""
    return await ctx.step(stamp)


#: A text with what texts have: quotes, line ends and letters beyond ASCII.
LARGE = ('"Čau", said the ledger of order 000042: 4200 cents, paid.\n' * 1700)[:100_000]


async def fetch(number: int) -> str:
    """A step with a large result."""
    if Stage.probe is not None:
        Stage.probe.report()
    return LARGE


@workflow("bench.bulky.v1")
async def bulky(ctx: Context, count: int) -> int:
    """Steps with large results, one after the other."""
    total = 0
    for number in range(count):
        total += len(await ctx.step(fetch, number))
    return total


def make_types(count: int) -> list[Workflow[[int], int]]:
    """Make so many workflows that differ in their types alone."""

    async def run(ctx: Context, count: int) -> int:
        """Steps one after the other."""
        total = 0
        for number in range(count):
            total += (await ctx.step(pay, number)).cents
        return total

    return [workflow(f"bench.wide.t{number:04}.v1")(run) for number in range(count)]


@workflow("bench.foreign.v1")
async def foreign(ctx: Context) -> None:
    """Served by no worker."""


ALL = (steps, computing, parallel, sleeper, resumed, waiter, errand, awaiting, fanning, stamped, bulky)
