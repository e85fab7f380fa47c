"""Many at once: workers by plain SQL, workers of Python, and producers, on the same runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

from perdure.core.model import ClaimRequest, Finish, Kind, Park, Reason, Status, Turn, Verdict
from perdure.testing.conformance.harness import ACTOR, a_child, a_message, a_run, a_worker
from perdure.testing.conformance.harness import claim as claim_in_python
from tests.plain.places import Plain

TYPE = "mail.send.v1"
RUNS, WORKERS = 120, 4


async def another(plain: Plain, stack: AsyncExitStack) -> Plain:
    """Somebody else on the same database."""
    other = type(plain)(plain.url)
    await other.store.open()
    stack.push_async_callback(other.store.close)
    stack.push_async_callback(other.close)
    return other


async def test_every_run_is_done_once_whoever_takes_it(plain: Plain) -> None:
    async with AsyncExitStack() as stack:
        others = [await another(plain, stack) for _ in range(WORKERS)]
        ids = [await plain.insert() for _ in range(RUNS)]
        done: Counter[str] = Counter()

        async def by_sql(number: int, mine: Plain) -> None:
            for claim in range(RUNS):
                if sum(done.values()) == RUNS:
                    return
                rows = await mine.do("claim", worker=f"w{number}", nonce=f"{number}-{claim}", types="mail.%", number=8)
                for row in rows:
                    lease = {name: row[name] for name in ("id", "token", "nonce")}
                    [answer] = await mine.do("complete", **lease, output="1")
                    assert answer["outcome"] == "applied"
                    done[row["id"]] += 1

        async def by_python(mine: Plain) -> None:
            await mine.store.register(a_worker("python"))
            for claim in range(RUNS):
                if sum(done.values()) == RUNS:
                    return
                request = ClaimRequest(worker="python", nonce=f"p{claim}", limit=8, types=(TYPE,))
                runs = (await mine.store.claim(request)).runs
                turns = [Turn(lease=one.lease, next=Finish(Status.COMPLETED, "1")) for one in runs]
                while turns:
                    verdicts = await mine.store.commit(turns, "python")
                    assert set(verdicts) <= {Verdict.APPLIED, Verdict.BUSY}
                    turns = [turn for turn, verdict in zip(turns, verdicts, strict=True) if verdict is Verdict.BUSY]
                done.update(one.run.id for one in runs)

        work = [by_sql(number, mine) for number, mine in enumerate(others[1:])]
        await asyncio.gather(by_python(others[0]), *work)
        assert done == Counter(ids)
        tokens = await plain.store.query("SELECT DISTINCT token, status FROM perdure_runs")
        assert [tuple(row) for row in tokens] == [(1, "completed")]


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
    assert await plain.store.commit([turn], "w1") == [Verdict.APPLIED]
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
        assert sorted(entry.name for entry in entries if entry.kind is Kind.CHILD) == [
            f"call-{child}" for child in children
        ]
        assert [entry.seq for entry in entries] == list(range(1, 2 * len(children) + 1))
