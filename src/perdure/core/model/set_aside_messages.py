"""Messages that were set aside: they could not be decoded when the workflow received them.

The run goes on waiting. The message stays with the run, as an output with its error, until a person drops it or
delivers it again, edited or as it is.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.failure import Failure
from perdure.core.model.outputs import NewOutput, Output, OutputKind

DROPPED = "dropped"
DELIVERED = "delivered"


class SetAsideMessage(Struct, frozen=True, kw_only=True):
    """A message that could not be decoded, and the decision about it."""

    #: Number of the message among those that the run has set aside, from 0.
    number: int
    #: Channel; of a question, with the suffix `~ask`.
    name: str
    #: The stored text, which may be no JSON.
    payload: str
    error: Failure
    #: Time at which it was set aside, or of the decision.
    at: int
    #: `dropped`, `delivered`, or empty while no decision was made.
    decision: str = ""
    #: Key of the decision; tells a repeated decision from a second one.
    key: str = ""


class _Stored(Struct, frozen=True, omit_defaults=True):
    name: str
    payload: str
    error: Failure
    decision: str = ""
    key: str = ""


_decoder = decoder_for(_Stored)


def set_aside_output(name: str, payload: str, error: Failure, key: str) -> NewOutput:
    """The output that stores a message that was set aside."""
    stored = msgspec.json.encode(_Stored(name, payload, error)).decode()
    return NewOutput(kind=OutputKind.SET_ASIDE, name="", payload=stored, failed=True, key=key)


def set_aside_of(output: Output) -> SetAsideMessage:
    """Decode the message in an output; one that is damaged itself is shown as its text."""
    try:
        stored = _decoder.decode(output.payload)
    except msgspec.MsgspecError as error:
        stored = _Stored("", output.payload, Failure(type="", message=str(error)))
    return SetAsideMessage(
        number=output.position, name=stored.name, payload=stored.payload, error=stored.error, at=output.at,
        decision=stored.decision, key=stored.key,
    )  # fmt: skip


def decided(message: SetAsideMessage, decision: str, key: str) -> str:
    """Payload of the output once a decision was made."""
    return msgspec.json.encode(_Stored(message.name, message.payload, message.error, decision, key)).decode()
