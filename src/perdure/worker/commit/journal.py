"""Group commit: one transaction in flight (on a database server a few), everything else gathers for the next.

There is no timer and no added latency: an idle journal sends a turn at once, a busy one sends all that came together
meanwhile. A turn whose row was busy goes along with the next batch. When the database fails, the same batch is sent
again until it answers, which is safe because every verb of the store may be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Protocol, cast
from weakref import WeakSet

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.run import Reason
from perdure.core.model.turn import Block, Turn, TurnOutcome
from perdure.core.system import System
from perdure.errors import EngineClosed, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.store.contract import Store
from perdure.worker.batched_calls import Blockable, ClockReading
from perdure.worker.commit.attempt_log import AttemptLog, LoggedRun

logger = logging.getLogger("perdure.worker")

#: Turns in one transaction, at most, so that a batch never holds the database for long.
MAX_BATCH = 1000

#: Smallest part of a batch whose authors are notified in parts.
SMALLEST_PART = 16

#: Timed commits of which a worker reports the 99th percentile.
SAMPLES = 100

#: Refusals after which a turn is no longer sent together with others, unless the cause passes by itself.
REFUSALS = 3
_PASSING = (StoreUnavailable, StoreFull, StoreReadOnly)

# Looking up an enum member through its class is slow; this one is needed for every step.
_BUSY = TurnOutcome.BUSY
_turn_of = itemgetter(1)


class TurnAuthor(Blockable, LoggedRun, Protocol):
    """A run that has turns to commit."""

    def make_turn(self, reading: ClockReading) -> Turn | None:
        """Make the turn to write now; None if there is none. Called last, so that one turn carries all there is."""

    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        """Handle the verdict on that turn. Called from a plain callback of the loop, never inside a task."""


class Journal:
    """Commits the turns of one worker in batches."""

    def __init__(
        self,
        store: Store,
        system: System,
        actor: Callable[[], str],
        read_clock: Callable[[], ClockReading],
        health: LoopHealth,
        attempt_log: AttemptLog | None = None,
    ) -> None:
        self._store = store
        self._system = system
        self._actor = actor
        self._read_clock = read_clock
        self._telemetry = system.telemetry
        self._guard = LoopGuard("journal", system, health, logger)
        self.attempt_log = AttemptLog() if attempt_log is None else attempt_log
        self._waiting: dict[TurnAuthor, Turn | None] = {}
        self._writing: set[asyncio.Task[None]] = set()
        #: Batches that are being written or whose authors are being notified.
        self._under_way = 0
        #: Whether a batch leaves as soon as its authors have been asked for turns.
        self._flushing = False
        self._held_back = False
        #: Authors that were blocked because they could not make a turn.
        self._broken: WeakSet[TurnAuthor] = WeakSet()
        #: Whether the next commit is timed for the heartbeat, and the latest such times in seconds.
        self._sampling = True
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self.batches = 0
        self.turns = 0

    def submit(self, author: TurnAuthor) -> None:
        """Ask the author for a turn with the next batch. Asking twice is harmless."""
        self._waiting.setdefault(author, None)
        self._send_soon()

    def add(self, author: TurnAuthor, turn: Turn) -> None:
        """Send a turn that the author has made already with the next batch. It is the only one of the author."""
        self._waiting[author] = turn
        if not self._flushing:
            self._send_soon()

    def _send_soon(self) -> None:
        if not self._flushing and len(self._writing) < self._store.lanes:
            self._flushing = True
            if not self._held_back:
                asyncio.get_running_loop().call_soon(self._flush_now)

    def hold(self) -> None:
        """Hold back what is submitted until `flush` or `flush_later`: many runs are about to be called."""
        self._held_back = True

    def flush(self, reading: ClockReading) -> None:
        """Send what was submitted since `hold`, one callback of the loop earlier than otherwise."""
        self._held_back = False
        if self._flushing:
            self._flush(reading)

    def flush_later(self) -> None:
        """End `hold` after an error; what was submitted leaves in a later callback."""
        self._held_back = False
        if self._flushing:
            asyncio.get_running_loop().call_soon(self._flush_now)

    def forget(self) -> None:
        """Drop turns of the worker's previous life: they must not be written under the new id."""
        self._waiting.clear()

    def commit_p99(self) -> int:
        """Return the 99th percentile of the timed commits in microseconds, 0 if there is none, and time the next one.

        Called from the heartbeat's thread. One commit for each heartbeat is timed, so that usual commits cost nothing.
        """
        # Copied in one go: the main loop adds to it meanwhile.
        times = sorted(self._samples.copy())
        self._sampling = True
        return max(1, round(times[len(times) * 99 // 100] * 1e6)) if times else 0

    @property
    def idle(self) -> bool:
        """True if there is nothing to write and nothing being written."""
        return not self._flushing and not self._under_way

    def _flush_now(self) -> None:
        # It may have left with another batch meanwhile.
        if self._flushing:
            self._flush(self._read_clock())

    def _flush(self, reading: ClockReading) -> None:
        self._flushing = False
        waiting, self._waiting = self._waiting, {}
        if len(waiting) <= MAX_BATCH and all(waiting.values()):
            batch = cast("list[tuple[TurnAuthor, Turn]]", list(waiting.items()))
        else:
            batch = self._batch_of(waiting, reading)
        if batch:
            self.batches += 1
            self.turns += len(batch)
            self._under_way += 1
            self._writing.add(self._system.spawn(self._write(batch, self._actor()), "perdure journal"))

    def _batch_of(self, waiting: dict[TurnAuthor, Turn | None], reading: ClockReading) -> list[tuple[TurnAuthor, Turn]]:
        """Ask the authors for their turns; those for which there is no room wait for the next batch."""
        batch: list[tuple[TurnAuthor, Turn]] = []
        for author, kept in waiting.items():
            if len(batch) >= MAX_BATCH:
                self._waiting[author] = kept
                continue
            try:
                turn = kept or author.make_turn(reading)
            except Exception as error:
                self._block_author(author, error, reading)
                continue
            if turn is not None:
                batch.append((author, turn))
        return batch

    def _block_author(self, author: TurnAuthor, error: Exception, reading: ClockReading) -> None:
        """Block an author that could not make a turn; if it fails again, it is dropped."""
        self._guard.failed(error)
        if author in self._broken:
            author.landed(TurnOutcome.LOST, reading)
        else:
            self._broken.add(author)
            author.block(error)

    async def _write(self, batch: list[tuple[TurnAuthor, Turn]], actor: str) -> None:
        sampled = self._sampling
        began = self._system.monotonic() if sampled or self._telemetry.committed is not None else 0.0
        self._sampling = False
        verdicts = await self._commit(list(map(_turn_of, batch)), actor)
        if sampled:
            self._samples.append(self._system.monotonic() - began)
        if actor != self._actor():
            # A lease ends with the worker's life, so busy turns of the previous life are not sent again.
            verdicts = [TurnOutcome.LOST if verdict is _BUSY else verdict for verdict in verdicts]
        asyncio.get_running_loop().call_soon(self._landed, asyncio.current_task(), batch, verdicts, began)

    async def _commit(self, turns: list[Turn], actor: str) -> list[TurnOutcome]:
        tries = 0
        while True:
            try:
                verdicts = await self._store.commit(turns, actor)
            except EngineClosed:
                raise
            except Exception as error:
                tries += 1
                refused = isinstance(error, StoreError) and not isinstance(error, StoreCorrupt) and tries < REFUSALS
                if refused or isinstance(error, _PASSING):
                    await self._system.sleep(self._guard.failed(error))
                elif len(turns) > 1:
                    # One by one, to find the turn that cannot be written.
                    return [verdict for turn in turns for verdict in await self._commit([turn], actor)]
                elif await self._block(turns[0], error, actor):
                    return [TurnOutcome.LOST]
            else:
                if self._guard.pause:
                    self._guard.succeeded()
                return verdicts

    async def _block(self, turn: Turn, error: Exception, actor: str) -> bool:
        """Block a run because its turn cannot be written; False if that failed, too: the run is not the cause."""
        pause = self._guard.failed(error)
        block = Block(Reason.UNDECODABLE, Failure.of(error, Codec()).to_json())
        try:
            await self._store.commit([Turn(lease=turn.lease, next=block)], actor)
        except EngineClosed:
            raise
        except Exception as problem:
            pause = max(pause, self._guard.failed(problem))
            # Corrupt rows refuse everything; the run's claims are counted until it is poison.
            if not isinstance(error, StoreCorrupt):
                await self._system.sleep(pause)
                return False
        logger.error("run %s is blocked: its turn cannot be written: %s", turn.lease.run_id, error)
        return True

    def _landed(
        self,
        task: asyncio.Task[None] | None,
        batch: list[tuple[TurnAuthor, Turn]],
        verdicts: list[TurnOutcome],
        began: float,
    ) -> None:
        assert task is not None
        self._writing.remove(task)
        if self.attempt_log.enabled:
            try:
                self.attempt_log.log_batch(batch, verdicts, self._read_clock().now)
            except Exception as error:
                # An error in the log must not keep turns from being handled.
                self._guard.failed(error)
        if (tell := self._telemetry.committed) is not None:
            seconds = self._system.monotonic() - began if began else 0.0
            tell(batch, verdicts, self._read_clock().now, seconds)
        self._notify(list(zip(batch, verdicts, strict=True)))

    def _notify(self, news: list[tuple[tuple[TurnAuthor, Turn], TurnOutcome]]) -> None:
        # In parts while the database has nothing to write, so that the first runs work on their next turns meanwhile.
        # With one lane both would only get in each other's way.
        part = len(news) if self._store.lanes == 1 or self._writing else max(SMALLEST_PART, len(news) // 2)
        reading = self._read_clock()
        for (author, turn), verdict in news[:part]:
            if verdict is _BUSY:
                self._waiting[author] = turn
                continue
            try:
                author.landed(verdict, reading)
            except Exception as error:
                author.block(error)
        if len(news) > part:
            asyncio.get_running_loop().call_soon(self._notify, news[part:])
        else:
            self._under_way -= 1
        if self._waiting and not self._flushing and len(self._writing) < self._store.lanes:
            self._flush(self._read_clock())
