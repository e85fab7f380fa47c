"""Beginning anew: a run goes on under its id as a new generation, with another input and an empty history.

What it shows to others stays. The state that it goes into is written as any other; this is the rest. What the turn sends to
its own run belongs to the renewal: it is for the new generation, and is not sent where the renewal is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.effects import Renew
from perdure.core.model import NewMessage, Turn
from perdure.store.dialect import Transaction

_RENEW = """
UPDATE perdure_runs
SET type = :type, input = :input, generation = generation + 1, progress = -1
WHERE id = :run_id
"""

_FORGET = """
DELETE FROM perdure_history
WHERE run_id = :run_id
"""


async def renew(tx: Transaction, renewed: Mapping[str, Renew]) -> None:
    """Give runs, whose rows are locked, their new input and take away their history."""
    if renewed:
        rows = [{"run_id": id, "type": one.type, "input": one.input} for id, one in renewed.items()]
        await tx.execute_many(_RENEW, rows)
        await tx.execute_many(_FORGET, [{"run_id": id} for id in renewed])


def sends_at_once(turn: Turn) -> tuple[NewMessage, ...]:
    """What the turn sends whatever becomes of its renewal."""
    if not isinstance(turn.next, Renew):
        return turn.sends
    return tuple(message for message in turn.sends if message.run_id != turn.lease.run_id)


def sends_to_itself(turn: Turn) -> tuple[NewMessage, ...]:
    """What the turn sends to the new generation of its run."""
    return tuple(message for message in turn.sends if message.run_id == turn.lease.run_id)
