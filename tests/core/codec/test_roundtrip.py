"""A value comes back as it was, or it is refused with the path and the fix."""

from __future__ import annotations

import enum
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from perdure.core.codec.codec import Codec
from perdure.core.codec.roundtrip import plain_fields
from perdure.errors import DecodeError, EncodeError

T = TypeVar("T")

codec = Codec()
strict = Codec(strict=True)


class Colour(enum.Enum):
    RED = "red"


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"
    THREE = 3.5


@dataclass
class Card:
    number: str


@dataclass
class Cash:
    cents: int


@dataclass
class Gift(Card):
    note: str = ""


@dataclass
class Payment:
    by: Card | Cash
    before: list[Card | Cash] = field(default_factory=list)
    named: dict[str, Card | Cash | None] = field(default_factory=dict)
    pair: tuple[Card | Cash, int] | None = None


@dataclass(eq=False)
class Plain:
    n: int


@dataclass
class Open:
    data: Any


@dataclass
class Box(Generic[T]):
    content: T


class Circle(msgspec.Struct):
    radius: float


class Square(msgspec.Struct):
    side: float


class Point(NamedTuple):
    x: int
    y: int


class Row(TypedDict):
    id: int
    pay: Card | Cash


class Model(pydantic.BaseModel):
    name: str


class Special(Model):
    discount: int = 3


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    name: str = pydantic.Field(alias="Name")


NOW = datetime(2024, 1, 2, tzinfo=UTC)

#: Declared types and values of them.
ANNOTATED: list[tuple[Any, Any]] = [
    (int, 10**40),
    (float, 1.5),
    (bytes, b"\0x"),
    (datetime, NOW),
    (Decimal, Decimal("1.10")),
    (UUID, UUID(int=5)),
    (set[int], {1, 2}),
    (frozenset[str], frozenset({"a"})),
    (tuple[int, str], (1, "a")),
    (dict[int, str], {1: "a"}),
    (Colour, Colour.RED),
    (Mixed, Mixed.TWO),
    (Mixed, Mixed.THREE),
    (list[Mixed], [Mixed.ONE, Mixed.TWO]),
    (Point, Point(1, 2)),
    (Card, Card("1")),
    (Plain, Plain(1)),
    (Box[int], Box(3)),
    (Card | None, None),
    (Card | Cash, Card("1")),
    (Card | Cash, Cash(2)),
    (Card | Cash | None, None),
    (Card | Cash | str, "text"),
    (Card | Cash | list[int], [1, 2]),
    (Circle | Square, Square(1.5)),
    (Card | Circle, Circle(1.0)),
    (list[Card | Cash], [Card("1"), Cash(2)]),
    (dict[int, Card | Cash], {1: Card("1"), 2: Cash(2)}),
    (Payment, Payment(Cash(1), [Card("1"), Cash(2)], {"a": Cash(1), "b": None}, (Cash(3), 4))),
    (Box[Card | Cash], Box(Cash(1))),
    (Row, {"id": 1, "pay": Cash(3)}),
    (Card | Gift, Gift("1", "n")),
    (Card | Gift, Card("1")),
    (Model, Model(name="a")),
    (Special | Model, Special(name="a", discount=1)),
    (Aliased, Aliased(Name="a")),
    (Any, {"a": [1, 2.5, None, True, "x"]}),
    (Open, Open({"a": [1]})),
]


@pytest.mark.parametrize(("declared", "value"), ANNOTATED, ids=[f"{d}-{v}" for d, v in ANNOTATED])
@pytest.mark.parametrize("by", [codec, strict], ids=["usual", "strict"])
def test_a_value_of_its_declared_type_comes_back(by: Codec, declared: Any, value: Any) -> None:
    payload, decoded = by.store(value, declared, "it")
    assert type(decoded) is type(value)
    if not isinstance(value, Plain):
        assert decoded == value
    assert by.encode(decoded, "it", declared) == payload


#: What a type leaves open, the path and a part of the problem.
REFUSED: list[tuple[Any, Any, str, str]] = [
    (Any, Card("1"), "it", "is a Card and comes back as a dict"),
    (Any, [Card("1")], "[0]", "is a Card and comes back as a dict"),
    (Any, {"a": (1, 2)}, "a", "is a tuple and comes back as a list"),
    (Any, {1, 2}, "it", "is a set and comes back as a list"),
    (Any, b"x", "it", "is a bytes and comes back as a str"),
    (Any, {"at": NOW}, "at", "is a datetime and comes back as a str"),
    (Any, Decimal(1), "it", "is a Decimal and comes back as a str"),
    (Any, {1: "a"}, "it", "has the key 1, a int, which comes back as text"),
    (Any, Colour.RED, "it", "is a Colour and comes back as a str"),
    (Any, Point(1, 2), "it", "is a Point and comes back as a list"),
    (Any, Model(name="a"), "it", "is a Model and comes back as a dict"),
    (dict[str, Any], {"a": {"b": NOW}}, "a.b", "is a datetime and comes back as a str"),
    (list, [(1,)], "[0]", "is a tuple and comes back as a list"),
    (Open, Open(NOW), "data", "is a datetime and comes back as a str"),
    (Card, Gift("1", "n"), "it", "is a Gift and comes back as a Card"),
    (list[Card], [Gift("1", "")], "[0]", "is a Gift and comes back as a Card"),
    (Model, Special(name="a"), "it", "is a Special and comes back as a Model"),
    (list[Model], [Model(name="a"), Special(name="b")], "[1]", "is a Special and comes back as a Model"),
]


@pytest.mark.parametrize(("declared", "value", "path", "problem"), REFUSED, ids=[f"{d}-{v}" for d, v, _, _ in REFUSED])
def test_a_value_that_would_come_back_as_something_else_is_refused(
    declared: Any, value: Any, path: str, problem: str
) -> None:
    with pytest.raises(EncodeError) as refused:
        codec.store(value, declared, "the result")
    assert f"cannot store the result: {path} {problem};" in str(refused.value)
    assert refused.value.path == ("" if path == "it" else path)
    assert "annotate it" in str(refused.value) or "declare its own type" in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "value", "back"),
    [
        (list[int], (1, 2), [1, 2]),
        (tuple[int, ...], [1, 2], (1, 2)),
        (float, 1, 1.0),
        (Card, {"number": "1"}, Card("1")),
        (datetime, "2024-01-02T00:00:00Z", NOW),
        (dict[str, int], OrderedDict(a=1), {"a": 1}),
    ],
)
def test_what_the_type_declares_is_what_comes_back(declared: Any, value: Any, back: Any) -> None:
    decoded = codec.store(value, declared, "it")[1]
    assert decoded == back
    assert type(decoded) is type(back)


@pytest.mark.parametrize(
    ("declared", "value"), [(list[int], (1, 2)), (Card, {"number": "1"}), (datetime, "2024-01-02T00:00:00Z")]
)
def test_strict_refuses_what_only_its_type_declares(declared: Any, value: Any) -> None:
    with pytest.raises(EncodeError, match="comes back as"):
        strict.store(value, declared, "it")


def test_strict_refuses_to_read_what_would_be_lost() -> None:
    payload = codec.encode(Gift("1", "n"), "it")
    assert codec.decode(payload, Card, "it") == Card("1")
    with pytest.raises(DecodeError, match="note is lost"):
        strict.decode(payload, Card, "it")


def test_what_was_stored_before_unions_had_names_is_said_to_lack_one() -> None:
    with pytest.raises(DecodeError, match=r"needs '\$type', one of Card, Cash"):
        codec.decode('{"number":"1"}', Card | Cash, "it")
    with pytest.raises(DecodeError, match="'Cheque' is not one of Card, Cash"):
        codec.decode('{"$type":"Cheque"}', Card | Cash, "it")


def test_a_union_of_two_classes_of_one_name_is_refused() -> None:
    other: Any = dataclass(type("Card", (), {"__annotations__": {"n": int}}))
    with pytest.raises(DecodeError, match="two classes of a union are called 'Card'"):
        codec.check(Card | other, "the result")


@dataclass(frozen=True)
class Ticket:
    name: str
    cents: int
    paid: bool


class Seat(msgspec.Struct):
    row: str
    number: int


@dataclass
class Loud:
    """A class that changes itself when it is decoded, without changing the length of its JSON."""

    name: str
    count: int

    def __post_init__(self) -> None:
        self.name = self.name.upper()


@dataclass
class Fixed:
    name: str
    count: int = field(default=0, init=False)


class Ratio(msgspec.Struct):
    part: float
    name: str


@pytest.mark.parametrize(
    "value",
    [
        Ticket("a", 4200, True),
        Ticket('a null, a NaN, 12:30" and 1Z"', 10**40, False),
        Ticket("\\u0000 \ud7ff", -1, True),
        Seat("", 0),
        Ratio(0.1, "a"),
        Fixed("a"),
    ],
)
def test_a_value_of_plain_fields_comes_back_as_it_was(value: Any) -> None:
    stored = codec.store(value, type(value), "it")
    assert stored == (codec.encode(value, "it", type(value)), value)
    assert stored[1] is not value


@pytest.mark.parametrize("wrong", [Ratio(2**70 + 1, "a"), Ratio(float("nan"), "a"), Ticket("\0", 1, True)])
def test_a_value_of_plain_fields_that_would_change_is_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        codec.store(wrong, type(wrong), "it")


def test_a_field_with_a_value_of_another_type_than_declared_takes_the_full_checks() -> None:
    codec.check(Ticket, "it")
    name: Any = Decimal("NaN")
    with pytest.raises(EncodeError):
        codec.store(Ticket(name, 1, True), Ticket, "it")


@pytest.mark.parametrize("kind", [Loud, Fixed, Ratio, Card, Model, Point])
def test_only_a_class_that_is_its_plain_fields_is_stored_without_the_full_checks(kind: type[Any]) -> None:
    assert plain_fields(Ticket) is not None
    assert plain_fields(Seat) is not None
    assert plain_fields(kind) is None
