"""Random workflows as data, and the one workflow function that performs them.

A program is a tree of nodes; each node is one use of one primitive. Performing it leaves a trace of everything that the
program could observe, in order: results, errors, times, random numbers, wake-ups. Two performances are the same if
their traces are.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from perdure import Context
from perdure.workflow.definition import Call
from tests.replay import language
from tests.replay.driver import deed, named
from tests.replay.language import Language
from tests.replay.nodes import Node, described, numbers
from tests.replay.performing import FORGETFUL

#: Prefix of the names of transactions, and of no others.
DEED = "d-"

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


class Machine(Language):
    """Performs one program."""

    def __init__(self) -> None:
        super().__init__()
        self._background: list[asyncio.Task[Any]] = []

    async def perform(self, ctx: Context, program: Node) -> list[str]:
        """The workflow. It gives what was seen outside of parts that replay may skip."""
        self._ctx = ctx
        for each in program.body:
            try:
                await self.do(each)
            except (Exception, asyncio.CancelledError) as error:
                self.note(program, described(error))
                if program.number == (1 if isinstance(error, asyncio.CancelledError) else 4):
                    raise
        for task in self._background:
            end = (await asyncio.gather(task, return_exceptions=True))[0]
            self.note(program, described(end))
        result = self.trace(lambda path: any(f"{name}/" in path or f"{name}#" in path for name in FORGETFUL))
        if program.number == 3:
            ctx.continue_as_new(Call.named("next.v1", result))
        return result

    # one thing

    async def _step(self, node: Node) -> Any:
        return await self._durable(node, named(self._ctx, node.name, node.id))

    async def _deed(self, node: Node) -> Any:
        return await self._durable(node, deed(self._ctx, f"{DEED}{node.name}", node.id))

    async def _child(self, node: Node) -> Any:
        return await self._durable(node, self._ctx.call(Call.named(f"{node.name}.v1", node.id)))

    async def _nap(self, node: Node) -> None:
        await self._durable(node, self._ctx.sleep(node.number))

    async def _until(self, node: Node) -> None:
        await self._durable(node, self._ctx.sleep_until(self._ctx.now() + timedelta(seconds=node.number)))

    async def _sleep(self, node: Node) -> None:
        self.note(node, await asyncio.sleep(node.number, "slept"))

    async def _receive(self, node: Node) -> None:
        self.note(node, await self._ctx.receive(node.name))

    async def _receive_in_time(self, node: Node) -> None:
        self.note(node, await self._ctx.receive(node.name, timeout=node.number))

    async def _yield(self, node: Node) -> None:
        for _ in range(node.number):
            await asyncio.sleep(0)
        self.note(node, "yielded")

    async def _clock(self, node: Node) -> None:
        ctx = self._ctx
        self.note(node, f"{ctx.now()} {asyncio.get_running_loop().time()} {ctx.random()} {ctx.uuid()}")

    async def _fail(self, node: Node) -> None:
        self.ended["fail"] += 1
        raise ValueError(node.id)

    async def _for_each(self, node: Node) -> None:
        for number in numbers(node):
            await self._durable(node, named(self._ctx, node.name, [node.id, number]))

    async def _set(self, node: Node) -> None:
        for word in {f"word {number}" for number in range(node.number)}:
            await named(self._ctx, node.name, word)

    async def _nothing(self, node: Node) -> None:
        pass

    # several things

    async def _seq(self, node: Node) -> None:
        await self._each(node.body)

    def _parts(self, node: Node) -> list[Any]:
        if self._cell.get().enclosed:
            return list(self._tasks(node))
        return [self.do(each) for each in node.body]

    async def _gather(self, node: Node) -> None:
        self.note(node, await asyncio.gather(*self._parts(node)))

    async def _gather_all(self, node: Node) -> None:
        results = await asyncio.gather(*self._parts(node), return_exceptions=True)
        self.note(node, [described(result) for result in results])

    async def _wait(self, node: Node, mode: str, timeout: float | None = None) -> None:
        done, pending = await asyncio.wait(self._tasks(node), return_when=mode, timeout=timeout)
        self.note(node, [task.get_name() for task in done])
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*done, *pending, return_exceptions=True)
        self.note(node, [described(result) for result in results])

    async def _wait_first(self, node: Node) -> None:
        await self._wait(node, asyncio.FIRST_COMPLETED)

    async def _wait_exception(self, node: Node) -> None:
        await self._wait(node, asyncio.FIRST_EXCEPTION)

    async def _wait_all(self, node: Node) -> None:
        await self._wait(node, asyncio.ALL_COMPLETED)

    async def _wait_in_time(self, node: Node) -> None:
        await self._wait(node, asyncio.ALL_COMPLETED, node.number)

    async def _as_completed(self, node: Node) -> None:
        for each in asyncio.as_completed(self._tasks(node)):
            try:
                self.note(node, await each)
            except Exception as error:
                self.note(node, described(error))

    async def _group(self, node: Node) -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.do(each)) for each in node.body]
        self.note(node, [task.result() for task in tasks])

    async def _nested(self, node: Node) -> Any:
        return await self._task(self._each(node.body))

    async def _spawn(self, node: Node) -> None:
        tasks = self._tasks(node)
        if not self._cell.get().enclosed:
            self._background += tasks

    async def _cancel(self, node: Node) -> None:
        first, *rest = node.body
        task = self._task(self.do(first))
        await self._each(tuple(rest))
        self.note(node, task.cancel(f"by {node.id}"))
        end = (await asyncio.gather(task, return_exceptions=True))[0]
        self.note(node, described(end))

    # within limits

    async def _timeout(self, node: Node) -> None:
        async with asyncio.timeout(node.number) as limit:
            await self._each(node.body)
        self.note(node, limit.expired())

    async def _timeout_at(self, node: Node) -> None:
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + node.number):
            await self._each(node.body)
        self.note(node, "in time")

    async def _wait_for(self, node: Node) -> None:
        self.note(node, await asyncio.wait_for(self._each(node.body), node.number))

    async def _shield(self, node: Node) -> None:
        task = self._task(self._each(node.body))
        try:
            await asyncio.wait_for(asyncio.shield(task), node.number)
        except TimeoutError:
            self.note(node, "late")
            await task

    async def _try(self, node: Node) -> None:
        first, *rest = node.body
        try:
            await self.do(first)
        except Exception as error:
            self.note(node, described(error))
            await self._each(tuple(rest))

    async def _finally(self, node: Node) -> None:
        first, *rest = node.body
        try:
            await self.do(first)
        finally:
            await self._each(tuple(rest))
            self.note(node, "clean")

    # together with others

    async def _inside(self, node: Node, gate: Any) -> None:
        async with gate:
            self.note(node, "in")
            await self._each(node.body)
        self.note(node, "out")

    async def _lock(self, node: Node) -> None:
        await self._inside(node, self._same("lock", 1, asyncio.Lock))

    async def _semaphore(self, node: Node) -> None:
        await self._inside(node, self._same("semaphore", 1, lambda: asyncio.Semaphore(2)))

    async def _bounded(self, node: Node) -> None:
        await self._inside(node, self._same("bounded", 1, lambda: asyncio.BoundedSemaphore(2)))

    async def _event(self, node: Node) -> None:
        event = asyncio.Event()

        async def waiter(each: Node) -> Any:
            self.note(node, await event.wait())
            return await self.do(each)

        await self._meanwhile(node, waiter, event.set)

    async def _condition(self, node: Node) -> None:
        condition, tickets = asyncio.Condition(), [0]

        async def waiter(each: Node) -> Any:
            async with condition:
                await condition.wait_for(lambda: tickets[0] > 0)
                tickets[0] -= 1
                self.note(node, "has a ticket")
            return await self.do(each)

        async def release() -> None:
            for _ in node.body[1:]:
                async with condition:
                    tickets[0] += 1
                    condition.notify(node.number)

        await self._meanwhile(node, waiter, release)

    async def _meanwhile(self, node: Node, waiter: Callable[[Node], Any], release: Callable[[], Any]) -> None:
        first, *rest = node.body
        tasks = [self._task(waiter(each)) for each in rest]
        try:
            await self.do(first)
        finally:
            if (released := release()) is not None:
                await released
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self.note(node, [described(result) for result in results])

    async def _barrier(self, node: Node) -> None:
        barrier = asyncio.Barrier(len(node.body))

        async def branch(each: Node) -> int:
            await self.do(each)
            async with asyncio.timeout(20):
                return await barrier.wait()

        results = await asyncio.gather(*(self._task(branch(each)) for each in node.body), return_exceptions=True)
        self.note(node, [described(result) for result in results])

    async def _transfer(self, node: Node, queue: asyncio.Queue[str]) -> None:
        async def produce(each: Node) -> None:
            try:
                made = described(await self.do(each))
            except Exception as error:
                made = described(error)
            for copy in range(node.number % 3 + 1):
                await queue.put(f"{made} {copy}")

        async with asyncio.TaskGroup() as group:
            for each in node.body:
                group.create_task(produce(each))
            for _ in range(len(node.body) * (node.number % 3 + 1)):
                self.note(node, await queue.get())

    async def _queue(self, node: Node) -> None:
        await self._transfer(node, asyncio.Queue(maxsize=2))

    async def _priority_queue(self, node: Node) -> None:
        await self._transfer(node, asyncio.PriorityQueue(maxsize=2))

    async def _lifo_queue(self, node: Node) -> None:
        await self._transfer(node, asyncio.LifoQueue())

    # with the language's help

    async def _items(self, node: Node) -> AsyncIterator[Any]:
        try:
            for each in node.body:
                yield await self.do(each)
        finally:
            self.note(node, "generator ends")

    async def _generator(self, node: Node) -> None:
        taken = 0
        async for item in self._items(node):
            self.note(node, item)
            taken += 1
            if taken >= node.number:
                break

    async def _manager(self, node: Node) -> None:
        first, *rest = node.body

        @asynccontextmanager
        async def managed() -> AsyncIterator[None]:
            await self.do(first)
            try:
                yield
            finally:
                self.note(node, "leaves")
                await self._yield(node)

        async with managed():
            await self._each(tuple(rest))

    async def _variable(self, node: Node) -> None:
        async def branch() -> None:
            variable.set(node.id)
            await self._each(node.body)
            self.note(node, variable.get())

        before = variable.get()
        await asyncio.gather(self._task(branch()))
        self.note(node, variable.get() == before)


#: Every primitive, by whether it has parts of its own.
LEAVES = (
    "step", "for_each", "deed", "child", "sleep", "nap", "until", "receive", "receive_in_time", "yield",
    "clock", "fail",
    *language.LEAVES,
)  # fmt: skip
BRANCHES = (
    "seq", "gather", "gather_all", "wait_first", "wait_exception", "wait_all", "wait_in_time", "as_completed", "group",
    "nested", "spawn", "cancel", "timeout", "timeout_at", "wait_for", "shield", "try", "finally", "lock", "semaphore",
    "bounded", "event", "condition", "barrier", "queue", "priority_queue", "lifo_queue", "generator",
    "manager", "variable",
    *language.BRANCHES,
)  # fmt: skip
PRIMITIVES = frozenset(LEAVES + BRANCHES)
