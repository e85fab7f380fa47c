"""The workflows that the fault tests kill, freeze and resume, and the ledger in which their steps write what they
really did.

Every execution of a step returns a value that no other execution returns, so a result that was recorded and then
replaced by another one cannot go unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

from perdure import (
    Activity,
    Context,
    Limit,
    Pending,
    Retry,
    StepTimeout,
    activity,
    activity_info,
    step,
    step_info,
    workflow,
)
from perdure.machine import Action, Actions, StateMachine
from perdure.workflow.discover import Definable
from tests.store.user_connections.tables import execute

EVERYTHING = "faults.everything.v1"
#: Beginning of the names of steps that must not run twice.
CHARGE = "charge"
CHILD = "faults.child.v1"


class Flaky(Exception):
    """What a step raises on purpose."""


def note(ledger: str, **line: Any) -> None:
    """Add a whole line to the ledger, also while other processes write."""
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


def read(ledger: Path) -> list[dict[str, Any]]:
    """The lines of a ledger."""
    return [json.loads(line) for line in ledger.read_bytes().splitlines()] if ledger.exists() else []


#: What every execution of a step emits, and how many.
STREAM = "steps"
ITEMS = 2


def begin(ledger: str, what: str) -> str:
    """Write down that a step is being executed; the value that this execution shall return."""
    info = step_info()
    value = f"{what}:{os.getpid()}:{os.urandom(4).hex()}"
    note(
        ledger, did="step", run=info.run_id, location=info.location, attempt=info.attempt, pid=os.getpid(), value=value,
        headers=dict(info.headers),
    )  # fmt: skip
    return value


def show(value: str) -> str:
    """Emit the items of an execution, right before it ends; the value that it returns."""
    for number in range(ITEMS):
        step_info().emit(STREAM, [value, number])
    return value


def effect(ledger: str, what: str) -> str:
    return show(begin(ledger, what))


async def effect_async(ledger: str, what: str) -> str:
    value = begin(ledger, what)
    await asyncio.sleep(0.005)
    return show(value)


async def effect_in_a_transaction(connection: Any, ledger: str, what: str) -> str:
    """Its row and its record are there together, or not at all."""
    value = begin(ledger, what)
    told = Path(ledger).with_name("url")
    url = told.read_text() if told.exists() else ""
    schema = url.partition("schema=")[2]
    table = f"{schema}.effects" if schema else "effects"
    if not url.startswith("mysql"):
        # There it would commit what came before; the table is made with the database.
        await execute(connection, f"CREATE TABLE IF NOT EXISTS {table} (run TEXT, value TEXT)")
    await execute(connection, f"INSERT INTO {table} VALUES ('{step_info().run_id}', '{value}')")
    return show(value)


@step(retry=Retry(attempts=4, delay=lambda attempt, _: (0.02, 0.15, 0.02)[attempt - 1]))
def flaky(ledger: str) -> str:
    value = begin(ledger, "flaky")
    if step_info().attempt < 3:
        raise Flaky(f"attempt {step_info().attempt}")
    return value


@step(retry=Retry.never(), timeout=0.03)
async def too_slow(ledger: str) -> str:
    value = begin(ledger, "too slow")
    await asyncio.sleep(60)  # until its timeout
    return value


@step(retry=Retry.never(), timeout=0.03)
def too_slow_in_a_thread(ledger: str) -> str:
    value = begin(ledger, "too slow in a thread")
    time.sleep(0.15)
    return value


@step(retry=Retry.never())
def breaks_once(ledger: str) -> str:
    value = begin(ledger, "breaks once")
    if not any(line["did"] == "break" for line in read(Path(ledger))):
        note(ledger, did="break")
        raise Flaky("the first try at the run")
    return value


def mended(ledger: str) -> bool:
    """Whether what breaks has been seen to."""
    return any(line["did"] == "mend" for line in read(Path(ledger)))


@step(retry=Retry.never())
def breaks(ledger: str) -> str:
    value = begin(ledger, "breaks")
    if not mended(ledger):
        raise Flaky("until it is mended")
    return value


@step(retry=Retry.fixed("1h", attempts=2))
def stumbles(ledger: str) -> str:
    value = begin(ledger, "stumbles")
    if not mended(ledger):
        raise Flaky("until it is mended")
    return value


async def lingers(ledger: str) -> str:
    """Outlives the process that executes it, except the last."""
    value = begin(ledger, "lingers")
    if not any(line["did"] == "hurry" for line in read(Path(ledger))):
        await asyncio.sleep(60)  # until it is killed
    return value


@workflow(CHILD)
async def child(ctx: Context, ledger: str, what: str) -> str:
    value = await ctx.step(effect, ledger, what)
    await asyncio.sleep(0.01)
    return value


@workflow("faults.idle_child.v1")
async def idle_child(ctx: Context, ledger: str) -> str:
    try:
        return await ctx.receive("never", str)
    finally:
        await ctx.step(effect, ledger, "clean up in the child")


@activity(
    "faults.errand.v1",
    retry=Retry.fixed(0.02, attempts=4),
    heartbeat=30,
    schedule_to_start=300,
    limit=Limit("errands", concurrency=1, rate="1000/s"),
)
def errand(ledger: str, what: str) -> str:
    value = begin(ledger, what)
    info = activity_info()
    # The attempt that the policy counts; an interrupted one may have been killed before it said anything.
    counted = int(info.attempt_id.rsplit(".", 2)[1])
    if counted > 1 and info.last_heartbeat != what:
        raise RuntimeError(f"the heartbeat of an earlier attempt was forgotten: {info.last_heartbeat!r}")
    info.heartbeat(what)
    if counted == 1:
        raise Flaky("the first attempt")
    return value


class Round(StateMachine[str, str], type="faults.round.v1"):
    """Waits a moment, then runs an errand, and one that never begins."""

    def on_start(self, input: str) -> list[Action]:
        self.ledger = input
        return [self.timer("moment", 0.02), self.activity("hopeless", never_begun())]

    def on_timer(self, id: str) -> Actions:
        return [self.activity("errand", errand(self.ledger, "sent by a machine")), self.cancel("hopeless")]

    def on_activity_completed(self, id: str, result: str) -> Actions:
        return self.complete(result)


@activity("faults.never_begun.v1", queue="unserved")
def never_begun() -> None:
    raise AssertionError("no worker takes that queue")


@workflow(EVERYTHING)
async def everything(ctx: Context, ledger: str) -> list[str]:
    seen = [await ctx.step(effect, ledger, "first")]
    ctx.emit("seen", seen[-1])
    seen.append(await ctx.step(effect_async, ledger, f"second, after {seen[0]}"))
    ctx.emit("seen", seen[-1])
    ctx.publish("last", seen[-1])
    seen += await asyncio.gather(
        ctx.step(effect, ledger, "side by side"),
        ctx.step(effect_async, ledger, "side by side"),
        ctx.options(ephemeral=True).step(effect_async, ledger, "side by side"),
        ctx.call(child(ledger, "beside the steps")),
        ctx.call(errand(ledger, "beside the steps")),
        ctx.call(Round.call(ledger)),
    )
    seen.append(await ctx.step(flaky, ledger))
    for slow in (too_slow, too_slow_in_a_thread):
        try:
            seen.append(await ctx.step(slow, ledger))
        except StepTimeout:
            seen.append("timed out")
    seen.append(await ctx.transaction(effect_in_a_transaction, ledger, f"third, after {seen[0]}"))
    ctx.emit("seen", seen[-1])
    await ctx.sleep(0.12)
    seen.append(await ctx.receive("go", str))
    try:
        async with asyncio.timeout(0.05):
            await ctx.receive("never", str)
    except TimeoutError:
        seen.append(f"{ctx.uuid()} {ctx.random()} {ctx.now().isoformat()}")
    try:
        async with asyncio.timeout(0.12):
            await ctx.call(idle_child(ledger))
    except TimeoutError:
        seen.append(await ctx.step(effect, ledger, seen[-1]))
    seen.append(await ctx.receive("more", str, correlation="all"))
    seen.append(await ctx.call(child(ledger, "last")))
    ctx.emit("seen", seen[-1])
    ctx.publish("last", seen[-1])
    return seen


@workflow("faults.again.v1", retry=Retry.fixed(0.05, attempts=3))
async def again(ctx: Context, ledger: str) -> list[str]:
    return [await ctx.step(effect, ledger, "kept"), await ctx.step(breaks_once, ledger)]


@workflow("faults.broken.v1")
async def broken(ctx: Context, ledger: str) -> list[str]:
    return [await ctx.step(effect, ledger, f"kept {ctx.uuid()}"), await ctx.step(breaks, ledger)]


@workflow("faults.stuck.v1")
async def stuck(ctx: Context, ledger: str) -> str:
    return await ctx.step(stumbles, ledger)


@workflow("faults.stopped.v1")
async def stopped(ctx: Context, ledger: str) -> str:
    for number in ("one", "two"):
        await ctx.step(effect, ledger, number)
        ctx.undo(effect, ledger, f"undo {number}")
    try:
        return await ctx.receive("never", str)
    except asyncio.CancelledError:
        return await ctx.step(effect, ledger, "clean up")


@workflow("faults.charged.v1")
async def charged(ctx: Context, ledger: str) -> list[str]:
    """Steps that must not run twice, both at once."""
    once = ctx.options(at_most_once=True)
    both = [ctx.outcome(once.options(name=f"{CHARGE}-{number}").step(effect, ledger, "")) for number in range(2)]
    ended = await asyncio.gather(*both)
    return [one.value if one.ok else type(one.error).__name__ for one in ended]


@workflow("faults.stubborn.v1")
async def stubborn(ctx: Context, ledger: str) -> str:
    await ctx.step(effect, ledger, "before")
    while True:
        try:
            return await ctx.receive("never", str)
        except asyncio.CancelledError:
            continue


@workflow("faults.mailed.v1")
async def mailed(ctx: Context) -> int:
    return await ctx.receive("number", int)


@activity("faults.permit.v1", retry=Retry.fixed(0.02, attempts=2), heartbeat=300)
def permit(ledger: str) -> str:
    """Its end is reported from outside, by the token that it gives out."""
    value = begin(ledger, "permit")
    note(ledger, did="token", token=activity_info().token, value=value)
    return Pending


@workflow("faults.permitted.v1")
async def permitted(ctx: Context, ledger: str) -> str:
    return await ctx.call(permit(ledger), id="permit")


@workflow("faults.pinned.v1", pinned=True)
async def pinned(ctx: Context, ledger: str) -> str:
    """Pinned to the build that began it, until the client unpins it."""
    await ctx.step(effect, ledger, "pinned")
    ctx.publish("phase", "begun")
    ctx.emit("words", "begun")
    word = await ctx.receive("unpinned", str)
    ctx.emit("words", word)
    return word


async def follow(ctx: Context) -> str:
    """Waits for a state of a run that is not a child, and reads its stream until it ends."""
    other = ctx.run("pinned")
    phase = await other.wait_state("phase", "begun")
    words = [one.value async for one in other.stream("words", str)]
    return f"{phase}: {', '.join(words)}"


@workflow("faults.watching.v1")
async def watching(ctx: Context, ledger: str) -> list[str]:
    """Waits for a run that is not its child, and for a sticky event, both at once; then for the event again."""
    *both, followed = await asyncio.gather(ctx.run("pinned").result(str), ctx.event("opened", str), follow(ctx))
    await ctx.step(effect, ledger, "watched")
    assert followed == "begun: begun, done"
    return [*both, await ctx.event("opened", str)]


@workflow("faults.slow.v1")
async def slow(ctx: Context, ledger: str) -> list[str]:
    return [await ctx.step(effect, ledger, "before"), await ctx.step(lingers, ledger)]


@workflow("faults.hopeless.v1")
async def hopeless(ctx: Context) -> None:
    raise ValueError("there is no hope")


ACTIVITIES: list[Activity[Any, Any]] = [errand, never_begun, permit]
WORKFLOWS: list[Definable] = [
    everything, child, idle_child, again, broken, stuck, stopped, charged, stubborn, mailed, permitted, pinned,
    watching, slow, hopeless, Round,
    *ACTIVITIES,
]  # fmt: skip
