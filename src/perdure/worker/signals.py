"""A worker that works until its process is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Protocol

from perdure.core.system import System

logger = logging.getLogger("perdure.worker")

#: How long a worker that was told twice to stop waits for the database to take what it gives back, in seconds.
SECOND_SIGNAL_PATIENCE = 2.0


class Stoppable(Protocol):
    """What is told."""

    id: str

    async def start(self) -> None:
        """Begin to work."""

    async def stop(self) -> None:
        """Stop in order."""

    def release_rest(self) -> None:
        """Give back every run as it is."""

    def abandon(self) -> None:
        """End here without a word to the database."""


async def work_until_signalled(worker: Stoppable, system: System) -> None:
    """Start, work until SIGTERM, SIGINT or cancellation, then stop in order; a second signal does not wait for steps."""
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[None] = loop.create_future()
    stopping: asyncio.Task[None] | None = None

    def on_signal() -> None:
        if not signalled.done():
            signalled.set_result(None)
        elif stopping is not None:
            worker.release_rest()
            # Giving back takes a write; a database that does not take it must not keep the process alive.
            system.call_later(SECOND_SIGNAL_PATIENCE, stopping.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await worker.start()
        await signalled
    finally:
        stopping = system.spawn(worker.stop(), "perdure stop")
        await asyncio.wait([stopping])
        if stopping.cancelled():
            logger.warning(
                "worker %s did not wait for the database; its runs go to others when its lease ends", worker.id
            )
            worker.abandon()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
