"""A real Redis server, killed and started again among other things."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Status, UsageError, activity, workflow
from perdure.push import QueueHandler, QueueMessage, RedisQueue, SigningKeys
from tests.helpers import eventually
from tests.push.pushers import pusher_of
from tests.servers.databases import Databases
from tests.servers.private import Missing, skip_without
from tests.servers.redis import Redis
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up, until

redis = pytest.importorskip("redis", reason="the package redis is not installed; `make .venv/.dev` does that")

WHOLE = bool(os.environ.get("PERDURE_PROVE"))


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    try:
        server = Redis()
    except Missing as missing:
        skip_without("NOTHING IS TESTED ON REDIS", missing)
    server.create()
    yield server
    server.remove()


class Broker:
    """A client of the server, and a queue on it that no other test knows."""

    def __init__(self, server: Redis, name: str) -> None:
        self.server = server
        self.name = name
        self.client: Any = redis.asyncio.Redis.from_url(server.dsn)
        self.queue = RedisQueue(self.client, name=name, idle=0.4)

    async def length(self) -> int:
        """Messages in the queue: to be read, unanswered, or due later."""
        later = await self.client.zcard(f"{{{self.name}}}:later")
        return int(await self.client.xlen(f"{{{self.name}}}") + later)

    async def is_empty(self) -> bool:
        try:
            return await self.length() == 0
        except redis.exceptions.RedisError:
            return False

    def with_keys(self, *keys: str) -> RedisQueue:
        """The same queue, as a process with these keys uses it."""
        return RedisQueue(self.client, name=self.name, idle=0.4, keys=keys)

    @asynccontextmanager
    async def consuming(self, engine: Engine, queue: RedisQueue | None = None) -> AsyncIterator[QueueHandler]:
        queue = queue or self.queue
        async with QueueHandler(engine, enqueue=queue.enqueue, contention=0.1) as handler:
            consuming = asyncio.ensure_future(queue.run(handler))
            try:
                yield handler
            finally:
                consuming.cancel()
                with suppress(asyncio.CancelledError):
                    await consuming


@pytest.fixture
async def broker(server: Redis, request: pytest.FixtureRequest) -> AsyncIterator[Broker]:
    broker = Broker(server, request.node.name)
    yield broker
    await broker.queue.close()


@activity("redis.leaf.v1")
async def leaf(number: int) -> int:
    return number


@workflow("redis.tree.v1")
async def tree(ctx: Context, nap: float = 0.0) -> int:
    await ctx.sleep(nap)
    return sum([await ctx.call(leaf(number)) for number in range(3)])


@workflow("redis.told.v1")
async def told(ctx: Context) -> str:
    return await ctx.receive("news", str)


async def test_runs_children_timers_and_messages_go_through_the_queue(stage: Stage, broker: Broker) -> None:
    engine = stage.engine(tree, leaf, told)
    async with broker.consuming(engine):
        runs = [await engine.start(tree(nap)) for nap in (0.0, 0.3, 0.3)]
        listening = await engine.start(told())
        assert [await run.result("60s") for run in runs] == [3, 3, 3]
        await until(listening, Status.WAITING)
        await listening.send("news", "good")
        assert await listening.result("60s") == "good"
        await eventually(broker.is_empty)


async def test_a_consumer_ends_although_its_client_takes_the_cancellation_for_a_broken_connection(
    on_disk: Stage, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = broker.client.execute_command, asyncio.Event()

    async def swallow(*arguments: Any) -> Any:
        try:
            asked.set()
            return await ask(*arguments)
        except asyncio.CancelledError:
            raise ConnectionError("closed") from None

    monkeypatch.setattr(broker.client, "execute_command", swallow)
    async with asyncio.timeout(60), QueueHandler(on_disk.engine(leaf), enqueue=broker.queue.enqueue) as handler:
        consuming = asyncio.ensure_future(broker.queue.run(handler))
        await asked.wait()
        consuming.cancel()
        assert await asyncio.wait([consuming]) == ({consuming}, set())


async def test_what_is_no_message_is_put_aside_and_a_duplicate_is_done_once(on_disk: Stage, broker: Broker) -> None:
    engine = on_disk.engine(leaf)
    run = await engine.start(leaf(7))
    for body in (b"poison", QueueMessage(run_id=run.id, enqueued_at=1 << 50).encode()):
        await broker.client.xadd(f"{{{broker.name}}}", {"message": body})
    await broker.client.xadd(f"{{{broker.name}}}", {"something": "else"})
    async with broker.consuming(engine) as handler:
        await broker.queue.enqueue(handler.message(run.id))
        assert await run.result("60s") == 7
        await eventually(broker.is_empty)
    dead = await broker.client.xrange(f"{{{broker.name}}}:dead")
    assert [fields[b"message"] for _, fields in dead] == [b"poison", b""]
    assert all(b"not a queue message" in fields[b"reason"] for _, fields in dead)
    assert [event.kind for event in await run.events()] == ["created", "started", "completed"]


async def test_a_run_is_asked_for_later_once_and_as_early_as_anybody_wants(on_disk: Stage, broker: Broker) -> None:
    queue, handler = broker.queue, QueueHandler(on_disk.engine(leaf))
    for delay in (30.0, 60.0, 20.0):
        await queue.enqueue(handler.message("r1", delay=delay), delay)
    [(run_id, due)] = await broker.client.zrange(f"{{{broker.name}}}:later", 0, -1, withscores=True)
    seconds, microseconds = await broker.client.time()
    assert run_id == b"r1"
    assert due - (seconds * 1000 + microseconds / 1000) == pytest.approx(20_000, abs=5000)


async def test_a_queue_with_keys_signs_its_messages_and_takes_no_others(
    stage: Stage, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = SigningKeys.generate(), SigningKeys.generate()
    engine = stage.engine(tree, leaf)
    # The keys are being rotated: senders sign with the old one still, and consumers know both.
    sender, consumer = broker.with_keys(old), broker.with_keys(new, old)
    victim = await engine.start(leaf(7))
    forged = QueueMessage(run_id=victim.id, retry_count=99, enqueued_at=0)
    stream = f"{{{broker.name}}}"
    await broker.queue.enqueue(forged)
    await broker.with_keys(SigningKeys.generate()).enqueue(forged)
    await sender.enqueue(QueueMessage(run_id="other", enqueued_at=0))
    [(_, signed)] = await broker.client.xrevrange(stream, count=1)
    await broker.client.xadd(stream, {**signed, b"message": forged.encode()})
    stale = SigningKeys(new).sign(forged.encode(), delay=-49 * 3600)
    await broker.client.xadd(stream, {"message": forged.encode(), **stale})
    early = SigningKeys(new).sign(forged.encode(), delay=3600)
    await broker.client.xadd(stream, {"message": forged.encode(), **early})
    async with broker.consuming(engine, consumer) as handler:
        run = await engine.start(tree(0.3))
        await sender.enqueue(handler.message(run.id))
        assert await run.result("60s") == 3

        async def put_aside() -> bool:
            return bool(await broker.client.xlen(f"{stream}:dead") == 5)

        await eventually(put_aside)
        assert await victim.status() is Status.PENDING
    reasons = [fields[b"reason"].decode() for _, fields in await broker.client.xrange(f"{stream}:dead")]
    for reason in ("is missing", "the key differs", "longer than is allowed", "ahead"):
        assert any(reason in one for one in reasons), reasons
    assert caplog.text.count("message_unsigned") == 5


CONSUMER = """
import asyncio, sys, pathlib
from perdure import Context, Engine, workflow
from perdure.push import QueueHandler, RedisQueue

def note(path):
    with pathlib.Path(path).open("a") as ledger:
        ledger.write("begun\\n")
    import time
    while not pathlib.Path(path + ".go").exists():
        time.sleep(0.01)  # the test makes a file

@workflow("redis.slow.v1")
async def slow(ctx: Context, path: str) -> str:
    await ctx.step(note, path)
    return "done"

async def main():
    url, dsn, name = sys.argv[1:]
    engine = Engine(url, [slow])
    queue = RedisQueue.at(dsn, name=name, idle=0.4)
    async with engine, QueueHandler(engine, enqueue=queue.enqueue, contention=0.1, lease=1.0) as handler:
        await queue.run(handler)

asyncio.run(main())
"""


async def test_what_a_consumer_had_that_was_killed_is_taken_over(
    on_disk: Stage, broker: Broker, tmp_path: Path
) -> None:
    @workflow("redis.slow.v1")
    async def slow(ctx: Context, path: str) -> str:
        raise NotImplementedError("the processes have the code")

    ledger = tmp_path / "ledger"
    engine = on_disk.engine(slow)
    run = await engine.start(slow(str(ledger)))
    await broker.queue.enqueue(QueueMessage(run_id=run.id, enqueued_at=1 << 50))
    command = [sys.executable, "-c", CONSUMER, on_disk.url, broker.server.dsn, broker.name]
    first = await asyncio.create_subprocess_exec(*command)
    try:
        # A file is there before anything is written into it.
        await eventually(lambda: ledger.exists() and "begun" in ledger.read_text())
        first.kill()
        await first.wait()
        second = await asyncio.create_subprocess_exec(*command)
        try:
            await eventually(lambda: ledger.read_text().count("begun") == 2)
            (tmp_path / "ledger.go").touch()
            assert await run.result("60s") == "done"
            await eventually(broker.is_empty)
        finally:
            second.kill()
            await second.wait()
    finally:
        if first.returncode is None:
            first.kill()
            await first.wait()


@pytest.fixture(params=["file", "postgres", "mysql"] if WHOLE else ["file"])
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


async def test_a_broker_that_is_killed_in_the_middle_of_a_batch_loses_nothing(
    place: Stage, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """Every run is worked on to its end, whatever was under way when the server died."""
    engine = place.engine(tree, leaf)
    count = 100 if WHOLE else 20
    runs = [await engine.start(tree(0.01 * number)) for number in range(count)]
    for run in runs:
        await broker.queue.enqueue(QueueMessage(run_id=run.id, enqueued_at=1 << 50))
    async with broker.consuming(engine):
        for share in (0.2, 0.5, 0.8) if WHOLE else (0.3,):

            async def has_come(share: float = share) -> bool:
                return sum([(await run.status()).finished for run in runs]) >= share * count

            await eventually(has_come)
            noticed = caplog.text.count("queue consumer failed")

            def is_missed(before: int = noticed) -> bool:
                return caplog.text.count("queue consumer failed") > before

            broker.server.kill()
            await eventually(is_missed)
            broker.server.start()

        async def finished() -> bool:
            # What the broker did not take from the announcer while it was away is found by looking.
            try:
                await handler_due()
            except redis.exceptions.RedisError:
                return False
            return all([(await run.status()).finished for run in runs])

        async def handler_due() -> None:
            for run_id in await pusher_of(engine).due():
                await broker.queue.enqueue(QueueMessage(run_id=run_id, enqueued_at=1 << 50))

        await eventually(finished, within=60)
        assert [await run.result() for run in runs] == [3] * count
        await eventually(broker.is_empty)
    assert "Traceback" not in caplog.text, "an outage is no bug"


async def test_a_queue_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(UsageError, match=r"pip install 'perdure\[redis\]'"):
        RedisQueue.at("redis://localhost")
