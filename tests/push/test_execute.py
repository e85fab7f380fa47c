from __future__ import annotations

import asyncio
import logging
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Context, Cron, Engine, Retry, RunNotFound, Status, UsageError, activity, credentials, step, workflow
from perdure.admin import Reason
from perdure.blocking import Pusher as BlockingPusher
from perdure.core.routing import TypeInfo
from perdure.errors import EngineClosed, UnknownWorkflow
from perdure.push import ExecutionState, Pusher
from perdure.store import Retrying, open_store
from perdure.testing.clock import VirtualClock
from perdure.testing.conformance.harness import a_worker
from perdure.testing.environment import START
from tests.helpers import eventually
from tests.push.pushers import pusher_of
from tests.stage import Stage, until


@workflow("push.talk.v1")
async def talk(ctx: Context, name: str) -> str:
    """A step, a wait for a message, and another step."""
    first = await ctx.step(greet, name)
    answer = await ctx.receive("answer", str)
    return await ctx.step(greet, f"{first} {answer}")


def greet(name: str) -> str:
    return f"hello {name}"


@workflow("push.nap.v1")
async def nap(ctx: Context) -> str:
    await ctx.sleep("1h")
    return "awake"


@workflow("push.sum.v1")
async def total(ctx: Context) -> int:
    return await ctx.call(double(1)) + await ctx.call(double(2))


@activity("push.double.v1")
async def double(number: int) -> int:
    return 2 * number


def write(stage: Stage, sql: str) -> None:
    """Write as another process would."""
    with closing(sqlite3.connect(str(stage.path))) as connection, connection:
        connection.execute(sql)


async def test_a_run_is_worked_on_until_it_waits_and_until_it_ends(stage: Stage) -> None:
    engine = stage.engine(talk)
    run = await engine.start(talk("you"))
    parked = await pusher_of(engine).execute(run.id)
    assert (parked.state, parked.status, parked.reason) == (ExecutionState.WAITING, Status.WAITING, Reason.MESSAGE)
    assert (parked.again_at, parked.again_in, parked.worked, parked.progressed) == (None, None, True, True)
    waiting = await pusher_of(engine).execute(run.id)
    assert (waiting.state, waiting.worked) == (ExecutionState.WAITING, False)
    await run.send("answer", "me")
    done = await pusher_of(engine).execute(run.id)
    assert (done.state, done.status, done.worked) == (ExecutionState.FINISHED, Status.COMPLETED, True)
    assert await run.result() == "hello hello you me"
    [signed_on] = await engine.workers.list()
    assert signed_on.slots == 500


async def test_a_finished_run_is_left_in_silence(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(talk)
    run = await engine.start(talk("you"))
    await run.cancel()
    before = await run.events()
    done = await pusher_of(engine).execute(run.id)
    assert (done.state, done.status, done.worked, done.again_at) == (
        ExecutionState.FINISHED,
        Status.CANCELLED,
        False,
        None,
    )
    assert await run.events() == before
    assert [
        one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING or run.id in one.getMessage()
    ] == []


async def test_a_run_that_is_not_due_says_when_it_is(stage: Stage) -> None:
    engine = stage.engine(nap)
    run = await engine.start(nap())
    parked = await pusher_of(engine).execute(run.id)
    assert parked.again_at == (await run.info()).wake_at
    assert parked.again_in == pytest.approx(3600, abs=60)
    assert await pusher_of(engine).due() == []
    await run.wake()
    assert await pusher_of(engine).due() == [run.id]
    assert (await pusher_of(engine).execute(run.id)).state is ExecutionState.FINISHED


async def test_a_run_of_a_type_of_another_runtime_is_left_to_its_workers(stage: Stage) -> None:
    engine = stage.engine(talk, double)
    ours, theirs = await engine.start(talk("you")), await engine.start(double(2))
    assert stage.store is not None
    await stage.store.register(a_worker(), [TypeInfo(type=double.type, runtime="node")])
    assert await pusher_of(engine).due() == [ours.id]
    with pytest.raises(UnknownWorkflow, match="belongs to workers of another runtime"):
        await pusher_of(engine).execute(theirs.id)
    assert await theirs.status() is Status.PENDING
    assert (await pusher_of(engine).execute(ours.id)).state is ExecutionState.WAITING


async def test_what_another_worker_has_is_left_to_it(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        entered.set()
        await go_on.wait()
        return "held"

    @workflow("push.hold.v1")
    async def holding(ctx: Context) -> str:
        return await ctx.step(hold)

    engine, other = stage.engine(holding), stage.engine(holding)
    run = await engine.start(holding())
    async with other.worker():
        await entered.wait()
        held = await pusher_of(engine).execute(run.id)
        assert (held.state, held.status, held.worked) == (ExecutionState.HELD, Status.RUNNING, False)
        assert held.again_in == 2.0
        go_on.set()
        assert await run.result("60s") == "held"


async def test_nothing_else_is_taken_and_who_asks_for_the_same_waits_with_the_first(stage: Stage) -> None:
    calls: list[int] = []

    async def act(number: int) -> None:
        calls.append(number)
        await asyncio.sleep(0)  # another one could be taken meanwhile

    @workflow("push.act.v1")
    async def acting(ctx: Context, number: int) -> None:
        await ctx.step(act, number)

    engine = stage.engine(acting)
    runs = [await engine.start(acting(number)) for number in range(3)]
    first, second = await asyncio.gather(pusher_of(engine).execute(runs[0].id), pusher_of(engine).execute(runs[0].id))
    assert (first.state, second.state) == (ExecutionState.FINISHED, ExecutionState.FINISHED)
    assert sorted([first.worked, second.worked]) == [False, True]
    assert calls == [0]
    assert [await run.status() for run in runs] == [Status.COMPLETED, Status.PENDING, Status.PENDING]
    await asyncio.gather(*(pusher_of(engine).execute(run.id) for run in runs))
    assert sorted(calls) == [0, 1, 2]


async def test_who_waits_with_the_first_no_longer_than_its_own_time_has_not_worked_on_it(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        entered.set()
        await go_on.wait()
        return "held"

    @workflow("push.patience.v1")
    async def holding(ctx: Context) -> str:
        return await ctx.step(hold)

    engine = stage.engine(holding)
    run = await engine.start(holding())
    first = asyncio.ensure_future(pusher_of(engine).execute(run.id))
    await entered.wait()
    second = await pusher_of(engine).execute(run.id, timeout=0.01)
    assert (second.state, second.worked, second.progressed) == (ExecutionState.HELD, False, False)
    go_on.set()
    assert ((await first).state, (await first).worked) == (ExecutionState.FINISHED, True)


async def test_when_the_time_is_up_the_run_is_given_back_with_what_it_has(on_disk: Stage) -> None:
    calls: list[str] = []

    async def quick() -> str:
        calls.append("quick")
        return "quick"

    async def slow() -> str:
        calls.append("slow")
        if calls.count("slow") < 3:
            await asyncio.Event().wait()
        return "slow"

    @workflow("push.slow.v1")
    async def slowly(ctx: Context) -> str:
        return await ctx.step(quick) + await ctx.step(slow)

    engine = on_disk.engine(slowly)
    run = await engine.start(slowly())
    # Long enough for the quick step on a busy machine.
    first = await pusher_of(engine).execute(run.id, timeout=3)
    assert (first.state, first.status, first.again_in, first.progressed) == (
        ExecutionState.READY,
        Status.PENDING,
        0.0,
        True,
    )
    second = await pusher_of(engine).execute(run.id, timeout=3)
    assert (second.state, second.worked, second.progressed) == (ExecutionState.READY, True, False)
    assert (await pusher_of(engine).execute(run.id, timeout=60)).state is ExecutionState.FINISHED
    assert calls == ["quick", "slow", "slow", "slow"]


async def test_a_caller_that_stops_waiting_gives_the_run_back(on_disk: Stage) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        entered.set()
        await asyncio.Event().wait()

    @workflow("push.gone.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    engine = on_disk.engine(holding)
    run = await engine.start(holding())
    asking = asyncio.ensure_future(pusher_of(engine).execute(run.id))
    await entered.wait()
    asking.cancel()
    await asyncio.wait([asking])
    await until(run, Status.PENDING)


async def test_children_and_parents_are_due_one_after_the_other(stage: Stage) -> None:
    engine = stage.engine(total, double)
    run = await engine.start(total())
    order: list[str] = []
    while due := await pusher_of(engine).due():
        for run_id in due:
            done = await pusher_of(engine).execute(run_id)
            order.append(f"{run_id.removeprefix(run.id)} {done.state}")
            assert done.parent_id == (None if run_id == run.id else run.id)
    assert await run.result() == 6
    assert len(order) == 5
    assert order[0] == " waiting"
    assert order[-1] == " finished"


async def test_what_cannot_be_executed_is_said(stage: Stage) -> None:
    engine, other = stage.engine(talk), stage.engine(nap)
    run = await other.start(nap())
    with pytest.raises(RunNotFound, match="no run 'missing'"):
        await pusher_of(engine).execute("missing")
    with pytest.raises(UnknownWorkflow, match=r"'push\.nap\.v1'.*none of this engine's"):
        await pusher_of(engine).execute(run.id)
    with pytest.raises(UsageError, match="limit"):
        await pusher_of(engine).due(limit=0)
    with pytest.raises(UsageError, match="no workflows"):
        Pusher(Engine(stage.url))
    await engine.queues.pause(type="push.talk.v1")
    paused = await engine.start(talk("you"))
    assert (await pusher_of(engine).execute(paused.id)).state is ExecutionState.PAUSED
    assert await pusher_of(engine).due() == []


async def test_a_pusher_is_one_worker_for_many_runs_and_says_when_it_was_stopped(stage: Stage) -> None:
    engine = stage.engine(talk)
    runs = [await engine.start(talk(f"{number}")) for number in range(20)]
    async with Pusher(engine, lease="1m") as pusher:
        assert pusher.id
        await asyncio.gather(*(pusher.execute(run.id) for run in runs))
        await pusher.start()
    assert len(await engine.workers.list()) == 1
    assert {await run.status() for run in runs} == {Status.WAITING}
    with pytest.raises(EngineClosed, match="stopped"):
        await pusher.execute(runs[0].id)


async def test_a_process_that_was_suspended_for_longer_than_its_lease_begins_a_new_life(on_disk: Stage) -> None:
    @workflow("push.frozen.v1")
    async def frozen(ctx: Context) -> str:
        await ctx.receive("go")
        return await ctx.step(greet, "again")

    engine, sweeper = on_disk.engine(frozen), on_disk.engine(frozen)
    run = await engine.start(frozen())
    async with Pusher(engine, lease="1h") as pusher:
        await pusher.execute(run.id)
        before = pusher.id
        # As if it had been frozen: its heart has not beaten, and others have declared it dead.
        write(on_disk, "UPDATE perdure_workers SET heartbeat_at = 0")
        await pusher_of(sweeper).due()
        await run.send("go")
        assert (await pusher.execute(run.id)).state is ExecutionState.FINISHED
        assert pusher.id != before


async def test_a_suspect_is_worked_on_when_nothing_else_is(on_disk: Stage) -> None:
    entered, go_on, order = asyncio.Event(), asyncio.Event(), []

    async def hold() -> None:
        entered.set()
        await go_on.wait()
        order.append("held")

    @workflow("push.other.v1")
    async def holding(ctx: Context) -> None:
        await ctx.step(hold)

    @workflow("push.suspect.v1")
    async def suspect(ctx: Context) -> None:
        order.append("suspect")

    engine = on_disk.engine(holding, suspect)
    one, other = await engine.start(holding()), await engine.start(suspect())
    write(on_disk, f"UPDATE perdure_runs SET claims = 3 WHERE id = '{other.id}'")
    first = asyncio.ensure_future(pusher_of(engine).execute(one.id))
    await entered.wait()
    second = asyncio.ensure_future(pusher_of(engine).execute(other.id))
    late = asyncio.ensure_future(pusher_of(engine).execute((await engine.start(suspect())).id))
    await eventually(lambda: len(asyncio.all_tasks()) > 3)
    assert order == []
    go_on.set()
    await asyncio.gather(first, second, late)
    assert order[0] == "held"
    assert order.count("suspect") == 2


async def test_credentials_reach_steps_activities_and_processes_and_are_stored_nowhere(on_disk: Stage) -> None:
    seen: list[object] = []

    def in_thread() -> None:
        seen.append(dict(credentials()))

    async def on_loop() -> None:
        seen.append(dict(credentials()))

    @workflow("push.secret.v1")
    async def secretive(ctx: Context) -> str:
        await ctx.step(in_thread)
        await ctx.step(on_loop)
        await ctx.options(process=True).step(token_of_process)
        await ctx.receive("go")
        await ctx.step(on_loop)
        return "done"

    @activity("push.quiet.v1")
    async def quiet() -> None:
        seen.append(dict(credentials()))

    engine = on_disk.engine(secretive, quiet)
    run, leaf = await engine.start(secretive()), await engine.start(quiet())
    await pusher_of(engine).execute(run.id, credentials={"token": "s3cret"})
    await pusher_of(engine).execute(leaf.id, credentials={"token": "0ther"})
    await run.send("go")
    await pusher_of(engine).execute(run.id)
    assert seen == [{"token": "s3cret"}, {"token": "s3cret"}, {"token": "0ther"}, {}]
    assert [record.payload for record in await run.history() if record.location == "token_of_process"] == ["6"]
    everything = repr(await on_disk.dump())
    assert "s3cret" not in everything
    assert "0ther" not in everything
    with pytest.raises(UsageError, match="outside of a step"):
        credentials()


def token_of_process() -> int:
    """How long the token is, not what it is."""
    return len(credentials()["token"])


async def test_due_gives_back_what_the_dead_held_fails_the_late_and_fires_schedules() -> None:
    clock = VirtualClock(START, 0)
    store = open_store("sqlite://", clock, inline=True)
    engine = Engine("sqlite://", [talk, nap], system=clock, store=Retrying(store, clock))
    async with engine:
        late = await engine.start(nap(), deadline="1m")
        held = await engine.start(talk("you"))
        await engine.schedules.create("hourly", nap(), Cron("0 * * * *"))
        await store.query(
            "INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, started_at, heartbeat_at, status)"
            " VALUES ('gone', 'h', 1, '[]', '[]', 1, 1000000, 0, 0, 'alive')"
        )
        await store.query(f"UPDATE perdure_runs SET status = 'running', worker = 'gone' WHERE id = '{held.id}'")
        clock.move_to(clock.now() + 3_700_000_000)
        due = await pusher_of(engine).due()
        assert held.id in due
        assert len(due) == 2
        assert await late.status() is Status.FAILED
        assert "hourly" in next(run_id for run_id in due if run_id != held.id)


SCRIPT = """
import asyncio, logging, sys, threading, time
from perdure import Context, Engine, workflow
from perdure.push import Pusher

logging.getLogger("perdure.worker").setLevel(logging.ERROR)  # a busy machine may block the loop for a moment

@workflow("push.serverless.v1")
async def counting(ctx: Context) -> int:
    for number in range(3):
        await ctx.receive("more")
    return 3

engine = Engine(sys.argv[1], [counting])
pusher = Pusher(engine)

async def invoked(run_id):
    return str((await pusher.execute(run_id)).state)

async def start():
    return (await engine.start(counting())).id

async def fleet():
    return sorted(str(worker.status) for worker in await engine.workers.list())

async def short():
    await Pusher(engine, lease=3).start()

run_id = asyncio.run(start())
for number in range(3):
    print(asyncio.run(invoked(run_id)))
    asyncio.run(engine.send(run_id, "more"))
print(asyncio.run(invoked(run_id)))
print(*asyncio.run(fleet()))
asyncio.run(short())
while len([thread for thread in threading.enumerate() if thread.name == "perdure heartbeat"]) > 4:
    time.sleep(0.01)  # its heart stops by itself
print("quiet")
"""


def test_each_invocation_may_have_an_event_loop_of_its_own(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, f"sqlite:///{tmp_path}/runs.db"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout.split() == [*["waiting"] * 3, "finished", "alive", *["stopped"] * 3, "quiet"]


def test_code_that_is_not_async_executes_too(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/runs.db", [talk])
    with engine.blocking() as blocking:
        run = blocking.start(talk("you"))
        pusher = BlockingPusher(blocking)
        assert pusher.due() == [run.id]
        assert pusher.execute(run.id, timeout="20s").state is ExecutionState.WAITING


@step(timeout=0.05, retry=Retry.never())
async def endless() -> None:
    await asyncio.Event().wait()


async def test_a_step_has_its_own_timeout_here_too(on_disk: Stage) -> None:
    @workflow("push.endless.v1")
    async def patient(ctx: Context) -> str:
        try:
            await ctx.step(endless)
        except TimeoutError:
            return "timed out"
        return "ended"

    engine = on_disk.engine(patient)
    run = await engine.start(patient())
    assert (await pusher_of(engine).execute(run.id)).state is ExecutionState.FINISHED
    assert await run.result() == "timed out"
