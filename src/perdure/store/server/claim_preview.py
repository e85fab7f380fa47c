"""Result of the cheap query that precedes a claim."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from perdure.core.model.claim import ClaimResult
from perdure.store.sql.limits.gates import limited

S = TypeVar("S", bound="ClaimPreview")


class ClaimPreview(Struct, frozen=True, kw_only=True):
    """State of the database as far as a claim needs it."""

    now: int
    #: The workers that live, and whether the one that asks is among them.
    alive: list[str]
    welcome: bool
    #: This claim was made before; its answer was lost.
    held: bool
    next_wake: int
    #: How many are ready, as far as that matters; or whether any is.
    ready: int
    early: bool
    #: When a schedule is due next.
    next_fire: int
    #: Kind and name of what is paused.
    paused: Collection[tuple[str, str]]

    @property
    def due(self) -> bool:
        """True if a waiting run is due."""
        return self.next_wake <= self.now

    @property
    def nothing(self) -> bool:
        """True if there is nothing to do for this worker."""
        return not (self.held or (self.welcome and (self.due or self.ready)))

    def at(self: S, now: int) -> S:
        """The same at this process's time."""
        return replace(self, now=now)

    def empty_handed(self) -> ClaimResult:
        """Result of a claim that took nothing."""
        return ClaimResult(
            runs=(),
            next_wake=self.next_wake,
            suspects=False,
            now=self.now,
            next_fire=self.next_fire,
            limited=limited(self.paused),
        )
