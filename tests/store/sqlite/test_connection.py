"""The thread behind a connection: in order, urgent first, for any loop, also when a caller gives up waiting."""

from __future__ import annotations

import asyncio
import threading
from asyncio.events import _set_running_loop
from pathlib import Path
from typing import NoReturn, cast

import pytest

from perdure import Engine
from perdure.host import Host
from perdure.store import open_store
from perdure.store.sqlite.connection import SerialThread
from perdure.testing.conformance.harness import ACTOR, a_run, a_worker, claim_ids
from tests.helpers import eventually


def a_lane() -> SerialThread:
    return SerialThread(Host(), inline=False, idle=lambda: None)


async def test_jobs_are_done_in_order_and_urgent_ones_first() -> None:
    lane = a_lane()
    done: list[int] = []
    gate = threading.Event()
    blocked = asyncio.ensure_future(lane.run(gate.wait))
    await asyncio.sleep(0)
    # A lambda with a default:
    later = [asyncio.ensure_future(lane.run(lambda number=number: done.append(number))) for number in (1, 2)]  # type: ignore[misc] # mypy infers no type for the default of a lambda
    await asyncio.sleep(0)
    urgent = asyncio.ensure_future(lane.run(lambda: done.append(0), urgent=True))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(blocked, *later, urgent)
    assert done == [0, 1, 2]


async def test_a_closed_engine_leaves_no_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.host._IDLE_SECONDS", 3600.0)
    before = set(threading.enumerate())
    async with Engine(f"sqlite:///{tmp_path}/runs.db") as engine:
        await engine.runs.list()
        assert set(threading.enumerate()) - before
    await eventually(lambda: not set(threading.enumerate()) - before)


async def test_an_error_reaches_its_caller_and_no_other() -> None:
    lane = a_lane()

    def fail() -> None:
        raise LookupError("mine")

    answers = await asyncio.gather(lane.run(fail), lane.run(lambda: 7), return_exceptions=True)
    assert isinstance(answers[0], LookupError)
    assert answers[1] == 7


async def test_a_job_is_done_though_its_asker_gave_up() -> None:
    lane = a_lane()
    gate = threading.Event()
    done = threading.Event()
    waiting = asyncio.ensure_future(lane.run(gate.wait))
    given_up = asyncio.ensure_future(lane.run(done.set))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    gate.set()
    await waiting
    await eventually(done.is_set)
    assert await lane.run(lambda: 7) == 7


async def test_a_thread_that_went_home_comes_back() -> None:
    went = threading.Event()
    lane = SerialThread(Host(), inline=False, idle=went.set)
    for number in range(3):
        went.clear()
        assert await lane.run(lambda number=number: number) == number  # type: ignore[misc] # a lambda with a default
        await eventually(went.is_set)


class DeafLoop:
    """A loop that can wait for nothing: whatever a thread hands it raises."""

    def __init__(self, real: asyncio.AbstractEventLoop) -> None:
        self.create_future = real.create_future

    def call_soon_threadsafe(self, *_: object, **__: object) -> NoReturn:
        raise SystemExit("not from another thread")


async def test_a_loop_that_takes_no_answer_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    lane, done = a_lane(), threading.Event()
    here = asyncio.get_running_loop()
    asking = lane.run(done.set)
    _set_running_loop(cast("asyncio.AbstractEventLoop", DeafLoop(here)))
    try:
        asking.send(None)
    finally:
        _set_running_loop(here)
    assert await lane.run(done.is_set)
    assert "could not be delivered" in caplog.text
    asking.close()


async def test_a_connection_that_cannot_be_put_to_rest_does_not_end_the_lane(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("no locks left")

    lane = SerialThread(Host(), inline=False, idle=fail)
    for number in range(2):
        assert await lane.run(lambda number=number: number) == number  # type: ignore[misc] # a lambda with a default
        await eventually(lambda: "idle callback of a connection failed" in caplog.text)
        caplog.clear()


async def test_an_inline_lane_does_it_at_once() -> None:
    lane = SerialThread(Host(), inline=True, idle=lambda: None)
    assert await lane.run(threading.get_ident) == threading.get_ident()


def test_a_store_outlives_the_loop_that_opened_it(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db", Host())
    asyncio.run(store.open())
    [answer] = asyncio.run(store.create([a_run("r1")], ACTOR))
    assert answer.created
    assert asyncio.run(claim_ids(store)) == ["r1"]
    asyncio.run(store.close())


async def test_many_loops_share_a_store(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/shop.db", Host())
    await store.open()
    await store.register(a_worker("w1"))

    async def beat() -> bool:
        return all([await store.heartbeat("w1") for _ in range(20)])

    def elsewhere() -> bool:
        return asyncio.run(beat())

    beats = [asyncio.to_thread(elsewhere) for _ in range(3)]
    writes = [store.create([a_run(f"r{number}")], ACTOR) for number in range(50)]
    assert all(await asyncio.gather(*beats))
    assert len(await asyncio.gather(*writes)) == 50
    await store.close()
