"""Choice of the worker that a moved run goes to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.core.model.worker_info import WorkerInfo, WorkerStatus
from perdure.host import Host
from perdure.worker.run.pause_and_evict import relocate

NOW = 1_000_000
RUN = cast("Any", SimpleNamespace(id="r1", type="order.v1", queue="express"))


def a_worker(**changes: Any) -> WorkerInfo:
    fields: dict[str, Any] = {
        "id": "w2", "host": "h", "pid": 1, "queues": ("express",), "types": ("order.v1",), "slots": 1, "lease": 10,
        "heartbeat_at": NOW,
    }  # fmt: skip
    return WorkerInfo(**{**fields, **changes})


async def home_among(*workers: WorkerInfo) -> tuple[str | None, int]:
    """Return the chosen worker, and how often this one avoids to claim it again."""
    chosen: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    stood_off: list[int] = []

    async def listed() -> list[WorkerInfo]:
        return list(workers)

    store = cast("Any", SimpleNamespace(clock=lambda: NOW, workers=listed))
    await relocate(RUN, chosen.set_result, "w1", store, Host(), lambda: stood_off.append(1))
    return await chosen, len(stood_off)


async def test_a_run_goes_to_another_worker_that_lives_and_serves_it() -> None:
    assert await home_among(a_worker(id="w1"), a_worker()) == ("w2", 1)
    assert await home_among(a_worker(heartbeat_at=NOW - 10)) == ("w2", 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "w1"},
        {"status": WorkerStatus.DEAD},
        {"heartbeat_at": NOW - 11},
        {"types": ("other.v1",)},
        {"queues": ("default",)},
    ],
    ids=str,
)
async def test_a_run_is_left_to_anybody_where_no_other_worker_can_have_it(changes: dict[str, Any]) -> None:
    assert await home_among(a_worker(**changes)) == (None, 0)
