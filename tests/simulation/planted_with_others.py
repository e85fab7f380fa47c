"""Faults planted in waits for runs that are not children."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.core.model.record import NewMessage
from perdure.store.sql.dialect import Transaction
from perdure.store.sql.runs import inbox, observers, waiters
from perdure.store.sqlite import commit
from perdure.worker.run.turn_draft import TurnDraft

Patch = pytest.MonkeyPatch


def waiters_not_told(patch: Patch) -> None:
    """A run ends, and those that wait for it are not told."""

    async def nothing(tx: Transaction, target: str, payload: str | None, *, failed: bool) -> list[NewMessage]:
        await waiters.forget(tx, target)
        return []

    patch.setattr(commit, "messages_to_waiters", nothing)


def waited_for_without_looking(patch: Patch) -> None:
    """A wait is registered, whether the run has ended or not."""

    async def watch(tx: Transaction, waiter: waiters.Waiter) -> None:
        await waiters.enter(tx, waiter)

    patch.setattr(inbox, "watch", watch)
    patch.setattr(waiters, "_ENDED", waiters._ENDED.replace("> 0", "< 0"))


def waits_never_registered(patch: Patch) -> None:
    """The turn of a run that waits says nothing of it."""
    patch.setattr(TurnDraft, "watch", lambda self, operation, run: None)


def observers_not_told(patch: Patch) -> None:
    """A run writes outputs, and those that wait for them are not told."""

    async def nothing(tx: Transaction, target: str) -> list[NewMessage]:
        return []

    patch.setattr(commit, "messages_to_observers", nothing)
    patch.setattr(observers, "_UNSEEN", observers._UNSEEN.replace("> 0", "< 0").replace(">= o", "< o"))


PLANTED_WITH_OTHERS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (waiters_not_told, waited_for_without_looking, waits_never_registered, observers_not_told)
}
