"""Whether there is code for the runs that are there, and whether it fits them: the half of an engine that guards a deploy."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from perdure.client.inspect import is_unserved, served_elsewhere
from perdure.client.steering import Control
from perdure.core.codec.failure import ErrorTypes
from perdure.core.model.claim import LoadedRun
from perdure.core.model.deploy_report import DeployFinding, DeployProblem, DeployReport
from perdure.core.model.record import RecordKind
from perdure.core.model.run import FINISHED, Reason, Run, RunFilter, Status
from perdure.errors import UsageError
from perdure.store import open_store
from perdure.store.contract import Store
from perdure.worker import ReplayCheck
from perdure.workflow.definition import Definition, Workflow

T = TypeVar("T")

UNFINISHED = tuple(status for status in Status if status not in FINISHED)
PAGE = 100


class Checking(Control):
    """What an `Engine` knows about code and runs."""

    url: str
    workflows: dict[str, Definition[Any, Any]]
    _errors: ErrorTypes

    @abstractmethod
    def _is_at_hand(self) -> bool:
        """Whether the engine's store is open, or is somebody else's to open. Raises `EngineClosed`."""

    async def unserved(self, runs: Sequence[Run]) -> set[str]:
        """The ids of those of the runs that are ready and that no live worker takes: their type or their queue has none."""
        store = await self._opened()
        workers, now = await store.workers(), await store.now()
        elsewhere = served_elsewhere(await store.types())
        return {run.id for run in runs if is_unserved(run, workers, elsewhere, now)}

    async def check(self, *, types: Sequence[str] | None = None, limit: int | None = None) -> DeployReport:
        """Replay the history of every unfinished run, or of those of some types, against this code. Nothing is written.

        The gate before a deploy: says which runs would diverge, where, and what to do about it. `limit` bounds how many runs are
        looked at, newest first.
        """
        if limit is not None and limit < 1:
            raise UsageError(f"limit must be at least 1, not {limit}")
        if isinstance(types, str):
            raise UsageError(f"types is a list of workflow types: [{types!r}]")
        findings: list[DeployFinding] = []
        checked, more = 0, False
        async with self._looking() as store:
            async for runs in _pages(store, types):
                room = len(runs) if limit is None else limit - checked
                more = len(runs) > room
                for loaded in await store.load([run.id for run in runs[:room]]):
                    if not loaded.run.status.finished:
                        checked += 1
                        findings += await self._check(store, loaded)
                if more or (limit is not None and checked >= limit):
                    break
        return DeployReport(checked=checked, more=more, findings=tuple(findings))

    async def _check(self, store: Store, loaded: LoadedRun) -> list[DeployFinding]:
        run = loaded.run
        workflow = self.workflows.get(run.type)
        if workflow is None:
            return [_unserved(run, self.workflows)]
        if not isinstance(workflow, Workflow):
            return []  # an activity has no history that its code would have to follow
        children = await _unheard_children(store, loaded)
        checkup = ReplayCheck(self._codec, self._errors)
        return await aside(lambda: checkup.findings(run, workflow, loaded.records, children))

    @asynccontextmanager
    async def _looking(self) -> AsyncGenerator[Store, None]:
        """A store that may read and must not migrate: the engine's own, if that is open already."""
        if self._is_at_hand():
            yield await self._opened()
            return
        store = open_store(self.url, self._system, migrate=False)
        await store.open()
        try:
            yield store
        finally:
            await store.close()


async def _pages(store: Store, types: Sequence[str] | None) -> AsyncIterator[tuple[Run, ...]]:
    for type in [None] if types is None else dict.fromkeys(types):
        cursor: str | None = None
        while True:
            page = await store.list(RunFilter(status=UNFINISHED, type=type), PAGE, cursor)
            yield page.runs
            cursor = page.cursor
            if cursor is None:
                break


async def _unheard_children(store: Store, loaded: LoadedRun) -> list[str]:
    """The places of children whose end the run's history does not have yet."""
    run = loaded.run
    waits = run.reason is Reason.CHILD or any(message.kind is RecordKind.CHILD for message in loaded.inbox)
    # A run that began anew, or is tried anew, has children of the time before.
    if not waits or run.generation > 1 or run.attempt > 1:
        return []
    heard = {record.location for record in loaded.records if record.kind is RecordKind.CHILD}
    places: dict[str, None] = {}
    cursor: str | None = None
    while True:
        page = await store.list(RunFilter(parent_id=run.id), PAGE, cursor)
        places.update((one, None) for child in page.runs if (one := child.parent_location) and one not in heard)
        cursor = page.cursor
        if cursor is None:
            return list(places)


def _unserved(run: Run, workflows: dict[str, Definition[Any, Any]]) -> DeployFinding:
    return DeployFinding(
        run_id=run.id,
        type=run.type,
        problem=DeployProblem.UNSERVED,
        expected=f"a workflow of the type {run.type!r}",
        found=f"only {', '.join(sorted(workflows)) or 'nothing'}",
        fix="keep it among the engine's workflows until its runs are done; or check only the types of this engine",
    )


async def aside(work: Callable[[], T]) -> T:
    """Do it in a callback of its own: a run's loop must not take the place of one that is in the middle of a task."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def act() -> None:
        try:
            result = work()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(result)

    loop.call_soon(act)
    return await done
