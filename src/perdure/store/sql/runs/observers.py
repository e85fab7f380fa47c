"""Runs that wait for outputs of another run, their target: for another state of a key, or for items of a stream.

A wait is registered under the lock of the target's row, under which outputs are written, too. The transaction that
writes outputs of a watched run, or ends it, sends them to its observers. Items of a transaction step are written on the
user's connection, where no other run can be locked; the sweep finds them.
"""

from __future__ import annotations

from collections.abc import Container

import msgspec

from perdure.core.model.outputs import OutputKind, SeenOutput, SeenOutputs, WantedOutput, source_of, state_digest
from perdure.core.model.record import NewMessage
from perdure.core.model.run import FINISHED
from perdure.errors import StoreCorrupt
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import failure
from perdure.store.sql.runs.waiters import WATCH, Waiter, outcome_of

#: Items of a stream, and characters of their JSON, in one answer.
PAGE = 100
_CHARACTERS = 250_000

_OBSERVERS = """
SELECT target, run_id, message_key, location, kind, name, position, seen
FROM perdure_observers
WHERE target = :target
ORDER BY run_id, message_key
"""

_LEAVE = """
DELETE FROM perdure_observers
WHERE target = :target AND run_id = :run_id AND message_key = :key
"""

_ENTER = """
INSERT INTO perdure_observers (target, run_id, message_key, location, kind, name, position, seen)
VALUES (:target, :run_id, :key, :location, :kind, :name, :position, :seen)
"""

_WATCHED = "SELECT finished_at FROM perdure_runs WHERE id = :target AND watched = 1"

_OUTPUTS = """
SELECT payload, position, output_key
FROM perdure_outputs
WHERE run_id = :target AND kind = :kind AND name = :name AND position >= :position
ORDER BY run_id, kind, name, position
LIMIT :limit
"""

_IS_UNSEEN = """(
  r.finished_at > 0 OR EXISTS (
    SELECT 1 FROM perdure_outputs p
    WHERE p.run_id = o.target AND p.kind = 'stream' AND o.kind = 'stream' AND p.name = o.name
      AND p.position >= o.position
  )
)"""

_UNSEEN = f"""
SELECT DISTINCT o.target
FROM perdure_observers o
JOIN perdure_runs r ON r.id = o.target
WHERE {_IS_UNSEEN}
ORDER BY o.target
LIMIT :limit
"""

#: True if the sweep has observers to tell.
UNSEEN = f"EXISTS (SELECT 1 FROM perdure_observers o JOIN perdure_runs r ON r.id = o.target WHERE {_IS_UNSEEN})"


class Observer(Waiter, frozen=True):
    """A run that waits for outputs of another, at a location, and the key of the message that ends the wait."""

    wants: WantedOutput

    @classmethod
    def asked_by(cls, request: NewMessage, wants: WantedOutput) -> Observer:
        """Make the observer of a request of the kind WATCH or UNWATCH for outputs."""
        return cls(request.run_id, request.payload or "", request.key, request.name, wants)

    def answer(self, seen: SeenOutputs) -> NewMessage:
        """Inbox entry with the outputs."""
        try:
            return self.message(msgspec.json.encode(seen).decode(), failed=False)
        except UnicodeError:
            error = f"the {self.wants.kind} {self.wants.name!r} of run {self.target!r} is not valid text"
            return self.message(failure(StoreCorrupt, error), failed=True)


async def observe(tx: Transaction, observer: Observer) -> NewMessage | None:
    """Register a wait; return the entry for the observer's inbox if it is answered at once."""
    state = await outcome_of(tx, observer.target)
    if state is None:
        return observer.not_found()
    seen = await look(tx, observer, ended=state[0] in FINISHED)
    if seen is not None:
        return observer.answer(seen)
    await enter_observer(tx, observer)
    return None


async def look(tx: Transaction, observer: Observer, *, ended: bool) -> SeenOutputs | None:
    """Return the outputs that an observer waits for; None: it has to wait. The target's row is locked."""
    wants = observer.wants
    limit = 1 if wants.kind is OutputKind.STATE else PAGE + 1
    place = {"target": observer.target, "kind": wants.kind.value, "name": wants.name, "position": wants.position}
    rows = await tx.fetch(_OUTPUTS, {**place, "limit": limit})
    found = [SeenOutput(payload, position, source_of(key)) for payload, position, key in rows]
    if wants.kind is OutputKind.STATE:
        is_other = bool(found) and state_digest(found[0].payload) != wants.seen
        return SeenOutputs(tuple(found), ended=ended) if is_other or ended or wants.now else None
    room, page = _CHARACTERS, list[SeenOutput]()
    for item in found[:PAGE]:
        room -= len(item.payload)
        if page and room < 0:
            break
        page.append(item)
    more = len(page) < len(found)
    return SeenOutputs(tuple(page), ended=ended and not more, more=more) if page or ended or wants.now else None


async def enter_observer(tx: Transaction, observer: Observer) -> None:
    """Add an observer to those of a target, whose row is locked."""
    await leave_observer(tx, observer)
    wants = observer.wants
    row = {"target": observer.target, "run_id": observer.run_id, "key": observer.key, "location": observer.location}
    what = {"kind": wants.kind.value, "name": wants.name, "position": wants.position, "seen": wants.seen}
    await tx.execute(_ENTER, {**row, **what})
    await tx.execute(WATCH, {"target": observer.target})


async def leave_observer(tx: Transaction, observer: Observer) -> None:
    """Remove an observer."""
    await tx.execute(_LEAVE, {"target": observer.target, "run_id": observer.run_id, "key": observer.key})


async def observers_of(tx: Transaction, target: str) -> list[Observer]:
    """Return the observers of a target, whose row is locked."""
    return [
        Observer(
            target, run_id, key, location, WantedOutput(kind=OutputKind(kind), name=name, position=position, seen=seen)
        )
        for _, run_id, key, location, kind, name, position, seen in await tx.fetch(_OBSERVERS, {"target": target})
    ]


async def messages_to_observers(tx: Transaction, target: str, among: Container[str] | None = None) -> list[NewMessage]:
    """Remove the observers of a run that have something to see; return the entries for their inboxes.

    The caller has locked the target's row and written the outputs. With `among`, only these runs are notified.
    """
    watched = await tx.fetch(_WATCHED, {"target": target})
    messages: list[NewMessage] = []
    for observer in await observers_of(tx, target) if watched else ():
        told = among is None or observer.run_id in among
        seen = await look(tx, observer, ended=watched[0][0] > 0) if told else None
        if seen is not None:
            await leave_observer(tx, observer)
            messages.append(observer.answer(seen))
    return messages


async def unseen(tx: Transaction, limit: int) -> list[NewMessage]:
    """Remove observers that were not told of outputs or ends; return the entries for their inboxes."""
    messages: list[NewMessage] = []
    for (target,) in await tx.fetch(_UNSEEN, {"limit": limit}):
        if await outcome_of(tx, target) is not None:
            messages += await messages_to_observers(tx, target)
    return messages
