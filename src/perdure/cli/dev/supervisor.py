"""The parent process of `perdure dev`: it starts the worker and the server, and replaces them when code changes.

It never imports the user's code. Children for other code are started beside those that run, which are stopped once the
others are ready. So code that cannot be loaded stops nothing.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perdure.cli.children.child_side import BROKEN, NO_TARGET, READY
from perdure.cli.children.parent_side import ChildProcess, Children, RestartPauses
from perdure.cli.dev.child import SERVER, WORKER, ChildSettings
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
        #: By child that cannot use the code, the line that says why, as JSON.
        self._reports: dict[ChildProcess, bytes] = {}
        self._children = Children(self._hear, lambda child, code: self._incidents.put_nowait(Exited(child, code)))
        self._pauses = RestartPauses(stable=_STABLE, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
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
            while self._children.alive or not self._stopping or not self._incidents.empty():
                await self._handle(await self._incidents.get())
        finally:
            if watching is not None:
                watching.cancel()
            for child in self._children.alive:
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
        return await self._children.spawn(
            *(role, "perdure.cli.dev.child"),
            lambda ready: msgspec.structs.replace(self._settings, role=role, ready=ready),
            files=(self._settings.socket,) if role == SERVER else (),
            # Bytecode files name the second and the size of their source: a file that is changed twice in one second
            # would run in its first form.
            environment={"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def _hear(self, child: ChildProcess, line: bytes) -> None:
        """Note that a child is ready, or why it cannot use the code."""
        if line == READY:
            self._incidents.put_nowait(Ready(child))
        else:
            self._reports[child] = line

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
        self._pauses.failures = 0
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
                self._lines.show(_line.decode(self._reports.pop(child)))
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
        text = f"{child.role} {child.pid} {child.how_it_ended()}"
        self._lines.say("exited", text, _BAD, role=child.role, pid=child.pid, code=code)

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
        pause = self._pauses.after(loop.time() - child.began)
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
            for child in self._children.alive:
                child.kill()
            return
        self._stopping = True
        if not self._code:
            self._lines.say("stopping", f"stopping within {self._settings.grace}; Ctrl-C again stops at once")
        for child in self._children.alive:
            self._end(child)


def describe(path: str) -> str:
    """A path below the working directory, as a person would write it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path
