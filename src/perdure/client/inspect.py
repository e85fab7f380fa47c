"""What there is: the half of an engine that lists runs and workers, and says why a run is where it is."""

from __future__ import annotations

import builtins
import datetime
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from perdure.client.why import explain
from perdure.core.ids import check_id
from perdure.core.model.listing import Page, RunFilter
from perdure.core.model.run import Event, Message, Record, Run, Status
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.time.duration import instant
from perdure.errors import RunNotFound, UsageError
from perdure.store.contract import Store
from perdure.store.url import shown


class Looking(ABC):
    """What an `Engine` sees."""

    url: str

    @abstractmethod
    async def _opened(self) -> Store:
        """The store, ready to be used."""

    async def list(
        self,
        *,
        status: Status | Sequence[Status] | None = None,
        type: str | None = None,
        queue: str | None = None,
        parent: str | None = None,
        created_after: datetime.datetime | None = None,
        created_before: datetime.datetime | None = None,
        deleted: bool | None = False,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page:
        """Runs, newest first, a page at a time. With `deleted`, those that were deleted, or with None those too."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        statuses = None if status is None else _statuses((status,) if isinstance(status, str) else status)
        filter = RunFilter(
            status=statuses,
            type=type,
            queue=queue,
            parent_id=parent,
            created_after=None if created_after is None else instant(created_after, 0),
            created_before=None if created_before is None else instant(created_before, 0),
            deleted=deleted,
        )
        return await (await self._opened()).list(filter, limit, cursor)

    async def workers(self) -> builtins.list[WorkerInfo]:
        """The workers of the fleet."""
        return await (await self._opened()).workers()

    async def why(self, run_id: str) -> str:
        """Why a run is where it is, in a sentence."""
        _, why = await self._stands(run_id)
        return why

    async def _stands(self, run_id: str) -> tuple[Run, str]:
        """A run, and why it is where it is."""
        run = await self._run(run_id)
        return run, await explain(await self._opened(), run)

    async def _run(self, run_id: str) -> Run:
        run = await (await self._opened()).get(check_id(run_id))
        if run is None:
            raise RunNotFound(f"there is no run {run_id!r} in {shown(self.url)}")
        return run

    async def _history(self, run_id: str) -> builtins.list[Record]:
        return await (await self._opened()).history(run_id)

    async def _inbox(self, run_id: str) -> builtins.list[Message]:
        return await (await self._opened()).inbox(run_id, 0)

    async def _events(self, run_id: str) -> builtins.list[Event]:
        return await (await self._opened()).events(run_id)


def _statuses(names: Iterable[str]) -> tuple[Status, ...]:
    try:
        return tuple(Status(name) for name in names)
    except ValueError as error:
        raise UsageError(f"{error}; the statuses are {', '.join(Status)}") from None
