"""Random workflows whose outcome does not depend on timing, so that one that was interrupted can be held against one
that was not.

Steps give what follows from their arguments, branches have what they see to themselves, and who wins a race is certain:
the others never end. Everything that a program waits for was sent before it began, or never comes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

from msgspec import Struct

from perdure import (
    Branch,
    Break,
    Call,
    Channel,
    Context,
    Continue,
    Engine,
    Failed,
    Handle,
    Retry,
    Rollback,
    RunCancelled,
    RunFailed,
    step_info,
    workflow,
)
from perdure.errors import JoinError, RaceError
from perdure.workflow.scopes import current_scope
from tests.replay.generation import Tape

#: A run that no worker executes, for messages that are sent to others.
SINK = "sink"
_MOMENT = 0.01
_LONG = 600
_RETRY = Retry(attempts=3, initial=0.001, jitter=0)


class Node(Struct, frozen=True):
    """One use of a primitive."""

    op: str
    id: int
    number: int
    body: tuple[Node, ...] = ()


#: By run and what was done there, how often it was executed.
executed: Counter[tuple[str, str]] = Counter()
#: Runs and nodes whose code was broken, and is correct by now.
corrected: set[tuple[str, int]] = set()
#: Nodes that ran to their end.
ended: Counter[str] = Counter()


def root_of(run_id: str) -> str:
    """The run that a run descends from."""
    return run_id.partition("/")[0].partition("~")[0]


async def work(key: str, failures: int) -> str:
    """A step that fails some times."""
    info = step_info()
    executed[root_of(info.run_id), f"{info.location} {key}"] += 1
    if info.attempt <= failures:
        raise ValueError(f"{key} failed")
    return f"{key}!"


async def unwork(result: str) -> str:
    """What undoes it."""
    return await work(f"undo {result}", 0)


async def deed(_: Any, key: str) -> str:
    """A transaction."""
    return await work(key, 0)


@workflow("laws.program.v1", retry=None)
async def program(ctx: Context, node: Node, rest: list[Any]) -> list[Any]:
    """Performs a node, and begins anew once if the node says so."""
    # What was sent once is not there for those who come later.
    seen = [*rest, *await each(ctx, _without_letters(node.body) if rest else node.body)]
    if node.number == 1 and not rest:
        ctx.continue_as_new(program(node, ["anew", *seen[-3:]]))
    if node.number == 2:
        raise Rollback(f"after {seen}")
    return seen


@workflow("laws.lingering.v1")
async def lingering(ctx: Context, parent: str, number: int) -> None:
    """Does something that can be undone, says so, and waits to be stopped."""
    try:
        async with ctx.saga():
            await ctx.options(name="undoable", undo=unwork, retry=_RETRY).step(work, f"{number} lingers", 0)
            ctx.send(parent, _begun(ctx.run_id))
            await ctx.receive("never")
    finally:
        await ctx.options(name="cleanup", retry=_RETRY).step(work, f"{number} is over", 0)


def _begun(child: str) -> str:
    """What it says. Of several that are begun at the same place of a program, each says something else: which one is
    first is chance."""
    return f"begun{crc32(child.partition('/')[2].encode())}"


async def each(ctx: Context, nodes: Sequence[Node]) -> list[Any]:
    """Perform nodes one after the other; what came of each."""
    return [await do(ctx, node) for node in nodes]


async def do(ctx: Context, node: Node) -> Any:
    """Perform a node; what came of it."""
    perform: Callable[[Context, Node], Any] = OPS[node.op]
    try:
        result = await perform(ctx, node)
    except (ValueError, JoinError, RaceError, TimeoutError, RunFailed) as error:
        result = f"{type(error).__name__} {error}"
    ended[node.op] += 1
    return result


async def _step(ctx: Context, node: Node) -> Any:
    options = ctx.options(name=f"s{node.number % 3}", retry=_RETRY, ephemeral=node.number % 4 == 1)
    return await options.step(work, str(node.id), node.number % 4)


async def _deed(ctx: Context, node: Node) -> Any:
    return await ctx.options(retry=_RETRY).transaction(deed, str(node.id))


async def _nap(ctx: Context, node: Node) -> Any:
    await (ctx.sleep(_MOMENT) if node.number % 2 else asyncio.sleep(_MOMENT))


async def _receive(ctx: Context, node: Node) -> Any:
    return await ctx.receive(f"m{node.id}", timeout=_LONG)


async def _garbled(ctx: Context, node: Node) -> Any:
    """The first message is no number, and is set aside."""
    return await ctx.receive(f"m{node.id}", int, timeout=_LONG)


async def _bug(ctx: Context, node: Node) -> Any:
    """A line that is wrong until it was executed once, where no code catches the error."""
    where = (ctx.run_id, node.id)
    if not current_scope.get().path and where not in corrected:
        corrected.add(where)
        raise NameError("name 'undefined' is not defined")
    return "corrected"


async def _receive_nothing(ctx: Context, node: Node) -> Any:
    return await ctx.receive("never", timeout=_MOMENT)


async def _receive_many(ctx: Context, node: Node) -> Any:
    return await ctx.receive_many(f"m{node.id}", limit=node.number % 3 + 1, timeout=_LONG)


async def _receive_any(ctx: Context, node: Node) -> Any:
    channels: list[Channel[Any]] = [Channel("never"), Channel(f"m{node.id}")]
    received = await ctx.receive_any(*channels)
    return [received.name, received.value]


async def _question(ctx: Context, node: Node) -> Any:
    asked: Any = await ctx.receive_question(f"q{node.id}", int)
    asked.reply(asked.value + 1)
    return asked.value


async def _emit(ctx: Context, node: Node) -> Any:
    for number in range(node.number % 4):
        ctx.emit("stream", [node.id, number])


async def _publish(ctx: Context, node: Node) -> Any:
    ctx.publish(f"p{node.id}", node.number)


async def _send(ctx: Context, node: Node) -> Any:
    ctx.send(SINK, f"from-{root_of(ctx.run_id)}", node.id)


async def _version(ctx: Context, node: Node) -> Any:
    return [ctx.patched("patch"), ctx.version(f"v{node.id}", node.number + 1)]


async def _fail(ctx: Context, node: Node) -> Any:
    raise ValueError(f"{node.id} fails")


def _child_of(node: Node) -> Call[list[Any]]:
    return program(Node("child", node.id, 0, node.body), ["child"])


async def _child(ctx: Context, node: Node) -> Any:
    return await ctx.call(_child_of(node))


async def _spawn(ctx: Context, node: Node) -> Any:
    child = ctx.spawn(_child_of(node), on_close="wait" if node.number % 2 else "abandon")
    return await child if node.number % 3 or current_scope.get().path else "left behind"


async def _stopped(ctx: Context, node: Node) -> Any:
    child = ctx.spawn(lingering(ctx.run_id, node.id))
    await ctx.receive(_begun(child.id))
    child.cancel("enough")
    try:
        await child
    except RunCancelled:
        return "stopped"


async def _join(ctx: Context, node: Node) -> Any:
    return await ctx.join({f"b{number}": _branch(one) for number, one in enumerate(node.body)})


def _branch(node: Node) -> Branch[Any]:
    async def branch(ctx: Context) -> Any:
        return await do(ctx, node)

    return branch


async def _race(ctx: Context, node: Node) -> Any:
    first, *_ = node.body

    async def loser(ctx: Context) -> Any:
        ctx.emit("stream", [node.id, "loses"])
        return await (ctx.sleep(_LONG) if node.number % 2 else ctx.receive("never"))

    async def broken(ctx: Context) -> Any:
        raise ValueError("broken")

    won = await ctx.race({"a": broken, "b": loser, "c": _branch(first)})
    return [won.winner, won.value]


async def _map(ctx: Context, node: Node) -> Any:
    async def part(ctx: Context, item: int) -> Any:
        return [item, *await each(ctx, _without_letters(node.body))]

    if node.number % 2:
        return await ctx.map(part, range(2), limit=1 + node.number % 2)
    return await ctx.options(name="mapped").map(_mapped, range(node.number), limit=2)


async def _mapped(item: int) -> str:
    return await work(f"item {item}", 0)


async def _loop(ctx: Context, node: Node) -> Any:
    async def body(ctx: Context, state: list[Any]) -> Continue[list[Any]] | Break[list[Any]]:
        count, *seen = state
        ctx.emit("stream", [node.id, count])
        seen += await each(ctx, _without_letters(node.body))
        return Break(seen[-2:]) if count == node.number % 5 else Continue([count + 1, *seen[-2:]])

    return await ctx.loop([0], body, commit_every=1 + node.number % 3, keep=node.number % 2)


def _without_letters(nodes: Sequence[Node]) -> list[Node]:
    return [one for one in nodes if not _takes(one)]


def _takes(node: Node) -> bool:
    """Whether it takes something that was sent once."""
    return node.op in TAKING or any(_takes(one) for one in node.body)


async def _limit(ctx: Context, node: Node) -> Any:
    async with asyncio.timeout(_MOMENT):
        await ctx.receive("never")


async def _shield(ctx: Context, node: Node) -> Any:
    return await ctx.shield(each(ctx, node.body))


async def _gather(ctx: Context, node: Node) -> Any:
    return await asyncio.gather(*(do(ctx, one) for one in node.body))


async def _saga(ctx: Context, node: Node) -> Any:
    try:
        async with ctx.saga() as saga:
            for number in range(1 + node.number % 3):
                options = ctx.options(name="undoable", undo=unwork, retry=_RETRY)
                await options.step(work, f"{node.id} {number}", 0)
            seen = await each(ctx, node.body)
            if node.number % 4 == 1:
                saga.keep()
            if node.number % 4 == 2:
                raise Rollback("saga")
    except Rollback:
        return "rolled back"
    return seen


async def _outcome(ctx: Context, node: Node) -> Any:
    outcome = await ctx.outcome(_branch(node.body[0]), name="part")
    return [outcome.kind, str(outcome.error)] if isinstance(outcome, Failed) else outcome.value


OPS: dict[str, Callable[[Context, Node], Any]] = {
    name[1:]: value
    for name, value in globals().items()
    if name.startswith("_") and asyncio.iscoroutinefunction(value) and name != "_mapped"
}
TAKING = ("receive", "receive_many", "receive_any", "question", "garbled")
NESTS = ("child", "spawn", "join", "race", "map", "loop", "shield", "gather", "saga", "outcome")
LEAVES = tuple(name for name in OPS if name not in NESTS)
_OFTEN = ("step",) * 4 + LEAVES


class Author:
    """Writes a program."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._id = 0

    def program(self) -> Node:
        """A sequence of anything."""
        pick = self._tape.pick
        return Node("program", 0, pick(6), tuple(self._node(1) for _ in range(1 + pick(4))))

    def _node(self, depth: int) -> Node:
        pick = self._tape.pick
        self._id += 1
        if depth > 3 or pick(2) == 0:
            return Node(_OFTEN[pick(len(_OFTEN))], self._id, pick(12))
        op, node_id, number = NESTS[pick(len(NESTS))], self._id, pick(12)
        return Node(op, node_id, number, tuple(self._node(depth + 1) for _ in range(1 + pick(2))))


def everything() -> list[Node]:
    """Every primitive, the least of each: those with parts, and those without."""
    parts = [Node(op, number, 5, (Node("step", 100 + number, 0),)) for number, op in enumerate(NESTS)]
    return [
        Node("program", 0, 1, tuple(parts)),
        Node("program", 0, 0, tuple(Node(op, number, 6) for number, op in enumerate(LEAVES))),
    ]


def letters(node: Node) -> list[tuple[str, int | str]]:
    """Names and values of the messages that a run of this program needs. Children need none."""
    found: list[tuple[str, int | str]] = []
    if node.op in ("receive", "receive_any"):
        found.append((f"m{node.id}", node.id))
    elif node.op == "garbled":
        found += [(f"m{node.id}", "no number"), (f"m{node.id}", node.id)]
    elif node.op == "receive_many":
        found += [(f"m{node.id}", number) for number in range(node.number % 3 + 1)]
    if node.op not in ("child", "spawn"):
        for one in node.body:
            found += letters(one)
    return found


def questions(node: Node) -> list[int]:
    """The questions that it answers."""
    if node.op == "question":
        return [node.id]
    return [] if node.op in ("child", "spawn") else [each for one in node.body for each in questions(one)]


class Seen(Struct, frozen=True):
    """All that the outside sees of a run."""

    outcome: str
    states: dict[str, Any]
    stream: list[str]
    sent: list[str]
    answers: list[str]
    executed: list[str]
    #: Messages that were set aside.
    aside: list[str]


async def observe(engine: Engine, run: Handle[Any], answers: Sequence[str]) -> Seen:
    """Wait for a run's end, and look."""
    try:
        outcome = str(await run.result("60s"))
    except RunFailed as error:
        outcome = str(error.__cause__)
    stream = [str(item.value) async for item in run.stream("stream", follow=False)]
    inbox = await (await engine.get(SINK)).inbox()
    return Seen(
        outcome=outcome,
        states=dict(sorted((await run.states()).items())),
        stream=sorted(stream),
        sent=sorted(str(one.payload) for one in inbox if one.name == f"from-{run.id}"),
        answers=sorted(answers),
        # A copy, because steps in threads go on counting.
        executed=sorted(what for where, what in list(executed) if where == run.id),
        aside=sorted(f"{one.name} {one.payload}" for one in await run.set_aside_messages()),
    )
