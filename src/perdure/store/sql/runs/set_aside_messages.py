"""Decisions about messages that a run has set aside. Each is made once, under the lock of the run's row."""

from __future__ import annotations

from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.set_aside_messages import DELIVERED, DROPPED, decided, set_aside_of
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.inbox import send
from perdure.store.sql.runs.outputs import outputs
from perdure.store.sql.runs.reopen import locked

_DECIDE = """
UPDATE perdure_outputs
SET payload = :payload, failed = 0, at = :now
WHERE run_id = :run_id AND kind = 'aside' AND name = '' AND position = :number
"""


async def decide_message(
    tx: Transaction, run_id: str, number: int, key: str, payload: str | None, *, deliver: bool
) -> OrderOutcome:
    """Deliver a message again, with another payload if there is one, or drop it; ALREADY if that was decided before."""
    if number < 0 or await locked(tx, run_id) is None:
        return OrderOutcome.UNKNOWN
    found = await outputs(tx, run_id, OutputKind.SET_ASIDE, "", number - 1, 1)
    if not found or found[0].position != number:
        return OrderOutcome.UNKNOWN
    message = set_aside_of(found[0])
    if message.decision:
        return OrderOutcome.DONE if message.key == key else OrderOutcome.ALREADY
    if deliver:
        # No client gives a key that begins with a space.
        again = NewMessage(
            run_id=run_id, name=message.name, payload=message.payload if payload is None else payload,
            key=f" again:{number}",
        )  # fmt: skip
        if await send(tx, [again]) == [SendOutcome.FINISHED]:
            return OrderOutcome.FINISHED
    decision = DELIVERED if deliver else DROPPED
    row = {"run_id": run_id, "number": number, "payload": decided(message, decision, key), "now": tx.now}
    await tx.execute(_DECIDE, row)
    tx.note(run_id, f"message_{decision}", to_json({"name": message.name, "number": number}))
    return OrderOutcome.DONE
