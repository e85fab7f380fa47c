"""A request to create a run with a past that is overtaken by its own repetition: the run gets its past once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perdure.core.model.run import CreatedRun, NewRun
from perdure.host import Host
from perdure.store import open_store
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs import reopen
from perdure.store.sql.runs.create import create
from perdure.testing.conformance.harness import ACTOR
from perdure.testing.conformance.runs.reopen import a_fork
from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
async def test_a_fork_that_is_overtaken_by_its_repetition_forks_once(
    kind: str, schemas: Schemas, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (schemas if kind == "postgres" else databases).one() as url:
        slow, quick = open_store(url, Host()), open_store(url, Host())
        await slow.open()
        await quick.open()

        async def overtaken(tx: Transaction, runs: Sequence[NewRun]) -> list[CreatedRun]:
            monkeypatch.setattr(reopen, "create", create)
            assert (await quick.fork(a_fork(), ACTOR)).created
            return await create(tx, runs)

        monkeypatch.setattr(reopen, "create", overtaken)
        answer = await slow.fork(a_fork(), ACTOR)
        assert answer.created
        assert answer.run == await quick.get(answer.run.id)
        assert await scan_store(quick.query) == []
        assert [event.kind for event in await quick.events(answer.run.id)].count("forked") == 1
        await slow.close()
        await quick.close()
