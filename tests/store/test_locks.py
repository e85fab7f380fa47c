"""Transactions that meet on the same rows of a server, in any order, get through: no wait has no end, nothing is lost
or doubled."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator

import pytest

from perdure.core.model.record import RecordKind, SendOutcome
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.host import Host
from perdure.store import Retrying, SqlStore, Store, open_store
from perdure.testing.conformance.harness import (
    ACTOR,
    a_child,
    a_message,
    a_park,
    a_record,
    a_run,
    claim,
    commit,
    held,
    lease_of,
)
from tests.invariants import scan_store
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas

ROUNDS = 200 if os.environ.get("PERDURE_PROVE") else 15


@pytest.fixture(params=["postgres", "mysql"])
async def url(request: pytest.FixtureRequest, schemas: Schemas, databases: Databases) -> AsyncIterator[str]:
    async with (schemas if request.param == "postgres" else databases).one() as url:
        yield url


@pytest.fixture
async def server(url: str) -> AsyncIterator[SqlStore]:
    store = open_store(url, Host())
    await store.open()
    yield store
    assert await scan_store(store.query) == []
    await store.close()


async def settle(store: Store, turn: Turn) -> TurnOutcome:
    """Commit a turn for as long as its rows are busy."""
    while True:
        [verdict] = await store.commit([turn], ACTOR)
        if verdict is not TurnOutcome.BUSY:
            return verdict


async def test_senders_that_meet_crosswise_all_get_through(server: SqlStore) -> None:
    names = [f"r{number}" for number in range(6)]
    await server.create([a_run(name) for name in names], ACTOR)
    dice = random.Random(1)

    async def send(number: int) -> None:
        order = dice.sample(names, len(names))
        outcomes = await server.send([a_message(name, key=f"k{number}") for name in order], ACTOR)
        assert outcomes == [SendOutcome.ACCEPTED] * len(names)

    patient = [send(number) for number in range(ROUNDS)]
    await asyncio.gather(*patient)
    for name in names:
        assert [message.seq for message in await server.inbox(name, 0)] == list(range(1, ROUNDS + 1))


async def test_the_same_run_created_by_many_at_once_is_created_once(server: SqlStore) -> None:
    patient = Retrying(server, Host())
    requests = [
        [a_run(f"r{number}", idempotency_key=f"k{number}", write_id=f"{who}-{number}") for number in order]
        for who, order in (("a", range(20)), ("b", range(19, -1, -1)), ("c", range(0, 20, 3)))
    ]
    answers = await asyncio.gather(*(patient.create(request, ACTOR) for request in requests))
    made = [answer.run.id for several in answers for answer in several if answer.created]
    assert sorted(made) == sorted(f"r{number}" for number in range(20))


@pytest.mark.parametrize("seed", range(3))
async def test_children_that_finish_while_the_parent_parks_never_leave_it_asleep(
    server: SqlStore, url: str, seed: int
) -> None:
    dice = random.Random(seed)
    others = [open_store(url, Host()) for _ in range(3)]
    for other in others:
        await other.open()
    for number in range(ROUNDS):
        name = f"p{number}"
        parent = await held(server, name)
        await commit(server, parent, children=tuple(a_child(f"{name}-{letter}", name) for letter in "ab"))
        got = await claim(server, nonce=f"children-{number}")
        leases = {one.run.id: one.lease for one in got.runs}
        turns = [
            Turn(lease=parent, next=a_park(reason=Reason.CHILD)),
            *(
                Turn(lease=lease, records=(a_record(0),), next=Finish(Status.COMPLETED, "1"))
                for lease in leases.values()
            ),
        ]
        stop = a_message(name, kind=RecordKind.CANCEL, payload="null", key="stop")
        dice.shuffle(turns)
        writes = [settle(other, turn) for other, turn in zip(others, turns, strict=True)]
        await asyncio.gather(*writes, server.send([stop], ACTOR))
        run = await server.get(name)
        assert run is not None
        assert run.inbox_seq == 3
        # Awake or ready; asleep with something unread would be for ever.
        assert run.status in (Status.RUNNING, Status.PENDING)
        if run.status is Status.PENDING:
            parent = await lease_of(server, name, nonce=f"again-{number}")
        await commit(server, parent, next=Finish(Status.FAILED, "{}"))
    for other in others:
        await other.close()


async def test_commits_that_write_to_each_other_s_runs_all_get_through(server: SqlStore, url: str) -> None:
    names = [f"r{number}" for number in range(8)]
    await server.create([a_run(name) for name in names], ACTOR)
    leases = {one.run.id: one.lease for one in (await claim(server, limit=100)).runs}
    writers = [open_store(url, Host()) for _ in range(2)]
    for writer in writers:
        await writer.open()

    async def write(writer: Store, mine: list[str], theirs: list[str]) -> None:
        for seq in range(ROUNDS):
            turns = [
                Turn(lease=leases[name], records=(a_record(seq),), sends=(a_message(other, key=f"{name}-{seq}"),))
                for name, other in zip(mine, theirs, strict=True)
            ]
            while turns:
                verdicts = await writer.commit(turns, ACTOR)
                assert set(verdicts) <= {TurnOutcome.APPLIED, TurnOutcome.BUSY}
                turns = [turn for turn, verdict in zip(turns, verdicts, strict=True) if verdict is TurnOutcome.BUSY]

    first, second = names[:4], names[4:]
    await asyncio.gather(
        write(writers[0], first, list(reversed(second))), write(writers[1], list(reversed(second)), first)
    )
    for name in names:
        assert [record.seq for record in await server.history(name)] == list(range(ROUNDS))
        assert [message.seq for message in await server.inbox(name, 0)] == list(range(1, ROUNDS + 1))
    for writer in writers:
        await writer.close()
