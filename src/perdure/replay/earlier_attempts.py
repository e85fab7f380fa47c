"""What earlier attempts at a run achieved.

When a workflow as a whole is tried again, it starts with an empty history, but what succeeded before is not done again: a step of the same
place and arguments gets its old result, a sleep that was slept is over, and messages are in the mailbox. What failed is tried anew, and
so is what was undone.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.record import Record, RecordKind
from perdure.replay.operations import OpenOperation, StepOperation
from perdure.workflow.saga import UNDO


class EarlierAttempts:
    """The records of earlier attempts, by location."""

    def __init__(self, earlier: Sequence[Record]) -> None:
        # A later attempt has those of the earlier ones in its own history too, but not from the inbox.
        self.messages = tuple(
            record
            for record in earlier
            if record.kind is RecordKind.MESSAGE and (record.inbox_seq or record.run_attempt == 1)
        )
        self._records: dict[str, Record] = {}
        for record in earlier:
            if record.location.endswith(UNDO) and not record.failed:
                self._records.pop(record.location.removesuffix(UNDO), None)
            elif _is_kept(record):
                self._records[record.location] = record
        self._failed_children = [
            record.location for record in earlier if record.kind is RecordKind.CHILD and record.failed
        ]

    def recall(self, operation: OpenOperation) -> Record | None:
        """The result that an earlier attempt has of this operation."""
        record = self._records.get(operation.location) if self._records else None
        if record is None or record.kind is not operation.kind:
            return None
        if isinstance(operation, StepOperation) and record.digest != operation.digest:
            return None
        return record

    def child_location(self, location: str) -> str:
        """Where a child is started: one that failed before is not the one to wait for now."""
        failures = self._failed_children.count(location)
        return f"{location}@{failures + 1}" if failures else location


#: What a first attempt has to remember.
NOTHING = EarlierAttempts(())


def _is_kept(record: Record) -> bool:
    if record.failed:
        return False
    # A timer that cut something short is not kept: the next attempt has its full time.
    slept = record.kind is RecordKind.TIMER and record.location.rpartition("/")[2].partition("#")[0] == "sleep"
    return slept or record.kind in (RecordKind.STEP, RecordKind.CHILD)
