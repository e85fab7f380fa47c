"""`perdure worker` runs a worker; `perdure workers` lists and drains workers."""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import click
import msgspec

from perdure.cli.children.child_side import stop_with_parent
from perdure.cli.console import logs
from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import span, when
from perdure.cli.console.document import Document, moment, step_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import DATABASE_TIMEOUT, parse_poll_backoff, with_output, with_target
from perdure.cli.console.target import is_url, load_engine, with_engine
from perdure.cli.fleet.messages import FleetSettings
from perdure.cli.fleet.shares import Shares, parse_processes
from perdure.client.engine import Engine
from perdure.client.runs.inspect import seconds_ago, silence
from perdure.client.session import session_of
from perdure.core.audit import Audit
from perdure.core.model.worker_info import BuildInfo, WorkerInfo, WorkerStatus
from perdure.errors import UsageError
from perdure.host import run_to_end
from perdure.store.url import shown
from perdure.worker import WorkerSettings

group = CommandGroup(
    "workers",
    {
        "Commands": {
            "list": "perdure.cli.workers:list_workers",
            "builds": "perdure.cli.workers:list_builds",
            "drain": "perdure.cli.workers:drain",
        }
    },
    help="List and drain workers.",
    example="perdure workers sqlite:///shop.db",
)


@click.command("worker", cls=Command, example="perdure worker shop:engine --queue default --queue reports")
@with_target
@click.option("--slots", type=int, default=500, show_default=True, help="Maximum number of runs at the same time.")
@click.option(
    "--queue", "queues", multiple=True, default=("default",), show_default=True, help="Queue to claim runs from."
)
@click.option(
    "--types",
    multiple=True,
    help="Type to claim, or a prefix of types: billing.%  [default: all types of the engine]",
)
@click.option("--shared", multiple=True, help="Type, or a prefix, that workers of other runtimes may claim, too.")
@click.option(
    "--lease", default="15s", show_default=True, help="Other workers take over after this long without a sign of life."
)
@click.option("--grace", default="10s", show_default=True, help="How long steps may continue after a stop signal.")
@click.option(
    "--warn-blocked",
    default="100ms",
    show_default=True,
    help="Log code that blocks the event loop for longer, with its stack; 0: never.",
)
@click.option(
    "--processes",
    callback=parse_processes,
    metavar="N|auto",
    help="Start so many worker processes, which share slots and connections, and replace those that die; auto: as many "
    "as processors. SIGHUP starts new ones with the code as it is then.  [default: this process alone]",
)
@click.option(
    "--step-processes", type=int, help="Processes for steps with process=True.  [default: number of processors]"
)
@click.option(
    "--wait-for-database",
    default="5m",
    show_default=True,
    help="How long to wait at the start for an unreachable server.",
)
@click.option("--worker-id", help="First part of the worker's id, which goes on with a random part.")
@click.option(
    "--poll-interval", help="Longest pause between two polls without notifications.  [default: as suits the database]"
)
@click.option(
    "--poll-backoff",
    callback=parse_poll_backoff,
    metavar="NAME=VALUE,...",
    help="How the pause between two polls changes: first, shortest, longest, idle and busy.",
)
@click.option("--watch-io/--no-watch-io", default=True, help="Warn of I/O in workflow code.  [default: watch-io]")
@click.option(
    "--log-level", type=click.Choice(logs.LEVELS), help=f"Least severe level to log.  [default: {logs.DEFAULT_LEVEL}]"
)
@click.option("--keep-log", type=int, default=0, metavar="LINES", help="Keep the latest log lines of each run with it.")
@click.option("--log-format", type=click.Choice(logs.FORMATS), help="Format of the log.  [default: json with --json]")
@click.option("--audit", type=click.Choice([level.value for level in Audit]), help="Detail of the audit trail.")
@click.option(
    "--metrics", metavar="[HOST]:PORT", help="Show metrics for Prometheus at this address, which processes may share."
)
@click.option(
    "--stop-at-eof", is_flag=True, help="Also stop when standard input ends, as it does when the parent process dies."
)
@with_output
def worker(
    target: str,
    log_level: str | None,
    log_format: str | None,
    audit: str | None,
    metrics: str | None,
    stop_at_eof: bool,
    processes: int | str | None,
    output: Printer,
    **options: Any,
) -> None:
    """Run a worker of an engine until SIGTERM or SIGINT.

    After the first signal steps may finish within the grace period; a second signal stops at once.
    """
    if is_url(target):
        raise click.UsageError(f"a worker needs code: name an engine such as shop:engine, not {target}")
    if processes is not None:
        settings = FleetSettings(
            target=target, options=options, log_level=log_level, log_format=log_format, json=output.json,
            audit=audit, metrics=metrics, database_timeout=click.get_current_context().meta.get(DATABASE_TIMEOUT),
        )  # fmt: skip
        supervise(settings, processes, output, stop_at_eof=stop_at_eof)
        return
    engine = load_engine(target)
    logs.configure(log_level, log_format, json=output.json)
    if audit is not None:
        engine.audit.level = Audit(audit)
    if stop_at_eof:
        stop_with_parent()
    tune_collector()
    run_to_end(_work(engine, options, metrics, output), fast_loop())


def supervise(settings: FleetSettings, processes: int | str, output: Printer, *, stop_at_eof: bool) -> None:
    """Run worker processes until a signal. Raises `UsageError`."""
    if os.name != "posix":
        raise UsageError(
            "--processes needs Linux, macOS or WSL; on Windows start several `perdure worker`, each with a port of its "
            "own for --metrics"
        )
    from perdure.cli.fleet.supervisor import FleetSupervisor

    options = settings.options
    options["types"] = options["types"] or None
    options = {name: value for name, value in options.items() if value is not None}
    checked = WorkerSettings.of(**options)
    shares = Shares(
        slots=options.pop("slots"),
        step_processes=options.pop("step_processes", None),
        worker_id=options.pop("worker_id", str(os.getpid())),
    )
    settings = msgspec.structs.replace(settings, options=options, grace=checked.grace)
    logs.configure(settings.log_level, settings.log_format, json=output.json)
    if stop_at_eof:
        stop_with_parent()
    asyncio.run(FleetSupervisor(settings, processes, shares, output).run())
    output.result({"event": "stopped", "pid": os.getpid()}, f"stopped as process {os.getpid()}")


async def _work(engine: Engine, options: dict[str, Any], metrics: str | None, output: Printer) -> None:
    options["types"] = options["types"] or None
    worker = engine.worker(**options)
    try:
        async with AsyncExitStack() as stack:
            await worker.connect()
            if metrics is not None:
                await stack.enter_async_context(metrics_endpoint(engine, metrics))
            _print_event(output, "working", engine)
            await worker.run()
    finally:
        await engine.close()
    _print_event(output, "stopped", engine)


def metrics_endpoint(engine: Engine, address: str) -> AbstractAsyncContextManager[object]:
    """Make the end point of `--metrics`. Raises `UsageError`."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageError("--metrics needs the extra `metrics`: pip install 'perdure[metrics]'")
    from perdure.metrics.endpoint import Endpoint

    return Endpoint(engine, address)


def _print_event(output: Printer, event: str, engine: Engine) -> None:
    types = sorted(session_of(engine).served_code())
    if output.json:
        output.document({"event": event, "pid": os.getpid(), "url": shown(engine.url), "types": types})
    else:
        output.line(f"{event} on {shown(engine.url)} as process {os.getpid()}: {', '.join(types)}")


@click.command("list", cls=Command, example="perdure workers list sqlite:///shop.db")
@with_target
@with_output
def list_workers(target: str, output: Printer) -> None:
    """List live and recent workers, the types and queues that they serve, and the errors of their loops.

    Steps that are under way for longer than a second follow. A row names the first types and queues; --json, all.

    If there are several builds, or pinned runs, it also lists which builds still have runs.
    """

    async def read(engine: Engine) -> tuple[list[WorkerInfo], list[BuildInfo]]:
        return await engine.workers.list(), [] if output.json else await engine.workers.builds()

    workers, builds = with_engine(target, read)
    if output.json:
        output.document([_document(worker) for worker in workers])
    elif workers:
        rows = [
            (
                one.id,
                "draining" if one.is_draining else str(one.status),
                one.build,
                f"{one.host} ({one.pid})",
                str(one.slots),
                _few(one.types),
                _few(one.queues),
                _heard_of(one),
                str(one.errors or ""),
                one.problem,
            )
            for one in workers
        ]
        output.table(
            (
                "id", "status", "build", "process", "slots", "types", "queues", "last heard of", "errors", "last error",
            ),
            rows,
        )  # fmt: skip
        _print_running(output, workers)
    else:
        output.hint("No worker is known.")
    if len(builds) > 1 or any(one.pinned.count for one in builds):
        output.heading("Builds")
        _print_builds(output, builds)


@click.command("builds", cls=Command, example="perdure workers builds sqlite:///shop.db")
@with_target
@with_output
def list_builds(target: str, output: Printer) -> None:
    """List the builds of the application that have live workers or unfinished runs, the latest first.

    Only workers of its build continue a pinned run. A build whose last run has ended needs no workers. Workers without
    a build are in the row (none); its runs include those that no worker has begun.
    """
    builds = with_engine(target, lambda engine: engine.workers.builds())
    if output.json:
        output.document([_build_document(one) for one in builds])
    elif builds:
        _print_builds(output, builds)
    else:
        output.hint("No build has live workers or unfinished runs.")


def _print_builds(output: Printer, builds: Sequence[BuildInfo]) -> None:
    rows = [
        (one.build or "(none)", str(one.workers), str(one.draining or ""), str(one.runs), str(one.pinned), _advice(one))
        for one in builds
    ]
    output.table(("build", "workers", "draining", "unfinished runs", "pinned", ""), rows)


def _advice(one: BuildInfo) -> str:
    if not one.build:
        return "set Engine(build=...) to tell deployed versions apart"
    if one.pinned.count and not one.workers:
        return "start a worker of this build, or unpin its runs: perdure runs unpin"
    if not one.runs.count and one.runs.exact:
        return "no run needs it" if one.draining else ""
    return ""


def _build_document(one: BuildInfo) -> Document:
    return {
        "build": one.build,
        "workers": one.workers,
        "draining": one.draining,
        "runs": one.runs.count,
        "pinned": one.pinned.count,
        "exact": one.runs.exact and one.pinned.exact,
        "started_at": moment(one.started_at),
    }


@click.command("drain", cls=Command, example="perdure workers drain sqlite:///shop.db 01931c5e --reason 'new host'")
@with_target
@click.argument("worker")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@click.option("--grace", metavar="DURATION", help="How long steps may continue.  [default: the worker's own]")
@with_output
def drain(target: str, worker: str, reason: str, grace: str | None, output: Printer) -> None:
    """Order a worker to claim no more runs, let its steps finish and stop.

    WORKER is an id that `perdure workers list` shows, or its beginning.
    """

    async def act(engine: Engine) -> tuple[str, bool]:
        known = [one.id for one in await engine.workers.list() if one.id.startswith(worker)]
        if len(known) > 1 and worker not in known:
            raise click.UsageError(f"{len(known)} workers begin with {worker!r}; give more of the id")
        named = known[0] if len(known) == 1 else worker
        return named, await engine.workers.drain(named, reason, grace=grace)

    named, ordered = with_engine(target, act)
    done, other = f"{named} drains and stops.", f"{named} drains already, has stopped or is dead."
    output.result({"id": named, "draining": ordered}, done if ordered else other)


def _document(worker: WorkerInfo) -> Document:
    running = [step_document(step) for step in worker.running.steps]
    document = {**msgspec.to_builtins(worker), "running": running, "running_more": worker.running.more}
    return {**document, "silence": worker.silence, "taken_over_in": worker.taken_over_in}


#: Types and queues of a worker that its row names, and characters of one name.
_NAMED = 2
_WIDTH = 30


def _few(names: Sequence[str]) -> str:
    """Name the first types or queues, and count the others."""
    first = [name if len(name) <= _WIDTH else f"{name[: _WIDTH - 1]}…" for name in sorted(names)[:_NAMED]]
    more = len(names) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _heard_of(worker: WorkerInfo) -> str:
    late = silence(worker, worker.read_at) if worker.status is WorkerStatus.ALIVE else ""
    return late.removeprefix("last heard of ") or seconds_ago(worker.read_at - worker.heartbeat_at)


def _print_running(output: Printer, workers: Sequence[WorkerInfo]) -> None:
    rows = [
        (
            step.run_id,
            step.type,
            step.location,
            str(step.attempt),
            when(step.since),
            span(worker.read_at - step.since),
            seconds_ago(worker.read_at - step.heartbeat_at) if step.heartbeat_at else "",
            worker.id,
        )
        for worker in workers
        for step in worker.running.steps
    ]
    if rows:
        output.heading("Under way for longer than a second, as of the last heartbeats")
        output.table(("run", "type", "location", "attempt", "since", "for", "heartbeat", "worker"), rows)
    if more := sum(worker.running.more for worker in workers):
        output.hint(f"There are {more} more.")


#: Thresholds of the collector. A busy worker creates and drops millions of objects, hardly any of them in cycles. With
#: Python's threshold of 700 the collector scans the live runs so often that it takes a tenth of the time.
_THRESHOLDS = (20_000, 20, 50)


def tune_collector() -> None:
    """Make the garbage collector scan new objects less often, and imported modules never."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the event loop factory of the extra `fast`; None if it is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    # Imported by name, so that type checkers see the same types without it.
    factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    return factory
