"""Notices I/O of workflow code while it runs, by the audit events of Python.

The audit hook is process-wide and stays for the life of the process, so it does as little as possible: a lookup in a
set, and for I/O the question whether the thread executes a run whose worker has a guard. Imports, sources for
tracebacks, time zones, log handlers and data of installed packages are exempt: they do not make a workflow differ.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import sysconfig
import zoneinfo
from asyncio.events import _get_running_loop
from collections.abc import Callable
from types import FrameType
from typing import Any

from msgspec import Struct

from perdure.errors import NotInWorkflow
from perdure.replay.run_loop import RunLoop

logger = logging.getLogger("perdure.worker")

_FILES, _NETWORK, _PROCESSES, _THREADS = (
    "uses the file system",
    "uses the network",
    "starts a process",
    "starts a thread",
)

#: Audit events of I/O, with the words for them.
IO_EVENTS = {
    **dict.fromkeys(
        (
            "open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link",
            "os.symlink", "os.truncate", "shutil.copyfile", "shutil.move", "shutil.rmtree", "tempfile.mkstemp",
            "tempfile.mkdtemp", "glob.glob", "pathlib.Path.glob", "sqlite3.connect",
        ),
        _FILES,
    ),
    **dict.fromkeys(
        (
            "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
            "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo", "http.client.connect",
            "urllib.Request", "smtplib.connect", "ftplib.connect", "imaplib.open", "poplib.connect",
        ),
        _NETWORK,
    ),
    **dict.fromkeys(
        ("subprocess.Popen", "os.system", "os.posix_spawn", "os.exec", "os.fork", "os.forkpty", "os.spawn"), _PROCESSES
    ),
    **dict.fromkeys(("_thread.start_new_thread", "_thread.start_joinable_thread"), _THREADS),
    "time.sleep": "blocks the worker",
}  # fmt: skip

#: Packages whose I/O does not make a workflow differ: imports, tracebacks, time zones, logs, traces, debuggers.
_EXEMPT = frozenset(
    (
        "_frozen_importlib", "_frozen_importlib_external", "importlib", "zipimport", "pkgutil", "linecache", "tokenize",
        "traceback", "warnings", "zoneinfo", "tzlocal", "dateutil", "pytz", "gettext", "locale", "encodings", "logging",
        "loguru", "structlog", "sentry_sdk", "opentelemetry", "ddtrace", "pdb", "bdb", "pydevd", "weakref", "site",
    )
)  # fmt: skip

#: Libraries that call workflow code, such as the routing functions of a graph. What they do by themselves is theirs:
#: they name checkpoints and measure durations, by which no graph goes.
_FRAMEWORKS = frozenset(("langchain_core", "langgraph", "langsmith"))

#: Parts of Perdure that call workflow code. I/O below other parts, such as the codec, is not the workflow's.
_CALLERS = ("perdure.replay.", "perdure.workflow.")

#: Data of installed code, which changes only with the code.
_INSTALLED = tuple(
    f"{path}{os.sep}"
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)

_REMEDY = "do it in a step: `await ctx.step(function, ...)`, or in an activity of a state machine"


class CodeLine(Struct, frozen=True):
    """A line of workflow code."""

    file: str
    line: int
    function: str
    #: Function of another package that the line calls; empty if it does the thing itself.
    through: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} (in {self.function})"


def place_of(frame: FrameType | None) -> CodeLine | None:
    """Find the line of workflow code that a call comes from; None if it is exempt or not the workflow's."""
    inside: list[tuple[str, FrameType]] = []
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        root = name.partition(".")[0]
        if root == "perdure":
            return _innermost(inside) if name.startswith(_CALLERS) else None
        if root in _EXEMPT or _is_of_collector(frame):
            return None
        inside.append((root, frame))
        frame = frame.f_back
    return None


def _is_of_collector(frame: FrameType) -> bool:
    """True for finalizers and callbacks of the garbage collector, which come in the middle of any code."""
    code = frame.f_code
    return code.co_name == "__del__" or any(getattr(one, "__code__", None) is code for one in gc.callbacks)


def _innermost(inside: list[tuple[str, FrameType]]) -> CodeLine | None:
    """The innermost frame of the package that the workflow belongs to: below it are libraries."""
    own = [root for root, _ in inside if root not in sys.stdlib_module_names and root not in _FRAMEWORKS]
    called = ""
    for root, frame in inside:
        if own and root == own[-1]:
            return CodeLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname, called)
        called = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
    return None


class IoGuard:
    """Warns of I/O in workflow code, once for each line."""

    #: Called with each drain of a run's loop, to trace it; None: drains are not traced.
    trace: Callable[[Callable[[], None]], None] | None = None

    def __init__(self) -> None:
        self._warned: set[tuple[str, int]] = set()

    def saw_io(self, event: str, args: tuple[Any, ...], frame: FrameType | None) -> None:
        """Look at an audit event that happened while code of the run was executed."""
        if event == "open" and _is_installed(args):
            return
        try:
            place = place_of(frame)
        except Exception:  # modules may have odd names; a warning must not break their code
            return
        if place is not None:
            what = f"{IO_EVENTS[event]}{_detail(event, args)}{through(place)}; a replay does it again"
            self.saw(place, what, _REMEDY)

    def saw(self, place: CodeLine, what: str, remedy: str) -> None:
        """Warn, unless this line was reported before."""
        key = place.file, place.line
        if key not in self._warned:
            self._warned.add(key)
            logger.warning("workflow code at %s %s; %s", place, what, remedy)


class StrictGuard(IoGuard):
    """Raises `NotInWorkflow` in place of a warning."""

    def __init__(self) -> None:
        super().__init__()
        #: By run, the first error that was raised; the workflow may have caught it.
        self.raised: dict[str, NotInWorkflow] = {}

    def saw(self, place: CodeLine, what: str, remedy: str) -> None:
        """Raise `NotInWorkflow`."""
        loop = _get_running_loop()
        run_id = loop.run_id if isinstance(loop, RunLoop) else ""
        error = NotInWorkflow(f"workflow code of run {run_id!r} at {place} {what}; {remedy}")
        self.raised.setdefault(run_id, error)
        raise error


def through(place: CodeLine) -> str:
    """Words for the function of another package that did it."""
    return f" through {place.through}" if place.through else ""


def _is_installed(args: tuple[Any, ...]) -> bool:
    """True if a file of installed code or of the time zones is opened for reading."""
    path, mode, flags = args
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    is_read = not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if mode is None else not set("wax+") & set(mode)
    return is_read and isinstance(path, str) and path.startswith((*_INSTALLED, *zoneinfo.TZPATH))


def _detail(event: str, args: tuple[Any, ...]) -> str:
    shown = next((each for each in args if isinstance(each, str | bytes)), None)
    return f" ({event})" if shown is None else f" ({event} {shown!r})"


def _make_hook() -> Callable[[str, tuple[Any, ...]], None]:
    # Bound here, because the hook outlives the names of this module when the interpreter ends.
    def hook(
        event: str,
        args: tuple[Any, ...],
        watched: frozenset[str] = frozenset(IO_EVENTS),
        running: Callable[[], Any] = _get_running_loop,
        frame: Callable[[int], FrameType] = sys._getframe,
    ) -> None:
        if event in watched:
            guard = getattr(running(), "guard", None)
            if guard is not None:
                guard.saw_io(event, args, frame(1))

    return hook


_installed = False
#: One for all workers of the process, so that each line is reported once.
_io_guard = IoGuard()


def io_guard() -> IoGuard:
    """The guard of this process."""
    return _io_guard


def install_audit_hook() -> None:
    """Listen to audit events from now on, for the life of the process."""
    global _installed  # noqa: PLW0603 - a hook cannot be removed, so the process has one
    if not _installed:
        _installed = True
        sys.addaudithook(_make_hook())
