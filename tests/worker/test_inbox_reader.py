"""Number of reads of an inbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.core.background_loops import LoopHealth
from perdure.core.model.record import Message, RecordKind
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker.claiming.inbox_reader import InboxReader
from perdure.worker.run.held_run import HeldRun, Stage


class Inbox:
    """A store with so many messages for one run, in pages of two."""

    inbox_page = 2

    def __init__(self, count: int) -> None:
        self._count = count
        self.asked: list[int] = []

    async def inbox(self, run_id: str, after: int, limit: int) -> list[Message]:
        self.asked.append(after)
        assert len(self.asked) < 10, "the inbox is read again and again"
        return [
            Message(run_id=run_id, seq=seq, kind=RecordKind.MESSAGE, name="n", payload="1", failed=False,
                    key=f"k{seq}", sent_at=0)
            for seq in range(after + 1, min(self._count, after + limit) + 1)
        ]  # fmt: skip


class Receiving:
    """A run that takes in what it is given, or cannot just now."""

    def __init__(self, *, ready: bool) -> None:
        self.run = SimpleNamespace(id="run-1")
        self.stage = Stage.ACTIVE if ready else Stage.LOCKED
        self.inbox_known = 0
        self._ready = ready

    def receive(self, entries: list[Message]) -> None:
        if self._ready and entries:
            self.inbox_known = entries[-1].seq


@pytest.mark.parametrize(
    ("count", "ready", "asked"),
    [(1, True, [0]), (3, True, [0, 2]), (3, False, [0])],
    ids=["one message", "more than a page", "a run that takes nothing in"],
)
async def test_an_inbox_is_read_once_a_page_and_not_beyond(count: int, ready: bool, asked: list[int]) -> None:
    store, tasks = Inbox(count), list[asyncio.Task[None]]()

    def spawn(work: Callable[[], Coroutine[Any, Any, None]], name: str, held: HeldRun) -> None:
        tasks.append(asyncio.create_task(work(), name=name))

    inboxes = InboxReader(cast("Store", store), Host(), spawn, LoopHealth())
    inboxes.read(cast("HeldRun", Receiving(ready=ready)))
    await asyncio.gather(*tasks)
    assert store.asked == asked
