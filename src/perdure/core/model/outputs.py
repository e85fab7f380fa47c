"""Outputs: values that a run shows to others, such as states, streams and replies, and notes about the run itself."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine
from enum import StrEnum
from inspect import isawaitable
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_name, short_key
from perdure.core.printed_text import brief
from perdure.errors import RunFinished, UsageError


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
    #: A log line of the run; the latest ones are kept, by position.
    LOG = "log"
    #: An attribute that a turn sets or removes. It is kept among the attributes of runs, not among the outputs.
    ATTRIBUTE = "attr"


#: Kinds with many outputs of one name, by position.
NUMBERED = frozenset(
    {OutputKind.STREAM, OutputKind.REQUEUE, OutputKind.INTERRUPTION, OutputKind.SET_ASIDE, OutputKind.LOG}
)

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


T = TypeVar("T")


class StreamItem(Struct, Generic[T], frozen=True):
    """An item of a stream and its position, from 0, by which reading goes on after it."""

    position: int
    value: T
    #: Execution of a step that emitted the item: the same for all its items, another one if the step begins anew. Empty
    #: for items of workflow code.
    source: str = ""


class WantedOutput(Struct, frozen=True, kw_only=True, gc=False):
    """Outputs of another run that a run waits for: another state of a key, or further items of a stream."""

    #: STATE or STREAM.
    kind: OutputKind
    name: str
    #: Position of the first item that is wanted.
    position: int = 0
    #: Digest of the state that was seen last; empty: any state is wanted.
    seen: str = ""
    #: Answer at once, whatever is there.
    now: bool = False


class SeenOutput(Struct, frozen=True, array_like=True):
    """An output of another run, as a history records it."""

    payload: str
    position: int = 0
    source: str = ""


class SeenOutputs(Struct, frozen=True, omit_defaults=True):
    """Answer to a `WantedOutput`."""

    outputs: tuple[SeenOutput, ...] = ()
    #: The run has ended: there will be no others.
    ended: bool = False
    #: There are further items now.
    more: bool = False


def check_stream(name: object, after: object) -> int:
    """Check the name of a stream and a position; the position after which to begin. Raises `UsageError`."""
    name = check_name(name, "name of a stream")
    last = -1 if after is None else after
    if not isinstance(last, int) or isinstance(last, bool) or not -1 <= last < 2**63:
        raise UsageError(
            f"stream(after={brief(after)}): positions begin with 0; leave it out to read from the beginning"
        )
    return last


def is_wanted_state(wanted: Any, value: Any) -> bool:
    """Tell whether a state is the one that is waited for: a value, what a function says, or any if it is UNSET."""
    if wanted is UNSET:
        return True
    if not callable(wanted):
        return bool(value == wanted)
    answer = wanted(value)
    if isawaitable(answer):
        if isinstance(answer, Coroutine):
            answer.close()
        raise UsageError("wait_state(...): the function that tells whether a state is meant must not be a coroutine")
    return bool(answer)


def unreached_state(run_id: str, name: str) -> RunFinished:
    """The error of a wait for a state that a run has not published before it ended."""
    return RunFinished(f"run {run_id!r} has ended and did not publish the state {name!r} that was waited for")


def state_digest(payload: str) -> str:
    """Digest by which a state is told from another one."""
    return hashlib.sha256(payload.encode(errors="surrogatepass")).hexdigest()[:32]


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
