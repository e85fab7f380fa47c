"""Errors keep their arguments and attributes."""

from __future__ import annotations

import inspect

import pytest

from perdure import errors

#: Errors that are made from a message and more.
DETAILED = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, errors.PerdureError)
    and "__init__" in vars(kind)
    and next(iter(inspect.signature(kind).parameters)) == "message"
]


@pytest.mark.parametrize("kind", DETAILED)
def test_an_error_has_its_message_by_position_and_by_name(kind: type[errors.PerdureError]) -> None:
    assert str(kind("what happened")) == "what happened"
    assert str(kind(message="what happened")) == "what happened"  # type: ignore[call-arg] # each error of the list takes it


def test_most_errors_are_looked_at() -> None:
    assert errors.BreakerOpen in DETAILED
    assert len(DETAILED) >= 10
