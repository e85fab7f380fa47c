"""Fields of the run on records that users' own loggers make."""

from __future__ import annotations

import json
import logging
import logging.config
from collections.abc import Iterator
from datetime import date
from io import StringIO

import pytest
from opentelemetry.sdk.trace import TracerProvider

from perdure import Context, Engine, activity, step, step_info, workflow
from perdure.logs import JsonFormatter
from perdure.tracing import Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
FIELDS = ("message", "run_id", "run_type", "location", "attempt", "trace_id")
logger = logging.getLogger("tests.shop")


async def on_loop() -> None:
    logger.info("on the loop")


def in_thread() -> None:
    logger.info("in a thread")


@step(process=True)
def in_process() -> dict[str, str]:
    return {name: str(value) for name, value in step_info().log_fields.items()}


@activity("logs.mail.v1")
def mail() -> None:
    logger.info("in an activity", extra={"location": "mine"})


@workflow("logs.order.v1")
async def order(ctx: Context) -> dict[str, str]:
    logger.info("in a workflow")
    await ctx.step(on_loop)
    await ctx.step(in_thread)
    await ctx.call(mail())
    return await ctx.step(in_process)


@pytest.fixture
def streams() -> Iterator[tuple[StringIO, StringIO]]:
    """What two handlers write: one with the filter, configured by its name, and one with the JSON lines of a worker."""
    named, plain = StringIO(), StringIO()
    text = json.dumps({name: f"%({name})s" for name in FIELDS})
    handler = {"class": "logging.StreamHandler", "formatter": "named", "filters": ["run"], "stream": named}
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "incremental": False,
            "filters": {"run": {"()": "perdure.logs.RunFields"}},
            "formatters": {"named": {"format": text}},
            "handlers": {"named": handler},
            "loggers": {"tests.shop": {"level": "INFO", "handlers": ["named"]}},
        }
    )
    lines = logging.StreamHandler(plain)
    lines.setFormatter(JsonFormatter())
    logger.addHandler(lines)
    try:
        yield named, plain
    finally:
        logger.handlers.clear()


async def test_records_of_any_logger_have_the_fields_of_the_run(streams: tuple[StringIO, StringIO]) -> None:
    async with Engine("sqlite://", [order, mail]) as engine, engine.worker(warn_blocked=0):
        run = await engine.start(order(), id="o-1", headers=PARENT)
        in_process = await run.result()
    logger.info("outside")
    of_run = {"run_id": "o-1", "run_type": "logs.order.v1", "attempt": "1", "trace_id": TRACE}
    assert in_process == {**of_run, "location": "in_process"}
    wanted = [
        {"message": "in a workflow", **of_run, "location": ""},
        {"message": "on the loop", **of_run, "location": "on_loop"},
        {"message": "in a thread", **of_run, "location": "in_thread"},
        {"message": "in an activity", **of_run, "run_id": "o-1/logs.mail.v1", "run_type": "logs.mail.v1"}
        | {"location": "mine"},
        {"message": "outside", **dict.fromkeys(FIELDS[1:], "")},
    ]
    assert [json.loads(line) for line in streams[0].getvalue().splitlines()] == wanted
    lines = [json.loads(line) for line in streams[1].getvalue().splitlines()]
    assert [{name: str(one.get(name, "")) for name in FIELDS} for one in lines] == wanted


@pytest.fixture
def lines() -> Iterator[StringIO]:
    """What the JSON formatter makes of all records."""
    written = StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    perdure = logging.getLogger("perdure")
    before = perdure.level
    perdure.setLevel(logging.DEBUG)
    for one in (logger, perdure):
        one.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield written
    finally:
        for one in (logger, perdure):
            one.removeHandler(handler)
        perdure.setLevel(before)


async def test_lines_about_the_ends_of_attempts_name_the_trace(lines: StringIO) -> None:
    async with Engine("sqlite://", [order, mail]) as engine, engine.worker(warn_blocked=0):
        run = await engine.start(order(), id="o-1", headers=PARENT)
        await run.result()
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    ends = [one for one in found if one["logger"] == "perdure.execution"]
    assert [one["scope"] for one in ends] == ["step", "step", "activity", "step", "run"]
    assert {one["trace_id"] for one in ends} == {TRACE}


class Odd:
    def __str__(self) -> str:
        raise RuntimeError


def test_a_line_of_json_has_the_fields_of_the_caller_whatever_they_are(lines: StringIO) -> None:
    extra = {"cents": 500, "when": date(2026, 1, 2), "share": float("nan"), "parts": {1: [Odd()]}, "odd": Odd()}
    try:
        raise ValueError("no")
    except ValueError:
        logger.exception("charged %s", "o-1", extra=extra, stack_info=True)
    found = [json.loads(line, parse_constant=pytest.fail) for line in lines.getvalue().splitlines()]
    # Threads that earlier tests have left may log something of their own.
    [line] = [one for one in found if one["logger"] == logger.name]
    assert (line["message"], line["level"], line["logger"]) == ("charged o-1", "error", "tests.shop")
    assert (line["cents"], line["when"], line["share"]) == (500, "2026-01-02", "nan")
    assert line["traceback"].endswith("ValueError: no")
    assert line["stack"].startswith("Stack (most recent call last):")
    assert {"parts", "odd"} <= line.keys()
    assert line.keys() <= {"at", "message", "level", "logger", "traceback", "stack", *extra}


async def test_the_fields_name_the_trace_of_a_run_without_headers(streams: tuple[StringIO, StringIO]) -> None:
    engine = Engine("sqlite://", [order, mail], tracing=Tracing(TracerProvider()))
    async with engine, engine.worker(warn_blocked=0):
        await (await engine.start(order())).result()
    found = {json.loads(line)["trace_id"] for line in streams[0].getvalue().splitlines()}
    assert len(found) == 1
    assert len(found.pop()) == 32
