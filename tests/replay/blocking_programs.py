"""The same random programs written twice: as an `async def` and as a `def`.

Both machines perform the primitives that a blocking context has; `portable` replaces the others. `record` with one and
`verify` with the other shows that a run begun by one kind can be finished by the other, wherever it is cut.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

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
from perdure.blocking import Context as BlockingContext
from perdure.errors import JoinError, RaceError
from perdure.workflow.blocking import begin
from perdure.workflow.definition import Call
from perdure.workflow.outcomes import CAUGHT
from tests.replay.driver import unwork, work
from tests.replay.language import _POLICIES, QUESTION, TOPIC, is_meant, states_of, stream_of, typed, waited_for
from tests.replay.nodes import Node, described, numbers
from tests.replay.performing import FORGETFUL, Cell
from tests.replay.programs import BRANCHES, DEED, LEAVES, Machine, variable
from tests.replay.recording import Play

#: Primitives of asyncio that blocking code does not have, and what takes their place in a program.
_REPLACED = {
    "wait_first": "gather", "wait_exception": "gather", "wait_all": "gather_all", "wait_in_time": "timeout",
    "as_completed": "gather_all", "group": "gather", "nested": "seq", "spawn": "gather_all", "cancel": "try",
    "wait_for": "timeout", "shield": "protect", "event": "lock", "condition": "semaphore", "barrier": "gather_all",
    "queue": "bounded", "priority_queue": "join", "lifo_queue": "race", "generator": "manager",
}  # fmt: skip
PORTABLE = frozenset(LEAVES + BRANCHES) - frozenset(_REPLACED)


def portable(node: Node) -> Node:
    """The program with primitives that both kinds have."""
    return replace(node, op=_REPLACED.get(node.op, node.op), body=tuple(portable(each) for each in node.body))


class QuietMachine(Machine):
    """Notes nothing of code that is being ended: whether its clean-up sees the current scope differs by kind."""

    def note(self, node: Node, seen: object) -> None:
        if not asyncio.get_running_loop().is_closed():
            super().note(node, seen)


class PortableMachine(QuietMachine):
    """Performs portable programs as an `async def`."""

    def _branches(self, node: Node) -> dict[str, Branch[list[str]]]:
        return {
            f"{node.name}b{number}": self._enclosed((each,)) if (node.number + number) % 3 == 1 else self._branch(each)
            for number, each in enumerate(node.body)
        }

    async def _gather(self, node: Node) -> None:
        # What a part begins has to end with it, and blocking code has no tasks to end.
        if self._cell.get().enclosed:
            await self._gather_all(node)
        else:
            self.note(node, await asyncio.gather(*(self.do(each) for each in node.body)))

    async def _gather_all(self, node: Node) -> None:
        results = await asyncio.gather(*(self.do(each) for each in node.body), return_exceptions=True)
        self.note(node, [described(result) for result in results])

    async def _offspring(self, node: Node) -> Any:
        child = self._ctx.spawn(Call.named(f"{node.name}.v1", node.id), on_close=_POLICIES[node.number % 3])
        self.note(node, child.id)
        if node.number == 6:
            child.send("m", node.id)
            child.cancel("not wanted")
        if self._cell.get().enclosed:
            self.note(node, await self._ctx.shield(child.result()))
        elif node.number > 3:
            async with asyncio.timeout(node.number):
                self.note(node, await child.result())

    async def _variable(self, node: Node) -> None:
        async def branch() -> None:
            variable.set(node.id)
            await self._each(node.body)
            self.note(node, variable.get())

        before = variable.get()
        await asyncio.gather(branch(), return_exceptions=self._cell.get().enclosed)
        self.note(node, variable.get() == before)

    def _answers(self, node: Node) -> Callable[[int], Any]:
        async def handle(value: int) -> Any:
            answer = self._handle(node, value)
            return await answer if inspect.isawaitable(answer) else answer

        return handle


class BlockingMachine(QuietMachine):
    """Performs portable programs as a `def`. Its methods have the names of the async ones, and block."""

    def carry_out(self, ctx: BlockingContext, program: Node) -> list[str]:
        """The workflow, as `perform`."""
        self._blocking = ctx
        for each in program.body:
            try:
                self.act(each)
            except (Exception, asyncio.CancelledError) as error:
                self.note(program, described(error))
                if program.number == (1 if isinstance(error, asyncio.CancelledError) else 4):
                    raise
        result = self.trace(lambda path: any(f"{name}/" in path or f"{name}#" in path for name in FORGETFUL))
        if program.number == 3:
            ctx.continue_as_new(Call.named("next.v1", result))
        return result

    def act(self, node: Node) -> Any:
        """Perform one node, as `do`."""
        self.begun.setdefault(node.id, set())
        method: Callable[[Node], Any] = getattr(self, f"act_{node.op}")
        result = method(node)
        self.ended[node.op] += 1
        return result

    def act_all(self, nodes: tuple[Node, ...]) -> list[Any]:
        return [self.act(each) for each in nodes]

    def act_enclosed(self, nodes: tuple[Node, ...]) -> list[str]:
        before = self._cell.get()
        self._cell.set(Cell(enclosed=True))
        try:
            return [described(result) for result in self.act_all(nodes)]
        finally:
            self._cell.set(before)

    def _noted(self, node: Node, value: Any) -> Any:
        self.note(node, value)
        return value

    def _work(self, name: str, *args: Any) -> Any:
        return self._blocking.options(name=name).step(work, *args)

    # one thing

    def act_step(self, node: Node) -> Any:
        return self._noted(node, self._work(node.name, node.id))

    def act_deed(self, node: Node) -> Any:
        function: Any = work
        return self._noted(node, self._blocking.options(name=f"{DEED}{node.name}").transaction(function, node.id))

    def act_child(self, node: Node) -> Any:
        return self._noted(node, self._blocking.call(Call.named(f"{node.name}.v1", node.id)))

    def act_nap(self, node: Node) -> None:
        self._blocking.sleep(node.number)
        self.note(node, None)

    def act_until(self, node: Node) -> None:
        self._blocking.sleep_until(self._blocking.now() + timedelta(seconds=node.number))
        self.note(node, None)

    def act_sleep(self, node: Node) -> None:
        self.note(node, self._blocking.wait(asyncio.sleep(node.number, "slept")))

    def act_receive(self, node: Node) -> None:
        self.note(node, self._blocking.receive(node.name))

    def act_receive_in_time(self, node: Node) -> None:
        self.note(node, self._blocking.receive(node.name, timeout=node.number))

    def act_yield(self, node: Node) -> None:
        for _ in range(node.number):
            self._blocking.wait(asyncio.sleep(0))
        self.note(node, "yielded")

    def act_clock(self, node: Node) -> None:
        ctx = self._blocking
        self.note(node, f"{ctx.now()} {asyncio.get_running_loop().time()} {ctx.random()} {ctx.uuid()}")

    def act_fail(self, node: Node) -> None:
        self.ended["fail"] += 1
        raise ValueError(node.id)

    def act_for_each(self, node: Node) -> None:
        for number in numbers(node):
            self._noted(node, self._work(node.name, [node.id, number]))

    # several things

    def act_seq(self, node: Node) -> None:
        self.act_all(node.body)

    def act_gather(self, node: Node) -> None:
        if self._cell.get().enclosed:
            self.act_gather_all(node)
        else:
            self.note(node, list(self._blocking.gather(*(partial(self.act, each) for each in node.body))))

    def act_gather_all(self, node: Node) -> None:
        results = self._blocking.gather(*(partial(self.act, each) for each in node.body), return_exceptions=True)
        self.note(node, [described(result) for result in results])

    def act_variable(self, node: Node) -> None:
        def branch() -> None:
            variable.set(node.id)
            self.act_all(node.body)
            self.note(node, variable.get())

        before = variable.get()
        if self._cell.get().enclosed:
            self._blocking.gather(branch, return_exceptions=True)
        else:
            self._blocking.gather(branch)
        self.note(node, variable.get() == before)

    # within limits

    def act_timeout(self, node: Node) -> None:
        with self._blocking.timeout(node.number) as limit:
            self.act_all(node.body)
        self.note(node, limit.expired())

    def act_timeout_at(self, node: Node) -> None:
        with self._blocking.enter(asyncio.timeout_at(asyncio.get_running_loop().time() + node.number)):
            self.act_all(node.body)
        self.note(node, "in time")

    def act_try(self, node: Node) -> None:
        first, *rest = node.body
        try:
            self.act(first)
        except Exception as error:
            self.note(node, described(error))
            self.act_all(tuple(rest))

    def act_finally(self, node: Node) -> None:
        first, *rest = node.body
        try:
            self.act(first)
        finally:
            self.act_all(tuple(rest))
            self.note(node, "clean")

    def _in_turn(self, node: Node, gate: Any) -> None:
        with self._blocking.enter(gate):
            self.note(node, "in")
            self.act_all(node.body)
        self.note(node, "out")

    def act_lock(self, node: Node) -> None:
        self._in_turn(node, self._same("lock", 1, asyncio.Lock))

    def act_semaphore(self, node: Node) -> None:
        self._in_turn(node, self._same("semaphore", 1, lambda: asyncio.Semaphore(2)))

    def act_bounded(self, node: Node) -> None:
        self._in_turn(node, self._same("bounded", 1, lambda: asyncio.BoundedSemaphore(2)))

    def act_manager(self, node: Node) -> None:
        first, *rest = node.body

        @contextmanager
        def managed() -> Iterator[None]:
            self.act(first)
            try:
                yield
            finally:
                self.note(node, "leaves")
                self.act_yield(node)

        with managed():
            self.act_all(tuple(rest))

    # in named parts

    def _parts_of(self, node: Node) -> dict[str, Any]:
        parts: dict[str, Any] = {}
        for number, each in enumerate(node.body):
            nullary = (node.number + number) % 3 == 1
            parts[f"{node.name}b{number}"] = (
                partial(self.act_enclosed, (each,)) if nullary else self._blocking_branch(each)
            )
        return parts

    def _blocking_branch(self, node: Node) -> Callable[[BlockingContext], list[str]]:
        def branch(ctx: BlockingContext) -> list[str]:
            assert ctx.run_id == self._blocking.run_id
            return self.act_enclosed((node,))

        return branch

    def act_join(self, node: Node) -> Any:
        try:
            results = self._blocking.join(self._parts_of(node))
        except JoinError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            self.note(node, error.results)
            raise
        return self._noted(node, results)

    def act_race(self, node: Node) -> Any:
        try:
            won = self._blocking.race(self._parts_of(node))
        except RaceError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            raise
        self.note(node, won)
        return won.winner

    def act_first(self, node: Node) -> Any:
        try:
            won = self._blocking.race(self._parts_of(node), until="completion")
        except Exception as error:
            self.note(node, described(error))
            raise
        self.note(node, won)
        return won.winner

    def act_join_named(self, node: Node) -> Any:
        branches: dict[str, NamedBranch[Any]] = {}

        def look() -> None:
            self.note(node, states_of(branches))
            self._blocking.sleep(node.number)
            self.note(node, states_of(branches))

        bodies: dict[str, Callable[..., Any]] = {**self._parts_of(node), f"{node.name}look": look}
        branches |= {name: self._blocking.branch(body) for name, body in bodies.items()}
        self.note(node, states_of(branches))
        try:
            given = self._blocking.join(typed(node, branches))
        except JoinError as error:
            self.note(node, [(name, described(one)) for name, one in error.errors.items()])
            self.note(node, states_of(branches))
            raise
        return self.joined(node, given)

    def act_map(self, node: Node) -> Any:
        def part(ctx: BlockingContext, item: int) -> list[str]:
            assert ctx.run_id == self._blocking.run_id
            return [str(item), *self.act_enclosed(node.body)]

        part.__annotations__["ctx"] = BlockingContext
        results = self._blocking.map(part, range(1 + node.number % 3), limit=1 + node.number % 2)
        return self._noted(node, results)

    def act_map_steps(self, node: Node) -> Any:
        items = [(node.id, number) for number in numbers(node)]
        return self._noted(node, self._blocking.options(name=node.name).map(work, items, limit=2))

    def act_loop(self, node: Node) -> Any:
        rounds, every, keep = 1 + node.number % 4, 1 + node.number % 3, node.number // 5

        def body(ctx: BlockingContext, state: list[Any]) -> Continue[list[Any]] | Break[list[str]]:
            assert ctx.run_id == self._blocking.run_id
            count, *seen = state
            seen += self.act_enclosed(node.body)
            return Break(seen[-3:]) if count == rounds else Continue([count + 1, *seen[-3:]])

        return self._noted(node, self._blocking.loop([0], body, commit_every=every, keep=keep))

    def act_protect(self, node: Node) -> Any:
        return self._noted(node, self._blocking.shield(partial(self.act_all, node.body)))

    # messages

    def act_receive_any(self, node: Node) -> Any:
        channels: list[Channel[Any]] = [Channel("y"), Channel("x")]
        timeout = node.number if node.number % 2 else None
        return self._noted(node, self._blocking.receive_any(*channels, timeout=timeout))

    def act_receive_many(self, node: Node) -> Any:
        timeout = node.number if node.number % 2 else None
        messages: list[Any] = self._blocking.receive_many(node.name, limit=3, timeout=timeout)
        return self._noted(node, messages)

    def act_question(self, node: Node) -> None:
        asked: ReceivedQuestion[int, int] = self._blocking.receive_question(QUESTION, int, timeout=node.number)
        self.note(node, asked.value)
        asked.reply(asked.value + node.id)

    def act_listen(self, node: Node) -> None:
        name, correlation = TOPIC
        self._noted(node, self._blocking.receive(name, timeout=node.number, correlation=correlation))

    def act_answer(self, node: Node) -> None:
        if self._cell.get().enclosed:
            self.note(node, "no handler here")
            return
        self._blocking.answer(QUESTION, partial(self._handle, node), int, validate=self.check)

    def _later(self, node: Node, value: int) -> Any:
        return self._work("handled", [node.id, value])

    # runs that are no children

    def act_sticky(self, node: Node) -> Any:
        return self._noted(node, self._blocking.event(f"e-{node.name}"))

    def act_other(self, node: Node) -> Any:
        other = self._blocking.run(f"other-{node.name}")
        if node.number == 6:
            other.send("m", self._value(node))
            other.cancel("not wanted")
        return self._noted(node, other.result())

    def act_state(self, node: Node) -> Any:
        return self._noted(node, self._blocking.run(f"other-{node.name}").state("s", int, default=-1))

    def act_wait_state(self, node: Node) -> Any:
        other = self._blocking.run(f"other-{node.name}")
        return self._noted(node, other.wait_state("s", is_meant, int, timeout=waited_for(node)))

    def act_stream(self, node: Node) -> None:
        after, follow, last = stream_of(node)
        with closing(self._blocking.run(f"other-{node.name}").stream("e", int, after=after, follow=follow)) as items:
            for item in items:
                self.note(node, item)
                if item.value == last:
                    break

    # not twice, and not at all

    def act_once(self, node: Node) -> Any:
        return self._noted(node, self._blocking.options(name=node.name, at_most_once=True).step(work, node.id))

    def act_stand(self, node: Node) -> Any:
        try:
            return self.act_all(node.body)
        except asyncio.CancelledError:
            if not self.taken_back(node, self._blocking):
                raise
            return None

    # effects

    def act_publish_event(self, node: Node) -> None:
        id = f"event-{node.id}" if node.number % 2 else None
        self.note(node, self._blocking.publish_event("told", self._value(node), key=node.name, id=id))

    def act_publish(self, node: Node) -> None:
        self._blocking.publish("p", self._value(node))

    def act_emit(self, node: Node) -> None:
        for number in range(node.number):
            self._blocking.emit("e", f"{self._value(node)} {number}")

    def act_send(self, node: Node) -> None:
        self._blocking.send("other", node.name, self._value(node), key=None if node.number % 2 else f"key {node.id}")

    # children

    def act_offspring(self, node: Node) -> None:
        child = self._blocking.spawn(Call.named(f"{node.name}.v1", node.id), on_close=_POLICIES[node.number % 3])
        self.note(node, child.id)
        if node.number == 6:
            child.send("m", node.id)
            child.cancel("not wanted")
        if self._cell.get().enclosed:
            self.note(node, self._blocking.shield(child.result))
        elif node.number > 3:
            with self._blocking.timeout(node.number):
                self.note(node, child.result())

    def act_detached(self, node: Node) -> None:
        self.note(node, self._blocking.start(Call.named(f"{node.name}.v1", node.id)))

    # undoing and changing

    def act_undoable(self, node: Node) -> Any:
        return self._noted(node, self._blocking.options(name=node.name, undo=unwork).step(work, node.id))

    def act_saga(self, node: Node) -> Any:
        with self._blocking.saga() as saga:
            results = self.act_all(node.body)
            if node.number % 4 == 0:
                saga.keep()
            if node.number % 4 == 1:
                raise Rollback(node.id)
        return self._noted(node, results)

    def act_undo(self, node: Node) -> None:
        self._blocking.undo(unwork, node.id)

    def act_rollback(self, node: Node) -> None:
        self.ended["rollback"] += 1
        raise Rollback(node.id)

    def act_outcome(self, node: Node) -> Any:
        first, *rest = node.body
        catch = frozenset(FailureKind) if node.number % 2 else CAUGHT
        outcome = self._blocking.outcome(self._blocking_branch(first), catch=catch)
        if isinstance(outcome, Failed):
            self.note(node, (outcome.kind, described(outcome.error), outcome.attempts))
            self.act_all(tuple(rest))
            return outcome.kind
        return self._noted(node, outcome.value)

    def act_patched(self, node: Node) -> None:
        self.note(node, (self._blocking.patched(f"p-{node.name}"), self._blocking.version("v", node.number)))
        self._blocking.removed(f"gone-{node.name}", "step")


class AsyncPlay(Play):
    """A portable program as an `async def`."""

    def make_machine(self) -> Machine:
        return PortableMachine()


class BlockingPlay(Play):
    """A portable program as a `def`."""

    def make_machine(self) -> Machine:
        return BlockingMachine()

    def start(self, ctx: Context, program: Node) -> Coroutine[Any, Any, Any]:
        machine = self.machine
        assert isinstance(machine, BlockingMachine)
        return begin(lambda blocking: machine.carry_out(blocking, program), ctx)
