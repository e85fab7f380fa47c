from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from perdure import Call, Context, Engine, RunExists, Status, UsageError, workflow
from perdure.core.model.run import CreatedRun, NewRun
from perdure.host import Host
from perdure.store import Retrying, Store, open_store
from tests.stage import Stage


@dataclass
class Order:
    id: str
    cents: int
    tags: set[str] = field(default_factory=set)
    notes: dict[str, int] = field(default_factory=dict)


@workflow("start.echo.v1")
async def echo(ctx: Context, value: int) -> int:
    return value


@workflow("start.buy.v1")
async def buy(ctx: Context, order: Order, express: bool = False) -> str:
    return f"{order.id}:{order.cents}:{sorted(order.tags)}:{express}"


async def test_a_started_run_gives_its_result(stage: Stage) -> None:
    engine = stage.engine(echo)
    async with engine.worker():
        run = await engine.start(echo(7))
        assert await run.result("20s") == 7
        assert await run.status() is Status.COMPLETED


async def test_a_run_started_without_a_worker_is_kept_until_there_is_one(stage: Stage) -> None:
    engine = stage.engine(echo)
    run = await engine.start(echo(7))
    assert await run.status() is Status.PENDING
    async with engine.worker():
        assert await run.result("20s") == 7


async def test_arguments_arrive_as_their_declared_types(stage: Stage) -> None:
    engine = stage.engine(buy)
    async with engine.worker():
        run = await engine.start(buy(Order("o-1", 5, {"b", "a"}), express=True))
        assert await run.result("20s") == "o-1:5:['a', 'b']:True"


async def test_a_run_gets_the_id_that_it_was_given(stage: Stage) -> None:
    engine = stage.engine(echo)
    run = await engine.start(echo(1), id="order/42 ü")
    assert run.id == "order/42 ü"
    assert (await run.info()).id == "order/42 ü"


async def test_ids_made_by_default_differ_and_rise(stage: Stage) -> None:
    engine = stage.engine(echo)
    ids = [(await engine.start(echo(1))).id for _ in range(5)]
    assert ids == sorted(set(ids))


async def test_the_same_id_and_input_give_the_run_that_is_there(stage: Stage) -> None:
    engine = stage.engine(echo)
    async with engine.worker():
        first = await engine.start(echo(7), id="one")
        assert await first.result("20s") == 7
        again = await engine.start(echo(7), id="one")
        assert await again.result("20s") == 7
    assert len((await stage.dump())["runs"]) == 1


async def test_starting_the_same_id_at_the_same_time_creates_one_run(stage: Stage) -> None:
    engine = stage.engine(echo)
    handles = await asyncio.gather(*(engine.start(echo(7), id="one") for _ in range(20)))
    assert {handle.id for handle in handles} == {"one"}
    assert len((await stage.dump())["runs"]) == 1


async def test_the_same_id_with_another_input_is_refused(stage: Stage) -> None:
    engine = stage.engine(echo)
    await engine.start(echo(7), id="one")
    before = await stage.dump()
    with pytest.raises(RunExists, match="'one'.*another input"):
        await engine.start(echo(8), id="one")
    assert await stage.dump() == before


async def test_the_same_id_with_another_type_is_refused(stage: Stage) -> None:
    engine = stage.engine(echo, buy)
    await engine.start(echo(7), id="one")
    before = await stage.dump()
    with pytest.raises(RunExists, match=r"start\.echo\.v1.*start\.buy\.v1"):
        await engine.start(buy(Order("o", 1)), id="one")
    assert await stage.dump() == before


async def test_the_order_of_sets_and_dicts_does_not_make_another_input(stage: Stage) -> None:
    engine = stage.engine(buy)
    names = [f"tag-{number}" for number in range(50)]
    first = Order("o", 1, set(names), {name: 1 for name in names})
    second = Order("o", 1, set(reversed(names)), {name: 1 for name in reversed(names)})
    await engine.start(buy(first), id="one")
    assert (await engine.start(buy(second), id="one")).id == "one"


async def test_an_argument_by_name_is_the_same_input_as_by_position(stage: Stage) -> None:
    engine = stage.engine(buy)
    await engine.start(buy(Order("o", 1)), id="one")
    assert (await engine.start(buy(order=Order("o", 1)), id="one")).id == "one"


async def test_an_idempotency_key_creates_at_most_one_run(stage: Stage) -> None:
    engine = stage.engine(echo)
    first = await engine.start(echo(7), idempotency_key="welcome:42")
    second = await engine.start(echo(7), idempotency_key="welcome:42")
    assert first.id == second.id
    with pytest.raises(RunExists, match="'welcome:42'"):
        await engine.start(echo(8), idempotency_key="welcome:42")
    assert len((await stage.dump())["runs"]) == 1


async def test_a_run_for_later_waits_and_then_runs(stage: Stage) -> None:
    engine = stage.engine(echo)
    run = await engine.start(echo(7), at="1s")
    found = await run.info()
    assert (found.status, found.reason) == (Status.WAITING, "timer")
    async with engine.worker():
        assert await run.result("20s") == 7
        done = await run.info()
        assert done.started_at >= found.wake_at


async def test_a_run_for_a_moment_that_is_past_runs_at_once(stage: Stage) -> None:
    engine = stage.engine(echo)
    run = await engine.start(echo(7), at=datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC))
    assert await run.status() is Status.PENDING


async def test_lower_priorities_go_first(stage: Stage) -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    @workflow("start.noting.v1")
    async def noting(ctx: Context, number: int) -> None:
        await ctx.step(note, number)

    engine = stage.engine(noting)
    runs = [await engine.start(noting(number), priority=number) for number in (300, 5, 100, -7)]
    async with engine.worker(slots=1):
        await asyncio.gather(*(run.result("20s") for run in runs))
    # One run in eight is taken by age alone, so that nothing starves; four runs are too few for that.
    assert order == [-7, 5, 100, 300]


async def test_a_worker_takes_only_its_queues(stage: Stage) -> None:
    engine = stage.engine(echo)
    elsewhere = await engine.start(echo(1), queue="slow")
    async with engine.worker(queues=["default", "fast"]):
        assert await (await engine.start(echo(2), queue="fast")).result("20s") == 2
        assert await elsewhere.status() is Status.PENDING
    async with engine.worker(queues="slow"):
        assert await elsewhere.result("20s") == 1


async def test_start_many_starts_all_in_one_transaction(stage: Stage) -> None:
    engine = stage.engine(echo)
    runs = await engine.start_many([echo(n) for n in range(500)], queue="bulk", priority=7)
    moments = {created_at for (created_at,) in await stage.rows("SELECT created_at FROM perdure_runs")}
    assert len(moments) == 1
    async with engine.worker(queues=["bulk"]):
        assert await asyncio.gather(*(run.result("20s") for run in runs)) == list(range(500))


async def test_start_many_that_meets_a_stranger_starts_none(stage: Stage) -> None:
    engine = stage.engine(echo)
    await engine.start(echo(1), id="b")
    before = await stage.dump()
    with pytest.raises(RunExists, match="'b'"):
        await engine.start_many([echo(1), echo(2), echo(3)], ids=["a", "b", "c"])
    assert await stage.dump() == before


class Overtaken(Retrying):
    """A store in which another client creates a run first, just before runs are created."""

    def __init__(self, store: Store, first: NewRun) -> None:
        super().__init__(store, Host())
        self._first: list[NewRun] = [first]

    async def create(self, runs: Sequence[NewRun], actor: str, **options: Any) -> list[CreatedRun]:
        if self._first:
            await super().create([self._first.pop()], "another client")
        return await super().create(runs, actor, **options)


async def test_start_many_starts_none_when_a_stranger_comes_first(stage: Stage) -> None:
    store = open_store(stage.url, Host())
    first = NewRun(id="b", type="start.echo.v1", input='{"value":7}', write_id="theirs")
    async with Engine(stage.url, [echo], store=Overtaken(store, first)) as engine:
        with pytest.raises(RunExists, match="'b'"):
            await engine.start_many([echo(1), echo(2), echo(3)], ids=["a", "b", "c"])
        assert await store.query("SELECT id FROM perdure_runs") == [("b",)]


async def test_start_many_starts_the_others_when_another_client_starts_one_with_the_same_input(stage: Stage) -> None:
    store = open_store(stage.url, Host())
    first = NewRun(id="b", type="start.echo.v1", input='{"value":2}', write_id="theirs")
    async with Engine(stage.url, [echo], store=Overtaken(store, first)) as engine:
        runs = await engine.start_many([echo(1), echo(2), echo(3)], ids=["a", "b", "c"])
        assert [run.id for run in runs] == ["a", "b", "c"]
        assert await store.query("SELECT id FROM perdure_runs ORDER BY id") == [("a",), ("b",), ("c",)]


async def test_start_many_that_names_one_id_for_two_inputs_starts_none(stage: Stage) -> None:
    engine = stage.engine(echo)
    await engine.open()
    before = await stage.dump()
    with pytest.raises(RunExists, match="'a'"):
        await engine.start_many([echo(1), echo(2)], ids=["a", "a"])
    assert await stage.dump() == before


async def test_start_many_takes_up_runs_that_are_there_with_the_same_input(stage: Stage) -> None:
    engine = stage.engine(echo)
    await engine.start(echo(2), id="b")
    runs = await engine.start_many([echo(1), echo(2)], ids=["a", "b"])
    assert [run.id for run in runs] == ["a", "b"]
    assert len((await stage.dump())["runs"]) == 2


async def test_start_many_needs_one_id_a_call(stage: Stage) -> None:
    engine = stage.engine(echo)
    with pytest.raises(UsageError, match="2 calls but 1 ids"):
        await engine.start_many([echo(1), echo(2)], ids=["a"])


async def test_start_many_of_nothing_starts_nothing(stage: Stage) -> None:
    engine = stage.engine(echo)
    assert await engine.start_many([]) == []


async def test_a_workflow_is_called_by_name_where_its_code_is_not_installed(on_disk: Stage) -> None:
    client = on_disk.engine()
    by_name = await client.start(Call.named("start.buy.v1", order={"id": "o", "cents": 3}, express=True))
    by_position = await client.start(Call.named("start.echo.v1", 9))
    engine = on_disk.engine(buy, echo)
    async with engine.worker():
        assert await by_name.result("20s") == "o:3:[]:True"
        assert await by_position.result("20s") == 9


async def test_a_call_by_name_and_a_call_by_its_code_are_the_same_run(stage: Stage) -> None:
    engine = stage.engine(echo)
    await engine.start(echo(value=3), id="one")
    assert (await engine.start(Call.named("start.echo.v1", value=3), id="one")).id == "one"
    assert (await engine.start(Call.named("start.echo.v1", 3), id="one")).id == "one"
