"""Items that a step emits after its worker has stopped."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.core.codec.codec import Codec
from perdure.core.model.turn import Lease
from perdure.worker.steps.emit import EmitBuffer, EmitUsage


@pytest.mark.parametrize("closed", [False, True], ids=["its loop runs", "its loop is closed"])
def test_an_item_is_taken_as_long_as_the_loop_of_the_worker_is_there(closed: bool) -> None:
    buffer, told = EmitBuffer(Codec()), list[str]()
    run = cast("Any", _Run(told))
    operation = SimpleNamespace(location="tell")
    attempt = cast(
        "Any",
        SimpleNamespace(
            run_id="r1", number=1, operation=operation, emission=EmitUsage(), may_wait=False, is_over=lambda: False
        ),
    )
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        buffer.begin()

    loop.run_until_complete(begin())
    if closed:
        loop.close()
    buffer.emit(run, attempt, "words", "dear")
    if not closed:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
    assert [output.payload for output in buffer.take(run)] == ([] if closed else ['"dear"'])
    assert told == ([] if closed else ["told"])


class _Run:
    def __init__(self, told: list[str]) -> None:
        self.lease = Lease("r1", 1, "")
        self._told = told

    def emitted(self) -> None:
        self._told.append("told")
