"""The verbs for what is dead, deleted or old, on every SQL database: each as one transaction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TypeVar

from perdure.core.model.dead_letter import DeadFilter, DeadLetter, DeadPage, Deletion, Requeue, Requeued
from perdure.core.policy.retention import Prune, Pruned
from perdure.store.sql.dialect import Body
from perdure.store.sql.runs import dead_letters
from perdure.store.sql.runs.pruning import prune

T = TypeVar("T")


class Afterlife(ABC):
    """What a store can do for runs that are over."""

    @abstractmethod
    async def _write(self, verb: str, actor: str, body: Body[T]) -> T:
        """Run a verb that writes, as one transaction."""

    @abstractmethod
    async def _read(self, verb: str, body: Body[T]) -> T:
        """Run a verb that only reads."""

    async def dead(self, filter: DeadFilter, limit: int, cursor: str | None) -> DeadPage:
        """Dead letters, the latest run first."""
        return await self._read("dead", lambda tx: dead_letters.dead(tx, filter, limit, cursor))

    async def letter(self, run_id: str) -> DeadLetter | None:
        """One dead letter."""
        return await self._read("letter", lambda tx: dead_letters.letter(tx, run_id))

    async def requeue(self, order: Requeue, actor: str) -> Requeued:
        """Let a dead run go on."""
        return await self._write("requeue", actor, lambda tx: dead_letters.requeue(tx, order))

    async def delete(self, run_id: str, reason: str, actor: str, *, discard: bool = False) -> Deletion:
        """Hide a finished run, or a dead letter."""
        return await self._write("delete", actor, lambda tx: dead_letters.delete(tx, run_id, reason, discard=discard))

    async def undelete(self, run_id: str, actor: str) -> Deletion:
        """Bring a deleted run back."""
        return await self._write("undelete", actor, lambda tx: dead_letters.undelete(tx, run_id))

    async def prune(self, what: Prune, limit: int, cursor: str | None, actor: str) -> Pruned:
        """Delete finished runs for good, one batch."""
        return await self._write("prune", actor, lambda tx: prune(tx, what, limit, cursor))
