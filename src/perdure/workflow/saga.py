"""Undoing what was done.

What a step did can be undone by a step of its own, which runs if the saga around it fails: an `async with ctx.saga()` block, or the
run as a whole. Undos run one after the other, what was done last first; each is recorded like any step. One that fails does
not keep the others from running, nor the error that led to it from going on. Leaving a block without an error hands its undos
to the saga around it.
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

#: What ends the location of an undo; no name of a user's contains a `~`.
UNDO = "/~undo"


class UndoStep(Struct, frozen=True):
    """What undoes something that was done."""

    #: Of what is undone.
    location: str
    request: StepRequest
    #: Rises with the completion of what is undone.
    order: int


class UndoLog:
    """How to undo what has been done so far in a run, or in a block of it."""

    def __init__(self, runtime: Runtime, outer: UndoLog | None = None) -> None:
        self._runtime = runtime
        self._outer = outer
        self._root: UndoLog = self if outer is None else outer._root
        #: The task that is in the block.
        self._owner = None if outer is None else asyncio.current_task()
        self._pending: dict[str, asyncio.Future[Any]] = {}
        self._done: list[UndoStep] = []
        #: The block was left, and what is done in it from now on belongs to the one around it.
        self._left = False
        #: Of the run alone: the blocks that it is in, and how many undos there have been.
        self._blocks: dict[UndoLog, None] = {}
        self._count = 0
        #: Errors of undos that failed, by the location of what was to be undone; the run's has those of its blocks, too.
        self.errors: dict[str, Exception] = {}
        if outer is not None:
            self._root._blocks[self] = None

    @property
    def needed(self) -> bool:
        """Whether there is, or may be, something to undo."""
        return bool(self._done or self._pending or self._blocks)

    def watch(self, operation: asyncio.Future[Any], undo: Callable[[Any], Any]) -> None:
        """Undo a step with its result, should it succeed."""
        spec = spec_of(undo)

        def ended(done: asyncio.Future[Any]) -> None:
            undos = self.current
            del undos._pending[location]
            # Not as the workflow would ask: this is no one awaiting it.
            if not done.cancelled() and asyncio.Future.exception(done) is None:
                # As it is now: the workflow has the result too, and may change it.
                result = snapshot(asyncio.Future.result(done))
                undos._add(location, StepRequest(spec.name or location, spec, (result,), {}, spec.options))

        location = self._runtime.observe(operation, ended)
        self._pending[location] = operation

    def add(self, request: StepRequest) -> None:
        """Something was done that the request undoes."""
        self._add(self._runtime.reserve_location(request), request.owned())

    def _add(self, location: str, request: StepRequest) -> None:
        self._root._count += 1
        self._done.append(UndoStep(location, request, self._root._count))

    def keep(self) -> None:
        """Forget how to undo what has been done so far."""
        self._done.clear()

    @property
    def current(self) -> UndoLog:
        """These, or those of the next block around that has not been left."""
        undos = self
        while undos._left and undos._outer is not None:
            undos = undos._outer
        return undos

    def leave(self) -> None:
        """Hand over to the block around."""
        self._left = True
        self._root._blocks.pop(self, None)
        outer = self.current
        outer._pending.update(self._pending)
        outer._done = sorted([*outer._done, *self._done], key=lambda undo: undo.order)
        self._pending, self._done = {}, []

    async def settle(self) -> None:
        """Wait for the steps that are under way: what they do is to be undone, too."""
        if self._pending:
            await asyncio.wait(list(self._pending.values()))

    async def settle_blocks(self) -> None:
        """Wait for the blocks that other tasks are in, which are being cancelled."""
        owners = {block._owner: None for block in self._blocks if block._owner is not None and not block._owner.done()}
        if owners:
            await asyncio.wait(list(owners))
        for block in tuple(self._blocks):
            block.leave()

    async def roll_back(self) -> None:
        """Undo everything, also what is being done."""
        await self.settle()
        await self.undo()

    def forget(self, path: str) -> None:
        """What was done inside a scope is final."""
        self._done = [undo for undo in self._done if not undo.location.startswith(path)]

    def note(self, errors: Mapping[str, Exception]) -> None:
        """Undos have failed."""
        self.errors.update(errors)
        self._root.errors.update(errors)

    async def undo(self, paths: tuple[str, ...] = ("",)) -> dict[str, Exception]:
        """Undo everything inside some scopes, what was done last first; what failed of that."""
        failed: dict[str, Exception] = {}
        while found := [undo for undo in self._done if undo.location.startswith(paths)]:
            undo = found[-1]
            self._done.remove(undo)
            try:
                await self._runtime.step_at(undo.location + UNDO, undo.request)
            except Exception as error:
                failed[undo.location] = error
                self.note({undo.location: error})
        return failed


_current: ContextVar[UndoLog] = ContextVar("perdure_undos")


def current_undos(runtime: Runtime) -> UndoLog:
    """Those of the block that the calling task is in; the run's, if it is in none."""
    undos = _current.get(None)
    if undos is not None:
        return undos.current
    if runtime.undos is None:
        runtime.undos = UndoLog(runtime)
    return runtime.undos


class Saga:
    """A block whose steps are undone if an exception leaves it. Made by `ctx.saga()`, for `async with`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._undos: UndoLog | None = None

    @property
    def errors(self) -> Mapping[str, Exception]:
        """Errors of undos that failed, by the location of what was to be undone."""
        return {} if self._undos is None else self._undos.errors

    def keep(self) -> None:
        """What was done in this block so far is final, and will not be undone."""
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
        assert undos._outer is not None
        if isinstance(error, Evicted | GeneratorExit):
            # The run is let go of, perhaps by the garbage collector in the middle of another.
            return
        _current.set(undos._outer)
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
    """Undo what was done inside of scopes that are given up; what failed of that, as it is recorded."""
    if runtime.undos is None or not paths:
        return {}
    failed = await shielded(current_undos(runtime).undo(paths))
    return {location: runtime.describe(error) for location, error in failed.items()}


def restore_undo_errors(runtime: Runtime, recorded: Mapping[str, str]) -> None:
    """What `undo_losers` found, which is not done again on replay."""
    if recorded:
        current_undos(runtime).note({location: runtime.restore(failure) for location, failure in recorded.items()})
