"""Activities with limits, and the ledger in which each execution writes its beginning and its end, by clocks of its
own."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure import Limit, activity, activity_info
from perdure.workflow.discover import Definable

#: Of each worker: more than the limits let pass, so that it is they who hold it up.
SLOTS = 40
WHOLE = bool(os.environ.get("PERDURE_PROVE"))
AT_ONCE = 24 if WHOLE else 6
KEYS = 40 if WHOLE else 5
PACE_US = 4_000
BURST = 5
SHARED = Limit("siege:slots", concurrency=AT_ONCE)


class Execution(Struct):
    """What the ledger says of one execution."""

    run: str
    kind: str
    #: The key of its own limit, if it has one.
    key: str
    pid: int
    granted: int
    #: By the system's own clock, in nanoseconds, which all processes share.
    begun: int
    #: The same, and by the clock on the wall, in microseconds.
    begun_at: int
    ended: int = 0


def write(ledger: str, line: dict[str, Any]) -> None:
    """Append a whole line, also while other processes write."""
    file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json.dumps(line).encode() + b"\n")
    finally:
        os.close(file)


async def execute(ledger: str, kind: str, key: str = "") -> None:
    info = activity_info()
    begun_at, begun = time.time_ns() // 1000, time.monotonic_ns()
    write(
        ledger,
        {
            "id": info.attempt_id,
            "begin": {
                "run": info.run_id,
                "kind": kind,
                "key": key,
                "pid": os.getpid(),
                "granted": info.ready_at,
                "begun": begun,
                "begun_at": begun_at,
            },
        },
    )
    # As it works; how long is different each time.
    await asyncio.sleep(random.random() * 0.01)  # so long an execution takes
    write(ledger, {"id": info.attempt_id, "end": time.monotonic_ns()})


@activity("siege.counted.v1", limit=SHARED)
async def counted(ledger: str) -> None:
    await execute(ledger, "counted")


@activity("siege.keyed.v1", limit=[SHARED, Limit("siege:key", key=lambda ledger, key: key, concurrency=1)])
async def keyed(ledger: str, key: str) -> None:
    await execute(ledger, "keyed", key)


@activity("siege.paced.v1", limit=Limit("siege:pace", rate="250/s", burst=BURST))
async def paced(ledger: str) -> None:
    await execute(ledger, "paced")


ACTIVITIES: list[Definable] = [counted, keyed, paced]


def read(ledger: Path, killed: dict[int, int]) -> list[Execution]:
    """All executions; those that were under way when their process was killed end then."""
    found: dict[str, Execution] = {}
    for line in ledger.read_bytes().splitlines():
        told = json.loads(line)
        if "begin" in told:
            found[told["id"]] = Execution(**told["begin"])
        else:
            found[told["id"]].ended = told["end"]
    for one in found.values():
        if not one.ended and one.pid in killed:
            one.ended = max(one.begun, killed[one.pid])
    return list(found.values())


def fenced(executions: list[Execution], killed: dict[int, int]) -> list[tuple[Execution, Execution]]:
    """Executions whose run was executed again while their process lived, which held no lease any more, and the next.

    All processes are killed in the end.
    """
    found: list[tuple[Execution, Execution]] = []
    later: dict[str, Execution] = {}
    for one in reversed(sorted_by_grant(executions)):
        after = later.get(one.run)
        if after is not None and (one.pid not in killed or after.begun < killed[one.pid]):
            found.append((one, after))
        later[one.run] = one
    return found


def sorted_by_grant(executions: list[Execution]) -> list[Execution]:
    return sorted(executions, key=lambda one: (one.granted, one.begun))


def most_at_once(executions: list[Execution]) -> int:
    """How many were under way at the same moment, at the most."""
    moments = sorted((moment, change) for one in executions for moment, change in ((one.begun, 1), (one.ended, -1)))
    most = now = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most


def most_by_key(executions: list[Execution]) -> int:
    by_key: dict[str, list[Execution]] = defaultdict(list)
    for one in executions:
        by_key[one.key].append(one)
    return max(most_at_once(those) for those in by_key.values())


def excess(times: list[int]) -> int:
    """By how many microseconds, in the worst of all intervals, more passed than a burst and the pace allow; 0 or less
    if none."""
    worst = -PACE_US
    least = None
    for number, moment in enumerate(sorted(times)):
        credit = number * PACE_US - moment
        least = credit if least is None else min(least, credit)
        worst = max(worst, credit - least - (BURST - 1) * PACE_US)
    return worst
