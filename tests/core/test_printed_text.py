"""Values in messages."""

from __future__ import annotations

from perdure.core.printed_text import brief


class Shy:
    def __repr__(self) -> str:
        raise ValueError("no")


def test_a_value_that_cannot_be_printed_is_named_by_its_type() -> None:
    assert brief(Shy()) == "<Shy>"
    assert brief(10**5000) == "<int>"


def test_a_long_value_is_cut_off() -> None:
    assert brief("x" * 300) == repr("x" * 300)
    assert brief("x" * 301) == f"'{'x' * 299}..."
    assert brief(["x"]) == "['x']"
