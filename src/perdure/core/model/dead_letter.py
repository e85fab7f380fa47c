"""Dead letters: runs that stay as they are until a person decides about them.

A dead letter is a run that failed for good, or was blocked as poison or because it cannot be decoded. The `DeadLetter`
is a view of that run with all of its errors. A dead letter is retried, discarded, or pruned when it is old.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.failure import Failure
from perdure.core.model.run import Reason, Status
from perdure.errors import DecodeError


class DeadLetterReason(StrEnum):
    """Reason why a run is a dead letter."""

    FAILED = "failed"
    POISON = "poison"
    UNDECODABLE = "undecodable"


class DeadLetterAttempt(Struct, frozen=True, kw_only=True):
    """An attempt of a dead letter that failed: at a step, or at the run itself."""

    #: Time of the error; `started_at` is the start of the attempt, 0 if it was not recorded.
    at: int
    started_at: int = 0
    #: Location of the step, or type of the activity; empty: the run itself.
    location: str
    #: Number of the attempt, at the step or at the run.
    attempt: int
    error: Failure


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A dead run, with all of its errors, oldest first."""

    run_id: str
    type: str
    queue: str
    #: JSON, as in `Run`.
    input: str
    reason: DeadLetterReason
    #: Number of attempts at the run since it was started or requeued.
    attempts: int
    generation: int
    #: The last error, and all errors including the last.
    error: Failure
    errors: tuple[DeadLetterAttempt, ...]
    created_at: int
    dead_since: int
    #: How often a person let it go again, and when last; 0: never.
    requeued: int
    requeued_at: int
    parent_id: str | None
    #: Time when it was discarded; 0: it was not.
    deleted_at: int


class DeadLetterPage(Struct, frozen=True):
    """A page of dead letters; pass `cursor` for the next page, None at the end."""

    letters: tuple[DeadLetter, ...]
    cursor: str | None


class DeadLetterFilter(Struct, frozen=True, kw_only=True):
    """Filter of a listing of dead letters. None means any. A `%` at the end of a type matches any continuation."""

    type: str | None = None
    queue: str | None = None
    #: Class name of the last error, with or without its module.
    error: str | None = None
    reasons: tuple[DeadLetterReason, ...] | None = None
    dead_after: int | None = None
    dead_before: int | None = None
    #: Only discarded ones (True), none of them (False), or both (None).
    deleted: bool | None = False


class DeleteOutcome(StrEnum):
    """Answer to a request to delete a run, or to restore it."""

    DONE = "done"
    #: It was so before; nothing was written.
    ALREADY = "already"
    #: It is unfinished and cannot be deleted, or is no dead letter and cannot be discarded.
    REFUSED = "refused"
    UNKNOWN = "unknown"


class RequeueRecord(Struct, frozen=True, kw_only=True):
    """State of a run before a person let it go again, kept as an output."""

    at: int
    by: str
    dead_since: int
    attempt: int
    generation: int
    #: JSON of its `Failure`.
    error: str
    #: Number of the last entry of its inbox. Earlier versions wrote none.
    inbox: int = 0

    @classmethod
    def from_json(cls, payload: str) -> RequeueRecord:
        """Decode it. Raises `DecodeError`."""
        try:
            return _requeue_decoder.decode(payload)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"cannot decode how a run was requeued: {error}") from error


_requeue_decoder = decoder_for(RequeueRecord)


def dead_letter_reason(status: Status, reason: Reason | None) -> DeadLetterReason | None:
    """Reason why a run of that status is a dead letter; None if it is not."""
    if status is Status.FAILED:
        return DeadLetterReason.FAILED
    if status is Status.BLOCKED and reason is not None and reason in (Reason.POISON, Reason.UNDECODABLE):
        return DeadLetterReason(reason.value)
    return None
