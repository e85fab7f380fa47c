from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any, Generic, TypeVar

import pytest

from perdure import (
    Call,
    Channel,
    Context,
    Engine,
    Retry,
    RunCancelled,
    RunFailed,
    Status,
    UsageError,
    activity,
    discover,
    workflow,
)
from perdure.admin import RecordKind
from perdure.errors import BadArguments
from perdure.machine import Action, Actions, StateMachine
from perdure.testing import Environment
from tests.stage import Stage, until, until_recorded

decision = Channel("decision", bool)
ping = Channel("ping", int)


@dataclass
class Request:
    who: str
    cents: int


@activity("machine.notify.v1", retry=Retry.never())
async def notify(who: str) -> str:
    if who == "unknown":
        raise LookupError("no such person")
    return f"told {who}"


@activity("machine.sit.v1")
async def sit() -> None:
    await asyncio.Event().wait()


@workflow("machine.pay.v1")
async def pay(ctx: Context, cents: int) -> int:
    if cents > 5000:
        raise ValueError("too much")
    return cents


class Approval(StateMachine[Request, str], type="machine.approval.v1"):
    messages = (decision,)

    def __init__(self) -> None:
        self.reminders = 0
        self.who = ""

    def on_start(self, input: Request) -> list[Action]:
        self.who, self.cents = input.who, input.cents
        return [self.activity("ask", notify(input.who)), self.timer("patience", "1d"), self.publish("state", "asked")]

    def on_timer(self, id: str) -> Actions:
        self.reminders += 1
        if self.reminders == 3:
            return self.complete(f"{self.who} never answered")
        return [self.activity("ask", notify(self.who)), self.timer(id, "1d")]

    def on_message(self, name: str, value: bool) -> Actions:
        assert name == decision.name
        if not value:
            return self.complete(f"refused after {self.reminders} reminders")
        return [self.cancel("patience"), self.child("pay", pay(self.cents)), self.publish("state", "paying")]

    def on_child_completed(self, id: str, result: int) -> Action:
        return self.complete(f"{id}: {result}")


async def machine_of(stage: Stage, one: type[StateMachine[Any, Any]], input: Any = None) -> Any:
    """The result of one machine."""
    engine = stage.engine(one, notify, sit, pay, quick)
    async with engine.worker():
        return await (await engine.start(one.call(input), id="m")).result("20s")


@activity("machine.quick.v1")
def quick(number: int) -> int:
    return number


async def test_a_machine_is_a_workflow_whose_handlers_say_what_to_do(stage: Stage) -> None:
    engine = stage.engine(Approval, notify, pay)
    async with engine.worker():
        run = await engine.start(Approval.call(Request("Ann", 300)), id="a")
        await run.send(decision, True)
        assert await run.result("20s") == "pay: 300"
        history = await run.history()
        assert await run.state("state") == "paying"
    # The machine's own ids are the places in its history, and in the ids of the runs that it starts.
    assert {record.location for record in history if record.kind is RecordKind.CHILD} <= {
        "ask/machine.notify.v1",
        "pay/machine.pay.v1",
    }
    paid = await (await engine.get("a/pay/machine.pay.v1")).info()
    assert (paid.status, paid.parent_id) == (Status.COMPLETED, "a")


async def test_timers_go_off_and_are_set_again_under_the_same_id() -> None:
    async with Environment([Approval, notify, pay]) as env:
        run = await env.start(Approval.call(Request("Bob", 1)), id="b")
        await env.advance("1d")
        await env.advance("1d")
        assert await run.status() is Status.WAITING
        await env.advance("1d")
        assert await run.result() == "Bob never answered"
        ended = [record.location for record in await run.history() if record.kind is RecordKind.TIMER]
    assert ended == ["patience/sleep", "patience#2/sleep", "patience#3/sleep"]


async def test_a_timer_that_was_cancelled_never_goes_off() -> None:
    class Once(StateMachine[None, str], type="machine.once.v1"):
        messages = (ping,)

        def on_start(self, input: None) -> Actions:
            return [self.timer("soon", "1h"), self.timer("at", datetime(2026, 1, 3, tzinfo=UTC))]

        def on_message(self, name: str, value: int) -> Actions:
            return self.cancel("soon")

        def on_timer(self, id: str) -> Actions:
            return self.complete(f"{id} {self.now():%d}")

    async with Environment([Once]) as env:
        run = await env.start(Once.call(None))
        await env.send(run, "ping", 1)
        await env.advance(timedelta(days=5))
        assert await run.result() == "at 03"


async def test_a_machine_rebuilds_itself_from_the_history_in_another_worker(stage: Stage) -> None:
    calls: list[str] = []

    class Counter(StateMachine[int, list[int]], type="machine.counter.v1"):
        messages = (ping,)

        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_start(self, input: int) -> Actions:
            calls.append("start")
            self.wanted = input
            return None

        def on_message(self, name: str, value: int) -> Actions:
            self.seen.append(value)
            return [self.activity(f"q{value}", quick(10 * value))]

        def on_activity_completed(self, id: str, result: int) -> Actions:
            self.seen.append(result)
            return self.complete(self.seen) if len(self.seen) == 2 * self.wanted else None

    engine = stage.engine(Counter, quick)
    run = await engine.start(Counter.call(3), id="c")
    for number in range(3):
        async with engine.worker():
            await run.send(ping, number)
            await until_recorded(run, 2 * number + 2)
            assert len(calls) == number + 1
    assert await run.result("20s") == [0, 0, 1, 10, 2, 20]


async def test_what_an_activity_or_a_child_could_not_do_is_told_with_its_error(stage: Stage) -> None:
    class Careful(StateMachine[None, str], type="machine.careful.v1"):
        def on_start(self, input: None) -> Actions:
            return self.activity("tell", notify("unknown"))

        def on_activity_failed(self, id: str, error: Exception) -> Actions:
            self.said = f"{id}: {type(error).__name__}"
            return self.child("pay", pay(9999))

        def on_child_failed(self, id: str, error: Exception) -> Actions:
            return self.complete(f"{self.said}, {id}: {type(error).__name__}")

    assert await machine_of(stage, Careful) == "tell: LookupError, pay: ValueError"


async def test_a_failure_that_no_handler_takes_is_the_machines(stage: Stage) -> None:
    class Careless(StateMachine[None, str], type="machine.careless.v1"):
        def on_start(self, input: None) -> Actions:
            return self.activity("tell", notify("unknown"))

    with pytest.raises(RunFailed, match="no such person") as caught:
        await machine_of(stage, Careless)
    assert isinstance(caught.value.__cause__, LookupError)


async def test_cancelling_what_is_under_way_is_told_when_it_has_stopped(stage: Stage) -> None:
    class Fickle(StateMachine[None, str], type="machine.fickle.v1"):
        def on_start(self, input: None) -> Actions:
            return [self.activity("sit", sit()), self.activity("q", quick(1))]

        def on_activity_completed(self, id: str, result: int) -> Actions:
            return self.cancel("sit", "changed my mind")

        def on_activity_failed(self, id: str, error: Exception) -> Actions:
            # What the machine itself asked for is no failure, by default.
            assert super().on_activity_failed(id, error) is None
            return self.complete(f"{id} {isinstance(error, RunCancelled)}")

    assert await machine_of(stage, Fickle) == "sit True"


async def test_a_machine_that_is_asked_to_stop_does(stage: Stage) -> None:
    class Patient(StateMachine[None, None], type="machine.patient.v1"):
        def on_start(self, input: None) -> Actions:
            return [self.timer("long", "1h"), self.activity("sit", sit())]

    engine = stage.engine(Patient, sit)
    async with engine.worker():
        run = await engine.start(Patient.call(None), id="p")
        await until(run, Status.WAITING)
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
        # What it had under way is stopped with it.
        await until(await engine.get("p/sit/machine.sit.v1"), Status.CANCELLED)


@pytest.mark.parametrize("back", [False, True])
async def test_a_cancelled_machine_that_completes_ends_cancelled_unless_it_took_that_back(
    stage: Stage, back: bool
) -> None:
    class Stubborn(StateMachine[str, str], type=f"machine.stubborn_{back}.v1"):
        def on_start(self, input: str) -> Actions:
            return self.timer("long", "1h")

        def on_cancel(self, reason: str) -> Actions:
            ending = [self.cancel("long"), self.complete(f"half: {reason}")]
            return [self.uncancel(), *ending] if back else ending

    engine = stage.engine(Stubborn)
    async with engine.worker():
        run = await engine.start(Stubborn.call(""))
        await until(run, Status.WAITING)
        await run.cancel("enough")
        if back:
            assert await run.result("20s") == "half: enough"
        else:
            with pytest.raises(RunCancelled, match="enough") as caught:
                await run.result("20s")
            assert caught.value.partial == "half: enough"


async def test_a_machine_may_clean_up_before_it_stops(stage: Stage) -> None:
    class Tidy(StateMachine[None, None], type="machine.tidy.v1"):
        def __init__(self) -> None:
            self.asked: list[str] = []

        def on_start(self, input: None) -> Actions:
            return self.timer("long", "1h")

        def on_cancel(self, reason: str) -> Actions:
            self.asked.append(reason)
            return self.activity("tidy", quick(1)) if len(self.asked) == 1 else self.cancelled()

        def on_activity_completed(self, id: str, result: int) -> Actions:
            return None

    engine = stage.engine(Tidy, quick)
    run = await engine.start(Tidy.call(None), id="t")
    async with engine.worker():
        await until(run, Status.WAITING)
        await run.cancel("not yet")
        await until_recorded(run, 2)
        assert await run.status() is not Status.CANCELLED
    # Asked again, and of another worker.
    async with engine.worker():
        await run.cancel("enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result("20s")
    done = await (await engine.get("t/tidy/machine.quick.v1")).status()
    assert done is Status.COMPLETED


async def test_messages_that_came_before_it_began_are_told_in_order_and_others_are_left(stage: Stage) -> None:
    class Reader(StateMachine[None, list[Any]], type="machine.reader.v1"):
        messages = (ping, decision)

        def __init__(self) -> None:
            self.read: list[Any] = []

        def on_start(self, input: None) -> Actions:
            return None

        def on_message(self, name: str, value: Any) -> Actions:
            self.read.append([name, value])
            return self.complete(self.read) if len(self.read) == 4 else None

    engine = stage.engine(Reader)
    run = await engine.start(Reader.call(None))
    await run.send(ping, 1)
    await run.send("other", 7)
    await run.send(decision, True)
    await run.send("ping", "no number")
    await run.send(ping, 2)
    await run.send(ping, 3)
    async with engine.worker():
        assert await run.result("20s") == [["ping", 1], ["decision", True], ["ping", 2], ["ping", 3]]


async def test_machines_talk_to_each_other(stage: Stage) -> None:
    class Caller(StateMachine[str, str], type="machine.caller.v1"):
        messages = (ping,)

        def on_start(self, input: str) -> Actions:
            return [self.child("other", Answering.call(self.run_id)), self.timer("no", "1h")]

        def on_message(self, name: str, value: int) -> Actions:
            return self.complete(f"got {value}")

    class Answering(StateMachine[str, None], type="machine.answering.v1"):
        def on_start(self, input: str) -> Actions:
            return [self.send(input, ping, 42), self.complete(None)]

    engine = stage.engine(Caller, Answering)
    async with engine.worker():
        assert await (await engine.start(Caller.call("x"))).result("20s") == "got 42"


async def test_time_chance_and_ids_are_the_same_on_replay(on_disk: Stage) -> None:
    class Chancy(StateMachine[None, list[str]], type="machine.chancy.v1"):
        messages = (ping,)

        def on_start(self, input: None) -> Actions:
            self.drawn = [str(self.random()), str(self.uuid()), self.now().isoformat(), str(self.patched("x"))]
            return self.publish("drawn", self.drawn)

        def on_message(self, name: str, value: int) -> Actions:
            return self.complete([*self.drawn, str(self.version("y", 2))])

    engine = on_disk.engine(Chancy)
    run = await engine.start(Chancy.call(None))
    async with engine.worker():
        await until(run, Status.WAITING)
    drawn = await run.state("drawn")
    async with engine.worker():
        await run.send(ping, 1)
        assert await run.result("20s") == [*drawn, "2"]


REFUSED: dict[str, tuple[Any, str]] = {
    "a duplicate id": (lambda m: [m.timer("x", 1), m.activity("x", quick(1))], "a timer of that id is running"),
    "an unknown id": (lambda m: [m.timer("x", 1), m.cancel("y")], "'y', which is not running; these are: 'x'"),
    "completing twice": (lambda m: [m.complete(1), m.complete(2)], "which is the end"),
    "an action after the end": (lambda m: [m.fail(ValueError("no")), m.timer("x", 1)], "which is the end"),
    "something else": (lambda m: "timer", "returned 'timer'; a handler returns an action"),
    "a list of something else": (lambda m: [1], "a handler returns an action"),
    "an action that is not returned": (lambda m: (m.timer("x", 1), None)[1], "without returning it"),
    "nothing to wait for": (lambda m: None, "waits for nothing:"),
    "a workflow as an activity": (lambda m: m.activity("x", pay(1)), "it is a child: child"),
    "an activity as a child": (lambda m: m.child("x", quick(1)), "it is an activity: activity"),
    "what is no call": (lambda m: m.activity("x", quick), "give a call"),
    "an id with a slash": (lambda m: m.timer("x/y", 1), "cannot be a id of a timer"),
    "cancelled without having been": (lambda m: m.cancelled(), "but the run was not cancelled"),
    "taking back nothing": (lambda m: m.uncancel(), "returned uncancel(), but the run was not cancelled"),
    "a result of another type": (lambda m: m.complete("one"), "not of the type that it declares"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_makes_no_sense_fails_the_machine_with_what_to_do(on_disk: Stage, name: str) -> None:
    make, message = REFUSED[name]

    class Odd(StateMachine[None, int], type="machine.odd.v1"):
        def on_start(self, input: None) -> Actions:
            return make(self)  # type: ignore[no-any-return]  # what the test is about

    with pytest.raises(RunFailed) as caught:
        await machine_of(on_disk, Odd)
    assert message in str(caught.value)


async def test_a_handler_that_raises_fails_the_machine_with_its_error(on_disk: Stage) -> None:
    class Raising(StateMachine[None, int], type="machine.raising.v1"):
        def on_start(self, input: None) -> Actions:
            raise LookupError("lost")

    with pytest.raises(RunFailed, match="lost") as caught:
        await machine_of(on_disk, Raising)
    assert isinstance(caught.value.__cause__, LookupError)


async def test_a_machine_without_a_beginning_says_so(on_disk: Stage) -> None:
    class Empty(StateMachine[None, int], type="machine.empty.v1"):
        pass

    with pytest.raises(RunFailed, match="has no on_start"):
        await machine_of(on_disk, Empty)


async def test_a_machine_as_a_whole_may_be_tried_again(on_disk: Stage) -> None:
    tries = 0

    class Trying(StateMachine[None, int], type="machine.trying.v1", retry=Retry(attempts=3, initial=0, jitter=0)):
        def on_start(self, input: None) -> Actions:
            return self.activity("q", quick(1))

        def on_activity_completed(self, id: str, result: int) -> Actions:
            nonlocal tries
            tries += 1
            return self.complete(tries) if tries == 2 else self.fail(OSError("no"))

    assert await machine_of(on_disk, Trying) == 2


def test_a_class_that_makes_no_sense_is_refused_where_it_is_written() -> None:
    with pytest.raises(BadArguments, match="on_start is an `async def`"):

        class Waits(StateMachine[None, int], type="machine.waits.v1"):
            async def on_start(self, input: None) -> Actions:  # type: ignore[override]  # what the test is about
                return None

    with pytest.raises(BadArguments, match="on_tick would never be called"):

        class Ticks(StateMachine[None, int], type="machine.ticks.v1"):
            def on_tick(self) -> Actions:
                return None

    with pytest.raises(BadArguments, match="no channels to receive from"):

        class Deaf(StateMachine[None, int], type="machine.deaf.v1"):
            def on_message(self, name: str, value: int) -> Actions:
                return None

    class Base(StateMachine[None, int]): ...

    with pytest.raises(UsageError, match="has no type"):
        Engine("sqlite://", [Base])
    with pytest.raises(UsageError, match="is not a workflow"):
        Engine("sqlite://", [int])  # type: ignore[list-item]  # what the test is about


def test_input_is_checked_where_the_call_is_started() -> None:
    with (
        Engine("sqlite://", [Approval]).blocking() as engine,
        pytest.raises(BadArguments, match="do not fit"),
    ):
        engine.start(Call.named("machine.approval.v1", {"who": 1}))


T = TypeVar("T")


class Keeping(StateMachine[T, list[T]], Generic[T]):
    def on_start(self, input: T) -> Actions:
        return self.complete([input])


class KeepingRequests(Keeping[Request], type="machine.keeping.v1"): ...


async def test_a_machine_may_be_built_on_another(on_disk: Stage) -> None:
    assert await machine_of(on_disk, KeepingRequests, Request("Ann", 1)) == [Request("Ann", 1)]


def test_a_machine_is_found_with_the_workflows_of_its_module() -> None:
    module = ModuleType("found_machines")
    module.__dict__.update(Approval=Approval, Keeping=Keeping, pay=pay)
    assert [one.type for one in discover(module)] == ["machine.approval.v1", "machine.pay.v1"]


def test_a_handler_can_be_tested_by_itself() -> None:
    machine = Approval()
    assert machine.on_start(Request("Ann", 1)) == [
        machine.activity("ask", notify("Ann")),
        machine.timer("patience", "1d"),
        machine.publish("state", "asked"),
    ]
    assert machine.on_message("decision", False) == machine.complete("refused after 0 reminders")
    with pytest.raises(UsageError, match="while the machine runs"):
        machine.now()


async def test_the_deploy_gate_replays_machines(on_disk: Stage) -> None:
    engine = on_disk.engine(Approval, notify, pay)
    run = await engine.start(Approval.call(Request("Ann", 300)), id="a")
    async with engine.worker():
        await until_recorded(run)

    class Changed(StateMachine[Request, str], type="machine.approval.v1"):
        def on_start(self, input: Request) -> Actions:
            return self.timer("other", "1d")

    async with Engine(engine.url, [Approval, notify, pay]) as same, Engine(engine.url, [Changed, notify, pay]) as other:
        assert (await same.check()).ok
        report = await other.check()
    assert not report.ok
    assert [finding.run_id for finding in report.findings] == ["a"]


class Tagged(StateMachine[int, str], type="machine.tagged.v1"):
    messages = (Channel("go", str),)

    def on_start(self, input: int) -> Actions:
        return self.set_attributes({"amount": input, "stage": "new", "old": "x"})

    def on_message(self, name: str, value: Any) -> Actions:
        return [self.set_attributes({"stage": "paid", "old": None}), self.complete("done")]


async def test_a_machine_sets_attributes_by_which_it_is_found(stage: Stage) -> None:
    engine = stage.engine(Tagged)
    async with engine.worker():
        run = await engine.start(Call.named("machine.tagged.v1", 7))
        await until(run, Status.WAITING)
        assert (await run.info()).attributes == {"amount": 7, "stage": "new", "old": "x"}
        assert [one.id for one in (await engine.runs.list(attributes={"stage": "new"})).runs] == [run.id]
        await run.send("go", "now")
        assert await run.result("60s") == "done"
    assert (await run.info()).attributes == {"amount": 7, "stage": "paid"}
