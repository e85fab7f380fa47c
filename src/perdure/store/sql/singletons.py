"""Singletons, of which only one run may be active at a time, and debounced starts.

Each name has one row, the *head*, which names the current run. A transaction that starts such a run, or lets the next
one begin, locks it. The state of the current run is read from the run itself, so that code that ends a run need not
know of singletons. Successors queue behind it; the next one begins when a worker that ended a run checks its name, and
otherwise with the next sweep.

The head of a debounced name says which run is delayed and since when. That run waits for a timer; each further start
replaces its input and moves the timer, under the locks of both rows, so that none comes between the last input and the
start.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.run import FINISHED, CreatedRun, NewRun, Reason, Run, Status
from perdure.core.policy.singleton import SingletonPolicy, StoredSingleton, stored_singleton_of
from perdure.core.time.duration import NEVER
from perdure.errors import SingletonBusy, StoreUnavailable
from perdure.store.contract import Change
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import RUN, failure, to_json, to_run
from perdure.store.sql.runs.attributes import set_first_attributes
from perdure.store.sql.runs.finish import finish
from perdure.store.sql.runs.inbox import cancel, deliver_all

#: Queued runs that one statement reads.
_PAGE = 200

_HEAD = """
SELECT run_id
FROM perdure_singletons
WHERE name = :name
{for_update}
"""

_NEW_HEAD = """
INSERT INTO perdure_singletons (name, since)
VALUES (:name, :now)
{or_ignore}
"""

_SET_HEAD = """
UPDATE perdure_singletons
SET run_id = :run_id, since = :now
WHERE name = :name
"""

_DROP_HEAD = """
DELETE FROM perdure_singletons
WHERE name = :name
"""

_UNFINISHED = """
SELECT 1
FROM perdure_runs
WHERE id = :run_id AND finished_at = 0
"""

_LINE = """
SELECT s.run_id, s.wake_at, s.policy, r.status, r.reason
FROM perdure_successors s
LEFT JOIN perdure_runs r ON r.id = s.run_id
WHERE s.name = :name
ORDER BY s.name, s.place, s.run_id
LIMIT :limit
"""

_LAST_PLACE = """
SELECT MAX(place)
FROM perdure_successors
WHERE name = :name
"""

_LINE_UP = """
INSERT INTO perdure_successors (run_id, name, place, wake_at, policy)
VALUES (:run_id, :name, :place, :wake_at, :policy)
"""

_LEAVE_LINE = """
DELETE FROM perdure_successors
WHERE run_id = :run_id
"""

_SEEN_TO = """
UPDATE perdure_successors
SET policy = 'queue'
WHERE run_id = :run_id
"""

_BEGIN = """
UPDATE perdure_runs
SET status = :status, reason = :reason, wake_at = :wake_at
WHERE id = :run_id AND status = 'waiting' AND reason = 'limit'
"""

_HOLD_BACK = """
UPDATE perdure_runs
SET status = 'waiting', reason = 'limit', wake_at = :never
WHERE id = :run_id AND status = 'pending'
"""

#: Names without a current run, or with a successor whose policy is yet to be applied.
_OVERDUE = """
SELECT h.name
FROM perdure_singletons h
LEFT JOIN perdure_runs r ON r.id = h.run_id
WHERE r.id IS NULL OR r.finished_at > 0
UNION
SELECT s.name
FROM perdure_successors s
LEFT JOIN perdure_singletons h ON h.name = s.name
WHERE h.name IS NULL OR s.policy <> 'queue'
LIMIT :limit
"""

_RUN = f"""
SELECT {RUN}
FROM perdure_runs
WHERE id = :run_id
"""


class _QueuedRun(Struct, frozen=True):
    """A run that waits for its turn to be the current one."""

    run_id: str
    wake_at: int
    policy: SingletonPolicy
    is_over: bool
    is_ready: bool


async def start_successors(tx: Transaction, names: Sequence[str]) -> int:
    """Start the next runs; returns how many."""
    begun = 0
    # In one order everywhere: two who do this at once must not wait for each other.
    for name in sorted(set(names)):
        before = await head(tx, name)
        holder = await _settle(tx, name, before)
        if holder is None and not await _page(tx, name, 1):
            await tx.execute(_DROP_HEAD, {"name": name})
        begun += holder not in (None, before)
    return begun


async def overdue(tx: Transaction, limit: int) -> tuple[str, ...]:
    """Names that need a check; found without a lock, as another transaction may hold one for long."""
    return tuple(row[0] for row in await tx.fetch(_OVERDUE, {"limit": limit}))


async def arrange(tx: Transaction, new: NewRun, single: StoredSingleton) -> NewRun | CreatedRun:
    """Prepare the creation of a singleton run, or return the existing run in its place. Raises `SingletonBusy`."""
    holder = await _settle(tx, single.name, await head(tx, single.name))
    if holder is not None and single.policy is SingletonPolicy.REPLACE:
        await _stop_all(tx, single.name, holder, new.id)
        holder = await _settle(tx, single.name, holder)
    if holder is None:
        await _set_head(tx, single.name, new.id)
        return new
    if single.policy is SingletonPolicy.REJECT:
        raise SingletonBusy(busy(new.id, single, holder), run_id=holder)
    if single.policy is SingletonPolicy.ATTACH:
        [row] = await tx.fetch(_RUN, {"run_id": holder})
        return CreatedRun(to_run(row), False, attached=True)
    await _enqueue(tx, new, single, max(tx.now, await _last_place(tx, single.name) + 1), SingletonPolicy.QUEUE)
    return replace(new, held_back=True)


async def line_up(tx: Transaction, children: Sequence[NewRun]) -> None:
    """Append new runs that are held back to their queues, in this order. Their policies are applied afterwards."""
    last: dict[str, int] = {}
    for child in children:
        single = stored_singleton_of(child.options)
        if single is None:
            continue
        if single.name not in last:
            last[single.name] = await _last_place(tx, single.name)
        # Not the time alone: the starts of one turn share it, and the clock may step back between two turns.
        last[single.name] = max(tx.now, last[single.name] + 1)
        await _enqueue(tx, child, single, last[single.name], single.policy)


async def _last_place(tx: Transaction, name: str) -> int:
    [(last,)] = await tx.fetch(_LAST_PLACE, {"name": name})
    return last or 0


async def hold_back_again(tx: Transaction, run_id: str, options: str) -> None:
    """Let a run that was over, and is opened again just now, wait for its turn."""
    single = stored_singleton_of(options)
    if single is None or single.policy is SingletonPolicy.DEBOUNCE:
        return
    before = await head(tx, single.name)
    if before == run_id:
        return
    await tx.execute(_HOLD_BACK, {"run_id": run_id, "never": NEVER})
    # It may have ended while it waited for its turn, and its place is forgotten only when that turn comes.
    await tx.execute(_LEAVE_LINE, {"run_id": run_id})
    row = {"run_id": run_id, "name": single.name, "place": tx.now, "wake_at": 0, "policy": SingletonPolicy.QUEUE.value}
    await tx.execute(_LINE_UP, row)
    await _settle(tx, single.name, before)


async def head(tx: Transaction, name: str) -> str:
    """Lock the row of a name and return its current or last run. Raises `StoreUnavailable`."""
    for _ in range(2):
        if rows := await tx.fetch(_HEAD, {"name": name}):
            return str(rows[0][0])
        await tx.execute(_NEW_HEAD, {"name": name, "now": tx.now})
    if rows := await tx.fetch(_HEAD, {"name": name}):
        return str(rows[0][0])
    raise StoreUnavailable(f"another client let go of the singleton {name!r} at the same moment; try again")


def busy(run_id: str, single: StoredSingleton, holder: str) -> str:
    """Error text for a run that is not started."""
    return (
        f"run {run_id!r} was not started: {holder!r} of the same singleton ({single.name}) is not over yet. Wait for "
        "that one, or say what is to become of it: attach, replace or queue"
    )


async def _settle(tx: Transaction, name: str, before: str) -> str | None:
    """Start the first successor if no run is active, and apply the policies of the others; returns the current run."""
    holder = before if await _goes_on(tx, before) else None
    while True:
        line = await _queued(tx, name)
        if holder is None:
            first = next((one for one in line if one.is_ready), None)
            if first is None:
                return None
            await _begin(tx, name, first)
            holder, line = first.run_id, [one for one in line if one is not first]
        if not await _apply_policies(tx, name, holder, line):
            return holder
        if not await _goes_on(tx, holder):
            holder = None


async def _apply_policies(tx: Transaction, name: str, holder: str, line: Sequence[_QueuedRun]) -> bool:
    """Apply the policies of queued children; True if a run was stopped."""
    for place, one in enumerate(line):
        if one.policy is SingletonPolicy.REPLACE:
            for other in (holder, *(earlier.run_id for earlier in line[:place])):
                await _stop(tx, other, one.run_id)
            await tx.execute(_SEEN_TO, {"run_id": one.run_id})
            return True
        if one.policy in (SingletonPolicy.REJECT, SingletonPolicy.ATTACH) and one.is_ready:
            single = StoredSingleton(name, one.policy)
            await tx.execute(_LEAVE_LINE, {"run_id": one.run_id})
            error = failure(SingletonBusy, busy(one.run_id, single, holder))
            await deliver_all(tx, await finish(tx, one.run_id, Status.FAILED, error, "failed"))
    return False


async def _queued(tx: Transaction, name: str) -> list[_QueuedRun]:
    """Read the first queued runs, without those that are over."""
    while True:
        line = await _page(tx, name, _PAGE)
        over = [one for one in line if one.is_over]
        await tx.execute_many(_LEAVE_LINE, [{"run_id": one.run_id} for one in over])
        if len(over) < _PAGE:
            return [one for one in line if not one.is_over]


async def _page(tx: Transaction, name: str, limit: int) -> list[_QueuedRun]:
    return [_to_queued(row) for row in await tx.fetch(_LINE, {"name": name, "limit": limit})]


def _to_queued(row: Row) -> _QueuedRun:
    run_id, wake_at, policy, status, reason = row
    is_ready = status == Status.WAITING and reason == Reason.LIMIT
    return _QueuedRun(run_id, wake_at, SingletonPolicy(policy), status is None or status in FINISHED, is_ready)


async def _goes_on(tx: Transaction, run_id: str) -> bool:
    if not run_id:
        return False
    if await tx.fetch(_UNFINISHED, {"run_id": run_id}):
        return True
    # In the caller's own transaction a plain read may be of an old snapshot; a read that locks is not.
    return bool(await tx.fetch(_UNFINISHED + "{for_update}", {"run_id": run_id}))


async def _begin(tx: Transaction, name: str, one: _QueuedRun) -> None:
    later = one.wake_at > tx.now
    change = {
        "run_id": one.run_id,
        "status": "waiting" if later else "pending",
        "reason": "timer" if later else None,
        "wake_at": one.wake_at if later else tx.now,
    }
    await tx.execute(_BEGIN, change)
    await tx.execute(_LEAVE_LINE, {"run_id": one.run_id})
    await _set_head(tx, name, one.run_id)
    tx.note(one.run_id, "admitted", to_json({"singleton": name}))
    tx.notify(Change.READY)


async def _set_head(tx: Transaction, name: str, run_id: str) -> None:
    await tx.execute(_SET_HEAD, {"name": name, "run_id": run_id, "now": tx.now})


async def _stop_all(tx: Transaction, name: str, holder: str, successor: str) -> None:
    """Cancel the current run and all that wait."""
    for one in await _page(tx, name, 1_000_000_000):
        if not one.is_over:
            await _stop(tx, one.run_id, successor)
    await _stop(tx, holder, successor)


async def _stop(tx: Transaction, run_id: str, successor: str) -> None:
    await cancel(tx, run_id, f"replaced by run {successor!r}", f"replaced:{successor}")


async def _enqueue(tx: Transaction, new: NewRun, single: StoredSingleton, place: int, policy: SingletonPolicy) -> None:
    row = {
        "run_id": new.id,
        "name": single.name,
        "place": place,
        "wake_at": new.wake_at,
        "policy": policy.value,
    }
    await tx.execute(_LINE_UP, row)


#: So many requests are remembered, so that one whose answer was lost may be repeated although others came in between.
_REMEMBERED = 7

_PUT_OFF_HEAD = """
SELECT run_id, write_id, since
FROM perdure_singletons
WHERE name = :name
"""

_SET_PUT_OFF_HEAD = """
UPDATE perdure_singletons
SET run_id = :run_id, write_id = :write_id, since = :since
WHERE name = :name
"""

_LOCKED_RUN = f"""
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


async def debounce(tx: Transaction, new: NewRun, single: StoredSingleton) -> NewRun | CreatedRun:
    """The run that is put off already, with the new input; or how to create one."""
    await head(tx, single.name)
    [(run_id, known, since)] = await tx.fetch(_PUT_OFF_HEAD, {"name": single.name})
    there = await _locked(tx, run_id) if run_id else None
    requests = known.split(",")
    if there is not None and new.write_id in requests:
        return CreatedRun(there, False, attached=True)
    if there is None or not _is_put_off(there, tx.now):
        row = {"name": single.name, "run_id": new.id, "write_id": new.write_id, "since": tx.now}
        await tx.execute(_SET_PUT_OFF_HEAD, row)
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
    await set_first_attributes(tx, [replace(new, id=there.id)])
    remembered = ",".join([new.write_id, *requests][:_REMEMBERED])
    await tx.execute(_SET_PUT_OFF_HEAD, {"name": single.name, "run_id": run_id, "write_id": remembered, "since": since})
    tx.note(there.id, "debounce", f'{{"until":{changed.wake_at}}}')
    tx.notify(Change.READY)
    return CreatedRun(changed, False, attached=True)


async def _locked(tx: Transaction, run_id: str) -> Run | None:
    rows = await tx.fetch(_LOCKED_RUN, {"run_id": run_id})
    return to_run(rows[0]) if rows else None


def _is_put_off(run: Run, now: int) -> bool:
    waits = run.status is Status.WAITING and run.reason is Reason.TIMER
    return waits and run.started_at == 0 and run.wake_at > now


def _changed(run: Run, input: str, wake_at: int, now: int) -> Run:
    if wake_at > now:
        return replace(run, input=input, wake_at=wake_at)
    return replace(run, input=input, wake_at=now, status=Status.PENDING, reason=None)
