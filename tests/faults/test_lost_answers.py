"""The way to a server breaks at the message that makes a write durable: the caller is answered, and the database is as
it would be.

Compared is every row, with what the same operation leaves behind when nothing happens to it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import Any, cast

import pytest
import pytest_asyncio

from perdure.core.model.record import SendOutcome
from perdure.core.model.turn import Lease, Release, Turn
from perdure.host import Host
from perdure.store import MUTATING_VERBS, Retrying, Store, migration_status, open_store
from perdure.store.mysql.store import MysqlStore
from perdure.store.postgres.store import PostgresStore
from perdure.testing.conformance.harness import ACTOR, a_run
from tests.faults.operations import OPERATIONS, Steady
from tests.faults.proxy import Fault, Loss, Proxy
from tests.faults.served import Served, store_at
from tests.helpers import eventually
from tests.invariants import scan_store
from tests.servers.places import TABLES

WHOLE = bool(os.environ.get("PERDURE_PROVE"))
TIMES = 50 if WHOLE else 1

#: One stage for all: making tables and connections would take longer than the tests.
pytestmark = pytest.mark.asyncio(loop_scope="module")

AnyStore = PostgresStore | MysqlStore
Rows = dict[str, list[tuple[Any, ...]]]

#: Different each time: which claim it was, the run's randomness, the number of an event.
_RUNS = """
SELECT id, status, token, CASE WHEN nonce = '' THEN 0 ELSE 1 END, inbox_seq, inbox_read, marked, worker, home, claims,
  progress, type, queue, priority, reason, attempt, max_attempts, generation, wake_at, deadline, close_by, lease_until,
  created_at, started_at, finished_at, deleted_at, CASE WHEN seed = '' THEN 0 ELSE 1 END, parent_id, parent_location,
  idempotency_key, write_id, options, input,
  output, error
FROM perdure_runs ORDER BY id
"""
LEFT_BEHIND = {
    "runs": _RUNS,
    "history": "SELECT * FROM perdure_history ORDER BY run_id, seq",
    "messages": "SELECT * FROM perdure_messages ORDER BY run_id, seq",
    "events": "SELECT run_id, at, kind, actor, data FROM perdure_events ORDER BY run_id, id",
    "outputs": "SELECT * FROM perdure_outputs ORDER BY run_id, kind, name, position",
    "attributes": "SELECT * FROM perdure_attributes ORDER BY run_id, name",
    "topics": "SELECT * FROM perdure_topics ORDER BY topic, run_id",
    "waiters": "SELECT * FROM perdure_waiters ORDER BY target, run_id, message_key",
    "observers": "SELECT * FROM perdure_observers ORDER BY target, run_id, message_key",
    "pauses": "SELECT * FROM perdure_pauses ORDER BY 1, 2",
    "schedules": "SELECT * FROM perdure_schedules ORDER BY id",
    "locks": "SELECT * FROM perdure_locks ORDER BY name",
    "singletons": "SELECT * FROM perdure_singletons ORDER BY name",
    "successors": "SELECT * FROM perdure_successors ORDER BY run_id",
    "watermarks": "SELECT * FROM perdure_watermarks ORDER BY kind, name",
    "tokens": "SELECT * FROM perdure_tokens ORDER BY name",
    "documents": "SELECT * FROM perdure_documents ORDER BY kind, name, build",
    "graph_checkpoints": "SELECT * FROM perdure_graph_checkpoints ORDER BY thread, space, checkpoint, entry",
    "workers": "SELECT * FROM perdure_workers ORDER BY id",
    "registry": "SELECT * FROM perdure_registry ORDER BY type",
    "gates": "SELECT * FROM perdure_gates ORDER BY name",
    "lines": "SELECT * FROM perdure_lines ORDER BY run_id",
    "permits": "SELECT * FROM perdure_permits ORDER BY gate, run_id",
    "shares": "SELECT * FROM perdure_shares ORDER BY gate, fair_key",
}


class Stage:
    """A database, a way to it that works, and one that can be broken."""

    def __init__(self, system: Steady, direct: AnyStore, disturbed: AnyStore, proxy: Proxy) -> None:
        self.system = system
        self.direct = direct
        self.proxy = proxy
        self._disturbed = disturbed
        self._known: dict[str, tuple[object, Rows]] = {}

    async def prepare(self, name: str) -> Callable[[], Awaitable[object]]:
        """Empty the database and make everything ready; what then asks for the operation, by the way that can be
        broken."""
        for table in TABLES:
            await self.direct.query(f"DELETE FROM perdure_{table}")
        self.system.set_back()
        for store in (self.direct, self._disturbed):
            store._clock._last = 0
            # A worker of the operation before has the same name, and heartbeats that are gone with the tables.
            store._tracker._registrations.clear()
        ask = await OPERATIONS[name](self.direct, self.system)
        return lambda: ask(Retrying(self._disturbed, self.system))

    async def undisturbed(self, name: str) -> tuple[object, Rows]:
        """The answer of an operation, and what it leaves behind."""
        if name not in self._known:
            ask = await self.prepare(name)
            self._known[name] = plain(await ask()), await self.left_behind()
        return self._known[name]

    async def disturbed(self, name: str, fault: Fault) -> object:
        """The answer of an operation to which something happens."""
        asking = asyncio.ensure_future((await self.prepare(name))())
        if fault.loss is Loss.DELAY:
            await eventually(lambda: fault.fired or asking.done())
            # A caller that holds locks cannot be overtaken.
            await asyncio.wait([asking], timeout=0.03)
            await fault.deliver()
        async with asyncio.timeout(30):
            answer = await asking
        self.proxy.lose_nothing()
        return answer

    async def holds_only(self, known: list[Lease]) -> bool:
        """Give back what the worker holds and does not know of, as it does itself once a lease; whether that was
        nothing."""
        strays = [lease for lease in await self.direct.leases("w1") if lease not in known]
        if strays:
            await self.direct.commit([Turn(lease=lease, next=Release()) for lease in strays], ACTOR)
        return not strays

    async def left_behind(self) -> Rows:
        return {table: await self.direct.query(sql) for table, sql in LEFT_BEHIND.items()}


def plain(answer: object) -> object:
    """An answer, without what may differ if it is given again."""
    match answer:
        case Lease(run_id=run_id, token=token):
            return run_id, token
        case SendOutcome.DUPLICATE:
            return SendOutcome.ACCEPTED
        case list():
            return [plain(one) for one in answer]
        # How many were unblocked: those that this request unblocked before are not blocked any more.
        case int() if not isinstance(answer, bool):
            return None
        case _:
            return answer


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(served: Served) -> AsyncIterator[Stage]:
    async with served.place() as (url, proxy):
        system = Steady()
        direct, disturbed = store_at(url, system), store_at(proxy.url, system)
        await direct.open()
        await disturbed.open()
        yield Stage(system, direct, disturbed, proxy)
        await disturbed.close()
        await direct.close()


async def test_every_verb_that_writes_is_among_the_operations() -> None:
    asked: set[str] = set()

    class Overheard:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, verb: str) -> object:
            asked.add(verb)
            return getattr(self._store, verb)

    for prepare in OPERATIONS.values():
        system = Steady()
        store = open_store("sqlite://", system, inline=True)
        await store.open()
        ask = await prepare(store, system)
        await ask(cast(Store, Overheard(store)))
        await store.close()
    # Making the tables and the user's own transactions have tests of their own.
    assert asked >= set(MUTATING_VERBS) - {"migrate", "transact"}


@pytest.mark.timeout(7200 if WHOLE else 120)
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_lost_message_costs_nothing_but_time(stage: Stage, name: str) -> None:
    answer, rows = await stage.undisturbed(name)
    # What becomes of a claim that arrives late is told below.
    losses = [loss for loss in Loss if loss is not Loss.DELAY or not name.startswith("claim")]
    for loss in losses * TIMES if WHOLE else random.sample(losses, 1):
        for nth in count(1):
            fault = stage.proxy.lose(loss, nth)
            given = await stage.disturbed(name, fault)
            assert plain(given) == answer, loss
            assert await stage.left_behind() == rows, loss
            assert await scan_store(stage.direct.query) == []
            if not fault.fired:
                break
        assert nth > 1


@pytest.mark.timeout(7200 if WHOLE else 120)
@pytest.mark.parametrize("name", [name for name in OPERATIONS if name.startswith("claim")])
async def test_what_a_claim_takes_that_arrives_late_can_be_found_and_given_back(stage: Stage, name: str) -> None:
    for nth in [1, 2] * TIMES:
        fault = stage.proxy.lose(Loss.DELAY, nth)
        asking = asyncio.ensure_future((await stage.prepare(name))())
        await eventually(lambda: fault.fired or asking.done())  # noqa: B023 - asked at once
        await asyncio.wait([asking], timeout=0.03)
        await fault.deliver()
        stage.proxy.lose_nothing()
        # What it still waits for may be what the late one has taken.
        await asyncio.wait([asking], timeout=0.2)
        given = await asking if asking.done() else []
        asking.cancel()
        assert isinstance(given, list)
        await eventually(lambda: stage.holds_only(given))  # noqa: B023 - asked at once
        assert await scan_store(stage.direct.query) == []


@pytest.mark.parametrize("loss", [Loss.ANSWER, Loss.REQUEST])
async def test_tables_are_made_once_although_the_way_to_the_server_breaks(served: Served, loss: Loss) -> None:
    async with served.place(fresh=True) as (url, proxy):
        fault = proxy.lose(loss)
        store = open_store(proxy.url, Host())
        await store.open()
        assert fault.fired
        assert all(one.applied_at > 0 for one in await migration_status(url, Host()))
        await store.create([a_run("r1")], ACTOR)
        await store.close()
