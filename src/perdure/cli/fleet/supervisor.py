"""The parent process of `perdure worker --processes`: it starts worker processes, replaces and stops them.

It never imports the user's code, so that a reload gets all of it anew. It holds no runs: what a worker process held
when it died goes to the others when its lease ends, as after any death.
"""

from __future__ import annotations

import asyncio
import logging
import signal

import msgspec
from msgspec import Struct

from perdure.cli.children.child_side import READY
from perdure.cli.children.parent_side import ChildProcess, Children, RestartPauses
from perdure.cli.console.output import Printer
from perdure.cli.fleet.messages import Broken, FleetSettings, Loaded
from perdure.cli.fleet.shares import Shares, usable_processors
from perdure.core.codec.decoders import decoder_for
from perdure.errors import UsageError

logger = logging.getLogger("perdure.worker")

#: Seconds beyond the grace period after which a process is killed. A worker repeats its last writes for 30 seconds.
_PATIENCE = 40.0
#: Seconds that processes have after a second signal before they are killed.
_SECOND_PATIENCE = 10.0
#: Seconds that a process has to live in order not to count as failing, and pauses before another is started.
_STABLE = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
#: Deaths in a row from which on a process crashes in a loop.
_LOOP = 3

_MODULE = "perdure.cli.fleet.child"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_loaded = decoder_for(Loaded)
_broken = decoder_for(Broken)


class FleetMember:
    """One of the processes of the command, by its number. A child that ends is replaced."""

    def __init__(self, number: int) -> None:
        self.number = number
        #: The child that works, or is to work as the first one here.
        self.live: ChildProcess | None = None
        #: The child that is to replace it.
        self.next: ChildProcess | None = None
        self.pauses = RestartPauses(stable=_STABLE, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)


class Heard(Struct, frozen=True):
    """A child has written a line."""

    child: ChildProcess
    line: bytes


class Ended(Struct, frozen=True):
    """A child has ended."""

    child: ChildProcess


class StartAgain(Struct, frozen=True):
    """The pause before a process is started again is over."""

    member: FleetMember


class Signalled(Struct, frozen=True):
    """A signal has arrived."""

    number: signal.Signals


Incident = Heard | Ended | StartAgain | Signalled


class FleetSupervisor:
    """Starts, replaces and stops worker processes. One task handles one incident after the other."""

    def __init__(self, settings: FleetSettings, processes: int | str, shares: Shares, output: Printer) -> None:
        """`processes`: a number, or "auto". Raises `UsageError`."""
        if not isinstance(processes, str):
            shares.check(processes)
        self._settings = settings
        self._shares = shares
        self._output = output
        #: None until the first process has told which database it needs.
        self._count = None if isinstance(processes, str) else processes
        self._members: list[FleetMember] = [FleetMember(1)]
        self._incidents: asyncio.Queue[Incident] = asyncio.Queue()
        self._children = Children(
            lambda child, line: self._incidents.put_nowait(Heard(child, line)),
            lambda child, _: self._incidents.put_nowait(Ended(child)),
        )
        self._loaded: Loaded | None = None
        #: What each child that cannot go on has told.
        self._broken: dict[ChildProcess, str] = {}
        self._was_ready = False
        self._reload_wanted = False
        self._stopping = False
        self._hurried = False
        self._error: str | None = None

    async def run(self) -> None:
        """Run until a signal. Raises `UsageError` if the code or the database cannot be used from the beginning."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._incidents.put_nowait, Signalled(number))
        try:
            await self._start(self._members[0])
            while self._children.alive or not self._stopping or not self._incidents.empty():
                await self._handle(await self._incidents.get())
        finally:
            for child in self._children.alive:
                child.kill()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
        if self._error is not None:
            raise UsageError(self._error)

    async def _handle(self, incident: Incident) -> None:
        match incident:
            case Heard(child, line) if line == READY:
                self._child_ready(child)
                if self._reload_wanted:
                    self._reload_wanted = False
                    await self._reload()
            case Heard(child, line):
                await self._hear(child, line)
            case Ended(child):
                self._child_ended(child)
            case StartAgain(member) if not self._stopping and member.live is None and member.next is None:
                await self._start(member)
            case Signalled(signal.SIGHUP):
                await self._reload()
            case Signalled():
                self._stop()
            case _:
                pass

    # starting

    async def _start(self, member: FleetMember) -> None:
        member.live = await self._spawn(member)

    async def _spawn(self, member: FleetMember) -> ChildProcess:
        return await self._children.spawn(
            f"worker process {member.number}",
            _MODULE,
            lambda told: msgspec.structs.replace(self._settings, told=told),
            environment={"PYTHONUNBUFFERED": "1"},
        )

    async def _hear(self, child: ChildProcess, line: bytes) -> None:
        """Give a process that has loaded the code its share, or note why it cannot go on."""
        try:
            report = _loaded.decode(line)
        except msgspec.ValidationError:
            self._broken[child] = _broken.decode(line).error
            return
        member = self._member_of(child)
        if member is None or child.leaving:
            return
        self._loaded = report
        if len(self._members) == 1:
            await self._add_members(report)
        child.send(msgspec.json.encode(self._shares.of(member.number, len(self._members))))

    async def _add_members(self, report: Loaded) -> None:
        """Decide on the number of processes, once the first one has told the database, and start the others."""
        if self._count is None:
            self._count = 1 if report.exclusive else min(usable_processors(), self._shares.slots)
            if report.exclusive:
                logger.info(
                    "one worker process for %s: SQLite has one writer at a time; give a number of processes if steps "
                    "or workflows keep a processor busy", report.url,
                )  # fmt: skip
        elif report.exclusive and self._count > 1 and not self._was_ready:
            logger.warning(
                "%d worker processes share %s, which has one writer at a time: they help code that keeps a processor "
                "busy, and do not record more steps; PostgreSQL and MySQL do", self._count, report.url,
            )  # fmt: skip
        while len(self._members) < self._count:
            self._members.append(FleetMember(len(self._members) + 1))
            if not self._stopping:
                await self._start(self._members[-1])

    def _child_ready(self, child: ChildProcess) -> None:
        child.ready = True
        member, loaded = self._member_of(child), self._loaded
        if member is None or child.leaving or loaded is None:
            return
        self._was_ready = True
        document = {
            "event": "working", "process": member.number, "pid": child.pid, "url": loaded.url, "types": loaded.types,
        }  # fmt: skip
        if self._output.json:
            self._output.document(document)
        else:
            which = f"{child.pid}, {member.number} of {len(self._members)}"
            self._output.line(f"working on {loaded.url} as process {which}: {', '.join(loaded.types)}")
        if member.next is child:
            self._replace()

    def _member_of(self, child: ChildProcess) -> FleetMember | None:
        return next((one for one in self._members if child in (one.live, one.next)), None)

    # reloading

    async def _reload(self) -> None:
        """Start processes with the code as it is now; they replace the others once all of them work."""
        if self._stopping:
            return
        if not self._was_ready:
            # What loads now may have read some of the former code.
            self._reload_wanted = True
            return
        logger.info("SIGHUP: %d worker processes start with the code as it is now", len(self._members))
        self._drop_next()
        for member in self._members:
            member.next = await self._spawn(member)

    def _replace(self) -> None:
        if not all(member.next is not None and member.next.ready for member in self._members):
            return
        for member in self._members:
            former, member.live, member.next = member.live, member.next, None
            member.pauses.failures = 0
            if former is not None:
                self._drain(former)
        logger.info("the new worker processes work; the old ones drain")

    def _drop_next(self) -> None:
        for member in self._members:
            if member.next is not None:
                self._drain(member.next)
                member.next = None

    # ends of processes

    def _child_ended(self, child: ChildProcess) -> None:
        member, reason = self._member_of(child), self._broken.pop(child, None)
        if member is None:
            return
        lived = asyncio.get_running_loop().time() - child.began
        if member.next is child:
            member.next = None
            if not self._stopping:
                self._refuse_reload(f"{child.role} {child.pid} {child.how_it_ended()}" if reason is None else reason)
            return
        member.live = None
        if self._stopping:
            return
        if reason is not None and not self._was_ready:
            self._error = self._error or reason
            self._stop()
        elif member.next is None:
            self._start_again(member, child, lived, reason)

    def _refuse_reload(self, reason: str) -> None:
        logger.error("the new code is not used, and the old worker processes go on: %s", reason)
        self._drop_next()
        for member in self._members:
            if member.live is None:
                self._incidents.put_nowait(StartAgain(member))

    def _start_again(self, member: FleetMember, child: ChildProcess, lived: float, reason: str | None) -> None:
        pause = member.pauses.after(lived)
        how = f"{child.role}, pid {child.pid}, {child.how_it_ended()} after {lived:.1f} s"
        if reason is not None:
            how += f" ({reason})"
        then = f"another starts {f'in {pause:g} s' if pause else 'now'}"
        if member.pauses.failures >= _LOOP:
            logger.critical(
                "crash loop: %s, the death number %d in a row; %s; its runs are taken over when its lease ends",
                how, member.pauses.failures, then,
            )  # fmt: skip
        else:
            level = logging.WARNING if child.process.returncode == 0 else logging.ERROR
            logger.log(level, "%s; %s", how, then)
        asyncio.get_running_loop().call_later(pause, self._incidents.put_nowait, StartAgain(member))

    # stopping

    def _drain(self, child: ChildProcess) -> None:
        """Let a process finish its steps, and kill it if that takes too long."""
        if child.leaving:
            return
        child.leaving = True
        # A signal would be the second one where a service manager signals all processes of a service.
        child.close_input()
        asyncio.get_running_loop().call_later(self._settings.grace + _PATIENCE, child.kill)

    def _stop(self) -> None:
        if self._stopping:
            self._hurry()
            return
        self._stopping = True
        if self._error is None:
            logger.info("%d worker processes drain; a second signal ends them at once", len(self._children.alive))
        for child in self._children.alive:
            self._drain(child)

    def _hurry(self) -> None:
        if not self._hurried:
            self._hurried = True
            logger.warning("second signal: %d worker processes end at once", len(self._children.alive))
            for child in self._children.alive:
                child.hurry(_SECOND_PATIENCE)
