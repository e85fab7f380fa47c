"""The verbs of a store that are about schedules, each as one transaction."""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from perdure.core.time.schedule import Fired, Saved, Schedule
from perdure.store.sql import schedules
from perdure.store.sql.dialect import Transaction

T = TypeVar("T")
Body = Callable[[Transaction], Coroutine[Any, Any, T]]


class Scheduling(ABC):
    """The part of a `Store` that schedules need."""

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""
        return await self._read("schedule", lambda tx: schedules.schedule(tx, schedule_id))

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids."""
        return await self._read("schedules", lambda tx: schedules.schedules(tx, after, limit))

    async def save_schedule(self, schedule: Schedule, version: int, write_id: str, event: str, actor: str) -> Saved:
        """Create a schedule, or change one that still is of that version."""
        return await self._write(
            "save_schedule", actor, lambda tx: schedules.save(tx, schedule, version, write_id, event)
        )

    async def delete_schedule(self, schedule_id: str, actor: str) -> None:
        """Forget a schedule."""
        await self._write("delete_schedule", actor, lambda tx: schedules.delete(tx, schedule_id))

    async def trigger(self, schedule_id: str, slots: Sequence[int], key: str, actor: str) -> builtins.list[str] | None:
        """Start runs of some slots, or one under a key."""
        return await self._write("trigger", actor, lambda tx: schedules.trigger(tx, schedule_id, slots, key))

    async def fire(self, limit: int, actor: str) -> Fired:
        """Let the slots that are due become runs."""
        return await self._write("fire", actor, lambda tx: schedules.fire(tx, limit))
