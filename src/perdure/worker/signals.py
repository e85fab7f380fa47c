"""Signal handling: a worker that stops in order on SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Any, Protocol

from perdure.core.system import System

logger = logging.getLogger("perdure.worker")

#: Seconds that a worker waits for the database after a second signal.
SECOND_SIGNAL_PATIENCE = 2.0


class Stoppable(Protocol):
    """A worker that signals can stop."""

    id: str
    #: Set when an operator orders the worker to drain.
    ordered_to_drain: asyncio.Event

    async def start(self) -> None:
        """Start to work."""

    async def stop(self) -> None:
        """Stop in order."""

    def release_rest(self) -> None:
        """Give back every run as it is."""

    def abandon(self) -> None:
        """End without writing to the database."""


async def work_until_signalled(worker: Stoppable, system: System) -> None:
    """Start, work until SIGTERM, SIGINT, an order to drain or cancellation, then stop.

    After a second signal, do not wait for steps.
    """
    loop = asyncio.get_running_loop()
    signalled: asyncio.Future[None] = loop.create_future()
    stopping: asyncio.Task[None] | None = None

    def on_signal() -> None:
        if not signalled.done():
            signalled.set_result(None)
        elif stopping is not None:
            worker.release_rest()
            # A database that does not accept the runs given back must not keep the process alive.
            system.call_later(SECOND_SIGNAL_PATIENCE, stopping.cancel)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        await worker.start()
        ordered = system.spawn(worker.ordered_to_drain.wait(), "perdure drain order")
        either: list[asyncio.Future[Any]] = [signalled, ordered]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ordered.cancel()
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
