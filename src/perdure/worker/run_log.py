"""Log lines that are kept with their runs: a handler of `logging`, and the task that writes its lines.

The lines are for people, like the audit trail: nothing depends on them, and no step waits for them. They are written in
batches, outside of turns, so that a step that hangs or is killed has shown its lines before. What cannot be written is
dropped; a kill costs the lines of the last second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.model.outputs import NewOutput
from perdure.core.run_log import (
    LONGEST_TEXT,
    LONGEST_TRACEBACK,
    LoggedLine,
    clipped,
    clipped_end,
    line_output,
)
from perdure.core.system import System
from perdure.store.contract import LOG_CHUNK, Store
from perdure.worker.log_fields import current_fields

logger = logging.getLogger("perdure.worker")

#: Seconds for which lines are collected before they are written.
PAUSE = 1.0
#: Lines that wait to be written at most; further ones are dropped.
MOST_WAITING = 50_000


class RunLog(logging.Handler):
    """Collects the lines that the code of held runs logs, and writes them to the database."""

    def __init__(
        self,
        store: Store,
        system: System,
        health: LoopHealth,
        most: int,
        *,
        actor: Callable[[], str],
        holds: Callable[[str], bool],
    ) -> None:
        """Keep the latest `most` lines of each run; `holds` tells whether the worker has a run, from any thread."""
        super().__init__()
        self._store = store
        self._system = system
        self._health = health
        self._most = most
        self._actor = actor
        self._holds = holds
        self._waiting: dict[str, deque[NewOutput]] = {}
        self._count = 0
        self._lines = 0
        self._dropped = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filled: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None
        self._pid = os.getpid()
        #: Tells the keys of this worker's lines from those of all others.
        self._series = system.entropy(8).hex()

    def start(self) -> None:
        """Start collecting and writing."""
        self._loop, self._filled = asyncio.get_running_loop(), asyncio.Event()
        guard = LoopGuard("run log", self._system, self._health, logger)
        self._task = self._system.spawn(guard.keep_going(self._write_on), "perdure run log")
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        """Stop collecting."""
        logging.getLogger().removeHandler(self)

    async def stop(self) -> None:
        """Write what was collected, and end."""
        self.detach()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        try:
            await self._write()
        except Exception as error:
            logger.warning("the last log lines of runs were not kept: %s", error)

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a line of a held run. Called from any thread, under the lock of the handler."""
        # A forked child has the handler, and no worker.
        if os.getpid() != self._pid:
            return
        try:
            fields = current_fields()
            run_id = getattr(record, "run_id", None) or fields.get("run_id")
            if not isinstance(run_id, str) or not self._holds(run_id):
                return
            if self._count >= MOST_WAITING:
                self._dropped += 1
                return
            self._collect(run_id, record, fields)
        except Exception:
            self.handleError(record)

    def _collect(self, run_id: str, record: logging.LogRecord, fields: dict[str, object]) -> None:
        found = {name: getattr(record, name, None) or fields.get(name) for name in ("location", "attempt")}
        attempt = found["attempt"]
        self._lines += 1
        line = LoggedLine(
            at=self._store.clock(),
            level=record.levelname,
            logger=clipped(record.name, LONGEST_TEXT),
            text=clipped(record.getMessage(), LONGEST_TEXT),
            location=clipped(str(found["location"] or ""), LONGEST_TEXT),
            attempt=attempt if isinstance(attempt, int) else 0,
            traceback=clipped_end(_traceback(record), LONGEST_TRACEBACK),
        )
        lines = self._waiting.get(run_id)
        if lines is None:
            lines = self._waiting[run_id] = deque(maxlen=self._most)
        self._count += len(lines) < self._most
        lines.append(line_output(line, f"log:{self._series}:{self._lines}"))
        if self._count == 1 and self._loop is not None and self._filled is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._filled.set)

    async def _write_on(self) -> None:
        assert self._filled is not None
        while True:
            await self._filled.wait()
            await self._system.sleep(PAUSE)
            self._filled.clear()
            await self._write()

    async def _write(self) -> None:
        self.acquire()
        try:
            waiting, self._waiting, self._count = self._waiting, {}, 0
            dropped, self._dropped = self._dropped, 0
        finally:
            self.release()
        if dropped:
            logger.warning("%d log lines of runs were not kept: more than %d waited", dropped, MOST_WAITING)
        for chunk in _chunks(waiting):
            await self._store.keep_log(chunk, self._most, self._actor())


def _traceback(record: logging.LogRecord) -> str:
    if record.exc_info and record.exc_info[1] is not None:
        return "".join(traceback.format_exception(record.exc_info[1]))
    return record.exc_text or ""


def _chunks(waiting: dict[str, deque[NewOutput]]) -> Iterator[list[tuple[str, NewOutput]]]:
    lines = [(run_id, line) for run_id, some in waiting.items() for line in some]
    return (lines[at : at + LOG_CHUNK] for at in range(0, len(lines), LOG_CHUNK))
