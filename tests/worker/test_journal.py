"""The journal commits every turn, whatever the database answers first."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, cast

import pytest

from perdure import Context, Engine, StoreUnavailable, workflow
from perdure.core.background_loops import LoopHealth
from perdure.core.model.turn import Lease, Release, Turn, TurnOutcome
from perdure.errors import StoreCorrupt
from perdure.host import Host
from perdure.store import open_store
from perdure.worker.batched_calls import ClockReading
from perdure.worker.commit.journal import Journal


@workflow("journal.plain.v1")
async def plain(ctx: Context, number: int) -> int:
    return number


class Troubled:
    """A store that takes one of the runs for corrupt, and is gone for a moment whenever it has said so."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._gone = False
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        if self._gone:
            self._gone = False
            raise StoreUnavailable("gone")
        if any(turn.lease.run_id == "bad" for turn in turns):
            self._gone = True
            self.refused += 1
            raise StoreCorrupt("nonsense")
        verdicts: list[TurnOutcome] = await self._store.commit(turns, actor)
        return verdicts


async def test_a_run_that_cannot_be_written_delays_no_other_also_if_the_database_is_away_meanwhile() -> None:
    host = Host()
    store: Any = Troubled(open_store("sqlite://", host, inline=True))
    async with Engine("sqlite://", [plain], system=host, store=store) as engine:
        runs = [await engine.start(plain(number), id=name) for number, name in enumerate(("bad", "good", "better"))]
        async with engine.worker(grace=0):
            assert [await run.result("20s") for run in runs[1:]] == [1, 2]
            assert store.refused >= 2


class Interrupted:
    """A store that is gone for a moment whenever the first turn of a run is to be written."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._seen: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        runs = {turn.lease.run_id for turn in turns}
        if runs - self._seen:
            self._seen |= runs
            raise StoreUnavailable("gone")
        verdicts: list[TurnOutcome] = await self._store.commit(turns, actor)
        return verdicts


async def test_a_commit_that_succeeds_ends_a_series_of_longer_and_longer_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host()
    store: Any = Interrupted(open_store("sqlite://", host, inline=True))
    async with Engine("sqlite://", [plain], system=host, store=store) as engine, engine.worker(grace=0):
        for number in range(3):
            assert await (await engine.start(plain(number))).result("20s") == number
    assert re.findall(r"journal failed, trying again in (\S+) s: gone", caplog.text) == ["0.1"] * 3


class Waiting:
    """A store that writes when it is told to."""

    lanes = 1

    def __init__(self) -> None:
        self.called, self.go_on = asyncio.Event(), asyncio.Event()

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        self.called.set()
        await self.go_on.wait()
        return [TurnOutcome.APPLIED] * len(turns)


class Author:
    """A run that has a turn to write."""

    def __init__(self) -> None:
        self.told = asyncio.Event()

    def landed(self, verdict: TurnOutcome, reading: ClockReading) -> None:
        self.told.set()


async def test_a_journal_is_idle_once_its_turns_have_landed() -> None:
    store, author = Waiting(), Author()
    journal = Journal(cast("Any", store), Host(), lambda: "w1", lambda: ClockReading(1, True), LoopHealth())
    idle = [journal.idle]
    journal.add(cast("Any", author), Turn(lease=Lease("r1", 1, "n"), next=Release()))
    idle.append(journal.idle)
    await store.called.wait()
    idle.append(journal.idle)
    store.go_on.set()
    await author.told.wait()
    # Before, while the turn waits to leave, while it is written, and once it has landed.
    assert [*idle, journal.idle] == [True, False, False, True]
