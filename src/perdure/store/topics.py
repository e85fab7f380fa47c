"""Topics: which runs listen to which broadcasts.

A run's rows are written with its turns, under the lock of the run's row. Those that a finished run has left behind are
removed by the broadcast that finds them.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.model import Turn
from perdure.store.dialect import Transaction

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
