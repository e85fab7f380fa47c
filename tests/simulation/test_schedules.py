"""Schedules under simulation: whatever happens, each slot is dealt with once."""

from __future__ import annotations

import gc
import os
import random

import pytest

from tests.simulation.planted_in_schedules import PLANTED_IN_SCHEDULES
from tests.simulation.schedules import simulate

PROVE = bool(os.environ.get("PERDURE_PROVE"))
SEEDS = 2000 if PROVE else 4
#: A planted fault has to be found within so many seeds.
ENOUGH = 100


@pytest.mark.timeout(7200 if PROVE else 120)
def test_each_slot_is_dealt_with_once_whatever_happens() -> None:
    total = 0
    # The same each time, except when proving: a finding of a new seed is no reason for another change to fail.
    first = random.randrange(10**6) if PROVE else 0
    for seed in range(first, first + SEEDS):
        wrong, runs = simulate(seed)
        assert wrong == [], f"seed {seed}"
        total += runs
        gc.collect(0)
    assert total > 50 * SEEDS


@pytest.mark.parametrize("name", sorted(PLANTED_IN_SCHEDULES))
def test_a_fault_planted_in_schedules_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED_IN_SCHEDULES[name](monkeypatch)
    for seed in range(ENOUGH):
        if wrong := simulate(seed)[0]:
            print(f"{name}: found by seed {seed}: {wrong[0]}")
            return
    pytest.fail(f"{name} was not found within {ENOUGH} seeds")
