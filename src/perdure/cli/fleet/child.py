"""A worker process of `perdure worker --processes`.

It loads the user's code, tells the supervisor which database that needs, is given its share of slots and connections,
and works until its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import msgspec

from perdure.cli.children.child_side import BROKEN, READY, ParentPipe
from perdure.cli.console import logs
from perdure.cli.console.target import load_engine
from perdure.cli.fleet.messages import Broken, FleetSettings, Loaded, Share
from perdure.cli.workers import fast_loop, metrics_endpoint, tune_collector
from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.client.workers import EngineWorker
from perdure.core.audit import Audit
from perdure.core.codec.decoders import decoder_for
from perdure.errors import PerdureError, UsageError
from perdure.host import run_to_end
from perdure.store.url import is_in_memory, shown
from perdure.worker import Worker, WorkerSettings, work_until_signalled

#: Seconds beyond the grace period after which a worker process whose supervisor has gone kills itself.
ORPHAN_PATIENCE = 60.0


_settings = decoder_for(FleetSettings)
_share = decoder_for(Share)


def main(arguments: list[str]) -> int:
    """Run a worker process and return its exit code."""
    settings = _settings.decode(arguments[0])
    supervisor = ParentPipe(settings.told)
    try:
        engine = load_engine(settings.target)
        _check(engine)
        logs.configure(settings.log_level, settings.log_format, json=settings.json)
        if settings.audit is not None:
            engine.audit.level = Audit(settings.audit)
        session = session_of(engine)
        if settings.database_timeout is not None:
            session.set_call_timeout(settings.database_timeout)
        types = tuple(sorted(session.served_code()))
        report = Loaded(url=shown(engine.url), types=types, exclusive=session.store.exclusive)
        supervisor.write(msgspec.json.encode(report))
        orders = _Orders(settings.grace + ORPHAN_PATIENCE)
        share = orders.read_share()
        if share is None:
            return 0
        tune_collector()
        with suppress(asyncio.CancelledError):
            run_to_end(_work(engine, settings, share, orders, supervisor), fast_loop())
    except (PerdureError, SystemExit) as error:
        text = f"the module ends the process: {error!r}" if isinstance(error, SystemExit) else str(error)
        supervisor.write(msgspec.json.encode(Broken(error=text)), last=True)
        return BROKEN
    except KeyboardInterrupt:
        pass
    return 0


def _check(engine: Engine) -> None:
    if is_in_memory(engine.url):
        raise UsageError(
            f"the engine is on {engine.url}, a database in memory, which processes cannot share; name a file: "
            "sqlite:///app.db, or leave out --processes"
        )


class _Orders:
    """Messages of the supervisor: a share, and then the end of the pipe, at which the process drains."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._ended = threading.Event()

    def read_share(self) -> Share | None:
        """Wait for the share; None if the supervisor has gone."""
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(0, 1)
            if not part:
                return None
            line += part
        return _share.decode(line)

    def drain_at_eof(self, drain: Callable[[], object]) -> None:
        """Start a thread that drains this process when its input ends, as it does when the supervisor dies."""
        loop = asyncio.get_running_loop()

        def wait() -> None:
            # Unbuffered: a thread inside a buffered read would abort the interpreter when it ends.
            while os.read(0, 4096):
                continue
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(drain)
            # No supervisor may be left to kill a process whose code hangs.
            if not self._ended.wait(self._patience):
                os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=wait, name="perdure supervisor", daemon=True).start()


class _ReportingWorker:
    """A worker that tells the supervisor when it has started."""

    def __init__(self, worker: Worker, started: Callable[[], object]) -> None:
        self._worker = worker
        self._started = started
        self.ordered_to_drain = worker.ordered_to_drain
        self.id = worker.id

    async def start(self) -> None:
        await self._worker.start()
        self.id = self._worker.id
        self._started()

    async def stop(self) -> None:
        await self._worker.stop()

    def release_rest(self) -> None:
        self._worker.release_rest()

    def abandon(self) -> None:
        self._worker.abandon()


async def _work(engine: Engine, settings: FleetSettings, share: Share, orders: _Orders, supervisor: ParentPipe) -> None:
    session, task = session_of(engine), asyncio.current_task()
    given: dict[str, Any] = {"slots": share.slots, "step_processes": share.step_processes, "worker_id": share.worker_id}
    checked = WorkerSettings.of(**{**settings.options, **given}, retention=session.retention)
    session.share_connections(share.processes)
    worker: Worker | None = None

    def drain() -> None:
        if worker is not None:
            worker.ordered_to_drain.set()
        elif task is not None:
            task.cancel()

    orders.drain_at_eof(drain)
    try:
        async with AsyncExitStack() as stack:
            await EngineWorker(session, checked).connect()
            if settings.metrics is not None:
                await stack.enter_async_context(metrics_endpoint(engine, settings.metrics))
            worker = session.make_worker(checked)
            reporting = _ReportingWorker(worker, lambda: supervisor.write(READY))
            await work_until_signalled(reporting, session.system)
    finally:
        await engine.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
