"""Results of earlier attempts at a run.

A workflow that is tried again as a whole starts with an empty history, but successes are not repeated: a step with the
same location and arguments gets its old result, and so does a wait for the same other run; a child at the same location
keeps its result whatever its arguments; a sleep that was slept is over, and messages are in the mailbox.
Failures are tried again, and so is what was undone. A step with `at_most_once` that was interrupted stays interrupted:
the next attempt at the run must not execute it either. Nor must it execute one that succeeded with other arguments.
What a fork has copied is repeated as it is instead (`copied_past`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.core.codec.failure import Failure, type_name
from perdure.core.ids import child_place
from perdure.core.model.record import Record, RecordKind
from perdure.errors import StepInterrupted
from perdure.workflow.saga import UNDO

if TYPE_CHECKING:
    from perdure.replay.operations import OpenOperation

_INTERRUPTED = type_name(StepInterrupted)


class EarlierAttempts:
    """Records of earlier attempts, by location."""

    def __init__(self, earlier: Sequence[Record], repeated: int = 0) -> None:
        """`repeated`: number of the first records that the attempt repeats as they are, with their messages."""
        own = earlier[repeated:] if repeated else earlier
        # A later attempt repeats the messages of earlier ones in its own history, without their inbox numbers.
        self.messages = _without_set_aside(
            own,
            [
                record
                for record in own
                if record.kind is RecordKind.MESSAGE and (record.inbox_seq or record.run_attempt == 1)
            ],
        )
        self._records: dict[str, Record] = {}
        #: By location, the beginning of a step with `at_most_once` that was interrupted, or has succeeded.
        self.begun: dict[str, Record] = {}
        for record in earlier:
            if record.kind is RecordKind.BEGIN:
                self.begun[record.location] = record
            elif record.location in self.begun and _is_failure(record):
                del self.begun[record.location]
            if record.location.endswith(UNDO) and not record.failed:
                self._records.pop(record.location.removesuffix(UNDO), None)
                self.begun.pop(record.location.removesuffix(UNDO), None)
            elif _is_kept(record):
                self._records[record.location] = record
        self._failed_children = [
            record.location
            for record in earlier
            if record.kind is RecordKind.CHILD and record.failed  # equivalent: condition: the others are kept
        ]

    def recall(self, operation: OpenOperation) -> Record | None:
        """Return an earlier attempt's record of this operation, if there is one."""
        record = self._records.get(operation.location) if self._records else None
        if record is None or record.kind is not operation.kind:
            return None
        if operation.compares_arguments and record.digest != operation.digest:
            return None
        return record

    def child_location(self, location: str) -> str:
        """Location of a child. One that failed in an earlier attempt gets a new location, and so a new run."""
        return child_place(location, self.failures(location))

    def failures(self, location: str) -> int:
        """Number of children that were called there and failed."""
        return self._failed_children.count(location)


def _without_set_aside(earlier: Sequence[Record], messages: list[Record]) -> tuple[Record, ...]:
    """Leave out messages that were set aside: a person decides about them."""
    aside = {int(record.digest) for record in earlier if record.kind is RecordKind.ASIDE}
    for refused in [record for record in earlier if record.seq in aside]:
        # The record may be a later attempt's copy, with a number of its own.
        same = (refused.location, refused.payload)
        found = next((one for one in messages if (one.location, one.payload) == same), None)
        if found is not None:
            messages.remove(found)
    return tuple(messages)


def _is_failure(record: Record) -> bool:
    """True if a record reports that an attempt at a step failed; an interruption is reported by the next holder."""
    if not record.failed or record.kind not in (RecordKind.STEP, RecordKind.ATTEMPT):
        return False
    return Failure.read(record.payload).type != _INTERRUPTED


def _is_kept(record: Record) -> bool:
    if record.failed:
        return False
    # A timer that cut something short is not kept: the next attempt has its full time.
    slept = record.kind is RecordKind.TIMER and record.location.rpartition("/")[2].partition("#")[0] == "sleep"
    return slept or record.kind in (RecordKind.STEP, RecordKind.CHILD)


#: For a first attempt.
NOTHING = EarlierAttempts(())
