"""Records of a run's history, and messages of its inbox. Both are of a `RecordKind`."""

from __future__ import annotations

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
    #: another mark with the same payload. Random numbers are drawn anew from here on.
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
