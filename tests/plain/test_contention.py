"""Many at once: workers by plain SQL, workers of Python, and producers, on the same runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pymysql

from perdure.core.model import ClaimRequest, Finish, Status, Turn, Verdict
from perdure.testing.conformance.harness import a_worker
from tests.plain.places import Plain

TYPE = "mail.send.v1"
RUNS, WORKERS = 120, 4
#: What MySQL says of transactions that got into each other's way: they are to be run again.
IN_THE_WAY = (1205, 1213)


async def another(plain: Plain, stack: AsyncExitStack) -> Plain:
    """Somebody else on the same database."""
    other = type(plain)(plain.url)
    await other.store.open()
    stack.push_async_callback(other.store.close)
    stack.push_async_callback(other.close)
    return other


async def do(plain: Plain, name: str, **params: Any) -> list[dict[str, Any]]:
    """A statement, again if it got into somebody's way."""
    while True:
        try:
            return await plain.do(name, **params)
        except pymysql.OperationalError as error:
            if error.args[0] not in IN_THE_WAY:
                raise
            await plain.execute("ROLLBACK")


async def test_every_run_is_done_once_whoever_takes_it(plain: Plain) -> None:
    async with AsyncExitStack() as stack:
        others = [await another(plain, stack) for _ in range(WORKERS)]
        ids = [await plain.insert() for _ in range(RUNS)]
        done: Counter[str] = Counter()

        async def by_sql(number: int, mine: Plain) -> None:
            for claim in range(RUNS):
                if sum(done.values()) == RUNS:
                    return
                rows = await do(mine, "claim", worker=f"w{number}", nonce=f"{number}-{claim}", types="mail.%", number=8)
                for row in rows:
                    lease = {name: row[name] for name in ("id", "token", "nonce")}
                    [answer] = await do(mine, "complete", **lease, output="1")
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
            answers = await asyncio.gather(*(do(mine, "insert", type=TYPE, idempotency_key=key) for mine in others))
            assert len({row["id"] for [row] in answers}) == 1
            assert sum(bool(row["created"]) for [row] in answers) == 1
