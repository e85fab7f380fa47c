"""Places that a checkpoint ends."""

from __future__ import annotations

import pytest

from perdure.replay.checkpoints import is_location_over


@pytest.mark.parametrize(
    ("location", "over"),
    [
        ("loop~1/charge", True),
        ("loop~2/charge", False),
        ("loop~3", False),
        ("race/lost/charge", True),
        ("race/won/charge", False),
    ],
)
def test_iterations_before_a_checkpoint_and_branches_that_lost_are_over(location: str, *, over: bool) -> None:
    assert is_location_over(location, "loop", 2, ["race/lost"]) is over
