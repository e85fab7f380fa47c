"""Group commit: one transaction in flight (on a database server a few), everything else gathers for the next.

No timer and no added latency: an idle journal sends a turn at once, a busy one sends as many as came together meanwhile. A turn
whose row was busy goes along with the next batch; when the database fails, the same batch is sent again until it answers, which
every verb of the store allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

from perdure.core.background_loops import Guard, Health
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.run import Block, Reason, Turn, Verdict
from perdure.core.system import System
from perdure.errors import EngineClosed, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from perdure.store.contract import Store
from perdure.worker.callbacks import Breakable, Moment
from perdure.worker.commit.attempt_log import Subject, Witness

logger = logging.getLogger("perdure.worker")

#: Turns in one transaction at the most, so that one batch never holds the database for long.
MAX_BATCH = 1000

#: Of a batch whose authors are told in parts.
SMALLEST_PART = 16

#: A turn that the database refuses so often, for a reason that does not pass by itself, is not tried with others any more.
REFUSALS = 3
_PASSING = (StoreUnavailable, StoreFull, StoreReadOnly)

# A member of an enum is slow to find by its class; this one is looked at for every step.
_BUSY = Verdict.BUSY


class Author(Breakable, Subject, Protocol):
    """Whoever has turns to make durable."""

    def make_turn(self, moment: Moment) -> Turn | None:
        """What to write now; None if nothing any more. Asked at the last moment, so that one turn carries all there is."""

    def landed(self, verdict: Verdict, moment: Moment) -> None:
        """What became of that turn. Called from a plain callback of the loop, never inside a task."""


class Journal:
    """See the module."""

    def __init__(
        self,
        store: Store,
        system: System,
        actor: Callable[[], str],
        moment: Callable[[], Moment],
        health: Health,
        witness: Witness | None = None,
    ) -> None:
        self._store = store
        self._system = system
        self._actor = actor
        self._moment = moment
        self._guard = Guard("journal", system, health, logger)
        self.witness = Witness() if witness is None else witness
        self._waiting: dict[Author, Turn | None] = {}
        self._writing: set[asyncio.Task[None]] = set()
        #: Batches that are being written or whose authors are still being told.
        self._under_way = 0
        #: Whether a batch leaves as soon as those are asked that may add to it.
        self._leaving = False
        self._gathering = False
        #: Authors that were set aside because they could not make a turn.
        self._broken: WeakSet[Author] = WeakSet()
        self.batches = 0
        self.turns = 0

    def submit(self, author: Author) -> None:
        """Ask the author for a turn with the next batch. Asking twice is asking once."""
        self._waiting.setdefault(author, None)
        if not self._leaving and len(self._writing) < self._store.lanes:
            self._leaving = True
            if not self._gathering:
                asyncio.get_running_loop().call_soon(self._leave_soon)

    def gather(self) -> None:
        """Many runs are about to be told of something: what they submit waits for `leave` or `leave_later`."""
        self._gathering = True

    def leave(self, moment: Moment) -> None:
        """All were told by that moment; what they submitted leaves together, and one callback of the loop earlier."""
        self._gathering = False
        if self._leaving:
            self._leave(moment)

    def leave_later(self) -> None:
        """Not all were told."""
        self._gathering = False
        if self._leaving:
            asyncio.get_running_loop().call_soon(self._leave_soon)

    def forget(self) -> None:
        """Write nothing more of what the worker held in its life before: its actor is another one now."""
        self._waiting.clear()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to write and nothing being written."""
        return not self._leaving and not self._under_way

    def _leave_soon(self) -> None:
        # It may have left with others meanwhile.
        if self._leaving:
            self._leave(self._moment())

    def _leave(self, moment: Moment) -> None:
        self._leaving = False
        batch: list[tuple[Author, Turn]] = []
        waiting, self._waiting = self._waiting, {}
        for author, kept in waiting.items():
            if len(batch) >= MAX_BATCH:
                self._waiting[author] = kept
                continue
            turn = kept or self._made(author, moment)
            if turn is not None:
                batch.append((author, turn))
        if batch:
            self.batches += 1
            self.turns += len(batch)
            self._under_way += 1
            self._writing.add(self._system.spawn(self._write(batch, self._actor()), "perdure journal"))

    def _made(self, author: Author, moment: Moment) -> Turn | None:
        """Ask for a turn. An author that cannot say what to write is set aside; one that cannot say even that is let go of."""
        try:
            return author.make_turn(moment)
        except Exception as error:
            self._guard.failed(error)
            if author in self._broken:
                author.landed(Verdict.LOST, moment)
            else:
                self._broken.add(author)
                author.break_off(error)
            return None

    async def _write(self, batch: list[tuple[Author, Turn]], actor: str) -> None:
        verdicts = await self._commit([turn for _, turn in batch], actor)
        if actor != self._actor():
            # What is busy is not tried again: a lease ends with the life in which it was got.
            verdicts = [Verdict.LOST if verdict is _BUSY else verdict for verdict in verdicts]
        asyncio.get_running_loop().call_soon(self._landed, asyncio.current_task(), batch, verdicts)

    async def _commit(self, turns: list[Turn], actor: str) -> list[Verdict]:
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
                    # One by one, to tell the one turn that cannot be written from its neighbours.
                    return [verdict for turn in turns for verdict in await self._commit([turn], actor)]
                elif await self._set_aside(turns[0], error, actor):
                    return [Verdict.LOST]
            else:
                self._guard.succeeded()
                return verdicts

    async def _set_aside(self, turn: Turn, error: Exception, actor: str) -> bool:
        """Block a run whose turn cannot be written; False: that was refused as well, so it is not the run's fault."""
        pause = self._guard.failed(error)
        block = Block(Reason.UNDECODABLE, Failure.of(error, Codec()).to_json())
        try:
            await self._store.commit([Turn(lease=turn.lease, next=block)], actor)
        except EngineClosed:
            raise
        except Exception as problem:
            pause = max(pause, self._guard.failed(problem))
            # Rows that are corrupt refuse everything; the claims of their run are counted until it is poison.
            if not isinstance(error, StoreCorrupt):
                await self._system.sleep(pause)
                return False
        logger.error("run %s is blocked: its turn cannot be written: %s", turn.lease.run_id, error)
        return True

    def _landed(
        self, task: asyncio.Task[None] | None, batch: list[tuple[Author, Turn]], verdicts: list[Verdict]
    ) -> None:
        assert task is not None
        self._writing.remove(task)
        if self.witness.cares:
            try:
                self.witness.saw(batch, verdicts, self._moment().now)
            except Exception as error:
                # What is told of turns must not keep them from having landed.
                self._guard.failed(error)
        self._tell(list(zip(batch, verdicts, strict=True)))

    def _tell(self, news: list[tuple[tuple[Author, Turn], Verdict]]) -> None:
        # In parts while the database has nothing to write: the runs told first are at work on their next turns while the rest are
        # told. With one lane both would only get in each other's way.
        part = len(news) if self._store.lanes == 1 or self._writing else max(SMALLEST_PART, len(news) // 2)
        moment = self._moment()
        for (author, turn), verdict in news[:part]:
            if verdict is _BUSY:
                self._waiting[author] = turn
                continue
            try:
                author.landed(verdict, moment)
            except Exception as error:
                author.break_off(error)
        if len(news) > part:
            asyncio.get_running_loop().call_soon(self._tell, news[part:])
        else:
            self._under_way -= 1
        if self._waiting and not self._leaving and len(self._writing) < self._store.lanes:
            self._leave(self._moment())
