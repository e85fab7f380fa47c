"""A worker that is told to stop by signals."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from perdure.host import Host
from perdure.worker.signals import work_until_signalled

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="event loops have no signal handlers there")


class Slow:
    """A worker whose steps do not end."""

    id = "w"

    def __init__(self) -> None:
        self.started, self.stopping, self.released = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.abandoned = False
        self.ordered_to_drain = asyncio.Event()

    async def start(self) -> None:
        self.started.set()

    async def stop(self) -> None:
        self.stopping.set()
        await self.released.wait()

    def release_rest(self) -> None:
        self.released.set()

    def abandon(self) -> None:
        self.abandoned = True


async def test_the_first_signal_waits_for_steps_and_the_second_one_does_not() -> None:
    worker = Slow()
    work = asyncio.create_task(work_until_signalled(worker, Host()))
    await asyncio.wait_for(worker.started.wait(), 30)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(worker.stopping.wait(), 30)
    assert not work.done()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(work, 30)
    assert worker.released.is_set()
    assert not worker.abandoned
    # From now on the program ends at a signal as before.
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert handlers == [signal.SIG_DFL, signal.default_int_handler]


async def test_an_order_to_drain_ends_the_work_and_steps_are_waited_for() -> None:
    worker = Slow()
    work = asyncio.create_task(work_until_signalled(worker, Host()))
    await asyncio.wait_for(worker.started.wait(), 30)
    worker.ordered_to_drain.set()
    await asyncio.wait_for(worker.stopping.wait(), 30)
    assert not work.done()
    worker.released.set()
    await asyncio.wait_for(work, 30)
    assert not worker.abandoned
