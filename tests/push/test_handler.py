from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure import (
    Context,
    Handle,
    Retry,
    RunFailed,
    Status,
    StoreUnavailable,
    UsageError,
    activity,
    credentials,
    workflow,
)
from perdure.errors import DecodeError, Undeliverable
from perdure.push import Announcer, MessageOutcome, MessageResult, QueueHandler, QueueMessage
from tests.helpers import eventually
from tests.push.pushers import pusher_of
from tests.stage import Stage
from tests.worker.damage import damage

HOUR = 3_600_000


def now() -> int:
    return time.time_ns() // 1_000_000


def body(run_id: str, *, age: int = 0, retries: int = 0, **more: object) -> bytes:
    message = {"run_id": run_id, "retry_count": retries, "enqueued_at": now() - age, "authorization": "ref"}
    return json.dumps({**message, **more}).encode()


async def grow_old(stage: Stage, run: Handle[Any], *, hours: int) -> None:
    """Make a run one that has been ready for so long, by the database."""
    since = (now() - hours * HOUR) * 1000
    await damage(stage, "UPDATE perdure_runs SET wake_at = :since WHERE id = :id", since=since, id=run.id)


class Delivered:
    """A message of a broker that remembers what it was told."""

    def __init__(self, body: bytes) -> None:
        self.body: bytes | str = body
        self.told: list[str] = []

    async def ack(self, answer: MessageResult) -> None:
        self.told.append(f"ack {answer.outcome}")

    async def retry(self, answer: MessageResult) -> None:
        self.told.append(f"retry {answer.outcome}")


class Broken(Delivered):
    async def ack(self, answer: MessageResult) -> None:
        raise ConnectionError("the broker is gone")


class Memory:
    """A queue."""

    def __init__(self) -> None:
        self.messages: list[tuple[QueueMessage, float]] = []

    async def enqueue(self, message: QueueMessage, delay: float) -> None:
        self.messages.append((message, delay))

    def take(self) -> list[bytes]:
        taken, self.messages = self.messages, []
        return [message.encode() for message, _ in taken]


@workflow("push.greeting.v1")
async def greeting(ctx: Context, name: str) -> str:
    return await ctx.step(greet, name)


def greet(name: str) -> str:
    return f"hello {name}"


@workflow("push.held.v1")
async def held(ctx: Context) -> str:
    return await ctx.receive("never", str)


@workflow("push.later.v1")
async def later(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "later"


@activity("push.leaf.v1")
async def leaf(number: int) -> int:
    return number


@workflow("push.tree.v1")
async def tree(ctx: Context) -> int:
    return sum([await ctx.call(leaf(number)) for number in range(3)])


async def test_every_message_of_a_batch_gets_its_own_right_answer(stage: Stage) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        entered.set()
        await go_on.wait()
        return "held"

    @workflow("push.holding.v1")
    async def holding(ctx: Context) -> str:
        return await ctx.step(hold)

    engine, other = stage.engine(greeting, holding), stage.engine(holding)
    fresh, twice, old, done, elsewhere = [
        await engine.start(call, id=id)
        for id, call in {
            "fresh": greeting("a"), "twice": greeting("b"), "old": greeting("c"), "done": greeting("d"),
            "held": holding(),
        }.items()
    ]  # fmt: skip
    await pusher_of(engine).execute(done.id)
    before = await done.events()
    async with other.worker(), QueueHandler(engine) as handler:
        await entered.wait()
        await grow_old(stage, old, hours=25)
        batch = {
            "poisoned": Delivered(b'{"run_id": "fresh", "retry_count": -1}'),
            "fresh": Delivered(body(fresh.id)),
            "twice": Delivered(body(twice.id)),
            "duplicate": Delivered(body(twice.id)),
            "stale": Delivered(body(old.id, age=25 * HOUR)),
            "finished": Delivered(body(done.id)),
            "held": Delivered(body(elsewhere.id, retries=3)),
        }
        answers = dict(zip(batch, await handler.handle(batch.values()), strict=True))
        assert {name: delivered.told for name, delivered in batch.items()} == {
            "poisoned": ["ack malformed"],
            "fresh": ["ack finished"],
            "twice": ["ack finished"],
            "duplicate": ["ack finished"],
            "stale": ["ack expired"],
            "finished": ["ack finished"],
            "held": ["retry held"],
        }
        assert "not a queue message" in answers["poisoned"].detail
        # Contention is not the message's fault: it comes again soon, and nothing is counted.
        assert 0 < answers["held"].delay <= 3
        assert QueueMessage.decode(answers["held"].body).retry_count == 3
        go_on.set()
        assert await elsewhere.result("60s") == "held"
    assert await fresh.result() == "hello a"
    assert [event.kind for event in await twice.events()] == ["created", "started", "completed"]
    assert await done.events() == before
    with pytest.raises(RunFailed, match=r"Expired.*waited in a queue for 25\.0 hours"):
        await old.result()
    assert [event.kind for event in await old.events()] == ["created", "started", "timed_out", "failed"]


async def test_a_message_that_keeps_failing_fails_its_run_in_the_end(stage: Stage) -> None:
    async def no_credentials(message: QueueMessage) -> Mapping[str, Any]:
        raise PermissionError("the token has expired")

    engine = stage.engine(greeting)
    run = await engine.start(greeting("you"))
    async with QueueHandler(engine, credentials=no_credentials) as handler:
        answer = await handler.answer(body(run.id))
        delays = []
        while not answer.ack:
            assert answer.outcome is MessageOutcome.FAILED
            delays.append(answer.delay)
            answer = await handler.answer(answer.body)
    # 2, 4, 8… seconds and 1 to 3 more, up to five minutes.
    assert len(delays) == 10
    assert 3 <= delays[0] <= 5
    assert delays[-1] == 300
    assert (answer.outcome, answer.status) == (MessageOutcome.GIVEN_UP, Status.FAILED)
    with pytest.raises(RunFailed, match="given up after 10 retries.*PermissionError: the token has expired") as failed:
        await run.result()
    assert isinstance(failed.value.__cause__, Undeliverable)


async def test_what_one_message_raises_is_its_own(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async def some(message: QueueMessage) -> Mapping[str, Any]:
        if message.authorization == "bad":
            raise SystemError("out of keys")
        return {"key": message.authorization}

    engine = on_disk.engine(greeting)
    runs = [await engine.start(greeting(str(number))) for number in range(3)]
    deliveries = [
        Delivered(body(runs[0].id)),
        Broken(body(runs[1].id)),
        Delivered(body(runs[2].id, authorization="bad")),
        Delivered(body("missing")),
        Delivered(b""),
    ]
    async with QueueHandler(engine, credentials=some, concurrency=2) as handler:
        answers = await handler.handle(deliveries)
    assert [answer.outcome for answer in answers] == [
        MessageOutcome.FINISHED, MessageOutcome.FINISHED, MessageOutcome.FAILED, MessageOutcome.UNKNOWN,
        MessageOutcome.MALFORMED,
    ]  # fmt: skip
    assert [delivery.told for delivery in deliveries] == [
        ["ack finished"], [], ["retry failed"], ["retry unknown"], ["ack malformed"],
    ]  # fmt: skip
    assert await runs[1].status() is Status.COMPLETED
    said = "\n".join(record.getMessage() for record in caplog.records)
    assert "did not reach the queue: the broker is gone" in said
    assert "message_malformed" in said


async def test_a_run_that_is_not_there_yet_is_waited_for_and_given_up(on_disk: Stage) -> None:
    engine = on_disk.engine(greeting)
    async with QueueHandler(engine, max_retries=2) as handler:
        answer = await handler.answer(body("soon"))
        assert (answer.ack, answer.outcome) == (False, MessageOutcome.UNKNOWN)
        await engine.start(greeting("you"), id="soon")
        assert (await handler.answer(answer.body)).outcome is MessageOutcome.FINISHED
        answer = await handler.answer(body("never", retries=2))
        assert (answer.ack, answer.outcome, answer.status) == (True, MessageOutcome.GIVEN_UP, None)


async def test_a_stale_message_of_a_run_that_has_gone_on_harms_no_run(stage: Stage) -> None:
    engine = stage.engine(held, later)
    talking, sleeping = await engine.start(held()), await engine.start(later(0), at="1h")
    async with QueueHandler(engine) as handler:
        await handler.answer(body(talking.id))
        assert (await handler.answer(body(talking.id, age=48 * HOUR))).outcome is MessageOutcome.WAITING
        await talking.send("never", "ever")
        # Ready since a moment ago: the message that it has waited for is another one.
        assert (await handler.answer(body(talking.id, age=48 * HOUR))).outcome is MessageOutcome.FINISHED
        waits = await handler.answer(body(sleeping.id, age=48 * HOUR))
    assert (waits.ack, waits.outcome, waits.status) == (False, MessageOutcome.WAITING, Status.WAITING)
    assert await talking.result() == "ever"


async def test_no_field_of_a_message_fails_a_run_whose_delivery_does_not_fail(stage: Stage) -> None:
    engine = stage.engine(greeting, held)
    forged: list[dict[str, Any]] = [
        {"retries": 999},
        {"age": 480 * HOUR},
        {"retries": 2**53 - 1, "age": now()},
        {"retries": 11, "generation": 7},
        {"step_index": -1, "retries": 10},
    ]
    async with QueueHandler(engine) as handler:
        for fields in forged:
            run, waits = await engine.start(greeting("you")), await engine.start(held())
            assert (await handler.answer(body(run.id, **fields))).outcome is MessageOutcome.FINISHED
            assert await run.result() == "hello you"
            assert (await handler.answer(body(waits.id, **fields))).outcome is MessageOutcome.WAITING
            assert await waits.status() is Status.WAITING


async def test_retries_of_an_earlier_generation_do_not_count(stage: Stage) -> None:
    async def no_credentials(message: QueueMessage) -> Mapping[str, Any]:
        raise PermissionError("the token has expired")

    engine = stage.engine(greeting)
    run = await engine.start(greeting("you"))
    async with QueueHandler(engine, credentials=no_credentials, max_retries=1) as handler:
        late = await handler.answer(body(run.id))
        assert QueueMessage.decode(late.body).generation == (await run.info()).generation
        assert (await handler.answer(late.body)).outcome is MessageOutcome.GIVEN_UP
        await run.retry()
        # A copy of the message that failed the run comes once more.
        again = await handler.answer(late.body)
        assert (again.ack, again.outcome) == (False, MessageOutcome.FAILED)
        assert QueueMessage.decode(again.body).retry_count == 1
        assert await run.status() is Status.PENDING
        assert (await handler.answer(again.body)).outcome is MessageOutcome.GIVEN_UP


async def test_a_message_never_grows_too_old_if_that_is_wanted(on_disk: Stage) -> None:
    engine = on_disk.engine(greeting)
    run = await engine.start(greeting("you"))
    async with QueueHandler(engine, stale_after=None) as handler:
        assert (await handler.answer(body(run.id, age=480 * HOUR))).outcome is MessageOutcome.FINISHED


async def test_a_run_that_waits_for_a_time_is_asked_for_then(stage: Stage) -> None:
    engine = stage.engine(later)
    # Far enough away that no machine is so busy that it has come before the answer.
    run = await engine.start(later(3600))
    async with QueueHandler(engine) as handler:
        answer = await handler.answer(body(run.id, retries=4))
        assert (answer.ack, answer.outcome) == (False, MessageOutcome.WAITING)
        assert 3500 < answer.delay <= 3600
        message = QueueMessage.decode(answer.body)
        # A message of its own, which begins to age when it is due.
        assert (message.run_id, message.retry_count, message.authorization) == (run.id, 0, "ref")
        await run.wake()
        await eventually(pusher_of(engine).due)
        assert (await handler.answer(answer.body)).outcome is MessageOutcome.FINISHED
    far = await engine.start(later(10**6))
    queue = Memory()
    async with QueueHandler(engine, enqueue=queue.enqueue, longest_delay="15m") as handler:
        assert (await handler.answer(body(far.id))).ack
        [(message, delay)] = queue.messages
        assert (message.run_id, delay) == (far.id, 900)
        assert message.enqueued_at == pytest.approx(now() + 900_000, abs=10_000)


async def test_a_queue_alone_takes_a_tree_of_runs_to_its_end(stage: Stage) -> None:
    engine, queue = stage.engine(tree, leaf), Memory()
    async with QueueHandler(engine, enqueue=queue.enqueue) as handler:
        run = await engine.start(tree())

        async def moved() -> bool:
            return bool(queue.messages) or (await run.status()).finished

        while not (await run.status()).finished:
            await eventually(moved)
            answers = await handler.handle(queue.take())
            assert all(answer.ack for answer in answers)
        assert await run.result() == 3


async def test_a_writer_tells_the_queue_what_became_ready(on_disk: Stage) -> None:
    engine, queue = on_disk.engine(held), Memory()
    async with Announcer(engine, queue.enqueue):
        run = await engine.start(held())
    assert [message.run_id for message, _ in queue.messages] == [run.id]
    async with QueueHandler(engine) as handler:
        await handler.handle(queue.take())
        async with Announcer(engine, queue.enqueue):
            await run.send("never", "said")
        assert [message.run_id for message, _ in queue.messages] == [run.id]
        await handler.handle(queue.take())
    assert await run.result() == "said"


async def test_what_was_never_enqueued_is_found_by_looking(stage: Stage) -> None:
    engine, queue = stage.engine(greeting), Memory()
    runs = [await engine.start(greeting(str(number))) for number in range(3)]
    async with QueueHandler(engine, enqueue=queue.enqueue) as handler:
        assert await handler.due(limit=2) == [runs[0].id, runs[1].id]
        await handler.handle(queue.take())
        assert await handler.due() == [runs[2].id]
    async with QueueHandler(engine) as handler:
        assert await handler.due() == [runs[2].id]


async def test_an_execution_that_takes_too_long_is_counted_unless_it_got_on(on_disk: Stage) -> None:
    calls: list[str] = []

    async def quick() -> None:
        calls.append("quick")

    async def slow() -> None:
        calls.append("slow")
        await asyncio.Event().wait()

    @workflow("push.dawdling.v1")
    async def dawdling(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(slow)

    engine = on_disk.engine(dawdling)
    run = await engine.start(dawdling())
    # Long enough for the slow step to begin on a busy machine.
    async with QueueHandler(engine, timeout=2.0, max_retries=1) as handler:
        first = await handler.answer(body(run.id, retries=1))
        assert (first.outcome, first.delay, QueueMessage.decode(first.body).retry_count) == (
            MessageOutcome.INTERRUPTED,
            0.0,
            0,
        )
        second = await handler.answer(first.body)
        assert (second.outcome, QueueMessage.decode(second.body).retry_count) == (MessageOutcome.INTERRUPTED, 1)
        third = await handler.answer(second.body)
    assert (third.ack, third.outcome, third.status) == (True, MessageOutcome.GIVEN_UP, Status.FAILED)
    assert calls == ["quick", "slow", "slow", "slow"]


async def test_a_run_that_is_set_aside_or_paused_is_no_reason_to_come_again(on_disk: Stage) -> None:
    engine = on_disk.engine(greeting)
    run = await engine.start(greeting("you"))
    async with QueueHandler(engine) as handler:
        await engine.queues.pause(type=greeting.type)
        assert (await handler.answer(body(run.id))).outcome is MessageOutcome.PAUSED
        await engine.queues.resume(type=greeting.type)
        await run.pause()
        assert (await handler.answer(body(run.id))).outcome is MessageOutcome.WAITING
        await run.resume()
        assert (await handler.answer(body(run.id))).outcome is MessageOutcome.FINISHED


async def test_a_database_that_is_away_is_no_fault_of_a_run(on_disk: Stage) -> None:
    engine = on_disk.engine(greeting)
    run = await engine.start(greeting("you"))
    handler = QueueHandler(engine)

    class Away:
        async def get(self, run_id: str) -> None:
            raise StoreUnavailable("gone for lunch")

    there, engine._session.store = engine._session.store, Away()  # type: ignore[assignment]  # a database that cannot be reached
    answers = await handler.handle([body(run.id, retries=10)])
    engine._session.store = there
    [answer] = answers
    assert (answer.ack, answer.outcome, answer.detail) == (False, MessageOutcome.UNAVAILABLE, "gone for lunch")
    assert QueueMessage.decode(answer.body).retry_count == 10
    assert (await handler.answer(answer.body)).outcome is MessageOutcome.FINISHED
    await handler.stop()


async def test_a_queue_that_is_away_is_no_fault_of_a_run_either(on_disk: Stage) -> None:
    async def enqueue(message: QueueMessage, delay: float) -> None:
        if message.run_id == run.id and delay:
            raise ConnectionError("gone for lunch")

    engine = on_disk.engine(later)
    run = await engine.start(later(3600))
    async with QueueHandler(engine, enqueue=enqueue) as handler:
        answer = await handler.answer(body(run.id, retries=10))
    assert (answer.ack, answer.outcome, "gone for lunch" in answer.detail) == (False, MessageOutcome.UNAVAILABLE, True)
    assert QueueMessage.decode(answer.body).retry_count == 10
    assert await run.status() is Status.WAITING


async def test_a_workflow_of_another_service_is_left_to_it(on_disk: Stage, caplog: pytest.LogCaptureFixture) -> None:
    engine, other = on_disk.engine(greeting), on_disk.engine(held)
    run = await other.start(held())
    async with QueueHandler(engine, max_retries=0) as handler:
        answer = await handler.answer(body(run.id))
    assert (answer.ack, answer.outcome) == (True, MessageOutcome.GIVEN_UP)
    assert await run.status() is Status.PENDING
    assert "none of this engine's workflows" in caplog.text


async def test_credentials_are_resolved_when_they_are_needed(on_disk: Stage) -> None:
    issued = iter(["first", "second"])
    used: list[object] = []

    async def resolve(message: QueueMessage) -> Mapping[str, Any]:
        return {"token": f"{message.authorization}:{next(issued)}"}

    def use() -> None:
        used.append(credentials()["token"])

    @workflow("push.using.v1")
    async def using(ctx: Context) -> None:
        await ctx.step(use)
        await ctx.receive("go")
        await ctx.step(use)

    engine = on_disk.engine(using)
    run = await engine.start(using())
    async with QueueHandler(engine, credentials=resolve) as handler:
        await handler.answer(body(run.id))
        await run.send("go")
        await handler.answer(body(run.id))
    assert used == ["ref:first", "ref:second"]
    assert "first" not in repr(await on_disk.dump())


async def test_a_step_that_fails_is_tried_again_by_its_own_policy(on_disk: Stage) -> None:
    calls: list[int] = []

    async def flaky() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise ConnectionError("not yet")
        return "at last"

    @workflow("push.flaky.v1")
    async def trying(ctx: Context) -> str:
        return await ctx.options(retry=Retry.fixed(0.3)).step(flaky)

    engine = on_disk.engine(trying)
    run = await engine.start(trying())
    async with QueueHandler(engine) as handler:
        answer = await handler.answer(body(run.id))
        while not answer.ack:
            assert (answer.outcome, QueueMessage.decode(answer.body).retry_count) == (MessageOutcome.WAITING, 0)
            await eventually(pusher_of(engine).due)
            answer = await handler.answer(answer.body)
    assert await run.result() == "at last"


def test_a_message_travels_as_it_is_described() -> None:
    message = QueueMessage(run_id="r1", retry_count=2, enqueued_at=1_700_000_000_000, authorization="ref")
    assert json.loads(message.encode()) == {
        "run_id": "r1",
        "retry_count": 2,
        "enqueued_at": 1_700_000_000_000,
        "authorization": "ref",
    }
    assert QueueMessage.decode(message.encode()) == message
    # Of those who know which step it is; we know better.
    assert QueueMessage.decode(body("r1", stepIndex=3)).step_index == 3


def test_the_names_of_other_systems_are_understood() -> None:
    theirs = b'{"executionId": "r1", "retryCount": 2, "enqueuedAt": 7, "stepIndex": 3}'
    assert QueueMessage.decode(theirs) == QueueMessage(run_id="r1", retry_count=2, enqueued_at=7, step_index=3)


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "17", '"r1"', "{", '{"run_id": "r1"}', '{"run_id": "", "enqueued_at": 1}',
        '{"run_id": "r1", "enqueued_at": "1"}', '{"run_id": "r1", "enqueued_at": 1.5}',
        '{"run_id": "r1", "enqueued_at": -1}', '{"run_id": "r1", "enqueued_at": 1, "retry_count": -1}',
        '{"run_id": "r1", "enqueued_at": 1, "retry_count": true}', '{"run_id": 1, "enqueued_at": 1}',
        '{"run_id": "r1", "enqueued_at": 1, "authorization": {}}', '{"run_id": "r1", "enqueued_at": 1, "more": 1}',
        '{"run_id": "r1", "executionId": "r2", "enqueued_at": 1}', '{"run_id": "r1", "run_id": "r2", "enqueued_at": 1}',
        '{"run_id": "r1", "enqueued_at": NaN}', '{"run_id": "r1", "enqueued_at": 1e400}',
        f'{{"run_id": "r1", "enqueued_at": {10**30}}}', f'{{"run_id": "r1", "enqueued_at": {"9" * 5000}}}',
        f'{{"run_id": "r1", "enqueued_at": 1, "retry_count": {2**53}}}',
        '{"run_id": "\\ud800", "enqueued_at": 1}', '\ufeff{"run_id": "r1", "enqueued_at": 1}',
        '{"run_id": "r1", "enqueued_at": 1, "generation": -1}', "[" * 60_000, '{"a":' * 10_000,
        f'{{"run_id": "{"x" * 300}", "enqueued_at": 1}}', f'{{"run_id": "{"x" * 70_000}", "enqueued_at": 1}}',
    ],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_what_is_no_message_is_refused_whole(text: str) -> None:
    with pytest.raises(DecodeError, match="queue message"):
        QueueMessage.decode(text)


def test_a_field_of_a_message_cannot_forge_a_line_of_the_log() -> None:
    with pytest.raises(DecodeError) as refused:
        QueueMessage.decode(json.dumps({"run_id": "r1", "enqueued_at": 1, "\x1b[2J\nERROR": 1}))
    assert "\\x1b[2J\\nERROR" in str(refused.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1"])
def test_a_message_in_another_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(DecodeError, match="queue message"):
        QueueMessage.decode('{"run_id": "\xfc", "enqueued_at": 1}'.encode(encoding))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_no_bytes_do_anything_but_decode_or_be_refused(text: bytes | str) -> None:
    try:
        message = QueueMessage.decode(text)
    except DecodeError as error:
        assert "queue message" in str(error)
    else:
        assert QueueMessage.decode(message.encode()) == message


def test_a_handler_with_no_room_is_refused(on_disk: Stage) -> None:
    with pytest.raises(UsageError, match="concurrency"):
        QueueHandler(on_disk.engine(greeting), concurrency=0)


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
