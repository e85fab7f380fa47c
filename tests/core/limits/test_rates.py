"""Rates as users write them, and the paces that are stored."""

from __future__ import annotations

import pytest

from perdure.core.limits.limit import pace_of, rate_of


@pytest.mark.parametrize(
    ("rate", "spelled"),
    [("5/s", "5/s"), ("100/m", "100/m"), ("1000 per hour", "1000/h"), ("3/10s", "25919.994816/d"), ("0.001/d", None)],
)
def test_a_pace_is_spelled_as_a_rate_that_means_the_same(rate: str, spelled: str | None) -> None:
    pace = pace_of(rate)
    assert spelled in (None, rate_of(pace))
    # Rounded up once more, at most.
    assert pace_of(rate_of(pace)) - pace in (0, 1)
