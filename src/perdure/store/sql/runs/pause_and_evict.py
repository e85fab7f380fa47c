"""Orders to single runs, and changes of their priority.

Each is decided and written under the lock of the run's row. A run that a worker holds finds the order in its inbox; for
any other run it is carried out here. A run is paused from its PAUSE entry to the next RESUME or CANCEL: the entry stays
unread until then, so that a worker that dies on the way forgets nothing. Later entries wait behind it.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import RecordKind
from perdure.core.model.run import FINISHED, Reason, Status
from perdure.core.model.run_orders import OrderOutcome, RunOrder
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import event_json, to_json
from perdure.store.sql.runs.inbox import INSERT, KNOWN

_TARGET = """
SELECT status, reason, inbox_seq, inbox_read, started_at, wake_at, deadline, token, deleted_at
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

_PRIORITY = """
SELECT status, priority
FROM perdure_runs
WHERE id = :run_id
{for_update}
"""

_SET_PRIORITY = """
UPDATE perdure_runs
SET priority = :priority
WHERE id = :run_id
"""

_SET_PRIORITY_WAITING = """
UPDATE perdure_lines
SET priority = :priority
WHERE run_id = :run_id
"""

#: The last unread pause, resumption or cancellation, with its payload.
_LAST_WORD = """
SELECT kind, payload
FROM perdure_messages
WHERE run_id = :run_id AND seq > :read AND kind IN ('pause', 'resume', 'cancel')
ORDER BY seq DESC
LIMIT 1
"""

#: Whether it waits for its turn among runs of one singleton.
_HELD_BACK = """
SELECT 1
FROM perdure_successors
WHERE run_id = :run_id
"""

_CHANGE = """
UPDATE perdure_runs
SET inbox_seq = :inbox_seq, status = :status, reason = :reason, wake_at = :wake_at, marked = :marked
WHERE id = :run_id
"""

_SET_DELETED = """
UPDATE perdure_runs
SET deleted_at = :at
WHERE id = :run_id
"""

_FORGET_HOME = """
UPDATE perdure_runs
SET token = token + 1, home = NULL
WHERE id = :run_id
"""


class Pausing(Struct, frozen=True):
    """The payload of a PAUSE."""

    reason: str = ""
    #: For what and until when the run had been waiting, if that is not to be cut short by the pause.
    waits_for: str = ""
    until: int = 0
    #: The run is deleted; the pause ends when it is restored.
    hides: bool = False


_decoder = decoder_for(Pausing)


class _Row:
    """A run's row as it is, and then as it will be."""

    def __init__(self, row: tuple[str, str | None, int, int, int, int, int, int, int]) -> None:
        self.status, self.reason, self.inbox_seq, self.inbox_read, self.started_at, self.wake_at = row[:6]
        self.deadline, self.token, self.deleted_at = row[6:]

    @property
    def is_held(self) -> bool:
        """True if a worker holds it."""
        return self.status == Status.RUNNING

    @property
    def waits(self) -> bool:
        """True if it has no holder and is not blocked."""
        return self.status in (Status.PENDING, Status.WAITING)

    def become(self, status: Status, reason: str | None, wake_at: int) -> None:
        self.status, self.reason, self.wake_at = status.value, reason, wake_at


async def order_run(tx: Transaction, order: RunOrder) -> OrderOutcome:
    """Carry out an order, or leave it in the inbox of a run that is held."""
    rows = await tx.fetch(_TARGET, {"run_id": order.run_id})
    if not rows:
        return OrderOutcome.UNKNOWN
    if await tx.fetch(KNOWN, {"run_id": order.run_id, "key": order.key}):
        return OrderOutcome.DONE
    run = _Row(rows[0])
    if run.status in FINISHED:
        return OrderOutcome.FINISHED
    match order.kind:
        case RecordKind.PAUSE:
            return await _pause(tx, run, order)
        case RecordKind.RESUME:
            return await _resume(tx, run, order)
        case RecordKind.EVICT:
            return await _evict(tx, run, order)
        case _:
            return await _wake(tx, run, order)


async def set_priority(tx: Transaction, run_id: str, priority: int, reason: str) -> OrderOutcome:
    """Change the priority of a run that has not finished, in its row and on the waitlist where it waits."""
    rows = await tx.fetch(_PRIORITY, {"run_id": run_id})
    if not rows:
        return OrderOutcome.UNKNOWN
    status, before = rows[0]
    if status in FINISHED:
        return OrderOutcome.FINISHED
    if before != priority:
        for sql in (_SET_PRIORITY, _SET_PRIORITY_WAITING):
            await tx.execute(sql, {"run_id": run_id, "priority": priority})
        tx.note(run_id, "priority_changed", to_json({"from": before, "to": priority, "reason": reason}))
        tx.notify(Change.READY)
    return OrderOutcome.DONE


async def _pause(tx: Transaction, run: _Row, order: RunOrder) -> OrderOutcome:
    if await _pausing(tx, run, order.run_id) is not None:
        return OrderOutcome.ALREADY
    await _hold_back(tx, run, order, hides=False)
    tx.note(order.run_id, "paused", to_json({"reason": order.reason}))
    return OrderOutcome.DONE


async def _hold_back(tx: Transaction, run: _Row, order: RunOrder, *, hides: bool) -> None:
    pausing = Pausing(order.reason, hides=hides)
    if run.waits:
        if run.started_at == 0 and run.status == Status.WAITING:
            pausing = Pausing(order.reason, run.reason or "", run.wake_at, hides)
        # Its deadline is all that ends the wait by itself.
        run.become(Status.WAITING, Reason.PAUSED.value, run.deadline)
    await _put(tx, run, order, to_json(pausing))


async def _resume(tx: Transaction, run: _Row, order: RunOrder) -> OrderOutcome:
    pausing = await _pausing(tx, run, order.run_id)
    if pausing is None:
        return OrderOutcome.ALREADY
    if run.status == Status.WAITING and run.reason == Reason.PAUSED:
        if pausing.until > tx.now and not await _has_lost_its_place(tx, pausing, order.run_id):
            run.become(Status.WAITING, pausing.waits_for, pausing.until)
        else:
            run.become(Status.PENDING, None, tx.now)
        tx.notify(Change.READY)
    await _put(tx, run, order, None)
    tx.note(order.run_id, "resumed", event_json(order.reason))
    if run.deleted_at:
        # A hidden run must not go on unseen.
        await tx.execute(_SET_DELETED, {"run_id": order.run_id, "at": 0})
        tx.note(order.run_id, "undeleted")
    return OrderOutcome.DONE


async def hide(tx: Transaction, run_id: str, reason: str) -> None:
    """Hide a run, whose row is locked. One that is not over is paused until it is restored."""
    [row] = await tx.fetch(_TARGET, {"run_id": run_id})
    run = _Row(row)
    if run.status not in FINISHED and await _pausing(tx, run, run_id) is None:
        await _hold_back(tx, run, _own_order(run_id, RecordKind.PAUSE, run, reason), hides=True)
    await tx.execute(_SET_DELETED, {"run_id": run_id, "at": tx.now})


async def restore(tx: Transaction, run_id: str) -> None:
    """Restore a hidden run, whose row is locked. The pause of its deletion ends; an earlier one does not."""
    [row] = await tx.fetch(_TARGET, {"run_id": run_id})
    run = _Row(row)
    pausing = None if run.status in FINISHED else await _pausing(tx, run, run_id)
    if pausing is not None and pausing.hides:
        await _resume(tx, run, _own_order(run_id, RecordKind.RESUME, run))
        return
    await tx.execute(_SET_DELETED, {"run_id": run_id, "at": 0})
    tx.note(run_id, "undeleted")


def _own_order(run_id: str, kind: RecordKind, run: _Row, reason: str = "") -> RunOrder:
    # No key of a client begins with a space, and each entry has another number.
    return RunOrder(run_id=run_id, kind=kind, key=f" delete:{run.inbox_seq + 1}", reason=reason)


async def _has_lost_its_place(tx: Transaction, pausing: Pausing, run_id: str) -> bool:
    """True if it waited at a gate, which passes over a paused run: it has to arrive there again."""
    waited = pausing.waits_for in (Reason.LIMIT, Reason.BREAKER)
    return waited and not await tx.fetch(_HELD_BACK, {"run_id": run_id})


async def _pausing(tx: Transaction, run: _Row, run_id: str) -> Pausing | None:
    """The pause that the run is under, if any."""
    if run.inbox_seq == run.inbox_read:
        return None
    last = await tx.fetch(_LAST_WORD, {"run_id": run_id, "read": run.inbox_read})
    if not last or last[0][0] != RecordKind.PAUSE:
        return None
    return pausing_of(last[0][1])


def pausing_of(payload: str | None) -> Pausing:
    """Decode the payload of a PAUSE entry."""
    return _decoder.decode(payload or "{}")


async def _evict(tx: Transaction, run: _Row, order: RunOrder) -> OrderOutcome:
    if run.is_held:
        # For that holder only, not for the next one.
        await _put(tx, run, order, to_json(run.token))
        tx.note(order.run_id, "evicted", event_json(order.reason))
        return OrderOutcome.DONE
    # A worker that has it in memory must load it anew, and gets no precedence.
    await tx.execute(_FORGET_HOME, {"run_id": order.run_id})
    return OrderOutcome.ALREADY


async def _wake(tx: Transaction, run: _Row, order: RunOrder) -> OrderOutcome:
    if run.status != Status.WAITING or run.reason != Reason.TIMER:
        return OrderOutcome.REFUSED
    at, begun = max(order.at, tx.now), run.started_at != 0
    if begun or at <= tx.now:
        run.become(Status.PENDING, None, tx.now)
    else:
        run.become(Status.WAITING, run.reason, min(at, run.deadline))
    # The workflow of a run that has not begun has no sleep that this could mean.
    await _put(tx, run, order, to_json(at) if begun else None)
    tx.note(order.run_id, "woken", event_json(order.reason, at=at))
    tx.notify(Change.READY)
    return OrderOutcome.DONE


async def _put(tx: Transaction, run: _Row, order: RunOrder, payload: str | None) -> None:
    """Write the entry, and the row as it was changed."""
    entry = {
        "run_id": order.run_id,
        "seq": run.inbox_seq + 1,
        "kind": order.kind.value,
        "name": "",
        "payload": payload,
        "failed": 0,
        "key": order.key,
        "now": tx.now,
    }
    await tx.execute(INSERT, entry)
    change = {
        "run_id": order.run_id,
        "inbox_seq": run.inbox_seq + 1,
        "status": run.status,
        "reason": run.reason,
        "wake_at": run.wake_at,
        "marked": int(run.is_held),
    }
    await tx.execute(_CHANGE, change)
    if run.is_held:
        tx.notify(Change.MARKED)
