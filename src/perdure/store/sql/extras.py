"""What a turn may carry that most turns do not: outputs, subscriptions and what to trim.

Written after everything else of the turn, in the same transaction, the same way on every database.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.run import Turn
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs.outputs import write_outputs
from perdure.store.sql.runs.topics import subscribe
from perdure.store.sql.trimming import trim


def has_extras(turn: Turn) -> bool:
    """Whether the turn carries any of it."""
    return bool(turn.outputs or turn.trim or turn.subscribes or turn.unsubscribes)


async def write_extras(tx: Transaction, turns: Sequence[Turn]) -> None:
    """Write what these turns carry, each of another run whose row is locked."""
    if shown := [(turn.lease.run_id, output) for turn in turns for output in turn.outputs]:
        await write_outputs(tx, shown)
    if any(turn.subscribes or turn.unsubscribes for turn in turns):
        await subscribe(tx, turns)
    if trims := {turn.lease.run_id: turn.trim for turn in turns if turn.trim is not None}:
        await trim(tx, trims)
