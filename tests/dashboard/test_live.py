"""Live pages: one drawing for all tabs, within a budget of two statements a second."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlencode

import httpx
import pytest
from msgspec.structs import replace

from perdure import Context, Engine, workflow
from perdure.admin import Role
from perdure.client.runs.inspect import silence
from perdure.client.session import reading_through
from perdure.core.audit import EventFilter
from perdure.core.model.worker_info import WorkerInfo
from perdure.dashboard import Dashboard
from perdure.dashboard.figures import overview_figures
from perdure.dashboard.live import SharedReads, ViewKey
from perdure.dashboard.pages import worker_line
from perdure.dashboard.site import draw_view
from perdure.host import Host
from perdure.http import Access, HttpApp, Redaction
from perdure.http.access import Principal
from perdure.http.live import LIVE_RATE, SAVED, TICK, StatementBudget
from perdure.http.redaction import Redactor
from perdure.store.contract import MUTATING_VERBS, Store
from tests.helpers import eventually
from tests.http.serving import running
from tests.stage import Stage, set_up

VIEWS = ("/", "/runs", "/runs?q=status:failed", "/workflows", "/queues", "/dead-letters", "/workers", "/runs/busy")


async def tick(number: int) -> int:
    await asyncio.sleep(0.05)
    return number


@workflow("live.child.v1")
async def child(ctx: Context) -> int:
    return 1


@workflow("live.busy.v1")
async def busy(ctx: Context) -> None:
    await ctx.call(child())
    for number in range(100_000):
        ctx.publish("at", await ctx.step(tick, number))


@workflow("live.secret.v1")
async def secret(ctx: Context, text: str) -> str:
    return await ctx.receive("go", str) + text


@pytest.fixture(params=["file", "postgres", "mysql"])
async def place(request: pytest.FixtureRequest, tmp_path: Any, schemas: Any, databases: Any) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases) as stage:
        yield stage


class Statements:
    """Statements of one engine, by their beginning."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, statement: str) -> None:
        self.seen[" ".join(str(statement).split())[:60]] += 1

    @property
    def number(self) -> int:
        # A server may get these with every statement; they read nothing.
        return sum(n for text, n in self.seen.items() if not text.upper().startswith(("BEGIN", "COMMIT", "ROLLBACK")))


async def count_statements(stage: Stage, callback: Any) -> None:
    assert stage.store is not None
    store: Any = stage.store
    await store.trace(callback)
    for connection in getattr(store, "_readers", ()):
        await connection.thread.run(lambda one=connection: one.trace(callback))


class Tab:
    """An open page: its stream, and the contents that it got."""

    def __init__(self, client: httpx.AsyncClient, view: str, headers: dict[str, str] | None = None) -> None:
        self._client, self._view, self._headers = client, view, headers or {}
        self.contents: list[str] = []
        self.connected = asyncio.Event()

    async def follow(self) -> None:
        path = f"/live?{urlencode({'view': self._view, 'again': 'yes'})}"
        async with self._client.stream("GET", path, headers=self._headers, timeout=None) as answer:
            assert answer.status_code == 200, self._view
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                self.connected.set()
                if line.startswith("data: ") and "content" in (data := json.loads(line.removeprefix("data: "))):
                    self.contents.append(data["content"])


@asynccontextmanager
async def open_tabs(tabs: list[Tab]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(tab.follow()) for tab in tabs]
    try:
        for tab, task in zip(tabs, tasks, strict=True):
            waits = {asyncio.create_task(tab.connected.wait()), task}
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            assert tab.connected.is_set(), task
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def live_rows(content: str) -> list[str]:
    """The rows of a page that are replaced by an update."""
    return re.findall(r'<tbody id="run-rows" data-live="rows">(.*?)</tbody>', content, re.DOTALL)


def by_role(connection: Any) -> Principal:
    role = Role(connection.headers.get("x-role", "operator"))
    return Principal(name=f"test:{role.value}", role=role)


@asynccontextmanager
async def pages_of(engine: Engine, *, live_rate: float = 100, **options: Any) -> AsyncIterator[str]:
    app = HttpApp(
        engine, access=Access(authenticate=by_role), pages=Dashboard(), rate=1000, burst=1000, streams=100,
        live_rate=live_rate, **options,
    )  # fmt: skip
    async with running(app) as (host, port):
        yield f"http://{host}:{port}"


async def test_twenty_tabs_cost_no_more_than_the_budget(place: Stage) -> None:
    # A second of these is as good as five of the default, two statements a second.
    rate = 5 * LIVE_RATE
    assert LIVE_RATE == 2.0
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(place.engine(busy, child))
        await stack.enter_async_context(worker.worker(grace=0))
        run = await worker.start(busy(), id="busy")
        await eventually(run.history)
        viewing = await stack.enter_async_context(place.engine())
        base = await stack.enter_async_context(pages_of(viewing, live_rate=rate))
        statements = Statements()
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
            tabs = [Tab(client, VIEWS[number % len(VIEWS)]) for number in range(20)]
            async with open_tabs(tabs):
                # By then, the budget that an idle server has saved up is spent.
                await eventually(lambda: all(tab.contents for tab in tabs), saying="each tab got its view once")
                await count_statements(place, statements)
                begun = monotonic()
                await asyncio.sleep(4)
                took, spent = monotonic() - begun, statements.number
                await count_statements(place, None)
            assert spent >= took / 2, "live pages are drawn while something changes"
            # A view is paid for as a whole: the last one may have been paid for before.
            assert spent <= rate * took + SAVED, statements.seen.most_common()
            # Tabs of one view get the same drawings.
            assert tabs[0].contents[-1] in tabs[8].contents

        async def quiet() -> bool:
            statements.seen.clear()
            await count_statements(place, statements)
            await asyncio.sleep(2)
            await count_statements(place, None)
            return statements.number == 0

        await eventually(quiet, saying="no tab, hence neither a poll nor a drawing")


class Later(Host):
    """A clock of its own, for the ages of shared reads."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def monotonic(self) -> float:
        return self.passed


@pytest.mark.parametrize("tab", ["steps", "history"])
async def test_a_busy_run_page_can_be_drawn_every_two_seconds(place: Stage, tab: str) -> None:
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(place.engine(busy, child))
        await stack.enter_async_context(worker.worker(grace=0))
        run = await worker.start(busy(), id="busy", attributes={"tenant": "acme"})
        await eventually(run.history)
        viewing = await stack.enter_async_context(place.engine())
        await viewing.open()
        assert place.store is not None
        clock, statements = Later(), Statements()
        reads: Any = SharedReads(place.store, clock)
        engine = reading_through(viewing, reads)
        key = ViewKey(path="/runs/busy", query=f"tab={tab}", prefix="", role=Role.VIEWER)
        shown = Redactor(Redaction(), Role.VIEWER)
        seen: list[int] = []

        async def draw() -> None:
            page = bytes((await draw_view(engine, key, shown)).body).decode()
            seen.extend(int(number) for number in re.findall(r'<output for="at">\d+ of (\d+)', page))

        async def grown() -> bool:
            return len(await run.history()) > seen[-1]

        await count_statements(place, statements)
        await draw()
        statements.seen.clear()
        first, drawings = reads.sent, 10
        for _ in range(drawings):
            await eventually(grown)
            clock.passed += 2.0
            await draw()
        await count_statements(place, None)
        assert seen == sorted({*seen}), "each drawing has the new records"
        # The poll has half of the budget: one statement a second.
        assert statements.number <= (LIVE_RATE - 1 / TICK) * 2.0 * drawings, statements.seen.most_common()
        # The budget counts what is sent.
        assert statements.number == reads.sent - first


@pytest.mark.parametrize(("path", "most"), [("/", 20), ("/workflows", 6), ("/queues", 12)])
async def test_a_long_backlog_behind_older_runs_costs_a_view_no_more(place: Stage, path: str, most: int) -> None:
    async with place.engine(secret) as engine:
        await engine.start_many([secret("later") for _ in range(1100)], at=3600)
        await engine.start_many([secret("now") for _ in range(1100)])
        assert place.store is not None
        key = ViewKey(path=path, query="", prefix="", role=Role.VIEWER)
        shown = Redactor(Redaction(), Role.VIEWER)
        reads: Any = SharedReads(place.store, Host())
        page = bytes((await draw_view(reading_through(engine, reads), key, shown)).body).decode()
        assert reads.sent <= most
        if path != "/workflows":
            # Both have the length of the backlog, and the age of its oldest run.
            assert "1,100" in page
        if path == "/":
            assert "waits for a slot" in page


async def test_a_read_that_took_long_is_not_repeated_soon(on_disk: Stage) -> None:
    async with on_disk.engine(secret) as engine:
        await engine.open()
        assert on_disk.store is not None
        clock, asked = Later(), 0

        class Slow:
            async def workers(self) -> list[WorkerInfo]:
                nonlocal asked
                asked += 1
                clock.passed += 0.2
                return []

        reads: Any = SharedReads(cast("Store", Slow()), clock)
        await reads.workers()
        for passed, expected in ((5.0, 1), (4.9, 1), (0.2, 2)):
            clock.passed += passed
            await reads.workers()
            assert asked == expected


async def test_a_tab_gets_its_view_when_it_has_changed(place: Stage) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(place.engine(secret))
        await stack.enter_async_context(engine.worker(grace=0))
        run = await engine.start(secret("x"), id="a/b")
        base = await stack.enter_async_context(pages_of(engine))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=base, trust_env=False, timeout=60))
        tab = Tab(client, "/runs/a%2Fb?tab=history")
        async with open_tabs([tab]):
            await eventually(lambda: tab.contents and "waiting" in tab.contents[-1])
            await run.send("go", "on")
            await eventually(lambda: "It completed" in tab.contents[-1], saying="the page of a run that completed")


async def test_a_tab_that_lost_its_connection_catches_up_and_a_new_one_waits_for_a_change(on_disk: Stage) -> None:
    async with (
        on_disk.engine(secret) as engine,
        pages_of(engine) as base,
        httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client,
    ):
        await engine.start(secret("x"), id="a")
        heard: list[str] = []
        async with client.stream("GET", "/live?view=/runs/a", timeout=None) as answer:
            async for line in answer.aiter_lines():
                heard.append(line)
                if line.startswith("data: "):
                    break
        assert heard[:2] == ["event: hello", "id: 1"]
        async with client.stream("GET", "/live?view=/runs/a", headers={"last-event-id": "1"}, timeout=None) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("event: view"):
                    break


async def test_a_role_that_sees_no_payloads_never_gets_those_of_another(on_disk: Stage) -> None:
    async with (
        on_disk.engine(secret) as engine,
        engine.worker(grace=0),
        pages_of(engine, redaction=Redaction(payloads=Role.OPERATOR)) as base,
        httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client,
    ):
        run = await engine.start(secret("hidden-text"), id="a")
        seeing = Tab(client, "/runs/a", {"x-role": "operator"})
        blind = Tab(client, "/runs/a", {"x-role": "viewer"})
        async with open_tabs([seeing, blind]):
            await eventually(lambda: seeing.contents and blind.contents)
            await run.send("go", "on")
            await eventually(lambda: all("completed" in tab.contents[-1] for tab in (seeing, blind)))
        assert any("hidden-text" in one for one in seeing.contents)
        assert not any("hidden-text" in one for one in blind.contents)
        assert not any("/cancel" in one for one in blind.contents)


async def test_what_all_viewers_get_belongs_to_none_of_them(on_disk: Stage) -> None:
    async with on_disk.engine(secret) as engine, engine.worker(grace=0):
        await engine.start(secret("x"), id="a")
        async with pages_of(engine) as base, httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client:
            tabs = [Tab(client, view) for view in (*VIEWS[:-1], "/runs/a")]
            async with open_tabs(tabs):
                await eventually(lambda: all(tab.contents for tab in tabs))
            for tab in tabs:
                # The form of the page of runs is outside of the part that is replaced.
                assert 'name="csrf" value="' not in tab.contents[0].replace('name="csrf" value=""', "")
                assert all("<form" not in part for part in live_rows(tab.contents[0]))
                assert "test:operator" not in tab.contents[0]


@pytest.mark.parametrize("view", ["/runs/a/cancel", "/nowhere", "//evil.example", "/login", "/bulk/cancel"])
async def test_only_pages_that_everyone_may_read_are_live(on_disk: Stage, view: str) -> None:
    async with (
        on_disk.engine(secret) as engine,
        pages_of(engine) as base,
        httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client,
    ):
        assert (await client.get("/live", params={"view": view})).status_code == 404


def test_a_worker_that_was_read_a_moment_ago_is_not_late_because_of_that() -> None:
    second = 1_000_000
    info = WorkerInfo(
        id="w", host="h", pid=1, queues=("default",), types=(), slots=1, lease=15 * second, heartbeat_at=100 * second,
        read_at=104 * second,
    )  # fmt: skip
    request: Any = SimpleNamespace(shown=Redactor(Redaction(), Role.VIEWER))
    assert worker_line(request, info, 108 * second).state == "alive"
    assert worker_line(request, replace(info, read_at=107 * second), 108 * second).state == "late"
    assert silence(info, 108 * second) == ""
    slots = overview_figures([], [info], 0, 108 * second)[4]
    assert (slots.value, slots.note) == ("0 of 1", "1 worker alive")


async def test_a_live_page_cannot_write(on_disk: Stage) -> None:
    async with on_disk.engine(secret) as engine:
        await engine.open()
        assert on_disk.store is not None
        reads: Any = SharedReads(on_disk.store, Host())
        for verb in MUTATING_VERBS:
            with pytest.raises(AttributeError):
                getattr(reads, verb)
        first, second = await asyncio.gather(reads.workers(), reads.workers())
        assert (first is second, reads.sent) == (True, 1)
        assert await reads.events_page(EventFilter(), 5, after=0) == []
        assert {name for name in vars(Store) if not name.startswith("_")} >= {*MUTATING_VERBS} - {"migrate", "transact"}


async def test_the_budget_saves_up_and_never_gives_more_than_its_rate() -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        async def sleep(self, seconds: float) -> None:
            self.now += seconds

    clock: Any = Clock()
    budget = StatementBudget(clock)
    for _ in range(50):
        await budget.take(7)
    assert clock.now == pytest.approx((350 - SAVED) / LIVE_RATE)
    await budget.take(100)
    await budget.take(1)
    assert clock.now == pytest.approx((451 - SAVED) / LIVE_RATE, abs=SAVED)
