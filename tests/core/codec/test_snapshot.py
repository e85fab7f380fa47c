from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from perdure.core.codec.snapshot import snapshot, snapshot_all


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Still:
    name: str
    colour: Colour = Colour.RED


@dataclass(frozen=True)
class Half:
    names: list[str]


@dataclass
class Open:
    name: str
    parts: list[Still] = field(default_factory=list)


@dataclass
class Slotted:
    __slots__ = ("items",)
    items: dict[str, list[int]]


class Fixed(msgspec.Struct, frozen=True):
    number: int


class Loose(msgspec.Struct, frozen=True):
    numbers: list[int]


class Pair(NamedTuple):
    left: list[int]
    right: str


class Model(pydantic.BaseModel):
    tags: list[str] = []


STILL: list[Any] = [
    None,
    True,
    1,
    "text",
    b"bytes",
    1.5,
    Decimal(1),
    date(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=UTC),
    Colour.RED,
    Still("a"),
    Fixed(1),
    (1, "a", Still("b")),
    frozenset({1}),
    Open,
]

CHANGING: list[Any] = [
    [1, [2]],
    {"a": {"b": [1]}},
    {1, 2},
    (1, [2]),
    bytearray(b"x"),
    Half(["a"]),
    Open("a", [Still("b")]),
    Slotted({"a": [1]}),
    Loose([1]),
    Pair([1], "a"),
    Model(tags=["a"]),
    Counter("aab"),
    defaultdict(list, {"a": [1]}),
]


@pytest.mark.parametrize("value", STILL, ids=repr)
def test_a_value_that_cannot_change_is_not_copied(value: Any) -> None:
    assert snapshot(value) is value


@pytest.mark.parametrize("value", CHANGING, ids=repr)
def test_a_value_that_can_change_is_copied_with_all_its_parts(value: Any) -> None:
    copied = snapshot(value)
    assert copied == value
    assert type(copied) is type(value)
    assert copied is not value
    assert not _shared(copied) & _shared(value)


def _shared(value: Any) -> set[int]:
    """The identities of all containers in a value that can change."""
    found: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, list | dict | set | bytearray | Open | Slotted | Model):
            found.add(id(each))
        if isinstance(each, dict):
            left += each.values()
        elif isinstance(each, list | tuple):
            left += each
        else:
            left += [
                getattr(each, name) for name in ("parts", "items", "names", "numbers", "tags") if hasattr(each, name)
            ]
    return {each for each in found if each}


def test_what_is_no_data_is_left_as_it_is() -> None:
    lock = threading.Lock()
    itself: list[Any] = []
    itself.append(itself)
    assert snapshot(lock) is lock
    assert snapshot(itself) is itself


def test_arguments_that_cannot_change_are_said_to_be_so() -> None:
    args, kwargs, changes = snapshot_all((1, Still("a")), {"n": (1, 2)})
    assert (args, kwargs, changes) == ((1, Still("a")), {"n": (1, 2)}, False)
    assert snapshot_all((1,), {"n": [1]})[2]
