"""Faults planted in pinned runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from perdure.client.session import Session
from perdure.core.pinning import base_queue, pinned_queue
from perdure.worker.claiming.claimer import Claimer
from perdure.worker.run import turn_draft
from tests.simulation.releaser import BUILDS

Patch = pytest.MonkeyPatch


def pinned_runs_for_all(patch: Patch) -> None:
    """Workers claim runs that are pinned to another build."""

    def queues(self: Session, given: Iterable[str]) -> tuple[str, ...]:
        given = tuple(given)
        return (*given, *(pinned_queue(queue, build) for queue in given for build in BUILDS))

    patch.setattr(Session, "pinned_queues", queues)


def begun_without_a_pin(patch: Patch) -> None:
    """A run is executed before it is pinned, and its worker is lost."""

    async def pin(self: Claimer, runs: Any) -> Any:
        return runs

    patch.setattr(Claimer, "_pin", pin)


def children_of_any_build(patch: Patch) -> None:
    """The child of a pinned run is begun by any build."""

    def queue(given: str | None, parents: str, definition: object) -> str:
        return given or base_queue(parents)

    patch.setattr(turn_draft, "child_queue", queue)


PLANTED_IN_BUILDS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (pinned_runs_for_all, begun_without_a_pin, children_of_any_build)
}
