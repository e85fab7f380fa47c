"""Records of a run's history, and messages of its inbox."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class RecordKind(StrEnum):
    """What a history record says happened."""

    STEP = "step"
    TIMER = "timer"
    MESSAGE = "message"
    CHILD = "child"
    CANCEL = "cancel"
    #: A scope reached a point from which it goes on: what came before in it may be trimmed. Its location is the scope's path.
    SCOPE = "scope"
    #: Which version of the code the run follows from here on.
    VERSION = "version"
    #: What came before was copied from another run.
    FORK = "fork"
    #: One attempt of a step failed and another will follow. It resolves nothing; it keeps the count and the error.
    ATTEMPT = "attempt"
    #: Somebody changed when a sleep ends; its payload is the new time.
    WAKE = "wake"
    #: Only in inboxes: what the worker that holds the run is told, and the workflow never sees.
    PAUSE = "pause"
    RESUME = "resume"
    EVICT = "evict"
    #: A step of the run may pass its gates.
    CALL = "call"


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """One line of a run's history: a completion, in the order in which it was applied."""

    seq: int
    kind: RecordKind
    #: Where in the workflow; for a message its name; empty for a cancellation.
    location: str
    #: JSON of the result, or of the `Failure` when `failed`.
    payload: str | None
    failed: bool = False
    #: The workflow's time when it was applied.
    at: int
    #: When the step's last attempt began; 0 where nothing ran.
    started_at: int = 0
    #: Short digest of a step's or child's encoded arguments. Of a message: the batch that it was taken in with, if any.
    digest: str = ""
    #: How many attempts the step has used so far.
    attempts: int = 0
    #: For an attempt that failed: when the next one is due.
    retry_at: int = 0
    #: The inbox entry that this record took in; 0 for none.
    inbox_seq: int = 0
    #: The run's own attempt (`Run.attempt`) that wrote it.
    run_attempt: int = 1


class NewMessage(Struct, frozen=True, kw_only=True, gc=False):
    """Something for the inbox of a run."""

    run_id: str
    #: MESSAGE, CHILD, CANCEL, or what only workers are told.
    kind: RecordKind = RecordKind.MESSAGE
    #: The message's name; for a child its location in the parent.
    name: str = ""
    payload: str | None = None
    failed: bool = False
    #: Unique within the run for ever: sending it twice is sending it once.
    key: str
    #: If given, the run is meant only if it is a child of that one; an id may belong to somebody else.
    only_child_of: str | None = None


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """An entry of a run's inbox. `seq` rises in commit order within the run."""

    run_id: str
    seq: int
    kind: RecordKind
    name: str
    payload: str | None
    failed: bool
    key: str
    sent_at: int


class SendOutcome(StrEnum):
    """The answer to one send or cancel."""

    ACCEPTED = "accepted"
    #: A message of that key was accepted before; nothing was written now.
    DUPLICATE = "duplicate"
    FINISHED = "finished"
    UNKNOWN = "unknown"
