"""What the order of a history's records tells: where its code went on last, and which records a fork has copied."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.record import Record, RecordKind

# Looking up an enum member through its class is slow; these are needed for every record.
_BROKEN, _FORK, _MESSAGE = RecordKind.BROKEN, RecordKind.FORK, RecordKind.MESSAGE

#: Records at which the code does not go on.
_UNSEEN = (
    RecordKind.VERSION, RecordKind.ASIDE, _FORK, RecordKind.ATTEMPT, RecordKind.BEGIN, RecordKind.WAKE,
)  # fmt: skip


def without_broken(records: Sequence[Record]) -> Sequence[Record]:
    """Leave out the records that only say that the code was broken."""
    if all(record.kind is not _BROKEN for record in records):
        return records
    return [record for record in records if record.kind is not _BROKEN]


def is_copied(history: Sequence[Record]) -> bool:
    """True if the run is a fork that has recorded nothing itself.

    The copied records end with a mark of the fork, or with one record behind its only mark.
    """
    if not history or history[-1].kind is _FORK:
        return bool(history)
    mark = history[-2] if len(history) > 1 else history[-1]
    if mark.kind is not _FORK or history[-1].seq != mark.seq + 1:
        return False
    return all(record.kind is not _FORK or record.payload != mark.payload for record in history[:-2])


def last_applied(records: Sequence[Record]) -> int:
    """Number of records up to the last one that let the code go on, or up to the first one of a batch of messages.

    Versions and messages that were set aside were recorded while it was applied. At the others the code sees nothing.
    """
    count = len(records)
    while count and records[count - 1].kind in _UNSEEN:
        count -= 1
    last = records[count - 1] if count else None
    while last is not None and count > 1 and last.kind is _MESSAGE and last.digest:
        before = records[count - 2]
        if before.kind is not _MESSAGE or before.digest != last.digest:
            break
        count -= 1
    return count
