"""Names of messages that a run waits for."""

from __future__ import annotations

import pytest

from perdure.core.model.waits import RunWaits, Wait, WaitKind, meant_by

FOUND = RunWaits(token=1, waits=(Wait(kind=WaitKind.MESSAGE, name="approved"),))


@pytest.mark.parametrize(("name", "meant"), [("aproved", "approved"), ("approved", None), ("other", None)])
def test_a_name_that_is_nearly_an_awaited_one_is_misspelt(name: str, meant: str | None) -> None:
    assert meant_by(name, FOUND) == meant


@pytest.mark.parametrize("mark", ["~", "@"])
def test_a_name_of_perdures_own_is_not_misspelt(mark: str) -> None:
    assert meant_by(f"aproved{mark}", FOUND) is None
