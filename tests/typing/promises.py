"""Promises of the public interface to type checkers. Never run; checked by mypy and pyright.

Each expected error is marked, and both checkers complain about a mark that is not needed.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import asyncio
import datetime
import sqlite3
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

from perdure import (
    Call,
    Channel,
    Context,
    Engine,
    Failed,
    FailureKind,
    Handle,
    NamedBranch,
    Operation,
    Question,
    Retry,
    Saga,
    Status,
    StreamItem,
    Succeeded,
    activity,
    step,
    workflow,
)
from perdure import blocking as blocking_client
from perdure.admin import Record, Run, RunPage
from perdure.blocking import Engine as BlockingEngine
from perdure.blocking import Handle as BlockingHandle
from perdure.machine import Actions, StateMachine
from perdure.push import ExecutionResult


@dataclass
class Order:
    id: str
    cents: int


def charge(order_id: str, cents: int, *, currency: str = "EUR") -> str:
    return f"{order_id}{cents}{currency}"


@step(retry=Retry(attempts=3), timeout="30s")
async def reserve(order_id: str) -> list[int]:
    return [len(order_id)]


def lazy(number: int) -> Awaitable[bool]:
    raise NotImplementedError(number)


def take(connection: sqlite3.Connection, article: str, count: int) -> int:
    return len(article) - count


async def take_soon(connection: sqlite3.Connection, article: str, count: int) -> int:
    return len(article) - count


def connect() -> sqlite3.Connection:
    raise NotImplementedError


class Gateway:
    async def ping(self, host: str) -> float:
        return float(len(host))


def give_back(seats: list[int]) -> None:
    raise NotImplementedError(seats)


@step(undo=give_back, retry=Retry.never())
async def take_seats(order_id: str) -> list[int]:
    return [len(order_id)]


@step(undo=give_back)
def take_seats_now(order_id: str) -> list[int]:
    return [len(order_id)]


@step(undo=give_back)  # type: ignore[arg-type] # wrong on purpose
def take_nothing(order_id: str) -> str:
    return order_id


@workflow("types.failing.v1")
async def failing(ctx: Context, order: Order) -> str:
    assert_type(await ctx.step(take_seats, order.id), list[int])
    assert_type(await ctx.step(take_seats_now, order.id), list[int])
    ctx.step(take_seats, 7)  # type: ignore[call-overload] # wrong on purpose
    ctx.undo(give_back, [1])
    ctx.undo(give_back, 1)  # type: ignore[arg-type] # wrong on purpose
    async with ctx.saga() as saga:
        assert_type(saga, Saga)

    outcome = await ctx.outcome(ctx.step(charge, order.id, 1))
    assert_type(outcome, Succeeded[str] | Failed)
    if isinstance(outcome, Failed):
        assert_type(outcome.kind, FailureKind)
        return ""
    assert_type(outcome.value, str)

    async def block(ctx: Context) -> int:
        return 3

    assert_type(await ctx.outcome(block), Succeeded[int] | Failed)
    return ""


@workflow("types.ship.v1")
async def ship(ctx: Context, order: Order, express: bool = False) -> datetime.date:
    return datetime.date(2030, 1, 1 if express else order.cents)


@workflow("types.checkout.v1", retry=Retry.never())
async def checkout(ctx: Context, order: Order) -> str:
    assert_type(ctx.step(charge, order.id, order.cents), Operation[str])
    assert_type(await ctx.step(charge, order.id, cents=3, currency="USD"), str)
    assert_type(await ctx.step(reserve, order.id), list[int])
    assert_type(await ctx.step(lazy, 3), bool)
    assert_type(await ctx.step(Gateway().ping, "host"), float)
    assert_type(await ctx.options(name="again", retry=Retry.quick(), timeout=3).step(charge, "a", 1), str)

    assert_type(ctx.transaction(take, order.id, 3), Operation[int])
    assert_type(await ctx.options(using=connect).transaction(take_soon, "a", count=3), int)
    ctx.transaction(take, order.id)  # type: ignore[call-overload] # wrong on purpose
    ctx.transaction(take, order.id, "3")  # type: ignore[call-overload] # wrong on purpose

    ctx.step(charge, order.id)  # type: ignore[call-overload] # wrong on purpose
    ctx.step(charge, order.id, "3")  # type: ignore[call-overload] # wrong on purpose
    ctx.step(charge, order.id, 3, currenzy="")  # type: ignore[call-arg,arg-type] # wrong on purpose
    ctx.step(reserve, 7)  # type: ignore[call-overload] # wrong on purpose
    ctx.options(timeout=[])  # type: ignore[arg-type] # wrong on purpose
    ctx.options(ephemral=True)  # type: ignore[call-arg] # wrong on purpose

    assert_type(await ctx.sleep("3d"), None)
    assert_type(await ctx.sleep(datetime.timedelta(days=3)), None)
    assert_type(await ctx.receive("approval", bool), bool)
    assert_type(await ctx.receive("order", Order, timeout="4h"), Order)
    assert_type(await ctx.receive("anything"), Any)

    assert_type(await ctx.call(ship(order)), datetime.date)
    assert_type(await ctx.call(ship(order), queue="heavy", priority=3), datetime.date)
    ctx.call(ship)  # type: ignore[arg-type] # wrong on purpose
    ctx.call(ship(order), prio=3)  # type: ignore[call-arg] # wrong on purpose

    receipt, seats, day = await asyncio.gather(
        ctx.step(charge, order.id, 1), ctx.step(reserve, order.id), ctx.call(ship(order))
    )
    assert_type(receipt, str)
    assert_type(seats, list[int])
    assert_type(day, datetime.date)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(ctx.step(reserve, order.id))
    assert_type(task.result(), list[int])
    assert_type(await asyncio.wait_for(ctx.step(reserve, order.id), 3), list[int])

    assert_type(ctx.now(), datetime.datetime)
    assert_type(ctx.random(), float)
    assert_type(ctx.run_id, str)
    return receipt


def calls(order: Order) -> None:
    assert_type(checkout(order), Call[str])
    assert_type(ship(order, express=True), Call[datetime.date])
    assert_type(Call.named("types.checkout.v1", order), Call[Any])

    checkout()  # type: ignore[call-arg] # wrong on purpose
    checkout("o-42")  # type: ignore[arg-type] # wrong on purpose
    checkout(order, express=True)  # type: ignore[call-arg] # wrong on purpose
    ship(order, express="yes")  # type: ignore[arg-type] # wrong on purpose


def declarations() -> None:
    def sync_workflow(ctx: Context) -> None:
        """Not async."""

    async def no_context(order: Order) -> None:
        """Takes no context."""

    workflow("types.sync.v1")(sync_workflow)  # type: ignore[arg-type] # wrong on purpose
    workflow("types.bare.v1")(no_context)  # type: ignore[arg-type] # wrong on purpose
    assert_type(step(timeout="1s")(charge)("a", 1), str)


approval = Channel("approval", bool)
quote = Question("quote", Order, int)


@activity("types.pack.v1", start_to_close="10s", heartbeat=3)
def pack(order: Order, boxes: int = 1) -> list[str]:
    return [order.id] * boxes


@activity("types.label.v1")
async def label(order_id: str) -> bytes:
    return order_id.encode()


class Packing(StateMachine[Order, int], type="types.packing.v1", retry=Retry.never()):
    messages = (approval,)

    def on_start(self, input: Order) -> Actions:
        assert_type(input, Order)
        return [self.activity("pack", pack(input, 2)), self.timer("late", "1h")]

    def on_activity_completed(self, id: str, result: list[str]) -> Actions:
        return self.complete(len(result))

    def on_timer(self, id: str) -> Actions:
        return self.complete("late")  # type: ignore[arg-type] # wrong on purpose


async def activities(engine: Engine, order: Order) -> None:
    assert_type(pack(order), Call[list[str]])
    assert_type(label("a"), Call[bytes])
    assert_type(pack(order).options(start_to_close="1m"), Call[list[str]])
    assert_type(await engine.start(label("a")), Handle[bytes])
    pack(3)  # type: ignore[arg-type] # wrong on purpose
    assert_type(Packing.call(order), Call[int])
    assert_type(await engine.start(Packing.call(order)), Handle[int])
    assert_type(await engine.get("p", Packing.definition()), Handle[int])
    Packing.call(3)  # type: ignore[arg-type] # wrong on purpose
    Engine("sqlite://", [Packing, pack, label, checkout])


async def engine(order: Order) -> None:
    engine = Engine("sqlite://", [checkout, ship])
    run = await engine.start(checkout(order), id="o-42", at="1h", priority=3, deadline=datetime.timedelta(days=1))
    assert_type(run, Handle[str])
    assert_type(await run.result(), str)
    assert_type(await run.result(timeout="3s"), str)
    assert_type(await run.status(), Status)
    assert_type(await run.history(), list[Record])
    assert_type(await run.info(), Run)
    assert_type(await run.why(), str)
    assert_type(await run.cancel(), bool)
    assert_type(await engine.start_many([ship(order), ship(order)]), list[Handle[datetime.date]])
    assert_type(await engine.get("o-42"), Handle[Any])
    assert_type(await engine.get("o-42", checkout), Handle[str])
    assert_type(await engine.runs.list(status=Status.WAITING), RunPage)
    assert_type(await engine.start(Call.named("types.checkout.v1", order)), Handle[Any])

    await run.send(approval, True)
    await engine.send("o-42", approval, False, key="a")
    await engine.send("o-42", "approval", "anything")
    await engine.send("o-42", approval, "yes")  # type: ignore[misc] # wrong on purpose
    await run.send(approval, "yes")  # type: ignore[misc] # wrong on purpose
    assert_type(await engine.runs.broadcast(approval, True, correlation="x"), int)
    await engine.runs.broadcast(approval, 3, correlation="x")  # type: ignore[misc] # wrong on purpose
    await engine.runs.broadcast(approval, True)  # type: ignore[call-overload] # wrong on purpose

    assert_type(await run.ask(quote, order, timeout="3s"), int)
    assert_type(await run.ask("quote", order, returns=int), int)
    assert_type(await run.ask("quote", order), Any)
    await run.ask(quote, 3)  # type: ignore[misc] # wrong on purpose
    assert_type(await run.state("phase", str), str | None)
    assert_type(await run.state("phase", str, default=""), str)
    assert_type(await run.state("phase"), Any)
    async for item in run.stream("tokens", str, after=3):
        assert_type(item, StreamItem[str])
        assert_type(item.value, str)

    await engine.start(checkout)  # type: ignore[arg-type] # wrong on purpose
    await engine.start(checkout(order), idd="o")  # type: ignore[call-arg] # wrong on purpose
    await engine.start(checkout(order), priority="high")  # type: ignore[arg-type] # wrong on purpose

    async with engine.worker(slots=10, queues=["default"], lease="15s") as worker:
        assert_type(worker.id, str)


def covariant(run: Handle[bool], call: Call[bool]) -> tuple[Handle[int], Call[int]]:
    return run, call


def blocking(order: Order) -> None:
    with Engine("sqlite://", [checkout, ship]).blocking() as engine:
        assert_type(engine, BlockingEngine)
        run = engine.start(checkout(order), id="o-42")
        assert_type(run, BlockingHandle[str])
        assert_type(run.result(), str)
        assert_type(engine.get("o-42", checkout), BlockingHandle[str])
        assert_type(engine.start_many([ship(order)]), list[BlockingHandle[datetime.date]])
        assert_type(engine.runs.list(limit=10), RunPage)
        assert_type(run.retry(deadline="1h"), int)
        assert_type(run.stream("log", str), Generator[StreamItem[str]])
        with engine.worker(slots=2) as worker:
            assert_type(worker, blocking_client.EngineWorker)
        with engine.locks.hold("nightly") as lock:
            assert_type(lock, blocking_client.Lock)
        assert_type(blocking_client.Pusher(engine).execute("o-42"), ExecutionResult)
        engine.runs.list(limits=10)  # type: ignore[call-arg] # wrong on purpose
        engine.worker(slot=2)  # type: ignore[call-arg] # wrong on purpose
        engine.start(checkout(order), idd="o")  # type: ignore[call-arg] # wrong on purpose


@workflow
async def bare(ctx: Context, order: Order) -> str:
    return order.id


@activity
async def bare_mail(to: str) -> int:
    return len(to)


@activity
def bare_print(to: str) -> int:
    return len(to)


@step
def bare_step(to: str) -> int:
    return len(to)


@workflow()
async def unnamed(ctx: Context, order: Order) -> str:
    assert_type(await ctx.call(bare(order)), str)
    assert_type(await ctx.call(bare_mail("a")), int)
    assert_type(await ctx.call(bare_print("a")), int)
    assert_type(await ctx.step(bare_step, "a"), int)
    bare(1)  # type: ignore[arg-type] # wrong on purpose
    await bare(order)  # type: ignore[misc] # wrong on purpose
    await ctx.step(bare_mail, "a")  # type: ignore[misc] # wrong on purpose
    await ctx.step(bare, order)  # type: ignore[misc] # wrong on purpose
    await ctx.step(bare_step("a"))  # type: ignore[call-overload] # wrong on purpose
    await ctx.call(bare_mail, "a")  # type: ignore[arg-type] # wrong on purpose
    return ""


async def wrong_engine(engine: Engine) -> None:
    await engine.start(bare, Order("a", 1))  # type: ignore[arg-type] # wrong on purpose
    with engine:  # type: ignore[attr-defined] # wrong on purpose
        pass


@dataclass
class Checks:
    stock: NamedBranch[int]
    fraud: NamedBranch[str]


class Quotes(TypedDict):
    near: NamedBranch[int]
    far: NamedBranch[bool]


async def count_stock() -> int:
    return 1


async def score(ctx: Context) -> str:
    return ctx.run_id


async def branches(ctx: Context) -> None:
    checks = await ctx.join(Checks(stock=ctx.branch(count_stock()), fraud=ctx.branch(score)))
    assert_type(checks.stock.result, int)
    assert_type(checks.fraud.result, str)
    Checks(stock=ctx.branch(score), fraud=ctx.branch(score))  # type: ignore[arg-type] # the wrong kind
    quotes = await ctx.join(Quotes(near=ctx.branch(count_stock()), far=ctx.branch(lazy(1))))
    assert_type(quotes["far"].result, bool)
    assert_type(await ctx.join({"a": count_stock(), "b": count_stock()}), dict[str, int])
    assert_type((await ctx.race({"a": count_stock()}, until="completion")).value, int)


# workflows that are not async


@workflow("shop.pack.v1")
def pack_up(ctx: blocking_client.Context, order: Order, boxes: int = 1) -> str:
    assert_type(ctx.step(charge, order.id, order.cents), str)
    assert_type(ctx.step(reserve, order.id), list[int])
    ctx.step(charge, order.id)  # type: ignore[call-overload] # wrong on purpose
    assert_type(ctx.transaction(take, order.id, 3), int)
    assert_type(ctx.options(timeout="5s", undo=give_back).step(take_seats, order.id), list[int])
    assert_type(ctx.receive(Channel("approval", bool)), bool)
    assert_type(ctx.receive_many(Channel("approval", bool), limit=3), list[bool])
    assert_type(ctx.call(ship(order)), datetime.date)
    child = ctx.spawn(ship(order))
    assert_type(child, blocking_client.Child[datetime.date])
    assert_type(child.result(), datetime.date)
    assert_type(ctx.gather(lambda: ctx.step(len, "a"), lambda: ctx.step(str, 1)), tuple[int, str])
    assert_type(ctx.gather(*[lambda: ctx.step(len, "a")]), list[int])
    assert_type(ctx.map(len, ["a", "b"], limit=2), list[int])
    assert_type(ctx.map(part, ["a", "b"]), list[float])
    assert_type(ctx.join({"a": blocking_branch}), dict[str, int])
    assert_type(ctx.join({"a": lambda: ctx.step(len, "a")}), dict[str, int])
    assert_type(ctx.race({"a": lambda: ctx.step(len, "a")}, until="completion").value, int)
    checks = ctx.join(Checks(stock=ctx.branch(blocking_branch), fraud=ctx.branch(lambda: ctx.step(str, 1))))
    assert_type(checks.fraud.result, str)
    ended = ctx.outcome(lambda: ctx.step(len, "a"))
    if isinstance(ended, Succeeded):
        assert_type(ended.value, int)
    assert_type(ctx.shield(lambda: ctx.step(len, "a")), int)
    with ctx.timeout("5s") as limit, ctx.saga() as saga, ctx.enter(asyncio.Lock()):
        assert_type(limit.expired(), bool)
        assert_type(saga, blocking_client.Saga)
    assert_type(ctx.wait(asyncio.Queue[int]().get()), int)
    return order.id


def part(ctx: blocking_client.Context, item: str) -> float:
    return float(ctx.step(len, item))


def blocking_branch(ctx: blocking_client.Context) -> int:
    return ctx.step(len, "a")


@workflow
def bare_blocking(ctx: blocking_client.Context, to: str) -> int:
    return len(to)


async def blocking_calls(engine: Engine, order: Order) -> None:
    assert_type(pack_up(order, boxes=2), Call[str])
    pack_up(order, boxes="2")  # type: ignore[arg-type] # wrong on purpose
    assert_type(bare_blocking("a"), Call[int])
    assert_type(await (await engine.start(pack_up(order))).result(), str)


@workflow("shop.confused.v1")  # type: ignore[arg-type] # wrong on purpose
def confused(ctx: Context, to: str) -> int:
    return len(to)
