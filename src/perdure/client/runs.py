"""Runs from outside: listing, explaining, steering, deleting and pruning them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

from msgspec import Struct

from perdure.client import reopen
from perdure.client.inspect import explain, is_unserved, served_elsewhere
from perdure.client.reopen import RetryOptions, standing
from perdure.client.session import Session
from perdure.client.start import Moment
from perdure.core.ids import check_id
from perdure.core.model.dead_letter import DeleteOutcome, dead_letter_reason
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Run, RunFilter, RunPage, Status
from perdure.core.model.run_orders import OrderOutcome, RunOrder
from perdure.core.option_checks import check_flag, check_list, check_page, check_text
from perdure.core.policy.retention import PruneRequest
from perdure.core.policy.singleton import stored_singleton_of
from perdure.core.printed_text import brief
from perdure.core.routing import check_patterns
from perdure.core.time.duration import FAR, Duration, instant, microseconds
from perdure.errors import RunFinished, RunNotFound, StoreError, UsageError
from perdure.store.contract import Store

#: Runs examined for deletion in one transaction.
CHUNK = 100


class PruneReport(Struct, frozen=True, kw_only=True):
    """Numbers of runs that were deleted for good, and left."""

    #: Runs that are gone, their descendants included.
    runs: int
    #: Runs that were left because a parent or a child of theirs is not over.
    spared: int


class Runs:
    """Runs of an engine's database: `engine.runs`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self,
        *,
        status: Status | Sequence[Status] | None = None,
        type: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        created_after: datetime.datetime | None = None,
        created_before: datetime.datetime | None = None,
        deleted: bool | None = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> RunPage:
        """List runs, newest first, a page at a time. `deleted=True` lists deleted runs only, None those too."""
        check_page(limit)
        statuses = None if status is None else _statuses(status)
        filter = RunFilter(
            status=statuses,
            type=None if type is None else check_text("type", type),
            queue=None if queue is None else check_text("queue", queue),
            parent_id=None if parent is None else check_text("parent", parent),
            created_after=None if created_after is None else instant(created_after, 0),
            created_before=None if created_before is None else instant(created_before, 0),
            deleted=None if deleted is None else check_flag("deleted", deleted),
        )
        return await (await self._session.opened()).list(filter, limit, cursor)

    async def why(self, run_id: str) -> str:
        """Say in a sentence why a run is where it is."""
        run = await self._session.find(run_id)
        return await explain(await self._session.opened(), run)

    async def unserved(self, runs: Sequence[Run]) -> set[str]:
        """Return the ids of runs that are ready, but whose type or queue no live worker serves."""
        for run in check_list("runs", runs, "page.runs"):
            if not isinstance(run, Run):
                raise UsageError(f"runs has {brief(run)}: give runs, such as those of `runs.list`")
        store = await self._session.opened()
        workers, now = await store.workers(), await store.now()
        elsewhere = served_elsewhere(await store.types())
        return {run.id for run in runs if is_unserved(run, workers, elsewhere, now)}

    async def terminate(self, run_id: str, reason: str = "", *, undo: bool = False) -> bool:
        """End a run now, in whatever status it is, without its code; False if it had finished already.

        It fails with `RunTerminated`. A worker that holds it stops its steps. Children are cancelled, unless they
        outlive their parent. With `undo`, its code is ended and the completed steps that have an undo are undone first,
        by a worker; steps under way that have one are awaited. Raises `RunNotFound`, and `UsageError` if a blocked run
        is to undo its steps.
        """
        session = self._session
        session.codec.encode(reason, "the reason of a termination")
        check_text("reason", reason)
        check_flag("undo", undo)
        store, key = await session.opened(), session.system.entropy(16).hex()
        outcome = await store.terminate(check_id(run_id), reason, key, session.actor, undo=undo)
        if outcome is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to terminate")
        if outcome is OrderOutcome.REFUSED:
            raise UsageError(
                f"run {run_id!r} is blocked, so its undos cannot be found; let it go on by retry, or terminate it "
                f"without its undos. {await self.why(run_id)}"
            )
        if outcome is OrderOutcome.DONE and not undo:
            await self._let_others_in(store, run_id)
        return outcome is not OrderOutcome.FINISHED

    async def _let_others_in(self, store: Store, run_id: str) -> None:
        """Start what waited for a run that was ended: the next one of its singleton, runs at the limits it had passed.

        An error leaves that to the next sweep.
        """
        run = await self._session.find(run_id)
        single = stored_singleton_of(run.options)
        with suppress(StoreError):
            if single is not None:
                await store.succeed([single.name], self._session.actor)
            await store.recheck_gates(self._session.actor)

    async def pause(self, run_id: str, reason: str = "") -> bool:
        """Pause a run once the steps that are under way have ended; False if it is paused already or has finished.

        Messages and timers are kept for later. A cancellation, and its deadline, still end the run.
        """
        self._session.codec.encode(reason, "the reason of a pause")
        check_text("reason", reason)
        return await self._order(RecordKind.PAUSE, run_id, reason) is OrderOutcome.DONE

    async def resume(self, run_id: str) -> bool:
        """End the pause of a run; False if it is not paused."""
        return await self._order(RecordKind.RESUME, run_id) is OrderOutcome.DONE

    async def evict(self, run_id: str) -> bool:
        """Make the worker that holds a run give it back, for another to take; False if no worker held it.

        Steps that are under way may end first, for as long as that worker's grace lasts.
        """
        return await self._order(RecordKind.EVICT, run_id) is OrderOutcome.DONE

    async def wake(self, run_id: str, at: Moment | None = None) -> None:
        """End the sleep of a run at another time, by default now; or begin a run that was to begin later.

        Raises `RunNotFound`, `RunFinished`, and `UsageError` if it is not asleep.
        """
        now = (await self._session.opened()).clock()
        obeyed = await self._order(RecordKind.WAKE, run_id, at=now if at is None else instant(at, now))
        if obeyed is OrderOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and does not sleep")
        if obeyed is OrderOutcome.REFUSED:
            raise UsageError(
                f"run {run_id!r} is not asleep, so there is nothing to wake it from. {await self.why(run_id)}"
            )

    async def retry(self, run_id: str, **changes: Unpack[RetryOptions]) -> int:
        """Let a run go again, as its status allows, and return its generation.

        A failed or cancelled workflow goes on where it failed: successful steps stay, failed ones are done anew, as the
        next generation. A failed activity begins anew, with all its attempts. A blocked run is unblocked. A run that
        waits for its next attempt gets all its attempts anew, at once. `deadline`, `queue`, `priority` and the like
        change a run that ended or is a dead letter; `input` is for an activity, or for a run without a history.

        Raises `RunFinished` if it completed, and `UsageError` if there is nothing to retry.
        """
        return await reopen.retry(self._session, run_id, changes)

    async def delete(self, run_id: str, reason: str = "", *, purge: bool = False) -> bool:
        """Hide a finished run from listings; `undelete` brings it back. False if it was hidden already.

        A dead letter that is blocked is cancelled by that. With `purge`, the run is deleted for good, with its history
        and its descendants, and its id is free again. Raises `RunNotFound`, and `UsageError` if it has not finished:
        cancel it first.
        """
        session = self._session
        session.codec.encode(reason, "the reason of a deletion")
        check_text("reason", reason)
        check_flag("purge", purge)
        store = await session.opened()
        answer = await store.delete(check_id(run_id), reason, session.actor)
        if answer is DeleteOutcome.REFUSED:
            run = await session.find(run_id)
            if dead_letter_reason(run.status, run.reason) is None:
                raise UsageError(f"run {run_id!r} is {standing(run)}; cancel it, and delete it when it has ended")
            answer = await store.delete(run_id, reason, session.actor, discard=True)
        if answer is DeleteOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to delete")
        if not purge:
            return answer is DeleteOutcome.DONE
        gone = await prune(session, PruneRequest(before=FAR, deleted=True, ids=(run_id,)))
        if gone.spared:
            raise UsageError(f"run {run_id!r} is hidden, but not purged: a parent or a child of it is not over")
        return gone.runs > 0

    async def undelete(self, run_id: str) -> bool:
        """Bring a deleted run back; False if it was not deleted. Raises `RunNotFound`."""
        answer = await (await self._session.opened()).undelete(check_id(run_id), self._session.actor)
        if answer is DeleteOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to bring back")
        return answer is DeleteOutcome.DONE

    async def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
        deleted: bool = False,
    ) -> PruneReport:
        """Delete finished runs for good, with all that belongs to them, that ended longer ago than that.

        Their ids and keys are free again. With `deleted`, only runs that were deleted, and longer ago than that.
        Families go together: a run stays while a descendant is unfinished, or while its parent exists and has not
        completed. The deletion takes many small transactions, not one.
        """
        statuses = None if status is None else _finished(status)
        now = (await self._session.opened()).clock()
        what = PruneRequest(
            before=now - microseconds(older_than),
            statuses=statuses,
            types=check_patterns(types),
            deleted=check_flag("deleted", deleted),
        )
        return await prune(self._session, what)

    async def _order(self, kind: RecordKind, run_id: str, reason: str = "", at: int = 0) -> OrderOutcome:
        key = self._session.system.entropy(16).hex()
        order = RunOrder(run_id=check_id(run_id), kind=kind, key=key, reason=reason, at=at)
        obeyed = await (await self._session.opened()).control(order, self._session.actor)
        if obeyed is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to {kind}")
        return obeyed


async def prune(session: Session, what: PruneRequest) -> PruneReport:
    """Delete runs for good, in small transactions."""
    store, cursor = await session.opened(), None
    runs = spared = 0
    while True:
        batch = await store.prune(what, CHUNK, cursor, session.actor)
        runs, spared, cursor = runs + batch.runs, spared + batch.spared, batch.cursor
        if cursor is None:
            return PruneReport(runs=runs, spared=spared)


def _statuses(status: object) -> tuple[Status, ...]:
    names = (status,) if isinstance(status, str) else check_list("status", status, "['failed']")
    for name in names:
        if not isinstance(name, str) or name not in tuple(Status):
            raise UsageError(f"{brief(name)} is not a status; the statuses are {', '.join(Status)}")
    return tuple(map(Status, names))


def _finished(status: object) -> tuple[Status, ...]:
    statuses = _statuses(status)
    if unfinished := [one for one in statuses if not one.finished]:
        raise UsageError(f"runs that are {unfinished[0]} are not over, so they cannot be pruned; cancel them first")
    return statuses
