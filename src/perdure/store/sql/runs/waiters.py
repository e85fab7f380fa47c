"""Runs that wait for the end of another run, which is their target.

A wait is registered under the lock of the target's row, which also tells whether the target has ended. The transaction
that ends a watched run sends its outcome to its waiters, so that no run waits for one that has ended. Ends that were
written without this rule (plain SQL, workers of an earlier version) are found by the sweep.
"""

from __future__ import annotations

from collections.abc import Container

from msgspec import Struct

from perdure.core.model.record import NewMessage, RecordKind
from perdure.core.model.run import FINISHED, Status
from perdure.core.model.turn import Turn
from perdure.errors import RunNotFound
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import failure

_WAITERS = """
SELECT target, run_id, message_key, location
FROM perdure_waiters
WHERE target = :target
ORDER BY run_id, message_key
"""

_FORGET = "DELETE FROM perdure_waiters WHERE target = :target"

_LEAVE = """
DELETE FROM perdure_waiters
WHERE target = :target AND run_id = :run_id AND message_key = :key
"""

_ENTER = """
INSERT INTO perdure_waiters (target, run_id, message_key, location)
VALUES (:target, :run_id, :key, :location)
"""

#: Marks a run whose end or outputs others wait for.
WATCH = "UPDATE perdure_runs SET watched = 1 WHERE id = :target AND watched = 0"

_TARGET = """
SELECT status, output, error
FROM perdure_runs
WHERE id = :target
{for_update}
"""

_ENDED = """
SELECT DISTINCT w.target
FROM perdure_waiters w
JOIN perdure_runs r ON r.id = w.target
WHERE r.finished_at > 0
ORDER BY w.target
LIMIT :limit
"""

_UNHEARD = """
SELECT m.seq
FROM perdure_messages m
WHERE m.run_id = :run_id AND m.message_key = :key AND (m.consumed = 1 OR m.seq <= :read) AND NOT EXISTS (
  SELECT 1 FROM perdure_history h WHERE h.run_id = m.run_id AND h.inbox_seq = m.seq
)
"""

_RENAME = """
UPDATE perdure_messages
SET message_key = :key
WHERE run_id = :run_id AND seq = :seq
"""

#: True if the sweep has waiters to tell.
UNTOLD = "EXISTS (SELECT 1 FROM perdure_waiters w JOIN perdure_runs r ON r.id = w.target WHERE r.finished_at > 0)"


class Waiter(Struct, frozen=True):
    """A run that waits for the end of another, at a location, and the key of the message that ends the wait."""

    target: str
    run_id: str
    key: str
    location: str

    @classmethod
    def of(cls, request: NewMessage) -> Waiter:
        """Make the waiter of a request of the kind WATCH or UNWATCH for the end of a run."""
        return cls(request.run_id, request.payload or "", request.key, request.name)

    @property
    def place(self) -> tuple[str, str]:
        """Waiting run and key, which are unique together."""
        return self.run_id, self.key

    def message(self, payload: str | None, *, failed: bool) -> NewMessage:
        """Inbox entry with the outcome of the target."""
        return NewMessage(
            run_id=self.run_id, kind=RecordKind.CHILD, name=self.location, payload=payload, failed=failed, key=self.key
        )

    def not_found(self) -> NewMessage:
        """Inbox entry that says that there is no such target."""
        error = failure(RunNotFound, f"there is no run {self.target!r} to wait for; it may have been pruned")
        return self.message(error, failed=True)


async def watch(tx: Transaction, waiter: Waiter) -> NewMessage | None:
    """Register a wait; return the entry for the waiter's inbox if the target has ended, or does not exist."""
    ended = await outcome_of(tx, waiter.target)
    if ended is None:
        return waiter.not_found()
    status, payload = ended
    if status in FINISHED:
        return waiter.message(payload, failed=status != Status.COMPLETED)
    await enter(tx, waiter)
    return None


async def forget_unheard(
    tx: Transaction, turn: Turn, read: int, known: Container[tuple[str, str]] | None = None
) -> set[tuple[str, str]]:
    """Let answers be given again that the turn asks for, and that the run read while its code did not wait for them.

    Such an answer left no record. Its entry stays as it is, but frees its key: an inbox takes each key once. Returns
    the runs and keys. `read`: last inbox entry that the turn has read. `known`: where there are entries at all.
    """
    recorded = {record.inbox_seq for record in turn.records}
    unheard: set[tuple[str, str]] = set()
    for request in turn.sends:
        run_id, key = place = (request.payload or "", request.key)
        if request.kind is not RecordKind.WATCH or (known is not None and place not in known):
            continue
        for (seq,) in await tx.fetch(_UNHEARD, {"run_id": run_id, "key": key, "read": read}):
            if seq not in recorded:
                await tx.execute(_RENAME, {"run_id": run_id, "key": f"{key}~{seq}", "seq": seq})
                unheard.add(place)
    return unheard


async def outcome_of(tx: Transaction, target: str) -> tuple[str, str | None] | None:
    """Lock a run; return its status and its result or error, None if there is no such run."""
    rows = await tx.fetch(_TARGET, {"target": target})
    if not rows:
        return None
    status, output, error = rows[0]
    return status, output if status == Status.COMPLETED else error


async def enter(tx: Transaction, waiter: Waiter) -> None:
    """Add a waiter to those of a target, whose row is locked."""
    await leave(tx, waiter)
    row = {"target": waiter.target, "run_id": waiter.run_id, "key": waiter.key, "location": waiter.location}
    await tx.execute(_ENTER, row)
    await tx.execute(WATCH, {"target": waiter.target})


async def leave(tx: Transaction, waiter: Waiter) -> None:
    """Remove a waiter."""
    await tx.execute(_LEAVE, {"target": waiter.target, "run_id": waiter.run_id, "key": waiter.key})


async def waiters_of(tx: Transaction, target: str) -> list[Waiter]:
    """Return the waiters of a target, whose row is locked."""
    return [Waiter(*row) for row in await tx.fetch(_WAITERS, {"target": target})]


async def forget(tx: Transaction, target: str) -> None:
    """Remove all waiters of a target."""
    await tx.execute(_FORGET, {"target": target})


async def messages_to_waiters(tx: Transaction, target: str, payload: str | None, *, failed: bool) -> list[NewMessage]:
    """Remove the waiters of a run that has ended; return the entries for their inboxes."""
    waiters = await waiters_of(tx, target)
    if waiters:
        await forget(tx, target)
    return [waiter.message(payload, failed=failed) for waiter in waiters]


async def untold(tx: Transaction, limit: int) -> list[NewMessage]:
    """Remove waiters of runs that have ended; return the entries for their inboxes."""
    messages: list[NewMessage] = []
    for (target,) in await tx.fetch(_ENDED, {"limit": limit}):
        ended = await outcome_of(tx, target)
        if ended is not None and ended[0] in FINISHED:
            messages += await messages_to_waiters(tx, target, ended[1], failed=ended[0] != Status.COMPLETED)
    return messages
