"""Permanent deletion of finished runs, a bounded part at a time, each part one transaction.

A family is deleted together. A run goes once every run below it is finished, and a child not before its parent has
completed, or goes too: an unfinished or reopened parent may ask for it again, and a later run under the parent's id
would find the children of the first. So the youngest go first, and the parents of deleted runs are marked as deleted
meanwhile, so that none is reopened.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from perdure.core.model.run import FINISHED, Status
from perdure.core.policy.retention import PruneRequest, PruneResult
from perdure.core.routing import matches
from perdure.errors import InvalidCursor, StoreUnavailable
from perdure.store.sql.dialect import Params, Row, Transaction, placeholders
from perdure.store.sql.rows import to_json
from perdure.store.sql.runs.terminate import terminate

_MEMBER = "id, parent_id, status, type, finished_at, deadline, deleted_at"

#: In the order of an index that every database has, if only by the name of deadlines.
_ENDED = f"""
SELECT {_MEMBER}
FROM perdure_runs
WHERE finished_at > 0 AND finished_at >= :first AND finished_at < :before
  AND (finished_at, deadline, id) > (:first, :second, :third)
ORDER BY finished_at, deadline, id
LIMIT :limit
"""

_DELETED = f"""
SELECT {_MEMBER}
FROM perdure_runs
WHERE deleted_at > 0 AND deleted_at >= :first AND deleted_at < :before AND (deleted_at, id) > (:first, :third)
ORDER BY deleted_at, id
LIMIT :limit
"""

_NAMED = f"SELECT {_MEMBER} FROM perdure_runs WHERE id IN ({{chosen}}) ORDER BY id"
_LOCKED = f"{_NAMED} {{for_update}}"
_CHILDREN = f"SELECT {_MEMBER} FROM perdure_runs WHERE parent_id IN ({{chosen}}) ORDER BY id LIMIT :limit"
_HIDE = "UPDATE perdure_runs SET deleted_at = :now WHERE id IN ({chosen})"

#: Whatever belongs to a run; the run itself goes last.
_TABLES = (
    "history", "messages", "outputs", "topics", "waiters", "observers", "attributes", "events", "lines", "permits",
)  # fmt: skip

_START = (0, -1, "")
#: How many times as many runs as are looked at may go with them in one batch.
_BELOW = 4
#: How many runs are named in one statement.
_CHUNK = 100


class _Member(Struct, frozen=True):
    """A run, as far as it matters here."""

    id: str
    parent_id: str | None
    status: str
    type: str
    finished_at: int
    deadline: int
    deleted_at: int

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED


async def prune(tx: Transaction, prune: PruneRequest, limit: int, cursor: str | None) -> PruneResult:
    """Delete what is meant and not needed any more: of `limit` runs, and of those below them a few times as many."""
    seen = await _look(tx, prune, limit, cursor)
    if prune.deleted and prune.ids is None:
        await _end_hidden(tx, seen, prune)
    meant = [one for one in seen if _is_meant(one, prune)]
    family = await _family(tx, await _free(tx, meant), _BELOW * limit)
    gone = await _delete(tx, family)
    if gone and family.is_too_large:
        # The same again: the next batch takes the next ones from below.
        return PruneResult(runs=gone, spared=0, cursor=cursor or _encode(_START))
    more = len(seen) == limit and prune.ids is None
    spared = sum(one.id not in family.going for one in meant)
    return PruneResult(runs=gone, spared=spared, cursor=_encode(_place(seen[-1], prune)) if more else None)


async def _look(tx: Transaction, prune: PruneRequest, limit: int, cursor: str | None) -> list[_Member]:
    if prune.ids is not None:
        return await _some(tx, _NAMED, prune.ids)
    first, second, third = _START if cursor is None else _decode(cursor)
    params = {"first": first, "second": second, "third": third, "before": prune.before, "limit": limit}
    return _members(await tx.fetch(_DELETED if prune.deleted else _ENDED, params))


async def _end_hidden(tx: Transaction, seen: Sequence[_Member], prune: PruneRequest) -> None:
    """Terminate the deleted runs that are not over and have passed their retention; the next pruning takes them."""
    for one in sorted(seen, key=lambda one: one.id):
        if not one.is_finished and _is_of_type(one, prune):
            await terminate(tx, one.id, "it was deleted", f" prune:{one.deleted_at}", undo=False)


def _is_of_type(run: _Member, prune: PruneRequest) -> bool:
    return prune.types is None or any(matches(pattern, run.type) for pattern in prune.types)


def _is_meant(run: _Member, prune: PruneRequest) -> bool:
    since = run.deleted_at if prune.deleted else run.finished_at
    return (
        run.is_finished
        and 0 < since < prune.before
        and (prune.statuses is None or Status(run.status) in prune.statuses)
        and _is_of_type(run, prune)
    )


async def _free(tx: Transaction, runs: Sequence[_Member]) -> list[_Member]:
    """Runs whose parent has completed, is deleted, or is among them."""
    chosen = {run.id for run in runs}
    parents = {run.parent_id for run in runs if run.parent_id is not None} - chosen
    needy = {one.id for one in await _some(tx, _NAMED, sorted(parents)) if one.status != Status.COMPLETED}
    while True:
        free = [run for run in runs if run.parent_id not in needy]
        if len(free) == len(runs):
            return free
        # The children of one that stays may be needed by it.
        needy |= {run.id for run in runs if run.parent_id in needy and run.status != Status.COMPLETED}
        runs = free


class _Family(Struct, frozen=True):
    """Runs and everybody below them."""

    #: What can be deleted now, and what stays until that is done.
    going: dict[str, _Member]
    above: dict[str, _Member]
    #: It does not fit into one batch.
    is_too_large: bool


async def _family(tx: Transaction, roots: Sequence[_Member], budget: int) -> _Family:
    """Runs among these and their descendants that can be deleted."""
    known, depth = (
        {one.id: one for one in roots},
        {one.id: 0 for one in roots},
    )  # equivalent: constant: compared only
    spared: set[str] = set()
    frontier, is_too_large = [one.id for one in roots], False
    while frontier:
        below = await _some(tx, _CHILDREN, frontier, budget + 1)
        is_too_large = is_too_large or len(below) > budget or len(known.keys() | {one.id for one in below}) > budget
        for one in below[:budget]:
            if one.is_finished:
                known[one.id], depth[one.id] = one, max(depth[one.parent_id or ""] + 1, depth.get(one.id, 0))
            else:
                spared |= _line(one, known)
        frontier = [one.id for one in below[:budget] if one.is_finished]
    asked_for, free = {one.id for one in roots}, dict[str, _Member]()
    for run_id in sorted(known.keys() - spared, key=depth.__getitem__):
        above = known.get(known[run_id].parent_id or "")
        on_its_own = run_id in asked_for and (above is None or above.status == Status.COMPLETED)
        if on_its_own or (above is not None and above.id in free):
            free[run_id] = known[run_id]
    if not is_too_large or not free:
        return _Family(free, {}, False)
    lowest = max(depth[run_id] for run_id in free)
    youngest = [run_id for run_id in free if depth[run_id] == lowest][:budget]
    # A run that was not examined may be a child of one of them.
    parents = {one.parent_id for one in await _some(tx, _CHILDREN, youngest, budget + 1)}
    going = {run_id: free[run_id] for run_id in youngest if run_id not in parents}
    return _Family(going, {run_id: one for run_id, one in free.items() if run_id not in going}, True)


def _line(run: _Member, known: dict[str, _Member]) -> set[str]:
    """The ids of those above a run."""
    line: set[str] = set()
    above = known.get(run.parent_id or "")
    while above is not None:
        line.add(above.id)
        above = known.get(above.parent_id or "")
    return line


async def _delete(tx: Transaction, family: _Family) -> int:
    members = {**family.above, **family.going}
    held = {one.id: one for one in await _some(tx, _LOCKED, sorted(members))}
    if any(one.finished_at != members[run_id].finished_at for run_id, one in held.items()):
        raise StoreUnavailable("a run that was to be deleted has been opened again at the same moment; try again")
    hidden = [run_id for run_id in sorted(family.above) if run_id in held and _may_be_opened(held[run_id])]
    for chosen, params in _lists(hidden):
        await tx.execute(_HIDE.replace("{chosen}", chosen), {**params, "now": tx.now})
    for run_id in hidden:
        tx.note(run_id, "deleted", to_json({"reason": "it is being pruned"}))
    going = sorted(family.going.keys() & held.keys())
    for chosen, params in _lists(going):
        for table in _TABLES:
            await tx.execute(f"DELETE FROM perdure_{table} WHERE run_id IN ({chosen})", params)
        await tx.execute(f"DELETE FROM perdure_runs WHERE id IN ({chosen})", params)
    return len(going)


def _may_be_opened(run: _Member) -> bool:
    return not run.deleted_at and run.status != Status.COMPLETED


def _lists(run_ids: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    return (placeholders("id", run_ids[start : start + _CHUNK]) for start in range(0, len(run_ids), _CHUNK))


async def _some(tx: Transaction, sql: str, run_ids: Sequence[str], limit: int | None = None) -> list[_Member]:
    found: list[_Member] = []
    for chosen, params in _lists(run_ids):
        left: Params = {} if limit is None else {"limit": max(0, limit - len(found))}
        found += _members(await tx.fetch(sql.replace("{chosen}", chosen), {**params, **left}))
    return found


def _members(rows: Sequence[Row]) -> list[_Member]:
    return [_Member(*row) for row in rows]


def _place(run: _Member, prune: PruneRequest) -> tuple[int, int, str]:
    return (run.deleted_at, 0, run.id) if prune.deleted else (run.finished_at, run.deadline, run.id)


def _encode(place: tuple[int, int, str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _decode(cursor: str) -> tuple[int, int, str]:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(text, type=tuple[int, int, str])
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise InvalidCursor(f"{cursor!r} is not a cursor of pruning; pass the one of the batch before") from error
