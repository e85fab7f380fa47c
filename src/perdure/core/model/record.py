"""Records of a run's history, and messages of its inbox. Both are of a `RecordKind`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from perdure.core.model.outputs import WantedOutput


class RecordKind(StrEnum):
    """Kind of a history record or an inbox entry."""

    STEP = "step"
    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    #: With `failed`: end the code of the run, undo its steps and fail it; its payload is the reason all the same.
    CANCEL = "cancel"
    #: Checkpoint of a scope: the history before it may be trimmed. Its location is the path of the scope.
    SCOPE = "scope"
    #: Version of the code that the run follows from here on.
    VERSION = "version"
    #: The records before were copied from another run, and those that led to the step: the one behind it, or all up to
    #: another mark with the same payload. Random numbers are drawn anew from here on. Later attempts repeat them all.
    FORK = "fork"
    #: A failed attempt at a step that will be retried. It completes nothing; it keeps the count and the error.
    ATTEMPT = "attempt"
    #: An attempt at a step with `at_most_once` is about to begin. It completes nothing.
    BEGIN = "begin"
    #: A sleep got another end; the payload is the new time.
    WAKE = "wake"
    #: A message that had arrived was set aside, because it could not be decoded; the payload is the error.
    ASIDE = "aside"
    #: The code was broken here: it raised the error that is the payload, and the run was blocked.
    BROKEN = "broken"
    #: Only in inboxes: orders to the worker that holds the run, which the workflow never sees.
    PAUSE = "pause"
    RESUME = "resume"
    EVICT = "evict"
    #: The attempt at an activity has failed, as reported from outside; the payload is the error.
    REPORT = "report"
    #: A waiting step of the run was admitted by its limits.
    CALL = "call"
    #: Only in turns: let a run wait for another, or no longer. The message goes to the other run. Its
    #: payload is the id of the waiting run, its name the location there, its key that of the CHILD entry that ends the
    #: wait.
    WATCH = "watch"
    UNWATCH = "unwatch"


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """A record of a run's history: a completion, in the order of application.

    The field names are the names of the columns.
    """

    seq: int
    kind: RecordKind
    #: Location in the workflow; for a message its name; empty for a cancellation.
    location: str
    #: JSON of the result, or of the `Failure` when `failed`.
    payload: str | None
    failed: bool = False
    #: Workflow time of the application.
    at: int
    #: Start of the step's last attempt; 0 where nothing ran.
    started_at: int = 0
    #: Short digest of a step's or child's arguments. Of a message: the batch that it was read with, if any. Of ASIDE:
    #: number of the message's record. Of a cancellation: "wins", if it decides the outcome however the code ends.
    digest: str = ""
    #: Number of attempts that the step has used so far.
    attempts: int = 0
    #: For a failed attempt: time of the next one.
    retry_at: int = 0
    #: Inbox entry that this record took in; 0 for none.
    inbox_seq: int = 0
    #: Attempt at the run (`Run.attempt`) that wrote the record.
    run_attempt: int = 1


class NewMessage(Struct, frozen=True, kw_only=True, gc=False):
    """Request to add an entry to the inbox of a run."""

    run_id: str
    #: MESSAGE, CHILD, CANCEL, or an order to the worker.
    kind: RecordKind = RecordKind.MESSAGE
    #: Name of the message; for a child its location in the parent.
    name: str = ""
    payload: str | None = None
    failed: bool = False
    #: Unique within the run for ever; sending it again changes nothing.
    key: str
    #: If given, delivered only if the run is a child of that one, because an id may belong to another run.
    only_child_of: str | None = None
    #: For the audit trail.
    reason: str = ""
    #: Of WATCH and UNWATCH: the outputs of the other run that are waited for; None: its end.
    wants: WantedOutput | None = None


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a run's inbox, as stored. `seq` rises in commit order within the run."""

    run_id: str
    seq: int
    kind: RecordKind
    name: str
    payload: str | None
    failed: bool
    key: str
    sent_at: int


class SendOutcome(StrEnum):
    """Answer to one send or cancel."""

    ACCEPTED = "accepted"
    #: A message of that key was accepted before; nothing was written.
    DUPLICATE = "duplicate"
    #: Accepted, under a name that is close to one that the waiting run receives, and is none of them.
    MISSPELT = "misspelt"
    FINISHED = "finished"
    UNKNOWN = "unknown"


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
