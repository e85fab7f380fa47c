"""JSON of our own values."""

from __future__ import annotations

import pytest

from perdure.core.codec.plain_json import plain_json
from tests.fuzz.hostile import Number, Text


class Ratio(float):
    """A subclass of `float`."""


def test_texts_and_numbers_of_subclasses_are_written_as_their_base_classes() -> None:
    assert plain_json({"name": Text("word"), "most": Number(3), "share": Ratio(0.5)}) == (
        '{"name":"word","most":3,"share":0.5}'
    )


def test_other_values_are_refused_by_their_class() -> None:
    with pytest.raises(TypeError, match="a object has no JSON"):
        plain_json([object()])
