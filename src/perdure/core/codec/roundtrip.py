"""Compares a value with what its JSON decodes to, and finds the first difference.

The exact half of the check; a usual value equals its decoded JSON and does not come here.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from perdure.core.codec.json_problems import fields_of, path_step
from perdure.core.codec.pydantic_models import is_model

#: Path of a part, and how it differs.
Difference = tuple[str, str]

_NUMBERS = (int, float)


def find_difference(value: object, back: object, digest: Callable[[object], str], *, exact: bool) -> Difference | None:
    """Find the first part of a value that came back changed.

    Unless `exact`, conversions to the declared type are allowed: a tuple may come back as a declared list, text as a
    declared date. A part that is lost, or comes back as another class, is always a difference.
    """
    found = _find(value, back, digest, exact=exact)
    return None if found is None else (found[0].removeprefix("."), found[1])


def _find(value: Any, back: Any, digest: Callable[[object], str], *, exact: bool) -> Difference | None:
    if type(value) is type(back):
        return _find_inside(value, back, digest, exact=exact)
    if isinstance(value, _NUMBERS) and isinstance(back, _NUMBERS) and value == back:
        return None
    ours, theirs = fields_of(value), fields_of(back)
    if is_model(type(value)) or is_model(type(back)) or (ours is not None and not isinstance(back, dict)):
        return ("", _other_class(value, back)) if ours is not None or is_model(type(value)) else None
    if exact or ours is not None:
        return "", _other_class(value, back)
    if isinstance(value, list | tuple) and isinstance(back, list | tuple) and len(value) == len(back):
        return _first(enumerate(zip(value, back, strict=True)), digest)
    if isinstance(value, dict) and theirs is not None:
        return None
    return None if _same_digest(value, back, digest) else ("", _other_class(value, back))


def _find_inside(value: Any, back: Any, digest: Callable[[object], str], *, exact: bool) -> Difference | None:
    """Find the first difference between two values of one class."""
    if isinstance(value, dict):
        return _find_in_dict(value, back, digest, exact=exact)
    if isinstance(value, list | tuple):
        if len(value) != len(back):
            return "", f"has {len(value)} items and comes back with {len(back)}"
        for number, (one, other) in enumerate(zip(value, back, strict=True)):
            found = _find(one, other, digest, exact=exact)
            if found is not None:
                return f"[{number}]{found[0]}", found[1]
        return None
    fields = None if is_model(type(value)) else fields_of(value)
    if fields is None:
        same = bool(value == back) or _same_digest(value, back, digest)
        return None if same else ("", f"is {_shown(value)} and comes back as {_shown(back)}")
    for name, one in fields:
        found = _find(one, getattr(back, name, None), digest, exact=exact)
        if found is not None:
            return f".{name}{found[0]}", found[1]
    return None


def _find_in_dict(
    value: dict[Any, Any], back: dict[Any, Any], digest: Callable[[object], str], *, exact: bool
) -> Difference | None:
    for key, one in value.items():
        if key not in back:
            if str(key) in back and not isinstance(key, str):
                return "", f"has the key {_shown(key)}, a {type(key).__name__}, which comes back as text"
            return path_step(key), "is lost"
        found = _find(one, back[key], digest, exact=exact)
        if found is not None:
            return f"{path_step(key)}{found[0]}", found[1]
    return None


def _first(pairs: Any, digest: Callable[[object], str]) -> Difference | None:
    for number, (one, other) in pairs:
        found = _find(one, other, digest, exact=False)
        if found is not None:
            return f"[{number}]{found[0]}", found[1]
    return None


def _same_digest(value: object, back: object, digest: Callable[[object], str]) -> bool:
    try:
        return digest(value) == digest(back)
    except Exception:
        return False


def _other_class(value: object, back: object) -> str:
    return f"is {with_article(type(value).__name__)} and comes back as {with_article(type(back).__name__)}"


def with_article(name: str) -> str:
    """The name of a class, after "a" or "an"."""
    return f"{'an' if name[:1] in 'AEIOUaeio' else 'a'} {name}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}..."


def find_lost(before: Any, after: Any, path: str = "") -> str | None:
    """Path of the first part that `before` has and `after` lacks; None if nothing is lost."""
    if isinstance(before, dict):
        if not isinstance(after, dict):
            return path
        for key, each in before.items():
            inside = f"{path}{path_step(key)}"
            lost = find_lost(each, after[key], inside) if key in after else inside
            if lost is not None:
                return lost.removeprefix(".")
        return None
    if isinstance(before, list):
        if not isinstance(after, list) or len(before) > len(after):
            return path
        for number, (one, other) in enumerate(zip(before, after, strict=False)):
            if isinstance(one, dict | list) and (lost := find_lost(one, other, f"{path}[{number}]")) is not None:
                return lost.removeprefix(".")
    return None


@lru_cache(maxsize=4096)
def _is_open(declared: Any) -> bool:
    return _mentions_any(declared, set())


def is_open(declared: Any) -> bool:
    """Tell whether a type leaves the type of a value, or of a part, open: `Any`, `object`, a bare `list`."""
    try:
        return _is_open(declared)
    except TypeError:  # it cannot be hashed
        return _mentions_any(declared, set())


def _mentions_any(declared: Any, seen: set[int]) -> bool:
    if declared in (Any, object, inspect.Signature.empty) or isinstance(declared, TypeVar):
        return True
    if declared in (list, dict, tuple, set, frozenset, Mapping, Sequence):
        return True
    if id(declared) in seen:
        return False
    seen.add(id(declared))
    parts = [each for each in typing.get_args(declared) if each is not ...]
    if isinstance(declared, type) and (fields_named(declared) or typing.is_typeddict(declared)):
        try:
            parts += typing.get_type_hints(declared).values()
        except Exception:
            return False
    if typing.get_origin(declared) is typing.Literal:
        return False
    return any(_mentions_any(each, seen) for each in parts)


def fields_named(kind: type[Any]) -> bool:
    """Tell whether a class has annotated fields that are encoded."""
    return (
        hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__struct_fields__") or hasattr(kind, "__attrs_attrs__")
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )  # fmt: skip


#: Types whose values have no parts, and are determined by their text.
_FLAT = frozenset({str, int, float, bool, type(None), datetime, date, Decimal, UUID})


def is_flat(declared: Any) -> bool:
    """Tell whether a type is a class whose fields are all text, numbers and the like."""
    if not isinstance(declared, type) or is_model(declared) or not fields_named(declared):
        return False
    try:
        hints = typing.get_type_hints(declared).values()
    except Exception:
        return False
    return all(set(typing.get_args(each) or (each,)) <= _FLAT for each in hints)


_PLAIN = frozenset({str, int, bool})

#: Tells whether all types are those of values that JSON tells apart, and decodes to what they were.
all_plain: Callable[[Iterable[type]], bool] = _PLAIN.issuperset


def plain_fields(declared: type[Any]) -> Callable[[Any], tuple[object, ...]] | None:
    """Return what gets the fields of a flat class if nothing else decides what its JSON is and what that decodes to.

    A value comes back as it was if the types of its fields are plain, too, and it can be decoded.
    """
    if dataclasses.is_dataclass(declared):
        fields = dataclasses.fields(declared)
        names = tuple(field.name for field in fields if field.init)
        if len(names) < len(fields):
            return None
        own = object
        frozen = declared.__dataclass_params__.frozen  # type: ignore[attr-defined] # typeshed lacks it
    elif issubclass(declared, msgspec.Struct):
        names = declared.__struct_fields__
        own, frozen = msgspec.Struct, False
    else:
        return None
    hints = typing.get_type_hints(declared)
    # `attrgetter` returns a tuple for two names or more.
    if len(names) < 2 or not all_plain(hints[name] for name in names) or hasattr(declared, "__post_init__"):
        return None
    if declared.__getattribute__ is not own.__getattribute__ or not (frozen or declared.__setattr__ is own.__setattr__):
        return None
    return attrgetter(*names)
