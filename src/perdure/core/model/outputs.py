"""What a turn may carry besides its records: what others can read of a run, and what the run no longer needs."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from perdure.core.ids import short_key


class OutputKind(StrEnum):
    """Who reads an output, and how."""

    #: The latest value of a key; a later one takes its place.
    STATE = "state"
    #: An item of a stream, read by position.
    STREAM = "stream"
    #: The answer to a message; named by the message's key.
    REPLY = "reply"
    #: What an activity last said of how far it has got; a later one takes its place.
    HEARTBEAT = "beat"
    #: How a run ended before it was given another chance; one for each time, by position.
    REQUEUE = "requeue"
    #: A worker that did not finish what it had begun; one for each time, by position.
    INTERRUPTION = "takeover"


#: Of these there are many of a name, by position.
NUMBERED = frozenset({OutputKind.STREAM, OutputKind.REQUEUE, OutputKind.INTERRUPTION})

#: Of these there is one of a name, and a later one takes its place.
REPLACED = frozenset({OutputKind.STATE, OutputKind.HEARTBEAT})


def step_key(location: str, token: int, attempt: int, number: int) -> str:
    """The key of what a step emits. The token too: after a crash, an attempt is made again under the same number."""
    return f"{short_key(location)}@{token}.{attempt}:{number}"


def source_of(key: str | None) -> str:
    """Which execution of which step emitted the output of that key; empty for what the workflow itself shows."""
    source, _, number = (key or "").rpartition(":")
    return source if number.isdigit() else ""


class NewOutput(Struct, frozen=True, kw_only=True, gc=False):
    """Something that a run shows to whoever asks."""

    kind: OutputKind
    #: The key of a state, the name of a stream, the key of the message that is answered.
    name: str
    #: JSON; for a reply that `failed`, of a `Failure`.
    payload: str
    failed: bool = False
    #: Unique within the run for ever, except for a state: writing it twice is writing it once.
    key: str


class Output(Struct, frozen=True, kw_only=True, gc=False):
    """An output as the database has it. `position` rises by one within a stream, from 0; it is 0 for the other kinds."""

    run_id: str
    kind: OutputKind
    name: str
    position: int
    payload: str
    failed: bool
    at: int
    #: Of an item that a step emitted: the same for all that one execution of it emitted. Otherwise empty.
    source: str = ""


class Broadcasted(Struct, frozen=True, gc=False):
    """What became of one chunk of a broadcast."""

    #: How many runs have it, those included that had it before.
    sent: int
    #: Where to go on; None: everybody was reached.
    cursor: str | None


class Trim(Struct, frozen=True, kw_only=True, gc=False):
    """What a run no longer needs."""

    #: Numbers of records, as inclusive ranges.
    records: tuple[tuple[int, int], ...] = ()
    #: Inbox entries up to this one that were taken in; their keys are forgotten with them. 0: none.
    inbox: int = 0
    #: How many lines of the audit trail to leave; 0: all.
    events: int = 0


class Renew(Struct, frozen=True, gc=False):
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
