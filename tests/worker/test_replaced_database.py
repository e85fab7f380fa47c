"""Clients while the database is replaced by one that lacks the last commits: none waits for what is not there."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, RunNotFound, Status, workflow
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.worker_info import WorkerStatus
from perdure.core.system import Background
from perdure.errors import LockLost
from perdure.host import Host
from perdure.store import open_store
from perdure.store.contract import Change
from tests.helpers import eventually
from tests.stage import Stage, until


@workflow("replaced.patient.v1")
async def patient(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow("replaced.clerk.v1")
async def clerk(ctx: Context) -> None:
    question = await ctx.receive_question("price", str)
    question.reply(f"the price of {question.value}")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "shop.db")


def lose(stage: Stage, sql: str) -> None:
    """Take something away as a failover would, and have the store say so."""
    assert stage.path is not None
    assert stage.store is not None
    with closing(sqlite3.connect(stage.path)) as connection, connection:
        assert connection.execute(sql).rowcount > 0
    stage.store._tell(Change.REPLACED)


async def test_the_result_of_a_run_that_is_lost_is_not_waited_for(stage: Stage) -> None:
    async with stage.engine(patient) as engine:
        run = await engine.start(patient())
        waiting = asyncio.ensure_future(run.result())
        # The run was there when the wait began: another error tells of one that was not.
        await eventually(
            lambda: any(watch._rung for watch in engine._session.results._watches.values()),
            saying="a wait for the result",
        )
        lose(stage, "DELETE FROM perdure_runs")
        with pytest.raises(RunNotFound, match="lost in a failover"):
            await asyncio.wait_for(waiting, 30)


async def test_a_question_that_is_lost_is_asked_again(stage: Stage) -> None:
    async with stage.engine(clerk) as engine:
        run = await engine.start(clerk())
        asking = asyncio.ensure_future(run.ask("price", "tea"))
        await eventually(lambda: _count(stage, "messages"), saying="the question in the inbox")
        lose(stage, "DELETE FROM perdure_messages")
        await eventually(lambda: _count(stage, "messages"), saying="the question asked again")
        async with engine.worker():
            assert await asyncio.wait_for(asking, 30) == "the price of tea"


async def test_a_question_that_is_lost_before_its_answer_is_waited_for_is_asked_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stage.engine(clerk) as engine:
        run = await engine.start(clerk())
        assert stage.store is not None
        send, sent = stage.store.send, list[NewMessage]()

        async def send_and_lose(messages: Sequence[NewMessage], actor: str) -> list[SendOutcome]:
            outcomes = await send(messages, actor)
            if not sent:
                lose(stage, "DELETE FROM perdure_messages")
            sent.extend(messages)
            return outcomes

        monkeypatch.setattr(stage.store, "send", send_and_lose)
        asking = asyncio.ensure_future(run.ask("price", "tea"))
        await eventually(lambda: len(sent) == 2, saying="the question asked again")
        async with engine.worker():
            assert await asyncio.wait_for(asking, 30) == "the price of tea"
        assert [message.key for message in sent] == [sent[0].key] * 2


async def test_items_of_a_stream_that_were_lost_are_followed_again(stage: Stage) -> None:
    @workflow("replaced.speaker.v1")
    async def speaker(ctx: Context) -> None:
        for number in range(4):
            ctx.emit("words", await ctx.receive("say", str))
            ctx.publish("said", number)

    async with stage.engine(speaker) as engine, engine.worker():
        run = await engine.start(speaker())
        seen: list[tuple[int, str]] = []

        async def follow() -> None:
            async for item in run.stream("words"):
                seen.append((item.position, item.value))

        following = asyncio.ensure_future(follow())
        for word in ("one", "two"):
            await run.send("say", word)
        await eventually(lambda: len(seen) == 2, saying="two items")
        await until(run, Status.WAITING)
        # The next item takes the place of the lost one.
        lose(stage, "DELETE FROM perdure_outputs WHERE kind = 'stream' AND position = 1")
        for word in ("three", "four"):
            await run.send("say", word)
        await asyncio.wait_for(following, 30)
        assert seen == [(0, "one"), (1, "two"), (1, "three"), (2, "four")]


async def test_a_block_whose_lock_is_lost_is_interrupted_at_once(stage: Stage) -> None:
    async with stage.engine() as engine:
        with pytest.raises(LockLost):
            await asyncio.wait_for(_hold(engine, stage), 30)


async def _hold(engine: Engine, stage: Stage) -> None:
    async with engine.locks.hold("one", ttl="1h"):
        assert stage.store is not None
        listening = stage.store
        await eventually(lambda: listening._listeners, saying="the renewal listening")
        lose(stage, "DELETE FROM perdure_locks")
        await asyncio.sleep(3600)


def _count(stage: Stage, table: str) -> int:
    assert stage.path is not None
    with closing(sqlite3.connect(stage.path)) as connection:
        return int(connection.execute(f"SELECT COUNT(*) FROM perdure_{table}").fetchone()[0])


async def test_a_run_in_memory_goes_on_only_if_its_last_record_is_the_last_of_the_database(stage: Stage) -> None:
    executed: list[int] = []

    async def count() -> int:
        executed.append(1)
        return len(executed)

    @workflow("replaced.counting.v1")
    async def counting(ctx: Context) -> tuple[int, str]:
        return await ctx.step(count), await ctx.receive("word", str)

    async with stage.engine(counting) as engine, engine.worker():
        run = await engine.start(counting())
        await until(run, Status.WAITING)
        assert stage.path is not None
        with closing(sqlite3.connect(stage.path)) as connection, connection:
            assert connection.execute("DELETE FROM perdure_history").rowcount == 1
        await run.send("word", "go")
        assert await run.result("30s") == (2, "go")
        with closing(sqlite3.connect(stage.path)) as connection:
            assert [row[0] for row in connection.execute("SELECT seq FROM perdure_history ORDER BY seq")] == [0, 1]


class Hearts(Host):
    """A system that knows the heartbeats that have not been stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.beating: list[Background] = []

    def background(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> Background:
        heart = super().background(main, name)
        stop = heart.stop

        async def stop_and_forget() -> None:
            await stop()
            self.beating.remove(heart)

        heart.stop = stop_and_forget  # type: ignore[method-assign] # to hear of it
        self.beating.append(heart)
        return heart


async def test_a_worker_that_begins_a_new_life_ends_the_heartbeat_of_the_former_one() -> None:
    system = Hearts()
    store: Any = open_store("sqlite://", system, inline=True)
    async with Engine("sqlite://", [patient], system=system, store=store) as engine, engine.worker():
        [former] = await store.workers()
        [heart] = system.beating
        store._tell(Change.REPLACED)

        async def is_reborn() -> bool:
            alive = [one.id for one in await store.workers() if one.status is WorkerStatus.ALIVE]
            return bool(alive) and former.id not in alive and any(one is not heart for one in system.beating)

        await eventually(is_reborn)
        assert heart not in system.beating
        assert len(system.beating) == 1
