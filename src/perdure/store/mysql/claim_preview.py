"""A look at what there is to do on MySQL and MariaDB: one cheap statement, which is all that an idle worker costs."""

from __future__ import annotations

import msgspec

from perdure.core.model.claim import ClaimRequest
from perdure.core.time.duration import FAR
from perdure.store.mysql.literals import Sql, listed
from perdure.store.mysql.transaction import MysqlTransaction
from perdure.store.server.claim_preview import Sight

#: Runs that a worker may take.
MINE = "ready_queue IN (:queues) AND type IN (:types)"

LOOK = f"""
SELECT :now,
  (SELECT JSON_ARRAYAGG(id) FROM perdure_workers WHERE status = 'alive'),
  EXISTS (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_held) WHERE status = 'running' AND worker = :worker AND nonce = :nonce),
  (SELECT MIN(waits_until) FROM perdure_runs FORCE INDEX (perdure_runs_to_wake)),
  (SELECT COUNT(*) FROM (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim) WHERE {MINE} LIMIT :limit) AS found),
  EXISTS (SELECT 1 FROM perdure_runs FORCE INDEX (perdure_runs_to_claim_by_age) WHERE {MINE} AND wake_at > :now),
  (SELECT JSON_ARRAYAGG(JSON_ARRAY(kind, name)) FROM perdure_pauses),
  (SELECT MIN(due_at) FROM perdure_schedules)
"""


#: So many that are ready are as good as any number. To see that a row is there costs nearly as much as to read it.
MANY = 16


class Seen(Sight, frozen=True, kw_only=True):
    """What a look found; of those that are ready it counts no more than `MANY`."""

    paused: frozenset[tuple[str, str]]


async def look(tx: MysqlTransaction, request: ClaimRequest, now: Sql | int) -> Seen:
    """Find out whether there is anything to do."""
    [answer] = await tx.send(
        tx.text(
            LOOK,
            now=now,
            worker=request.worker,
            nonce=request.nonce,
            queues=listed(request.queues),
            types=listed(request.types),
            limit=MANY,
        )
    )
    [(at, names, held, next_wake, ready, early, paused, next_fire)] = answer.rows
    alive = msgspec.json.decode(names or "[]", type=list[str])
    return Seen(
        now=at,
        alive=alive,
        welcome=request.worker in alive,
        held=bool(held),
        next_wake=FAR if next_wake is None else next_wake,
        ready=ready,
        early=bool(early),
        next_fire=FAR if next_fire is None else next_fire,
        paused=frozenset(msgspec.json.decode(paused or "[]", type=list[tuple[str, str]])),
    )
