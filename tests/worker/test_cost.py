"""Cost of a step for the database: one row, no read, a share of one transaction."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Status, workflow
from perdure.worker import sources
from tests.stage import Stage, until, until_recorded

STEPS = 50


@pytest.fixture(autouse=True)
def _no_sources_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    # A worker stores them after a second, in a transaction that would be counted where the steps take as long.
    monkeypatch.setattr(sources, "DELAY", 3600.0)


class Statements:
    """The statements of the one connection, while it is told to count."""

    def __init__(self) -> None:
        self.counting = False
        self.seen: list[str] = []

    def __call__(self, statement: str) -> None:
        # An idle worker polls for other writers by time, not by steps.
        if self.counting and "data_version" not in statement:
            self.seen.append(" ".join(statement.split())[:40])

    def transactions(self) -> list[list[str]]:
        """Return the statements of each transaction, in order."""
        found: list[list[str]] = []
        for statement in self.seen:
            name = statement.split("(")[0].strip()
            if name.startswith("BEGIN"):
                found.append([])
            elif name != "COMMIT" and found:
                found[-1].append(name)
        return found


async def test_a_sequential_step_is_one_inserted_row_and_no_read() -> None:
    statements = Statements()
    done = asyncio.Event()

    async def act(number: int) -> int:
        if number == 0:
            statements.counting = True
        if number == STEPS:
            statements.counting = False
            done.set()
        return number

    @workflow("cost.sequence.v1")
    async def sequence(ctx: Context) -> None:
        for number in range(STEPS + 1):
            await ctx.step(act, number)

    stage = Stage(None)
    engine = stage.engine(sequence)
    await engine.open()
    assert stage.store is not None
    await stage.store.trace(statements)
    # With a lease this long there is no heartbeat and no sweep meanwhile; without a free slot, no claim.
    async with engine.worker(lease="1h", slots=1):
        await engine.start(sequence())
        await done.wait()
        await stage.store.trace(None)
    await stage.close()
    assert statements.transactions() == [["INSERT INTO perdure_history"]] * STEPS


async def test_parallel_steps_share_transactions_and_still_take_one_row_each() -> None:
    statements = Statements()

    async def act(number: int) -> int:
        statements.counting = True
        return number

    @workflow("cost.wide.v1")
    async def wide(ctx: Context) -> None:
        await asyncio.gather(*(ctx.step(act, number) for number in range(200)))
        await ctx.receive("end")

    stage = Stage(None)
    engine = stage.engine(wide)
    await engine.open()
    assert stage.store is not None
    await stage.store.trace(statements)
    async with engine.worker(lease="1h"):
        run = await engine.start(wide())
        await until_recorded(run, 200)
        await stage.store.trace(None)
    [(rows,)] = await stage.rows("SELECT COUNT(*) FROM perdure_history")
    await stage.close()
    assert rows == 200
    written = [each for each in statements.transactions() if "INSERT INTO perdure_history" in each]
    # Steps that end together go into one statement.
    assert sum(each.count("INSERT INTO perdure_history") for each in written) < 50
    assert len(written) <= 20


async def test_a_run_leaves_one_row_a_step_and_three_lines_in_the_audit_trail(stage: Stage) -> None:
    async def act(number: int) -> int:
        return number

    @workflow("cost.rows.v1")
    async def acting(ctx: Context) -> None:
        for number in range(10):
            await ctx.step(act, number)

    engine = stage.engine(acting)
    async with engine.worker():
        runs = await engine.start_many([acting() for _ in range(20)])
        await asyncio.gather(*(run.result("20s") for run in runs))
    rows = {table: len(content) for table, content in (await stage.dump()).items()}
    assert rows == {"runs": 20, "history": 200, "messages": 0, "events": 60, "outputs": 0, "topics": 0, "workers": 1}


async def test_the_last_step_and_the_outcome_are_one_transaction() -> None:
    statements = Statements()

    async def act() -> None:
        statements.counting = True

    @workflow("cost.last.v1")
    async def acting(ctx: Context) -> None:
        await ctx.step(act)

    stage = Stage(None)
    engine = stage.engine(acting)
    await engine.open()
    assert stage.store is not None
    await stage.store.trace(statements)
    async with engine.worker(lease="1h"):
        run = await engine.start(acting())
        await run.result("20s")
    await stage.close()
    [ending] = [each for each in statements.transactions() if "INSERT INTO perdure_history" in each]
    assert ending == [
        "INSERT INTO perdure_history",
        "UPDATE perdure_runs SET status = 'comple",
        "SELECT id, parent_id, parent_location, g",
        "INSERT INTO perdure_events",
    ]


async def test_a_record_and_the_parking_that_follows_from_it_are_one_transaction() -> None:
    statements = Statements()

    async def act() -> None:
        statements.counting = True

    @workflow("cost.park.v1")
    async def acting(ctx: Context) -> None:
        await ctx.step(act)
        await ctx.sleep("1h")

    stage = Stage(None)
    engine = stage.engine(acting)
    await engine.open()
    assert stage.store is not None
    await stage.store.trace(statements)
    async with engine.worker(lease="1h"):
        run = await engine.start(acting())
        await until(run, Status.WAITING)
    await stage.close()
    [parking] = [each for each in statements.transactions() if "INSERT INTO perdure_history" in each]
    assert [statement.split(" SET")[0] for statement in parking] == [
        "INSERT INTO perdure_history",
        "UPDATE perdure_runs",
    ]
