"""Finds the part of a value that JSON cannot represent, and its path.

The slow, exact half of the codec. It walks through a value like msgspec and finds the first part that would not come
back equal. It also sorts a value's sets and keys into one order.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, ItemsView, Iterable, Iterator, KeysView, ValuesView
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import AsyncGeneratorType, BuiltinFunctionType, FunctionType, GeneratorType, MethodType
from typing import Any
from uuid import UUID

import msgspec

from perdure.core.codec.pydantic_models import ModelError, encode_model, is_model

#: Deepest nesting of a value. Decoding recurses, and must not fail where the stack is deeper.
DEPTH = 200

#: Path of a part, and its problem.
Flaw = tuple[str, str]

_SIMPLE = frozenset({type(None), bool, int, float, str})
_FINE = (bytes, bytearray, memoryview, UUID, date, timedelta)


def find_flaw(value: object) -> Flaw | None:
    """Find the first part of a value that would not survive encoding and decoding."""
    flaw = _find(value, 0)
    return None if flaw is None else (flaw[0].removeprefix("."), flaw[1])


def ordered(value: object, encode: Callable[[Any], bytes]) -> object:
    """Convert a value to plain lists and dicts, with sets sorted by the encodings of their elements."""
    if isinstance(value, dict):
        return {_key_text(key): ordered(each, encode) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [ordered(each, encode) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((ordered(each, encode) for each in value), key=encode)
    fields = fields_of(value)
    return value if fields is None else {name: ordered(each, encode) for name, each in fields}


def _find(value: object, depth: int) -> Flaw | None:
    if is_model(type(value)):
        return _flaw_of_model(value, depth)
    parts = _parts(value)
    if parts is None:
        problem = _problem(value)
        return None if problem is None else ("", problem)
    if depth >= DEPTH:
        return "", f"is nested over {DEPTH} levels deep, or contains itself"
    if isinstance(value, dict):
        problem = _key_problem(value)
        if problem is not None:
            return "", problem
    for step, part in parts:
        flaw = _find(part, depth + 1)
        if flaw is not None:
            return step + flaw[0], flaw[1]
    return None


def _flaw_of_model(model: object, depth: int) -> Flaw | None:
    try:
        inside = msgspec.json.decode(encode_model(model))
    except ModelError as error:
        return f".{error.path}" if error.path else "", error.problem
    return _find(inside, depth + 1)


def _parts(value: object) -> Iterable[tuple[str, object]] | None:
    """Parts of a compound value, each with its step of the path; None for a value without parts."""
    if isinstance(value, dict):
        return ((path_step(key), each) for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"[{index}]", each) for index, each in enumerate(value))
    fields = fields_of(value)
    return None if fields is None else ((f".{name}", each) for name, each in fields)


def has_set_of_sets(value: object) -> bool:
    """Tell whether a value contains a set whose elements have parts."""
    left = [value]
    while left:
        each = left.pop()
        if type(each) in _SIMPLE:
            continue
        if isinstance(each, dict):
            left.extend(each.values())
        elif isinstance(each, list | tuple):
            left.extend(each)
        elif isinstance(each, set | frozenset):
            if any(_parts(part) is not None for part in each):
                return True
        elif (fields := fields_of(each)) is not None:
            left.extend(part for _, part in fields)
    return False


def fields_of(value: object) -> Iterator[tuple[str, object]] | None:
    """Fields of a dataclass, Struct or attrs class; None for any other value."""
    if isinstance(value, type):
        return None
    names: Iterable[str]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif (dataclass_fields := getattr(value, "__dataclass_fields__", None)) is not None:
        names = dataclass_fields
    elif (attributes := getattr(value, "__attrs_attrs__", None)) is not None:
        names = [attribute.name for attribute in attributes]
    else:
        return None
    found = ((name, getattr(value, name, msgspec.UNSET)) for name in names)
    return ((name, each) for name, each in found if each is not msgspec.UNSET)


def path_step(key: object) -> str:
    """Step of a path for the key of a dict."""
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{_shown(key)}]"


def _problem(value: object) -> str | None:
    match value:
        case None | bool() | Enum():
            return _problem(value.value) if isinstance(value, Enum) else None
        case str():
            return _text_problem(value) if type(value) is str else _type_problem(value)
        case int():
            return _int_problem(value) if type(value) is int else _type_problem(value)
        case float():
            if type(value) is not float:
                return _type_problem(value)
            return None if math.isfinite(value) else f"is {value}, which JSON does not have; pass None or a number"
        case Decimal():
            return (
                f"is Decimal('{value}'), which does not equal itself; pass None or a number" if value.is_nan() else None
            )
        case datetime() | time():
            return _offset_problem(value)
        case msgspec.Raw():
            return _raw_problem(value)
        case _:
            return None if isinstance(value, _FINE) else _type_problem(value)


def _raw_problem(raw: msgspec.Raw) -> str | None:
    try:
        inside = msgspec.json.decode(raw)
        same = msgspec.json.encode(inside) == bytes(raw)
    except Exception:
        return "is a Raw that is not JSON"
    if not same:
        return "is a Raw in another form than msgspec writes; encode it with msgspec"
    flaw = find_flaw(inside)
    return None if flaw is None else flaw[1]


#: Values that are often stored by mistake, and what to do instead.
_ADVICE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (GeneratorType, "is a generator, which runs only once; pass a list: list(...)"),
    (AsyncGeneratorType, "is an async generator, which runs only once; pass a list: [item async for item in ...]"),
    (Awaitable, "is not a result yet; await it"),
    ((FunctionType, MethodType, BuiltinFunctionType), "is a function; call it, or pass its name"),
    ((KeysView, ValuesView, ItemsView, map, filter, zip, range), "is an iterable; make a list of it: list(...)"),
)


def _type_problem(value: object) -> str:
    kind = type(value)
    advice = getattr(value, "__perdure_advice__", None)
    if isinstance(advice, str):
        return f"is a {kind.__name__}, {advice}; pass plain data, such as an id"
    for kinds, text in _ADVICE:
        if isinstance(value, kinds):
            return text
    return (
        f"is of type {kind.__module__}.{kind.__qualname__}, which JSON cannot represent; use plain data: None, bool, "
        "numbers, str, bytes, dates and times, Decimal, UUID, Enum, lists, tuples, sets, dicts, dataclasses, "
        "msgspec Structs or pydantic models"
    )


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "contains a NUL character, which databases do not store in text; remove it, or pass bytes"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"contains a lone surrogate ({text[error.start]!r}), which is not a character; "
            "decode the text properly, or pass bytes"
        )
    return None


def _int_problem(number: int) -> str | None:
    try:
        str(number)
    except ValueError:
        return "is an integer with more digits than Python reads back; pass it as bytes: int.to_bytes()"
    return None


def _offset_problem(moment: datetime | time) -> str | None:
    offset = moment.utcoffset()
    if offset is None or not offset % timedelta(minutes=1):
        return None
    return f"has the UTC offset {offset}, and JSON drops its seconds; convert it: .astimezone(UTC)"


def _key_problem(value: dict[Any, Any]) -> str | None:
    seen: dict[str, object] = {}
    for key in value:
        if isinstance(key, str):
            problem = _text_problem(key)
        elif key is None or isinstance(key, bool | tuple | frozenset):
            problem = "cannot be a key in JSON; use str, numbers, dates, UUID or Enum"
        elif isinstance(key, float) and math.isnan(key):
            problem = "does not equal itself"
        else:
            problem = _problem(key)
        if problem is not None:
            return f"has the key {_shown(key)}, which {problem}"
        text = _key_text(key)
        if text in seen:
            return (
                f"has the keys {_shown(seen[text])} and {_shown(key)}, which become the same text in JSON; "
                "use keys of one type"
            )
        seen[text] = key
    return None


def _key_text(key: object) -> str:
    return next(iter(msgspec.json.decode(msgspec.json.encode({key: None}), type=dict[str, None])))


def _shown(key: object) -> str:
    try:
        text = repr(key)
    except Exception:
        # An integer may be too long to print, and a user's `__repr__` may raise.
        return f"<{type(key).__name__}>"
    return text if len(text) <= 60 else f"{text[:60]}..."
