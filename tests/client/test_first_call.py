"""The first call of an engine, where there is no database: an error that says so, and soon."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import pytest

from perdure import Context, Engine, workflow
from perdure.blocking import Engine as BlockingEngine
from perdure.errors import StoreUnavailable


@workflow("first.call.v1")
async def flow(ctx: Context) -> None: ...


async def call(url: str, timeout: str = "15s") -> None:
    engine = Engine(url, [flow], database_timeout=timeout)
    try:
        await engine.start(flow())
    finally:
        await engine.close()


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb"])
async def test_a_server_that_does_not_run_raises_store_unavailable(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"{scheme}://user:secret@127.0.0.1:{unused.getsockname()[1]}/shop"
        with pytest.raises(StoreUnavailable, match="check that it runs") as told:
            await call(url)
        assert "secret" not in str(told.value)
        with pytest.raises(StoreUnavailable, match="check that it runs"):
            await asyncio.to_thread(lambda: BlockingEngine(url, [flow]).start(flow()))


@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
async def test_a_server_that_never_answers_is_waited_for_as_long_as_the_engine_says(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://user@127.0.0.1:{silent.getsockname()[1]}/shop"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s; check that it runs"):
            await call(url, "1s")
        assert time.monotonic() - began < 15


async def test_a_file_that_cannot_be_opened_raises_store_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="check that its directory exists"):
        await call(f"sqlite:///{tmp_path}/missing/shop.db")


async def test_an_engine_whose_server_was_missing_works_when_it_is_there(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/later/shop.db", [flow])
    with pytest.raises(StoreUnavailable):
        await engine.start(flow())
    await asyncio.to_thread((tmp_path / "later").mkdir)
    await engine.start(flow())
    await engine.close()
