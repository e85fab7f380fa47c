"""The flows of ARCHITECTURE.md go through the files that the page names, and in the order of its arrows."""

from __future__ import annotations

import datetime
import re
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import perdure
from perdure import At, Breaker, Context, Engine, Limit, Retry, Status, activity, step, step_info, workflow
from tests.helpers import eventually

PAGE = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
SOURCE = f"{Path(perdure.__file__).parent}/"
#: Most files, and most changes of file, on the path of an activity with a limit.
FILES, CHANGES = 12, 18


@pytest.fixture
def entered() -> Iterator[list[str]]:
    """Files of the source in the order in which their functions are called, in all threads that start from now on."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(SOURCE) and frame.f_code.co_name != "<module>":
            file = path.removeprefix(SOURCE)
            if not files or files[-1] != file:
                files.append(file)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    yield files
    sys.setprofile(before)
    threading.setprofile(None)


@contextmanager
def unobserved() -> Iterator[None]:
    """Stop counting calls of this thread."""
    profile = sys.getprofile()
    sys.setprofile(None)
    yield
    sys.setprofile(profile)


def section(title: str) -> str:
    found = re.search(rf"^### {title}\n(.*?)^##", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def named(text: str) -> list[str]:
    """Files of a text, without those of other databases."""
    files = re.findall(r"`([\w/]+\.py)`", text)
    return [file for file in files if not file.startswith(("store/postgres/", "store/mysql/"))]


def double(number: int) -> int:
    return 2 * number


async def write(connection: Any) -> int:
    del connection
    step_info()
    return 1


class Flaky:
    """Fails at first."""

    def __init__(self) -> None:
        self.calls = 0

    async def call(self) -> int:
        self.calls += 1
        if step_info().attempt == 1:
            raise ConnectionError("not yet")
        step_info().emit("items", 1)
        return self.calls


SOON = Retry.fixed("1ms", attempts=2)
ONE = Limit("one", concurrency=1)


async def _a_step(url: str) -> None:
    flaky = Flaky()

    @workflow("flows.steps.v1")
    async def steps(ctx: Context) -> int:
        await ctx.options(process=True).step(double, 1)
        await ctx.transaction(write)
        return await ctx.step(double, 3) + await ctx.options(retry=SOON).step(flaky.call)

    async with Engine(url, [steps]) as engine, engine.worker():
        assert await (await engine.start(steps())).result("60s") == 8


async def _a_message(url: str) -> None:
    @workflow("flows.child.v1")
    async def child(ctx: Context) -> str:
        return await ctx.receive("word", str)

    @workflow("flows.parent.v1")
    async def parent(ctx: Context) -> str:
        return await ctx.call(child(), id="child")

    async with Engine(url, [parent, child]) as engine, engine.worker():
        run = await engine.start(parent())

        async def is_there() -> bool:
            page = await engine.runs.list(status=Status.WAITING)
            return {one.type for one in page.runs} == {"flows.parent.v1", "flows.child.v1"}

        await eventually(is_there, saying="the child waiting for its message")
        await engine.runs.pause("child")
        await engine.send("child", "word", "hello")
        await engine.runs.resume("child")
        assert await run.result("60s") == "hello"


async def _an_activity(url: str) -> None:
    flaky = Flaky()

    @activity("flows.leaf.v1", retry=SOON)
    async def leaf() -> int:
        return await flaky.call()

    @workflow("flows.caller.v1")
    async def caller(ctx: Context) -> int:
        return await ctx.call(leaf())

    async with Engine(url, [leaf, caller]) as engine, engine.worker():
        assert await (await engine.start(caller())).result("60s") == 2


async def _a_limit(url: str) -> None:
    flaky = Flaky()

    @activity("flows.guarded.v1", retry=SOON, limit=ONE, breaker=Breaker("flows"))
    async def guarded(number: int) -> int:
        return number + await flaky.call()

    @step(limit=ONE)
    async def limited() -> int:
        return 1

    @workflow("flows.limited.v1")
    async def steps(ctx: Context) -> int:
        return await ctx.step(limited)

    async with Engine(url, [guarded, steps]) as engine, engine.worker():
        calls = [guarded(0), guarded(0).options(limit=Limit("two", concurrency=2)), steps()]
        runs = await engine.start_many([*calls, *calls])
        assert len([await run.result("60s") for run in runs]) == 6


async def _a_schedule(url: str) -> None:
    @workflow("flows.tick.v1")
    async def tick(ctx: Context) -> None: ...

    async with Engine(url, [tick]) as engine, engine.worker():
        # So late that it is still to come when it is stored: a time in the past never fires.
        soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
        await engine.schedules.create("once", tick(), At(soon))

        async def has_run() -> bool:
            return bool((await engine.runs.list(status=Status.COMPLETED)).runs)

        await eventually(has_run, saying="the run of the schedule")


FLOWS: dict[str, Callable[[str], Awaitable[None]]] = {
    "A step": _a_step,
    "A message": _a_message,
    "An activity": _an_activity,
    "A limit": _a_limit,
    "A schedule": _a_schedule,
}


@pytest.mark.parametrize("title", FLOWS)
async def test_a_flow_goes_through_the_files_that_the_page_names(
    title: str, tmp_path: Path, entered: list[str]
) -> None:
    await FLOWS[title](f"sqlite:///{tmp_path}/runs.db")
    with unobserved():
        files = named(section(title))
        assert len(files) > 4
        assert set(files) - set(entered) == set()


async def test_an_activity_behind_a_limit_takes_the_way_that_the_page_shows(tmp_path: Path, entered: list[str]) -> None:
    @activity("flows.alone.v1", limit=ONE)
    async def alone(number: int) -> int:
        return number

    async with Engine(f"sqlite:///{tmp_path}/runs.db", [alone]) as engine, engine.worker():
        # The first run makes the gate.
        await (await engine.start(alone(1))).result("60s")
        entered.clear()
        assert await (await engine.start(alone(2))).result("60s") == 2
        way = list(entered)
    with unobserved():
        shown = named(section("A limit").rpartition("Complete path")[2])
        assert len(set(shown)) <= FILES
        assert len(shown) - 1 <= CHANGES
        after = iter(way)
        assert [file for file in shown if file not in after] == []
