"""Changes to the code of a workflow, as people make them: those that a run under way cannot follow, and those that it
can.

Each is one body of a workflow, before and after the change, in three disguises: its calls are made by an alias, in a
helper function, or in a nested branch. Each ends by waiting for what never comes, so that its runs are under way for
good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure import Break, Context, Continue, Retry, Workflow, workflow

Body = Callable[["Doing", bool], Awaitable[Any]]

#: By name: what is expected of it ("diverged", "undecodable" or "arguments"; "" for nothing), and the body.
CHANGES: dict[str, tuple[str, Body]] = {}


def planted(expected: str) -> Callable[[Body], Body]:
    def plant(body: Body) -> Body:
        CHANGES[body.__name__] = (expected, body)
        return body

    return plant


diverges, compatible = planted("diverged"), planted("")


def work(value: int) -> int:
    return value


async def work_async(value: int) -> int:
    return value


def describe(value: int) -> str:
    return str(value)


def widened(value: int) -> float | str:
    return value


def fail(value: int) -> int:
    raise ValueError(value)


@workflow("changes.child.v1")
async def child(ctx: Context, number: int) -> int:
    return number


@workflow("changes.child.v2")
async def other_child(ctx: Context, number: int) -> int:
    return number


class Doing:
    """What a body does, by an alias."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def step(self, name: str, value: int = 1, function: Callable[[int], Any] = work) -> Awaitable[Any]:
        alias = self.ctx.options(name=name).step
        return alias(function, value)

    def sleep(self, seconds: float = 0.001) -> Awaitable[Any]:
        nap = self.ctx.sleep
        return nap(seconds)

    def receive(self, name: str = "word") -> Awaitable[Any]:
        take = self.ctx.receive
        return take(name, str)

    def call(self, number: int = 1, which: Workflow[[int], int] = child) -> Awaitable[Any]:
        delegate = self.ctx.call
        return delegate(which(number))


class Helping(Doing):
    """The same in helper functions."""

    async def step(self, name: str, value: int = 1, function: Callable[[int], Any] = work) -> Any:
        async def inner() -> Any:
            return await self.ctx.options(name=name).step(function, value)

        return await inner()

    async def sleep(self, seconds: float = 0.001) -> Any:
        await self.ctx.sleep(seconds)

    async def receive(self, name: str = "word") -> Any:
        return await self.ctx.receive(name, str)

    async def call(self, number: int = 1, which: Workflow[[int], int] = child) -> Any:
        return await self.ctx.call(which(number))


DISGUISES = ("alias", "helper", "branch")


def disguised(name: str, disguise: str, *, new: bool) -> Workflow[[], None]:
    """A workflow with that body."""
    body = CHANGES[name][1]

    @workflow(f"changes.{name}.{disguise}")
    async def flow(ctx: Context) -> None:
        if disguise == "branch":

            async def left(ctx: Context) -> None:
                await body(Doing(ctx), new)

            async def right(ctx: Context) -> None:
                await ctx.options(name="aside").step(work, 0)

            if ctx.run_id:
                await ctx.join({"left": left, "right": right})
        else:
            await body(Helping(ctx) if disguise == "helper" else Doing(ctx), new)
        await ctx.receive("never")

    return flow


# what a run under way cannot follow


@diverges
async def step_added_first(do: Doing, new: bool) -> None:
    if new:
        await do.step("added")
    await do.step("a")


@diverges
async def step_added_between(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.step("added")
    await do.step("b")


@diverges
async def step_removed_first(do: Doing, new: bool) -> None:
    if not new:
        await do.step("a")
    await do.step("b")


@diverges
async def step_removed_last(do: Doing, new: bool) -> None:
    await do.step("a")
    if not new:
        await do.step("b")


@diverges
async def step_renamed(do: Doing, new: bool) -> None:
    await do.step("pay" if new else "charge")


@diverges
async def steps_reordered(do: Doing, new: bool) -> None:
    for name in ("b", "a") if new else ("a", "b"):
        await do.step(name)


@diverges
async def step_done_twice(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.step("a")
    await do.step("b")


@diverges
async def step_replaced(do: Doing, new: bool) -> None:
    await do.step("a")
    await do.step("new" if new else "old")
    await do.step("b")


@planted("arguments")
async def argument_changed(do: Doing, new: bool) -> None:
    await do.step("a", 2 if new else 1)
    await do.step("b")


@diverges
async def arguments_swapped(do: Doing, new: bool) -> None:
    for value in (2, 1) if new else (1, 2):
        await do.step("a", value)


@planted("undecodable")
async def result_of_another_type(do: Doing, new: bool) -> None:
    await do.step("a", 1, describe if new else work)


@diverges
async def sleep_added(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.sleep()
    await do.step("b")


@diverges
async def sleep_removed(do: Doing, new: bool) -> None:
    if not new:
        await do.sleep()
    await do.step("a")


@planted("arguments")
async def sleep_lengthened(do: Doing, new: bool) -> None:
    await do.sleep(3600 if new else 0.001)
    await do.step("a")


@diverges
async def sleep_made_a_receive(do: Doing, new: bool) -> None:
    await (do.receive("other") if new else do.sleep())
    await do.step("a")


@diverges
async def receive_made_a_sleep(do: Doing, new: bool) -> None:
    await (do.sleep() if new else do.receive())
    await do.step("a")


@diverges
async def receive_renamed(do: Doing, new: bool) -> None:
    await do.receive("phrase" if new else "word")
    await do.step("a")


@diverges
async def receive_added(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.receive("approval")
    await do.step("b")


@diverges
async def child_of_another_type(do: Doing, new: bool) -> None:
    await do.call(1, other_child if new else child)


@diverges
async def child_added(do: Doing, new: bool) -> None:
    if new:
        await do.call()
    await do.step("a")


@diverges
async def child_removed(do: Doing, new: bool) -> None:
    await do.step("a")
    if not new:
        await do.call()


@diverges
async def child_made_a_step(do: Doing, new: bool) -> None:
    await (do.step("child") if new else do.call())


@planted("arguments")
async def argument_of_a_child_changed(do: Doing, new: bool) -> None:
    await do.call(2 if new else 1)


@diverges
async def gather_in_another_order(do: Doing, new: bool) -> None:
    values = (2, 1) if new else (1, 2)
    await asyncio.gather(*(do.step("a", value) for value in values))


@diverges
async def gathered_call_added(do: Doing, new: bool) -> None:
    names = ["a", "b", *(["added"] if new else [])]
    await asyncio.gather(*(do.step(name) for name in names))
    await do.step("c")


@diverges
async def parallel_made_sequential(do: Doing, new: bool) -> None:
    gate = asyncio.Event()

    async def waits() -> None:
        await gate.wait()
        await do.step("b")

    async def goes() -> None:
        await do.step("a")
        gate.set()

    if new:
        await do.step("b")
        await do.step("a")
    else:
        await asyncio.gather(waits(), goes())


def _branches(do: Doing, *names: str) -> dict[str, Any]:
    def one(name: str) -> Any:
        async def branch(ctx: Context) -> Any:
            return await type(do)(ctx).step(f"in-{name}")

        return branch

    return {name: one(name) for name in names}


@diverges
async def branch_added_to_a_join(do: Doing, new: bool) -> None:
    await do.ctx.join(_branches(do, "one", "two", *(["three"] if new else [])))
    await do.step("a")


@diverges
async def branch_of_a_join_renamed(do: Doing, new: bool) -> None:
    await do.ctx.join(_branches(do, "one", "zwei" if new else "two"))


@diverges
async def branch_of_a_join_removed(do: Doing, new: bool) -> None:
    await do.ctx.join(_branches(do, "one", *([] if new else ["two"])))


async def _loop(do: Doing, name: str, step: str, commit_every: int = 100) -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await type(do)(ctx).step(step)
        return Break(count) if count == 2 else Continue(count + 1)

    await do.ctx.loop(0, body, name=name, commit_every=commit_every)


@diverges
async def loop_renamed(do: Doing, new: bool) -> None:
    await _loop(do, "pages" if new else "items", "fetch")


@diverges
async def step_of_a_loop_renamed(do: Doing, new: bool) -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await type(do)(ctx).step("get" if new else "fetch")
        if count == 1:
            await ctx.receive("never")
        return Continue(count + 1)

    await do.ctx.loop(0, body, name="items", commit_every=100)


@diverges
async def loop_that_has_let_go_renamed(do: Doing, new: bool) -> None:
    await _loop(do, "pages" if new else "items", "fetch", commit_every=1)


@diverges
async def loop_counts_further(do: Doing, new: bool) -> None:
    for _ in range(3 if new else 2):
        await do.step("a")
    await do.step("b")


@diverges
async def loop_ends_earlier(do: Doing, new: bool) -> None:
    for _ in range(1 if new else 2):
        await do.step("a")


@diverges
async def condition_inverted(do: Doing, new: bool) -> None:
    if (await do.step("a", 7) > 5) is not new:
        await do.step("large")
    else:
        await do.step("small")


@diverges
async def returns_early(do: Doing, new: bool) -> None:
    if await do.step("a") and new:
        return
    await do.step("b")


@diverges
async def error_no_longer_caught(do: Doing, new: bool) -> None:
    caught = KeyError if new else ValueError
    once = do.ctx.options(name="a", retry=Retry.never())
    try:
        await once.step(fail, 1)
    except caught:
        await do.step("b")


@diverges
async def timeout_removed(do: Doing, new: bool) -> None:
    try:
        async with asyncio.timeout(None if new else 0.001):
            await do.receive("nothing")
    except TimeoutError:
        await do.step("late")


@diverges
async def patch_dropped(do: Doing, new: bool) -> None:
    if new or do.ctx.patched("better"):
        await do.step("a")


@diverges
async def version_turned_back(do: Doing, new: bool) -> None:
    await do.step(f"a-{do.ctx.version('way', 1 if new else 2)}")


@diverges
async def removed_without_a_word_of_which_kind(do: Doing, new: bool) -> None:
    if new:
        await do.ctx.removed("a", "timer")
    else:
        await do.step("a")
    await do.step("b")


# what it can


@compatible
async def nothing_changed(do: Doing, new: bool) -> None:
    await do.step("a")
    await do.sleep()
    await do.receive()
    await do.call()


@compatible
async def step_added_behind_the_history(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.step("added")


@compatible
async def child_and_sleep_added_behind_the_history(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        await do.call()
        await do.sleep()


@compatible
async def moved_into_a_helper(do: Doing, new: bool) -> None:
    async def helper(do: Doing) -> None:
        await do.step("a")
        await do.step("b")

    if new:
        await helper(do)
    else:
        await do.step("a")
        await do.step("b")


@compatible
async def variables_renamed_and_something_computed(do: Doing, new: bool) -> None:
    first = await do.step("a", 3)
    if new:
        total = sum(range(first))
        assert total == 3
    await do.step("b", first)


@compatible
async def logging_added(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        do.ctx.log.error("this is only said in a check")
    await do.step("b")


@compatible
async def guarded_by_patched(do: Doing, new: bool) -> None:
    await do.step("a")
    if new and do.ctx.patched("better"):
        await do.step("added")
    await do.step("b")


@compatible
async def replaced_under_patched(do: Doing, new: bool) -> None:
    if new and do.ctx.patched("better"):
        await do.step("pay")
    else:
        await do.step("charge")


@compatible
async def guarded_by_a_version(do: Doing, new: bool) -> None:
    version = do.ctx.version("way", 2 if new else 1)
    await do.step(f"a-{version}")


@compatible
async def removed_step(do: Doing, new: bool) -> None:
    await (do.ctx.removed("a", "step") if new else do.step("a"))
    await do.step("b")


@compatible
async def removed_sleep(do: Doing, new: bool) -> None:
    await (do.ctx.removed("sleep", "timer") if new else do.sleep())
    await do.step("b")


@compatible
async def removed_child(do: Doing, new: bool) -> None:
    await (do.ctx.removed("changes.child.v1", "child") if new else do.call())
    await do.step("b")


@compatible
async def removed_patch(do: Doing, new: bool) -> None:
    if new:
        await do.ctx.removed("better", "version")
        await do.step("a")
    elif do.ctx.patched("better"):
        await do.step("a")


@compatible
async def sequential_made_parallel(do: Doing, new: bool) -> None:
    if new:
        await asyncio.gather(do.step("a"), do.step("b"))
    else:
        await do.step("a")
        await do.step("b")


@compatible
async def gather_of_different_steps_in_another_order(do: Doing, new: bool) -> None:
    names = ("b", "a") if new else ("a", "b")
    await asyncio.gather(*(do.step(name) for name in names))


@compatible
async def gather_made_a_task_group(do: Doing, new: bool) -> None:
    if not new:
        await asyncio.gather(do.step("a"), do.step("b"))
        return

    async def one(name: str) -> None:
        await do.step(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(one("a"))
        group.create_task(one("b"))


@compatible
async def sleep_shortened(do: Doing, new: bool) -> None:
    await do.sleep(0.001 if new else 0.002)
    await do.step("a")


@compatible
async def other_policy(do: Doing, new: bool) -> None:
    ctx = do.ctx.options(retry=Retry(attempts=9), timeout="9s", ephemeral=True) if new else do.ctx
    await type(do)(ctx).step("a")


@compatible
async def step_made_async(do: Doing, new: bool) -> None:
    await do.step("a", 1, work_async if new else work)


@compatible
async def result_type_widened(do: Doing, new: bool) -> None:
    await do.step("a", 1, widened if new else work)


@compatible
async def cleanup_added(do: Doing, new: bool) -> None:
    try:
        await do.step("a")
    finally:
        if new:
            do.ctx.log.info("cleaned up")
    await do.step("b")


@compatible
async def generous_timeout_added(do: Doing, new: bool) -> None:
    async with asyncio.timeout(86_400 if new else None):
        await do.step("a")
        await do.step("b")


@compatible
async def receive_with_a_timeout(do: Doing, new: bool) -> None:
    await (do.ctx.receive("word", str, timeout="30d") if new else do.receive())
    await do.step("a")


@compatible
async def shield_added(do: Doing, new: bool) -> None:
    await (do.ctx.shield(do.step("a")) if new else do.step("a"))


@compatible
async def random_number_drawn(do: Doing, new: bool) -> None:
    if new:
        do.ctx.random()
    await do.step("a")


@compatible
async def loop_unrolled(do: Doing, new: bool) -> None:
    if new:
        await do.step("a", 0)
        await do.step("a", 1)
    else:
        for value in range(2):
            await do.step("a", value)


@compatible
async def condition_that_comes_to_the_same(do: Doing, new: bool) -> None:
    value = await do.step("a", 7)
    if value > (6 if new else 5):
        await do.step("b")


@compatible
async def error_caught_more_widely(do: Doing, new: bool) -> None:
    caught = Exception if new else ValueError
    once = do.ctx.options(name="a", retry=Retry.never())
    try:
        await once.step(fail, 1)
    except caught:
        await do.step("b")


@compatible
async def state_published(do: Doing, new: bool) -> None:
    await do.step("a")
    if new:
        do.ctx.publish("progress", 1)
    await do.step("b")


@compatible
async def awaited_later(do: Doing, new: bool) -> None:
    if new:
        first = asyncio.ensure_future(do.step("a"))
        await first
    else:
        await do.step("a")
    await do.step("b")


@compatible
async def step_of_iterations_that_were_let_go_renamed(do: Doing, new: bool) -> None:
    await _loop(do, "items", "get" if new else "fetch", commit_every=1)
    await do.step("a")


@compatible
async def loop_with_another_rhythm(do: Doing, new: bool) -> None:
    async def body(ctx: Context, count: int) -> Continue[int] | Break[int]:
        await type(do)(ctx).step("a")
        return Break(count) if count == 2 else Continue(count + 1)

    await do.ctx.loop(0, body, name="items", commit_every=100, keep=3 if new else 0)
