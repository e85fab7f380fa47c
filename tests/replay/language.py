"""Nodes of programs for what a workflow has beyond asyncio: scopes, messages, effects, children, undos, versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import fields, make_dataclass
from functools import partial
from typing import Any, Literal

from perdure import (
    Branch,
    Break,
    Channel,
    Context,
    Continue,
    Failed,
    FailureKind,
    NamedBranch,
    ReceivedQuestion,
    Rollback,
)
from perdure.errors import JoinError, RaceError, WorkflowError
from perdure.workflow.definition import Call
from perdure.workflow.outcomes import CAUGHT
from perdure.workflow.scopes import current_scope
from tests.replay.driver import named, unwork, work
from tests.replay.nodes import Node, described, given_as_it_is, numbers
from tests.replay.performing import Performer

_POLICIES: tuple[Literal["cancel", "abandon", "wait"], ...] = ("cancel", "abandon", "wait")
QUESTION = "q"
TOPIC = ("t", "7")


class Language(Performer):
    """Performs the nodes that asyncio does not have."""

    # in named parts

    def _branches(self, node: Node) -> dict[str, Branch[list[str]]]:
        """Each in one of the ways in which a branch can be given; what the node is called is part of their names."""
        branches: dict[str, Branch[Any]] = {}
        for number, each in enumerate(node.body):
            name = f"{node.name}b{number}"
            if each.op == "step" and given_as_it_is(node, number):
                self.begun.setdefault(each.id, set())
                branches[name] = self._durable(each, named(self._ctx, each.name, each.id))
            elif (node.number + number) % 3 == 1:
                branches[name] = self._enclosed((each,))
            else:
                branches[name] = self._branch(each)
        return branches

    def _branch(self, node: Node) -> Branch[list[str]]:
        async def branch(ctx: Context) -> list[str]:
            assert ctx.run_id == self._ctx.run_id
            return await self._enclosed((node,))

        return branch

    async def _join(self, node: Node) -> Any:
        try:
            results = await self._ctx.join(self._branches(node))
        except JoinError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            self.note(node, error.results)
            raise
        self.note(node, results)
        return results

    async def _race(self, node: Node) -> Any:
        try:
            won = await self._ctx.race(self._branches(node))
        except RaceError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            raise
        self.note(node, won)
        return won.winner

    async def _first(self, node: Node) -> Any:
        try:
            won = await self._ctx.race(self._branches(node), until="completion")
        except Exception as error:
            self.note(node, described(error))
            raise
        self.note(node, won)
        return won.winner

    async def _join_named(self, node: Node) -> Any:
        branches: dict[str, NamedBranch[Any]] = {}

        async def look() -> None:
            """See the states of all, while they run."""
            self.note(node, states_of(branches))
            await self._ctx.sleep(node.number)
            self.note(node, states_of(branches))

        bodies: dict[str, Branch[Any]] = {**self._branches(node), f"{node.name}look": look()}
        branches |= {name: self._ctx.branch(body) for name, body in bodies.items()}
        self.note(node, states_of(branches))
        try:
            given = await self._ctx.join(typed(node, branches))
        except JoinError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            self.note(node, states_of(branches))
            raise
        return self.joined(node, given)

    def joined(self, node: Node, given: Any) -> Any:
        """Note what a typed join gives."""
        named = given if isinstance(given, dict) else {one.name: getattr(given, one.name) for one in fields(given)}
        results = {name: one.result for name, one in named.items()}
        self.note(node, (states_of(named), results))
        return results

    async def _map(self, node: Node) -> Any:
        async def part(ctx: Context, item: int) -> list[str]:
            assert ctx.run_id == self._ctx.run_id
            return [str(item), *await self._enclosed(node.body)]

        results = await self._ctx.map(part, range(1 + node.number % 3), limit=1 + node.number % 2)
        self.note(node, results)
        return results

    async def _map_steps(self, node: Node) -> Any:
        items = [(node.id, number) for number in numbers(node)]
        results = await self._ctx.options(name=node.name).map(work, items, limit=2)
        self.note(node, results)
        return results

    async def _loop(self, node: Node) -> Any:
        rounds, every, keep = 1 + node.number % 4, 1 + node.number % 3, node.number // 5

        async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[list[str]]:
            assert ctx.run_id == self._ctx.run_id
            count, *seen = state
            seen += await self._enclosed(node.body)
            return Break(seen[-3:]) if count == rounds else Continue([count + 1, *seen[-3:]])

        result = await self._ctx.loop([0], body, commit_every=every, keep=keep)
        self.note(node, result)
        return result

    async def _protect(self, node: Node) -> Any:
        result = await self._ctx.shield(self._each(node.body))
        self.note(node, result)
        return result

    # messages

    async def _receive_any(self, node: Node) -> Any:
        channels: list[Channel[Any]] = [Channel("y"), Channel("x")]
        timeout = node.number if node.number % 2 else None
        return await self._durable(node, self._ctx.receive_any(*channels, timeout=timeout))

    async def _receive_many(self, node: Node) -> Any:
        timeout = node.number if node.number % 2 else None
        messages: list[Any] = await self._ctx.receive_many(node.name, limit=3, timeout=timeout)
        self.note(node, messages)
        return messages

    async def _question(self, node: Node) -> None:
        asked: ReceivedQuestion[int, int] = await self._ctx.receive_question(QUESTION, int, timeout=node.number)
        self.note(node, asked.value)
        asked.reply(asked.value + node.id)

    async def _listen(self, node: Node) -> None:
        name, correlation = TOPIC
        await self._durable(node, self._ctx.receive(name, timeout=node.number, correlation=correlation))

    async def _answer(self, node: Node) -> None:
        if self._cell.get().enclosed:
            # Replay skips this part when it is over, and a handler would outlive it.
            self.note(node, "no handler here")
            return
        self._ctx.answer(QUESTION, self._answers(node), int, validate=self.check)

    def _answers(self, node: Node) -> Callable[[int], Any]:
        return partial(self._handle, node)

    def _handle(self, node: Node, value: int) -> Any:
        """Answer a question: with an error, at once, or after a step."""
        self.answered += 1
        self.note(node, value)
        if value % 4 == 1:
            raise ValueError(value)
        if value % 4 == 2:
            return self._later(node, value)
        return value + node.id

    def _later(self, node: Node, value: int) -> Any:
        return named(self._ctx, "handled", [node.id, value])

    def check(self, value: int) -> None:
        """Refuse some questions, by their value and by the state of the workflow."""
        scope = current_scope.get(None)
        # The workflow's own code validates only what came before the handler, in the scope of the question.
        self.validated += scope is None or not scope.path
        if (value + self.answered) % 3 == 0:
            raise ValueError(f"{value} after {self.answered}")

    # runs that are no children

    async def _sticky(self, node: Node) -> Any:
        return await self._durable(node, self._ctx.event(f"e-{node.name}"))

    async def _other(self, node: Node) -> Any:
        other = self._ctx.run(f"other-{node.name}")
        if node.number == 6:
            other.send("m", self._value(node))
            other.cancel("not wanted")
        return await self._durable(node, other.result())

    async def _state(self, node: Node) -> Any:
        found = await self._ctx.run(f"other-{node.name}").state("s", int, default=-1)
        self.note(node, found)
        return found

    async def _wait_state(self, node: Node) -> Any:
        found = await self._ctx.run(f"other-{node.name}").wait_state("s", is_meant, int, timeout=waited_for(node))
        self.note(node, found)
        return found

    async def _stream(self, node: Node) -> None:
        after, follow, last = stream_of(node)
        items = self._ctx.run(f"other-{node.name}").stream("e", int, after=after, follow=follow)
        async with aclosing(items):
            async for item in items:
                self.note(node, item)
                if item.value == last:
                    break

    # effects

    async def _publish_event(self, node: Node) -> None:
        id = f"event-{node.id}" if node.number % 2 else None
        self.note(node, self._ctx.publish_event("told", self._value(node), key=node.name, id=id))

    def _value(self, node: Node) -> str:
        """Told from all others, so that one that is there twice was written twice."""
        return f"{node.id} in {current_scope.get().path}"

    async def _publish(self, node: Node) -> None:
        self._ctx.publish("p", self._value(node))

    async def _emit(self, node: Node) -> None:
        for number in range(node.number):
            self._ctx.emit("e", f"{self._value(node)} {number}")

    async def _send(self, node: Node) -> None:
        self._ctx.send("other", node.name, self._value(node), key=None if node.number % 2 else f"key {node.id}")

    # children

    async def _offspring(self, node: Node) -> Any:
        child = self._ctx.spawn(Call.named(f"{node.name}.v1", node.id), on_close=_POLICIES[node.number % 3])
        self.note(node, child.id)
        if node.number == 6:
            child.send("m", node.id)
            child.cancel("not wanted")
        result: Awaitable[Any] | None = None
        if self._cell.get().enclosed:
            # Nothing outlives the part that began it.
            result = self._ctx.shield(child.result())
        elif node.number > 3:
            result = asyncio.wait_for(child.result(), node.number)
        if result is not None:
            self.note(node, await result)

    # not twice, and not at all

    async def _once(self, node: Node) -> Any:
        options = self._ctx.options(name=node.name, at_most_once=True)
        return await self._durable(node, options.step(work, node.id))

    async def _stand(self, node: Node) -> Any:
        try:
            return await self._each(node.body)
        except asyncio.CancelledError:
            if not self.taken_back(node, self._ctx):
                raise
            return None

    def taken_back(self, node: Node, ctx: Any) -> bool:
        """Take the run's cancellation back, if there was one and this is the place to do it."""
        try:
            back: bool = ctx.uncancel()
        except WorkflowError as error:
            self.note(node, described(error))
            return False
        self.note(node, f"taken back: {back}")
        return back

    # undoing

    async def _undoable(self, node: Node) -> Any:
        return await self._durable(node, self._ctx.options(name=node.name, undo=unwork).step(work, node.id))

    async def _saga(self, node: Node) -> Any:
        async with self._ctx.saga() as saga:
            results = await self._each(node.body)
            if node.number % 4 == 0:
                saga.keep()
            if node.number % 4 == 1:
                raise Rollback(node.id)
        self.note(node, results)
        return results

    async def _undo(self, node: Node) -> None:
        self._ctx.undo(unwork, node.id)

    async def _rollback(self, node: Node) -> None:
        self.ended["rollback"] += 1
        raise Rollback(node.id)

    async def _outcome(self, node: Node) -> Any:
        first, *rest = node.body
        catch = frozenset(FailureKind) if node.number % 2 else CAUGHT
        outcome = await self._ctx.outcome(self._branch(first), catch=catch)
        if isinstance(outcome, Failed):
            self.note(node, (outcome.kind, described(outcome.error), outcome.attempts))
            await self._each(tuple(rest))
            return outcome.kind
        self.note(node, outcome.value)
        return outcome.value

    # changing

    async def _patched(self, node: Node) -> None:
        self.note(node, (self._ctx.patched(f"p-{node.name}"), self._ctx.version("v", node.number)))
        await self._ctx.removed(f"gone-{node.name}", "step")

    async def _detached(self, node: Node) -> None:
        self.note(node, self._ctx.start(Call.named(f"{node.name}.v1", node.id)))


def is_meant(value: int) -> bool:
    """Whether a state is the one that is waited for."""
    return value % 3 == 0


def waited_for(node: Node) -> int | None:
    """Seconds for which a node waits for a state."""
    return 4 * node.number if node.number % 2 else None


def stream_of(node: Node) -> tuple[int | None, bool, int | None]:
    """Position after which a node reads a stream, whether it follows the stream, and the value at which it stops."""
    return None if node.number % 2 else node.number, node.number % 3 > 0, None if node.number < 4 else 7


def typed(node: Node, branches: Mapping[str, NamedBranch[Any]]) -> Any:
    """Branches as a mapping, or in the fields of a dataclass."""
    if node.number % 2 and not node.name:
        return make_dataclass("Branches", branches)(**branches)
    return dict(branches)


def states_of(branches: Mapping[str, NamedBranch[Any]]) -> dict[str, str]:
    """The state of each branch, with the error of those that failed."""
    return {name: f"{one.status} {one.error and described(one.error)}" for name, one in branches.items()}


#: Every primitive here, by whether it has parts of its own.
LEAVES = (
    "map_steps", "receive_any", "receive_many", "question", "listen", "publish", "emit", "send",
    "offspring", "detached",
    "undoable", "undo", "rollback", "patched",
    "answer", "sticky", "other", "state", "wait_state", "stream", "publish_event", "once",
)  # fmt: skip
BRANCHES = ("join", "race", "map", "loop", "protect", "saga", "outcome", "join_named", "first", "stand")
