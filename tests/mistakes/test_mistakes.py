"""The mistakes of a first day: each shows what happened and what to do next."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

import perdure
from tests.mistakes.programs import PROGRAMS, complete
from tests.mistakes.seen import run_program

PACKAGE = str(Path(perdure.__file__).parent)

#: What a person sees of each mistake: text that says what happened, and text that says what to do.
SEES: dict[str, tuple[str, ...]] = {
    # decorators
    "a workflow without a type name": ("done",),
    "a workflow with empty parentheses": ("done",),
    "an activity without a type name": ("sent to a@b.c",),
    "a step decorator without parentheses": ("paid",),
    "a step decorator with a name by position": ("BadArguments", "@step(name='charge')"),
    "an unknown option of a step": ("a step has no option 'retries'", "did you mean retry?", "it has name, retry"),
    "a retry that is no number": ("retry='3'", "Retry(attempts=3)"),
    "a retry of zero attempts": ("retry=0", "a number of attempts from 1"),
    "a workflow that is no async def": ("must be an `async def`",),
    "a workflow that is an async generator": ("has a `yield`", "ctx.emit"),
    "a workflow without a context": ("must take the Context", "async def flow(ctx: Context, ...)"),
    "a workflow whose first parameter is no context": (
        "is name: str",
        "put the context before it: `async def flow(ctx: Context, name: str)`",
    ),
    "a workflow that is a method": ("is a method", "remove `self` and put @staticmethod above"),
    "a workflow with *args": ("takes *names", "write `names: list[...]` instead"),
    "a name with a slash": ("cannot be a workflow type: it contains '/'", "write a dot"),
    # steps
    "a step that is called instead of passed, async": (
        "not the coroutine that charge(...) returns",
        "write `ctx.step(charge, ...)`",
    ),
    "a step that is called instead of passed, sync": ("not 'paid' of type str", "write `ctx.step(function, ...)`"),
    "a step that is called instead of passed and returns nothing": (
        "not None;",
        "write `ctx.step(function, ...)`",
        "calls it before the step",
    ),
    "an activity as a step": ("not <activity first.mail>", "write `await ctx.call(mail(...))`"),
    "a workflow as a step": ("not <workflow first.child>", "await ctx.call(child(...))"),
    "a call as a step": ("not Call(type='first.mail'", "await ctx.call("),
    "a partial of an activity as a step": ("not <activity first.mail>", "write `await ctx.call(mail(...))`"),
    "a step with a wrong argument": ("charge() missing 1 required positional argument: 'cents'", "ctx.step(charge)"),
    "a lambda as a step": ("a lambda has no name", 'give it one: `ctx.options(name="...")'),
    "a partial of a lambda as a step": ("a lambda has no name", 'give it one: `ctx.options(name="...")'),
    "a partial as a step": ("3",),
    "a method as a step": ("7",),
    "a lambda around an async call": ("paid",),
    "two functions of one name as steps": ("two different functions are steps named 'charge'", "ctx.options(name="),
    "a step inside a step": (
        "In the step 'outer' (most recent call last):",
        "In first.flow (most recent call last):",
        "was used in the step 'outer'",
        "calls other functions directly",
    ),
    "a step inside a sync step": ("was used in the step 'outer'", "calls other functions directly"),
    "the context as an argument of a step": ("takes ctx: Context", "call it directly, `await outer(ctx, ...)`"),
    "the context as an argument without annotation": ("argument 1 is a Context", "pass plain data"),
    "a step that expects the context": ("takes ctx: Context", "call it directly, `await outer(ctx, ...)`"),
    "a failing step": ("failed with ValueError: card declined", 'raise ValueError("card declined")'),
    # forgotten await
    "a step without await": ("ended without awaiting charge", "first_day.py:", "`ctx.step(charge)`", "await each"),
    "a sleep without await": ("ended without awaiting sleep", "first_day.py:", "`ctx.sleep(3)`", "await each"),
    "a step whose operation is returned": ("without awaiting charge", "`return ctx.step(charge)`", "await each"),
    "a start without await": ("first_day.py:", "RuntimeWarning: coroutine 'Engine.start' was never awaited"),
    "a start without await whose handle is used": ("object has no attribute 'result'", "run.result("),
    "a result without await": ("first_day.py:", "RuntimeWarning: coroutine 'Handle.result' was never awaited"),
    "a send without await": ("first_day.py:", "RuntimeWarning: coroutine 'send' was never awaited"),
    "a worker whose run is not awaited": ("first_day.py:", "coroutine 'EngineWorker.run' was never awaited"),
    # calls
    "a workflow that is awaited": ("does not run by itself", "await engine.start(flow(...))"),
    "a workflow that is awaited in a workflow": ("does not run by itself", "await ctx.call(child(...))"),
    "a workflow that is given the context": ("was given a context", "leave it out"),
    "a workflow that is not called": ("not <workflow first.flow> itself", "call it: `flow(...)`"),
    "a workflow that is started with its arguments beside it": ("with the arguments inside it", "start(flow(...))"),
    "a function as a child": ("mail is a plain function", "use `ctx.step(mail, ...)`"),
    "a coroutine as a child": (
        "not the coroutine of mail(...)",
        "for a step write `ctx.step(mail, ...)`",
        "decorate mail with @workflow or @activity",
    ),
    "a workflow instead of its call as a child": ("not <workflow first.child> itself", "call it: `child(...)`"),
    "an argument too many": ("too many positional arguments", "it takes (name: str)"),
    "an argument of the wrong type": ("argument 'cents' as int: Expected `int`, got `str`", "(cents: int)"),
    "an argument that is no JSON": ("order.items[0].lock is of type _thread.lock", "use plain data"),
    "an unknown option of start": ("start has no option 'run_id'", "did you mean id?", "it has id, at"),
    "an id that is a number": ("42 cannot be a run id", "give a str"),
    "the same id with another input": ("exists with another input", "choose another id"),
    "a run that does not exist": ("there is no run 'o-1' in sqlite://", "in memory and new with each engine"),
    # results
    "a result of a step that is no JSON": ("result.session is of type builtins.object", "use plain data"),
    "a result of a workflow that is no JSON": ("result.session is of type builtins.object", "use plain data"),
    "a step that returns a generator": (
        "the step first_day.numbers has a `yield`",
        "build a list in it and return the list",
    ),
    "a step that is an async generator": (
        "the step first_day.numbers has a `yield`",
        "build a list in it and return the list",
    ),
    "a step that returns a class without its annotation": (
        "it is an Order and comes back as a dict",
        "declare the return type, `-> Order`",
        "or return plain data",
    ),
    "a message of a type that does not fit": (
        "set aside 1 message(s)",
        "Expected `int`, got `str`",
        "send one that fits",
        "it still waits",
        "perdure messages deliver",
    ),
    # the engine
    "two workflows of one type": ("first_day.one and first_day.two", "give each its own"),
    "a workflow that the engine does not have": ("is not one of this engine's", "add it to Engine(url, [...])"),
    "an engine without workflows that is to work": ("has no workflows", "Engine(url, [checkout, ship])"),
    "one workflow instead of a list": ("workflows=<workflow first.flow>", "give a list, such as [flow]"),
    "a plain function as a workflow": ("is not a workflow", "decorate it with @workflow"),
    "a child that no worker serves": (
        "none of the 1 live worker(s) serves the type 'first.child'",
        "add it to a worker's engine, `Engine(url, [...])`",
    ),
    "a type that no worker serves": (
        "no worker is alive",
        "its engine needs the workflow 'first.flow'",
        "Engine(url, [...])",
    ),
    "no worker at all": (
        "within 0.1 s: it is ready, but no worker is alive",
        "start one: `async with engine.worker():`",
    ),
    "a worker that is not entered": (
        "within 0.1 s: it is ready, but no worker is alive",
        "start one: `async with engine.worker():`",
    ),
    "a worker that is awaited": (
        "a worker cannot be awaited",
        "`async with engine.worker():`",
        "`await engine.worker().run()`",
    ),
    "a worker with a plain with": ("entered by `async with`, not by `with`", "perdure.blocking.Engine"),
    "an engine with a plain with": ("entered by `async with`, not by `with`", "perdure.blocking.Engine"),
    "a blocking engine with async with": ("is a blocking view, entered by `with`", "use perdure.Engine"),
    "a blocking engine on a running loop": ("first_day.py:", "event loop stands still", "use perdure.Engine"),
    "an engine before async with": ("done",),
    "an engine after async with": ("was closed, as at the end of `async with`", "move this into the block"),
    "an engine in two event loops": ("done",),
    "an unknown option of a worker": (
        "a worker has no option 'concurrency'",
        "did you mean slots, the number of runs at once?",
        "it has slots",
    ),
    # workflow code
    "a context in a thread": (
        "was used in another thread",
        "`await ctx.step(function, ...)`",
        "asyncio.gather",
    ),
    "a context after its run": (
        "was used after its workflow function had ended",
        "use a context only inside that function",
        "asyncio.sleep",
    ),
    "an asyncio.run in a workflow": (
        "a workflow runs in an event loop already",
        "`await ctx.step(function, ...)`",
        "asyncio.run(charge())",
    ),
    "an asyncio.run in an async step": ("asyncio.run() cannot be called", "asyncio.run(inner())"),
    "an async function called in a workflow": ("workflow code does no I/O of its own", "await ctx.step(function"),
    "an engine inside a workflow": ("workflow code does not call the engine", "`ctx.start`, `ctx.send`"),
    "an await of something else in a workflow": (
        "something of another event loop",
        "await it in a step",
        "in flow\n    await future",
    ),
    "a busy loop in a workflow": ("without waiting for anything durable", "use `await ctx.sleep(...)`"),
    # databases
    "a database URL of SQLAlchemy for SQLite": ("<engine sqlite+aiosqlite:///alchemy.db>",),
    "a database URL of SQLAlchemy for PostgreSQL": ("<engine postgresql+asyncpg://app@localhost/app>",),
    "a database URL of SQLAlchemy for MySQL": ("<engine mysql+aiomysql://app@localhost/app>",),
    "a database URL with one slash": ("'sqlite:/x.db' is not a database URL", "write sqlite:///x.db"),
    "a database URL with two slashes": ("'sqlite://x.db' is not a database URL", "write sqlite:///x.db"),
    "a file name instead of a database URL": ("'shop.db' is not a database URL", "for a file write sqlite:///shop.db"),
    "a misspelt database": ("'postgressql://app:***@localhost/app'", "did you mean postgresql://?"),
    "a database URL that is None": ("a database URL is text, not None;", "check that the setting is there"),
    "a database without its driver": ("needs the driver asyncpg", "pip install 'perdure[postgres]'"),
    # time
    "a duration without a unit": ("'5' is not a duration", 'did you mean 5 seconds, "5s"?'),
    "a duration in words": ("'minutes' is not a unit", '"1h30m"'),
    "a moment without a time zone": ("has no time zone", "tzinfo=UTC"),
    "a negative sleep": ("-3 is negative", "give zero or more"),
    "a schedule with a bad cron expression": ("'0 25 * * *' is not a cron expression", "write one such as"),
    "a schedule with a string for its timing": ("does not say when", "give Cron('0 3 * * *')"),
    "a schedule of a workflow that is not called": (
        "schedules.create takes a call",
        "not <workflow first.flow> itself",
        "call it: `flow(...)`",
    ),
    "a schedule in a zone that is none": ("there is no time zone 'Prague'", "such as 'Europe/Prague'"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_each_mistake_is_tried() -> None:
    assert SEES.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("mistake", PROGRAMS)
def test_a_mistake_shows_what_happened_and_what_to_do(mistake: str) -> None:
    seen = run_program(complete(PROGRAMS[mistake]))
    missing = [text for text in SEES.get(mistake, ()) if text not in seen]
    assert missing == [], seen
    assert PACKAGE not in seen, "frames of Perdure bury the line of the user"
    said = re.search(r"RunFailed: run '.*?failed with \w+: (.*)", seen)
    # In the log, in RunFailed and in its cause.
    assert said is None or seen.count(f": {said[1]}") <= 3, seen


def test_a_program_that_imports_a_package_of_ours_anew_leaves_no_trace() -> None:
    importlib.import_module("perdure.store.postgres.store")
    before = {name: (one, vars(one).copy()) for name, one in sys.modules.items() if name.startswith("perdure")}
    run_program(complete(PROGRAMS["a database without its driver"]))
    for name, (one, names) in before.items():
        assert sys.modules[name] is one
        assert {key: vars(one)[key] for key in names} == names
