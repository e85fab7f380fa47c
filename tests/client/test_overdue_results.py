"""Waits that last: for a run that nothing works on, and for a database that is away."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Context, Engine, Handle, StoreUnavailable, UsageError, workflow
from perdure.admin import Run
from perdure.client import workers
from perdure.client.runs import results
from tests.helpers import eventually
from tests.servers.databases import MYSQL, mysql_dsn
from tests.servers.schemas import POSTGRES, postgres_dsn
from tests.stage import Stage


@workflow("overdue.v1")
async def slow(ctx: Context) -> str:
    return await ctx.receive("word", str)


@workflow("overdue.other.v1")
async def other(ctx: Context) -> None:
    return None


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    monkeypatch.setattr(results, "SLOW", 0.05)
    caplog.set_level(logging.INFO, "perdure.client")
    return caplog


async def test_a_result_that_nothing_works_on_is_explained_once(stage: Stage, said: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(slow, other)
    run = await engine.start(slow())
    waiting = asyncio.ensure_future(run.result())

    def told() -> list[logging.LogRecord]:
        return [one for one in said.records if run.id in one.getMessage()]

    await eventually(told)
    async with engine.worker(types="overdue.other.v1"):
        again = asyncio.ensure_future(run.result())
        await eventually(lambda: len(told()) >= 2)
    first, second = told()[:2]
    assert "worker" in first.getMessage()
    assert first.levelno == second.levelno == logging.WARNING
    async with engine.worker():
        await run.send("word", "done")
        assert [await waiting, await again] == ["done", "done"]
    assert len(told()) == 2


async def test_a_timeout_of_a_result_says_why(stage: Stage) -> None:
    engine = stage.engine(slow)
    run = await engine.start(slow())
    with pytest.raises(TimeoutError) as caught:
        await run.result("50ms")
    why = await run.why()
    assert str(caught.value).startswith(f"run {run.id!r} did not finish within '50ms': it ")
    assert "worker" in str(caught.value)
    assert "worker" in why
    async with engine.worker():
        with pytest.raises(TimeoutError, match="did not answer 'q' within '50ms': it "):
            await run.ask("q", timeout="50ms")


async def test_a_run_that_is_worked_on_is_no_warning(stage: Stage, said: pytest.LogCaptureFixture) -> None:
    engine = stage.engine(slow)
    async with engine.worker():
        run = await engine.start(slow())
        await eventually(lambda: _waits(run))
        waiting = asyncio.ensure_future(run.result())
        await eventually(lambda: any(run.id in one.getMessage() for one in said.records))
        await run.send("word", "done")
        assert await waiting == "done"
    assert {one.levelno for one in said.records if run.id in one.getMessage()} == {logging.INFO}


async def _waits(run: Handle[str]) -> bool:
    return "message" in await run.why()


async def test_of_very_many_waits_few_are_explained_at_a_time(on_disk: Stage, said: pytest.LogCaptureFixture) -> None:
    engine = on_disk.engine(slow)
    look, looking, most = engine._session.results.explainer._look, 0, 0

    async def counted(run_id: str) -> tuple[Run, str]:
        nonlocal looking, most
        looking += 1
        most = max(most, looking)
        try:
            return await look(run_id)
        finally:
            looking -= 1

    engine._session.results.explainer._look = counted
    runs = [await engine.start(slow()) for _ in range(5 * results.AT_ONCE)]
    waits = [asyncio.ensure_future(run.result()) for run in runs]
    await eventually(lambda: said.records)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    assert 0 < most <= results.AT_ONCE


@pytest.fixture
def closed() -> int:
    """A port at which there is nothing."""
    with closing(socket.socket()) as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
async def test_a_worker_waits_loudly_for_a_server_that_is_away(
    kind: str, closed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "FIRST_PAUSE", 0.01)
    engine = Engine(f"{kind}://user@127.0.0.1:{closed}/shop", [slow])
    starting = asyncio.ensure_future(engine.worker().start())
    await eventually(lambda: caplog.text.count("waits for its database") >= 2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(StoreUnavailable):
        await engine.worker(wait_for_database=0).start()
    await engine.close()


@pytest.mark.parametrize("variable", [POSTGRES, MYSQL])
async def test_a_worker_that_starts_before_its_server_works_once_that_is_there(
    variable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = postgres_dsn() if variable == POSTGRES else mysql_dsn()
    engine = Engine(f"{url}{'&' if '?' in url else '?'}prefix=overdue_", [slow])
    connect, tries = engine._session.connect, iter(range(3))

    async def away() -> object:
        if next(tries, None) is not None:
            raise StoreUnavailable("the server is away")
        return await connect()

    monkeypatch.setattr(engine._session, "connect", away)
    monkeypatch.setattr(workers, "FIRST_PAUSE", 0.01)
    async with engine.worker() as worker:
        assert worker.id
    assert caplog.text.count("waits for its database") == 3
    await engine.close()


async def test_a_worker_does_not_wait_for_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/missing/shop.db", [slow])
    with pytest.raises(StoreUnavailable):
        await engine.worker().start()
    assert "waits for its database" not in caplog.text


@pytest.mark.parametrize("variable", [POSTGRES, MYSQL])
async def test_a_call_waits_for_a_silent_server_no_longer_than_the_timeout(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_dsn() if variable == POSTGRES else mysql_dsn()
    async with Engine(f"{url}{'&' if '?' in url else '?'}prefix=overdue_", [slow], database_timeout="300ms") as engine:
        silence = asyncio.Event()

        async def get(_: str) -> None:
            await silence.wait()

        monkeypatch.setattr(engine._session.store._store, "get", get)  # type: ignore[attr-defined] # the store of the server
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.3 s"):
            await engine.get("r1")
        engine._session.set_call_timeout(0.2)
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s"):
            await engine.get("r1")


@pytest.mark.parametrize("timeout", [0, -1, "0s"])
def test_a_database_timeout_that_bounds_nothing_is_refused(timeout: object) -> None:
    with pytest.raises(UsageError, match="database_timeout"):
        Engine("sqlite://", database_timeout=timeout)  # type: ignore[arg-type] # that is the mistake
