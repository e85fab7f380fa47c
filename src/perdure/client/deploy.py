"""The check before a deploy: replay of all unfinished runs against the code of an engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from perdure.client.outbox import delivers
from perdure.client.session import Session
from perdure.core.ids import check_name, uuid7
from perdure.core.model.claim import LoadedRun
from perdure.core.model.documents import Document, DocumentKind, StoredDeployReport, deploy_body, deploy_report
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import DeployFinding, DeployProblem, DeployReport
from perdure.core.model.run import BULK_TYPE, STICKY_TYPE, UNFINISHED, Reason, Run, RunFilter
from perdure.core.option_checks import check_list, check_page, check_whole
from perdure.core.printed_text import closest
from perdure.errors import StoreCorrupt, StoreError
from perdure.store import open_store
from perdure.store.contract import Store
from perdure.workflow.definition import Definition, Workflow

T = TypeVar("T")

logger = logging.getLogger("perdure.client")

PAGE = 100


async def check(
    session: Session, types: Sequence[str] | None, limit: int | None, *, save: bool = False, pinned: bool = False
) -> DeployReport:
    """Replay the history of every unfinished run, or of those of some types, against the code of this engine."""
    if limit is not None:
        check_whole("limit", limit, 1)
    if types is not None:
        types = [check_name(type, "type") for type in check_list("types", types, "['shop.checkout.v1']")]
    findings: list[DeployFinding] = []
    checked, left_out, more = 0, 0, False
    by_type: dict[str, int] = {}
    async with readable(session) as store:
        async for page in _pages(store, types):
            runs = [run for run in page if pinned or run.pinned_to in (None, session.build)]
            left_out += len(page) - len(runs)
            room = len(runs) if limit is None else limit - checked
            more = len(runs) > room
            readable_runs, unreadable = await _load(store, runs[:room])
            findings += unreadable
            checked += len(unreadable)
            for loaded in readable_runs:
                if not loaded.run.status.finished:
                    checked += 1
                    by_type[loaded.run.type] = by_type.get(loaded.run.type, 0) + 1
                    findings += await _check(session, store, loaded)
            if more:
                break
        report = DeployReport(checked=checked, more=more, findings=tuple(findings), by_type=by_type, pinned=left_out)
        if save:
            await _save(session, store, report)
    return report


async def _load(store: Store, runs: Sequence[Run]) -> tuple[list[LoadedRun], list[DeployFinding]]:
    """Read runs with their histories; one that cannot be read is a finding, and the others are read one at a time."""
    try:
        return await store.load([run.id for run in runs]), []
    except StoreCorrupt as error:
        if len(runs) == 1:
            return [], [_unreadable(runs[0], error)]
    found: list[LoadedRun] = []
    findings: list[DeployFinding] = []
    for run in runs:
        loaded, unreadable = await _load(store, [run])
        found += loaded
        findings += unreadable
    return found, findings


def _unreadable(run: Run, error: StoreCorrupt) -> DeployFinding:
    return DeployFinding(
        run_id=run.id,
        type=run.type,
        problem=DeployProblem.UNDECODABLE,
        expected="a run and a history that can be read",
        found=str(error),
        fix="restore the rows of this run from a backup; the code need not change",
    )


#: Types of runs that need no code of an engine: bulk actions have workers of their own, sticky events none.
_OWN_TYPES = frozenset({BULK_TYPE, STICKY_TYPE})


async def _save(session: Session, store: Store, report: DeployReport) -> None:
    """Store a summary. A check may use a database user that only reads, so a refusal is no error."""
    id = uuid7(session.system.now(), session.system.entropy(10))
    document = Document(kind=DocumentKind.DEPLOY, name=id, build=session.build, body=deploy_body(report))
    try:
        await store.save_report(document, session.actor)
    except StoreError as error:
        logger.warning("the report of the deploy check was not stored: %s", error)


async def list_reports(session: Session, limit: int) -> list[StoredDeployReport]:
    """Read the stored reports of deploy checks, latest first."""
    check_page(limit)
    store = await session.connect()
    return [deploy_report(one) for one in await store.documents(DocumentKind.DEPLOY, None, limit)]


async def _check(session: Session, store: Store, loaded: LoadedRun) -> list[DeployFinding]:
    # Without code that follows its history, a run needs no further reading.
    follows = isinstance(session.workflows.get(loaded.run.type), Workflow)
    children = await unheard_children(store, loaded) if follows else []
    return await check_history(session, loaded.run, loaded.records, children)


async def check_history(
    session: Session, run: Run, records: Sequence[Record], children: Sequence[str]
) -> list[DeployFinding]:
    """Replay one history against the code of an engine; `children`: locations whose outcome is outstanding."""
    workflow = session.workflows.get(run.type)
    if workflow is None:
        served = run.type in _OWN_TYPES or delivers(session.outbox, run.type)
        return [] if served else [_unserved(run, session.workflows)]
    if not isinstance(workflow, Workflow):
        return []  # an activity has no history that its code would have to follow
    from perdure.worker import ReplayCheck

    checkup = ReplayCheck(session.codec, session.errors, session.layers)
    return await aside(lambda: checkup.findings(run, workflow, records, children))


@asynccontextmanager
async def readable(session: Session) -> AsyncGenerator[Store, None]:
    """Open a store to read from that must not migrate: the engine's own, if that is open already."""
    if session.is_connected():
        yield await session.connect()
        return
    store = open_store(session.url, session.system, migrate=False)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def _pages(store: Store, types: Sequence[str] | None) -> AsyncIterator[tuple[Run, ...]]:
    for type in [None] if types is None else dict.fromkeys(types):
        cursor: str | None = None
        while True:
            page = await store.list(RunFilter(status=UNFINISHED, type=type), PAGE, cursor)
            yield page.runs
            cursor = page.cursor
            if cursor is None:
                break


async def unheard_children(store: Store, loaded: LoadedRun) -> list[str]:
    """Return the locations of children whose end the run's history does not have yet."""
    run = loaded.run
    waits = run.reason is Reason.CHILD or any(message.kind is RecordKind.CHILD for message in loaded.inbox)
    # A run that began anew, or is tried anew, has children of its earlier attempts.
    if not waits or run.generation > 1 or run.attempt > 1:
        return []
    heard = {record.location for record in loaded.records if record.kind is RecordKind.CHILD}
    places: dict[str, None] = {}
    cursor: str | None = None
    while True:
        page = await store.list(RunFilter(parent_id=run.id), PAGE, cursor)
        places.update((one, None) for child in page.runs if (one := child.parent_location) and one not in heard)
        cursor = page.cursor
        if cursor is None:
            return list(places)


def _unserved(run: Run, workflows: Mapping[str, Definition[Any, Any]]) -> DeployFinding:
    return DeployFinding(
        run_id=run.id,
        type=run.type,
        problem=DeployProblem.UNSERVED,
        expected=f"a workflow of the type {run.type!r}",
        found=f"only {closest(run.type, workflows)}" if workflows else "only nothing",
        fix="keep it among the engine's workflows until its runs are done; or check only the types of this engine",
    )


async def aside(work: Callable[[], T]) -> T:
    """Do some work in a callback of its own.

    The loop of a run must not replace a loop that is in the middle of a task.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def act() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    loop.call_soon(act)
    return await done
