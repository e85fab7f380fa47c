"""Runs from outside: listing, explaining, steering, deleting and pruning them."""

from __future__ import annotations

import builtins
import datetime
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import IO, TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from perdure.client.runs import attempt_reports, messages, reopen
from perdure.client.runs.inspect import explain
from perdure.client.runs.reopen import RetryOptions, status_text
from perdure.client.runs.start import Moment
from perdure.client.session import Session
from perdure.client.workers import EngineWorker
from perdure.core.codec.failure import Failure
from perdure.core.codec.snapshot import snapshot
from perdure.core.ids import check_id
from perdure.core.model.attributes import make_attribute, make_conditions
from perdure.core.model.dead_letter import DeleteOutcome, dead_letter_reason
from perdure.core.model.histories import ExportReport, HistoriesReport
from perdure.core.model.record import RecordKind
from perdure.core.model.reports import BulkPreview, BulkReport
from perdure.core.model.run import MOST_COUNTED, CountBy, Run, RunFilter, RunGroup, RunPage, Status
from perdure.core.model.run_orders import OrderOutcome, RunOrder
from perdure.core.model.worker_info import is_unserved
from perdure.core.option_checks import (
    check_flag,
    check_list,
    check_page,
    check_priority,
    check_text,
    check_whole,
    no_option,
)
from perdure.core.policy.retention import PruneRequest
from perdure.core.policy.singleton import stored_singleton_of
from perdure.core.printed_text import brief
from perdure.core.redaction import Redaction
from perdure.core.routing import check_patterns, served_elsewhere
from perdure.core.time.duration import NEVER, Duration, instant, microseconds
from perdure.errors import BadArguments, RunFinished, RunNotFound, StoreError, UsageError
from perdure.store.contract import Store
from perdure.store.sql.listing import is_backwards
from perdure.worker import WorkerOptions
from perdure.workflow.channels import Channel

if TYPE_CHECKING:
    from perdure.client.runs.bulk import BulkJob

T = TypeVar("T")

#: Runs examined for deletion in one transaction.
CHUNK = 100


class PruneReport(Struct, frozen=True, kw_only=True):
    """Numbers of runs that were deleted for good, and left."""

    #: Runs that are gone, their descendants included.
    runs: int
    #: Runs that were left because a parent or a child of theirs is not over.
    spared: int


class BulkOptions(TypedDict, total=False):
    """Options of a bulk action."""

    #: Stored with the runs, or in the audit trail.
    reason: str
    #: With `delete`: for good.
    purge: bool
    #: With `send`: name and value of the message.
    message: str
    value: object


class RunFilters(TypedDict, total=False):
    """Filters of `runs.list`; a run has to fulfil all that are given, and None is no filter."""

    status: Status | Sequence[Status] | None
    type: str | None
    queue: str | None
    #: Children of this run.
    parent: str | None
    #: Runs that this schedule started.
    schedule: str | None
    #: Runs whose ids begin with this.
    id_prefix: str | None
    #: Only runs without a parent.
    roots: bool
    #: Part of the message or class of the error, of any case; without `status`, of runs that failed, were cancelled or
    #: are blocked.
    error: str | None
    #: Runs that this build began.
    build: str | None
    #: By name a value, or an operator (`=`, `<`, `<=`, `>`, `>=`, `in`, `prefix`) and a value, such as
    #: `{"customer": "acme", "amount": (">=", 100)}`; or a list of such pairs.
    attributes: Mapping[str, object] | None
    created_after: datetime.datetime | None
    created_before: datetime.datetime | None
    #: Only runs that are ready, but whose type or queue no live worker serves.
    unserved: bool
    #: Only deleted runs (True), none of them (False, the default), or both (None).
    deleted: bool | None


def make_filter(filters: RunFilters) -> RunFilter:
    """Check the filters of a listing. Raises `UsageError`."""
    if unknown := filters.keys() - RunFilters.__annotations__.keys():
        raise BadArguments(no_option("runs.list", unknown, RunFilters.__annotations__))
    status, error = filters.get("status"), _text_of(filters, "error")
    after, before, deleted = filters.get("created_after"), filters.get("created_before"), filters.get("deleted", False)
    if error == "":
        raise UsageError("error='': give a part of the error's message or class")
    return RunFilter(
        status=None if status is None else _statuses(status),
        type=_text_of(filters, "type"),
        queue=_text_of(filters, "queue"),
        parent_id=_text_of(filters, "parent"),
        schedule=_text_of(filters, "schedule"),
        id_prefix=_text_of(filters, "id_prefix") or None,
        roots=check_flag("roots", filters.get("roots", False)),
        error=error,
        build=_text_of(filters, "build"),
        attributes=make_conditions(filters.get("attributes")),
        created_after=None if after is None else instant(after, 0),
        created_before=None if before is None else instant(before, 0),
        deleted=None if deleted is None else check_flag("deleted", deleted),
        unserved=check_flag("unserved", filters.get("unserved", False)),
    )


def _text_of(filters: RunFilters, name: str) -> str | None:
    value = filters.get(name)
    return None if value is None else check_text(name, value)


def check_runs(runs: object) -> tuple[Run, ...]:
    """Check a list of runs. Raises `UsageError`."""
    found = check_list("runs", runs, "page.runs")
    for run in found:
        if not isinstance(run, Run):
            raise UsageError(f"runs has {brief(run)}: give runs, such as those of `runs.list`")
    return found


class Runs:
    """Runs of an engine's database: `engine.runs`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self,
        *,
        order: Literal["newest", "oldest"] = "newest",
        limit: int = 100,
        cursor: str | None = None,
        scan: int | None = None,
        **filter: Unpack[RunFilters],
    ) -> RunPage:
        """List runs that fulfil all filters, newest first or oldest first, a page at a time.

        Pass `page.cursor` for the next page, `page.previous` for the one before. `scan` bounds the number of runs that
        are examined: the page may then have fewer runs than `limit`, and the listing goes on while there is a cursor.
        Without it, the listing goes on by itself until the page is full.
        """
        check_page(limit)
        if order not in ("newest", "oldest"):
            raise UsageError(f"order={brief(order)}: give 'newest' or 'oldest', which of the runs comes first")
        wanted = replace(make_filter(filter), oldest=order == "oldest")
        store = await self._session.connect()
        if scan is not None:
            return await store.list(wanted, limit, cursor, check_whole("scan", scan, 1))
        page = await store.list(wanted, limit, cursor)
        backwards = is_backwards(cursor)
        while len(page.runs) < limit:
            onwards = page.previous if backwards else page.cursor
            if onwards is None:
                break
            more = await store.list(wanted, limit - len(page.runs), onwards)
            if backwards:
                page = RunPage(more.runs + page.runs, page.cursor, more.previous)
            else:
                page = RunPage(page.runs + more.runs, more.cursor, page.previous)
        return page

    async def count(self, **filter: Unpack[RunFilters]) -> RunGroup:
        """Count the runs that fulfil all filters: exactly up to 10,000, and beyond `str(count)` is "10,000+"."""
        [group] = await (await self._session.connect()).count(make_filter(filter), CountBy(), MOST_COUNTED)
        return group

    async def count_by(self, by: str, **filter: Unpack[RunFilters]) -> builtins.list[RunGroup]:
        """Count the runs that fulfil all filters, in groups, the largest first.

        `by` is `status`, `type`, `queue`, `build` or `attribute:NAME`. The counts are exact while the filters
        leave at most 10,000 runs; by status, at most 10,000 of that status.
        """
        by = check_text("by", by)
        if by.startswith("attribute:"):
            wanted = CountBy(attribute=make_attribute(by.removeprefix("attribute:"), "").name)
        elif by in ("status", "type", "queue", "build"):
            wanted = CountBy(column=by)
        else:
            raise UsageError(f"by={brief(by)}: give 'status', 'type', 'queue', 'build' or 'attribute:NAME'")
        return await (await self._session.connect()).count(make_filter(filter), wanted, MOST_COUNTED)

    @overload
    async def broadcast(self, name: Channel[T], value: T, *, correlation: str, key: str | None = None) -> int: ...

    @overload
    async def broadcast(self, name: str, value: object = None, *, correlation: str, key: str | None = None) -> int: ...

    def broadcast(
        self, name: Channel[Any] | str, value: object = None, *, correlation: str, key: str | None = None
    ) -> Coroutine[Any, Any, int]:
        """Send a message to every run that listens for that name and correlation value; their number.

        A run listens from its first `ctx.receive(name, correlation=...)` until it ends. Runs are reached a hundred at a
        time. With a `key`, an interrupted broadcast may be repeated: no run gets it twice.
        """
        return messages.broadcast(self._session, name, snapshot(value), correlation, key)

    async def complete(self, token: str, value: object = None) -> None:
        """Complete an activity that has returned `Pending`, with its result.

        `token`: `activity_info().token` of its attempt. Once this returns, the activity has completed. Repeating it
        with the same result changes nothing. Where this engine has the activity's code, the result must fit the
        declared type. Raises `AttemptNotFound`, `AttemptOver`, `EncodeError`, `DecodeError`.
        """
        await attempt_reports.complete(self._session, token, value)

    async def fail(self, token: str, error: BaseException | Failure | str) -> None:
        """Fail the attempt of an activity that has returned `Pending`; its retry policy decides what follows.

        `error`: an exception, a message, or a `Failure` that names the class of an error. The first report about an
        attempt wins. Raises `AttemptNotFound`, `AttemptOver`.
        """
        await attempt_reports.fail(self._session, token, error)

    async def heartbeat(self, token: str, details: object = None) -> None:
        """Report that an activity that has returned `Pending` goes on, which puts off its `heartbeat` timeout.

        `details`: for `why`, and for the next attempt (`last_heartbeat`); None keeps those that there are. Raises
        `AttemptNotFound`, `AttemptOver`, `EncodeError`.
        """
        await attempt_reports.heartbeat(self._session, token, details)

    async def why(self, run_id: str) -> str:
        """Say in a sentence why a run is where it is."""
        run = await self._session.find(run_id)
        return await explain(await self._session.connect(), run)

    async def unserved(self, runs: Sequence[Run]) -> set[str]:
        """Return the ids of runs that are ready, but whose type or queue no live worker serves."""
        runs = check_runs(runs)
        store = await self._session.connect()
        workers, now = await store.workers(), await store.now()
        elsewhere = served_elsewhere(await store.types())
        return {run.id for run in runs if is_unserved(run, workers, elsewhere, now)}

    async def updated_at(self, runs: Sequence[Run]) -> dict[str, int]:
        """Return the time of the last change of each run, by id, in microseconds since the epoch."""
        return await (await self._session.connect()).updated_at([run.id for run in check_runs(runs)])

    async def terminate(self, run_id: str, reason: str = "", *, undo: bool = False) -> bool:
        """End a run now, in whatever status it is, without its code; False if it had finished already.

        It fails with `RunTerminated`. A worker that holds it stops its steps. Children are cancelled, unless they
        outlive their parent. With `undo`, its code is ended and the completed steps that have an undo are undone first,
        by a worker; steps under way that have one are awaited. Raises `RunNotFound`, and `UsageError` if a blocked run
        is to undo its steps.
        """
        session = self._session
        reason = check_text("reason", reason)
        session.codec.encode(reason, "the reason of a termination")
        check_flag("undo", undo)
        store, key = await session.connect(), session.system.entropy(16).hex()
        outcome = await store.terminate(check_id(run_id), reason, key, session.actor, undo=undo)
        if outcome is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to terminate")
        if outcome is OrderOutcome.REFUSED:
            raise UsageError(
                f"run {run_id!r} is blocked, so its undos cannot be found; let it go on by retry, or terminate it "
                f"without its undos. {await self.why(run_id)}"
            )
        if outcome is OrderOutcome.DONE and not undo:
            await admit_waiting_runs(session, store, run_id)
        return outcome is not OrderOutcome.FINISHED

    async def pause(self, run_id: str, reason: str = "") -> bool:
        """Pause a run once the steps that are under way have ended; False if it is paused already or has finished.

        Messages and timers are kept for later. A cancellation, and its deadline, still end the run.
        """
        reason = check_text("reason", reason)
        self._session.codec.encode(reason, "the reason of a pause")
        return await self._order(RecordKind.PAUSE, run_id, reason) is OrderOutcome.DONE

    async def resume(self, run_id: str, reason: str = "") -> bool:
        """End the pause of a run; False if it is not paused."""
        return await self._order(RecordKind.RESUME, run_id, self._reason(reason)) is OrderOutcome.DONE

    async def set_priority(self, run_id: str, priority: int, reason: str = "") -> bool:
        """Change the priority of a run that has not finished; lower numbers go first.

        False if it has that priority already, or has finished. It also counts on the waitlist of a limit. Raises
        `RunNotFound`.
        """
        session = self._session
        reason = check_text("reason", reason)
        session.codec.encode(reason, "the reason of a priority")
        wanted = check_priority(priority)
        if wanted is None:
            raise UsageError("priority=None: give a whole number; lower numbers go first")
        run = await session.find(run_id)
        if run.priority == wanted:
            return False
        outcome = await (await session.connect()).set_priority(run_id, wanted, reason, session.actor)
        if outcome is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to give a priority")
        return outcome is OrderOutcome.DONE

    async def unpin(self, run_id: str, reason: str = "") -> bool:
        """Let workers of every build continue a run that is pinned to the build that began it.

        False if it is not pinned, or has finished. Check first that the code of the other builds follows its history:
        `perdure check --pinned`. Raises `RunNotFound`.
        """
        session = self._session
        reason = check_text("reason", reason)
        session.codec.encode(reason, "the reason for unpinning a run")
        run = await session.find(run_id)
        if run.pinned_to is None:
            return False
        outcome = await (await session.connect()).unpin(run_id, reason, session.actor)
        if outcome is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to unpin")
        return outcome is OrderOutcome.DONE

    async def evict(self, run_id: str, reason: str = "") -> bool:
        """Make the worker that holds a run give it back, for another to take; False if no worker held it.

        Steps that are under way may end first, for as long as that worker's grace lasts.
        """
        return await self._order(RecordKind.EVICT, run_id, self._reason(reason)) is OrderOutcome.DONE

    async def wake(self, run_id: str, at: Moment | None = None, reason: str = "") -> None:
        """End the sleep of a run at another time, by default now; or begin a run that was to begin later.

        Raises `RunNotFound`, `RunFinished`, and `UsageError` if it is not asleep.
        """
        reason = self._reason(reason)
        now = (await self._session.connect()).clock()
        obeyed = await self._order(RecordKind.WAKE, run_id, reason, now if at is None else instant(at, now))
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
        """Hide a run from listings; `undelete` brings it back. False if it was hidden already.

        A run that is not over is paused until then. A dead letter that is blocked is cancelled. With `purge`, the run
        is deleted for good, with its history and its descendants, and its id is free again. Raises `RunNotFound`, and
        with `purge` `UsageError` if it has not finished: cancel it first.
        """
        session = self._session
        reason = check_text("reason", reason)
        session.codec.encode(reason, "the reason of a deletion")
        check_flag("purge", purge)
        store = await session.connect()
        if purge:
            run = await session.find(check_id(run_id))
            if not run.status.finished and dead_letter_reason(run.status, run.reason) is None:
                raise UsageError(f"run {run_id!r} is {status_text(run)}; cancel it, and purge it when it has ended")
        answer = await store.delete(check_id(run_id), reason, session.actor)
        if answer is DeleteOutcome.REFUSED:
            answer = await store.delete(run_id, reason, session.actor, discard=True)
        if answer is DeleteOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to delete")
        if not purge:
            return answer is DeleteOutcome.DONE
        gone = await prune(session, PruneRequest(before=NEVER, deleted=True, ids=(run_id,)))
        if gone.spared:
            raise UsageError(f"run {run_id!r} is hidden, but not purged: a parent or a child of it is not over")
        return gone.runs > 0

    async def export(
        self,
        file: str | PathLike[str] | IO[bytes],
        run_ids: str | Sequence[str] | None = None,
        *,
        where: RunFilters | None = None,
        limit: int | None = None,
        redact_keys: Iterable[str] = (),
        redact_texts: Iterable[str] = (),
    ) -> ExportReport:
        """Write the histories of runs to a file, for `replay` and `perdure debug`; by default of all runs.

        A named file appears once it is complete. Runs are only read, newest first, at most `limit` of them. Payloads
        are written as they are stored. `redact_keys` are patterns of keys, such as `["password", "*_token"]`, whose
        values are replaced, and `redact_texts` are regular expressions whose matches are; a workflow whose path depends
        on such a part may then seem to diverge. The guide on changing code describes the format.
        """
        # Imported late: it builds on this class.
        from perdure.client import histories

        redact = Redaction(keys=redact_keys, texts=redact_texts)
        chosen = redact if redact.changes_values else None
        return await histories.export(self._session, file, run_ids, where, limit, chosen)

    async def replay(self, file: str | PathLike[str], *, types: Sequence[str] | None = None) -> HistoriesReport:
        """Replay the histories of a file against the code of this engine, as `engine.check` does with the database's.

        The file is one of `export`. Nothing else is read, and nothing is written: for tests and CI. A line that cannot
        be read is reported, and the others are replayed. Raises `UsageError` if it is no such file.
        """
        from perdure.client import histories

        return await histories.replay(self._session, file, types)

    async def preview_bulk(
        self, run_ids: str | Sequence[str] | None = None, *, where: RunFilters | None = None
    ) -> BulkPreview:
        """Say how many runs a bulk action would act on, and which ten would be the first. Nothing is written."""
        from perdure.client.runs import bulk

        return await bulk.preview(self._session, run_ids, where)

    async def bulk(
        self,
        action: str,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: RunFilters | None = None,
        id: str | None = None,
        on_progress: Callable[[BulkReport], object] | None = None,
        **options: Unpack[BulkOptions],
    ) -> BulkReport:
        """Do an action to the runs that are named, or to all that `where` selects, and wait for the end.

        The actions are `cancel`, `terminate`, `retry`, `pause`, `resume`, `delete`, `send` and `unpin`. This is
        `start_bulk` and a `bulk_worker`: if this process dies, the same call with the same `id` goes on where it was.
        `on_progress` is called with the report so far.
        """
        from perdure.client.runs import bulk

        job = bulk.make_job(self._session, action, run_ids, where, options)
        return await self._perform(job, id, on_progress)

    async def start_bulk(
        self,
        action: str,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: RunFilters | None = None,
        id: str | None = None,
        **options: Unpack[BulkOptions],
    ) -> str:
        """Start a bulk action as a run, which a `bulk_worker` of any process works on, and return the run's id.

        Runs that are created later are left out. The same `id` with the same options gives the existing run.
        """
        from perdure.client.runs import bulk

        job = bulk.make_job(self._session, action, run_ids, where, options)
        return await self._start_job(job, id)

    async def _perform(
        self, job: BulkJob, id: str | None, on_progress: Callable[[BulkReport], object] | None
    ) -> BulkReport:
        from perdure.client.runs import bulk

        return await bulk.perform(self._session, job, id, on_progress)

    async def _start_job(self, job: BulkJob, id: str | None) -> str:
        from perdure.client.runs import bulk

        return await bulk.start(self._session, job, id)

    async def bulk_progress(self, job_id: str) -> BulkReport | None:
        """Read the report of a bulk action so far; None before its first part is done. Raises `RunNotFound`."""
        from perdure.client.runs import bulk

        return await bulk.progress(self._session, job_id)

    def bulk_worker(self, **options: Unpack[WorkerOptions]) -> EngineWorker:
        """Make a worker that works on bulk actions and on nothing else, and needs no workflows."""
        from perdure.client.runs import bulk

        return bulk.make_worker(self._session, options)

    async def undelete(self, run_id: str) -> bool:
        """Bring a deleted run back; False if it was not deleted. Raises `RunNotFound`."""
        answer = await (await self._session.connect()).undelete(check_id(run_id), self._session.actor)
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
        now = (await self._session.connect()).clock()
        what = PruneRequest(
            before=now - microseconds(older_than),
            statuses=statuses,
            types=check_patterns(types),
            deleted=check_flag("deleted", deleted),
        )
        return await prune(self._session, what)

    def _reason(self, reason: str) -> str:
        """Check the reason of an order, which an event keeps."""
        self._session.codec.encode(check_text("reason", reason), "the reason of an order")
        return reason

    async def _order(self, kind: RecordKind, run_id: str, reason: str = "", at: int = 0) -> OrderOutcome:
        key = self._session.system.entropy(16).hex()
        order = RunOrder(run_id=check_id(run_id), kind=kind, key=key, reason=reason, at=at)
        obeyed = await (await self._session.connect()).order_run(order, self._session.actor)
        if obeyed is OrderOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to {kind}")
        return obeyed


async def admit_waiting_runs(session: Session, store: Store, run_id: str) -> None:
    """Start what waited for a run that was ended: the next one of its singleton, runs at the limits it had passed.

    An error leaves that to the next sweep.
    """
    run = await session.find(run_id)
    single = stored_singleton_of(run.options)
    with suppress(StoreError):
        if single is not None:
            await store.start_successors([single.name], session.actor)
        await store.recheck_gates(session.actor)


async def prune(session: Session, what: PruneRequest) -> PruneReport:
    """Delete runs for good, in small transactions."""
    store, cursor = await session.connect(), None
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
