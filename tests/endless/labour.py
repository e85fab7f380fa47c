"""Worker processes that are killed, and what they leave behind."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from msgspec import Struct

from perdure import Handle
from tests.helpers import eventually
from tests.stage import Stage

ROOT = Path(__file__).parent.parent.parent

#: What a run may leave behind, and what its worker may need beside what it needs anyway.
MOST_ROWS = 1000
MOST_KILOBYTES = 100_000

TABLES = ("runs", "history", "messages", "events", "outputs", "topics")


class Told(Struct, frozen=True):
    """What a worker process wrote down; in kilobytes and microseconds."""

    baseline: int
    peak: int
    first_step: int = 0


class Labour:
    """One worker process after the other, on one database."""

    def __init__(self, stage: Stage, folder: Path) -> None:
        self._stage = stage
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self.told: list[Told] = []

    async def begin(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.endless.app", self._stage.url, str(self._folder), cwd=ROOT,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip

    async def kill(self) -> Told:
        """SIGKILL."""
        assert self._process is not None
        diary = self._folder / f"{self._process.pid}.json"
        await eventually(diary.exists)
        self._process.kill()
        await self._process.wait()
        told = Told(**json.loads(diary.read_text()))
        self.told.append(told)
        return told

    async def end(self) -> None:
        """Leave no process behind, whatever became of the test."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    @property
    def growth(self) -> int:
        """By how many kilobytes a process grew at the most."""
        return max(told.peak - told.baseline for told in self.told)

    @property
    def summary(self) -> str:
        """The memory that the processes used."""
        baseline, peak = min(told.baseline for told in self.told), max(told.peak for told in self.told)
        return f"memory from {baseline / 1000:.1f} MB to {peak / 1000:.1f} MB"


async def rows_of(stage: Stage) -> int:
    """In all tables."""
    return sum([(await stage.rows(f"SELECT COUNT(*) FROM perdure_{table}"))[0][0] for table in TABLES])


async def until_iteration(stage: Stage, run: Handle[int], number: int) -> None:
    """Wait until the run's loop has recorded that so many iterations are over."""

    async def there() -> bool:
        marks = await stage.rows("SELECT payload FROM perdure_history WHERE kind = 'scope'")
        return any(json.loads(payload)["upto"] >= number for (payload,) in marks)

    await eventually(there, within=600, saying=f"{run!r} having got to iteration {number}")


async def resumed_within(run: Handle[int], told: Told) -> float:
    """Seconds from the claim of a worker process to its first step."""
    claims = [event.at for event in await run.events() if event.kind in ("started", "claimed")]
    return (told.first_step - claims[-1]) / 1e6
