"""Export of histories to a file, and their replay against the code of an engine, without a database."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO

from msgspec.structs import replace

from perdure.client.deploy import check_history, readable, unheard_children
from perdure.client.runs.bulk import selected
from perdure.client.runs.namespace import RunFilters
from perdure.client.session import Session, refuse_in_workflow
from perdure.core.ids import check_id, check_name
from perdure.core.model.histories import (
    FORMAT,
    LONGEST_HEADER,
    VERSION,
    DamagedLine,
    ExportReport,
    HistoriesHeader,
    HistoriesReport,
    RunHistory,
    UnreadableRun,
    portable,
    read_histories,
    redact_history,
    to_header,
    to_line,
    without_proof,
)
from perdure.core.model.reports import DeployFinding, DeployProblem
from perdure.core.model.run import RunFilter
from perdure.core.option_checks import check_list, check_whole
from perdure.core.printed_text import brief
from perdure.core.redaction import Redaction
from perdure.errors import StoreCorrupt, UsageError
from perdure.store.contract import Store
from perdure.workflow.definition import Workflow

#: Runs that are read at a time.
_PAGE = 50

Target = str | os.PathLike[str]


async def export(
    session: Session,
    file: Target | IO[bytes],
    run_ids: str | Sequence[str] | None,
    where: RunFilters | None,
    limit: int | None,
    redact: Redaction | None,
) -> ExportReport:
    """Write the histories of runs to a file; a file that is named appears once it is complete."""
    refuse_in_workflow()
    if limit is not None:
        check_whole("limit", limit, 1)
    ids, filter = selected(run_ids, {} if run_ids is None and where is None else where)
    if not isinstance(file, str | os.PathLike) and hasattr(file, "write"):
        return await _write(session, file, ids, filter, limit, redact)
    path = _path_of(file)
    part = path.parent / f".{path.name}.{session.system.entropy(4).hex()}.part"
    try:
        with part.open("wb") as stream:
            report = await _write(session, stream, ids, filter, limit, redact)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
    except (OSError, ValueError) as error:
        with suppress(OSError, ValueError):
            part.unlink(missing_ok=True)
        raise UsageError(f"the file {brief(str(file))} cannot be written: {error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return report


def _path_of(file: object) -> Path:
    """Check the name of a file. Raises `UsageError`."""
    if not isinstance(file, str | os.PathLike) or not isinstance(os.fspath(file), str) or not str(file):
        raise UsageError(f"file={brief(file)}: give the name of a file, such as 'histories.jsonl'")
    return Path(file)


async def _write(
    session: Session,
    stream: IO[bytes],
    ids: tuple[str, ...] | None,
    filter: RunFilter | None,
    limit: int | None,
    redact: Redaction | None,
) -> ExportReport:
    report = ExportReport()
    async with readable(session) as store:
        header = HistoriesHeader(
            perdure=FORMAT,
            version=VERSION,
            exported_at=await store.now(),
            build=session.build,
            redacted=redact is not None,
        )
        stream.write(to_header(header))
        async for found in _pages(store, ids, filter):
            room = len(found) if limit is None else limit - report.runs
            histories, unreadable = await _readable_histories(store, found[:room])
            report = replace(report, unreadable=(*report.unreadable, *unreadable))
            for history in histories:
                known = isinstance(session.workflows.get(history.run.type), Workflow)
                written = history if known else without_proof(history)
                stream.write(to_line(written if redact is None else redact_history(written, redact)))
                report = replace(report, runs=report.runs + 1, records=report.records + len(history.records))
            if len(found) > room:
                return replace(report, more=True)
    return report


async def _readable_histories(store: Store, run_ids: Sequence[str]) -> tuple[list[RunHistory], list[UnreadableRun]]:
    """Read histories; a run that cannot be read is reported, and the others are read one at a time."""
    try:
        return await load_histories(store, run_ids), []
    except StoreCorrupt as error:
        if len(run_ids) == 1:
            return [], [UnreadableRun(run_id=run_ids[0], error=str(error))]
    histories: list[RunHistory] = []
    unreadable: list[UnreadableRun] = []
    for run_id in run_ids:
        found, left_out = await _readable_histories(store, [run_id])
        histories += found
        unreadable += left_out
    return histories, unreadable


async def _pages(store: Store, ids: tuple[str, ...] | None, filter: RunFilter | None) -> AsyncIterator[Sequence[str]]:
    if ids is not None:
        for start in range(0, len(ids), _PAGE):
            yield ids[start : start + _PAGE]
        return
    cursor: str | None = None
    while True:
        page = await store.list(filter or RunFilter(), _PAGE, cursor)
        yield [run.id for run in page.runs]
        cursor = page.cursor
        if cursor is None:
            return


async def load_histories(store: Store, run_ids: Sequence[str]) -> list[RunHistory]:
    """Read the histories of runs, in the order of the ids; a run that does not exist is left out."""
    loaded = {one.run.id: one for one in await store.load(list(run_ids))}
    return [
        RunHistory(run=portable(one.run), records=one.records, children=tuple(await unheard_children(store, one)))
        for one in (loaded[run_id] for run_id in run_ids if run_id in loaded)
    ]


async def replay(session: Session, file: Target, types: Sequence[str] | None) -> HistoriesReport:
    """Replay the histories of a file against the code of this engine. Nothing but the file is read."""
    refuse_in_workflow()
    if types is not None:
        types = [check_name(type, "type") for type in check_list("types", types, "['shop.checkout.v1']")]
    findings: list[DeployFinding] = []
    damaged: list[DamagedLine] = []
    by_type: dict[str, int] = {}
    for one in _histories_in(file):
        if isinstance(one, DamagedLine):
            damaged.append(one)
        elif types is None or one.run.type in types:
            by_type[one.run.type] = by_type.get(one.run.type, 0) + 1
            findings += [
                finding
                for finding in await check_history(session, one.run, one.records, one.children)
                # Redacted values have other digests.
                if not (one.redacted and finding.problem is DeployProblem.ARGUMENTS)
            ]
    return HistoriesReport(
        checked=sum(by_type.values()), more=False, findings=tuple(findings), by_type=by_type, damaged=tuple(damaged)
    )


async def find_history(session: Session, run_id: str, file: Target | None) -> RunHistory:
    """Read the history of one run, from the database or from a file. Raises `RunNotFound` and `UsageError`."""
    if file is None:
        async with readable(session) as store:
            found = await load_histories(store, [check_id(run_id)])
        if not found:
            raise session.not_found(run_id)
        return found[0]
    for one in _histories_in(file):
        if isinstance(one, RunHistory) and one.run.id == run_id:
            return one
    raise UsageError(f"the file {brief(str(file))} has no run {run_id!r}")


def _histories_in(file: Target) -> Iterator[RunHistory | DamagedLine]:
    """Read a file a line at a time. Raises `UsageError`."""
    path = _path_of(file)
    try:
        with path.open("rb") as stream:
            # A device or another large file may have no end of its first line.
            yield from read_histories(chain([stream.readline(LONGEST_HEADER)], stream), str(file))
    except (OSError, ValueError) as error:
        raise UsageError(f"the file {brief(str(file))} cannot be read: {error}") from error
