"""Beginning anew: a run goes on under its id as a new generation, with another input and an empty history.

What it shows to others stays. The state that it goes into is written as any other; this is the rest. Messages that the old
generation took in and did not receive are carried over into the inbox of the new one. Where the renewal is refused they are
not, and what was taken in without a record stays unread, so that no crash loses it.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.core.model.outputs import Renew
from perdure.core.model.run import NewMessage, Turn
from perdure.store.sql.dialect import Transaction

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


def read_at_once(turn: Turn) -> int:
    """Up to which entry the inbox is read whatever becomes of a renewal: what was taken in without a record is only carried."""
    if not isinstance(turn.next, Renew):
        return turn.read
    return max([turn.next.read, *(record.inbox_seq for record in turn.records)])


def carried(run_id: str, renew: Renew) -> list[NewMessage]:
    """What is put into the inbox of the new generation."""
    return [NewMessage(run_id=run_id, name=name, payload=payload, key=key) for name, payload, key in renew.carried]


def keys_of(turn: Turn) -> list[tuple[str, str]]:
    """By run, the keys of every message that the turn may put into an inbox, but for words to parents."""
    keys = [(message.run_id, message.key) for message in turn.sends]
    if isinstance(turn.next, Renew):
        keys += [(turn.lease.run_id, key) for _, _, key in turn.next.carried]
    return keys
