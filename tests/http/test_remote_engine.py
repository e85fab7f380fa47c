"""An engine on a server has the verbs, values and errors of an engine on the database."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from perdure import Call, Context, Cron, Engine, Every, Retry, Singleton, Watermark, workflow
from perdure.admin import RecordKind, Role
from perdure.client.handle import Handle
from perdure.client.remote.engine import RemoteEngine
from perdure.client.runs.namespace import RunFilters
from perdure.core.model.run import Reason, Status
from perdure.core.time.cron import Window
from perdure.errors import (
    AccessRefused,
    BadArguments,
    EngineClosed,
    InvalidDuration,
    InvalidId,
    InvalidSchedule,
    Overloaded,
    PerdureError,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunNotFound,
    ScheduleNotFound,
    SingletonBusy,
    TokenExists,
    TokenNotFound,
    UsageError,
    WorkerNotFound,
)
from tests.client.test_client_in_workflow import NAMESPACES, verbs
from tests.client.test_client_in_workflow import other as greeted
from tests.helpers import eventually
from tests.http.serving import (
    WORKFLOWS,
    Order,
    Served,
    approval,
    checkout,
    counting,
    desk,
    mail,
    served,
    sleeper,
)
from tests.stage import Stage, until

HOUR = datetime.timedelta(hours=1)


def on_server(site: Served, role: Role = Role.ADMIN, **options: Any) -> Engine:
    return Engine(site.url, WORKFLOWS, token=site.tokens[role], **options)


@pytest.fixture
async def engine(site: Served) -> AsyncIterator[Engine]:
    """An engine on a server, over each database."""
    async with on_server(site) as engine:
        yield engine


@pytest.fixture
async def client(local: Served) -> AsyncIterator[Engine]:
    """An engine on a server, over SQLite."""
    async with on_server(local) as engine:
        yield engine


async def failing(engine: Engine, id: str) -> Any:
    run = await engine.start(checkout(Order(id, -1)), id=id)
    with pytest.raises(RunFailed):
        await run.result(timeout=60)
    return run


async def test_a_run_is_started_followed_and_its_result_has_the_annotated_type(engine: Engine) -> None:
    assert isinstance(engine, RemoteEngine)
    run = await engine.start(checkout(Order("o-1", 5), note="!"), id="o-1", attributes={"customer": "acme"})
    assert await run.result(timeout=60) == "paid 5!"
    assert (await run.info()).attributes == {"customer": "acme"}
    again = await engine.get("o-1", checkout)
    assert await again.result() == "paid 5!"
    assert [one.location for one in await run.history()] == ["charge"]
    assert (await run.report()).steps[0].status == "completed"
    assert (await run.status()).finished


async def test_events_are_published_listed_and_replayed_over_http(engine: Engine, site: Served) -> None:
    assert await engine.outbox.publish("order.paid", {"order": 1}, key="o-1", id="paid-1") == "paid-1"
    assert await engine.outbox.publish("order.paid", {"order": 1}, key="o-1", id="paid-1") == "paid-1"
    other = await engine.outbox.publish("order.made")
    [again] = await engine.outbox.replay("paid-1", to="hook")
    for one in (engine, site.engine):
        page = await one.outbox.list(type="order.%", key="o-1")
        assert [(found.event.id, found.event.data) for found in page.events] == [("paid-1", {"order": 1})] * 2
        assert page.events[0].run_id == again
        assert (await one.outbox.get(other)).event.type == "order.made"
        assert await one.outbox.deliveries("paid-1") == []
    for arguments in ({}, {"event": {"type": "x"}}, {"event": {"type": "", "source": "s"}}):
        with pytest.raises(UsageError):
            await engine.start(Call.named("perdure.event.v1", **arguments))


async def test_an_engine_on_a_server_reads_what_an_engine_on_the_database_reads(engine: Engine, site: Served) -> None:
    await (await engine.start(checkout(Order("a", 1)), id="a", attributes={"amount": 3})).result(timeout=60)
    await failing(engine, "b")
    waiting = await engine.start(
        approval(), id="c", attributes={"when": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)}
    )
    await until(waiting, Status.WAITING)
    await engine.schedules.create("nightly", checkout(Order("s", 2)), Cron("0 3 * * *", "Europe/Prague"), jitter="5m")
    await engine.limits.set("imports", concurrency=3)
    await engine.breakers.open("bank")
    await engine.queues.watermarks.set(Watermark(queue="mail", high=10))
    await engine.queues.pause(queue="reports", reason="audit")
    database = site.engine

    async def same(read: Any, *hidden: str) -> None:
        def plain(value: Any) -> Any:
            if hasattr(value, "__struct_fields__"):
                return {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name not in hidden}
            return [plain(one) for one in value] if isinstance(value, list | tuple) else value

        while True:  # a text such as "2 s ago" may change between two reads
            before, remote, after = plain(await read(database)), plain(await read(engine)), plain(await read(database))
            if before == after:
                break
        assert remote == before

    secrets = ("token", "nonce", "seed", "inbox_seq", "inbox_read", "version")
    await same(lambda one: one.runs.list(), *secrets, "wake_at", "error", "attributes", "options")
    await same(
        lambda one: one.runs.list(status=["failed"], error="nothing to charge"),
        *secrets,
        "wake_at",
        "error",
        "attributes",
    )
    await same(
        lambda one: one.runs.list(attributes={"amount": (">=", 2)}, deleted=None), *secrets, "wake_at", "attributes"
    )
    await same(lambda one: one.runs.count_by("attribute:amount"))
    await same(lambda one: one.runs.count_by("status"))
    await same(lambda one: one.runs.count(type="http.checkout.v1"))
    await same(lambda one: one.dead_letters.list(), "given_up")
    await same(lambda one: one.dead_letters.get("b"), "given_up")
    await same(lambda one: one.schedules.get("nightly"), *secrets)
    await same(lambda one: one.schedules.list(), *secrets)
    await same(lambda one: one.schedules.events("nightly"))
    await same(lambda one: one.limits.list())
    await same(lambda one: one.breakers.list())
    await same(lambda one: one.queues.watermarks.list())
    await same(lambda one: one.queues.watermarks.depth(queue="mail"))
    await same(lambda one: one.queues.paused())
    await same(lambda one: one.queues.types())
    await same(lambda one: one.workers.list(), "heartbeat_at", "read_at")
    await same(lambda one: one.audit.list(limit=1000))
    await same(lambda one: one.audit.list(kind="failed", limit=1))

    async def of(one: Engine, run_id: str, verb: str) -> Any:
        return await getattr(await one.get(run_id), verb)()

    for run_id in ("a", "b", "c"):
        await same(lambda one, run_id=run_id: of(one, run_id, "history"), "digest", "payload")
        for verb in ("events", "inbox", "interruptions", "logs", "set_aside_messages", "states", "why"):
            await same(lambda one, run_id=run_id, verb=verb: of(one, run_id, verb))
        await same(lambda one, run_id=run_id: of(one, run_id, "report"), *secrets, "run", "waits", "unread", "closed")


async def test_messages_questions_states_and_streams_work(engine: Engine) -> None:
    run = await engine.start(approval())
    assert await run.wait_state("stage", "asked", str, timeout=60) == await run.state("stage", str)
    with pytest.raises(TimeoutError, match="did not publish"):
        await run.wait_state("stage", lambda stage: stage == "never", timeout="10ms")
    assert await run.states() == {"stage": "asked"}
    await run.send("approval", "yes", key="k")
    await engine.send(run.id, "approval", "no", key="k")
    assert await run.result(timeout=60) == "yes"
    done = await run.info()
    assert (await engine.runs.updated_at([done]))[run.id] >= done.finished_at
    with pytest.raises(RunFinished, match="did not publish the state 'other'"):
        await run.wait_state("other")
    asked = await engine.start(desk())
    assert await asked.ask("quote", 21, returns=int, timeout=60) == 42
    counted = await engine.start(counting(3, hold=True))
    seen = []
    async for item in counted.stream("numbers", int):
        seen.append(item)
        if len(seen) == 3:
            await counted.send("go", True)
    assert [(one.position, one.value) for one in seen] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert [one.value async for one in counted.stream("numbers", after=1, follow=False)] == [2, 3]


async def test_runs_are_steered(engine: Engine) -> None:
    run = await engine.start(sleeper(), id="s")
    await until(run, Status.WAITING)
    assert await run.pause("lunch")
    assert not await run.pause()
    assert await run.resume()

    async def sleeps() -> bool:
        return (await run.info()).reason is Reason.TIMER

    await eventually(sleeps)
    await run.wake()
    assert await run.result(timeout=60) == "awake"
    other = await engine.start(sleeper(), id="t")
    assert await other.cancel("enough")
    with pytest.raises(RunCancelled):
        await other.result(timeout=60)
    assert not await other.cancel()
    assert await other.delete("old")
    assert await other.undelete()
    assert await engine.runs.delete("t", purge=True)
    with pytest.raises(RunNotFound):
        await engine.get("t")
    dead = await failing(engine, "d")
    assert await dead.retry() == 2
    with pytest.raises(RunFailed):
        await dead.result(timeout=60)
    forked = await dead.fork(input=checkout(Order("d", 9)))
    assert await forked.result(timeout=60) == "paid 9"
    number = next(record.seq for record in await forked.history() if record.kind is RecordKind.STEP)
    assert await (await forked.fork(from_step=number)).result(timeout=60) == "paid 9"
    with pytest.raises(UsageError, match="has no record 99"):
        await forked.fork(from_step=99)
    ended = await engine.start(sleeper())
    assert await ended.terminate("no")
    with pytest.raises(RunFailed, match="no"):
        await ended.result(timeout=60)


async def test_errors_have_the_class_and_the_text_of_an_engine_on_the_database(client: Engine, local: Served) -> None:
    run = await client.start(checkout(Order("x", 1)), id="x")
    await run.result(timeout=60)
    mistakes: list[tuple[type[Exception], Any]] = [
        (RunNotFound, lambda one: one.get("nowhere")),
        (RunNotFound, lambda one: one.send("nowhere", "hello")),
        (RunNotFound, lambda one: one.runs.terminate("nowhere")),
        (RunNotFound, lambda one: one.runs.pause("nowhere")),
        (RunFinished, lambda one: one.send("x", "hello")),
        (RunFinished, lambda one: one.runs.retry("x")),
        (RunFinished, lambda one: one.runs.wake("x")),
        (RunExists, lambda one: one.start(checkout(Order("x", 2)), id="x")),
        (InvalidId, lambda one: one.start(checkout(Order("x", 2)), id=" ")),
        (InvalidId, lambda one: one.runs.delete("")),
        (BadArguments, lambda one: one.start(Call.named("http.checkout.v1", nonsense=1))),
        (UsageError, lambda one: one.start(checkout)),
        (UsageError, lambda one: one.runs.list(limit=0)),
        (UsageError, lambda one: one.runs.list(colour="red")),
        (UsageError, lambda one: one.runs.bulk("dance", "x")),
        (UsageError, lambda one: one.runs.start_bulk("cancel")),
        (UsageError, lambda one: one.dead_letters.get("x")),
        (UsageError, lambda one: one.dead_letters.retry()),
        (UsageError, lambda one: one.queues.pause()),
        (ScheduleNotFound, lambda one: one.schedules.get("none")),
        (ScheduleNotFound, lambda one: one.schedules.trigger("none")),
        (UsageError, lambda one: one.limits.set("imports", rate="often")),
    ]
    for kind, mistake in mistakes:
        with pytest.raises(kind) as here:
            await mistake(client)
        with pytest.raises(kind) as there:
            await mistake(local.engine)
        assert type(here.value) is type(there.value)
        assert str(here.value) == str(there.value)


async def test_attributes_of_errors_come_along(client: Engine) -> None:
    await client.start(sleeper(), id="one", singleton=Singleton("only"))
    with pytest.raises(SingletonBusy) as busy:
        await client.start(sleeper(), singleton=Singleton("only"))
    assert busy.value.run_id == "one"
    await client.queues.watermarks.set(Watermark(queue="full", high=1))
    await client.start(sleeper(), queue="full")
    with pytest.raises(Overloaded) as full:
        for _ in range(50):
            await client.start(sleeper(), queue="full")
            await asyncio.sleep(0.1)
    assert full.value.high == 1
    run = await client.start(checkout(Order("x", -1)))
    with pytest.raises(RunFailed) as failed:
        await run.result(timeout=60)
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.run_id == run.id
    assert failed.value.failure is not None


async def test_a_call_has_the_settings_of_its_code_and_its_own_on_a_server_without_the_code(client: Engine) -> None:
    run = await client.start(mail("ada").options(retry=Retry(attempts=2, initial=0.01), schedule_to_close="1h"))
    with pytest.raises(RunFailed):
        await run.result(timeout=60)
    info = await run.info()
    assert info.deadline - info.created_at == pytest.approx(3600e6, abs=60e6)
    many = await client.start_many([checkout(Order("m", 1)), mail("eve")], ids=["m1", "m2"], attributes={"batch": 7})
    assert await many[0].result(timeout=60) == "paid 1"
    assert [one.id for one in (await client.runs.list(attributes={"batch": 7})).runs] == ["m2", "m1"]


async def test_a_schedule_keeps_its_window_over_http_and_lists_its_runs_in_its_zone(client: Engine) -> None:
    schedules, timing = client.schedules, Cron("0 * * * *", "Asia/Tokyo")
    start = datetime.datetime(2099, 1, 1, 9)
    made = await schedules.create("w", checkout(Order("h", 1)), timing, starts=start, skip=[datetime.date(2099, 1, 2)])
    assert made.window == Window(timing, start.replace(tzinfo=datetime.UTC, hour=0), None, (datetime.date(2099, 1, 2),))
    assert await schedules.get("w") == made
    assert (await schedules.change("w", skip=[], starts=None)).window == Window(timing)
    run = await schedules.trigger("w")
    [listed] = await schedules.runs("w")
    assert (listed.run_id, listed.fire_time, listed.created_at.utcoffset()) == (
        run.id, None, datetime.timedelta(hours=9)
    )  # fmt: skip
    with pytest.raises(InvalidSchedule, match="not a date"):
        await schedules.change("w", skip=["someday"])


async def test_schedules_are_created_changed_triggered_and_deleted(client: Engine) -> None:
    schedules = client.schedules
    made = await schedules.create("hourly", checkout(Order("h", 1)), Every("1h"), misfire="all", grace="2m", priority=5)
    assert isinstance(made.timing, Every)
    assert (made.timing.interval, made.misfire.limit, made.misfire.grace, made.priority) == (HOUR, None, 120, 5)
    changed = await schedules.change("hourly", grace="3m")
    assert (changed.misfire.limit, changed.misfire.grace) == (None, 180)
    assert await schedules.pause("hourly", "holiday")
    assert await schedules.resume("hourly", catch_up=True, reason="over")
    assert len(await schedules.next("hourly", 3)) == 3
    run = await schedules.trigger("hourly", "a test")
    assert await run.result(timeout=60) == "paid 1"
    now = datetime.datetime.now(datetime.UTC)
    assert await schedules.backfill("hourly", now - datetime.timedelta(hours=1), now, "an audit") == []
    await schedules.delete("hourly", "no longer needed")
    reasons = [json.loads(one.data).get("reason") for one in await schedules.events("hourly")]
    assert reasons == [None, None, "holiday", "over", "a test", "no longer needed"]
    with pytest.raises(ScheduleNotFound):
        await schedules.get("hourly")


@workflow("http.lines.v1")
async def lines(ctx: Context) -> None:
    for text in LINES:
        ctx.emit("lines", text)


#: Separators of lines that JSON does not escape.
LINES = ["a\u2028b", "a\u2029b", "a\x85b", "a\x7fb", "plain"]


async def test_an_item_of_a_stream_may_have_any_separator_of_lines(on_disk: Stage) -> None:
    async with (
        served(on_disk.engine(lines)) as site,
        Engine(site.url, [lines], token=site.tokens[Role.OPERATOR]) as engine,
    ):
        run = await engine.start(lines())
        assert [one.value async for one in run.stream("lines", str)] == LINES


#: A text that UTF-8 cannot hold.
LONE = "\ud800"
UNENCODABLE: dict[str, Callable[[Engine], Any]] = {
    "cancel": lambda engine: engine.cancel("r", LONE),
    "terminate": lambda engine: engine.runs.terminate("r", LONE),
    "delete": lambda engine: engine.runs.delete("r", LONE),
    "purge": lambda engine: engine.runs.delete("r", LONE, purge=True),
    "set_priority": lambda engine: engine.runs.set_priority("r", 1, LONE),
    "unpin": lambda engine: engine.runs.unpin("r", LONE),
    "pause a schedule": lambda engine: engine.schedules.pause("s", LONE),
    "pause a queue": lambda engine: engine.queues.pause(queue="q", reason=LONE),
    "a limit": lambda engine: engine.limits.set("l", rate=LONE),
    "a limit by name": lambda engine: engine.limits.set(LONE, concurrency=1),
    "a filter": lambda engine: engine.runs.list(type=LONE),
    "a filter of errors": lambda engine: engine.runs.list(error=LONE),
    "a count": lambda engine: engine.runs.count(type=LONE),
    "discard": lambda engine: engine.dead_letters.discard("r", reason=LONE),
    "discard by error": lambda engine: engine.dead_letters.discard(where={"error": LONE}),
    "bulk": lambda engine: engine.runs.bulk("cancel", ["r"], reason=LONE),
    "fork": lambda engine: engine.runs.retry("r", queue=LONE),
    "events": lambda engine: engine.audit.list(actor=LONE),
    "a cursor": lambda engine: engine.runs.list(cursor=LONE),
    "a cursor of published events": lambda engine: engine.outbox.list(cursor=LONE),
    "sticky events": lambda engine: engine.events.list(prefix=LONE),
}


@pytest.mark.parametrize("name", UNENCODABLE)
async def test_text_that_cannot_be_sent_is_refused_as_by_the_database(local: Served, client: Engine, name: str) -> None:
    await client.start(checkout(Order("r", 1)), id="r", queue="unserved")
    await client.schedules.create("s", sleeper(), Every("1h"))
    for engine in (local.engine, client):
        with pytest.raises(PerdureError):
            await UNENCODABLE[name](engine)


FILTERS: RunFilters = {
    "status": Status.PENDING,
    "type": "http.sleeper.v1",
    "queue": "beds",
    "parent": "mother",
    "schedule": "hourly",
    "id_prefix": "bed",
    "roots": True,
    "error": "refused",
    "build": "b1",
    "attributes": {"size": (">=", 2)},
    "created_after": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "created_before": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "deleted": True,
    "unserved": True,
}


@pytest.mark.parametrize("name", RunFilters.__annotations__)
async def test_listings_counts_and_bulk_actions_take_the_same_filters(client: Engine, local: Served, name: str) -> None:
    # No worker serves the queue, so the run stays as it is.
    await client.start(sleeper(), id="bed-1", queue="beds", attributes={"size": 3})
    where: RunFilters = {name: FILTERS[name]}  # type: ignore[misc]  # each name once
    expected = {one.id for one in (await local.engine.runs.list(**where)).runs}
    assert {one.id for one in (await client.runs.list(**where)).runs} == expected
    assert (await client.runs.count(**where)).count == len(expected)
    assert {one.id for one in (await client.runs.preview_bulk(where=where)).first} == expected


async def test_many_runs_and_dead_letters_are_acted_on(client: Engine) -> None:
    await client.start_many([sleeper() for _ in range(5)], queue="beds")
    preview = await client.runs.preview_bulk(where={"queue": "beds"})
    assert (preview.count.count, len(preview.first)) == (5, 5)
    report = await client.runs.bulk("cancel", where={"queue": "beds"}, reason="closed")
    assert (report.action, report.done) == ("cancel", 5)
    await failing(client, "dead")
    retried = await client.dead_letters.retry("dead")
    assert retried.done == ("dead",)
    with pytest.raises(RunFailed):
        await (await client.get("dead")).result(timeout=60)
    assert (await client.dead_letters.discard(where={})).done == ("dead",)
    assert [one.run_id for one in (await client.dead_letters.list(deleted=None)).letters] == ["dead"]
    assert (await client.dead_letters.prune("0s", deleted=True)).runs == 1
    assert (await client.runs.prune("0s", types="http.sleeper.v1")).runs >= 0
    assert await client.audit.prune("30d") == 0


async def test_the_audit_trail_is_followed(client: Engine) -> None:
    kinds = []
    following = client.audit.follow(after=0, run="f")
    await (await client.start(checkout(Order("f", 1)), id="f")).result(timeout=60)
    async for event in following:
        kinds.append(event.kind)
        if event.kind == "completed":
            break
    assert kinds[0] == "created"
    await following.aclose()


async def test_a_wrong_token_and_a_small_role_are_named_without_showing_the_token(local: Served) -> None:
    async def refused(engine: Engine) -> str:
        with pytest.raises(AccessRefused) as error:
            await engine.start(sleeper())
        await engine.close()
        return str(error.value)

    assert "viewer" in await refused(on_server(local, Role.VIEWER))
    told = await refused(Engine(local.url, WORKFLOWS, token="perdure_wrong"))
    assert "token" in told
    assert "perdure_wrong" not in told
    engine = on_server(local)
    assert local.tokens[Role.ADMIN] not in repr(engine)
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.runs.list()


#: Members that need the database or the code, and why they are refused.
REFUSED = {
    "Engine.check": "compares histories with the code of this process",
    "Locks.hold": "a lock is held by a process that the database sees",
    "Engine.worker": "a worker claims runs from the database",
    "Locks.acquire": "as Locks.hold",
    "Runs.bulk_worker": "the server works on bulk actions",
    "Runs.export": "reads histories with the seeds of their runs",
    "AuditTrail.level": "belongs to the processes that write",
}
#: Members that end the engine, or make another view of it.
APART = {"close", "__aexit__", "__aenter__", "open", "blocking"}


def members_of(engine: Engine, run: Handle[Any]) -> dict[str, Callable[[], Any]]:
    """A call of each public member of an engine, of its namespaces and of a handle."""
    found: dict[str, Callable[[], Any]] = {}
    for target in (engine, run, *(attrgetter(name)(engine) for name in NAMESPACES)):
        kind = type(target).__name__.removeprefix("Remote")
        public = {name for name in dir(type(target)) if not name.startswith("_")} - APART
        public -= {name.rpartition(".")[2] for name in NAMESPACES}
        for name, call in verbs(target, blocks=True):
            member = name.rpartition(".")[2]
            if member in public:
                found[f"{kind}.{member}"] = call
        for member in public:
            if isinstance(inspect.getattr_static(type(target), member), property):
                found[f"{kind}.{member}"] = partial(getattr, target, member)
    found["Engine.worker"], found["Locks.hold"] = engine.worker, partial(engine.locks.hold, "free")
    found["Runs.bulk_worker"] = engine.runs.bulk_worker
    # From the first event on: there is none to wait for.
    found["AuditTrail.follow"] = partial(engine.audit.follow, after=0)
    return found


async def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """The class of the value or of the error of a call, and the text of the error."""
    try:
        answer = call()
        if inspect.isawaitable(answer):
            answer = await asyncio.wait_for(answer, 30)
        elif hasattr(answer, "__anext__"):
            items = answer
            answer = await anext(items, None)
            await items.aclose()
    except Exception as error:
        return type(error).__name__, str(error)
    return type(answer).__name__.removeprefix("Remote"), ""


async def prepared(engine: Engine) -> Handle[Any]:
    run = await engine.start(greeted(), id="r1")
    await run.result(timeout=60)
    await engine.schedules.create("nightly", greeted(), Every("1h"))
    return run


async def test_every_member_works_as_on_the_database_or_is_refused(tmp_path: Path) -> None:
    here, there = (Stage(tmp_path / f"{name}.db") for name in ("here", "there"))
    async with (
        served(here.engine(greeted)) as site,
        there.engine(greeted) as database,
        database.worker(),
        Engine(site.url, [greeted], token=site.tokens[Role.ADMIN]) as engine,
    ):
        ours = members_of(engine, await prepared(engine))
        theirs = members_of(database, await prepared(database))
        assert ours.keys() == theirs.keys()
        assert len(ours) >= 93
        differing = {}
        for name, call in ours.items():
            mine, its = await outcome(call), await outcome(theirs[name])
            if name in REFUSED or "is not possible over HTTP" in mine[1]:
                assert mine[0] == "UsageError", name
                assert "is not possible over HTTP, where this engine has no database; " in mine[1], name
                assert name in REFUSED, f"{name} has no route, and this test no reason"
            elif mine[0] != its[0]:
                differing[name] = mine, its
        assert differing == {}
    await there.close()
    await here.close()


async def test_changes_of_limits_breakers_and_watermarks_keep_their_reason(client: Engine, local: Served) -> None:
    await client.limits.set("imports", concurrency=3, reason="set-limit")
    await client.limits.clear("imports", "clear-limit")
    await client.breakers.open("bank", "open")
    await client.breakers.close("bank", "close")
    await client.breakers.reset("bank", "reset")
    await client.queues.watermarks.set(Watermark(queue="mail", high=10), "set-queue")
    await client.queues.watermarks.remove(queue="mail", reason="remove-queue")
    await client.queues.watermarks.set(Watermark(type="mail.v1", high=10), "set-type")
    await client.queues.watermarks.remove(type="mail.v1", reason="remove-type")
    events = (await local.engine.audit.list()).events
    kept = [json.loads(one.data or "{}").get("reason") for one in reversed(events)]
    assert [one for one in kept if one] == [
        "set-limit", "clear-limit", "open", "close", "reset", "set-queue", "remove-queue", "set-type", "remove-type",
    ]  # fmt: skip


async def test_the_fleet_is_steered_over_http(engine: Engine, site: Served) -> None:
    run = await engine.start(approval(), id="steered")
    await until(run, Status.WAITING)
    assert await run.set_priority(7, "urgent")
    assert not await engine.runs.set_priority("steered", 7)
    assert (await run.info()).priority == 7
    [worker] = await engine.workers.list()
    assert (worker.build, worker.drain) == ((await run.info()).build, None)
    [source] = await eventually(lambda: engine.queues.sources("http.approval.v1"))
    assert source == (await site.engine.queues.sources("http.approval.v1"))[0]
    await site.engine.check()
    assert await engine.audit.deploy_checks() == await site.engine.audit.deploy_checks()
    await engine.schedules.create("hourly", counting(1), Cron("0 * * * *"))
    end = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    assert (await engine.schedules.preview_backfill("hourly", end - 3 * HOUR, end)).missing == 3
    await engine.schedules.backfill("hourly", end - 3 * HOUR, end)
    assert [one.run_id for one in await engine.schedules.fires("hourly")] == [
        one.run_id for one in await site.engine.schedules.fires("hourly")
    ]
    with pytest.raises(WorkerNotFound):
        await engine.workers.drain("unknown")
    assert await engine.workers.drain(worker.id, "new host", grace="2s")
    assert not await engine.workers.drain(worker.id)
    [worker] = await engine.workers.list()
    assert worker.drain is not None
    assert (worker.drain.reason, worker.drain.grace) == ("new host", 2.0)


async def test_tokens_are_managed_over_http_by_an_admin_and_the_audit_trail_names_it(site: Served) -> None:
    async with on_server(site) as engine, on_server(site, Role.OPERATOR) as operator:
        made = await engine.tokens.create("ci", Role.OPERATOR, expires="90d")
        assert made.info == await site.engine.tokens.get("ci") == await engine.tokens.get("ci")
        assert made.info.created_by == "token:admin"
        async with Engine(site.url, WORKFLOWS, token=made.token) as ci:
            await ci.runs.list()
            endless = await engine.tokens.create("endless")
            assert endless.info == await site.engine.tokens.get("endless")
            assert [one.name for one in await engine.tokens.list()] == ["admin", "ci", "endless", "operator", "viewer"]
            assert [one.name for one in await engine.tokens.list(limit=1, after="ci")] == ["endless"]
            revoked = await engine.tokens.revoke("ci")
            assert revoked.revoked_at > 0
            with pytest.raises(AccessRefused):
                await ci.runs.list()
        with pytest.raises(TokenExists):
            await engine.tokens.create("endless")
        with pytest.raises(TokenNotFound):
            await engine.tokens.revoke("gone")
        with pytest.raises(InvalidDuration):
            await engine.tokens.create("old", expires=datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        for call in (
            operator.tokens.create("mine", Role.ADMIN), operator.tokens.list(), operator.tokens.get("ci"),
            operator.tokens.revoke("admin"),
        ):  # fmt: skip
            with pytest.raises(AccessRefused):
                await call
        events = (await site.engine.audit.list(run="token:ci")).events
        assert [(one.kind, one.actor) for one in events] == [
            ("token_revoked", "token:admin"),
            ("token_created", "token:admin"),
        ]


async def test_the_text_of_a_new_token_does_not_leave_the_client(local: Served) -> None:
    digest = "0" * 64
    body = {"name": "ci", "digest": digest}
    first = await local.admin.call("POST", "/tokens", body)
    assert (first.status_code, first.json()["token"]) == (201, None)
    assert (await local.admin.call("POST", "/tokens", body)).json() == first.json()
    for other in ({"name": "other", "digest": digest}, {"name": "ci", "digest": "1" * 64}):
        assert (await local.admin.call("POST", "/tokens", other)).status_code == 409
    # Another token has the name by now.
    query = {"created_at": "2020-01-01T00:00:00Z"}
    assert (await local.admin.call("DELETE", "/tokens/ci", params=query)).json()["revoked_at"] is None


async def test_events_are_emitted_awaited_and_deleted_over_http(client: Engine) -> None:
    waiting = asyncio.ensure_future(client.events.wait("rates", int, "60s"))
    assert await client.events.get("rates") is None
    assert await client.events.emit("rates", 7)
    assert not await client.events.emit("rates", 8)
    assert await waiting == 7
    assert [(event.name, event.value) for event in await client.events.list(prefix="ra")] == [("rates", 7)]
    assert await client.events.emit("rates", 8, replace=True)
    found = await client.events.get("rates", int)
    assert found is not None
    assert found.value == 8
    assert await client.events.delete("rates")
    assert not await client.events.delete("rates")
