"""Names of messages that a run waits for."""

from __future__ import annotations

import pytest

from perdure.core.model.waits import RunWaits, Wait, WaitKind, meant_by, message_names

FOUND = RunWaits(token=1, waits=(Wait(kind=WaitKind.MESSAGE, name="approved"),))


@pytest.mark.parametrize(("name", "meant"), [("aproved", "approved"), ("approved", None), ("other", None)])
def test_a_name_that_is_nearly_an_awaited_one_is_misspelt(name: str, meant: str | None) -> None:
    assert meant_by(name, FOUND) == meant


@pytest.mark.parametrize("mark", ["~", "@"])
def test_a_name_of_perdures_own_is_not_misspelt(mark: str) -> None:
    assert meant_by(f"aproved{mark}", FOUND) is None


MESSAGE, TIMER = Wait(kind=WaitKind.MESSAGE, name="a"), Wait(kind=WaitKind.TIMER, name="sleep")


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (RunWaits(token=1, waits=(MESSAGE,), closed=True), ["a"]),
        (RunWaits(token=1, waits=(MESSAGE,)), None),
        # Messages are named first. So these are all, and other waits are not named.
        (RunWaits(token=1, waits=(MESSAGE, TIMER), more=1, closed=True), ["a"]),
        # A message may be among the waits that are not named.
        (RunWaits(token=1, waits=(MESSAGE,), more=1, closed=True), None),
    ],
)
def test_the_names_of_all_messages_are_known_only_if_all_are_named(found: RunWaits, names: list[str] | None) -> None:
    assert message_names(found) == names
