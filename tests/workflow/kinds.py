"""Twenty workflows, each written as an `async def` and as a `def`; and a worker process that serves one kind.

python -m tests.workflow.kinds URL KIND
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import Break, Channel, Context, Continue, Engine, Failed, Retry, step, workflow
from perdure.blocking import Context as BlockingContext

told = Channel("told", int)


def double(number: int) -> int:
    return 2 * number


async def soon(number: int) -> int:
    return number + 1


@step(retry=Retry(attempts=2, initial="1ms"))
def fails(number: int) -> int:
    raise ValueError(f"no {number}")


async def take(connection: Any, number: int) -> int:
    return number


def unwind(number: int) -> None:
    """Undo `double`."""


@workflow("kinds.leaf.v1")
async def leaf(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


async def async_steps(ctx: Context, number: int) -> Any:
    first = await ctx.step(double, number)
    return [first, await ctx.step(soon, first)]


def blocking_steps(ctx: BlockingContext, number: int) -> Any:
    first = ctx.step(double, number)
    return [first, ctx.step(soon, first)]


async def async_failure(ctx: Context, number: int) -> Any:
    try:
        return await ctx.step(fails, number)
    except ValueError as error:
        return str(error)


def blocking_failure(ctx: BlockingContext, number: int) -> Any:
    try:
        return ctx.step(fails, number)
    except ValueError as error:
        return str(error)


async def async_sleep(ctx: Context, number: int) -> Any:
    await ctx.sleep(number / 1000)
    return await ctx.options(name="later").step(double, number)


def blocking_sleep(ctx: BlockingContext, number: int) -> Any:
    ctx.sleep(number / 1000)
    return ctx.options(name="later").step(double, number)


async def async_gather(ctx: Context, number: int) -> Any:
    return await asyncio.gather(*(ctx.options(name=f"s{n}").step(double, n) for n in range(number)))


def blocking_gather(ctx: BlockingContext, number: int) -> Any:
    return ctx.gather(*(lambda n=n: ctx.options(name=f"s{n}").step(double, n) for n in range(number)))


async def async_map(ctx: Context, number: int) -> Any:
    return await ctx.map(double, range(number), limit=2)


def blocking_map(ctx: BlockingContext, number: int) -> Any:
    return ctx.map(double, range(number), limit=2)


async def async_part(ctx: Context, item: int) -> int:
    return await ctx.step(double, item) + await ctx.step(soon, item)


def blocking_part(ctx: BlockingContext, item: int) -> int:
    return ctx.step(double, item) + ctx.step(soon, item)


async def async_map_parts(ctx: Context, number: int) -> Any:
    return await ctx.map(async_part, range(number))


def blocking_map_parts(ctx: BlockingContext, number: int) -> Any:
    return ctx.map(blocking_part, range(number))


async def async_join(ctx: Context, number: int) -> Any:
    return await ctx.join({f"b{n}": lambda ctx: ctx.step(double, number) for n in range(number)})


def blocking_join(ctx: BlockingContext, number: int) -> Any:
    return ctx.join({f"b{n}": lambda ctx: ctx.step(double, number) for n in range(number)})


async def async_race(ctx: Context, number: int) -> Any:
    won = await ctx.race({"fast": lambda ctx: ctx.step(double, number), "slow": lambda ctx: ctx.receive("never")})
    return [won.winner, won.value]


def blocking_race(ctx: BlockingContext, number: int) -> Any:
    won = ctx.race({"fast": lambda ctx: ctx.step(double, number), "slow": lambda ctx: ctx.receive("never", int)})
    return [won.winner, won.value]


async def async_loop(ctx: Context, number: int) -> Any:
    async def body(ctx: Context, state: int) -> Continue[int] | Break[int]:
        await ctx.step(double, state)
        return Break(state) if state >= number else Continue(state + 1)

    return await ctx.loop(0, body, commit_every=2)


def blocking_loop(ctx: BlockingContext, number: int) -> Any:
    def body(ctx: BlockingContext, state: int) -> Continue[int] | Break[int]:
        ctx.step(double, state)
        return Break(state) if state >= number else Continue(state + 1)

    return ctx.loop(0, body, commit_every=2)


async def async_child(ctx: Context, number: int) -> Any:
    child = ctx.spawn(leaf(number))
    return [await ctx.call(leaf(number)), await child.result()]


def blocking_child(ctx: BlockingContext, number: int) -> Any:
    child = ctx.spawn(leaf(number))
    return [ctx.call(leaf(number)), child.result()]


async def async_messages(ctx: Context, number: int) -> Any:
    ctx.send(ctx.run_id, told, number)
    return [await ctx.receive(told), await ctx.receive_many(told, limit=3, timeout="1ms")]


def blocking_messages(ctx: BlockingContext, number: int) -> Any:
    ctx.send(ctx.run_id, told, number)
    return [ctx.receive(told), ctx.receive_many(told, limit=3, timeout="1ms")]


async def async_timeout(ctx: Context, number: int) -> Any:
    try:
        async with asyncio.timeout(number / 1000):
            await ctx.receive("never")
    except TimeoutError:
        return await ctx.step(double, number)


def blocking_timeout(ctx: BlockingContext, number: int) -> Any:
    try:
        with ctx.timeout(number / 1000):
            ctx.receive("never")
    except TimeoutError:
        return ctx.step(double, number)


async def async_saga(ctx: Context, number: int) -> Any:
    try:
        async with ctx.saga():
            await ctx.options(undo=unwind).step(double, number)
            await ctx.step(fails, number)
    except ValueError as error:
        return str(error)


def blocking_saga(ctx: BlockingContext, number: int) -> Any:
    try:
        with ctx.saga():
            ctx.options(undo=unwind).step(double, number)
            ctx.step(fails, number)
    except ValueError as error:
        return str(error)


async def async_outcome(ctx: Context, number: int) -> Any:
    first = await ctx.outcome(ctx.step(fails, number))
    second = await ctx.outcome(async_steps_of(number), name="part")
    assert isinstance(first, Failed)
    return [first.kind, first.attempts, getattr(second, "value", None)]


def async_steps_of(number: int) -> Callable[[Context], Any]:
    return lambda ctx: async_steps(ctx, number)


def blocking_outcome(ctx: BlockingContext, number: int) -> Any:
    first = ctx.outcome(lambda: ctx.step(fails, number))
    second = ctx.outcome(lambda ctx: blocking_steps(ctx, number), name="part")
    assert isinstance(first, Failed)
    return [first.kind, first.attempts, getattr(second, "value", None)]


async def async_effects(ctx: Context, number: int) -> Any:
    ctx.publish("state", number)
    ctx.set_attributes({"number": number})
    for item in range(number):
        ctx.emit("items", await ctx.step(double, item))
    return [ctx.patched("p"), ctx.version("v", 2)]


def blocking_effects(ctx: BlockingContext, number: int) -> Any:
    ctx.publish("state", number)
    ctx.set_attributes({"number": number})
    for item in range(number):
        ctx.emit("items", ctx.step(double, item))
    return [ctx.patched("p"), ctx.version("v", 2)]


async def async_transaction(ctx: Context, number: int) -> Any:
    return [await ctx.transaction(take, number), await ctx.step(double, number)]


def blocking_transaction(ctx: BlockingContext, number: int) -> Any:
    return [ctx.transaction(take, number), ctx.step(double, number)]


async def async_lock(ctx: Context, number: int) -> Any:
    lock = asyncio.Lock()

    async def part(n: int) -> int:
        async with lock:
            return await ctx.step(double, n)

    return await asyncio.gather(*(part(n) for n in range(number)))


def blocking_lock(ctx: BlockingContext, number: int) -> Any:
    lock = asyncio.Lock()

    def part(n: int) -> int:
        with ctx.enter(lock):
            return ctx.step(double, n)

    return ctx.gather(*(lambda n=n: part(n) for n in range(number)))


async def async_shield(ctx: Context, number: int) -> Any:
    return await ctx.shield(ctx.step(double, number))


def blocking_shield(ctx: BlockingContext, number: int) -> Any:
    return ctx.shield(lambda: ctx.step(double, number))


async def async_error(ctx: Context, number: int) -> Any:
    await ctx.step(double, number)
    raise LookupError(number)


def blocking_error(ctx: BlockingContext, number: int) -> Any:
    ctx.step(double, number)
    raise LookupError(number)


async def async_recursion(ctx: Context, number: int) -> Any:
    return 0 if number == 0 else await ctx.step(double, number) + await async_recursion(ctx, number - 1)


def blocking_recursion(ctx: BlockingContext, number: int) -> Any:
    return 0 if number == 0 else ctx.step(double, number) + blocking_recursion(ctx, number - 1)


#: Names of the twenty.
SHAPES = (
    "steps", "failure", "sleep", "gather", "map", "map_parts", "join", "race", "loop", "child", "messages", "timeout",
    "saga", "outcome", "effects", "transaction", "lock", "shield", "error", "recursion",
)  # fmt: skip


def of_kind(kind: str) -> list[Any]:
    """All workflows of one kind, under the same types."""
    return [leaf, *(workflow(f"kinds.{name}.v1")(globals()[f"{kind}_{name}"]) for name in SHAPES)]


# a run that a kill interrupts


class Ledger:
    """A file in which steps write that they were called."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def write(self, word: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{word}\n")

    def open_gate(self) -> None:
        Path(f"{self.path}.gate").touch()

    def words(self) -> list[str]:
        return self.path.read_text().split() if self.path.exists() else []


def mark(path: str, word: str) -> str:
    Ledger(path).write(word)
    return word


def hold(path: str, word: str) -> str:
    """Wait for the gate, and for ever if the process is killed meanwhile."""
    Ledger(path).write(word)
    while not Path(f"{path}.gate").exists():
        time.sleep(0.01)
    return word


async def async_killed(ctx: Context, path: str) -> list[str]:
    first = await ctx.options(name="first").step(mark, path, "first")
    pair = await asyncio.gather(
        ctx.options(name="left").step(mark, path, "left"), ctx.options(name="right").step(hold, path, "right")
    )
    await ctx.sleep("1ms")
    return [first, *pair, await ctx.options(name="last").step(mark, path, "last")]


def blocking_killed(ctx: BlockingContext, path: str) -> list[str]:
    first = ctx.options(name="first").step(mark, path, "first")
    pair = ctx.gather(
        lambda: ctx.options(name="left").step(mark, path, "left"),
        lambda: ctx.options(name="right").step(hold, path, "right"),
    )
    ctx.sleep("1ms")
    return [first, *pair, ctx.options(name="last").step(mark, path, "last")]


KILLED = {
    "async": workflow("kinds.killed.v1")(async_killed),
    "blocking": workflow("kinds.killed.v1")(blocking_killed),
}


async def main(url: str, kind: str) -> None:
    """Work until killed."""
    async with Engine(url, [KILLED[kind]], migrate=False) as engine, engine.worker(lease="5s"):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
