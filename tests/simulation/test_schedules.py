"""Schedules under simulation: whatever happens, each slot is dealt with once."""

from __future__ import annotations

import gc
import os
import random

import pytest

from tests.simulation.schedules import simulate

PROVE = bool(os.environ.get("PERDURE_PROVE"))
SEEDS = 2000 if PROVE else 4


@pytest.mark.timeout(7200 if PROVE else 120)
def test_each_slot_is_dealt_with_once_whatever_happens() -> None:
    total = 0
    first = random.randrange(10**6)
    for seed in range(first, first + SEEDS):
        wrong, runs = simulate(seed)
        assert wrong == [], f"seed {seed}"
        total += runs
        gc.collect(0)
    assert total > 50 * SEEDS
