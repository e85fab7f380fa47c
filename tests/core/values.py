"""Typed values for Hypothesis: pairs of a type and a value of it, clean ones and nasty ones."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum, IntFlag, StrEnum
from typing import Any, NamedTuple, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import strategies as st

Typed = tuple[Any, Any]

#: For types that are put together at run time.
TUPLE: Any = tuple
LIST: Any = list
SET: Any = set
FROZENSET: Any = frozenset
DICT: Any = dict


class Colour(Enum):
    RED = "red"
    NULL = "null"


class Size(IntEnum):
    SMALL = -1
    LARGE = 2**40


class Word(StrEnum):
    EMPTY = ""
    DASH = "-"


class Access(IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: float
    y: int


class Movie(TypedDict, total=False):
    title: str
    year: int | None


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal | None
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass(slots=True)
class Order:
    id: UUID
    lines: list[Line]
    placed: datetime
    notes: dict[str, float | None] = dataclasses.field(default_factory=dict)


class Leaf(msgspec.Struct, frozen=True, tag=True):
    name: str
    weight: float | None = None


class Node(msgspec.Struct, tag=True):
    children: list[Node | Leaf]
    position: tuple[int, int] = (0, 0)


class Row(msgspec.Struct, array_like=True, rename="camel"):
    first_name: str
    blob: bytes = b""


def zones(*, nasty: bool) -> st.SearchStrategy[tzinfo]:
    minutes = st.integers(-1439, 1439).map(lambda n: timezone(timedelta(minutes=n)))
    if not nasty:
        return st.just(UTC) | minutes | st.just(ZoneInfo("Asia/Kathmandu"))
    odd = st.integers(-86_399, 86_399).map(lambda n: timezone(timedelta(seconds=n)))
    tiny = st.integers(-999, 999).map(lambda n: timezone(timedelta(microseconds=n)))
    return (
        minutes
        | odd
        | tiny
        | st.sampled_from([ZoneInfo("Europe/Moscow"), ZoneInfo("Africa/Accra"), ZoneInfo("Europe/Prague")])
    )


def has_whole_minutes(moment: datetime) -> bool:
    offset = moment.utcoffset()
    return offset is None or not offset % timedelta(minutes=1)


def texts(*, nasty: bool) -> st.SearchStrategy[str]:
    tricky = st.sampled_from(
        ["", "null", "NaN", "nan", "\\u0000", "\\\\u0000", "[[[[", "]]]]{{{{", '"', "1", "Z", ":00", "\x7f\u2028"]
    )
    if nasty:
        return tricky | st.text(max_size=8) | st.text(st.sampled_from("\0a\ud800\udfff\\u0"), max_size=8)
    return tricky | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def scalars(*, nasty: bool) -> st.SearchStrategy[Typed]:
    moments = st.datetimes(timezones=st.none() | zones(nasty=nasty))
    if not nasty:
        # Near the ends of the calendar an offset can lead out of it.
        moments = moments.filter(lambda moment: 2 < moment.year < 9998)
        moments = moments.filter(has_whole_minutes)
    decimals = st.decimals(allow_nan=nasty, allow_infinity=nasty)
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        type(None): st.none(),
        bool: st.booleans(),
        int: st.integers() | st.integers(-(2**70), 2**70) | st.sampled_from([2**63, 2**64, -(2**63) - 1, 10**4299]),
        float: st.floats(allow_nan=nasty, allow_infinity=nasty),
        str: texts(nasty=nasty),
        bytes: st.binary(max_size=8),
        datetime: moments,
        date: st.dates(),
        time: st.times(timezones=st.none() | zones(nasty=nasty).filter(lambda zone: not isinstance(zone, ZoneInfo))),
        timedelta: st.timedeltas(),
        # A signalling NaN cannot even be hashed, so it occurs in no set.
        Decimal: decimals.filter(lambda number: not number.is_snan()) | st.just(Decimal("1E+5000")),
        UUID: st.uuids(),
        Colour: st.sampled_from(Colour),
        Size: st.sampled_from(Size),
        Word: st.sampled_from(Word),
        Access: st.sampled_from([Access.READ, Access.WRITE, Access.READ | Access.WRITE]),
    }
    return st.one_of([st.tuples(st.just(kind), strategy) for kind, strategy in kinds.items()])


def hashables(*, nasty: bool) -> st.SearchStrategy[Typed]:
    return st.recursive(
        scalars(nasty=nasty),
        lambda inner: (
            same_type(inner).map(lambda pair: (TUPLE[pair[0], ...], tuple(pair[1])))
            | same_type(inner).map(lambda pair: (FROZENSET[pair[0]], frozenset(pair[1])))
        ),
        max_leaves=6,
    )


def same_type(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[tuple[Any, list[Any]]]:
    """A type and some values of it."""
    return st.lists(inner, max_size=4).map(
        lambda pairs: (pairs[0][0], [value for kind, value in pairs if kind == pairs[0][0]]) if pairs else (int, [])
    )


def keyed(keys: st.SearchStrategy[Typed], inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.tuples(same_type(keys), same_type(inner)).map(
        lambda both: (DICT[both[0][0], both[1][0]], dict(zip(both[0][1], both[1][1], strict=False)))
    )


def records(*, nasty: bool) -> st.SearchStrategy[Typed]:
    text = texts(nasty=nasty)
    number = st.floats(allow_nan=nasty, allow_infinity=nasty)
    price = st.none() | st.decimals(allow_nan=nasty, allow_infinity=nasty)
    lines = st.builds(Line, text, price, st.frozensets(text, max_size=3))
    moments = st.datetimes(min_value=datetime(1900, 1, 1), max_value=datetime(2100, 1, 1))
    orders = st.builds(
        Order, st.uuids(), st.lists(lines, max_size=3), moments, st.dictionaries(text, st.none() | number, max_size=3)
    )
    leaves = st.builds(Leaf, text, st.none() | number)
    nodes = st.recursive(leaves, lambda inner: st.builds(Node, st.lists(inner, max_size=3)), max_leaves=5)
    movies = st.builds(Movie, title=text, year=st.none() | st.integers())
    return st.one_of(
        st.tuples(st.just(Line), lines),
        st.tuples(st.just(Order), orders),
        st.tuples(st.just(Node | Leaf), nodes),
        st.tuples(st.just(Row), st.builds(Row, text, st.binary(max_size=4))),
        st.tuples(st.just(Point), st.builds(Point, number, st.integers())),
        st.tuples(st.just(Movie), movies),
    )


def typed(*, nasty: bool) -> st.SearchStrategy[Typed]:
    """A type and a value of it. Without `nasty`, one that any JSON codec worth its name brings back."""
    keys = scalars(nasty=nasty).filter(lambda pair: pair[0] not in {type(None), bool, Access})
    return st.recursive(
        scalars(nasty=nasty) | records(nasty=nasty) | st.tuples(hashables(nasty=nasty)).map(lambda one: one[0]),
        lambda inner: st.one_of(
            same_type(inner).map(lambda pair: (LIST[pair[0]], pair[1])),
            same_type(inner).map(lambda pair: (TUPLE[pair[0], ...], tuple(pair[1]))),
            st.tuples(inner, inner).map(lambda two: (TUPLE[two[0][0], two[1][0]], (two[0][1], two[1][1]))),
            same_type(hashables(nasty=nasty)).map(lambda pair: (SET[pair[0]], set(pair[1]))),
            keyed(keys, inner),
        ),
        max_leaves=8,
    )
