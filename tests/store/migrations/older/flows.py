"""Workflows that were in flight when an older version of Perdure stopped, and that today's version finishes.

Steps tell the version that executed them, so that a result shows which steps an older version had done. `write.py`
imports this module with the older version, the test imports it with today's.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from perdure import (
    Break,
    Breaker,
    Channel,
    Context,
    Continue,
    Limit,
    Retry,
    Singleton,
    activity,
    activity_info,
    step,
    step_info,
    workflow,
)
from perdure.machine import Action, Actions, StateMachine

#: The version that executes this code.
AUTHOR = os.environ.get("PERDURE_AUTHOR", "today")
#: Older versions run the second phase with changed code, from which a history diverges.
PHASE = os.environ.get("PERDURE_PHASE", "")
OLDER = AUTHOR != "today"

#: Run and location of every step, and run and type of every activity, that this process executed.
executed: list[tuple[str, str]] = []

go = Channel("go", str)
#: Longer than any test.
LONG = "36500d"
ONE_AT_A_TIME = Limit("older-one", concurrency=1)
STEP_AT_A_TIME = Limit("older-step", concurrency=1)
FRAGILE = Breaker("older-fragile")
PATIENT = Retry(attempts=3, initial=LONG, max=LONG, jitter=0)


class Refused(Exception):
    """An error of the user's own."""


def _done() -> str:
    info = step_info()
    executed.append((info.run_id, info.location))
    return AUTHOR


async def work(_: Any = None) -> str:
    """Tell the version that executed it."""
    return _done()


def work_in_thread(_: Any = None) -> str:
    """Do the same in a thread."""
    return _done()


async def hang(_: Any = None) -> str:
    """End only today."""
    if OLDER:
        await asyncio.sleep(3600)
    return _done()


@step(retry=PATIENT)
async def fail_once(_: Any = None) -> str:
    """Fail in the older version; its next attempt is long after."""
    if OLDER:
        raise Refused("not yet")
    return _done()


@step(limit=STEP_AT_A_TIME)
async def limited_step(hold: bool) -> str:
    """Hold the only permit in the older version."""
    return await hang() if hold else _done()


@step(breaker=FRAGILE)
async def fragile_step() -> str:
    """Wait for the breaker, which an operator holds open in the older version."""
    return _done()


async def write(connection: Any) -> str:
    """A transaction step."""
    del connection
    return _done()


async def undo(name: str) -> str:
    """Undo a step."""
    return f"{_done()} undid {name}"


@step(retry=PATIENT)
async def undo_later(name: str) -> str:
    """Fail to undo in the older version."""
    if OLDER:
        raise Refused("not yet")
    return f"{_done()} undid {name}"


@workflow("older.plain.v1")
async def plain(ctx: Context, number: int) -> list[Any]:
    """A few steps of every kind, then a message, then another step."""
    first = [await ctx.step(work, str(ctx.uuid())), await ctx.step(work_in_thread), await ctx.transaction(write)]
    ctx.publish("state", first)
    ctx.emit("items", "first")
    number += ctx.version("double", 2)
    said = await ctx.receive(go)
    ctx.emit("items", said)
    return [number, *first, said, await ctx.step(work, str(ctx.uuid()))]


@workflow("older.sleep.v1")
async def sleep(ctx: Context, duration: str) -> list[str]:
    """Sleep between two steps."""
    before = await ctx.step(work)
    await ctx.sleep(duration)
    return [before, await ctx.step(work)]


@workflow("older.parent.v1")
async def parent(ctx: Context) -> list[Any]:
    """Wait for a child and for an activity."""
    before = await ctx.step(work)
    child = ctx.spawn(plain(5), id=f"{ctx.run_id}-child")
    again = await ctx.call(leaf("once"))
    return [before, again, await child]


@workflow("older.retries.v1")
async def retries(ctx: Context) -> list[str]:
    """Wait for the second attempt at a step."""
    return [await ctx.step(work), await ctx.step(fail_once)]


@workflow("older.again.v1", retry=Retry(attempts=3, initial=0.001))
async def again(ctx: Context) -> list[str]:
    """Fail as a whole once; the second attempt keeps the results of the first."""
    before = [await ctx.step(work), await ctx.options(retry=Retry(attempts=1)).step(stumble)]
    return [*before, await ctx.receive(go), await ctx.step(work)]


async def stumble() -> str:
    """Fail at first."""
    if not any(location == "stumble" for _, location in executed):
        _done()
        raise Refused("stumbled")
    return _done()


@workflow("older.interrupted.v1")
async def interrupted(ctx: Context) -> list[str]:
    """Be in the middle of a step when the worker dies."""
    return [await ctx.step(work), await ctx.step(hang), await ctx.step(work)]


@workflow("older.loop.v1")
async def loop(ctx: Context, rounds: int) -> list[str]:
    """A loop that has checkpoints and waits in the middle of an iteration."""

    async def body(ctx: Context, done: list[str]) -> Break[list[str]] | Continue[list[str]]:
        done = [*done, await ctx.step(work)]
        if len(done) == 5:
            await ctx.receive(go)
        return Break(done) if len(done) == rounds else Continue(done)

    begin: list[str] = []
    return await ctx.loop(begin, body, commit_every=2)


@workflow("older.branches.v1")
async def branches(ctx: Context) -> dict[str, Any]:
    """A join, a map and a race, of which parts are done."""

    async def waits(ctx: Context) -> str:
        first, said = await ctx.step(work), await ctx.receive(go)
        return f"{first} {said} {await ctx.step(work)}"

    mapped = await ctx.map(work, range(3), limit=2)
    joined = await ctx.join({"quick": lambda ctx: ctx.step(work), "slow": waits})
    raced = await ctx.race({"late": lambda ctx: ctx.sleep(LONG), "soon": lambda ctx: ctx.step(work)})
    return {"map": mapped, **joined, "race": [raced.winner, raced.value]}


@workflow("older.saga.v1")
async def saga(ctx: Context) -> str:
    """Fail after a message; today undoes what the older version has done."""
    async with ctx.saga():
        ctx.undo(undo, "room")
        await ctx.step(work)
        ctx.undo(undo, "flight")
        await ctx.step(work)
        said = await ctx.receive(go)
        if said == "fail":
            raise Refused(said)
    return said


@workflow("older.undoing.v1")
async def undoing(ctx: Context) -> str:
    """Be in the middle of undoing."""
    async with ctx.saga():
        ctx.undo(undo_later, "room")
        await ctx.step(work)
        ctx.undo(undo, "flight")
        raise Refused("full")


@workflow("older.renewed.v1")
async def renewed(ctx: Context, life: int) -> list[Any]:
    """Continue as new, then wait."""
    did = await ctx.step(work)
    if life < 3:
        ctx.continue_as_new(renewed(life + 1))
    return [life, did, await ctx.receive(go), await ctx.step(work)]


@workflow("older.topic.v1")
async def topic(ctx: Context) -> list[str]:
    """Wait for a broadcast."""
    return [await ctx.step(work), await ctx.receive("news", str, correlation="c-1")]


@workflow("older.question.v1")
async def question(ctx: Context) -> list[str]:
    """Answer one question, then wait for another one."""
    asked = []
    for _ in range(2):
        received = await ctx.receive_question("how", str)
        received.reply(f"{await ctx.step(work)}: {received.value}")
        asked.append(received.value)
    return asked


@workflow("older.limited.v1")
async def limited(ctx: Context, hold: bool) -> str:
    """A step behind a limit on steps."""
    return await ctx.step(limited_step, hold)


@workflow("older.fragile.v1")
async def fragile(ctx: Context) -> list[str]:
    """A step behind a breaker."""
    return [await ctx.step(work), await ctx.step(fragile_step)]


@workflow("older.single.v1", singleton=Singleton(policy="queue"))
async def single(ctx: Context, number: int) -> list[Any]:
    """One run at a time."""
    return [number, await ctx.step(work), await ctx.receive(go)]


@workflow("older.tick.v1")
async def tick(ctx: Context) -> str:
    """A run of a schedule, of a debounced start, or of a paused type."""
    return await ctx.step(work)


@workflow("older.fails.v1")
async def fails(ctx: Context) -> list[str]:
    """Fail in the older version."""
    return [await ctx.step(work), await ctx.options(retry=Retry(attempts=1)).step(mend)]


async def mend() -> str:
    """Fail in the older version."""
    if OLDER:
        raise Refused("broken")
    return _done()


if PHASE == "changed":

    @workflow("older.changed.v1")
    async def changed(ctx: Context) -> list[str]:
        """Diverge from the history."""
        await ctx.sleep(LONG)
        return [await ctx.receive(go)]

else:

    @workflow("older.changed.v1")
    async def changed(ctx: Context) -> list[str]:
        """The code before it was changed."""
        return [await ctx.step(work), await ctx.receive(go), await ctx.step(work)]


@workflow("older.poison.v1")
async def poison(ctx: Context) -> list[str]:
    """Kill the worker of the older version."""
    return [await ctx.step(work), await ctx.step(kill)]


async def kill() -> str:
    """End the process, unless it is today's."""
    if OLDER:
        os._exit(9)
    return _done()


@workflow("older.undecodable.v1")
async def undecodable(ctx: Context, number: int) -> list[Any]:
    """Has arguments that do not fit."""
    return [number, await ctx.step(work)]


@activity("older.leaf.v1", retry=Retry(attempts=3, initial=0.001))
async def leaf(what: str) -> str:
    """An activity that is done at once."""
    executed.append((activity_info().run_id, "older.leaf.v1"))
    return f"{AUTHOR} {what}"


@activity("older.later.v1", retry=PATIENT)
async def later() -> list[Any]:
    """An activity that waits for its next attempt."""
    info = activity_info()
    if OLDER:
        info.heartbeat("half")
        raise Refused("not yet")
    executed.append((info.run_id, "older.later.v1"))
    return [AUTHOR, info.attempt, info.last_heartbeat]


@activity("older.held.v1", limit=ONE_AT_A_TIME)
async def held(number: int) -> list[Any]:
    """The first holds the only permit, the others are on the waitlist."""
    if OLDER:
        await asyncio.sleep(3600)
    executed.append((activity_info().run_id, "older.held.v1"))
    return [AUTHOR, number]


class Approval(StateMachine[int, list[Any]], type="older.approval.v1"):
    """A state machine between two messages."""

    messages = (go,)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_start(self, input: int) -> list[Action]:
        """Start an activity and a timer."""
        self.seen = [input]
        return [self.activity("leaf", leaf("machine")), self.timer("late", LONG), self.publish("state", "begun")]

    def on_activity_completed(self, id: str, result: Any) -> Actions:
        """Keep what it said."""
        self.seen.append(result)
        return self.complete(self.seen) if id == "last" else None

    def on_message(self, name: str, value: Any) -> Actions:
        """Go on at the second message."""
        self.seen.append(value)
        if value == "second":
            return [self.cancel("late"), self.activity("last", leaf("last"))]
        return None


#: Everything that runs on the database of an older version.
FLOWS: list[Any] = [
    plain, sleep, parent, retries, again, interrupted, loop, branches, saga, undoing, renewed, topic, question, limited,
    fragile, single, tick, fails, changed, poison, undecodable, leaf, later, held, Approval,
]  # fmt: skip
