"""One action on many runs, by ids or by filter, as a run of its own.

The run is an activity of the type `perdure.bulk.v1`. It lists the runs a page at a time, oldest first, and acts on each
in a transaction of its own. After each page a heartbeat keeps the position and the numbers, so that another worker goes
on there after a crash. Runs since the last heartbeat are acted on again, under the same keys, which changes nothing.
Runs that were created after the job are left out.
"""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perdure.client.handle import Handle
from perdure.client.runs import reopen
from perdure.client.runs.inspect import readable_runs
from perdure.client.runs.namespace import BulkOptions, RunFilters, Runs, admit_waiting_runs, make_filter
from perdure.client.runs.start import StartOptions
from perdure.client.session import Session
from perdure.client.workers import EngineWorker
from perdure.core.codec.decoders import convert_to, decoder_for
from perdure.core.ids import check_id, check_name
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import NewMessage, RecordKind, SendOutcome
from perdure.core.model.reports import BulkAction, BulkPreview, BulkReport
from perdure.core.model.run import BULK_TYPE, MOST_COUNTED, CountBy, Run, RunFilter, RunGroup, Status
from perdure.core.model.run_orders import OrderOutcome, RunOrder
from perdure.core.option_checks import check_flag, check_list, check_text, no_option
from perdure.core.policy.retry import Retry
from perdure.core.printed_text import brief
from perdure.core.time.duration import NEVER
from perdure.errors import BadArguments, PerdureError, RunFinished, RunNotFound, StoreUnavailable, UsageError
from perdure.worker import WorkerOptions
from perdure.workflow.activity import Activity, activity
from perdure.workflow.definition import Call
from perdure.workflow.step import activity_info

TYPE = BULK_TYPE
QUEUE = "perdure.bulk"

#: Runs that are listed at a time, ids that one job may name, and runs that a report names with the reason.
_PAGE = 100
MOST_IDS = 10_000
_NAMED = 100
_FIRST = 10
#: Seconds between two looks at the progress.
_PROGRESS = 0.2


class BulkJob(Struct, frozen=True, kw_only=True):
    """Input of a job. The field names are part of the stored format."""

    action: BulkAction
    ids: tuple[str, ...] | None = None
    filter: RunFilter | None = None
    reason: str = ""
    #: Delete for good.
    purge: bool = False
    #: Name and JSON of a message.
    message: str = ""
    payload: str | None = None


class _Progress(Struct, kw_only=True):
    """Details of a heartbeat: the position in the listing or in the ids, and the report so far."""

    report: BulkReport
    cursor: str | None = None
    number: int = 0


_JOB = decoder_for(BulkJob)
_REPORT = decoder_for(BulkReport)

#: True: done; text: why there was nothing to do.
Answer = bool | str


def make_job(
    session: Session,
    action: str,
    run_ids: str | Sequence[str] | None,
    where: RunFilters | None,
    options: BulkOptions,
) -> BulkJob:
    """Check the options of a bulk action. Raises `UsageError`."""
    if unknown := options.keys() - BulkOptions.__annotations__.keys():
        raise BadArguments(no_option("a bulk action", unknown, BulkOptions.__annotations__))
    reason, purge, message = options.get("reason", ""), options.get("purge", False), options.get("message")
    if action not in tuple(BulkAction):
        raise UsageError(f"{brief(action)} is no bulk action; the actions are {', '.join(BulkAction)}")
    ids, filter = selected(run_ids, where)
    if check_flag("purge", purge) and action != BulkAction.DELETE:
        raise UsageError("purge=True is for the action 'delete'")
    if (action == BulkAction.SEND) != (message is not None):
        raise UsageError("the action 'send' needs message=..., the name of the message, and no other action takes one")
    session.codec.encode(reason, "the reason of a bulk action")
    return BulkJob(
        action=BulkAction(action),
        ids=ids,
        filter=filter,
        reason=check_text("reason", reason),
        purge=purge,
        message="" if message is None else check_name(message, "name of a message"),
        payload=None if message is None else session.codec.encode(options.get("value"), f"message {message!r}"),
    )


def selected(
    run_ids: str | Sequence[str] | None, where: RunFilters | None
) -> tuple[tuple[str, ...] | None, RunFilter | None]:
    """Check which runs are meant: ids or a filter. Raises `UsageError`."""
    if (run_ids is None) == (where is None):
        raise UsageError("say which runs: their ids, or where={...}; where={} means all of them")
    if where is not None:
        if not isinstance(where, dict):
            raise UsageError(f"where={brief(where)}: give a dict, such as where={{'status': 'failed'}}")
        return None, make_filter(where)
    given = (run_ids,) if isinstance(run_ids, str) else check_list("run_ids", run_ids, "['order-17']")
    if len(given) > MOST_IDS:
        raise UsageError(f"run_ids has {len(given)} ids; give at most {MOST_IDS}, or a filter")
    return tuple(dict.fromkeys(check_id(run_id) for run_id in given)), None


async def preview(session: Session, run_ids: str | Sequence[str] | None, where: RunFilters | None) -> BulkPreview:
    """Count the runs that are meant, and read the first ten."""
    ids, filter = selected(run_ids, where)
    store = await session.connect()
    if ids is not None:
        runs = {run.id: run for run in await readable_runs(store, ids)}
        there = [runs[run_id] for run_id in ids if run_id in runs]
        return BulkPreview(count=RunGroup("", len(there)), first=tuple(there[:_FIRST]))
    [count] = await store.count(filter or RunFilter(), CountBy(), MOST_COUNTED)
    page = await Runs(session).list(order="oldest", limit=_FIRST, **(where or {}))
    return BulkPreview(count=count, first=page.runs)


async def start(session: Session, job: BulkJob, job_id: str | None) -> str:
    """Start the run of a job; its id."""
    options: StartOptions = {"queue": QUEUE, "id": job_id}
    # By name, because its code is not among the workflows of an engine.
    call = Call.named(TYPE, job=msgspec.json.encode(job).decode())
    new = session.new_run(call, options)
    [answer] = await (await session.connect()).create([new], session.actor)
    session.duplicates.check_created([answer], [new], [call])
    return answer.run.id


async def perform(
    session: Session,
    job: BulkJob,
    job_id: str | None,
    on_progress: Callable[[BulkReport], object] | None,
) -> BulkReport:
    """Start a job and work on it here until it has ended, unless another worker does."""
    handle: Handle[BulkReport] = Handle(session, await start(session, job, job_id), BulkReport)
    async with make_worker(session, {"slots": 1}):
        return await follow(handle, lambda: progress(session, handle.id), on_progress)


async def follow(
    handle: Handle[BulkReport],
    read: Callable[[], Awaitable[BulkReport | None]],
    on_progress: Callable[[BulkReport], object] | None,
) -> BulkReport:
    """Wait for the end of a job, and report its progress meanwhile."""
    while True:
        try:
            return await handle.result(timeout=_PROGRESS)
        except TimeoutError:
            if on_progress is not None and (report := await read()) is not None:
                on_progress(report)


async def progress(session: Session, job_id: str) -> BulkReport | None:
    """The report of a job so far, as of its last heartbeat; None before the first. Raises `RunNotFound`."""
    run = await session.find(job_id)
    if run.type != TYPE:
        raise UsageError(f"run {job_id!r} is a {run.type!r} and no bulk action")
    if run.status is Status.COMPLETED and run.output is not None:
        return _REPORT.decode(run.output)
    [*beats] = await (await session.connect()).outputs(job_id, OutputKind.HEARTBEAT, "", -1, 1)
    return decoder_for(_Progress).decode(beats[0].payload).report if beats else None


def make_worker(session: Session, options: WorkerOptions) -> EngineWorker:
    """A worker that works on bulk actions and on nothing else."""
    if clashing := options.keys() & {"queues", "types"}:
        raise BadArguments(f"a bulk worker has its own queue and type, so leave out {min(clashing)}")
    from perdure.worker import WorkerSettings

    settings = replace(WorkerSettings.of(**options), queues=(QUEUE,))
    return EngineWorker(session, settings, {TYPE: job_activity(session)})


def job_activity(session: Session) -> Activity[[str | BulkJob], BulkReport]:
    """The activity that works on a job: its JSON as text, or, from plain SQL, as an object."""

    @activity(TYPE, queue=QUEUE, retry=Retry(attempts=None))
    async def bulk(job: str | BulkJob) -> BulkReport:
        return await _work(session, _JOB.decode(job) if isinstance(job, str) else job)

    return bulk


async def _work(session: Session, job: BulkJob) -> BulkReport:
    info = activity_info()
    own = await session.find(info.run_id)
    state = _Progress(report=BulkReport(action=job.action.value))
    if info.last_heartbeat is not None:
        state = convert_to(_Progress, info.last_heartbeat)
    performer = _Performer(session, job, own)
    while True:
        part, last = await _next_part(session, job, own, state)
        for run_id in part:
            state.report = await performer.act(run_id, state.report)
        if last:
            return state.report
        info.heartbeat(msgspec.to_builtins(state))


async def _next_part(session: Session, job: BulkJob, own: Run, state: _Progress) -> tuple[builtins.list[str], bool]:
    """The next runs of a job, after which `state` stands behind them, and whether they are the last."""
    if job.ids is not None:
        part = builtins.list(job.ids[state.number : state.number + _PAGE])
        state.number += len(part)
        return part, state.number >= len(job.ids)
    before = min(own.created_at, (job.filter or RunFilter()).created_before or NEVER)
    filter = replace(job.filter or RunFilter(), oldest=True, created_before=before)
    page = await (await session.connect()).list(filter, _PAGE, state.cursor)
    state.cursor = page.cursor
    # A job does not act on jobs.
    return [run.id for run in page.runs if run.type != TYPE], page.cursor is None


def _with(named: dict[str, str], run_id: str, why: str) -> dict[str, str]:
    return named if len(named) >= _NAMED else {**named, run_id: why}


class _Performer:
    """Does the action of a job to one run at a time, under keys that follow from both."""

    def __init__(self, session: Session, job: BulkJob, own: Run) -> None:
        self._session = session
        self._job = job
        self._own = own
        actions: dict[BulkAction, Callable[[str, str], Awaitable[Answer]]] = {
            BulkAction.CANCEL: self._cancel,
            BulkAction.TERMINATE: self._terminate,
            BulkAction.RETRY: self._retry,
            BulkAction.PAUSE: self._order,
            BulkAction.RESUME: self._order,
            BulkAction.DELETE: self._delete,
            BulkAction.SEND: self._send,
            BulkAction.UNPIN: self._unpin,
        }
        self._action = actions[job.action]

    async def act(self, run_id: str, report: BulkReport) -> BulkReport:
        """Act on one run and add it to the report. Raises `StoreUnavailable`, after which the job is tried again."""
        try:
            answer = await self._action(run_id, f"bulk:{self._own.id}")
        except StoreUnavailable:
            raise
        except (RunNotFound, RunFinished, UsageError) as error:
            answer = str(error)
        except PerdureError as error:
            return replace(report, failed=report.failed + 1, failed_runs=_with(report.failed_runs, run_id, str(error)))
        if answer is True:
            return replace(report, done=report.done + 1)
        skipped = _with(report.skipped_runs, run_id, str(answer))
        return replace(report, skipped=report.skipped + 1, skipped_runs=skipped)

    async def _cancel(self, run_id: str, key: str) -> Answer:
        store = await self._session.connect()
        outcome = await store.cancel(run_id, self._job.reason, key, self._session.actor)
        if outcome is SendOutcome.UNKNOWN:
            return f"there is no run {run_id!r}"
        return f"run {run_id!r} had finished" if outcome is SendOutcome.FINISHED else True

    async def _terminate(self, run_id: str, key: str) -> Answer:
        store = await self._session.connect()
        outcome = await store.terminate(run_id, self._job.reason, key, self._session.actor)
        if outcome is OrderOutcome.UNKNOWN:
            return f"there is no run {run_id!r}"
        if outcome is OrderOutcome.FINISHED:
            return f"run {run_id!r} had finished"
        await admit_waiting_runs(self._session, store, run_id)
        return True

    async def _retry(self, run_id: str, key: str) -> Answer:
        run = await self._session.find(run_id)
        ended = run.finished_at or (run.wake_at if run.status is Status.BLOCKED else 0)
        if ended > self._own.created_at:
            # It may be this job that has let it go since, before a crash: it is not retried twice.
            return f"run {run_id!r} has ended again since the bulk action was started"
        await reopen.retry(self._session, run_id, {"reason": self._job.reason})
        return True

    async def _order(self, run_id: str, key: str) -> Answer:
        kind = RecordKind.PAUSE if self._job.action is BulkAction.PAUSE else RecordKind.RESUME
        order = RunOrder(run_id=run_id, kind=kind, key=key, reason=self._job.reason)
        outcome = await (await self._session.connect()).order_run(order, self._session.actor)
        match outcome:
            case OrderOutcome.DONE:
                return True
            case OrderOutcome.UNKNOWN:
                return f"there is no run {run_id!r}"
            case OrderOutcome.FINISHED:
                return f"run {run_id!r} had finished"
            case _:
                return f"run {run_id!r} was {'paused already' if kind is RecordKind.PAUSE else 'not paused'}"

    async def _delete(self, run_id: str, key: str) -> Answer:
        done = await Runs(self._session).delete(run_id, self._job.reason, purge=self._job.purge)
        return done or f"run {run_id!r} was deleted before"

    async def _send(self, run_id: str, key: str) -> Answer:
        message = NewMessage(run_id=run_id, name=self._job.message, payload=self._job.payload, key=key)
        [outcome] = await (await self._session.connect()).send([message], self._session.actor)
        if outcome is SendOutcome.UNKNOWN:
            return f"there is no run {run_id!r}"
        return f"run {run_id!r} had finished" if outcome is SendOutcome.FINISHED else True

    async def _unpin(self, run_id: str, key: str) -> Answer:
        done = await Runs(self._session).unpin(run_id, self._job.reason)
        return done or f"run {run_id!r} was not pinned, or had finished"
