"""`perdure debug`: replay of one run in pdb. Nothing is executed but workflow code, and nothing is written."""

from __future__ import annotations

import asyncio
import inspect
import pdb  # noqa: T100 - the debugger is the feature
import sys
import sysconfig
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from types import FrameType
from typing import Any

import click

from perdure import errors
from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.cli.console.target import is_url, load_engine
from perdure.cli.replay.deploy import FAILED, finding_document, print_findings
from perdure.client.histories import find_history
from perdure.client.session import session_of
from perdure.core.model.histories import RunHistory
from perdure.core.model.record import Record
from perdure.core.printed_text import brief, closest, harmless
from perdure.errors import UnknownWorkflow, UsageError
from perdure.worker import ReplayCheck
from perdure.workflow.definition import Workflow

#: Modules that are not stepped into.
_OWN = (
    *("perdure.replay.*", "perdure.workflow.*", "perdure.worker.*", "perdure.core.*"),
    *("asyncio.*", "contextlib", "typing"),
)
_STANDARD = sysconfig.get_path("stdlib")
_PACKAGE = errors.__file__.removesuffix("errors.py")
#: Characters of a payload that the list of records shows.
_SHOWN = 60


class Debugger(pdb.Pdb):
    """A pdb that stops where the code goes on with the result of an operation, and quits without an exception."""

    def __init__(self, history: RunHistory, at: int | None) -> None:
        """`at`: number of the record to stop at; None: the beginning."""
        super().__init__(skip=list(_OWN), nosigint=True)
        self.prompt = "(perdure) "
        self._history = history
        self._at = at
        self._applied = -1
        #: True: it stops at the next line of workflow code.
        self._armed = False
        #: True while the code of a `def` workflow is executed.
        self._in_greenlet = False
        #: True once the user has quit.
        self.ended = False
        self.stops = 0

    def observe(self, record: Record | None) -> None:
        """Note the record that is applied next, and stop there if it is the one."""
        self._applied = -1 if record is None else record.seq
        if self._applied == (-1 if self._at is None else self._at) and not self.ended:
            self._armed = True
            self.reset()
            self.set_step()
            sys.settrace(self.trace_dispatch)

    @contextmanager
    def following(self, workflow: Workflow[Any, Any]) -> Generator[None]:
        """Follow the code of a `def` workflow, too, each task of which has a stack of its own."""
        if inspect.iscoroutinefunction(workflow.function):
            yield
            return
        # Imported late: only processes with `def` workflows need greenlet.
        import greenlet

        before = greenlet.settrace(self._switched)
        # From Python 3.12 on, lines of a function are traced only if tracing was on when it was called.
        sys.settrace(lambda *_: None)
        try:
            yield
        finally:
            greenlet.settrace(before)

    def _switched(self, event: str, args: tuple[object, object]) -> None:
        """Trace the frames of a task that goes on. Called on the stack of that task."""
        from perdure.workflow.greenlets import WorkflowGreenlet

        self._in_greenlet = isinstance(args[1], WorkflowGreenlet)
        if self._in_greenlet and self._armed:
            # Unlike a coroutine, a function that goes on is not called anew.
            frame = inspect.currentframe()
            while (frame := None if frame is None else frame.f_back) is not None:
                frame.f_trace = self.trace_dispatch

    def user_call(self, frame: FrameType, argument_list: None) -> None:
        """Stop in a function that is stepped into."""
        if not self._armed:
            super().user_call(frame, argument_list)

    def user_line(self, frame: FrameType) -> None:
        """Stop at a line; the first time only in workflow code, which a decoder's code is not."""
        in_workflow = self._in_greenlet or frame.f_code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR)
        if self._armed and (not in_workflow or _is_foreign(frame)):
            return
        self._armed = False
        self.stops += 1
        super().user_line(frame)

    def user_return(self, frame: FrameType, return_value: Any) -> None:
        """Stop at the end of a function."""
        if not self._armed:
            super().user_return(frame, return_value)

    def user_exception(self, frame: FrameType, exc_info: Any) -> None:
        """Stop at an error; not at those that end a wait inside asyncio."""
        if not self._armed:
            super().user_exception(frame, exc_info)

    def do_quit(self, arg: str) -> bool:
        """Stop debugging; the rest of the history is replayed without a stop."""
        # An exception, as pdb raises it, could be caught by the workflow.
        self.ended = True
        self.clear_all_breaks()
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit  # noqa: N815 - the name is the standard library's

    def do_records(self, arg: str) -> None:
        """records: list the history; `>` marks the record that was applied last."""
        for record in self._history.records:
            mark = ">" if record.seq == self._applied else " "
            failed = " failed" if record.failed else ""
            self.message(f"{mark} {record.seq:5} {record.kind}{failed} {record.location}  {_payload(record)}")


def _is_foreign(frame: FrameType) -> bool:
    """True for code that Perdure calls on the stack of a `def` workflow: of Python, or made while the process runs."""
    file = frame.f_code.co_filename
    return file.startswith((_PACKAGE, "<")) or (file.startswith(_STANDARD) and "site-packages" not in file)


def _payload(record: Record) -> str:
    text = harmless(record.payload or "")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_EXAMPLE = "perdure debug order-42 shop:engine --at charge#2"


@click.command("debug", cls=Command, example=_EXAMPLE)
@click.argument("names", nargs=2, metavar="RUN TARGET")
@click.option(
    "--at", metavar="STEP", help="Stop with the result of an operation: charge, charge#2, or a record number."
)
@click.option("--from-file", "file", type=click.Path(dir_okay=False), help="Read the run from an exported file.")
@with_output
def debug(names: tuple[str, str], at: str | None, file: str | None, output: Printer) -> int:
    """Replay the history of a run in pdb, at its first line or at a chosen operation.

    Workflow code runs as it ran, with the recorded results; steps are not executed, and nothing is written. All
    commands of pdb work; `records` lists the history. TARGET is an engine, such as shop:engine.
    """
    run_id, target = names if not _is_engine(names[0]) or _is_engine(names[1]) else names[::-1]
    if is_url(target):
        raise click.UsageError("a replay needs code: name an engine such as shop:engine, not a database")
    engine = load_engine(target)
    session = session_of(engine)
    # Read first: pdb then has the thread to itself, without an event loop.
    history = asyncio.run(find_history(session, run_id, file))
    workflow = session.workflows.get(history.run.type)
    if workflow is None:
        known = closest(history.run.type, session.workflows)
        raise UnknownWorkflow(f"run {run_id!r} is a {history.run.type!r}, and this engine has {known}")
    if not isinstance(workflow, Workflow):
        raise UsageError(f"run {run_id!r} is an activity, which has no history to replay; debug its function itself")
    debugger = Debugger(history, None if at is None else find_record(history.records, at))
    check = ReplayCheck(session.codec, session.errors, session.layers, debugger.observe)
    try:
        with debugger.following(workflow):
            findings = check.findings(history.run, workflow, history.records, history.children)
    finally:
        sys.settrace(None)
    if output.json:
        document = {"id": run_id, "stops": debugger.stops, "end": check.end}
        output.document({**document, "findings": [finding_document(one) for one in findings]})
    else:
        print_findings(output, findings)
        if check.end:
            output.line(check.end)
        elif not history.run.started_at:
            output.line("The run has not begun.")
    return 0 if all(one.is_warning for one in findings) else FAILED


def _is_engine(name: str) -> bool:
    module, colon, path = name.partition(":")
    return bool(colon) and all(part.isidentifier() for part in (*module.split("."), *path.split(".")))


def find_record(records: Sequence[Record], at: str) -> int:
    """Return the number of the record that is meant: by its number, its location, or the name of an operation."""
    if at.isascii() and at.isdigit():
        found = [one.seq for one in records if one.seq == int(at)]
    else:
        # The first of its name has no number.
        found = [one.seq for one in records if one.location in (at, at.removesuffix("#1"))]
    if not found:
        places = list(dict.fromkeys(one.location for one in records if one.location))
        known = f"it has {closest(at, places)}" if places else "it is empty"
        raise UsageError(f"--at {brief(at)} is not in the history; {known}; a record number is given by its digits")
    return found[-1]
