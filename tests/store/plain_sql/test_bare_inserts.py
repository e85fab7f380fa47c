"""A run that a bare INSERT made has a `created` event before its first claim, or before its end."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from perdure.core.audit import Audit
from perdure.core.limits.admission_requests import AdmissionRequest, RunArrival
from perdure.core.limits.limit import RequiredGate, RequiredGates
from perdure.core.model.claim import ClaimByIdRequest
from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import Status
from perdure.core.model.turn import Release, Turn, TurnOutcome
from perdure.testing.conformance.harness import ACTOR, a_run, a_worker
from perdure.testing.conformance.harness import claim as claim_in_python
from tests.store.plain_sql.places import SECOND, Plain

TYPE = "mail.send.v1"

Deed = Callable[[Plain, str], Awaitable[object]]


async def claim(plain: Plain, run_id: str) -> None:
    # The clock of this process may be behind the server's, which stamped the row, until it is measured.
    await plain.store.now()
    assert [one.run.id for one in (await claim_in_python(plain.store, types=(TYPE,))).runs] == [run_id]


async def claim_with_a_due_timer(plain: Plain, run_id: str) -> None:
    """Claim in the longer transaction, which a due timer asks for."""
    now = await plain.store.now()
    await plain.execute(
        f"INSERT INTO {plain.tables}runs (type, status, reason, wake_at) "
        f"VALUES ('other.v1', 'waiting', 'timer', {now - SECOND})"
    )
    await claim(plain, run_id)


async def claim_by_id(plain: Plain, run_id: str) -> None:
    await plain.store.register(a_worker())
    request = ClaimByIdRequest(worker="w1", nonce="n", run_id=run_id, types=(TYPE,))
    await plain.store.now()  # as above
    assert (await plain.store.claim_by_id(request)).claimed is not None


async def admit(plain: Plain, run_id: str) -> None:
    await plain.store.register(a_worker())
    await plain.store.now()  # as above
    arrival = RunArrival(run_id, 0, RequiredGates((RequiredGate("limit:mail"),)))
    request = AdmissionRequest(
        worker="w1", nonce="n", limit=1, types=(TYPE, ""), queues=("default",), arrivals=(arrival,)
    )
    assert [one.run.id for one in (await plain.store.admit(request)).runs] == [run_id]


async def claim_by_sql(plain: Plain, run_id: str) -> None:
    assert [row["id"] for row in await plain.do("claim")] == [run_id]


async def cancel(plain: Plain, run_id: str) -> None:
    await plain.store.cancel(run_id, "enough", "c", ACTOR)


async def cancel_by_sql(plain: Plain, run_id: str) -> None:
    assert (await plain.one("cancel", id=run_id))["status"] == "cancelled"


async def cancel_from_a_run(plain: Plain, run_id: str) -> None:
    await plain.store.create([a_run("other", type="other.v1")], ACTOR)
    [other] = (await claim_in_python(plain.store, types=("other.v1",))).runs
    stop = NewMessage(run_id=run_id, kind=RecordKind.CANCEL, payload='"enough"', key="c")
    turn = Turn(lease=other.lease, sends=(stop,), next=Release())
    assert await plain.store.commit([turn], "w1") == [TurnOutcome.APPLIED]


async def terminate(plain: Plain, run_id: str) -> None:
    await plain.store.terminate(run_id, "enough", "t", ACTOR)


async def expire(plain: Plain, run_id: str) -> None:
    await plain.execute(f"UPDATE {plain.tables}runs SET deadline = 1 WHERE id = '{run_id}'")
    await plain.store.sweep(10)


DEEDS: dict[Deed, list[str]] = {
    claim: ["started"],
    claim_with_a_due_timer: ["started"],
    claim_by_id: ["started"],
    admit: ["started"],
    claim_by_sql: ["started"],
    cancel: ["cancel_requested", "cancelled"],
    cancel_by_sql: ["cancel_requested", "cancelled"],
    cancel_from_a_run: ["cancel_requested", "cancelled"],
    terminate: ["terminated"],
    expire: ["timed_out", "expired"],
}


async def insert(plain: Plain, run_id: str) -> None:
    """Insert a row as a producer does that does not use the statement `insert`."""
    await plain.execute(f"INSERT INTO {plain.tables}runs (id, type) VALUES ('{run_id}', '{TYPE}')")


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.__name__)
async def test_the_creation_comes_first_in_the_trail_with_its_own_time(plain: Plain, deed: Deed) -> None:
    await insert(plain, "bare")
    await deed(plain, "bare")
    events = await plain.store.events("bare")
    assert [event.kind for event in events] == ["created", *DEEDS[deed]]
    run = await plain.store.get("bare")
    assert run is not None
    created = events[0]
    assert (created.at, created.actor, json.loads(created.data)) == (run.created_at, "sql", {"type": TYPE})


async def test_the_creation_is_noted_once_however_often_the_run_is_claimed(plain: Plain) -> None:
    await insert(plain, "bare")
    await plain.store.now()  # as in `claim`
    for number in range(2):
        [held] = (await claim_in_python(plain.store, nonce=f"n{number}", types=(TYPE,))).runs
        assert await plain.store.commit([Turn(lease=held.lease, next=Release())], "w1") == [TurnOutcome.APPLIED]
    await claim_by_sql(plain, "bare")
    assert await plain.events("bare") == ["created", "started", "released", "released"]


async def test_the_statement_insert_writes_the_only_event(plain: Plain) -> None:
    for deed in (claim, claim_by_sql, cancel_by_sql):
        run_id = await plain.insert()
        await deed(plain, run_id)
        assert (await plain.events(run_id)).count("created") == 1


async def test_nothing_is_noted_while_the_trail_is_off(plain: Plain) -> None:
    plain.store.audit = Audit.OFF
    await insert(plain, "bare")
    await claim(plain, "bare")
    assert await plain.events("bare") == []
    run = await plain.store.get("bare")
    assert run is not None
    assert run.status is Status.RUNNING
