"""Runs that die in worker processes, on each database: they are listed, mended, and go on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Call, Engine, Handle, Status
from perdure.admin import DeadLetterReason
from tests.faults import app, labour
from tests.faults.evidence import scan_for_wrongs
from tests.faults.family import Family
from tests.faults.homes import Homes
from tests.faults.roles import WORKFLOWS
from tests.helpers import eventually

EXITED = 17


class Place:
    """A directory in which workers work on one database, and the client's view of it."""

    def __init__(self, processes: Family, directory: Path, engine: Engine) -> None:
        self.engine = engine
        self.ledger = str(directory / "ledger")
        self._processes = processes
        self._directory = directory

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """A worker process that is told to stop in the end."""
        worker = await self._processes.fork("work", self._directory)
        yield
        worker.signal(signal.SIGTERM)
        assert await worker.ended() == 0, worker.noise()

    async def work_until_death(self, code: int | None = None) -> None:
        """A worker process that ends by what it does, or else is killed once the gate is waited for."""
        worker = await self._processes.fork("work", self._directory)
        if code is None:
            await eventually(lambda: self.executed(labour.fragile))
            worker.signal(signal.SIGKILL)
        assert await worker.ended() == (-signal.SIGKILL if code is None else code), worker.noise()

    def executed(self, what: Any) -> int:
        return sum(line.get("location") == what.type for line in app.read(Path(self.ledger)))


@pytest.fixture
async def place(processes: Family, homes: Homes, tmp_path: Path) -> AsyncIterator[Place]:
    async with homes.at(tmp_path / "case") as home:
        async with Engine(home.url, WORKFLOWS) as engine:
            yield Place(processes, home.directory, engine)
        assert not await scan_for_wrongs(home)


async def _is(run: Handle[Any], status: Status) -> bool:
    return await run.status() is status


async def test_a_run_that_takes_five_workers_with_it_is_set_aside_listed_and_goes_on_once_it_is_mended(
    place: Place,
) -> None:
    run = await place.engine.start(labour.deadly(place.ledger), id="deadly")
    for _ in range(5):
        await place.work_until_death(EXITED)
    async with place.worker():
        await eventually(lambda: _is(run, Status.BLOCKED))
    [letter] = (await place.engine.dead_letters.list()).letters
    assert (letter.run_id, letter.reason) == ("deadly", DeadLetterReason.POISON)
    assert "claimed 5 times" in letter.error.message
    app.note(place.ledger, did="mend")
    assert (await place.engine.dead_letters.retry(where={"reason": "poison"})).done == ("deadly",)
    async with place.worker():
        await run.result("90s")
    assert place.executed(labour.deadly) == 6
    assert (await place.engine.dead_letters.list()).letters == ()


async def test_an_activity_whose_worker_was_killed_dies_of_its_errors_and_its_workflow_decides(place: Place) -> None:
    run = await place.engine.start(labour.relying(place.ledger), id="relying")
    await place.work_until_death()
    labour.gate(place.ledger).touch()
    async with Engine(place.engine.url) as stranger:
        await stranger.start(Call.named(labour.fragile.type, book=17), id="odd")
    odd = await place.engine.get("odd")
    async with place.worker():
        # The attempt that the kill interrupted has a number, and uses up none of the two that the policy allows.
        assert await run.result("90s") == "without it: attempt 3"
        await eventually(lambda: _is(odd, Status.BLOCKED))
    letters = {letter.run_id: letter for letter in (await place.engine.dead_letters.list(type="labour.%")).letters}
    child = f"relying/{labour.fragile.type}"
    assert {name: letter.reason.value for name, letter in letters.items()} == {child: "failed", "odd": "undecodable"}
    assert letters[child].parent_id == "relying"
    assert [fault.error.message for fault in letters[child].errors] == ["attempt 2", "attempt 3"]
    app.note(place.ledger, did="mend")
    assert set((await place.engine.dead_letters.retry([child])).done) == {child}
    await odd.retry(input={"ledger": place.ledger})
    async with place.worker():
        await asyncio.gather(*[(await place.engine.get(name)).result("90s") for name in letters])
    assert (await place.engine.dead_letters.list()).letters == ()
    assert await run.result() == "without it: attempt 3"
