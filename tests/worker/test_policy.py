"""The decision on another attempt at a whole run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import Retry, Status
from perdure.replay.outcome import RunOutcome
from perdure.worker.run.policy import after_failed_run
from tests.worker.test_quarantine import claimed

SERVICES: Any = SimpleNamespace(system=SimpleNamespace(random=lambda: 0.5))
NOW = 1_000


@pytest.mark.parametrize(("deadline", "final", "again"), [
    (NOW + 2_000_001, None, True),
    (NOW + 2_000_000, None, False),
    # What the attempt did was not undone, because another one was to follow.
    (NOW + 2_000_000, False, True),
])  # fmt: skip
def test_an_attempt_follows_before_the_deadline_or_if_nothing_was_undone_for_it(
    deadline: int, final: bool | None, *, again: bool
) -> None:
    run = replace(claimed("r1", 1).run, deadline=deadline)
    outcome = RunOutcome(Status.FAILED, "{}", ValueError("no"), final=final)
    found = after_failed_run(run, Retry.fixed("2s", attempts=3), outcome, SERVICES, NOW)
    assert (None if found is None else found.wake_at) == (NOW + 2_000_000 if again else None)
