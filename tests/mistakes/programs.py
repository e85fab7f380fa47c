"""Mistakes of a first day with Perdure, as small programs.

A program is text, because linters and type checkers report most of these mistakes before the program runs. Each is
completed by the imports, and by a `main` that starts `flow` unless the program has one of its own.
"""

from __future__ import annotations

import textwrap

_IMPORTS = """
import asyncio
import functools
import threading
from dataclasses import dataclass

from perdure import Call, Context, Cron, Engine, Every, Limit, Retry, activity, step, workflow
from perdure.blocking import Engine as BlockingEngine

"""

_MAIN = """

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = await engine.start(flow())
        print(await run.result(timeout=20))

asyncio.run(main())
"""

#: Programs by the name of the mistake.
PROGRAMS: dict[str, str] = {}


def _mistake(name: str, program: str) -> None:
    PROGRAMS[name] = textwrap.dedent(program).strip()


def complete(program: str) -> str:
    """The text of a program with its imports and its `main`."""
    return _IMPORTS + program + ("" if "main()" in program or "# no main" in program else _MAIN)


_mistake(
    "a workflow without a type name",
    """
@workflow
async def flow(ctx: Context) -> str:
    return "done"
""",
)

_mistake(
    "a workflow with empty parentheses",
    """
@workflow()
async def flow(ctx: Context) -> str:
    return "done"
""",
)

_mistake(
    "an activity without a type name",
    """
@activity
async def mail(to: str) -> str:
    return f"sent to {to}"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.call(mail("a@b.c"))

async def main():
    async with Engine("sqlite://", [flow, mail]) as engine, engine.worker():
        print(await (await engine.start(flow())).result(timeout=20))

asyncio.run(main())
""",
)

_mistake(
    "a step decorator without parentheses",
    """
@step
async def charge() -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(charge)
""",
)

_mistake(
    "a step that is called instead of passed, async",
    """
async def charge(cents: int) -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(charge(7))
""",
)

_mistake(
    "a step that is called instead of passed, sync",
    """
def charge(cents: int) -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(charge(7))
""",
)

_mistake(
    "a step that is called instead of passed and returns nothing",
    """
def charge(cents: int) -> None:
    return None

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(charge(7))
""",
)

_mistake(
    "a step without await",
    """
async def charge() -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    ctx.step(charge)
    return "done"
""",
)

_mistake(
    "a sleep without await",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    ctx.sleep(3)
    return "done"
""",
)

_mistake(
    "a step whose operation is returned",
    """
async def charge() -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return ctx.step(charge)
""",
)

_mistake(
    "a start without await",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        engine.start(flow())

asyncio.run(main())
""",
)

_mistake(
    "a start without await whose handle is used",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = engine.start(flow())
        print(await run.result(timeout=20))

asyncio.run(main())
""",
)

_mistake(
    "a result without await",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = await engine.start(flow())
        print(run.result())

asyncio.run(main())
""",
)

_mistake(
    "a send without await",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.receive("go")

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = await engine.start(flow())
        run.send("go", "x")

asyncio.run(main())
""",
)

_mistake(
    "a workflow that is awaited",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    print(await flow())

asyncio.run(main())
""",
)

_mistake(
    "a workflow that is awaited in a workflow",
    """
@workflow("first.child")
async def child(ctx: Context) -> str:
    return "done"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await child()
""",
)

_mistake(
    "a workflow that is given the context",
    """
@workflow("first.child")
async def child(ctx: Context, name: str) -> str:
    return "done"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.call(child(ctx, "ada"))
""",
)

_mistake(
    "a workflow that is not called",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow)

asyncio.run(main())
""",
)

_mistake(
    "a workflow that is started with its arguments beside it",
    """
@workflow("first.flow")
async def flow(ctx: Context, name: str) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow, "ada")

asyncio.run(main())
""",
)

_mistake(
    "an activity as a step",
    """
@activity("first.mail")
async def mail(to: str) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(mail, "a@b.c")
""",
)

_mistake(
    "a workflow as a step",
    """
@workflow("first.child")
async def child(ctx: Context) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(child)
""",
)

_mistake(
    "a call as a step",
    """
@activity("first.mail")
async def mail(to: str) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(mail("a@b.c"))
""",
)

_mistake(
    "a function as a child",
    """
async def mail(to: str) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.call(mail, "a@b.c")
""",
)

_mistake(
    "a coroutine as a child",
    """
async def mail(to: str) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.call(mail("a@b.c"))
""",
)

_mistake(
    "a workflow instead of its call as a child",
    """
@workflow("first.child")
async def child(ctx: Context) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.call(child)
""",
)

_mistake(
    "a workflow that is no async def",
    """
@workflow("first.flow")
def flow(ctx: Context) -> str:
    return "done"
""",
)

_mistake(
    "a workflow that is an async generator",
    """
@workflow("first.flow")
async def flow(ctx: Context):
    yield "done"
""",
)

_mistake(
    "a workflow without a context",
    """
@workflow("first.flow")
async def flow() -> str:
    return "done"
""",
)

_mistake(
    "a workflow whose first parameter is no context",
    """
@workflow("first.flow")
async def flow(name: str) -> str:
    return name

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow("ada"))

asyncio.run(main())
""",
)

_mistake(
    "a workflow that is a method",
    """
class Shop:
    @workflow("first.flow")
    async def flow(self, ctx: Context) -> str:
        return "done"

async def main():
    async with Engine("sqlite://", [Shop.flow]) as engine:
        await engine.start(Shop().flow())

asyncio.run(main())
""",
)

_mistake(
    "two workflows of one type",
    """
@workflow("first.flow")
async def one(ctx: Context) -> None: ...

@workflow("first.flow")
async def two(ctx: Context) -> None: ...

Engine("sqlite://", [one, two])  # no main
""",
)

_mistake(
    "a workflow that the engine does not have",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

@workflow("first.other")
async def other(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(other())

asyncio.run(main())
""",
)

_mistake(
    "an engine without workflows that is to work",
    """
async def main():
    async with Engine("sqlite://") as engine, engine.worker():
        pass

asyncio.run(main())
""",
)

_mistake(
    "one workflow instead of a list",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

Engine("sqlite://", flow)  # no main
""",
)

_mistake(
    "a plain function as a workflow",
    """
async def flow(ctx: Context) -> None: ...

Engine("sqlite://", [flow])  # no main
""",
)

_mistake(
    "a child that no worker serves",
    """
@workflow("first.child")
async def child(ctx: Context) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.call(child())

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = await engine.start(flow())
        while "Of that child" not in (why := await run.why()):
            await asyncio.sleep(0.05)
        print(why)

asyncio.run(main())
""",
)

_mistake(
    "a type that no worker serves",
    """
async def main():
    async with Engine("sqlite://") as engine:
        run = await engine.start(Call.named("first.flow"))
        print(await engine.runs.why(run.id))
        await run.result(timeout=0.1)

asyncio.run(main())
""",
)

_mistake(
    "no worker at all",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        run = await engine.start(flow())
        await run.result(timeout=0.1)

asyncio.run(main())
""",
)

_mistake(
    "an argument too many",
    """
@workflow("first.flow")
async def flow(ctx: Context, name: str) -> None: ...

flow("ada", 3)  # no main
""",
)

_mistake(
    "an argument of the wrong type",
    """
@workflow("first.flow")
async def flow(ctx: Context, cents: int) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow("a lot"))

asyncio.run(main())
""",
)

_mistake(
    "an argument that is no JSON",
    """
@workflow("first.flow")
async def flow(ctx: Context, order) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow({"items": [{"lock": threading.Lock()}]}))

asyncio.run(main())
""",
)

_mistake(
    "a result of a step that is no JSON",
    """
def connect():
    return {"session": object()}

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(connect)
""",
)

_mistake(
    "a result of a workflow that is no JSON",
    """
@workflow("first.flow")
async def flow(ctx: Context):
    return {"session": object()}
""",
)

_mistake(
    "a step that returns a generator",
    """
def numbers():
    yield 1
    yield 2

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(numbers)
""",
)

_mistake(
    "a step that is an async generator",
    """
async def numbers():
    yield 1
    yield 2

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(numbers)
""",
)

_mistake(
    "a step that returns a class without its annotation",
    """
@dataclass
class Order:
    id: str

def load():
    return Order("o-1")

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    order = await ctx.step(load)
    return order.id
""",
)

_mistake(
    "a step with a wrong argument",
    """
async def charge(cents: int) -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(charge)
""",
)

_mistake(
    "a lambda as a step",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> int:
    return await ctx.step(lambda: 7)
""",
)

_mistake(
    "a partial as a step",
    """
def add(a: int, b: int) -> int:
    return a + b

@workflow("first.flow")
async def flow(ctx: Context) -> int:
    return await ctx.step(functools.partial(add, 1), 2)
""",
)

_mistake(
    "a partial of a lambda as a step",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> int:
    return await ctx.step(functools.partial(lambda a: a, 1))
""",
)

_mistake(
    "a method as a step",
    """
class Shop:
    def price(self, article: str) -> int:
        return 7

@workflow("first.flow")
async def flow(ctx: Context) -> int:
    return await ctx.step(Shop().price, "tea")
""",
)

_mistake(
    "a lambda around an async call",
    """
async def charge(cents: int) -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.options(name="charge").step(lambda: charge(7))
""",
)

_mistake(
    "a step inside a step",
    """
async def inner() -> str:
    return "inner"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    async def outer() -> str:
        return await ctx.step(inner)

    return await ctx.step(outer)
""",
)

_mistake(
    "a step inside a sync step",
    """
def inner() -> str:
    return "inner"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    def outer() -> str:
        ctx.step(inner)
        return "outer"

    return await ctx.step(outer)
""",
)

_mistake(
    "the context as an argument of a step",
    """
async def outer(ctx: Context) -> str:
    return "outer"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(outer, ctx)
""",
)

_mistake(
    "a step that expects the context",
    """
async def outer(ctx: Context) -> str:
    return "outer"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(outer)
""",
)

_mistake(
    "a context in a thread",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None:
    seen = []
    def work():
        try:
            ctx.sleep(3)
        except Exception as error:
            seen.append(error)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    raise seen[0]
""",
)

_mistake(
    "a context after its run",
    """
kept = []

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    kept.append(ctx)

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        await (await engine.start(flow())).result(timeout=20)
        await kept[0].sleep(1)

asyncio.run(main())
""",
)

_mistake(
    "an asyncio.run in a workflow",
    """
async def charge() -> str:
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return asyncio.run(charge())
""",
)

_mistake(
    "an asyncio.run in an async step",
    """
async def inner() -> str:
    return "paid"

async def charge() -> str:
    return asyncio.run(inner())

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.options(retry=1).step(charge)
""",
)

_mistake(
    "an async function called in a workflow",
    """
async def charge() -> str:
    await asyncio.to_thread(print, "paid")
    return "paid"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await charge()
""",
)

_mistake(
    "an engine inside a workflow",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await engine.start(flow())

engine = Engine("sqlite://", [flow])

async def main():
    async with engine, engine.worker():
        await (await engine.start(flow())).result(timeout=20)

asyncio.run(main())
""",
)

_mistake(
    "a blocking engine on a running loop",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    with BlockingEngine("sqlite://", [flow]) as engine, engine.worker():
        print(engine.start(flow()).result(timeout=20))

asyncio.run(main())
""",
)

_mistake(
    "a blocking engine with async with",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with BlockingEngine("sqlite://", [flow]) as engine:
        pass

asyncio.run(main())
""",
)

_mistake(
    "an engine with a plain with",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

with Engine("sqlite://", [flow]) as engine:  # no main
    pass
""",
)

_mistake(
    "a worker with a plain with",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        with engine.worker():
            pass

asyncio.run(main())
""",
)

_mistake(
    "a worker that is not entered",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        engine.worker()
        run = await engine.start(flow())
        await run.result(timeout=0.1)

asyncio.run(main())
""",
)

_mistake(
    "a worker that is awaited",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.worker()

asyncio.run(main())
""",
)

_mistake(
    "a worker whose run is not awaited",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        engine.worker().run()

asyncio.run(main())
""",
)

_mistake(
    "an engine before async with",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    engine = Engine("sqlite://", [flow])
    run = await engine.start(flow())
    async with engine, engine.worker():
        print(await run.result(timeout=20))

asyncio.run(main())
""",
)

_mistake(
    "an engine after async with",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        pass
    await engine.start(flow())

asyncio.run(main())
""",
)

_mistake(
    "an engine in two event loops",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return "done"

engine = Engine("sqlite:///two-loops.db", [flow])

async def start():
    return await engine.start(flow())

async def work(run):
    async with engine.worker():
        print(await run.result(timeout=20))

run = asyncio.run(start())  # no main
asyncio.run(work(run))
""",
)

_mistake(
    "a database URL of SQLAlchemy for SQLite",
    """
print(Engine("sqlite+aiosqlite:///alchemy.db"))  # no main
""",
)

_mistake(
    "a database URL of SQLAlchemy for PostgreSQL",
    """
print(Engine("postgresql+asyncpg://app@localhost/app"))  # no main
""",
)

_mistake(
    "a database URL of SQLAlchemy for MySQL",
    """
print(Engine("mysql+aiomysql://app@localhost/app"))  # no main
""",
)

_mistake(
    "a database URL with one slash",
    """
Engine("sqlite:/x.db")  # no main
""",
)

_mistake(
    "a database URL with two slashes",
    """
Engine("sqlite://x.db")  # no main
""",
)

_mistake(
    "a file name instead of a database URL",
    """
Engine("shop.db")  # no main
""",
)

_mistake(
    "a misspelt database",
    """
Engine("postgressql://app:secret@localhost/app")  # no main
""",
)

_mistake(
    "a database URL that is None",
    """
import os
Engine(os.environ.get("NO_SUCH_VARIABLE"))  # no main
""",
)

_mistake(
    "a duration without a unit",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.sleep("5")
""",
)

_mistake(
    "a duration in words",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.sleep("5 minutes")
""",
)

_mistake(
    "a moment without a time zone",
    """
import datetime

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.sleep_until(datetime.datetime(2030, 1, 1))
""",
)

_mistake(
    "a negative sleep",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.sleep(-3)
""",
)

_mistake(
    "a schedule with a bad cron expression",
    """
Cron("0 25 * * *")  # no main
""",
)

_mistake(
    "a schedule with a string for its timing",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.schedules.create("nightly", flow(), "0 3 * * *")

asyncio.run(main())
""",
)

_mistake(
    "a schedule of a workflow that is not called",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.schedules.create("nightly", flow, Cron("0 3 * * *"))

asyncio.run(main())
""",
)

_mistake(
    "an unknown option of start",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow(), run_id="x")

asyncio.run(main())
""",
)

_mistake(
    "an unknown option of a step",
    """
@step(retries=3)
def charge() -> None: ...  # no main
""",
)

_mistake(
    "an unknown option of a worker",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

Engine("sqlite://", [flow]).worker(concurrency="ten")  # no main
""",
)

_mistake(
    "an id that is a number",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow(), id=42)

asyncio.run(main())
""",
)

_mistake(
    "the same id with another input",
    """
@workflow("first.flow")
async def flow(ctx: Context, cents: int) -> None: ...

async def main():
    async with Engine("sqlite://", [flow]) as engine:
        await engine.start(flow(1), id="o-1")
        await engine.start(flow(2), id="o-1")

asyncio.run(main())
""",
)

_mistake(
    "a run that does not exist",
    """
async def main():
    async with Engine("sqlite://") as engine:
        await engine.get("o-1")

asyncio.run(main())
""",
)

_mistake(
    "a name with a slash",
    """
@workflow("shop/checkout")
async def flow(ctx: Context) -> None: ...
""",
)

_mistake(
    "a busy loop in a workflow",
    """
import time

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    while True:
        await asyncio.sleep(0)
""",
)

_mistake(
    "an await of something else in a workflow",
    """
async def main():
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    @workflow("first.flow")
    async def flow(ctx: Context) -> None:
        await future

    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        await (await engine.start(flow())).result(timeout=20)

asyncio.run(main())
""",
)

_mistake(
    "two functions of one name as steps",
    """
def make(number):
    def charge() -> int:
        return number
    return charge

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    def charge() -> int:
        return 1
    await ctx.step(charge)
    await ctx.step(make(2))
""",
)

_mistake(
    "a workflow with *args",
    """
@workflow("first.flow")
async def flow(ctx: Context, *names: str) -> None: ...
""",
)

_mistake(
    "a retry that is no number",
    """
@step(retry="3")
def charge() -> None: ...  # no main
""",
)

_mistake(
    "a retry of zero attempts",
    """
@step(retry=0)
def charge() -> None: ...  # no main
""",
)

_mistake(
    "a failing step",
    """
def charge() -> None:
    raise ValueError("card declined")

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.options(retry=1).step(charge)
""",
)

_mistake(
    "a message of a type that does not fit",
    """
@workflow("first.flow")
async def flow(ctx: Context) -> int:
    return await ctx.receive("go", int)

async def main():
    async with Engine("sqlite://", [flow]) as engine, engine.worker():
        run = await engine.start(flow())
        await run.send("go", "many")
        while "set aside" not in (why := await run.why()):
            await asyncio.sleep(0.05)
        print(why)

asyncio.run(main())
""",
)

_mistake(
    "a step decorator with a name by position",
    """
@step("charge")
def charge() -> None: ...  # no main
""",
)

_mistake(
    "a partial of an activity as a step",
    """
@activity("first.mail")
async def mail(to: str) -> None: ...

@workflow("first.flow")
async def flow(ctx: Context) -> None:
    await ctx.step(functools.partial(mail, "a@b.c"))
""",
)

_mistake(
    "the context as an argument without annotation",
    """
async def outer(ctx) -> str:
    return "outer"

@workflow("first.flow")
async def flow(ctx: Context) -> str:
    return await ctx.step(outer, ctx)
""",
)

_mistake(
    "a database without its driver",
    """
import sys
from unittest.mock import patch

with patch.dict(sys.modules):
    for name in [name for name in sys.modules if name.startswith("perdure.store.postgres")]:
        del sys.modules[name]
    sys.modules["asyncpg"] = None
    Engine("postgresql://app@localhost/app")  # no main
""",
)

_mistake(
    "a schedule in a zone that is none",
    """
Cron("0 3 * * *", zone="Prague")  # no main
""",
)
