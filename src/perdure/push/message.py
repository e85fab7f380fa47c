"""Queue messages as they travel, and the answer to one.

A message is a JSON object: `executionId`, `retryCount`, `enqueuedAt` (milliseconds since the epoch) and `authorization`. It names a
run and says nothing about it: what is to be done next is known from the run's history. Whatever does not fit is refused whole.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_id
from perdure.core.model.run import Status
from perdure.errors import DecodeError, UsageError

#: Longer messages are refused before they are looked at, in bytes.
LONGEST = 64 * 1024


class QueueMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A request to go on with a run."""

    execution_id: str
    #: How often it has failed to be delivered so far. Waiting for others, or for the database, does not count.
    retry_count: Annotated[int, Meta(ge=0)] = 0
    #: When it was meant to be delivered first, in milliseconds since the epoch.
    enqueued_at: Annotated[int, Meta(ge=0)]
    #: For the handler's `credentials` hook. Tokens expire in queues, so that a reference is better than a token.
    authorization: str | None = None
    #: Accepted from those who send it, and not needed.
    step_index: int | None = None

    def encode(self) -> bytes:
        """As it travels."""
        fields = {"executionId": self.execution_id, "retryCount": self.retry_count, "enqueuedAt": self.enqueued_at}
        return msgspec.json.encode({**fields, "authorization": self.authorization})

    @classmethod
    def decode(cls, body: bytes | str) -> QueueMessage:
        """What was sent. Raises `DecodeError` for anything else."""
        if len(body) > LONGEST:
            raise DecodeError(f"a queue message of {len(body)} bytes is longer than any can be ({LONGEST})")
        try:
            message = _message.decode(body)
            check_id(message.execution_id)
        except (msgspec.DecodeError, UsageError, UnicodeDecodeError) as error:
            raise DecodeError(f"not a queue message: {error}") from error
        return message


_message = decoder_for(QueueMessage)


class Fate(StrEnum):
    """What became of a message."""

    #: Its run has ended, now or before.
    FINISHED = "finished"
    #: Its run waits: for a time, for a message or for a child.
    WAITING = "waiting"
    #: Its run was set aside and needs a person or a deploy; or its type or queue is paused.
    BLOCKED = "blocked"
    PAUSED = "paused"
    #: It is not a message.
    MALFORMED = "malformed"
    #: It was too old, and its run, still waiting to be taken up, has failed for that.
    EXPIRED = "expired"
    #: It was tried too often; its run, if there is one here, has failed for that.
    GIVEN_UP = "given_up"
    #: Another worker has its run.
    HELD = "held"
    #: The time was up before its run came to a wait or to its end.
    INTERRUPTED = "interrupted"
    #: There is no such run, or not yet.
    UNKNOWN = "unknown"
    #: The database cannot be reached.
    UNAVAILABLE = "unavailable"
    #: Something else went wrong.
    FAILED = "failed"


class Answer(Struct, frozen=True, kw_only=True):
    """What to do with a message."""

    #: The message is done with; otherwise it is to be delivered again, after `delay` seconds and as `body`.
    ack: bool
    fate: Fate
    run_id: str = ""
    #: Where its run stands, as far as was seen.
    status: Status | None = None
    delay: float = 0.0
    body: bytes = b""
    #: What went wrong, in words.
    detail: str = ""


class Delivery(Protocol):
    """A message as a broker hands it out, with ways to say what became of it."""

    body: bytes | str

    async def ack(self, answer: Answer, /) -> None:
        """It is done with."""

    async def retry(self, answer: Answer, /) -> None:
        """Deliver `answer.body` after `answer.delay` seconds, in its place."""
