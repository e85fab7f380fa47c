"""Each line that a workflow logs appears once, however often it is replayed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Context
from perdure.core.model.record import Record
from tests.replay.driver import Driver, named


async def flow(ctx: Context) -> Any:
    ctx.log.info("begins")
    await named(ctx, "a")
    ctx.log.info("after %s", "a")
    await named(ctx, "b")
    ctx.log.info("after b")


@pytest.fixture(autouse=True)
def _level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_new_run_logs_from_its_first_line(caplog: pytest.LogCaptureFixture) -> None:
    run = Driver(flow)
    run.complete("a")
    run.complete("b")
    assert caplog.messages == ["begins", "after a", "after b"]


def test_replay_is_silent_and_what_is_new_is_not(caplog: pytest.LogCaptureFixture) -> None:
    run = Driver(flow)
    run.complete("a")
    caplog.clear()
    again = run.again()
    assert caplog.messages == []
    again.complete("b")
    assert caplog.messages == ["after b"]
    assert run.execution.evict()


def test_a_line_carries_the_runs_id_beside_what_the_caller_adds(caplog: pytest.LogCaptureFixture) -> None:
    async def telling(ctx: Context) -> None:
        ctx.log.warning("look", extra={"order": "o-1"})

    Driver(telling)
    [record] = caplog.records
    assert vars(record)["run_id"] == "run-1"
    assert vars(record)["order"] == "o-1"


def test_nothing_is_formatted_while_silent() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted during replay")

    history: list[Record] = []

    async def costly(ctx: Context) -> None:
        if history:
            ctx.log.info("%s", Costly())
            assert not ctx.log.isEnabledFor(logging.CRITICAL)
        await named(ctx, "a")

    run = Driver(costly)
    run.complete("a")
    history.extend(run.history)
    assert run.again().result is None


def test_another_attempt_at_the_run_logs_again(caplog: pytest.LogCaptureFixture) -> None:
    run = Driver(flow)
    run.complete("a")
    assert run.execution.evict()
    caplog.clear()
    other = Driver(flow, history=run.history, attempt=2)
    assert caplog.messages == ["begins"]
    assert other.execution.evict()
