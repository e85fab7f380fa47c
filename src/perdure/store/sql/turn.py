"""How a turn stands to what the database has: it holds the lease, it was written before, or it came too late.

Decided from the locked row and from those of the turn's records that are there, the same on every database.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto

from perdure.core.model.outputs import Renew
from perdure.core.model.run import Again, Block, Finish, Kind, Park, Record, Release, Status, Turn
from perdure.errors import StoreCorrupt
from perdure.store.sql.dialect import Row

#: An attribute of a member of an enum is slow to get.
KINDS = {kind: kind.value for kind in Kind}

#: Where a record as it is stored has the token of its lease.
_TOKEN = 2

#: Status, token, nonce and time of the beginning of a run.
State = tuple[str, int, str, int]


class Standing(Enum):
    """How a turn stands to its run's row."""

    #: It holds the lease.
    LIVE = auto()
    #: It was written before; the lease has moved on since.
    DONE = auto()
    #: It holds the lease, but a former holder has written a record after its history was loaded: the run has to be loaded again.
    OVERTAKEN = auto()
    LOST = auto()


def waves(turns: Sequence[Turn]) -> Iterator[list[int]]:
    """Turns, by their places, in groups that have no run in common; of one run in their order."""
    left = list(range(len(turns)))
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


def standing_of(turn: Turn, state: State | None, written: Mapping[int, Row]) -> Standing:
    """How the turn stands, by the run's state and by what is there at the numbers of its records. Raises `StoreCorrupt`."""
    lease = turn.lease
    live = state is not None and state[:3] == (Status.RUNNING.value, lease.token, lease.nonce)
    if turn.records:
        there = [record for record in turn.records if record.seq in written]
        same = all(written[record.seq] == record_row(turn, record) for record in there)
        if live and any(written[record.seq][_TOKEN] < lease.token for record in there):
            return Standing.OVERTAKEN
        if live and not same:
            raise StoreCorrupt(
                f"The history of run {lease.run_id!r} has another record than the one that its worker was about to write at "
                f"number {turn.records[0].seq} or after. Nothing was written. Look at the run's history and release it."
            )
        if live:
            return Standing.LIVE
        if isinstance(turn.next, Renew):
            # They went with the rest of the history.
            return Standing.DONE if state is not None and _is_there(turn, state) else Standing.LOST
        return Standing.DONE if same and len(there) == len(turn.records) else Standing.LOST
    if live:
        return Standing.LIVE
    return Standing.DONE if state is not None and _is_there(turn, state) else Standing.LOST


def overtaken(turn: Turn) -> Turn:
    """What is written in place of a turn that was overtaken: the run is given back at once, to be loaded anew."""
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
        case Park() | Again():
            return raised == 0 and status in (Status.WAITING, Status.PENDING)
        case Release():
            return raised == 1 and status == Status.PENDING
        case Renew():
            # One that was only given back has begun.
            return raised == 1 and status == Status.PENDING and started_at == 0
        case Block():
            return raised == 0 and status == Status.BLOCKED
        case None:
            return False
