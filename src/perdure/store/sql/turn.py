"""Writing a turn: the parts that are the same on every database.

The state of a turn (it holds the lease, it was written before, or it came too late) follows from the locked row and
from those of its records that exist. Outputs, subscriptions and trimming are written after everything else of the turn,
in the same transaction.

A transaction step writes its one record on the user's transaction: the run's row is locked and the lease checked first.
After a lost answer, `turn_outcome` asks under the same lock, which the transaction held until it ended.

Continue-as-new keeps the run's id and outputs and replaces its input, type and history. Messages that the old
generation took in but did not receive are carried into the new inbox; if the renewal is refused they stay unread, so
that no crash loses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from msgspec import Struct

from perdure.core.model.record import NewMessage, Record, RecordKind
from perdure.core.model.run import Status
from perdure.core.model.turn import Block, ContinueAsNew, Finish, Park, Release, RetryLater, Trim, Turn, TurnOutcome
from perdure.errors import StoreCorrupt
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.runs.inbox import subscribe
from perdure.store.sql.runs.outputs import write_outputs

#: An attribute of a member of an enum is slow to get.
KINDS = {kind: kind.value for kind in RecordKind}

#: Where a record as it is stored has the token of its lease.
_TOKEN = 2

#: Status, token, nonce and time of the beginning of a run.
State = tuple[str, int, str, int]


class TurnState(Enum):
    """Relation of a turn to its run's row."""

    #: It holds the lease.
    LIVE = auto()
    #: It was written before; the lease has moved on since.
    DONE = auto()
    #: It holds the lease, but a former holder wrote a record after the history was loaded: load the run again.
    OVERTAKEN = auto()
    LOST = auto()


def split_by_run(turns: Sequence[Turn]) -> Iterator[list[int]]:
    """Turns, by index, in groups without a run in common; turns of one run stay in order."""
    left = list(range(len(turns)))
    if len({turn.lease.run_id for turn in turns}) == len(turns):
        yield left
        return
    while left:
        runs: set[str] = set()
        wave: list[int] = []
        later: list[int] = []
        for index in left:
            run_id = turns[index].lease.run_id
            (later if run_id in runs else wave).append(index)
            runs.add(run_id)
        yield wave
        left = later


def turn_state(turn: Turn, state: State | None, written: Mapping[int, Row]) -> TurnState:
    """State of a turn by its run's row and the existing records at its numbers. Raises `StoreCorrupt`."""
    lease = turn.lease
    live = state is not None and state[:3] == (Status.RUNNING.value, lease.token, lease.nonce)
    if turn.records:
        there = [record for record in turn.records if record.seq in written]
        same = all(written[record.seq] == record_row(turn, record) for record in there)
        if live and any(written[record.seq][_TOKEN] < lease.token for record in there):
            return TurnState.OVERTAKEN
        if live and not same:
            raise StoreCorrupt(
                f"the history of run {lease.run_id!r} has another record than its worker was about to write at "
                f"number {turn.records[0].seq} or after; nothing was written; look at the run's history and release it"
            )
        if live:
            return TurnState.LIVE
        if isinstance(turn.next, ContinueAsNew):
            # They went with the rest of the history.
            return TurnState.DONE if state is not None and _is_there(turn, state) else TurnState.LOST
        return TurnState.DONE if same and len(there) == len(turn.records) else TurnState.LOST
    if live:
        return TurnState.LIVE
    return TurnState.DONE if state is not None and _is_there(turn, state) else TurnState.LOST


def release_instead(turn: Turn) -> Turn:
    """Replacement of an overtaken turn: the run is released at once, to be loaded anew."""
    return Turn(lease=turn.lease, next=Release())


def record_row(turn: Turn, record: Record) -> Row:
    """A record as it is stored."""
    return (
        turn.lease.run_id,
        record.seq,
        turn.lease.token,
        KINDS[record.kind],
        record.location,
        record.payload,
        1 if record.failed else 0,
        record.at,
        record.started_at,
        record.digest,
        record.attempts,
        record.retry_at,
        record.inbox_seq,
        record.run_attempt,
    )


def _is_there(turn: Turn, state: State) -> bool:
    status, token, nonce, started_at = state
    if nonce != turn.lease.nonce:
        return False
    raised = token - turn.lease.token
    match turn.next:
        case Finish(status=wanted):
            return raised == 0 and status == wanted
        case Park() | RetryLater():
            return raised == 0 and status in (Status.WAITING, Status.PENDING)
        case Release():
            return raised == 1 and status == Status.PENDING
        case ContinueAsNew():
            # One that was only given back has begun.
            return raised == 1 and status == Status.PENDING and started_at == 0
        case Block():
            return raised == 0 and status == Status.BLOCKED
        case None:
            return False


#: Of a record, in the order of `record_row`.
RECORD_COLUMNS = (
    "run_id", "seq", "token", "kind", "location", "payload", "failed", "at", "started_at", "digest", "attempts",
    "retry_at", "inbox_seq", "run_attempt",
)  # fmt: skip

_LEASE = """
SELECT status, token, nonce
FROM perdure_runs
WHERE id = :run_id{fence}
{for_update}
"""

#: With several writable servers, a lock on one does not bind the others; only written rows are compared.
_PROVE = """
UPDATE perdure_runs
SET wake_at = wake_at + 1
WHERE id = :run_id
"""

INSERT_RECORD = f"""
INSERT INTO perdure_history ({", ".join(RECORD_COLUMNS)})
VALUES ({", ".join(f":{column}" for column in RECORD_COLUMNS)})
"""

_WRITTEN = f"""
SELECT {", ".join(RECORD_COLUMNS)}
FROM perdure_history
WHERE run_id = :run_id AND seq = :seq
"""


class Fence(Struct, frozen=True):
    """Proof of a lease beyond the lock of the run's row."""

    #: Holds on the server on which the worker's life began only; empty where there is no such condition.
    condition: str = ""
    #: Several servers take writes, so that the row that was locked has to be written.
    written: bool = False


NO_FENCE = Fence()


async def append(tx: Transaction, turn: Turn, fence: Fence = NO_FENCE) -> TurnOutcome:
    """Write the one record of a turn and its outputs, if its lease holds: APPLIED, or LOST."""
    if not await _holds(tx, turn, fence.condition):
        return TurnOutcome.LOST
    if fence.written:
        await tx.execute(_PROVE, {"run_id": turn.lease.run_id})
    [record] = turn.records
    await tx.execute(INSERT_RECORD, dict(zip(RECORD_COLUMNS, record_row(turn, record), strict=True)))
    if turn.outputs:
        await write_outputs(tx, [(turn.lease.run_id, output) for output in turn.outputs])
    return TurnOutcome.APPLIED


async def turn_outcome(tx: Transaction, turn: Turn) -> TurnOutcome:
    """Outcome of such a turn: APPLIED, LOST, or BUSY: it is missing and its lease holds, so it may be tried again."""
    holds = await _holds(tx, turn)
    [record] = turn.records
    there = await tx.fetch(_WRITTEN, {"run_id": turn.lease.run_id, "seq": record.seq})
    if there and there[0] == record_row(turn, record):
        return TurnOutcome.APPLIED
    if there and holds and there[0][2] < turn.lease.token:
        # A former holder wrote it after the history was loaded.
        return TurnOutcome.LOST
    if there and holds:
        raise StoreCorrupt(
            f"the history of run {turn.lease.run_id!r} has another record than its worker wrote at number "
            f"{record.seq}; look at the run's history and release it"
        )
    return TurnOutcome.BUSY if holds else TurnOutcome.LOST


async def _holds(tx: Transaction, turn: Turn, condition: str = "") -> bool:
    lease = turn.lease
    rows = await tx.fetch(_LEASE.replace("{fence}", condition), {"run_id": lease.run_id})
    return bool(rows) and tuple(rows[0]) == (Status.RUNNING.value, lease.token, lease.nonce)


_RENEW = """
UPDATE perdure_runs
SET type = :type, input = :input, generation = generation + 1, progress = -1
WHERE id = :run_id
"""

_FORGET_HISTORY = """
DELETE FROM perdure_history
WHERE run_id = :run_id
"""


async def renew(tx: Transaction, renewed: Mapping[str, ContinueAsNew]) -> None:
    """Give runs, whose rows are locked, their new input and take away their history."""
    if renewed:
        rows = [{"run_id": id, "type": one.type, "input": one.input} for id, one in renewed.items()]
        await tx.execute_many(_RENEW, rows)
        await tx.execute_many(_FORGET_HISTORY, [{"run_id": id} for id in renewed])


def inbox_position(turn: Turn) -> int:
    """Last inbox entry that is read even if a renewal is refused; entries without a record are only carried over."""
    if not isinstance(turn.next, ContinueAsNew):
        return turn.read
    return max([turn.next.read, *(record.inbox_seq for record in turn.records)])


def carried_messages(run_id: str, renew: ContinueAsNew) -> list[NewMessage]:
    """Messages for the inbox of the new generation."""
    return [NewMessage(run_id=run_id, name=name, payload=payload, key=key) for name, payload, key in renew.carried]


def message_keys(turn: Turn) -> list[tuple[str, str]]:
    """By run, the keys of all messages that the turn may deliver, except those to parents."""
    keys = [
        (message.payload or "" if message.kind is RecordKind.WATCH else message.run_id, message.key)
        for message in turn.sends
    ]
    if isinstance(turn.next, ContinueAsNew):
        keys += [(turn.lease.run_id, key) for _, _, key in turn.next.carried]
    return keys


def has_extras(turn: Turn) -> bool:
    """True if the turn carries outputs, subscriptions, trimming or notes."""
    return bool(turn.outputs or turn.trim or turn.subscribes or turn.unsubscribes or turn.notes)


async def write_shown(tx: Transaction, turns: Sequence[Turn]) -> None:
    """Write the outputs of these turns, each of another run whose row is locked."""
    if shown := [(turn.lease.run_id, output) for turn in turns for output in turn.outputs]:
        await write_outputs(tx, shown)


async def write_extras(tx: Transaction, turns: Sequence[Turn]) -> None:
    """Write what else these turns carry, each of another run whose row is locked."""
    if any(turn.subscribes or turn.unsubscribes for turn in turns):
        await subscribe(tx, turns)
    if trims := {turn.lease.run_id: turn.trim for turn in turns if turn.trim is not None}:
        await trim(tx, trims)


_TRIM_RECORDS = """
DELETE FROM perdure_history
WHERE run_id = :run_id AND seq BETWEEN :first AND :last
"""

_TRIM_INBOX = """
DELETE FROM perdure_messages
WHERE run_id = :run_id AND seq <= :upto AND consumed = 1
"""

#: The inner query is a table of its own because MySQL reads no table that it deletes from.
_TRIM_EVENTS = """
DELETE FROM perdure_events
WHERE run_id = :run_id AND id < (
  SELECT MIN(id) FROM (SELECT id FROM perdure_events WHERE run_id = :run_id ORDER BY id DESC LIMIT :keep) AS newest
)
"""


async def trim(tx: Transaction, trims: Mapping[str, Trim]) -> None:
    """Trim runs, whose rows are locked."""
    records = [
        {"run_id": run_id, "first": first, "last": last} for run_id, one in trims.items() for first, last in one.records
    ]
    await tx.execute_many(_TRIM_RECORDS, records)
    inboxes = [{"run_id": run_id, "upto": one.inbox} for run_id, one in trims.items() if one.inbox]
    await tx.execute_many(_TRIM_INBOX, inboxes)
    for run_id, one in trims.items():
        if one.events:
            await tx.execute(_TRIM_EVENTS, {"run_id": run_id, "keep": one.events})
