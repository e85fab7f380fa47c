"""The verbs for those who are told which run to work on."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

from perdure.core.model.claim_by_id import Take, Taken
from perdure.core.system import System
from perdure.store.sql.dialect import Body
from perdure.store.sql.runs import claim_by_id

T = TypeVar("T")


class Pushing(ABC):
    """A part of `SqlStore`."""

    _system: System

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    async def take(self, request: Take) -> Taken:
        """Take one run."""
        return await self._write("take", request.worker, lambda tx: claim_by_id.pick(tx, request, self._system.entropy))

    async def due(self, types: Sequence[str], queues: Sequence[str], limit: int) -> builtins.list[str]:
        """Runs that could be worked on now."""
        return await self._read("due", lambda tx: claim_by_id.due(tx, types, queues, limit))
