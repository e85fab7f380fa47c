"""Dead letters: runs that nobody works on any more until a person decides, and what can be decided.

A dead letter is a run that failed for good, or that was set aside as poison or because it cannot be decoded. It stays the run that it is;
a letter is a way to look at it, with all that went wrong. It is requeued, discarded, or deleted when it is old.
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
    """Why a run is a dead letter."""

    FAILED = "failed"
    POISON = "poison"
    UNDECODABLE = "undecodable"


class Fault(Struct, frozen=True, kw_only=True):
    """One thing that went wrong."""

    #: When that was known; `started_at` is when it had begun, 0 where that was not written down.
    at: int
    started_at: int = 0
    #: The step, or the type of an activity; empty: the run itself.
    location: str
    #: Which attempt it was, at the step or at the run.
    attempt: int
    error: Failure


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A run that is dead, with its whole story of errors, oldest first."""

    run_id: str
    type: str
    queue: str
    #: JSON, as in `Run`.
    input: str
    reason: DeadLetterReason
    #: Attempts at the run since it was started, or requeued.
    attempts: int
    generation: int
    #: The last error, and all of them; the last one among them.
    error: Failure
    errors: tuple[Fault, ...]
    created_at: int
    dead_since: int
    #: How often it was given another chance, and when last; 0: never.
    requeued: int
    requeued_at: int
    parent_id: str | None
    #: When it was discarded; 0: it was not.
    deleted_at: int


class DeadLetterPage(Struct, frozen=True):
    """A page of dead letters; hand `cursor` back for the next one, None when there is none."""

    letters: tuple[DeadLetter, ...]
    cursor: str | None


class DeadLetterFilter(Struct, frozen=True, kw_only=True):
    """Which dead letters. None means any. Only a `%` at the end of a type is special: any type that begins like that."""

    type: str | None = None
    queue: str | None = None
    #: The class of the last error, with or without its module.
    error: str | None = None
    reasons: tuple[DeadLetterReason, ...] | None = None
    dead_after: int | None = None
    dead_before: int | None = None
    #: Of those that were discarded: none, only those (True), or these too (None).
    deleted: bool | None = False


class Requeue(Struct, frozen=True, kw_only=True):
    """A dead run that is to go on, with what is to be different; None leaves it as it is."""

    run_id: str
    #: The token that it was seen with: what makes this request the same as its repetition.
    token: int
    #: Whether it is an activity, which begins anew; None: its history tells.
    is_activity: bool | None = None
    input: str | None = None
    options: str | None = None
    max_attempts: int | None = None
    deadline: int | None = None
    #: See `Run.close_by`; used with `deadline`.
    close_by: int = 0
    queue: str | None = None
    priority: int | None = None


class RequeueOutcome(StrEnum):
    """The answer to a request to let a dead run go on."""

    #: It goes on, by this request or by an earlier one that wanted the same.
    OPEN = "open"
    #: Somebody else let it go on meanwhile, with another input or other options.
    OTHERWISE = "otherwise"
    #: It is not dead.
    ALIVE = "alive"
    #: Its deadline has passed, and no other one was given.
    EXPIRED = "expired"
    #: It has a history, which another input would not fit.
    BEGUN = "begun"
    #: It was deleted, and first has to be brought back.
    DELETED = "deleted"
    UNKNOWN = "unknown"


class DeleteOutcome(StrEnum):
    """The answer to a request to delete a run, or to bring it back."""

    DONE = "done"
    #: It was so already.
    ALREADY = "already"
    #: It has no outcome yet, so it cannot be deleted; or it is no dead letter, so it cannot be discarded.
    REFUSED = "refused"
    UNKNOWN = "unknown"


class RequeueRecord(Struct, frozen=True, kw_only=True):
    """What is kept of a run's former end when it goes on."""

    at: int
    by: str
    dead_since: int
    attempt: int
    generation: int
    #: JSON of its `Failure`.
    error: str

    @classmethod
    def from_json(cls, payload: str) -> RequeueRecord:
        """Read it back. Raises `DecodeError`."""
        try:
            return _requeueing.decode(payload)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"Cannot read how a run was requeued: {error}") from error


_requeueing = decoder_for(RequeueRecord)


def readable_failure(error: str | None) -> Failure:
    """A stored error, also one that somebody else wrote and that is none."""
    try:
        return Failure.from_json(error or "{}")
    except DecodeError:
        return Failure(type="", message=error or "")


def dead_letter_reason(status: Status, reason: Reason | None) -> DeadLetterReason | None:
    """Why a run in that state is a dead letter; None: it is none."""
    if status is Status.FAILED:
        return DeadLetterReason.FAILED
    if status is Status.BLOCKED and reason is not None and reason in (Reason.POISON, Reason.UNDECODABLE):
        return DeadLetterReason(reason.value)
    return None
