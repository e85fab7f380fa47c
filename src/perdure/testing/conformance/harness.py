"""Needs of the suite besides a store: a clock that it can turn, a second way in, and small values to write.

To prove a store, write a `Harness` for it and two fixtures, `harness` and `store` (opened by the harness).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from perdure.core.model.claim import ClaimRequest, ClaimResult
from perdure.core.model.record import NewMessage, Record, RecordKind
from perdure.core.model.run import NewRun, Reason, RetryOutcome, RetryRequest
from perdure.core.model.turn import Lease, NextState, Park, Turn, TurnOutcome
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.time.duration import NEVER
from perdure.host import Host
from perdure.store import Store
from perdure.store.sql.dialect import _TABLES

SECOND = 1_000_000
#: When the suite's clock starts.
START = 1_700_000_000 * SECOND
LEASE = 15 * SECOND
TYPE = "suite.run.v1"
OTHER_TYPE = "suite.other.v1"
ACTOR = "suite"


class ManualSystem(Host):
    """The real world with a clock that moves only when told to."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START
        self._random = random.Random(0)  # noqa: S311 - a test's randomness is to be repeatable
        #: Microseconds by which each look at the clock moves it, so that no two decisions are taken at one time.
        self.tick = 0
        #: Called with the name of every crash point; what it raises is raised there.
        self.on_crash_point: Callable[[str], None] = _nothing
        self.crash_point = self._tell

    def now(self) -> int:
        """The time it was set to."""
        self._now += self.tick
        return self._now

    def monotonic(self) -> float:
        """The same, in seconds."""
        return self._now / SECOND

    def random(self) -> float:
        """Always in the middle."""
        return 0.5

    def entropy(self, size: int) -> bytes:
        """Different every time, and the same in every execution."""
        return self._random.randbytes(size)

    async def sleep(self, seconds: float) -> None:
        """Turn the clock instead of waiting."""
        self.advance(seconds)
        await asyncio.sleep(0)

    def _tell(self, name: str) -> None:
        self.on_crash_point(name)

    def advance(self, seconds: float) -> None:
        """Turn the clock."""
        self._now += round(seconds * SECOND)


class Harness(Protocol):
    """A database for one test."""

    system: ManualSystem

    async def open(self) -> Store:
        """Another store on the same database; raises `Unshared` where there can be only one. Closed by the harness."""

    async def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a SELECT, with tables called `perdure_…`."""

    async def execute(self, sql: str) -> None:
        """A statement by plain SQL, committed."""


class Unshared(Exception):
    """The database lives in one store and cannot be opened by another."""


async def snapshot(harness: Harness, *, but: Sequence[str] = ()) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in the database, for comparing."""
    left_out = {"migrations", *but}
    tables = sorted(name for name in _TABLES if name not in left_out and not name.endswith("_view"))
    return {name: sorted(await harness.query(f"SELECT * FROM perdure_{name}"), key=repr) for name in tables}


def a_run(id: str = "r1", **changes: Any) -> NewRun:
    """A run to create."""
    fields: dict[str, Any] = {"id": id, "type": TYPE, "write_id": f"write-{id}"}
    return NewRun(**{**fields, **changes})


def a_child(id: str, parent: str = "parent", location: str = "", **changes: Any) -> NewRun:
    """A run to create as a child."""
    return a_run(id, parent_id=parent, parent_location=location or f"call-{id}", **changes)


def a_worker(id: str = "w1", **changes: Any) -> WorkerInfo:
    """A worker to register."""
    fields: dict[str, Any] = {
        "id": id,
        "host": "here",
        "pid": 1,
        "queues": ("default",),
        "types": (TYPE,),
        "slots": 10,
        "lease": LEASE,
    }
    return WorkerInfo(**{**fields, **changes})


def a_record(seq: int = 0, location: str = "", **changes: Any) -> Record:
    """A step's result."""
    fields: dict[str, Any] = {
        "seq": seq,
        "kind": RecordKind.STEP,
        "location": location or f"step-{seq}",
        "payload": f"{seq}",
        "at": START,
    }
    return Record(**{**fields, **changes})


def a_message(run_id: str = "r1", key: str = "k1", **changes: Any) -> NewMessage:
    """A message to send."""
    fields: dict[str, Any] = {"run_id": run_id, "name": "news", "payload": f'"{key}"', "key": key}
    return NewMessage(**{**fields, **changes})


def a_park(seen: int = 0, *, wake_at: int = NEVER, reason: Reason = Reason.MESSAGE) -> Park:
    """Waiting for a message."""
    return Park(wake_at, reason, seen)


async def claim(store: Store, worker: str = "w1", *, nonce: str = "", **changes: Any) -> ClaimResult:
    """Claim as a worker that is registered if need be."""
    await store.register(a_worker(worker))
    fields: dict[str, Any] = {"worker": worker, "nonce": nonce or f"nonce-{worker}", "limit": 10, "types": (TYPE,)}
    return await store.claim(ClaimRequest(**{**fields, **changes}))


async def claim_ids(store: Store, worker: str = "w1", **changes: Any) -> list[str]:
    """The ids of what a claim gets, in order."""
    return [claimed.run.id for claimed in (await claim(store, worker, **changes)).runs]


async def lease_of(store: Store, run_id: str = "r1", worker: str = "w1", *, nonce: str = "") -> Lease:
    """Claim until a certain run is held; the lease on it."""
    got = await claim(store, worker, nonce=nonce or f"nonce-{worker}-{run_id}", limit=1000)
    return next(claimed.lease for claimed in got.runs if claimed.run.id == run_id)


async def held(store: Store, run_id: str = "r1", worker: str = "w1", **changes: Any) -> Lease:
    """Create a run and claim it."""
    await store.create([a_run(run_id, **changes)], ACTOR)
    return await lease_of(store, run_id, worker)


async def commit(
    store: Store, lease: Lease, *records: Record, next: NextState | None = None, **changes: Any
) -> TurnOutcome:
    """Commit one turn."""
    [verdict] = await store.commit([Turn(lease=lease, records=records, next=next, **changes)], ACTOR)
    return verdict


async def retry(store: Store, run_id: str = "r1", token: int | None = None, **changes: Any) -> RetryOutcome:
    """Let a run go again, as read now or with an earlier token; the outcome."""
    run = await store.get(run_id)
    seen = token if token is not None else 0 if run is None else run.token
    return (await store.retry(RetryRequest(run_id=run_id, token=seen, **changes), ACTOR)).outcome


def _nothing(name: str) -> None:
    """A crash point at which nothing happens."""
