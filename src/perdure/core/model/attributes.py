"""Attributes of runs: small typed values by name, which listings and counts filter by.

An attribute is text, a number, a bool or a time. Its value is bounded, so that an index of every database can hold it.
Attributes are stored as they are, whatever becomes of the payloads of a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_name
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.option_checks import check_text
from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: A value of an attribute, as users see it. A time comes back in UTC.
AttributeValue = str | int | float | bool | datetime

#: Bytes of a name and of a text in UTF-8, and names in one call.
NAME_BYTES = 100
TEXT_BYTES = 255
MOST_NAMES = 50
#: Whole numbers beyond this are not all exact as a double.
MOST_WHOLE = 2**53
#: Values of one condition `in`.
MOST_VALUES = 50

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class AttributeKind(StrEnum):
    """Type of an attribute's value; stored."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    BOOL = "bool"
    TIME = "time"


class Attribute(Struct, frozen=True, gc=False):
    """An attribute as stored: the value is in one of the last three fields, which are columns."""

    name: str
    kind: AttributeKind
    text: str | None = None
    #: Of a bool 0 or 1.
    number: float | None = None
    #: Microseconds since the epoch.
    time: int | None = None

    @property
    def value(self) -> AttributeValue:
        """The value as users see it. Raises `ValueError` and the like for a damaged row."""
        match self.kind:
            case AttributeKind.TEXT if self.text is not None:
                return self.text
            case AttributeKind.INTEGER if self.number is not None:
                return int(self.number)
            case AttributeKind.FLOAT if self.number is not None:
                return float(self.number)
            case AttributeKind.BOOL if self.number is not None:
                return self.number != 0
            case AttributeKind.TIME if self.time is not None:
                return _EPOCH + self.time * _MICROSECOND
            case _:
                pass
        raise ValueError(f"attribute {self.name!r} of kind {self.kind.value} has no value")

    @property
    def column(self) -> str:
        """Name of the column that has the value."""
        if self.kind is AttributeKind.TEXT:
            return "text_value"
        return "time_value" if self.kind is AttributeKind.TIME else "number_value"

    @property
    def stored(self) -> str | float | int | None:
        """The value in that column."""
        if self.kind is AttributeKind.TEXT:
            return self.text
        return self.time if self.kind is AttributeKind.TIME else self.number


#: Comparisons of a filter.
OPERATORS = ("=", "<", "<=", ">", ">=", "in", "prefix")


class Condition(Struct, frozen=True):
    """A condition on one attribute. `values` has one value, or those of `in`."""

    name: str
    operator: str
    values: tuple[Attribute, ...]


def make_attribute(name: object, value: object) -> Attribute:
    """Check a name and a value. Raises `UsageError` and `InvalidName`."""
    checked = _check_attribute_name(name)
    match value:
        case bool():
            return Attribute(checked, AttributeKind.BOOL, number=float(value))
        case int():
            if abs(value) > MOST_WHOLE:
                raise UsageError(
                    f"attribute {checked!r} is {brief(value)}, beyond 2**53, where numbers are not exact any more; "
                    "give it as text"
                )
            return Attribute(checked, AttributeKind.INTEGER, number=float(value))
        case float():
            if not math.isfinite(value):
                raise UsageError(
                    f"attribute {checked!r} is {value}, which has no place in an order; give a finite number"
                )
            # Not -0.0, which some databases tell from 0.
            return Attribute(checked, AttributeKind.FLOAT, number=float(value) + 0.0)
        case str():
            text = check_text(f"attribute {checked!r}", value)
            if (size := len(text.encode())) > TEXT_BYTES:
                raise UsageError(
                    f"attribute {checked!r} has {size} bytes in UTF-8, the limit is {TEXT_BYTES}; an attribute is for "
                    "finding runs, so keep long text in the input or in a published state"
                )
            return Attribute(checked, AttributeKind.TEXT, text=text)
        case datetime():
            if value.utcoffset() is None:
                raise UsageError(f"attribute {checked!r} is {brief(value)} without a time zone; give an aware datetime")
            return Attribute(checked, AttributeKind.TIME, time=_in_utc(checked, value))
        case _:
            raise UsageError(
                f"attribute {checked!r} is {brief(value)} of type {type(value).__name__}; give text, a number, a bool "
                "or an aware datetime"
            )


def make_attributes(given: Mapping[str, AttributeValue] | None, what: str = "attributes") -> tuple[Attribute, ...]:
    """Check the attributes of a start. Raises `UsageError` and `InvalidName`."""
    if given is None:
        return ()
    return tuple(make_attribute(name, value) for name, value in _check_mapping(given, what).items())


def attribute_outputs(given: Mapping[str, AttributeValue | None]) -> list[NewOutput]:
    """Outputs of a turn that set attributes, or remove those that are None. Raises `UsageError` and `InvalidName`."""
    return [
        NewOutput(
            kind=OutputKind.ATTRIBUTE,
            name=_check_attribute_name(name),
            payload="null" if value is None else attributes_to_json([make_attribute(name, value)]),
            key=f"attribute:{name}",
        )
        for name, value in _check_mapping(given, "attributes").items()
    ]


def make_conditions(given: Mapping[str, object] | None) -> tuple[Condition, ...]:
    """Check the conditions of a filter: by name a value, `(operator, value)`, or a list of such pairs.

    Raises `UsageError` and `InvalidName`.
    """
    if given is None:
        return ()
    found: list[Condition] = []
    for name, wanted in _check_mapping(given, "attributes").items():
        if not isinstance(wanted, list | tuple):
            found.append(_condition(name, "=", wanted))
        elif _is_pair(wanted):
            found.append(_condition(name, *wanted))
        else:
            for pair in wanted:
                if not isinstance(pair, list | tuple) or not _is_pair(pair):
                    raise UsageError(
                        f"the filter of attribute {brief(name)} is {brief(wanted)}; give a value, or a pair of an "
                        f"operator ({', '.join(OPERATORS)}) and a value, such as ('>=', 100), or a list of pairs"
                    )
                found.append(_condition(name, *pair))
    return tuple(found)


_CONDITION = re.compile(r"(?P<name>[^=<>^]+)(?P<operator>\^=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)


def read_condition(text: str) -> tuple[str, tuple[str, Any]]:
    """Read a condition: `customer=acme`, `amount>=100`, `city^=Ber` (prefix), `tier=["a","b"]` (one of).

    The value is JSON if it parses, a time if it is one with an offset, else text. Raises `UsageError`.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise UsageError(f"{brief(text)} is not of the form NAME=VALUE, NAME>=VALUE or the like")
    read = _read_value(found["value"])
    if isinstance(read, list):
        return found["name"], ("in", read)
    return found["name"], ("prefix" if found["operator"] == "^=" else found["operator"], read)


def condition_text(condition: Condition) -> str:
    """Write a condition as `read_condition` reads it. Raises `UsageError` for one that has no such form."""
    name, operator, values = condition.name, condition.operator, [one.value for one in condition.values]
    if not _CONDITION.fullmatch(f"{name}=") or (operator == "in" and any(isinstance(one, datetime) for one in values)):
        raise UsageError(
            f"the filter of attribute {name!r} cannot be written as text; use other operators, or the database"
        )
    if operator == "in":
        return f"{name}={msgspec.json.encode(values).decode()}"
    [value] = values
    sign = "^=" if operator == "prefix" else operator
    return f"{name}{sign}{value.isoformat() if isinstance(value, datetime) else msgspec.json.encode(value).decode()}"


def _read_value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return text if time.utcoffset() is None else time


def attributes_to_json(attributes: Iterable[Attribute]) -> str:
    """JSON of attributes, in which a turn and a schedule carry them."""
    return msgspec.json.encode({one.name: (one.kind.value, one.stored) for one in attributes}).decode()


#: By name: the kind and the stored value.
_STORED = decoder_for(dict[str, tuple[AttributeKind, Any]])


def attributes_from_json(text: str) -> tuple[Attribute, ...]:
    """Decode the JSON of attributes. Raises `ValueError` and `MsgspecError`."""
    if text in ("{}", ""):
        return ()
    found = _STORED.decode(text)
    return tuple(_restored(name, kind, value) for name, (kind, value) in found.items())


def _in_utc(name: str, value: datetime) -> int:
    try:
        return (value.astimezone(UTC) - _EPOCH) // _MICROSECOND
    except OverflowError:
        raise UsageError(f"attribute {name!r} is {brief(value)}, which has no time in UTC") from None


def _restored(name: str, kind: AttributeKind, value: Any) -> Attribute:
    if kind is AttributeKind.TEXT:
        return Attribute(name, kind, text=str(value))
    if kind is AttributeKind.TIME:
        return Attribute(name, kind, time=int(value))
    return Attribute(name, kind, number=float(value))


def _check_attribute_name(name: object) -> str:
    checked = check_name(name, "name of an attribute")
    if len(checked.encode()) > NAME_BYTES:
        raise UsageError(f"{brief(name)} cannot be a name of an attribute: it has more than {NAME_BYTES} bytes")
    return checked


def _check_mapping(given: object, what: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise UsageError(f"{what}={brief(given)}: give a dict of values by name, such as {{'customer': 'acme'}}")
    if len(given) > MOST_NAMES:
        raise UsageError(f"{what} has {len(given)} names; give at most {MOST_NAMES}")
    return given


def _is_pair(wanted: list[Any] | tuple[Any, ...]) -> bool:
    return len(wanted) == 2 and isinstance(wanted[0], str) and wanted[0] in OPERATORS


def _condition(name: str, operator: str, value: object) -> Condition:
    if operator == "in":
        if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
            raise UsageError(f"the filter of attribute {brief(name)} is in {brief(value)}; give a list of values")
        values = tuple(make_attribute(name, one) for one in value)
        if len({one.column for one in values}) > 1:
            raise UsageError(f"the filter of attribute {brief(name)} is in {brief(value)}; give values of one type")
        if len(values) > MOST_VALUES:
            raise UsageError(
                f"the filter of attribute {brief(name)} is in a list of {len(values)} values; give at most "
                f"{MOST_VALUES}"
            )
        return Condition(values[0].name if values else _check_attribute_name(name), "in", values)
    one = make_attribute(name, value)
    if operator == "prefix" and one.kind is not AttributeKind.TEXT:
        raise UsageError(f"the filter of attribute {one.name!r} is the prefix {brief(value)}; give text")
    if operator in ("<", "<=", ">", ">=") and one.kind is AttributeKind.BOOL:
        raise UsageError(f"the filter of attribute {one.name!r} orders a bool; compare it by =")
    return Condition(one.name, operator, (one,))


#: Largest code point, and the last one before the gap of surrogates.
_LAST, _BEFORE_GAP, _AFTER_GAP = "\U0010ffff", "\ud7ff", "\ue000"


def past_prefix(prefix: str) -> str | None:
    """The smallest text after all texts with a prefix, in the order of code points; None if there is none."""
    text = prefix.rstrip(_LAST)
    if not text:
        return None
    return text[:-1] + (_AFTER_GAP if text[-1] == _BEFORE_GAP else chr(ord(text[-1]) + 1))
