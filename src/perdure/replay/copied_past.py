"""The past of a fork: the records that it has copied from its source.

Each attempt at a fork as a whole begins with them. A later attempt repeats them as records of its own, in their order
and with their marks. So it draws the numbers of its source for what was copied, and its own behind the mark, and it
sends nothing that its source has sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from perdure.core.model.record import Record, RecordKind
from perdure.workflow.saga import UNDO
from perdure.workflow.scopes import renumbered

#: Records that complete nothing: a later attempt has all attempts at a step that is still open.
_LEFT_OUT = (RecordKind.ATTEMPT, RecordKind.BEGIN, RecordKind.BROKEN)


def copied_past(earlier: Sequence[Record]) -> Sequence[Record]:
    """Return the records that the first attempt has copied; none if the run is no fork, or if they cannot be repeated.

    They cannot if some were deleted by a checkpoint, if the fork has undone a copied step, which is executed again
    then, or if they have a cancellation: the next attempt at a cancelled run is not cancelled.
    """
    marks = [record for record in earlier if record.kind is RecordKind.FORK and record.run_attempt == 1]
    if not marks:
        return ()
    last = marks[-1]
    size = last.seq + (1 if any(mark.payload == last.payload for mark in marks[:-1]) else 2)
    past = earlier[:size]
    if len(past) < size or past[-1].seq != size - 1 or past[-1].run_attempt != 1:
        return ()
    if any(record.kind is RecordKind.CANCEL for record in past):
        return ()
    places = {record.location for record in past}
    for record in earlier[size:]:
        undone = record.location.removesuffix(UNDO)
        if undone != record.location and not record.failed and undone in places and record.location not in places:
            return ()
    return past


def repeated(past: Sequence[Record], first: int, attempt: int, started_at: int) -> list[Record]:
    """Return a copied past as records of a later attempt, numbered from `first`. It ends with a mark."""
    kept = [record for record in past if record.kind not in _LEFT_OUT]
    if kept[-1].kind is not RecordKind.FORK:
        mark = next(record for record in reversed(kept) if record.kind is RecordKind.FORK)
        kept.append(replace(mark, seq=past[-1].seq + 1))
    known, numbers = [record.seq for record in kept], list(range(first, first + len(kept)))
    changed = dict(zip(known, numbers, strict=True))
    # A checkpoint may name a record that is left out, or one that was deleted: the next one stands for it.
    known.append(known[-1] + 1)
    numbers.append(numbers[-1] + 1)
    return [
        _of_attempt(record, changed, attempt, started_at)
        if record.kind is not RecordKind.SCOPE
        else _of_attempt(renumbered(record, known, numbers), changed, attempt, started_at)
        for record in kept
    ]


def _of_attempt(record: Record, changed: dict[int, int], attempt: int, started_at: int) -> Record:
    at = max(record.at, started_at)
    return replace(
        record,
        seq=changed[record.seq],
        at=at,
        # It takes as long as it did then.
        started_at=at - (record.at - record.started_at) if record.started_at else 0,
        # It names the record of the message that was set aside.
        digest=str(changed.get(int(record.digest), -1)) if record.kind is RecordKind.ASIDE else record.digest,
        inbox_seq=0,
        run_attempt=attempt,
    )
