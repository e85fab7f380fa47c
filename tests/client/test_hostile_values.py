"""Values of subclasses are used as their base classes; numbers that no database holds are refused where they are given.

The engine on a database and the engine on a server answer alike.
"""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest

from perdure import Breaker, Cron, Engine, Limit, Retry, Watermark
from perdure.admin import Role
from perdure.dashboard import Dashboard
from perdure.errors import DecodeError, EncodeError, UsageError
from tests.fuzz.hostile import Number, Rude, Text, act, anything
from tests.http.serving import served

THREE, WORD = Number(3), Text("word")
#: More digits than Python converts to text, and more than a database holds.
HUGE = (10**5000, 10**400, 2**63)


@pytest.fixture(params=["database", "server"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    async with Engine("sqlite://", [anything, act]) as local:
        if request.param == "database":
            yield local
            return
        async with (
            served(local, work=False) as site,
            Engine(site.url, [anything, act], token=site.tokens[Role.ADMIN]) as remote,
        ):
            yield remote


async def test_texts_and_numbers_of_subclasses_are_plain_values(engine: Engine) -> None:
    policies: Any = {"retry": Retry(attempts=THREE, factor=THREE), "breaker": Breaker(WORD, failures=THREE)}
    run = await engine.start(
        act(3).options(limit=[Limit(WORD, concurrency=THREE)], **policies), priority=THREE, queue=WORD
    )
    assert (await run.info()).queue == "word"
    await engine.limits.set(WORD, concurrency=THREE, reason=WORD)
    await engine.breakers.open(WORD, WORD)
    await engine.queues.watermarks.set(Watermark(queue=WORD, high=THREE), WORD)
    await engine.schedules.create(WORD, anything(1), Cron("@daily"), priority=THREE, queue=WORD)
    assert await engine.runs.set_priority(run.id, Number(5), WORD)
    assert [one.name for one in await engine.limits.list()] == ["word"]


@pytest.mark.parametrize("number", HUGE, ids=["digits", "float", "bits"])
async def test_a_number_that_no_database_holds_is_refused(engine: Engine, number: int) -> None:
    run = await engine.start(anything(1))
    with pytest.raises(UsageError):
        Retry(attempts=number)
    with pytest.raises(UsageError):
        Watermark(queue="q", high=number)
    with pytest.raises(UsageError):
        await run.fork(from_step=number)
    with pytest.raises(UsageError):
        await engine.runs.retry(run.id, priority=number)
    with pytest.raises(UsageError):
        await engine.limits.set("l", concurrency=number)


@pytest.mark.parametrize("moment", [5, "5m", None, datetime.date(2026, 1, 1), []])
async def test_a_backfill_goes_from_one_datetime_to_another(engine: Engine, moment: Any) -> None:
    await engine.schedules.create("nightly", anything(1), Cron("@daily"))
    now = datetime.datetime.now(datetime.UTC)
    for verb in (engine.schedules.backfill, engine.schedules.preview_backfill):
        with pytest.raises(UsageError, match="start=.*give a datetime"):
            await verb("nightly", moment, now)
        with pytest.raises(UsageError, match="end=.*give a datetime"):
            await verb("nightly", now, moment)


async def test_a_type_that_cannot_be_shown_is_refused(engine: Engine) -> None:
    await engine.events.emit("rates", 1)
    for verb in (engine.events.get, engine.events.wait):
        with pytest.raises(DecodeError, match="<Rude>, the type of value of event 'rates', cannot be decoded"):
            await verb("rates", Rude())


def test_a_neighbour_with_a_name_of_more_digits_than_python_shows_is_refused() -> None:
    neighbours: Any = {HUGE[0]: HUGE[0]}
    with pytest.raises(UsageError, match="the address of <int> is <int>"):
        Dashboard(neighbours=neighbours)


async def test_runs_without_workers_are_asked_for_by_runs(engine: Engine) -> None:
    runs: Any = [1.5]
    with pytest.raises(UsageError, match="give runs"):
        await engine.runs.unserved(runs)


@pytest.mark.parametrize("engine", ["server"], indirect=True)
async def test_a_value_that_cannot_be_sent_is_named(engine: Engine) -> None:
    odd: Any = 1j
    with pytest.raises(EncodeError, match="burst=1j cannot be sent to the server: a complex has no JSON"):
        await engine.limits.set("l", rate="1/s", burst=odd)
    with pytest.raises(EncodeError, match="correlation=Ellipsis"):
        await engine.runs.broadcast("go", correlation=...)  # type: ignore[call-overload] # that is the point
    with pytest.raises(UsageError, match="URL too long"):
        await engine.limits.holders("a" * 100_000)


@pytest.mark.parametrize(
    "url",
    ["https://[::1", "https://h:x", "https://h:99999", "https://h..x", "https://h\ud800", "https:// h", "https://h\n"],
)
def test_a_url_of_a_server_that_cannot_be_read_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a server; write https://host"):
        Engine(url, token="secret")


def test_an_unreadable_url_of_a_server_does_not_tell_its_password() -> None:
    with pytest.raises(UsageError) as refused:
        Engine("https://me:hidden@h\u2100/", token="secret")
    assert "hidden" not in str(refused.value)
    assert refused.value.__context__ is None
