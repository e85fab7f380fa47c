"""A child process of `perdure dev`: the worker, or the server of the dashboard and the HTTP API.

A child loads the user's code once and ends; `perdure dev` starts another one for other code. It ends when its standard
input does, so that it does not outlive its parent.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import traceback
from pathlib import Path

import msgspec
from msgspec import Struct, structs

import perdure
from perdure.cli.children.child_side import BROKEN, NO_TARGET, READY, ParentPipe, stop_with_parent
from perdure.cli.console.target import load_engine
from perdure.cli.dev.lines import LOGGED, EventLines, Line, LinePrinter, configure_log
from perdure.client.engine import Engine
from perdure.client.remote.transport import is_server
from perdure.client.session import session_of
from perdure.client.workers import EngineWorker
from perdure.core.audit import Audit
from perdure.core.codec.decoders import decoder_for
from perdure.core.model.run import Status
from perdure.core.status_signs import STATUS_SIGNS
from perdure.errors import PerdureError, UsageError
from perdure.store.url import SqliteUrl, parse, shown
from perdure.testing.strict import DeterminismGuard
from perdure.worker import WorkerSettings

WORKER, SERVER = "worker", "server"

HOST = "127.0.0.1"
#: Statements a second that live pages may send: one person watches a database of their own.
_LIVE_RATE = 100.0
_PACKAGE = str(Path(perdure.__file__).parent)


class ChildSettings(Struct, frozen=True, kw_only=True):
    """Settings of a child, passed as JSON."""

    role: str
    target: str
    json: bool
    strict: bool
    lease: str
    grace: str
    queues: tuple[str, ...]
    log_level: str
    #: Bound of calls to an unreachable server; None: that of the engine.
    database_timeout: str | None
    #: File descriptors of the listening socket, and of the pipe that says when the child is ready.
    socket: int
    ready: int
    port: int


_settings = decoder_for(ChildSettings)


def main(arguments: list[str]) -> int:
    """Run a child and return its exit code."""
    settings = _settings.decode(arguments[0])
    lines, parent = LinePrinter(json=settings.json), ParentPipe(settings.ready)
    stop_with_parent()
    # The files that hold bytecode know times to the second: an edit within the same second would not be seen.
    sys.dont_write_bytecode = True
    try:
        engine = load_engine(settings.target)
        _check_shared(engine)
        if settings.database_timeout is not None:
            session_of(engine).set_call_timeout(settings.database_timeout)
    except (UsageError, SystemExit) as error:
        return _report(error, lines, parent, settings)
    configure_log(lines, settings.log_level)
    try:
        if settings.strict:
            session_of(engine).codec.be_strict()
        if engine.audit.level is not Audit.OFF:
            # Lower levels have no events of runs that begin and end to wait.
            engine.audit.level = Audit.FULL
        asyncio.run((_work if settings.role == WORKER else _serve)(engine, settings, lines, parent))
    except PerdureError as error:
        return _report(error, lines, parent, settings)
    except KeyboardInterrupt:
        pass
    return 0


def _check_shared(engine: Engine) -> None:
    if is_server(engine.url):
        raise UsageError(
            f"the engine is on {shown(engine.url)}, a server over HTTP; a worker needs the database itself"
        )
    where = parse(engine.url)
    if isinstance(where, SqliteUrl) and where.path is None:
        raise UsageError(
            f"the engine is on {engine.url}, a database in memory, which the worker and the dashboard cannot share; "
            "name a file: sqlite:///app.db"
        )


def _report(error: BaseException, lines: LinePrinter, parent: ParentPipe, settings: ChildSettings) -> int:
    """Tell the parent why a child cannot run; return the exit code. Both children may fail: the parent shows one."""
    cause = error.__cause__
    missing = isinstance(cause, ModuleNotFoundError) and not str(error).startswith("cannot import")
    sign = STATUS_SIGNS[Status.FAILED]
    text = f"the module ends the process: {error!r}" if isinstance(error, SystemExit) else str(error)
    if cause is not None and not missing:
        text = f"{settings.target} cannot be loaded"
    document = {"event": "broken", "target": settings.target, "error": str(error)}
    below = users_traceback(cause) if cause is not None and not missing else ""
    line = Line(word="broken", glyph=sign.glyph, style=sign.style, detail=text, below=below, document=document)
    if not parent.write(msgspec.json.encode(line), last=True):
        lines.show(line)
    return NO_TARGET if isinstance(error, UsageError) and (cause is None or missing) else BROKEN


def users_traceback(error: BaseException) -> str:
    """Format an error without the frames of Perdure and of Python's imports."""
    made = traceback.TracebackException.from_exception(error)
    one: traceback.TracebackException | None = made
    while one is not None:
        frames = [frame for frame in one.stack if not _is_foreign(frame.filename)]
        one.stack = traceback.StackSummary.from_list(frames)
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return "".join(made.format()).rstrip("\n")


def _is_foreign(file: str) -> bool:
    return file.startswith(("<frozen importlib", _PACKAGE)) or Path(file).parent.name == "importlib"


async def _work(engine: Engine, settings: ChildSettings, lines: LinePrinter, parent: ParentPipe) -> None:
    session = session_of(engine)
    worker = engine.worker(lease=settings.lease, grace=settings.grace, queues=settings.queues)
    if settings.strict:
        checked = WorkerSettings.of(
            lease=settings.lease, grace=settings.grace, queues=settings.queues, retention=session.retention
        )
        worker = EngineWorker(session, structs.replace(checked, guard=DeterminismGuard(logs=True)))
    try:
        await worker.connect()
        stop = session.store.observe_events(EventLines(lines, without=LOGGED).observe)
        lines.say(
            "working",
            f"worker {os.getpid()} works on {shown(engine.url)}: {', '.join(sorted(engine.workflows))}",
            pid=os.getpid(), url=shown(engine.url), types=sorted(engine.workflows),
        )  # fmt: skip
        parent.write(READY, last=True)
        await worker.run()
        stop()
    finally:
        await engine.close()


async def _serve(engine: Engine, settings: ChildSettings, lines: LinePrinter, parent: ParentPipe) -> None:
    from perdure.dashboard import Dashboard
    from perdure.http import Access, HttpApp
    from perdure.http.server import make_server

    # A server of a database that cannot be reached is waited for, as by the worker.
    await engine.worker(lease=settings.lease).connect()
    async with engine:
        session_of(engine).store.observe_events(EventLines(lines).observe)
        app = HttpApp(engine, access=Access(anonymous="operator"), live_rate=_LIVE_RATE, pages=Dashboard())
        server = make_server(app, HOST, settings.port)
        parent.write(READY, last=True)
        await server.serve(sockets=[socket.socket(fileno=settings.socket)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
