"""Answers of the API: the values of the Python API as JSON objects.

Times are RFC 3339 in UTC, or null. Payloads appear as the JSON that they are. The proof of a lease (token, nonce) and
the seed of a run are left out. Fields are added, never renamed or removed.

A view is a class with the fields of an answer; `view_of` fills it from the value that has fields of the same names.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct

from perdure.core.model.attributes import AttributeValue
from perdure.core.time.duration import NEVER
from perdure.http.api import Limit, Position
from perdure.http.redaction import FailureView, Redactor

T = TypeVar("T")
V = TypeVar("V", bound=Struct)
_Convert = Callable[[Any, Redactor], Any]

#: A point in time as an answer has it; null for "never" and for "not yet".
Time = datetime.datetime | None

#: A text that users or errors wrote, and a payload: a caller gets them as far as it may see them.
ShownText = Annotated[str, Meta(extra={"shown": True})]
Payload = Annotated[Any, Meta(extra={"shown": True})]

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def time_of(stored: int) -> Time:
    """Convert a stored time; None for "never" and for "not yet"."""
    return None if stored <= 0 or stored >= NEVER else _EPOCH + datetime.timedelta(microseconds=stored)


def view_of(view: type[V], source: Any, shown: Redactor, **known: Any) -> V:
    """Make a view of a value; `known` are fields that the value does not have, or has otherwise."""
    for name, convert in _converters(view):
        if name not in known:
            value = getattr(source, name)
            known[name] = value if convert is None or value is None else convert(value, shown)
    return view(**known)


def views_of(view: type[V], sources: Iterable[Any], shown: Redactor) -> tuple[V, ...]:
    """Make views of values. A view whose fields differ from those of its value converts it by its method `of`."""
    make: Callable[[Any, Redactor], V] = getattr(view, "of", partial(view_of, view))
    return tuple(make(one, shown) for one in sources)


@cache
def _converters(view: type[Struct]) -> tuple[tuple[str, _Convert | None], ...]:
    hints = get_type_hints(view, include_extras=True)
    return tuple((name, _converter(hints[name])) for name in view.__struct_fields__)


def _converter(hint: Any) -> _Convert | None:
    """Conversion of a field by its type; None for a field that stays as it is."""
    if hint == Time:
        return lambda stored, _: time_of(stored)
    if hint == ShownText:
        return lambda text, shown: shown.text(text)
    if hint == Payload:
        return lambda text, shown: shown.payload(text)
    if hint is FailureView:
        return lambda error, shown: shown.error(error)
    if get_origin(hint) in (Union, UnionType):
        return _converter(get_args(hint)[0])
    if get_origin(hint) is tuple and (each := _converter(get_args(hint)[0])) is not None:
        return lambda values, shown: tuple(each(one, shown) for one in values)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return lambda value, shown: value if isinstance(value, hint) else views_of(hint, (value,), shown)[0]
    return None


class Page(Struct, Generic[T], frozen=True):
    """A page of a listing. Pass `cursor` for the next page, `previous` for the one before; null where there is none."""

    items: tuple[T, ...]
    cursor: str | None = None
    previous: str | None = None


class Done(Struct, frozen=True):
    """Answer to an order: `done` is false if there was nothing to do."""

    done: bool


class TimeAttribute(Struct, frozen=True, forbid_unknown_fields=True):
    """A time as the value of an attribute."""

    time: Annotated[datetime.datetime, Meta(tz=True)]


#: Value of an attribute.
AttributeJson = str | int | float | bool | TimeAttribute


def attribute_view(name: str, value: AttributeValue, shown: Redactor) -> Any:
    """Convert the value of an attribute."""
    return attributes_view({name: value}, shown)[name]


def attributes_view(found: Mapping[str, AttributeValue] | None, shown: Redactor) -> dict[str, Any]:
    """Convert attributes by name."""
    values = shown.members(found or {})
    return {
        name: TimeAttribute(value) if isinstance(value, datetime.datetime) else value for name, value in values.items()
    }


class NamedQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of named items, in the order of their names."""

    #: Name after which the page begins.
    cursor: str = ""
    limit: Limit = 100


def named(items: tuple[T, ...], name: str, query: NamedQuery) -> Page[T]:
    """A page of items in the order of that field."""
    return Page(items, getattr(items[-1], name) if len(items) == query.limit else None)


class NumberedQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A page of numbered items."""

    #: Number after which the page begins.
    cursor: Position | None = None
    limit: Limit = 100


def numbered(items: tuple[T, ...], number: str, query: NumberedQuery) -> Page[T]:
    """A page of items, of which there is one more than asked for unless they end here."""
    page = items[: query.limit]
    return Page(page, str(getattr(page[-1], number)) if len(items) > len(page) else None)
