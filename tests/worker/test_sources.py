"""A worker stores the sources of its types beside its work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Context, Engine, workflow
from perdure.worker import sources
from tests.helpers import eventually
from tests.stage import Stage


@workflow("sources.plain.v1")
async def plain(ctx: Context) -> int:
    """Do nothing."""
    return 1


async def stored(engine: Engine) -> list[str]:
    return [one.source for one in await engine.queues.sources("sources.plain.v1")]


def watch(engine: Engine, *verbs: str, fails: int = 0) -> list[str]:
    """Note the calls of some verbs; the last verb fails so many times."""
    calls: list[str] = []

    def watched(verb: str) -> Callable[..., Awaitable[Any]]:
        original: Callable[..., Awaitable[Any]] = getattr(engine._session.store, verb)

        async def noted(*args: Any, **options: Any) -> Any:
            calls.append(verb)
            if verb == verbs[-1] and calls.count(verb) <= fails:
                raise ValueError("sabotage")
            return await original(*args, **options)

        return noted

    for verb in verbs:
        setattr(engine._session.store, verb, watched(verb))
    return calls


async def test_the_first_claim_and_run_do_not_wait_for_the_sources(stage: Stage) -> None:
    engine = stage.engine(plain)
    await engine.start(plain(), id="first")
    calls = watch(engine, "register", "claim", "save_sources")
    async with engine.worker():
        await eventually(lambda: stored(engine))
    assert calls[:2] == ["register", "claim"]
    [source] = await stored(engine)
    assert source.startswith("@workflow")
    assert source.endswith("return 1\n")


async def test_a_worker_that_stops_at_once_has_stored_its_sources(stage: Stage) -> None:
    engine = stage.engine(plain)
    async with engine.worker():
        assert await (await engine.start(plain())).result("60s") == 1
    assert len(await stored(engine)) == 1


async def test_a_worker_goes_on_while_its_sources_cannot_be_stored(stage: Stage, no_delay: None) -> None:
    engine = stage.engine(plain)
    calls = watch(engine, "save_sources", fails=2)
    async with engine.worker():
        assert await (await engine.start(plain())).result("60s") == 1
        await eventually(lambda: stored(engine))
    assert calls == ["save_sources"] * 3


async def test_a_worker_stops_although_its_sources_cannot_be_stored(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # To start and stop may take longer than the usual delay.
    monkeypatch.setattr(sources, "DELAY", 3600.0)
    engine = stage.engine(plain)
    calls = watch(engine, "save_sources", fails=1)
    async with engine.worker():
        pass
    assert calls == ["save_sources"]
    assert await stored(engine) == []
    assert "could not store the sources of its types: sabotage" in caplog.text


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "DELAY", 0.0)
