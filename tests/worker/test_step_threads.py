"""Threads of abandoned sync steps."""

from __future__ import annotations

import logging
import threading
from functools import partial

import pytest

from perdure.worker.steps.threads import StepThreads
from tests.helpers import eventually


async def test_a_worker_says_once_that_too_many_threads_are_abandoned_and_once_that_they_have_returned(
    caplog: pytest.LogCaptureFixture,
) -> None:
    threads = StepThreads(2)
    begun, returns = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def step(number: int) -> None:
        begun[number].set()
        assert returns[number].wait(60)

    jobs = [threads.submit(partial(step, number), lambda *_: None) for number in range(3)]
    await eventually(lambda: all(one.is_set() for one in begun))
    for job in jobs:
        threads.abandon(job)
    returns[0].set()
    await eventually(lambda: jobs[0].finished)
    assert threads.clogged
    returns[1].set()
    await eventually(lambda: not threads.clogged)
    returns[2].set()
    await eventually(lambda: jobs[2].finished)
    told = [record for record in caplog.records if "abandoned" in record.message]
    said = [(record.levelno, record.message.partition(";")[0]) for record in told]
    assert [level for level, _ in said] == [logging.ERROR, logging.WARNING]
    assert said[1][1] == "threads of abandoned steps have returned"
