"""The workflows that go on for long, and the process that works on them until it is killed.

`python -m tests.endless.app URL FOLDER` writes down when its first step began, and how much memory it has used.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

from perdure import Break, Context, Continue, Engine, step_info, workflow

COMMIT_EVERY = 100
WORDS = 200


class Diary:
    """The report of this process, which its parent reads after its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / f"{os.getpid()}.json"
        self._told: dict[str, int] = {}

    def first_step(self) -> None:
        if "first_step" not in self._told:
            self._told["first_step"] = time.time_ns() // 1000
            self._tell()

    def memory(self) -> None:
        used = _memory()
        self._told.setdefault("baseline", used["VmRSS"])
        self._told["peak"] = max(used["VmRSS"], self._told.get("peak", 0))
        self._tell()

    def _tell(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._told))
        new.replace(self._path)


def _memory() -> dict[str, int]:
    """In kilobytes."""
    lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Vm")]
    return {line[0].rstrip(":"): int(line[1]) for line in lines}


diaries: list[Diary] = []


async def add(total: int, number: int) -> int:
    for diary in diaries:
        diary.first_step()
    return total + number


async def count(ctx: Context, state: list[int]) -> Continue[list[int]] | Break[int]:
    number, total, upto = state
    total = await ctx.step(add, total, number)
    return Break(total) if number + 1 == upto else Continue([number + 1, total, upto])


@workflow("endless.count.v1")
async def counting(ctx: Context, upto: int) -> int:
    return await ctx.loop([0, 0, upto], count, name="count", commit_every=COMMIT_EVERY)


async def listen(ctx: Context, total: int) -> Continue[int] | Break[int]:
    number = await ctx.receive("number", int)
    return Continue(total + number) if number else Break(total)


@workflow("endless.listen.v1")
async def listening(ctx: Context) -> int:
    return await ctx.loop(0, listen, name="listen", commit_every=COMMIT_EVERY)


async def speak() -> int:
    """Words come until the process is ended; in the second one, until all are said."""
    count = 0
    while count < WORDS or _is_first():
        step_info().emit("words", count)
        count += 1
        await asyncio.sleep(0.02 if _is_first() else 0.002)
    return count


def _is_first() -> bool:
    return len(list(diaries[0].folder.glob("*.json"))) <= 1


@workflow("endless.speak.v1")
async def speaking(ctx: Context) -> int:
    return await ctx.step(speak)


async def main(url: str, folder: Path) -> None:
    diary = Diary(folder)
    diaries.append(diary)
    async with Engine(url, [counting, listening, speaking], audit="full") as engine, engine.worker(lease=1):
        while True:
            diary.memory()
            await asyncio.sleep(0.1)  # the pace of the diary


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
