"""Starts that are put off until no more of them come.

The head of such a name says which run is put off and since when. Its run waits for a timer; each further start gives that run its own input
and moves the timer, under the locks of both rows, so that none comes between the last input and the beginning.
"""

from __future__ import annotations

from msgspec.structs import replace

from perdure.core.model.run import Created, NewRun, Reason, Run, Status
from perdure.core.policy.singleton import Single
from perdure.store.contract import Change
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.singletons import head

#: So many requests are remembered, so that one whose answer was lost may be repeated although others came in between.
_REMEMBERED = 7

_HEAD = """
SELECT run_id, write_id, since
FROM perdure_singletons
WHERE name = :name
"""

_SET_HEAD = """
UPDATE perdure_singletons
SET run_id = :run_id, write_id = :write_id, since = :since
WHERE name = :name
"""

_RUN = f"""
SELECT {RUN}
FROM perdure_runs
WHERE id = :run_id
{{for_update}}
"""

_PUT_OFF = """
UPDATE perdure_runs
SET input = :input, status = :status, reason = :reason, wake_at = :wake_at
WHERE id = :run_id
"""


async def put_off(tx: Transaction, new: NewRun, single: Single) -> NewRun | Created:
    """The run that is put off already, with the new input; or how to create one."""
    await head(tx, single.name)
    [(run_id, known, since)] = await tx.fetch(_HEAD, {"name": single.name})
    there = await _locked(tx, run_id) if run_id else None
    requests = known.split(",")
    if there is not None and new.write_id in requests:
        return Created(there, False, attached=True)
    if there is None or not _is_put_off(there, tx.now):
        row = {"name": single.name, "run_id": new.id, "write_id": new.write_id, "since": tx.now}
        await tx.execute(_SET_HEAD, row)
        return replace(new, wake_at=tx.now + single.delay)
    wake_at = tx.now + single.delay
    if single.at_most:
        wake_at = min(wake_at, since + single.at_most)
    changed = _changed(there, new.input, max(wake_at, tx.now), tx.now)
    change = {
        "run_id": there.id,
        "input": changed.input,
        "status": changed.status.value,
        "reason": changed.reason,
        "wake_at": changed.wake_at,
    }
    await tx.execute(_PUT_OFF, change)
    remembered = ",".join([new.write_id, *requests][:_REMEMBERED])
    await tx.execute(_SET_HEAD, {"name": single.name, "run_id": run_id, "write_id": remembered, "since": since})
    tx.note(there.id, "put_off", f'{{"until":{changed.wake_at}}}')
    tx.stir(Change.READY)
    return Created(changed, False, attached=True)


async def _locked(tx: Transaction, run_id: str) -> Run | None:
    rows = await tx.fetch(_RUN, {"run_id": run_id})
    return to_run(rows[0]) if rows else None


def _is_put_off(run: Run, now: int) -> bool:
    waits = run.status is Status.WAITING and run.reason is Reason.TIMER
    return waits and run.started_at == 0 and run.wake_at > now


def _changed(run: Run, input: str, wake_at: int, now: int) -> Run:
    if wake_at > now:
        return replace(run, input=input, wake_at=wake_at)
    return replace(run, input=input, wake_at=now, status=Status.PENDING, reason=None)
