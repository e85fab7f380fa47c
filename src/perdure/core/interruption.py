"""Interruptions: a worker that held a run was lost, or stopped before the run's steps had ended."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from perdure.core.decoders import decoder_for
from perdure.core.effects import NewOutput, Output, OutputKind

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


def output_of(interruption: Interruption, token: int) -> NewOutput:
    """The output that keeps an interruption of the lease with that token."""
    payload = msgspec.json.encode(interruption).decode()
    return NewOutput(kind=OutputKind.INTERRUPTION, name="", payload=payload, key=f"{interruption.reason}:{token}")


def to_interruption(output: Output) -> Interruption | None:
    """The interruption that an output keeps; None if it cannot be read, which a run goes on without."""
    try:
        found = _DECODER.decode(output.payload)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(found, at=output.at)
