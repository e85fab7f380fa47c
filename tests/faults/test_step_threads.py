"""Sync steps in threads: none waits for another, whatever the moment at which it comes."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

from perdure.worker.steps.threads import Job, StepThreads
from tests.helpers import eventually


class Sluggish(queue.SimpleQueue[Job]):
    """A queue whose taker may be held up right after it has taken something."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def get(self, block: bool = True, timeout: float | None = None) -> Job:
        job = super().get(block, timeout)
        self.taken.set()
        self.go_on.wait(60)
        return job


async def test_a_step_does_not_wait_for_the_thread_of_another_that_has_just_begun() -> None:
    threads = StepThreads(50)
    jobs = threads._jobs = Sluggish()
    ended: list[str] = []
    second_has_run = threading.Event()

    def done(result: Any, _: BaseException | None) -> None:
        ended.append(result)

    def second() -> str:
        second_has_run.set()
        return "second"

    threads.submit(lambda: "first", done)
    await eventually(lambda: ended == ["first"] and threads._idle == 1)
    jobs.taken.clear()
    jobs.go_on.clear()
    threads.submit(lambda: "waited" if second_has_run.wait(60) else "waited in vain", done)
    await asyncio.to_thread(jobs.taken.wait, 60)
    threads.submit(second, done)
    jobs.go_on.set()
    await eventually(lambda: len(ended) == 3)
    assert sorted(ended) == ["first", "second", "waited"]
