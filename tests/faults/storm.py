"""Runs for a storm of kills: steps in sequence, timers, activities and children, each execution written down."""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from pathlib import Path

from perdure import Context, activity, activity_info, workflow
from perdure.workflow.discover import Definable
from tests.faults.app import begin, note, read

#: Of each worker.
SLOTS = 8
STEPS = 6

#: One execution of something: the run, and where in it.
Place = tuple[str, str]


async def _take_a_while() -> None:
    # As steps do; how long is different each time.
    await asyncio.sleep(random.random() * 0.05)


async def toil(ledger: str) -> None:
    begin(ledger, "toil")
    await _take_a_while()


@activity("storm.errand.v1")
async def errand(ledger: str) -> None:
    note(ledger, did="step", run=activity_info().run_id, location="errand", pid=os.getpid())
    await _take_a_while()


@workflow("storm.child.v1")
async def child(ctx: Context, ledger: str) -> None:
    await ctx.step(toil, ledger)


@workflow("storm.v1")
async def storm(ctx: Context, ledger: str) -> None:
    for number in range(STEPS):
        await ctx.step(toil, ledger)
        if number == 1:
            await ctx.sleep(0.1)
        if number == 2:
            await ctx.call(errand(ledger))
        if number == 3:
            await asyncio.gather(ctx.call(child(ledger)), ctx.call(child(ledger)))


DEFINITIONS: list[Definable] = [storm, child, errand]
#: Of one run, if nothing is executed twice.
EXECUTIONS = STEPS + 1 + 2


class Losses:
    """What the ledger says was executed again."""

    def __init__(self, ledger: Path) -> None:
        #: By process that was killed before, and by process that was not.
        self.killed: dict[int, set[Place]] = {}
        self.living: dict[int, set[Place]] = defaultdict(set)
        self.places: dict[Place, int] = {}
        for line in read(ledger):
            if line["did"] == "killed":
                self.killed[line["pid"]] = set()
                continue
            place = line["run"], line["location"]
            before = self.places.get(place)
            if before is not None:
                self.killed.get(before, self.living[before]).add(place)
            self.places[place] = line["pid"]
