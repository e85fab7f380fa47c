"""A turn: everything that one run makes durable at one moment, and the state that follows."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.outputs import NewOutput
from perdure.core.model.record import NewMessage, Record
from perdure.core.model.run import NewRun, Reason, Status


class Lease(Struct, frozen=True, gc=False):
    """The right to write one run. Proved by every write, checked on the locked row."""

    run_id: str
    token: int
    nonce: str


class Park(Struct, frozen=True, gc=False):
    """Give the run back until `wake_at` or until something arrives. Refused if the inbox grew past `seen`."""

    wake_at: int
    reason: Reason
    seen: int


class Finish(Struct, frozen=True, gc=False):
    """The outcome: COMPLETED with a result, FAILED or CANCELLED with a `Failure`, as JSON."""

    status: Status
    payload: str | None
    #: Which limit of time was passed, for the audit trail.
    timeout: str = ""


class RetryLater(Struct, frozen=True, gc=False):
    """The attempt at the whole run failed; begin the next one at `wake_at`."""

    wake_at: int
    error: str
    #: Which limit of time was passed, for the audit trail.
    timeout: str = ""


class Release(Struct, frozen=True, gc=False):
    """Hand the run back unfinished; any worker may take it at once. Raises the token."""

    #: The worker that the others are to leave it to for a moment.
    home: str | None = None


class Block(Struct, frozen=True, gc=False):
    """Set the run aside until a person or a deploy changes something."""

    reason: Reason
    error: str


class ContinueAsNew(Struct, frozen=True, gc=False):
    """Begin anew under the same id, as a new generation with an empty history. Refused if the inbox grew past `seen`."""

    type: str
    #: JSON, as in `NewRun`.
    input: str
    seen: int
    #: Messages that the history had taken in and nobody received: name, payload, key. They are put into the inbox again, unread,
    #: if it is not refused, and without a word in the audit trail.
    carried: tuple[tuple[str, str, str], ...] = ()
    #: Up to which entry the inbox is read also if it is refused.
    read: int = 0


class Trim(Struct, frozen=True, kw_only=True, gc=False):
    """What a run no longer needs."""

    #: Numbers of records, as inclusive ranges.
    records: tuple[tuple[int, int], ...] = ()
    #: Inbox entries up to this one that were taken in; their keys are forgotten with them. 0: none.
    inbox: int = 0
    #: How many lines of the audit trail to leave; 0: all.
    events: int = 0


NextState = Park | Finish | RetryLater | ContinueAsNew | Release | Block


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """Everything one run makes durable at one moment; all of it lands, or nothing."""

    lease: Lease
    records: tuple[Record, ...] = ()
    #: The records took in the inbox up to this entry; 0 when they took in nothing.
    read: int = 0
    children: tuple[NewRun, ...] = ()
    sends: tuple[NewMessage, ...] = ()
    outputs: tuple[NewOutput, ...] = ()
    #: Topics of broadcasts that the run listens to from now on, and no longer.
    subscribes: tuple[str, ...] = ()
    unsubscribes: tuple[str, ...] = ()
    #: What the run no longer needs, deleted after the records are in.
    trim: Trim | None = None
    #: The run's next state; None: it goes on running.
    next: NextState | None = None


class TurnOutcome(StrEnum):
    """What became of a turn."""

    #: It is durable.
    APPLIED = "applied"
    #: It is durable except for its parking, because the inbox has something unread; the run goes on running.
    AWAKE = "awake"
    #: The lease was lost; nothing of it was written.
    LOST = "lost"
    #: The row was locked by somebody else; nothing was written, try again.
    BUSY = "busy"
