"""What a turn may carry besides its records: what others can read of a run, and what the run no longer needs."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
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


class BroadcastResult(Struct, frozen=True, gc=False):
    """What became of one chunk of a broadcast."""

    #: How many runs have it, those included that had it before.
    sent: int
    #: Where to go on; None: everybody was reached.
    cursor: str | None


#: The worker did not renew its lease in time: killed, cut off or standing still.
LOST = "lost"
#: The worker stopped in order and gave the run back.
STOPPED = "stopped"


class Interruption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A worker that did not finish what it had begun of a run."""

    #: When that was found out, in microseconds since the epoch.
    at: int = 0  # equivalent: constant: not written; the reader sets the time of the output
    worker: str
    #: `lost` or `stopped`.
    reason: str
    #: Of the run, at that time.
    generation: int
    attempt: int
    #: The number of the last record that the run had; -1: none.
    last: int
    #: The steps that were interrupted; None: not known, it may be any that was under way.
    steps: tuple[str, ...] | None = None


_DECODER = decoder_for(Interruption)


def interruption_output(interruption: Interruption, token: int) -> NewOutput:
    """The output that keeps an interruption of the lease with that token."""
    payload = msgspec.json.encode(interruption).decode()
    return NewOutput(kind=OutputKind.INTERRUPTION, name="", payload=payload, key=f"{interruption.reason}:{token}")


def interruption_of(output: Output) -> Interruption | None:
    """The interruption that an output keeps; None if it cannot be read, which a run goes on without."""
    try:
        found = _DECODER.decode(output.payload)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(found, at=output.at)
