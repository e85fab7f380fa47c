"""Queue messages as they travel, and the results of handling them.

A message is a JSON object: `run_id`, `retry_count`, `enqueued_at` (milliseconds since the epoch) and `authorization`.
The names `executionId`, `retryCount`, `enqueuedAt` and `stepIndex` of other systems are accepted. A message only names
a run: the next step follows from the run's history. A body that does not fit is refused as a whole. Nothing in a
message fails a run by itself: the fields are hints, and the database has the facts.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_id
from perdure.core.model.run import Status
from perdure.core.printed_text import brief, harmless
from perdure.errors import DecodeError, UsageError

#: Size from which a message is refused before it is parsed, in bytes.
LONGEST = 64 * 1024

#: Largest count and time that a message may have: all that fits into a JavaScript number.
_LARGEST = 2**53 - 1

#: Names of fields in messages of other systems.
_FOREIGN = {
    "executionId": "run_id",
    "retryCount": "retry_count",
    "enqueuedAt": "enqueued_at",
    "stepIndex": "step_index",
}


class QueueMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request to go on with a run."""

    run_id: str
    #: Failed deliveries so far. Waits for another worker, or for the database, do not count.
    retry_count: Annotated[int, Meta(ge=0, le=_LARGEST)] = 0
    #: Time of its first intended delivery, in milliseconds since the epoch.
    enqueued_at: Annotated[int, Meta(ge=0, le=_LARGEST)]
    #: For the handler's `credentials` hook. Tokens expire in queues, so a reference is better than a token.
    authorization: str | None = None
    #: Accepted from senders of other systems, and not used.
    step_index: int | None = None
    #: Generation of the run that `retry_count` belongs to; None if it is not known. Another one has its own count.
    generation: Annotated[int, Meta(ge=0, le=_LARGEST)] | None = None

    def encode(self) -> bytes:
        """Write the message as JSON."""
        fields: dict[str, object] = {
            "run_id": self.run_id,
            "retry_count": self.retry_count,
            "enqueued_at": self.enqueued_at,
            "authorization": self.authorization,
        }
        if self.generation is not None and self.retry_count:
            fields["generation"] = self.generation
        return msgspec.json.encode(fields)

    @classmethod
    def decode(cls, body: bytes | str) -> QueueMessage:
        """Read a message. Raises `DecodeError` for anything else."""
        given: object = body
        if not isinstance(given, bytes | str):
            raise DecodeError(f"a queue message is bytes or text, not {brief(given)}")
        if len(body) > LONGEST:
            raise DecodeError(f"a queue message of {len(body)} bytes is longer than any can be ({LONGEST})")
        try:
            text = body if isinstance(body, str) else body.decode()
            ours = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
            if not isinstance(ours, dict):
                raise UsageError("a message is a JSON object")
            message = _messages.decode(msgspec.json.encode(ours))
            check_id(message.run_id)
        except RecursionError:
            raise DecodeError("not a queue message: it is nested too deeply") from None
        except Exception as error:
            raise DecodeError(f"not a queue message: {harmless(str(error))}") from error
        return message


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse an object with a field twice, of which two readers might choose different ones."""
    ours = {_FOREIGN.get(name, name): value for name, value in pairs}
    if len(ours) < len(pairs):
        raise UsageError("a field is there twice, or with two names")
    return ours


def _no_constant(name: str) -> Any:
    raise UsageError(f"{name} is not JSON")


_messages = decoder_for(QueueMessage)


class MessageOutcome(StrEnum):
    """Outcome of handling a message."""

    #: Its run has ended, now or before.
    FINISHED = "finished"
    #: Its run waits for a time, a message or a child.
    WAITING = "waiting"
    #: Its run is blocked and needs a person or a deploy, or its type or queue is paused.
    BLOCKED = "blocked"
    PAUSED = "paused"
    #: It is not a message.
    MALFORMED = "malformed"
    #: Its signature is missing, wrong or too old.
    UNSIGNED = "unsigned"
    #: It was too old; its run, which no worker had taken, has failed for that.
    EXPIRED = "expired"
    #: It was tried too often; its run, if there is one here, has failed for that.
    GIVEN_UP = "given_up"
    #: Another worker holds its run.
    HELD = "held"
    #: The time was up before its run waited or ended.
    INTERRUPTED = "interrupted"
    #: There is no such run, or not yet.
    UNKNOWN = "unknown"
    #: The database cannot be reached.
    UNAVAILABLE = "unavailable"
    #: Something else went wrong.
    FAILED = "failed"


class MessageResult(Struct, frozen=True, kw_only=True):
    """The result of handling a message, for the broker."""

    #: True if the message is done; otherwise deliver it again, after `delay` seconds and as `body`.
    ack: bool
    outcome: MessageOutcome
    run_id: str = ""
    #: Status of its run, as far as it was read.
    status: Status | None = None
    delay: float = 0.0
    body: bytes = b""
    #: Description of a problem.
    detail: str = ""


class Delivery(Protocol):
    """A message as a broker hands it out, with callbacks for its result."""

    body: bytes | str

    async def ack(self, answer: MessageResult, /) -> None:
        """Acknowledge the message."""

    async def retry(self, answer: MessageResult, /) -> None:
        """Deliver `answer.body` after `answer.delay` seconds, in its place."""
