"""Topics: which runs listen to which broadcasts, and how those reach them.

A run's rows are written with its turns, under the lock of the run's row. Those that a finished run has left behind are
removed by the broadcast that finds them. A broadcast goes from run to run in the order of their ids, a chunk at a time; its
key keeps it from reaching any of them twice, so that whoever is interrupted begins again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from perdure.core.model.outputs import Broadcasted
from perdure.core.model.run import NewMessage, SendOutcome, Turn
from perdure.store.sql.dialect import Transaction

#: Puts messages into inboxes.
Deliver = Callable[[Sequence[NewMessage]], Awaitable[Sequence[SendOutcome]]]

_LISTENERS = """
SELECT run_id
FROM perdure_topics
WHERE topic = :topic AND run_id > :after
ORDER BY topic, run_id
LIMIT :limit
"""

_LEAVE = """
DELETE FROM perdure_topics
WHERE topic = :topic AND run_id = :run_id
"""

_JOIN = """
INSERT INTO perdure_topics (topic, run_id)
VALUES (:topic, :run_id)
"""


async def subscribe(tx: Transaction, turns: Iterable[Turn]) -> None:
    """Listen to what the turns subscribe to, and no longer to what they unsubscribe from; the former counts for one in both."""
    joined = [
        {"topic": topic, "run_id": turn.lease.run_id} for turn in turns for topic in dict.fromkeys(turn.subscribes)
    ]
    left = [{"topic": topic, "run_id": turn.lease.run_id} for turn in turns for topic in turn.unsubscribes]
    # Nobody else writes them while the run is locked, and not every database can insert only what is missing.
    await tx.execute_many(_LEAVE, [*left, *joined])
    await tx.execute_many(_JOIN, joined)


async def broadcast(
    tx: Transaction, topic: str, payload: str | None, key: str, after: str | None, limit: int, deliver: Deliver
) -> Broadcasted:
    """Send a message to those who listen to a topic, from a run id on."""
    rows = await tx.fetch(_LISTENERS, {"topic": topic, "after": after or "", "limit": limit})
    if not rows:
        return Broadcasted(0, None)
    messages = [NewMessage(run_id=row[0], name=topic, payload=payload, key=f"broadcast:{key}") for row in rows]
    outcomes = dict(zip([row[0] for row in rows], await deliver(messages), strict=True))
    gone = [id for id, outcome in outcomes.items() if outcome in (SendOutcome.FINISHED, SendOutcome.UNKNOWN)]
    await tx.execute_many(_LEAVE, [{"topic": topic, "run_id": run_id} for run_id in gone])
    return Broadcasted(len(outcomes) - len(gone), rows[-1][0] if len(rows) == limit else None)
