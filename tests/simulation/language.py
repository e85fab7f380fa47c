"""The part of the interpreter that knows named parts of a workflow.

What such a part has seen is its own: replay may skip a part that is over, and then no other part misses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from perdure.errors import Rollback, WorkflowError
from perdure.workflow.branches import Branch, NamedBranch
from perdure.workflow.context import Context
from perdure.workflow.definition import Call
from perdure.workflow.endless_loop import Break, Continue
from perdure.workflow.scopes import current_scope
from tests.simulation.programs import (
    Anew,
    Contest,
    FirstEnd,
    Join,
    Loop,
    Map,
    Outcome,
    Program,
    Saga,
    Shield,
    Spawn,
    Typed,
)

#: How much of what an iteration has seen is left to the next.
_LEFT = 4

Part = Join | Contest | Typed | FirstEnd | Map | Loop | Saga | Outcome | Shield | Spawn | Anew


class Log(list[str]):
    """What a workflow has seen, in the order in which it saw it."""

    def __init__(self, seen: Iterable[str] = (), taken: Iterable[str] = (), *, slept: bool = False) -> None:
        super().__init__(seen)
        #: The messages that the workflow has taken, in all its parts and in all that it was before it began anew.
        self.taken = list(taken)
        #: Whether some of its sleeps may be over before they begin.
        self.slept = slept

    def part(self) -> Log:
        """Of a part of the workflow."""
        log = Log(slept=self.slept)
        log.taken = self.taken
        return log

    def take(self, message: str) -> None:
        """A message was received."""
        self.append(message)
        self.taken.append(message)


class Language:
    """See the module."""

    def __init__(
        self,
        run: Callable[[Context, Program, Log], Awaitable[None]],
        child_of: Callable[[Program], Call[list[str]]],
        next_of: Callable[[Program, Log], Call[list[str]]],
    ) -> None:
        self._run = run
        self._child_of = child_of
        self._next_of = next_of

    async def perform(self, ctx: Context, part: Part, log: Log) -> None:
        """Do what the part says."""
        match part:
            case Join(branches=branches):
                joined = await ctx.join(self._branches(branches, log))
                log.extend(f"{name} {' '.join(seen)}" for name, seen in joined.items())
            case Contest(branches=branches):
                won = await ctx.race(self._branches(branches, log))
                log += [f"winner {won.winner}", *won.value]
            case FirstEnd(branches=branches):
                won = await ctx.race(self._branches(branches, log), until="completion")
                log += [f"winner {won.winner}", *won.value]
            case Typed(branches=branches):
                await self._join_typed(ctx, branches, log)
            case Map(body=body, count=count, limit=limit):
                log += await self._map(ctx, body, count, limit, log)
            case Loop():
                log += await self._loop(ctx, part, log)
            case Saga(body=body, fails=fails):
                async with ctx.saga():
                    await self._run(ctx, body, log)
                    if fails:
                        raise Rollback("it was to be")
            case Outcome(body=body):
                log.append(f"ok {(await ctx.outcome(self._branch(body, log))).ok}")
            case Shield(body=body):
                await ctx.shield(self._run(ctx, body, log))
            case Spawn():
                await self._spawn(ctx, part, log)
            case Anew(body=body):
                await self._begin_anew(ctx, body, log)

    def _branches(self, branches: Sequence[Program], log: Log) -> dict[str, Branch[list[str]]]:
        return {f"b{number}": self._branch(body, log) for number, body in enumerate(branches)}

    def _branch(self, body: Program, log: Log) -> Branch[list[str]]:
        async def branch(ctx: Context) -> list[str]:
            own = log.part()
            await self._run(ctx, body, own)
            return list(own)

        return branch

    async def _join_typed(self, ctx: Context, branches: Sequence[Program], log: Log) -> None:
        named: dict[str, NamedBranch[list[str]]] = {}

        def watched(branch: Any) -> Branch[list[str]]:
            async def body(ctx: Context) -> list[str]:
                seen: list[str] = await branch(ctx)
                # The states of the others, while they run.
                log.append("states " + " ".join(one.status for one in named.values()))
                return seen

            return body

        bodies = self._branches(branches, log)
        named |= {name: ctx.branch(watched(body)) for name, body in bodies.items()}
        joined = await ctx.join(named)
        log.extend(f"{name} {' '.join(one.result)}" for name, one in joined.items())

    async def _map(self, ctx: Context, body: Program, count: int, limit: int, log: Log) -> list[str]:
        async def part(ctx: Context, item: int) -> str:
            own = log.part()
            await self._run(ctx, body, own)
            return f"{item} {' '.join(own)}"

        return await ctx.map(part, range(count), limit=limit)

    async def _loop(self, ctx: Context, loop: Loop, log: Log) -> list[str]:
        async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[list[str]]:
            count, *seen = state
            own = log.part()
            own += seen
            await self._run(ctx, loop.body, own)
            left = list(own[-_LEFT:])
            return Break(left) if count >= loop.rounds else Continue([count + 1, *left])

        return await ctx.loop([1], body, commit_every=loop.commit_every, keep=loop.keep)

    async def _begin_anew(self, ctx: Context, body: Program, log: Log) -> None:
        try:
            ctx.continue_as_new(self._next_of(body, log))
        except WorkflowError:
            # It was asked for in a task.
            await self._run(ctx, body, log)

    async def _spawn(self, ctx: Context, spawn: Spawn, log: Log) -> None:
        child = ctx.spawn(self._child_of(spawn.body), on_close=spawn.on_close)
        if current_scope.get().path:
            # What a part began has to end within it, also if it is given up.
            log.append("child " + " ".join(await ctx.shield(child.result())))
        elif spawn.awaited:
            log.append("child " + " ".join(await child))
