"""A child that no worker takes is in the log, once for each type."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest

from perdure import Call, Context, Status, activity, workflow
from perdure.core.model.run import Run
from perdure.core.system import Cancellable
from perdure.errors import StoreError
from perdure.host import Host
from perdure.store.contract import Store
from perdure.worker import unserved_children
from perdure.worker.unserved_children import UnservedChildren
from tests.helpers import eventually
from tests.stage import Stage, until


@workflow("unserved.parent.v1")
async def parent(ctx: Context, type: str) -> Any:
    return await ctx.call(Call.named(type))


@activity("unserved.served.v1")
async def served() -> str:
    return "done"


@activity("unserved.missing.v1")
async def missing() -> str:
    return "at last"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "no live worker serves" in record.getMessage()]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved_children, "_PATIENCE", 0.05)


@pytest.mark.usefixtures("soon")
async def test_a_child_of_a_type_that_no_worker_serves_is_logged_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stage.engine(parent, missing)
    async with engine.worker(types=[parent.type]):
        one, other = [await engine.start(parent(missing.type)) for _ in range(2)]
        await until(one, Status.WAITING)
        await until(other, Status.WAITING)
        await eventually(lambda: len(warnings(caplog)) == 1)
        third = await engine.start(parent(missing.type))
        await until(third, Status.WAITING)
    [warning] = warnings(caplog)
    assert "of the type 'unserved.missing.v1', which no live worker serves in the queue 'default'" in warning
    assert any(warning.startswith(f"run {run.id} waits for its child ") for run in (one, other))
    async with engine.worker():
        assert [await run.result("60s") for run in (one, other, third)] == ["at last"] * 3
    assert len(warnings(caplog)) == 1


@pytest.mark.usefixtures("soon")
async def test_a_child_that_another_worker_serves_is_not_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    is_unserved = UnservedChildren._is_unserved

    async def counted(self: UnservedChildren, child: Run) -> bool:
        answer = await is_unserved(self, child)
        looks.append(child.type)
        return answer

    monkeypatch.setattr(UnservedChildren, "_is_unserved", counted)
    engine = stage.engine(parent, served)
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        async with engine.worker(types=[parent.type]), engine.worker(types=[served.type]):
            runs = [await engine.start(parent(served.type)) for _ in range(5)]
            assert [await run.result("60s") for run in runs] == ["done"] * 5
            await eventually(lambda: looks == [served.type])
        async with engine.worker():
            assert await (await engine.start(parent(served.type))).result("60s") == "done"
    assert warnings(caplog) == []
    assert looks == [served.type]


@pytest.mark.usefixtures("soon")
async def test_a_child_whose_start_is_committed_after_the_first_look_is_logged(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine(parent, missing)
    assert stage.store is not None
    get, commit, looked, looks = stage.store.get, stage.store.commit, asyncio.Event(), list[bool]()

    async def watched(run_id: str) -> Run | None:
        found = await get(run_id)
        if "/" in run_id:
            looks.append(found is not None)
            looked.set()
        return found

    async def late(*args: Any) -> Any:
        await looked.wait()
        return await commit(*args)

    monkeypatch.setattr(stage.store, "get", watched)
    monkeypatch.setattr(stage.store, "commit", late)
    async with engine.worker(types=[parent.type]):
        await engine.start(parent(missing.type))
        await eventually(lambda: len(warnings(caplog)) == 1)
    assert not looks[0]
    assert looks[-1]


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("verb", ["get", "workers"])
async def test_a_child_is_logged_after_a_look_that_the_database_refused(
    verb: str, stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = stage.engine(parent, missing)
    assert stage.store is not None
    ask, refused = getattr(stage.store, verb), list[object]()

    async def refuse_once(*args: Any) -> Any:
        if (verb == "workers" or "/" in args[0]) and not refused:
            refused.append(args)
            raise StoreError("planted")
        return await ask(*args)

    async with engine.worker(types=[parent.type]):
        monkeypatch.setattr(stage.store, verb, refuse_once)
        await engine.start(parent(missing.type))
        await eventually(lambda: len(warnings(caplog)) == 1)
    assert refused


class Timers(Host):
    """A system whose timers are called by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.due: list[tuple[float, Callable[[], object]]] = []

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Cancellable:
        self.due.append((seconds, callback))
        return super().call_later(3600, callback)


class Empty:
    """A store without runs."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def get(self, run_id: str) -> None:
        self.asked.append(run_id)


async def test_a_child_that_never_appears_is_looked_for_a_few_times() -> None:
    system, store = Timers(), Empty()
    children = UnservedChildren(system, cast("Store", store), ())
    children.note("a.v1", "p/1", "p")
    delays = []
    while system.due:
        children.note("a.v1", "q/1", "q")
        [(seconds, callback)] = system.due
        system.due.clear()
        delays.append(seconds)
        callback()
        await asyncio.gather(*children._looking)
    assert delays == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0]
    assert store.asked == ["p/1"] * 6
    children.note("a.v1", "r/1", "r")
    [(seconds, callback)] = system.due
    callback()
    await asyncio.gather(*children._looking)
    assert (seconds, store.asked[6:]) == (5.0, ["r/1"])
    children.stop()


async def test_a_child_that_starts_while_its_worker_stops_is_not_looked_at() -> None:
    system = Timers()
    children = UnservedChildren(system, cast("Store", Empty()), ())
    children.stop()
    children.note("a.v1", "p/1", "p")
    assert system.due == []
