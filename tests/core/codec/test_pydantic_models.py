"""Models of pydantic come back as they went in, or are refused with the name of the field."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pydantic
import pytest
from pydantic import AnyUrl, BaseModel, Field, PrivateAttr, RootModel

from perdure.core.codec.codec import Codec
from perdure.errors import DecodeError, EncodeError

codec = Codec()


class Colour(Enum):
    RED = "red"


class Line(BaseModel):
    article: str
    price: Decimal
    count: int = 1


class Order(BaseModel):
    id: UUID
    lines: list[Line]
    at: datetime
    colours: set[Colour] = set()
    site: AnyUrl | None = None
    file: Path | None = None
    note: str | None = None
    raw: bytes = b""
    by_name: dict[str, Line] = {}


ORDER = Order(
    id=UUID(int=7),
    lines=[Line(article="a", price=Decimal("1.10")), Line(article="b", price=Decimal(2), count=3)],
    at=datetime(2026, 1, 1, tzinfo=UTC),
    colours={Colour.RED},
    site=AnyUrl("https://example.org/x"),
    file=Path("/tmp/x"),
    raw=b"abc",
    by_name={"a": Line(article="a", price=Decimal(1))},
)


class Aliased(BaseModel):
    order_id: str = Field(alias="orderId")


class Populated(BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)
    order_id: str = Field(validation_alias="orderId", serialization_alias="ORDER")


class Packed(BaseModel):
    lines: pydantic.Json[list[int]]


class Numbers(RootModel[list[int]]):
    pass


class Frozen(BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)
    key: str


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (ORDER, Order),
        (Packed.model_validate({"lines": "[1, 2]"}), Packed),
        ([ORDER, ORDER], list[Order]),
        ({"a": Line(article="a", price=Decimal(1))}, dict[str, Line]),
        ((1, Frozen(key="k")), tuple[int, Frozen]),
        (Frozen(key="k"), Frozen | None),
        (None, Frozen | None),
        (Aliased(orderId="o"), Aliased),
        (Populated(order_id="o"), Populated),
        (Numbers([1, 2]), Numbers),
        (Cat(lives=9), Pet),
        (Dog(name="Rex"), Cat | Dog),
        ([Cat(lives=9), Dog(name="Rex")], list[Pet]),
        (3, Cat | int),
    ],
    ids=str,
)
def test_a_model_comes_back_as_it_went_in(value: Any, declared: Any) -> None:
    payload = codec.encode(value, "it")
    back = codec.decode(payload, declared, "it")
    assert back == value
    assert type(back) is type(value)
    codec.store_quickly(value, declared)


class Floating(BaseModel):
    rate: float


class Hidden(BaseModel):
    name: str
    _secret: str = PrivateAttr(default="")


class Lossy(BaseModel):
    name: str
    token: str = Field(default="", exclude=True)


class Shouting(BaseModel):
    name: str

    @pydantic.field_validator("name")
    @classmethod
    def _shout(cls, name: str) -> str:
        return name + "!"


def hidden() -> Hidden:
    model = Hidden(name="n")
    model._secret = "s"
    return model


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Floating(rate=float("nan")), "rate"),
        (Lossy(name="n", token="t"), "token"),
        (Shouting(name="n"), "name"),
        (hidden(), ""),
        (Line.model_construct(article=7, price=Decimal(1)), ""),
        (Frozen(key="a\0b"), "key"),
        ([Frozen(key="a"), Frozen(key="a\0b")], "[1].key"),
        ({"order": Floating(rate=float("inf"))}, "order.rate"),
        (ORDER.model_copy(update={"at": datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=30)))}), None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_model_that_would_change_is_refused_by_its_field(value: Any, path: str | None) -> None:
    try:
        payload = codec.encode(value, "the order")
    except EncodeError as error:
        assert path is None or error.path == path
        assert "the order" in str(error)
    else:
        assert path is None
        assert codec.decode(payload, type(value), "it") == value


@pytest.mark.parametrize(
    ("payload", "declared", "named"),
    [
        ('{"article":"a","price":"much"}', Line, "price: "),
        ('{"article":"a"}', Line, "price: Field required"),
        ('[{"article":"a","price":"1"},{"article":2,"price":"1"}]', list[Line], "article: "),
        ('{"kind":"cat","lives":"many"}', Pet, "lives: "),
    ],
)
def test_what_does_not_fit_a_model_is_named_by_its_field(payload: str, declared: Any, named: str) -> None:
    with pytest.raises(DecodeError, match=named) as caught:
        codec.decode(payload, declared, "the order")
    assert "\n" not in str(caught.value)


@pydantic.dataclasses.dataclass
class Circle:
    radius: float


def test_a_dataclass_of_pydantic_is_a_dataclass() -> None:
    assert codec.decode(codec.encode([Circle(1.5)], "it"), list[Circle], "it") == [Circle(1.5)]
    with pytest.raises(EncodeError) as caught:
        codec.encode([Circle(float("nan"))], "it")
    assert caught.value.path == "[0].radius"


def test_models_have_the_same_digest_in_every_process() -> None:
    code = (
        "from pydantic import BaseModel\n"
        "from perdure.core.codec.codec import Codec\n"
        "class Tags(BaseModel):\n    tags: set[str]\n    more: list[frozenset[str]]\n"
        "letters = set('abcdefghij')\n"
        "print(Codec().digest(((Tags(tags=letters, more=[frozenset(letters)]),), {}), 'step'))\n"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


def test_what_is_declared_to_be_any_object_comes_back() -> None:
    assert codec.decode('[1, "two"]', list[object], "it") == [1, "two"]


def test_models_that_differ_have_different_digests() -> None:
    one, other = (Line(article="a", price=Decimal(price)) for price in (1, 2))
    assert codec.digest(one) != codec.digest(other)


def test_a_model_that_cannot_be_stored_has_no_digest() -> None:
    with pytest.raises(EncodeError, match="argument 1.rate"):
        codec.digest(((Floating(rate=float("nan")),), {}), "step")
