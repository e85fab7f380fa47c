"""`perdure top`: workers, queues, counts and throughput, refreshed every second.

A refresh is three statements of bounded cost. A target that is a server is read through its API, which has no
throughput and no age of the oldest run.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import click
from msgspec import Struct

from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import when
from perdure.cli.console.document import Document, moment, step_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output, with_target
from perdure.cli.console.screen import Section, print_sections, run_until_interrupted, show_live
from perdure.cli.console.target import check_exists, engine_at, is_url, load_engine
from perdure.cli.doctor.checks import judge_pauses, judge_ready, judge_workers
from perdure.client.engine import Engine
from perdure.client.remote.transport import is_server
from perdure.client.runs.inspect import span
from perdure.core.model.run import Status
from perdure.core.model.run_orders import Pause
from perdure.core.model.worker_info import WorkerInfo, WorkerStatus, living_workers
from perdure.core.routing import served_elsewhere
from perdure.core.status_signs import STATUS_SIGNS
from perdure.host import Host
from perdure.store import SqlStore, open_store
from perdure.store.sql.diagnosis import MOST_COUNTED, MOST_RECENT, ReadyRuns, WorkCounts, read_work_counts
from perdure.store.url import shown

_MINUTE = 60_000_000
#: Refreshes for which the list of registered types is kept.
_TYPES_KEPT = 10
#: Steps that are listed, and characters of the id of a worker beside them.
_STEPS = 20
_SHORT_ID = 13


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything that one refresh shows. Over HTTP there is no throughput: `finished` is None."""

    at: int
    workers: Sequence[WorkerInfo]
    pauses: Sequence[Pause]
    #: Types of workers in other languages, which send no heartbeat.
    elsewhere: Mapping[str, str]
    ready: Sequence[ReadyRuns]
    held: Mapping[str, int]
    blocked: Mapping[tuple[str, str], int]
    counts: Mapping[str, int]
    started: int
    finished: Mapping[str, int] | None

    @property
    def alive(self) -> list[WorkerInfo]:
        """Workers that have not ended, late ones included."""
        return [one for one in self.workers if one.status is WorkerStatus.ALIVE]


Read = Callable[[], Awaitable[Snapshot]]


class StoreReader:
    """Reads snapshots from a database: three statements each, and now and then a fourth."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._refreshes = 0
        self._elsewhere: Mapping[str, str] = {}

    async def read(self) -> Snapshot:
        """Read a snapshot."""
        store = self._store
        if self._refreshes % _TYPES_KEPT == 0:
            self._elsewhere = served_elsewhere(await store.types())
        self._refreshes += 1
        workers, now = await store.workers(), store.clock()
        counts: WorkCounts = await read_work_counts(store, now - _MINUTE)
        return Snapshot(
            at=now,
            workers=workers,
            pauses=await store.pauses(),
            elsewhere=self._elsewhere,
            ready=counts.ready,
            held=counts.held,
            blocked=counts.blocked,
            counts=counts.counts,
            started=counts.started,
            finished=counts.finished,
        )


async def _read_remote(engine: Engine) -> Snapshot:
    """Read a snapshot through the API of a server."""
    workers = await engine.workers.list()
    counts = {str(group.value): group.count for group in await engine.runs.count_by("status")}
    queues = await engine.runs.count_by("queue", status=[Status.PENDING])
    minute_ago = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    return Snapshot(
        at=max((one.read_at for one in workers), default=Host().now()),
        workers=workers,
        pauses=await engine.queues.paused(),
        elsewhere=served_elsewhere(await engine.queues.types()),
        ready=[ReadyRuns("", str(group.value), group.count, 0) for group in queues],
        held={},
        blocked={("", ""): counts["blocked"]} if counts.get("blocked") else {},
        counts=counts,
        started=(await engine.runs.count(created_after=minute_ago)).count,
        finished=None,
    )


@asynccontextmanager
async def _reader(target: str, url: str) -> AsyncGenerator[Read, None]:
    if is_server(url):
        async with engine_at(target) as engine:
            yield lambda: _read_remote(engine)
        return
    check_exists(url)
    store = open_store(url, Host(), migrate=False)
    await store.open()
    try:
        yield StoreReader(store).read
    finally:
        await store.close()


@click.command("top", cls=Command, example="perdure top postgresql://localhost/shop")
@with_target
@click.option("--once", is_flag=True, help="Print the view once.  [default if the output is no terminal]")
@with_output
def top(target: str, once: bool, output: Printer) -> None:
    """Show workers, steps under way, queues, counts by status and throughput, refreshed every second until Ctrl-C.

    With --json the view is printed once, as a document.
    """
    url = target if is_url(target) else load_engine(target).url

    async def show_once() -> None:
        async with _reader(target, url) as read:
            snapshot = await read()
        if output.json:
            output.document(_document(snapshot, shown(url)))
        else:
            print_sections(output, sections(snapshot, shown(url)))

    async def refresh() -> None:
        async with _reader(target, url) as read:

            async def view() -> list[Section]:
                return sections(await read(), shown(url), "  Ctrl-C ends")

            await show_live(view)

    if once or not output.is_terminal:
        asyncio.run(show_once())
    else:
        run_until_interrupted(refresh)


def sections(snapshot: Snapshot, target: str, note: str = "") -> list[Section]:
    """Arrange a snapshot, most urgent first."""
    counts = [
        f"{STATUS_SIGNS[one].glyph} {one.value} {_number(snapshot.counts.get(one.value, 0), MOST_COUNTED)}"
        for one in Status
    ]
    found = [
        Section(rows=[(f"{target}  {when(snapshot.at)}{note}",)], style=lambda _: "bold"),
        Section(rows=[counts, [_throughput(snapshot)]]),
    ]
    if urgent := needs_person(snapshot, target):
        found.append(Section(title="Needs a person", rows=[[text] for text in urgent], style=lambda _: "yellow"))
    if snapshot.ready:
        found.append(Section(title="Queues", columns=("queue", "type", "ready", "oldest"), rows=_queues(snapshot)))
    if snapshot.alive:
        columns = ("worker", "build", "process", "slots", "last heard of", "last error")
        found.append(Section(title="Workers", columns=columns, rows=_workers(snapshot)))
    if steps := _steps(snapshot):
        columns = ("run", "type", "location", "attempt", "for", "worker")
        found.append(Section(title="Under way for longer than a second", columns=columns, rows=steps))
    return found


def needs_person(snapshot: Snapshot, target: str) -> list[str]:
    """Say what does not go on by itself."""
    blocked = [
        f"{count:,} {'run' if count == 1 else 'runs'}{f' of type {type}' if type else ''} blocked"
        f"{f': {reason}' if reason else ''}"
        for (type, reason), count in sorted(snapshot.blocked.items())
    ]
    served = [one for one in snapshot.ready if one.type and one.type not in snapshot.elsewhere]
    findings = [
        *judge_workers(snapshot.workers, snapshot.pauses, target),
        *judge_ready(served, living_workers(snapshot.workers, snapshot.at), snapshot.pauses, snapshot.at),
        *judge_pauses(snapshot.pauses, target),
    ]
    return blocked + [one.text for one in findings if one.remedy]


def _throughput(snapshot: Snapshot) -> str:
    started = f"last minute: {_number(snapshot.started, MOST_RECENT - 1)} started"
    if snapshot.finished is None:
        return started
    ended = [f"{_number(snapshot.finished.get(one.value, 0), MOST_RECENT - 1)} {one.value}" for one in _ENDS]
    rate = sum(snapshot.finished.values()) / 60
    return f"{started}, {', '.join(ended)} ({rate:.3g} a second)"


_ENDS = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def _number(count: int, most: int) -> str:
    return f"{most:,}+" if count > most else f"{count:,}"


def _queues(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [
        (one.queue, one.type, f"{one.count:,}", span(snapshot.at - one.oldest) if one.oldest else "")
        for one in snapshot.ready
    ]


def _workers(snapshot: Snapshot) -> list[tuple[str, ...]]:
    return [
        (
            one.id,
            one.build,
            f"{one.host} ({one.pid})",
            f"{snapshot.held[one.id]} of {one.slots}" if one.id in snapshot.held else str(one.slots),
            f"{span(one.read_at - one.heartbeat_at)} ago",
            one.problem,
        )
        for one in snapshot.alive
    ]


def _steps(snapshot: Snapshot) -> list[tuple[str, ...]]:
    steps = [(worker, step) for worker in snapshot.alive for step in worker.running.steps]
    oldest = sorted(steps, key=lambda pair: pair[1].since)[:_STEPS]
    return [
        (
            step.run_id,
            step.type,
            step.location,
            str(step.attempt),
            span(worker.read_at - step.since),
            worker.id[:_SHORT_ID],
        )
        for worker, step in oldest
    ]


def _document(snapshot: Snapshot, target: str) -> Document:
    finished = snapshot.finished
    return {
        "target": target,
        "at": moment(snapshot.at),
        "counts": {one.value: snapshot.counts.get(one.value, 0) for one in Status},
        "last_minute": {
            "started": snapshot.started,
            **{one.value: None if finished is None else finished.get(one.value, 0) for one in _ENDS},
        },
        "needs_person": needs_person(snapshot, target),
        "queues": [
            {
                "queue": one.queue,
                "type": one.type or None,
                "ready": one.count,
                "oldest_seconds": max(0, snapshot.at - one.oldest) / 1e6 if one.oldest else None,
            }
            for one in snapshot.ready
        ],
        "workers": [
            {
                "id": one.id,
                "build": one.build,
                "host": one.host,
                "pid": one.pid,
                "slots": one.slots,
                "held": None if finished is None else snapshot.held.get(one.id, 0),
                "silence": one.silence,
                "problem": one.problem,
                "running": [step_document(step) for step in one.running.steps],
            }
            for one in snapshot.alive
        ],
    }
