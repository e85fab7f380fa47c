"""Outputs: values that a run shows to others, such as states, streams and replies, and notes about the run itself."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import short_key


class OutputKind(StrEnum):
    """Kind of an output."""

    #: Latest value of a key; a later one replaces it.
    STATE = "state"
    #: Item of a stream, read by position.
    STREAM = "stream"
    #: Answer to a question; named by the key of the question's message.
    REPLY = "reply"
    #: Details of an activity's last heartbeat; a later one replaces them.
    HEARTBEAT = "beat"
    #: Former end of a run that was requeued; one for each requeue, by position.
    REQUEUE = "requeue"
    #: A worker that did not finish what it had started; one for each time, by position.
    INTERRUPTION = "takeover"
    #: A message that could not be decoded; one for each, by position. `failed` until it is decided what becomes of it.
    SET_ASIDE = "aside"
    #: The attempt at an activity whose function has returned `Pending`; a later one replaces it.
    PENDING = "pending"
    #: An attribute that a turn sets or removes. It is kept among the attributes of runs, not among the outputs.
    ATTRIBUTE = "attr"


#: Kinds with many outputs of one name, by position.
NUMBERED = frozenset({OutputKind.STREAM, OutputKind.REQUEUE, OutputKind.INTERRUPTION, OutputKind.SET_ASIDE})

#: Kinds with one output of a name; a later one replaces it.
REPLACED = frozenset({OutputKind.STATE, OutputKind.HEARTBEAT, OutputKind.PENDING})


def step_key(location: str, token: int, attempt: int, number: int) -> str:
    """Key of an item that a step emits.

    It has the token, so that items of two leases never share a key.
    """
    return f"{short_key(location)}@{token}.{attempt}:{number}"


def source_of(key: str | None) -> str:
    """The step and execution that emitted an output, from its key; empty for an output of the workflow itself."""
    source, _, number = (key or "").rpartition(":")
    return source if number.isdigit() else ""


class NewOutput(Struct, frozen=True, kw_only=True, gc=False):
    """Request to add an output."""

    kind: OutputKind
    #: Key of a state, name of a stream, or key of the question's message.
    name: str
    #: JSON; for a reply that `failed`, of a `Failure`.
    payload: str
    failed: bool = False
    #: Unique within the run for ever, except for a state; writing it again changes nothing.
    key: str


class Output(Struct, frozen=True, kw_only=True, gc=False):
    """An output, as stored. `position` rises by one within a stream, from 0; it is 0 for kinds without positions."""

    run_id: str
    kind: OutputKind
    name: str
    position: int
    payload: str
    failed: bool
    at: int
    #: For an item of a step: the same for all items of one execution. Otherwise empty.
    source: str = ""


class BroadcastResult(Struct, frozen=True, gc=False):
    """Answer to one chunk of a broadcast."""

    #: Number of runs that have the message, including earlier deliveries.
    sent: int
    #: Position of the next chunk; None: all runs were reached.
    cursor: str | None


#: The worker did not renew its lease in time: killed, cut off or stalled.
LOST = "lost"
#: The worker shut down and released the run.
STOPPED = "stopped"


class Interruption(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An interruption: a worker lost a run, or stopped before the run's steps had ended."""

    #: Time of detection, in microseconds since the epoch.
    at: int = 0  # equivalent: constant: not written; the reader sets the time of the output
    worker: str
    #: `lost` or `stopped`.
    reason: str
    #: Generation and attempt of the run at that time.
    generation: int
    attempt: int
    #: Number of the run's last record; -1: none.
    last: int
    #: Locations of the interrupted steps; None: unknown, any running step may have been.
    steps: tuple[str, ...] | None = None


_DECODER = decoder_for(Interruption)


def interruption_output(interruption: Interruption, token: int) -> NewOutput:
    """The output that stores an interruption of the lease with that token."""
    payload = msgspec.json.encode(interruption).decode()
    return NewOutput(kind=OutputKind.INTERRUPTION, name="", payload=payload, key=f"{interruption.reason}:{token}")


def interruption_of(output: Output) -> Interruption | None:
    """Decode the interruption in an output; None if it cannot be decoded, which no run depends on."""
    try:
        found = _DECODER.decode(output.payload)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(found, at=output.at)
