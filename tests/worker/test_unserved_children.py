"""A child that no worker takes is in the log, once for each type."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from perdure import Call, Context, Status, activity, workflow
from perdure.worker import unserved_children
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
    look = unserved_children.UnservedChildren._look

    async def counted(self: Any, type: str, child_id: str, parent_id: str) -> None:
        await look(self, type, child_id, parent_id)
        looks.append(type)

    monkeypatch.setattr(unserved_children.UnservedChildren, "_look", counted)
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
