"""Concurrent workers through plain SQL, workers in Python and producers on the same runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from perdure.core.model.claim import ClaimRequest
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Park, Turn, TurnOutcome
from perdure.store.plain_sql import NAMES, statement
from perdure.store.sql.dialect import MYSQL
from perdure.testing.conformance.harness import ACTOR, a_child, a_message, a_run, a_worker
from perdure.testing.conformance.harness import claim as claim_in_python
from tests.servers.claimers import count_races
from tests.store.plain_sql.places import Plain

TYPE = "mail.send.v1"
WORKERS = 4


async def another(plain: Plain, stack: AsyncExitStack) -> Plain:
    """Open another client of the same database."""
    other = type(plain)(plain.url)
    await other.store.open()
    stack.push_async_callback(other.store.close)
    stack.push_async_callback(other.close)
    return other


async def done_by_all(plain: Plain, stack: AsyncExitStack, sql: int, python: int, runs: int) -> list[Plain]:
    """Let concurrent workers of each kind claim and complete runs, each run once; return the workers."""
    workers = [await another(plain, stack) for _ in range(sql + python)]
    ids = [f"r{number:04}" for number in range(runs)]
    await plain.store.create([a_run(run_id, type=TYPE) for run_id in ids], ACTOR)
    done: Counter[str] = Counter()

    async def by_sql(name: str, mine: Plain) -> None:
        while sum(done.values()) < runs:
            for row in await mine.do("claim", worker=name, types="mail.%", nonce=mine.new_nonce(name), number=8):
                lease = {column: row[column] for column in ("id", "token", "nonce")}
                [answer] = await mine.do("complete", **lease, output="1")
                assert answer["outcome"] == "applied"
                done[row["id"]] += 1

    async def by_python(name: str, mine: Plain) -> None:
        count_races(mine.store, mine.races)
        await mine.store.register(a_worker(name))
        while sum(done.values()) < runs:
            request = ClaimRequest(worker=name, nonce=mine.new_nonce(name), limit=8, types=(TYPE,))
            taken = (await mine.store.claim(request)).runs
            turns = [Turn(lease=one.lease, next=Finish(Status.COMPLETED, "1")) for one in taken]
            while turns:
                verdicts = await mine.store.commit(turns, name)
                assert set(verdicts) <= {TurnOutcome.APPLIED, TurnOutcome.BUSY}
                turns = [turn for turn, verdict in zip(turns, verdicts, strict=True) if verdict is TurnOutcome.BUSY]
            done.update(one.run.id for one in taken)

    names = [f"worker-{number}" for number in range(len(workers))]
    await asyncio.gather(
        *(by_sql(name, mine) for name, mine in zip(names[:sql], workers[:sql], strict=True)),
        *(by_python(name, mine) for name, mine in zip(names[sql:], workers[sql:], strict=True)),
    )
    assert done == Counter(ids)
    tokens = await plain.store.query("SELECT DISTINCT token, status FROM perdure_runs")
    assert [tuple(row) for row in tokens] == [(1, "completed")]
    return workers


async def test_every_run_is_done_once_in_whatever_language(plain: Plain) -> None:
    async with AsyncExitStack() as stack:
        await done_by_all(plain, stack, sql=3, python=1, runs=120)


async def test_workers_of_either_kind_never_wait_for_each_other_in_a_circle(plain: Plain) -> None:
    async with AsyncExitStack() as stack:
        for worker in await done_by_all(plain, stack, sql=6, python=2, runs=400):
            assert not worker.races


def test_no_statement_for_mysql_locks_what_it_only_reads() -> None:
    for name in NAMES:
        for part in statement(MYSQL, name).parts:
            assert not (part.startswith("SET") and "SELECT" in part), f"{name}: {part}"


async def test_one_key_makes_one_run_however_many_insert_it_at_once(plain: Plain) -> None:
    async with AsyncExitStack() as stack:
        others = [await another(plain, stack) for _ in range(WORKERS)]
        for key in ("a", "b", "c"):
            answers = await asyncio.gather(*(mine.do("insert", type=TYPE, idempotency_key=key) for mine in others))
            assert len({row["id"] for [row] in answers}) == 1
            assert sum(bool(row["created"]) for [row] in answers) == 1


async def test_many_children_tell_one_parent_at_once_and_none_is_missed(plain: Plain) -> None:
    children = [f"c{number:02}" for number in range(24)]
    await plain.store.create([a_run("parent", type="shop.v1")], ACTOR)
    [parent] = (await claim_in_python(plain.store, types=("shop.v1",))).runs
    started = tuple(a_child(child, "parent", type=TYPE) for child in children)
    turn = Turn(lease=parent.lease, children=started, next=Park(2**60, Reason.CHILD, 0))
    assert await plain.store.commit([turn], "w1") == [TurnOutcome.APPLIED]
    async with AsyncExitStack() as stack:
        others = [await another(plain, stack) for _ in range(WORKERS)]
        rows = await plain.do("claim", types=TYPE, number=len(children))

        async def end(mine: Plain, some: list[dict[str, Any]]) -> None:
            for place, row in enumerate(some):
                lease = {name: row[name] for name in ("id", "token", "nonce")}
                ending = {"output": "1"} if place % 2 else {"error_message": "no"}
                await mine.do("complete" if place % 2 else "fail", **lease, **ending)

        async def write() -> None:
            for number in range(len(children)):
                await plain.store.send([a_message("parent", key=f"m{number}")], ACTOR)

        await asyncio.gather(write(), *(end(mine, rows[place::WORKERS]) for place, mine in enumerate(others)))
        entries = await plain.store.inbox("parent", 0)
        assert sorted(entry.name for entry in entries if entry.kind is RecordKind.CHILD) == [
            f"call-{child}" for child in children
        ]
        assert [entry.seq for entry in entries] == list(range(1, 2 * len(children) + 1))
