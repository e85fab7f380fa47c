"""Sagas: undo completed steps after a failure.

A step may be undone by another step, which runs if the saga around the first one fails. A saga is an `async with
ctx.saga()` block, or the run as a whole. Undos run one after the other, latest first; each is recorded like any step.
If an undo fails, the others still run, and the original error is still raised. A block that is left without an error
hands its undos to the saga around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from msgspec import Struct

from perdure.core.codec.snapshot import snapshot
from perdure.errors import Evicted, WorkflowError
from perdure.workflow.runtime import ContinueAsNewSignal, Runtime, StepRequest
from perdure.workflow.scopes import shielded
from perdure.workflow.step import spec_of

#: Suffix of the location of an undo; no name of a user contains a `~`.
UNDO = "/~undo"


class UndoStep(Struct, frozen=True):
    """A step that undoes another one."""

    #: Location of the step that is undone.
    location: str
    request: StepRequest
    #: Rises with the completion of the steps that are undone.
    order: int


class WatchedStep(Struct):
    """A step under way that has an undo."""

    future: asyncio.Future[Any]
    #: Adds the undo if the step has succeeded.
    ended: Callable[[asyncio.Future[Any]], None]


class UndoLog:
    """Undos of the completed steps of a run, or of one saga block in it.

    The logs of a run form a tree: each block has the log around it as `outer`, and all share the run's log as `root`.
    """

    def __init__(self, runtime: Runtime, outer: UndoLog | None = None) -> None:
        self._runtime = runtime
        #: Log of the block around this one; None for the run's own.
        self.outer = outer
        #: Log of the run.
        self.root: UndoLog = self if outer is None else outer.root
        #: Task that entered the block.
        self.owner = None if outer is None else asyncio.current_task()
        #: Steps that have an undo and have not ended, by location.
        self.pending: dict[str, WatchedStep] = {}
        #: Undos of steps that have completed, oldest first.
        self.done: list[UndoStep] = []
        #: True once the block was left; what completes from then on belongs to the log around it.
        self.left = False
        #: Of the run's log: the blocks that tasks are in, and the number of undos so far.
        self.blocks: dict[UndoLog, None] = {}
        self.count = 0
        #: Errors of undos that failed, by the location of the step that was to be undone. The run's log has those of
        #: its blocks, too.
        self.errors: dict[str, Exception] = {}
        if outer is not None:
            self.root.blocks[self] = None

    @property
    def needed(self) -> bool:
        """True if there is, or may still be, something to undo."""
        return bool(self.done or self.pending or self.blocks)

    def watch(self, operation: asyncio.Future[Any], undo: Callable[[Any], Any]) -> None:
        """Add an undo for a step, called with the step's result, once the step has succeeded."""
        spec = spec_of(undo)

        def ended(done: asyncio.Future[Any]) -> None:
            log = self.current
            del log.pending[location]
            # Not by `done.exception()`, which would count as awaiting the step.
            if not done.cancelled() and asyncio.Future.exception(done) is None:
                # A copy, because the workflow has the result too, and may change it.
                result = snapshot(asyncio.Future.result(done))
                log.append(location, StepRequest(spec.name or location, spec, (result,), {}, spec.options))

        location = self._runtime.observe(operation, ended)
        self.pending[location] = WatchedStep(operation, ended)

    def add(self, request: StepRequest) -> None:
        """Add an undo by hand, at a location of its own."""
        self.append(self._runtime.reserve_location(request), request.owned())

    def append(self, location: str, request: StepRequest) -> None:
        """Add the undo of the step at a location, in order of completion over the whole run."""
        self.root.count += 1
        self.done.append(UndoStep(location, request, self.root.count))

    def keep(self) -> None:
        """Forget the undos so far: the work is final."""
        self.done.clear()

    @property
    def current(self) -> UndoLog:
        """This log, or the next one around it whose block has not been left."""
        log = self
        while log.left and log.outer is not None:
            log = log.outer
        return log

    def leave(self) -> None:
        """Hand the undos to the block around."""
        self.left = True
        self.root.blocks.pop(self, None)
        outer = self.current
        outer.pending.update(self.pending)
        outer.done = sorted([*outer.done, *self.done], key=lambda undo: undo.order)
        self.pending, self.done = {}, []

    async def settle(self) -> None:
        """Wait for the steps that are still running: they may have to be undone, too."""
        if self.pending:
            await asyncio.wait([step.future for step in self.pending.values()])

    async def settle_blocks(self) -> None:
        """Wait for the blocks of other tasks, which are being cancelled."""
        owners = {block.owner: None for block in self.blocks if block.owner is not None and not block.owner.done()}
        if owners:
            await asyncio.wait(list(owners))
        self.leave_blocks()

    def leave_blocks(self) -> None:
        """Leave all blocks of a run whose tasks were ended."""
        for block in tuple(self.blocks):
            block.leave()

    async def roll_back(self) -> None:
        """Undo everything, including the steps that are still running."""
        await self.settle()
        await self.undo()

    def forget(self, path: str) -> None:
        """Forget the undos inside a scope: its work is final."""
        self.done = [undo for undo in self.done if not undo.location.startswith(path)]

    def add_errors(self, errors: Mapping[str, Exception]) -> None:
        """Remember undos that failed."""
        self.errors.update(errors)
        self.root.errors.update(errors)

    async def undo(self, paths: tuple[str, ...] = ("",)) -> dict[str, Exception]:
        """Undo everything inside some scopes, latest first; returns the errors of undos that failed, by location."""
        failed: dict[str, Exception] = {}
        while found := [undo for undo in self.done if undo.location.startswith(paths)]:
            undo = found[-1]
            self.done.remove(undo)
            try:
                await self._runtime.step_at(undo.location + UNDO, undo.request)
            except Exception as error:
                failed[undo.location] = error
                self.add_errors({undo.location: error})
        return failed


_current: ContextVar[UndoLog] = ContextVar("perdure_undos")


def current_undos(runtime: Runtime) -> UndoLog:
    """The log of the saga block that the calling task is in; the run's own outside of any block."""
    log = _current.get(None)
    if log is not None:
        return log.current
    if runtime.undos is None:
        runtime.undos = UndoLog(runtime)
    return runtime.undos


class Saga:
    """A block that undoes its steps if an exception leaves it. Made by `ctx.saga()`, for `async with`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._undos: UndoLog | None = None

    @property
    def errors(self) -> Mapping[str, Exception]:
        """Errors of undos that failed, by the location of the step that was to be undone."""
        return {} if self._undos is None else self._undos.errors

    def keep(self) -> None:
        """Make the block's work so far final: it will not be undone."""
        if self._undos is not None:
            self._undos.keep()

    async def __aenter__(self) -> Saga:
        if self._undos is not None:
            raise WorkflowError("a saga can be entered once; call `ctx.saga()` for each block")
        self._undos = UndoLog(self._runtime, current_undos(self._runtime))
        _current.set(self._undos)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        undos = self._undos
        assert undos is not None
        assert undos.outer is not None
        if isinstance(error, Evicted | GeneratorExit):
            # The run is evicted, perhaps by the garbage collector in the middle of another run.
            return
        if error is not None and undos.needed and self._runtime.is_broken(error):
            # A bug is no reason to undo anything: the run is blocked here, and goes on with corrected code.
            await self._runtime.halt(error)
        _current.set(undos.outer)
        interrupted: asyncio.CancelledError | None = None
        if error is not None and not isinstance(error, ContinueAsNewSignal) and undos.needed:
            try:
                await shielded(undos.roll_back())
            except asyncio.CancelledError as again:
                interrupted = again
        undos.leave()
        if error is not None:
            for location, problem in undos.errors.items():
                error.add_note(f"What {location!r} did was not undone: {type(problem).__name__}: {problem}")
        if interrupted is not None and not isinstance(error, asyncio.CancelledError):
            raise interrupted


async def undo_losers(runtime: Runtime, paths: tuple[str, ...]) -> dict[str, str]:
    """Undo the branches that lost a race; returns the errors of undos that failed, by location, as JSON."""
    if runtime.undos is None or not paths:
        return {}
    failed = await shielded(current_undos(runtime).undo(paths))
    return {location: runtime.describe(error) for location, error in failed.items()}


def restore_undo_errors(runtime: Runtime, recorded: Mapping[str, str]) -> None:
    """Remember the errors that `undo_losers` returned, which replay does not repeat."""
    if recorded:
        errors = {location: runtime.restore(failure) for location, failure in recorded.items()}
        current_undos(runtime).add_errors(errors)
