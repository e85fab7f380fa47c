"""Cells of the rows of workers."""

from __future__ import annotations

import pytest

from perdure.core.model.worker_info import DrainOrder, drain_from_json


@pytest.mark.parametrize(
    ("text", "order"),
    [
        (None, None),
        ("", None),
        ('{"key": "k", "reason": "a deploy"}', DrainOrder(key="k", reason="a deploy")),
        ("{", DrainOrder(key="", reason="its order cannot be read")),
    ],
)
def test_an_order_to_drain_that_cannot_be_read_is_an_order(text: str | None, order: DrainOrder | None) -> None:
    assert drain_from_json(text) == order
