"""I/O of the function of a transaction, which is a step and may do any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perdure import Context, workflow
from tests.stage import Stage


async def test_the_async_function_of_a_transaction_may_open_a_file(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "note"

    async def note(connection: Any) -> str:
        path.write_text("noted")
        return "done"

    @workflow("files.transaction.v1")
    async def noting(ctx: Context) -> str:
        return await ctx.transaction(note)

    engine = stage.engine(noting)
    async with engine.worker():
        assert await (await engine.start(noting())).result("20s") == "done"
    assert path.read_text() == "noted"
