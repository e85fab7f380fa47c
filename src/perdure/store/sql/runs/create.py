"""Creating runs and setting blocked ones going again.

A run is created once per id and once per idempotency key. The write id of a request tells its repetition from a second
request, so that a lost answer can be asked for again.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.model.run import CreatedRun, NewRun, Reason, Run, Status
from perdure.core.policy.singleton import SingletonPolicy, stored_singleton_of
from perdure.errors import StoreUnavailable
from perdure.store.contract import Change
from perdure.store.sql.audit import created_event
from perdure.store.sql.dialect import Params, Transaction, placeholders
from perdure.store.sql.rows import RUN, to_run
from perdure.store.sql.runs.attributes import set_first_attributes
from perdure.store.sql.singletons import arrange, debounce, head

#: How many parameters a list in a statement may have.
CHUNK = 400

INSERT = """
INSERT INTO perdure_runs
  (id, type, input, queue, priority, status, reason, wake_at, deadline, created_at, idempotency_key, parent_id,
   parent_location, write_id, close_by, max_attempts, options)
VALUES
  (:id, :type, :input, :queue, :priority, :status, :reason, :wake_at, :deadline, :now, :idempotency_key, :parent_id,
   :parent_location, :write_id, :close_by, :max_attempts, :options)
{or_ignore}
"""


async def create(tx: Transaction, runs: Sequence[NewRun], *, all_or_none: bool = False) -> list[CreatedRun]:
    """Create what is not there yet; report what is there for the rest."""
    await _lock_heads(tx, runs)
    there = await _taken(tx, runs)
    if all_or_none and (taken := [found for new in runs if (found := there.of(new)) and not found.created]):
        return taken
    fresh: dict[str, NewRun] = {}
    answers: list[CreatedRun] = []
    for new in runs:
        found = there.of(new)
        if found is None:
            found = await _arranged(tx, new) if is_single(new) else CreatedRun(as_run(new, tx.now), True)
            if not found.attached:
                there.add(found.run, new.write_id)
            if not is_single(new):
                fresh[new.id] = new
        answers.append(found)
    await _insert(tx, list(fresh.values()))
    return answers


def is_single(new: NewRun) -> bool:
    """True if creating the run has to consider other runs first."""
    return new.options != "{}" and stored_singleton_of(new.options) is not None


async def _lock_heads(tx: Transaction, runs: Sequence[NewRun]) -> None:
    """Lock the heads of all singletons in one order.

    So that two transactions that start several never wait for each other, and a request that arrives twice at once
    finds its own result.
    """
    names = {
        single.name for new in runs if new.options != "{}" and (single := stored_singleton_of(new.options)) is not None
    }
    for name in sorted(names):
        await head(tx, name)


async def _arranged(tx: Transaction, new: NewRun) -> CreatedRun:
    """Create a run of which there may be only one, or find the one that is there in its place."""
    single = stored_singleton_of(new.options)
    assert single is not None
    placed = await (debounce if single.policy is SingletonPolicy.DEBOUNCE else arrange)(tx, new, single)
    if isinstance(placed, CreatedRun):
        return placed
    # At once: the next of the same request may be about the same name.
    await _insert(tx, [placed])
    return CreatedRun(as_run(placed, tx.now), True)


def params_of(new: NewRun, now: int) -> Params:
    """The parameters of `INSERT`."""
    status, reason, wake_at = new.initial_state(now)
    return {
        "id": new.id,
        "type": new.type,
        "input": new.input,
        "queue": new.queue,
        "priority": new.priority,
        "status": status,
        "reason": reason,
        "wake_at": wake_at,
        "deadline": new.deadline,
        "now": now,
        "idempotency_key": new.idempotency_key,
        "parent_id": new.parent_id,
        "parent_location": new.parent_location,
        "write_id": new.write_id,
        "close_by": new.close_by,
        "max_attempts": new.max_attempts,
        "options": new.options,
    }


async def _insert(tx: Transaction, runs: Sequence[NewRun]) -> None:
    if not runs:
        return
    changed = await tx.execute_many(INSERT, [params_of(new, tx.now) for new in runs])
    if changed != len(runs):
        raise StoreUnavailable("another client created a run of the same id or key at the same moment; try again")
    if any(new.attributes for new in runs):
        await set_first_attributes(tx, runs)
    if tx.notes:
        for new in runs:
            tx.note(new.id, *created_event(new))
    tx.notify(Change.READY)


class _There:
    """Runs that are there, by id and by idempotency key."""

    def __init__(self) -> None:
        self._by_id: dict[str, tuple[Run, str]] = {}
        self._by_key: dict[str | None, tuple[Run, str]] = {}

    def add(self, run: Run, write_id: str) -> None:
        self._by_id[run.id] = run, write_id
        if run.idempotency_key is not None:
            self._by_key[run.idempotency_key] = run, write_id

    def of(self, new: NewRun) -> CreatedRun | None:
        """The run that a request is answered with: its own, if it is a repetition."""
        found = self._by_id.get(new.id) or self._by_key.get(new.idempotency_key)
        return None if found is None else CreatedRun(found[0], found[1] == new.write_id)


async def _taken(tx: Transaction, runs: Sequence[NewRun]) -> _There:
    there = _There()
    keys = [new.idempotency_key for new in runs if new.idempotency_key is not None]
    for column, names in (("id", [new.id for new in runs]), ("idempotency_key", keys)):
        for start in range(0, len(names), CHUNK):
            chosen, params = placeholders("name", names[start : start + CHUNK])
            sql = f"SELECT write_id, {RUN} FROM perdure_runs WHERE {column} IN ({chosen}) {{for_update}}"
            for write_id, *row in await tx.fetch(sql, params):
                there.add(to_run(tuple(row)), write_id)
    return there


def as_run(new: NewRun, now: int) -> Run:
    """A run as it is right after `INSERT`."""
    status, reason, wake_at = new.initial_state(now)
    return Run(
        id=new.id,
        type=new.type,
        queue=new.queue,
        priority=new.priority,
        status=Status(status),
        reason=None if reason is None else Reason(reason),
        input=new.input,
        output=None,
        error=None,
        attempt=1,
        generation=1,
        token=0,
        nonce="",
        worker=None,
        wake_at=wake_at,
        deadline=new.deadline,
        created_at=now,
        started_at=0,
        finished_at=0,
        seed="",
        inbox_seq=0,
        inbox_read=0,
        claims=0,
        parent_id=new.parent_id,
        parent_location=new.parent_location,
        idempotency_key=new.idempotency_key,
        close_by=new.close_by,
        max_attempts=new.max_attempts,
        options=new.options,
    )
