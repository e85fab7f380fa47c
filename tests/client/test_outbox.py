"""Events reach their subscriptions at least once, in order for each key; the rest is what runs can do anyway."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import defaultdict
from contextlib import closing
from typing import Any

import pytest

from perdure import Context, Engine, Retry, Status, workflow
from perdure.errors import BadArguments, DecodeError, EncodeError, InvalidId, RunExists, RunNotFound, UsageError
from perdure.machine import Actions, StateMachine
from perdure.outbox import CloudEvent, Subscription
from perdure.push import Pusher
from perdure.testing import Environment
from tests.helpers import eventually
from tests.stage import Stage


@workflow("outbox.order.v1")
async def order(ctx: Context, number: int, events: int) -> str:
    for index in range(events):
        ctx.publish_event(
            "order.changed", {"order": number, "index": index}, key=f"order-{number}", subject=str(number)
        )
    await ctx.step(pay)
    return ctx.publish_event("order.paid", number, key=f"order-{number}", source="/shop")


def pay() -> None: ...


class Receiver:
    """A subscription that keeps what it gets, and fails as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.got: list[CloudEvent] = []
        self.failures = failures

    async def __call__(self, event: CloudEvent) -> None:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the receiver is away")
        self.got.append(event)

    def by_key(self) -> dict[str | None, list[Any]]:
        found: dict[str | None, list[Any]] = defaultdict(list)
        for event in self.got:
            found[event.partitionkey].append(event.data)
        return dict(found)


async def until_got(receiver: Receiver, count: int) -> None:
    await eventually(lambda: len(receiver.got) >= count, saying=f"{count} events, not {len(receiver.got)}")


async def test_events_of_a_workflow_arrive_in_order_for_each_key(stage: Stage) -> None:
    receiver, other = Receiver(), Receiver()
    outbox = [Subscription("all", receiver), Subscription("paid", other, events=["order.paid", "x.%"])]
    engine = stage.engine(order, outbox=outbox)
    async with engine.worker():
        runs = [await engine.start(order(number, 12), id=f"o-{number}") for number in range(3)]
        ids = [await run.result() for run in runs]
        await until_got(receiver, 39)
        await until_got(other, 3)
    changed = {f"order-{number}": [{"order": number, "index": index} for index in range(12)] for number in range(3)}
    assert receiver.by_key() == {key: [*events, int(key[-1])] for key, events in changed.items()}
    assert sorted(event.id for event in other.got) == sorted(ids)
    paid = min(other.got, key=lambda event: event.id)
    assert (paid.type, paid.source, paid.subject, paid.specversion) == ("order.paid", "/shop", None, "1.0")
    assert paid.time is not None
    assert [event.subject for event in receiver.got if event.type == "order.changed"].count("1") == 12


class Machine(StateMachine[int, str], type="outbox.machine.v1"):
    def on_start(self, input: int) -> Actions:
        return [self.publish_event("begun", {"input": input}, key="m", id="begun-1"), self.complete("done")]


async def test_a_state_machine_publishes_events(on_disk: Stage) -> None:
    engine = on_disk.engine(Machine)
    async with engine.worker():
        assert await (await engine.start(Machine.call(5))).result() == "done"
    [found] = (await engine.outbox.list(key="m")).events
    assert (found.event.id, found.event.type, found.event.data) == ("begun-1", "begun", {"input": 5})


async def test_an_event_is_published_with_the_turn_and_not_by_replay(stage: Stage) -> None:
    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order(1, 2), id="o-1")
        await run.result()
    async with engine.worker():
        page = await engine.outbox.list()
    assert [one.event.type for one in page.events] == ["order.paid", "order.changed", "order.changed"]
    assert {one.status for one in page.events} <= {Status.PENDING, Status.WAITING}
    turns = await stage.rows("SELECT COUNT(*) FROM perdure_runs WHERE type = 'perdure.event.v1'")
    assert turns == [(3,)]


async def test_an_event_without_a_subscription_here_waits_for_one(stage: Stage) -> None:
    engine = stage.engine(order)
    event_id = await engine.outbox.publish("order.paid", 1)
    receiver = Receiver()
    published = await engine.outbox.get(event_id)
    assert (published.status, published.deliveries) == (Status.PENDING, ())
    if stage.url == "sqlite://":
        return
    async with stage.engine(outbox=[Subscription("late", receiver)]).worker():
        await until_got(receiver, 1)
    assert [event.id for event in receiver.got] == [event_id]


async def test_a_failing_subscription_delays_its_own_key_and_nothing_else(on_disk: Stage) -> None:
    down, up = Receiver(failures=4), Receiver()
    retry = Retry.fixed("10ms", attempts=9)
    engine = on_disk.engine(outbox=[Subscription("down", down, retry=retry), Subscription("up", up)])
    for index in range(3):
        await engine.outbox.publish("tick", index, key="a")
    async with engine.worker():
        await until_got(up, 3)
        await until_got(down, 3)
    assert [event.data for event in down.got] == [0, 1, 2] == [event.data for event in up.got]


async def test_a_dead_letter_lets_the_next_event_pass_and_can_be_retried(on_disk: Stage) -> None:
    receiver = Receiver(failures=2)
    engine = on_disk.engine(outbox=[Subscription("hook", receiver, retry=Retry.fixed("1ms", attempts=2))])
    ids = [await engine.outbox.publish("tick", index, key="a", id=f"tick-{index}") for index in range(3)]
    async with engine.worker():
        await until_got(receiver, 2)
        assert [event.data for event in receiver.got] == [1, 2]
        [letter] = (await engine.dead_letters.list(type="perdure.delivery.hook")).letters
        [delivery] = await engine.outbox.deliveries("tick-0")
        assert (letter.run_id, delivery.status) == (delivery.id, Status.FAILED)
        assert (await engine.dead_letters.retry(where={"type": "perdure.delivery.%"})).done == (letter.run_id,)
        await until_got(receiver, 3)
    assert [event.id for event in receiver.got] == [*ids[1:], ids[0]]


async def test_replay_delivers_the_same_event_again(on_disk: Stage) -> None:
    first, second = Receiver(), Receiver()
    engine = on_disk.engine(outbox=[Subscription("first", first), Subscription("second", second)])
    async with engine.worker():
        ids = [await engine.outbox.publish("tick", index, key="a") for index in range(2)]
        await until_got(first, 2)
        await until_got(second, 2)
        await engine.outbox.replay(ids, to="second")
        await until_got(second, 4)
        await engine.outbox.replay(ids[0])
        await until_got(first, 3)
        await until_got(second, 5)
    assert first.got == [*second.got[:2], second.got[4]]
    assert second.got[:2] == second.got[2:4]


async def test_an_id_publishes_once_and_collides_with_no_run(on_disk: Stage) -> None:
    receiver = Receiver()
    engine = on_disk.engine(order, outbox=[Subscription("hook", receiver)])
    await engine.start(order(1, 0), id="same")
    assert await engine.outbox.publish("tick", 1, id="same") == "same"
    assert await engine.outbox.publish("tick", 1, id="same") == "same"
    with pytest.raises(RunExists):
        await engine.outbox.publish("tick", 2, id="same")
    async with engine.worker():
        await until_got(receiver, 2)
    assert sorted(event.type for event in receiver.got) == ["order.paid", "tick"]


async def test_an_event_is_part_of_the_users_transaction(on_disk: Stage) -> None:
    engine = on_disk.engine(outbox=[Subscription("hook", Receiver())])
    await engine.open()
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection:
        connection.execute("CREATE TABLE orders (number INTEGER)")
        await engine.outbox.publish("tick", 1, key="a", connection=connection)
        connection.rollback()
        assert (await engine.outbox.list()).events == ()
        await engine.outbox.publish("tick", 2, key="a", connection=connection)
        connection.commit()
    assert [one.event.data for one in (await engine.outbox.list()).events] == [2]


async def test_a_damaged_event_is_listed_and_hides_no_other(on_disk: Stage) -> None:
    engine = on_disk.engine()
    event_id = await engine.outbox.publish("tick", 1)
    await engine.outbox.publish("tick", 2)
    assert on_disk.path is not None
    with closing(sqlite3.connect(on_disk.path)) as connection:
        connection.execute("UPDATE perdure_runs SET input = '{}' WHERE id = ?", (event_id,))
        connection.commit()
    assert [one.event.data for one in (await engine.outbox.list()).events] == [2, None]
    with pytest.raises(DecodeError, match="is no event"):
        await engine.outbox.replay(event_id)
    wrong: Any = 5
    with pytest.raises(UsageError):
        await engine.outbox.list(type=wrong)


async def test_the_deploy_check_knows_deliveries_and_misses_subscriptions(on_disk: Stage) -> None:
    receiver = Receiver(failures=1)
    engine = on_disk.engine(order, outbox=[Subscription("hook", receiver, retry=Retry.fixed("1h"))])
    await engine.outbox.publish("tick")
    async with engine.worker():
        await eventually(lambda: receiver.failures == 0)
    for outbox, findings in (([Subscription("hook", receiver)], 0), ([], 0), ([Subscription("hock", receiver)], 1)):
        checked = await on_disk.engine(order, outbox=outbox).check()
        assert len(checked.findings) == findings


async def test_a_pusher_delivers_events_too(on_disk: Stage) -> None:
    receiver = Receiver()
    engine = on_disk.engine(outbox=[Subscription("hook", receiver)])
    event_id = await engine.outbox.publish("tick")
    pusher = Pusher(engine)
    for _ in range(2):
        [due] = await pusher.due()
        await pusher.execute(due)
    assert [event.id for event in receiver.got] == [event_id]


async def test_listing_filters_by_type_and_key_and_goes_on(on_disk: Stage) -> None:
    engine = on_disk.engine()
    for index in range(5):
        await engine.outbox.publish("order.paid" if index % 2 else "order.made", index, key=f"k{index % 2}")
    page = await engine.outbox.list(limit=2)
    rest = await engine.outbox.list(limit=9, cursor=page.cursor)
    assert [one.event.data for one in (*page.events, *rest.events)] == [4, 3, 2, 1, 0]
    assert [one.event.data for one in (await engine.outbox.list(type="order.paid")).events] == [3, 1]
    assert len((await engine.outbox.list(type="order.%", key="k0")).events) == 3
    assert (await engine.outbox.list(type="%", key="k2")).events == ()


async def test_sources_select_events_and_a_plain_function_runs_in_a_thread(on_disk: Stage) -> None:
    got: list[str] = []
    hook = Subscription("hook", lambda event: got.append(event.source), sources="/shop/%")
    engine = on_disk.engine(outbox=[hook])
    async with engine.worker():
        for source in ("/shop/a", "/bank", "/shop/b"):
            await engine.outbox.publish("tick", source=source)
        await eventually(lambda: len(got) == 2)
    assert sorted(got) == ["/shop/a", "/shop/b"]


async def test_the_awaitable_of_a_plain_function_is_awaited(on_disk: Stage) -> None:
    receiver = Receiver()

    def deliver(event: CloudEvent) -> Any:
        return receiver(event)

    engine = on_disk.engine(outbox=[Subscription("hook", deliver)])
    async with engine.worker():
        await engine.outbox.publish("tick")
        await until_got(receiver, 1)


async def test_an_environment_delivers_events_by_its_own_clock() -> None:
    receiver = Receiver(failures=3)
    async with Environment([order], outbox=[Subscription("hook", receiver)], strict=True) as env:
        run = await env.engine.start(order(1, 2))
        await run.result()
        await env.advance("1h")
        assert receiver.by_key() == {"order-1": [{"order": 1, "index": 0}, {"order": 1, "index": 1}, 1]}


async def test_wrong_subscriptions_and_events_are_refused(on_disk: Stage) -> None:
    receiver = Receiver()
    hook = Subscription("hook", receiver)
    assert repr(hook) == "<subscription hook>"
    wrong: Any = "hook"
    with pytest.raises(UsageError, match="function that takes an event"):
        Subscription("hook", wrong)
    with pytest.raises(BadArguments, match="the key of an event decides the order"):
        Subscription("hook", receiver, singleton=None)
    with pytest.raises(UsageError, match="two subscriptions have the name 'hook'"):
        Engine("sqlite://", outbox=[hook, Subscription("hook", receiver)])
    with pytest.raises(UsageError, match="give a Subscription or a Webhook"):
        Engine("sqlite://", outbox=[wrong])
    with pytest.raises(UsageError, match="leave it out, or give it to the engine of the server"):
        Engine("http://localhost:1", outbox=[hook])
    engine = on_disk.engine(order, outbox=[hook])
    with pytest.raises(InvalidId):
        await engine.outbox.publish("")
    with pytest.raises(EncodeError):
        await engine.outbox.publish("tick", object())
    with pytest.raises(RunNotFound):
        await engine.outbox.get("unknown")
    run = await engine.start(order(1, 0), id="o")
    with pytest.raises(UsageError, match="no published event"):
        await engine.outbox.replay(run.id)


async def test_a_replay_for_an_unknown_subscription_says_so(on_disk: Stage) -> None:
    engine = on_disk.engine(outbox=[Subscription("hook", Receiver())])
    event_id = await engine.outbox.publish("tick")
    [again] = await engine.outbox.replay(event_id, to="hock")
    async with engine.worker():
        run = await engine.get(again)
        await eventually(lambda: _explained(run))


async def _explained(run: Any) -> bool:
    return "which this engine does not have" in await run.why()


def test_code_that_is_not_async_publishes_too(on_disk_url: str) -> None:
    receiver = Receiver()
    with Engine(on_disk_url, outbox=[Subscription("hook", receiver)]).blocking() as engine, engine.worker():
        event_id = engine.outbox.publish("tick", 1)
        asyncio.run(until_got(receiver, 1))
        assert engine.outbox.get(event_id).event == receiver.got[0]


@pytest.fixture
def on_disk_url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'runs.db'}"
