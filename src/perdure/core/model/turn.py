"""A turn: everything that one run makes durable in one transaction, and the state that follows.

The turn is the unit of atomicity: a crash loses or keeps all of it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.model.outputs import NewOutput
from perdure.core.model.record import NewMessage, Record
from perdure.core.model.run import NewRun, Reason, Status


class Lease(Struct, frozen=True, gc=False):
    """The right to write one run. Each write proves it; the store checks it on the locked row."""

    run_id: str
    token: int
    nonce: str


class Park(Struct, frozen=True, gc=False):
    """Release the run until `wake_at`, or until a message arrives. Refused if the inbox has grown past `seen`."""

    wake_at: int
    reason: Reason
    seen: int
    #: JSON of `RunWaits`, for inspection; None: nothing to name.
    waits: str | None = None


class Finish(Struct, frozen=True, gc=False):
    """Finish the run: COMPLETED with a result, FAILED or CANCELLED with a `Failure`, as JSON."""

    status: Status
    payload: str | None
    #: Name of the timeout that was exceeded, for the audit trail.
    timeout: str = ""


class RetryLater(Struct, frozen=True, gc=False):
    """Begin the next attempt at the whole run at `wake_at`, after a failed one."""

    wake_at: int
    error: str
    #: Name of the timeout that was exceeded, for the audit trail.
    timeout: str = ""


class Release(Struct, frozen=True, gc=False):
    """Release the unfinished run; any worker may claim it at once. Raises the token."""

    #: Worker that has precedence for a short time.
    home: str | None = None


class Block(Struct, frozen=True, gc=False):
    """Block the run until a person or a deploy resolves the reason."""

    reason: Reason
    error: str


class ContinueAsNew(Struct, frozen=True, gc=False):
    """Begin again under the same id, as a new generation with an empty history.

    Refused if the inbox has grown past `seen`.
    """

    type: str
    #: JSON, as in `NewRun`.
    input: str
    seen: int
    #: Messages that were read but not received: name, payload, key. Unless refused, they go back into the inbox as
    #: unread, without an event in the audit trail.
    carried: tuple[tuple[str, str, str], ...] = ()
    #: Last inbox entry that counts as read even if it is refused.
    read: int = 0


class Trim(Struct, frozen=True, kw_only=True, gc=False):
    """Data that a run no longer needs."""

    #: Numbers of records, as inclusive ranges.
    records: tuple[tuple[int, int], ...] = ()
    #: Inbox entries up to this one that were read; their keys are forgotten with them. 0: none.
    inbox: int = 0
    #: Number of events of the audit trail to keep; 0: all.
    events: int = 0


NextState = Park | Finish | RetryLater | ContinueAsNew | Release | Block


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """Everything that one run makes durable in one transaction."""

    lease: Lease
    records: tuple[Record, ...] = ()
    #: Last inbox entry that the records took in; 0: none.
    read: int = 0
    children: tuple[NewRun, ...] = ()
    sends: tuple[NewMessage, ...] = ()
    outputs: tuple[NewOutput, ...] = ()
    #: Topics of broadcasts that the run subscribes to and unsubscribes from.
    subscribes: tuple[str, ...] = ()
    unsubscribes: tuple[str, ...] = ()
    #: Data that the run no longer needs, deleted after the records are written.
    trim: Trim | None = None
    #: Events of timers and children for the audit trail, as kind and data; only at the level `full`.
    notes: tuple[tuple[str, str], ...] = ()
    #: Next state of the run; None: it continues to run.
    next: NextState | None = None


class StepTurn(Turn, frozen=True, kw_only=True, gc=False):
    """A turn that carries records and nothing else, as that of the usual step does.

    Databases tell it by its class, which is one look in place of nine. So nothing may be added to a copy of it.
    """


class TurnOutcome(StrEnum):
    """Answer to the commit of a turn."""

    #: The turn is durable.
    APPLIED = "applied"
    #: The turn is durable, but the run was not parked because its inbox has unread entries; it continues to run.
    AWAKE = "awake"
    #: The lease was lost; nothing was written.
    LOST = "lost"
    #: Another transaction has locked the row; nothing was written, try again.
    BUSY = "busy"
