"""The parent process of `perdure dev`: it starts the worker and the server, and replaces them when code changes.

It never imports the user's code. Children for other code are started beside those that run, which are stopped once the
others are ready. So code that cannot be loaded stops nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perdure.cli.dev.child import BROKEN, NO_TARGET, READY, SERVER, WORKER, ChildSettings
from perdure.cli.dev.lines import Line, LinePrinter
from perdure.core.codec.decoders import decoder_for
from perdure.core.model.run import Status
from perdure.core.status_signs import STATUS_SIGNS
from perdure.core.time.duration import seconds

#: Seconds beyond the grace period after which a child is killed.
_PATIENCE = 5.0
#: Seconds that a child has to live in order not to count as failing, and pauses before another is started.
_STABLE = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0
#: Names of changed files that are shown.
_NAMED = 3

ROLES = (WORKER, SERVER)
_BAD = STATUS_SIGNS[Status.FAILED].style
_line = decoder_for(Line)


class ChildProcess:
    """A child process."""

    def __init__(self, role: str, process: asyncio.subprocess.Process, began: float) -> None:
        self.role = role
        self.process = process
        self.began = began
        self.ready = False
        self.leaving = False
        #: The line that says why the child cannot use the code, as JSON.
        self.report = b""

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the child has ended."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self) -> None:
        """Kill the child and the processes that it has started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


class Changed(Struct, frozen=True):
    """Files of the project have changed."""

    files: tuple[str, ...]


class Ready(Struct, frozen=True):
    """A child has loaded the code and begins to work."""

    child: ChildProcess


class Exited(Struct, frozen=True):
    """A child has ended."""

    child: ChildProcess
    code: int


class Restart(Struct, frozen=True):
    """The pause before missing children are started again is over."""


class Stop(Struct, frozen=True):
    """A signal asks the command to end."""


class Supervisor:
    """Starts, replaces and stops the children. One task handles one incident after the other."""

    def __init__(self, settings: ChildSettings, lines: LinePrinter, on_ready: Callable[[], object]) -> None:
        """`on_ready` is called when both children are ready for the first time."""
        self._settings = settings
        self._lines = lines
        self._on_ready = on_ready
        self._incidents: asyncio.Queue[Changed | Ready | Exited | Restart | Stop] = asyncio.Queue()
        #: By role, the child that works, and the one that loads code in order to replace it.
        self._live: dict[str, ChildProcess] = {}
        self._next: dict[str, ChildProcess] = {}
        self._children: set[ChildProcess] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Children in a row that died young.
        self._failures = 0
        self._was_ready = False
        self._stopping = False
        self._code = 0

    async def run(self, watch: Callable[[Callable[[Sequence[str]], None]], Any] | None) -> int:
        """Run until a signal; return the exit code. `watch` is a coroutine function that reports changed files."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._incidents.put_nowait, Stop())
        watching = None if watch is None else loop.create_task(watch(self._report_changes))
        try:
            await self._load(ROLES)
            while self._children or not self._stopping:
                await self._handle(await self._incidents.get())
        finally:
            if watching is not None:
                watching.cancel()
            for child in self._children:
                child.kill()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self._code

    def _report_changes(self, files: Sequence[str]) -> None:
        self._incidents.put_nowait(Changed(tuple(files)))

    async def _handle(self, incident: Changed | Ready | Exited | Restart | Stop) -> None:
        match incident:
            case Stop():
                self._stop()
            case Exited(child, code):
                self._children.discard(child)
                self._ended(child, code)
            case Ready(child) if self._next.get(child.role) is child:
                child.ready = True
                self._replace()
            case Changed(files) if not self._stopping:
                await self._reload(files)
            case Restart() if not self._stopping:
                await self._load([role for role in ROLES if role not in self._live and role not in self._next])
            case _:
                pass

    # starting and replacing

    async def _load(self, roles: Sequence[str]) -> None:
        for role in roles:
            self._next[role] = await self._spawn(role)

    async def _spawn(self, role: str) -> ChildProcess:
        loop = asyncio.get_running_loop()
        told, ready = os.pipe()
        os.set_blocking(told, False)
        settings = msgspec.structs.replace(self._settings, role=role, ready=ready)
        try:
            process = await asyncio.create_subprocess_exec(
                # -P: modules of the working directory do not replace those of Python and of Perdure.
                *(sys.executable, "-P", "-m", "perdure.cli.dev.child", msgspec.json.encode(settings).decode()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(ready, settings.socket) if role == SERVER else (ready,),
                # Bytecode files name the second and the size of their source: a file that is changed twice in one
                # second would run in its first form.
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
                # A signal of the terminal is for the parent alone, which stops the children in order.
                start_new_session=True,
            )
        finally:
            os.close(ready)
        child = ChildProcess(role, process, loop.time())
        self._children.add(child)
        loop.add_reader(told, self._read_pipe, told, child)
        self._keep(self._await_exit(child, told))
        return child

    def _read_pipe(self, told: int, child: ChildProcess) -> None:
        """Read that a child is ready, or why it cannot use the code."""
        with suppress(BlockingIOError):
            while part := os.read(told, 65536):
                child.report += part
            asyncio.get_running_loop().remove_reader(told)
        if child.report == READY:
            child.report = b""
            self._incidents.put_nowait(Ready(child))

    async def _await_exit(self, child: ChildProcess, told: int) -> None:
        code = await child.process.wait()
        self._read_pipe(told, child)
        asyncio.get_running_loop().remove_reader(told)
        os.close(told)
        self._incidents.put_nowait(Exited(child, code))

    def _keep(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _replace(self) -> None:
        """Put the new children in the place of the old ones, once all of them are ready."""
        if not all(child.ready for child in self._next.values()):
            return
        for child in self._next.values():
            self._promote(child)
        self._next.clear()
        if not self._was_ready and len(self._live) > 1:
            self._was_ready = True
            self._on_ready()

    def _promote(self, child: ChildProcess) -> None:
        former = self._live.get(child.role)
        self._live[child.role] = child
        if former is not None:
            self._end(former)

    async def _reload(self, files: Sequence[str]) -> None:
        named = ", ".join(files[:_NAMED]) + (f" and {len(files) - _NAMED} more" if len(files) > _NAMED else "")
        self._lines.say("changed", f"{named} changed: the code is loaded again", files=list(files))
        self._drop_next()
        self._failures = 0
        await self._load(ROLES)

    def _drop_next(self) -> None:
        """Stop children that still load code; those that have loaded it are good code."""
        for child in self._next.values():
            (self._promote if child.ready else self._end)(child)
        self._next.clear()

    # ends of children

    def _ended(self, child: ChildProcess, code: int) -> None:
        if child.leaving or self._stopping:
            return
        if self._next.get(child.role) is child:
            self._next.pop(child.role)
            self._drop_next()
            if code in (BROKEN, NO_TARGET):
                self._lines.show(_line.decode(child.report))
            else:
                self._report_exit(child, code)
            if code in (BROKEN, NO_TARGET) or child.role in self._live:
                self._refuse_code(code)
                return
        else:
            self._live.pop(child.role)
            self._report_exit(child, code)
        self._restart(child)

    def _report_exit(self, child: ChildProcess, code: int) -> None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._lines.say("exited", f"{child.role} {child.pid} {how}", _BAD, role=child.role, pid=child.pid, code=code)

    def _refuse_code(self, code: int) -> None:
        """Go on with the last good code, or wait for a change. A target that never was one ends the command."""
        if self._live:
            self._lines.say("kept", "the last good code goes on; save a change to load it again", _BAD)
        elif code == NO_TARGET and not self._was_ready:
            self._code = 1
            self._stop()
        else:
            self._lines.say("waiting", "save a change to load the code again", _BAD)

    def _restart(self, child: ChildProcess) -> None:
        """Start missing children after a pause that grows while children die young."""
        loop = asyncio.get_running_loop()
        self._failures = self._failures + 1 if loop.time() - child.began < _STABLE else 0
        pause = min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 9), _LONGEST_PAUSE) if self._failures else 0.0
        self._lines.say(
            "restarting", f"another {child.role} starts {f'in {pause:g} s' if pause else 'now'}", pause=pause
        )
        loop.call_later(pause, self._incidents.put_nowait, Restart())

    # stopping

    def _end(self, child: ChildProcess) -> None:
        """Stop a child in order, and kill it if that takes too long. A second signal would not wait for steps."""
        if child.leaving:
            return
        child.leaving = True
        child.signal(signal.SIGTERM)
        limit = seconds(self._settings.grace) + _PATIENCE
        asyncio.get_running_loop().call_later(limit, child.kill)

    def _stop(self) -> None:
        if self._stopping:
            self._code = 130
            for child in self._children:
                child.kill()
            return
        self._stopping = True
        if not self._code:
            self._lines.say("stopping", f"stopping within {self._settings.grace}; Ctrl-C again stops at once")
        for child in self._children:
            self._end(child)


def describe(path: str) -> str:
    """A path below the working directory, as a person would write it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
