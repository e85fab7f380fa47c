"""Reports about an attempt at an activity from outside: it has completed, it has failed, it goes on.

An activity that returns `Pending` has given out the token of its attempt. The token names the run, its generation and
the number of the record that a failure of the attempt would get. Each failed attempt writes such a record, so a token
belongs to one attempt. An attempt that begins again after a crash has the same token.

The proof in a token follows from the run's seed, which is random, made at the first claim, and shown to no client. A
token says nothing about the proof of another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.time.duration import NEVER
from perdure.errors import AttemptNotFound

#: Bytes of a proof: too many to guess.
_PROOF_BYTES = 16
#: Longest token that is decoded. An id has at most 255 bytes.
_TOKEN_CHARACTERS = 1000


class AttemptToken(Struct, frozen=True, kw_only=True):
    """The token of an attempt, decoded."""

    run_id: str
    generation: int
    #: Number of the record that a failure of the attempt gets.
    number: int
    proof: bytes

    @property
    def key(self) -> str:
        """Key of the inbox entry that reports the failure of the attempt. No client gives a key like this."""
        return f" attempt:{self.generation}.{self.number}"

    def is_genuine(self, seed: str) -> bool:
        """Tell whether the proof follows from the run's seed. A run that was never claimed has none."""
        expected = _proof(self.run_id, self.generation, self.number, seed)
        return bool(seed) and hmac.compare_digest(self.proof, expected)


def make_token(run_id: str, generation: int, number: int, seed: str) -> str:
    """Make the token of an attempt, of letters, digits, `-` and `_`; it may begin with `.`."""
    place = f"{generation}.{number}.{run_id}".encode()
    token = base64.urlsafe_b64encode(_proof(run_id, generation, number, seed) + place).decode().rstrip("=")
    # A command line takes a word that begins with `-` for an option.
    return f".{token}" if token.startswith("-") else token


def read_token(text: str) -> AttemptToken:
    """Decode a token. Raises `AttemptNotFound`."""
    try:
        if len(text) > _TOKEN_CHARACTERS:
            raise ValueError
        text = text.removeprefix(".")
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        generation, number, run_id = data[_PROOF_BYTES:].decode().split(".", 2)
        token = AttemptToken(
            run_id=run_id, generation=int(generation), number=int(number), proof=data[:_PROOF_BYTES]
        )  # fmt: skip
    except (binascii.Error, ValueError):
        raise not_an_attempt() from None
    if not (0 < token.generation < 2**62 and 0 <= token.number < 2**62 and run_id):
        raise not_an_attempt()
    return token


def not_an_attempt() -> AttemptNotFound:
    """Make the error about a token that is not genuine; it does not tell whether there is such a run."""
    return AttemptNotFound(
        "there is no attempt with this token; give the token that `activity_info().token` returned, unchanged, to an "
        "engine on the same database"
    )


def _proof(run_id: str, generation: int, number: int, seed: str) -> bytes:
    message = f"perdure attempt {generation}.{number}.{run_id}".encode()
    return hmac.digest(seed.encode(), message, hashlib.sha256)[:_PROOF_BYTES]


class ReportKind(StrEnum):
    """Kind of a report."""

    COMPLETED = "completed"
    FAILED = "failed"
    HEARTBEAT = "heartbeat"


class AttemptReport(Struct, frozen=True, kw_only=True):
    """A report about an attempt."""

    token: AttemptToken
    kind: ReportKind
    #: JSON of the result, of a `Failure`, or of the heartbeat's details; None: a heartbeat without details.
    payload: str | None


class ReportOutcome(StrEnum):
    """Answer to a report."""

    #: Written now, or before.
    DONE = "done"
    #: The attempt was over: it timed out or failed, and perhaps another one follows.
    OVER = "over"
    #: The run has ended, in another way.
    ENDED = "ended"
    #: The run was cancelled, and ends as soon as a worker takes the request in.
    CANCELLED = "cancelled"
    #: The token is not genuine, or the run was deleted for good.
    UNKNOWN = "unknown"


class PendingAttempt(Struct, frozen=True, kw_only=True):
    """An attempt whose function has returned `Pending`, as stored with the turn that parks its run."""

    generation: int
    number: int
    started_at: int
    #: Time when the function returned.
    since: int
    #: Time by which the attempt has to end (`start_to_close`).
    close_at: int = NEVER
    #: Longest time between two heartbeats, in microseconds; 0: any.
    heartbeat: int = 0
    #: Gate of the breaker that counts the end of the attempt, empty if there is none, and time of its admission.
    breaker: str = ""
    admitted_at: int = 0

    def due(self, last_heartbeat: int) -> int:
        """Time when the attempt times out, given the time of its last heartbeat from outside; 0: there was none."""
        heard = max(self.since, last_heartbeat) + self.heartbeat if self.heartbeat else NEVER
        return min(self.close_at, heard)


_decoder = decoder_for(PendingAttempt)


def pending_output(pending: PendingAttempt) -> NewOutput:
    """Make the output that stores a pending attempt; a later one replaces it."""
    return NewOutput(kind=OutputKind.PENDING, name="", payload=msgspec.json.encode(pending).decode(), key="pending")


def pending_from_json(payload: str) -> PendingAttempt | None:
    """Decode a pending attempt; None if it cannot be decoded, so that the attempt is made again."""
    try:
        return _decoder.decode(payload)
    except msgspec.MsgspecError:
        return None
