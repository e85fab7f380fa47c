"""Copies of mutable values, so that the arguments of a call stay as they were.

An immutable value costs one check of its type. A value that cannot be copied, or contains itself, is returned as it is;
encoding refuses it with an error.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import fractions
import re
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

T = TypeVar("T")

#: Types of immutable values without mutable parts.
FIXED: frozenset[type] = frozenset(
    {
        type(None), bool, int, float, complex, str, bytes, range, type, FunctionType, msgspec.Raw, msgspec.UnsetType,
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone, decimal.Decimal,
        fractions.Fraction, UUID, re.Pattern,
    }
)  # fmt: skip

#: Tells whether all types are in `FIXED`: `all_fixed(map(type, values))`.
all_fixed: Callable[[Iterable[type]], bool] = FIXED.issuperset


def snapshot(value: T) -> T:
    """The value itself if it is immutable, else a copy."""
    if type(value) in FIXED:
        return value
    try:
        return cast("T", _copied(value))
    except Exception:
        return value


def snapshot_all(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """Copies of the arguments of a call; the last item is True if any of them is mutable."""
    owned = tuple([snapshot(each) for each in args])
    named = {name: snapshot(each) for name, each in kwargs.items()}
    changes = any(map(_differ, args, owned)) or any(map(_differ, kwargs.values(), named.values()))
    return owned, named, changes


def _differ(one: object, other: object) -> bool:
    return one is not other


def _copied(value: Any) -> Any:
    kind: type[Any] = type(value)
    copier = _COPIERS.get(kind)
    if copier is None:
        if kind in FIXED:
            return value
        copier = _copier_of(kind)
        if len(_COPIERS) < _MOST_COPIERS:
            _COPIERS[kind] = copier
    return copier(value)


def _copier_of(kind: type[Any]) -> Callable[[Any], Any]:
    """The function that copies values of a class."""
    if issubclass(kind, enum.Enum | type):
        return _same
    if issubclass(kind, msgspec.Struct):
        return _Fields(kind.__struct_fields__, kind.__struct_config__.frozen, msgspec.structs.force_setattr)
    if _is_plain_dataclass(kind):
        return _Fields(tuple(kind.__dataclass_fields__), kind.__dataclass_params__.frozen, object.__setattr__)
    if issubclass(kind, tuple) and hasattr(kind, "_make"):
        return _copied_named_tuple
    return copy.deepcopy


def _is_plain_dataclass(kind: type[Any]) -> bool:
    """Tell whether a dataclass consists of its fields only."""
    return (
        hasattr(kind, "__dataclass_fields__")
        and not hasattr(kind, "__deepcopy__")
        and not hasattr(kind, "__pydantic_serializer__")
        and not issubclass(kind, list | dict | set | tuple | bytearray)
    )


class _Fields:
    """Copies a dataclass or Struct: returns the value itself if it is immutable, else one with copies of its fields."""

    __slots__ = ("_assign", "_frozen", "_names")

    def __init__(self, names: tuple[str, ...], frozen: bool, assign: Callable[[Any, str, Any], None]) -> None:
        self._names = names
        self._frozen = frozen
        self._assign = assign

    def __call__(self, value: Any) -> Any:
        changed: list[tuple[str, Any]] = []
        for name in self._names:
            part = getattr(value, name, msgspec.UNSET)
            if type(part) not in FIXED and (own := _copied(part)) is not part:
                changed.append((name, own))
        if self._frozen and not changed:
            return value
        others = getattr(value, "__dict__", None)
        if others is not None and len(others) > len(self._names):
            return copy.deepcopy(value)  # it has attributes besides its fields
        other = copy.copy(value)
        for name, part in changed:
            self._assign(other, name, part)
        return other


def _copied_named_tuple(value: Any) -> Any:
    parts = _copied_parts(value)
    return value if parts is None else type(value)._make(parts)


def _copied_parts(values: tuple[Any, ...]) -> list[Any] | None:
    """Copies of the parts; None if all of them are immutable."""
    if all_fixed(map(type, values)):
        return None
    parts = [each if type(each) in FIXED else _copied(each) for each in values]
    return parts if any(map(_differ, values, parts)) else None


def _copied_list(value: list[Any]) -> list[Any]:
    return [each if type(each) in FIXED else _copied(each) for each in value]


def _copied_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    # Keys are hashable, and so taken to be immutable.
    return {key: each if type(each) in FIXED else _copied(each) for key, each in value.items()}


def _copied_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    parts = _copied_parts(value)
    return value if parts is None else tuple(parts)


def _copied_set(value: set[Any]) -> set[Any]:
    return set(value)


def _same(value: Any) -> Any:
    return value


#: Most classes whose copiers are cached.
_MOST_COPIERS = 4096

_COPIERS: dict[type, Callable[[Any], Any]] = {
    list: _copied_list,
    dict: _copied_dict,
    tuple: _copied_tuple,
    set: _copied_set,
    frozenset: _same,
    bytearray: bytearray,
    memoryview: bytes,
}
