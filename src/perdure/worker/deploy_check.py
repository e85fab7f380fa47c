"""The deploy check: replay of a run's history against the code that is here.

Nothing is claimed or written, and nothing is executed but workflow code, up to the end of the history. Call it from a
plain callback of an event loop or without a loop: the run's own loop takes its place meanwhile.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.middleware import Layers
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.reports import DeployFinding, DeployProblem
from perdure.core.model.run import Run
from perdure.core.policy.broken_code import BROKEN_CODE
from perdure.errors import DecodeError, Diverged
from perdure.replay.execution import Execution
from perdure.replay.observed_execution import ObservedExecution, Observer
from perdure.replay.outcome import BrokenCode
from perdure.worker.run.workflow_run import execution_of
from perdure.workflow.definition import Workflow

#: For `ctx.log`: a logger outside of the tree of loggers, so that nothing is printed.
_SILENT = logging.Logger("perdure.check", logging.CRITICAL + 1)  # noqa: LOG001 - it has no handlers on purpose

_BESIDE = "or keep the old code beside the new, as a workflow with a type of its own, until its runs are done"
_EXPECTED = re.compile(r"record \d+: (\w+) '(.*)'")


class ReplayCheck:
    """Replays runs against workflows and reports what does not fit."""

    def __init__(self, codec: Codec, errors: ErrorTypes, layers: Layers, observer: Observer | None = None) -> None:
        """`layers`: middleware. `observer`: called before the workflow is, and before each record is applied."""
        self._layers = layers.workflow
        self._codec = codec
        self._errors = errors
        self._make: Callable[..., Execution] = Execution
        if observer is not None:
            self._make = partial(ObservedExecution, observer=observer)
        #: Sentence about the end of the last replay; empty if it did not come to the end of the history.
        self.end = ""
        #: By the location of each operation that was open then: number of the record that led to it, -1 if none did.
        self.asked: dict[str, int] = {}

    def findings(
        self, run: Run, workflow: Workflow[Any, Any], records: Sequence[Record], children: Iterable[str] = ()
    ) -> list[DeployFinding]:
        """Problems between a run and the code; `children`: locations of children whose outcome is outstanding."""
        try:
            block_on = BROKEN_CODE if workflow.block_on is None else workflow.block_on
            return list(self._replay(run, workflow, records, children, block_on))
        except Diverged as error:
            return [_finding(run, DeployProblem.DIVERGED, error.expected, error.found, _fix(error, records))]
        except BrokenCode as error:
            return [_broken(run, error.__cause__)]
        except DecodeError as error:
            fix = f"let the code read what is stored: a default for what is new, a union for what changed; {_BESIDE}"
            return [_finding(run, DeployProblem.UNDECODABLE, "the data that the run has", str(error), fix)]

    def replay(self, run: Run, workflow: Workflow[Any, Any], records: Sequence[Record]) -> int:
        """Replay a run; return the number of its lesser problems. Raises `Diverged` or `DecodeError` if that fails."""
        return len(list(self._replay(run, workflow, records, ())))

    def _replay(
        self, run: Run, workflow: Workflow[Any, Any], records: Sequence[Record], children: Iterable[str],
        block_on: tuple[type[Exception], ...] = (),
    ) -> Iterator[DeployFinding]:  # fmt: skip
        world = (self._codec, self._errors, _SILENT, block_on)
        execution = execution_of(run, workflow, tuple(records), *world, make=self._make, layers=self._layers)
        self.end = ""
        if not run.started_at:
            return
        try:
            execution.begin()
            execution.replay(lambda: True)
            for warning in execution.warnings:
                fix = "none, if the recorded result is still right; else guard the change with ctx.patched"
                yield _finding(run, DeployProblem.ARGUMENTS, warning, "other arguments or times", fix)
            if execution.outcome is not None and execution.outcome.broken:
                yield _broken(run, execution.outcome.error)
            self.end = _end(execution)
            asked = execution.asked or {}
            self.asked = {one.location: asked.get(one.location, -1) for one in execution.open_operations()}
            yield from _unknown_children(run, execution, children)
        finally:
            execution.evict()


def _end(execution: Execution) -> str:
    """Say where a replay has ended."""
    if execution.outcome is not None:
        return "The history is complete: the code has come to its end."
    places = [f"{one.kind} {one.location!r}" for one in execution.open_operations()]
    places += [f"message {name!r}" for name in execution.awaited_messages()]
    return f"The history ends here; the code waits for {', '.join(places) or 'nothing'}."


def _broken(run: Run, error: BaseException | None) -> DeployFinding:
    found = f"{type(error).__name__}: {error}"
    return _finding(run, DeployProblem.BROKEN, "code that follows the history", found, "correct the code")


def _unknown_children(run: Run, execution: Execution, children: Iterable[str]) -> Iterator[DeployFinding]:
    for location in children:
        if not execution.knows_child(location):
            name = _name(location)
            fix = (
                f'if the child is needed no more: await ctx.removed("{name}", "child"); '
                f'else guard the change: if ctx.patched("..."): ...; {_BESIDE}'
            )
            yield _finding(
                run,
                DeployProblem.DIVERGED,
                f"a child at {location!r}, started and not yet heard of",
                execution.position(location),
                fix,
            )


def _finding(run: Run, problem: DeployProblem, expected: str, found: str, fix: str) -> DeployFinding:
    return DeployFinding(run_id=run.id, type=run.type, problem=problem, expected=expected, found=found, fix=fix)


def _fix(error: Diverged, records: Sequence[Record]) -> str:
    """Advice on a divergence."""
    what = _EXPECTED.fullmatch(error.expected)
    if what is None:
        return _BESIDE
    kind, location = what[1], what[2]
    name = _name(location)
    if kind == RecordKind.VERSION:
        return f'if nothing depends on the version any more: await ctx.removed("{name}", "version")'
    if "with the arguments of another" in error.found or "with the same arguments" in error.found:
        return (
            "make the calls in the recorded order (iterate over something sorted), "
            f'or guard the change: if ctx.patched("..."): ...; {_BESIDE}'
        )
    removed = f'await ctx.removed("{name}", "{kind}")'
    if error.found.startswith("the workflow"):
        return f"if it is needed no more, say so where it was: {removed}; {_BESIDE}"
    asked = re.findall(r"\w+ '([^']*)'", error.found)
    recorded = {record.location for record in records}
    if asked and all(place in recorded for place in asked):
        return (
            'keep the recorded order, or guard the new one: if ctx.patched("..."): ...; '
            f"if {name!r} is needed no more: {removed}; {_BESIDE}"
        )
    return f'guard what is new: if ctx.patched("..."): ...; if {name!r} is needed no more: {removed}; {_BESIDE}'


def _name(location: str) -> str:
    return location.rpartition("/")[2].partition("#")[0]
