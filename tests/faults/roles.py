"""What the processes of the fault tests do. Each works in one directory, which holds the database, the ledger and its
traces."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from perdure import (
    Call,
    Engine,
    Every,
    Handle,
    RunExists,
    RunFinished,
    RunNotFound,
    Singleton,
    Status,
    UsageError,
    Watermark,
)
from perdure.client.session import session_of
from perdure.core.model.graph_checkpoints import GraphDeletion, GraphEntry
from perdure.core.model.worker_info import WorkerStatus
from perdure.errors import AttemptOver, LockLost, ScheduleNotFound, TokenExists
from perdure.push import ExecutionState, Pusher
from perdure.store import Retrying, open_store
from perdure.testing.conformance.documents import a_report
from perdure.testing.conformance.harness import a_worker
from perdure.testing.crash import CrashingHost, Trap
from tests.faults import app, errands, labour, siege, storm
from tests.faults.deeds import deeds, echo
from tests.faults.narrow import narrow
from tests.faults.prepared import pass_after_preparing
from tests.faults.publishing import publish
from tests.faults.watched import watch

LEASE = 0.6
WORKFLOWS = [*app.WORKFLOWS, *labour.WORKFLOWS, *errands.WORKFLOWS]
#: Between two looks at a run, so that the crash points of looking do not drown the others.
PATIENCE = 0.03


async def until(question: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Ask until the answer is yes. A process that asks for too long is ended by the zygote."""
    while not await question():  # noqa: ASYNC110 - the database sends no event
        await asyncio.sleep(PATIENCE)


class World(CrashingHost):
    """A world that writes down what happened to it."""

    def __init__(self, directory: Path, trap: dict[str, Any] | None) -> None:
        super().__init__(None if trap is None else msgspec.convert(trap, Trap))
        self._directory = directory
        #: By how many seconds the clock of this process is wrong.
        self.skew = 0.0

    def now(self) -> int:
        return super().now() + int(self.skew * 1e6)

    def caught(self, name: str) -> None:
        (self._directory / f"caught-{os.getpid()}").write_text(name)

    def write_down(self) -> None:
        (self._directory / f"passed-{os.getpid()}").write_text(json.dumps(self.passed))


def url_in(directory: Path) -> str:
    """Where the database is."""
    told = directory / "url"
    return told.read_text() if told.exists() else f"sqlite:///{directory}/runs.db"


def engine_in(directory: Path, world: World, watched: bool = False, url: str = "") -> Engine:
    url = url or url_in(directory)
    if not watched:
        return Engine(url, WORKFLOWS, system=world)
    answers = directory / f"answers-{os.getpid()}"
    store = watch(Retrying(open_store(url, world), world), answers, world.pass_point)
    return Engine(url, WORKFLOWS, system=world, store=store)


def role(main: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def be(directory: Path, trap: dict[str, Any] | None = None, **arguments: Any) -> None:
        logging.basicConfig(level=logging.WARNING, format=f"{os.getpid()} %(levelname)s %(message)s")
        world = World(directory, trap)
        asyncio.run(main(directory, world, **arguments))
        world.write_down()

    return be


class Client:
    """Asks for everything that the tests want done. Asking again, in another process, asks for nothing more."""

    def __init__(self, engine: Engine, directory: Path, world: World, lease: float = LEASE) -> None:
        self._engine = engine
        self._ledger = str(directory / "ledger")
        self._world = world
        self._lease = lease

    async def start(self, call: Call[Any], id: str) -> Handle[Any]:
        handle = await self._engine.start(call, id=id, headers={"root": id})
        app.note(self._ledger, did="started", run=id)
        return handle

    async def send(self, handle: Handle[Any], name: str) -> None:
        try:
            await handle.send(name, f"{name}!", key=name)
        except RunFinished:
            return
        app.note(self._ledger, did="sent", run=handle.id, key=name)

    async def start_all(self) -> dict[str, Handle[Any]]:
        calls = {
            "main": app.everything(self._ledger),
            "again": app.again(self._ledger),
            "broken": app.broken(self._ledger),
            "stuck": app.stuck(self._ledger),
            "stopped": app.stopped(self._ledger),
            "charged": app.charged(self._ledger),
            "ended": app.stubborn(self._ledger),
            "mailed": app.mailed(),
            "permitted": app.permitted(self._ledger),
            "pinned": app.pinned(self._ledger),
            # After the run that it waits for, which has to exist.
            "watching": app.watching(self._ledger),
        }
        runs = {id: await self.start(call, id) for id, call in calls.items()}
        await self.send(runs["main"], "go")
        # An engine that does not know the workflow cannot know that these arguments do not fit it.
        async with Engine(self._engine.url, system=self._world) as stranger:
            await stranger.start(Call.named(app.CHILD, ledger=self._ledger, what=17), id="odd")
        return runs | {"odd": await self._engine.get("odd")}

    async def ask(self) -> None:
        """Everything but the run that outlives its worker."""
        runs = await self.start_all()
        await asyncio.gather(
            self.stop_one(runs["stopped"]),
            self.end_one(runs["ended"]),
            self.mend_mail(runs["mailed"]),
            self.permit(runs["permitted"]),
            self.unpin(runs["pinned"]),
            self.open(runs["watching"]),
            self.nudge(runs["main"]),
            self.steer(runs["again"]),
            self.give_second_chances(runs["broken"], runs["stuck"]),
            self.keep_time(),
            self.tidy(),
            self.guard(),
            self.take_turns(),
            self.bound(),
            self.let_in(),
            self.take_out(),
            self.push(),
            self.keep_checkpoints(),
        )
        await runs["main"].result()
        await runs["again"].result()
        await runs["charged"].result()
        await until(lambda: self._is(runs["odd"], Status.BLOCKED))

    async def stop_one(self, handle: Handle[Any]) -> None:
        await until(lambda: self._is(handle, Status.WAITING, *FINISHED))
        await handle.cancel("enough")
        await until(lambda: self._is(handle, *FINISHED))

    async def end_one(self, handle: Handle[Any]) -> None:
        """Terminate a run that ignores its cancellation."""
        await until(lambda: self._is(handle, Status.WAITING, *FINISHED))
        await handle.terminate("enough")

    async def mend_mail(self, handle: Handle[Any]) -> None:
        """Correct a message that the workflow cannot decode."""

        async def is_set_aside() -> bool:
            return bool(await handle.set_aside_messages()) or (await handle.status()).finished

        with suppress(RunFinished):
            await handle.send("number", "seven", key="number")
        await until(is_set_aside)
        # Another process may have done it.
        with suppress(UsageError, RunFinished):
            await handle.deliver_again(0, 7)
        await handle.result()

    async def permit(self, handle: Handle[Any]) -> None:
        """Fail the first attempt of an activity from outside, and complete the second. Others may have done it."""

        async def has_ended() -> bool:
            lines = app.read(Path(self._ledger))
            tokens = {line["token"]: line["value"] for line in reversed(lines) if line["did"] == "token"}
            for number, (token, value) in enumerate(reversed(tokens.items())):
                with suppress(AttemptOver):
                    await self._engine.runs.heartbeat(token, number)
                    if number == 0:
                        await self._engine.runs.fail(token, app.Flaky("refused"))
                    else:
                        await self._engine.runs.complete(token, value)
            assert len(tokens) <= 2, "an attempt that was made again has another token"
            return (await handle.status()).finished

        await until(has_ended)
        await handle.result()

    async def unpin(self, handle: Handle[Any]) -> None:
        """Let other builds continue a run, and let it end. Another process may have done it."""
        await until(lambda: self._is(handle, Status.WAITING, *FINISHED))
        await handle.unpin("another build")
        with suppress(RunFinished):
            await handle.send("unpinned", "done", key="unpinned")
        assert await handle.result() == "done"

    async def open(self, handle: Handle[Any]) -> None:
        """Emit the event that a run waits for. Another process may have done it."""
        assert await self._engine.events.emit("opened", "wide")
        assert await handle.result() == ["done", "wide", "wide"]

    async def steer(self, handle: Handle[Any]) -> None:
        await self._engine.queues.pause(queue="elsewhere")
        await self._engine.queues.resume(queue="elsewhere")
        await handle.pause("for a moment")
        await handle.resume()
        await self._engine.limits.set("errands", concurrency=2)
        await self._engine.limits.clear("errands")
        await self._engine.breakers.open("post")
        await self._engine.breakers.reset("post")
        # As a worker does that finds a dead one.
        await (await self._engine._session.connect()).recheck_gates("client")
        await (await self._engine._session.connect()).delete_idle_gates(10, "client")
        # As the heartbeat of a worker does whose loops have met an error.
        await (await self._engine._session.connect()).report_health("client", 1, "claimer: ValueError: x")

    async def keep_time(self) -> None:
        async def has_fired() -> bool:
            return bool((await self._engine.schedules.get("clock")).last_run)

        call = app.child(self._ledger, "tick")
        timing = Every("300ms")
        await self._engine.schedules.create("clock", call, timing, overlap="allow", misfire="skip", grace="300ms")
        # Another process may have got further.
        with suppress(ScheduleNotFound):
            await until(has_fired)
            await self._engine.schedules.trigger("clock")
            await self._engine.schedules.delete("clock")

    async def guard(self) -> None:
        """Hold a lock for a while. A process that died with it does not keep the others waiting for long."""
        async with await self._engine.locks.acquire("guard", "500ms", wait=None) as lock:
            # Another process may have taken it meanwhile.
            with suppress(LockLost):
                await lock.extend("1s")

    async def bound(self) -> None:
        await self._engine.queues.watermarks.set(Watermark(high=1000, queue="elsewhere"))
        await self._engine.queues.watermarks.remove(queue="elsewhere")

    async def let_in(self) -> None:
        """Create a token, use it and revoke it. A process that died may have left it."""
        with suppress(TokenExists):
            await self._engine.tokens.create("sweep")
        store = await session_of(self._engine).connect()
        await store.touch_tokens([("0" * 64, 1)], "sweep")
        await self._engine.tokens.revoke("sweep")

    async def take_out(self) -> None:
        """Drain a worker that does nothing, and keep the report of a deploy check."""
        store, name = await session_of(self._engine).connect(), f"steered-{os.getpid()}"
        await store.register(a_worker(name))
        await self._engine.workers.drain(name, "a sweep")
        await store.retire(name)
        await store.save_report(a_report(name), "sweep")

    async def take_turns(self) -> None:
        """Two runs of which one may go on at a time."""
        for name in ("turn-1", "turn-2"):
            call = app.child(self._ledger, name)
            await self._engine.start(call, id=name, singleton=Singleton("turns", "queue"))
        for name in ("turn-1", "turn-2"):
            await (await self._engine.get(name)).result()

    async def keep_checkpoints(self) -> None:
        """Store, copy and delete the checkpoints of a graph."""
        store, thread = await session_of(self._engine).connect(), f"thread-{os.getpid()}"
        await store.save_graph_entries([GraphEntry(thread=thread, checkpoint="1", body="{}")], "sweep")
        await store.copy_graph_thread(thread, f"{thread}-copy", "sweep")
        await store.delete_graph_entries(GraphDeletion(thread=thread), "sweep")

    async def push(self) -> None:
        """Execute a run by its id that no worker looks for. Other processes may do that, too."""
        handle = await self._engine.start(
            app.child(self._ledger, "push"), id="pushed", queue="pushed", headers={"root": "pushed"}
        )
        app.note(self._ledger, did="started", run="pushed")
        # Another process may have executed it.
        await handle.set_priority(7)

        async def is_done() -> bool:
            return (await pusher.execute(handle.id)).state is ExecutionState.FINISHED

        async with Pusher(self._engine, lease=self._lease, grace=0.02) as pusher:
            await until(is_done)

    async def nudge(self, handle: Handle[Any]) -> None:
        async def is_reached() -> bool:
            if (await handle.info()).reason == "message" and await self._engine.runs.broadcast(
                "more", "more!", correlation="all", key="more"
            ):
                app.note(self._ledger, did="sent", run=handle.id, key="broadcast:more")
                return True
            return (await handle.status()).finished

        await until(is_reached)

    async def give_second_chances(self, broken: Handle[Any], stuck: Handle[Any]) -> None:
        if not app.mended(self._ledger):
            await until(lambda: self._is(broken, *FINISHED))
            await until(lambda: self._is(stuck, Status.WAITING, *FINISHED))
            app.note(self._ledger, did="mend")
        await until(lambda: self._is(stuck, Status.WAITING, Status.COMPLETED))
        # Another process may have let it go on, and it may have completed since.
        with suppress(UsageError, RunFinished):
            await stuck.retry()
        if await broken.status() is Status.FAILED:
            # Another process may have opened it again since.
            with suppress(UsageError):
                await broken.retry()
        await broken.result()
        if await self._is_new("fork"):
            kept = next(record for record in await broken.history() if record.location == "effect")
            app.note(self._ledger, did="copy", run="fork", location="effect", value=json.loads(kept.payload or ""))
            # Another process may ask for the same at the same moment.
            with suppress(RunExists):
                await broken.fork(from_step="breaks", id="fork")
        await (await self._engine.get("fork")).result()
        await stuck.result()

    async def tidy(self) -> None:
        """Requeue, discard, bring back and delete a run that always fails, while others may do the same."""
        with suppress(UsageError):
            litter = await self._engine.start(app.hopeless(), id="litter")
            await until(lambda: self._is(litter, *FINISHED))
            await self._engine.dead_letters.retry("litter")
            await until(lambda: self._is(litter, *FINISHED))
            await self._engine.dead_letters.discard("litter", reason="hopeless")
            await self._engine.runs.undelete("litter")
            await until(self._is_tidy)
        # Of none: what happened to the runs is needed for judging.
        await (await self._engine._session.connect()).delete_events(1, 0, "tidy")

    async def _is_tidy(self) -> bool:
        return (await self._engine.runs.prune(0, types=app.hopeless.type)).runs > 0 or await self._is_new("litter")

    async def _is_new(self, run_id: str) -> bool:
        try:
            await self._engine.get(run_id)
        except RunNotFound:
            return True
        return False

    async def begin_slow(self) -> Handle[Any]:
        handle = await self.start(app.slow(self._ledger), "slow")
        await until(self._slow_has_begun)
        return handle

    async def _slow_has_begun(self) -> bool:
        return any(line.get("location") == "lingers" for line in app.read(Path(self._ledger)))

    async def _is(self, handle: Handle[Any], *statuses: Status) -> bool:
        return await handle.status() in statuses


FINISHED = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


async def has_ended(engine: Engine) -> bool:
    return all(run.status in FINISHED or run.id == "odd" for run in (await engine.runs.list()).runs)


async def is_gone(engine: Engine, pid: int) -> bool:
    return all(worker.status is not WorkerStatus.ALIVE for worker in await engine.workers.list() if worker.pid == pid)


async def drive(directory: Path, world: World, *, last: bool = False, bury: int = 0, lease: float = LEASE) -> None:
    """Start everything, work on it, and shut down.

    The last one also sees to it that everything is finished, and that the worker of another process is declared dead.
    """
    if last:
        app.note(str(directory / "ledger"), did="hurry")
    async with engine_in(directory, world) as engine:
        client = Client(engine, directory, world, lease)
        worker = engine.worker(lease=lease, grace=0.02, pack_history=3, keep_log=3)
        await worker.start()
        await client.ask()
        slow = await client.begin_slow()
        if last:
            await slow.result()
            await until(lambda: has_ended(engine))
            await until(lambda: is_gone(engine, bury))
        await worker.stop()


async def ask(directory: Path, world: World, *, lease: float = LEASE) -> None:
    """Ask for everything and leave the work to others, until the last run has begun."""
    async with engine_in(directory, world) as engine:
        client = Client(engine, directory, world, lease)
        await client.ask()
        await client.begin_slow()


async def ask_for_one_more(directory: Path, world: World) -> None:
    """Start a run, and wait until others have done it."""
    async with engine_in(directory, world) as engine:
        call = app.child(str(directory / "ledger"), "one more")
        await (await Client(engine, directory, world).start(call, "one more")).result()


async def work(directory: Path, world: World, *, url: str = "", skew: float = 0.0, **options: Any) -> None:
    """Work until told to stop, writing down every answer of the store; by a clock that is wrong by `skew` seconds."""
    world.skew = skew
    if (url or url_in(directory)).startswith("postgresql"):
        pass_after_preparing(world)
    async with engine_in(directory, world, watched=True, url=url) as engine:
        await engine.worker(**({"lease": LEASE, "grace": 0.02} | options)).run()


async def serve(directory: Path, world: World, *, lease: float) -> None:
    """Work on what has limits, until killed."""
    async with Engine(url_in(directory), siege.ACTIVITIES, system=world) as engine:
        # However often it was killed with its worker: none of them is to blame.
        await engine.worker(lease=lease, grace=0.02, slots=siege.SLOTS, poison_after=1000).run()


async def weather(directory: Path, world: World, *, lease: float) -> None:
    """Work on what a storm of kills is about, until killed."""
    async with Engine(url_in(directory), storm.DEFINITIONS, system=world) as engine:
        # However often one was killed with its worker: none of them is to blame.
        await engine.worker(lease=lease, grace=0.02, slots=storm.SLOTS, poison_after=1000).run()


async def squeeze(directory: Path, world: World) -> None:
    """Start the runs whose steps have to pass one by one, and work on them to their end."""
    url, ledger = url_in(directory), str(directory / "ledger")
    lease = LEASE if url.startswith("sqlite") else 1.5
    async with Engine(url, [narrow], system=world) as engine, engine.worker(lease=lease, grace=0.02):
        runs = [await engine.start(narrow(ledger), id=id) for id in ("one", "two")]
        for run in runs:
            await run.result()


async def transact(directory: Path, world: World, *, url: str, table: str) -> None:
    """Start the run that writes rows in transactions, and work on it to its end."""
    # A server is asked over the network by many processes at once, which on a busy machine takes a while.
    lease = LEASE if url.startswith("sqlite") else 1.5
    async with Engine(url, [deeds, echo], system=world) as engine, engine.worker(lease=lease, grace=0.02):
        await (await engine.start(deeds(table), id="r")).result()


async def fork(directory: Path, world: World) -> None:
    """Use an engine in a process that was forked from the one that opened it, then in that one."""
    async with engine_in(directory, world) as engine:
        pid = os.fork()
        if pid == 0:
            os._exit(_in_the_child(engine))
        _, status = os.waitpid(pid, 0)  # noqa: ASYNC222 - nothing else runs here
        assert status == 0, f"the forked process ended with {status}"
        await Client(engine, directory, world).start(labour.quick(str(directory / "ledger")), "after the fork")


def _in_the_child(engine: Engine) -> int:
    async def use() -> int:
        await engine.runs.list()
        await engine.close()
        return 0

    # The parent's event loop is running, and was copied as such; this process needs one of its own.
    asyncio._set_running_loop(None)
    return asyncio.run(use())


ROLES = {
    main.__name__: role(main)
    for main in (drive, ask, ask_for_one_more, work, serve, weather, squeeze, transact, fork, publish)
}
