"""Types that msgspec does not decode: unions of dataclasses and Structs, and enums with values of several types.

A value of such a union is stored with the name of its class, under `$type`. Only types that contain such a union or
enum are decoded here; all others are left to msgspec.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from perdure.core.codec.decoders import convert_to
from perdure.core.codec.pydantic_models import decode_model, is_model

TAG = "$type"

_SEQUENCES: dict[Any, Callable[[list[Any]], Any]] = {list: list, tuple: tuple, set: set, frozenset: frozenset}
_MAPPINGS = (dict, Mapping)


class TaggedDecoder:
    """Encodes and decodes a type that contains unions of classes."""

    def __init__(self, declared: Any) -> None:
        """Raises `TypeError` if nothing in the type needs tags."""
        if not _is_special(declared, set()):
            raise TypeError("there is no union of classes in it")
        self._declared = declared
        _check(declared, set())

    def decode(self, payload: str | bytes) -> Any:
        """Decode JSON. Raises `ValueError` and others."""
        return _from_plain(msgspec.json.decode(payload), self._declared, "")

    def to_plain(self, value: Any) -> Any:
        """Add class names where the type is a union of classes. Parts that do not fit the type stay as they are."""
        return _to_plain(value, self._declared)


def _members(declared: Any) -> tuple[Any, ...]:
    """Members of a union; the type itself if it is not a union."""
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return typing.get_args(declared)
    return (declared,)


def _plain_type(declared: Any) -> Any:
    """The type without `Annotated`, `Required` and similar wrappers, and with its alias resolved."""
    while True:
        if type(declared).__name__ == "TypeAliasType":
            declared = declared.__value__
        elif typing.get_origin(declared) in (typing.Annotated, typing.Required, typing.NotRequired):
            declared = typing.get_args(declared)[0]
        else:
            return declared


def _is_class_with_fields(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and not is_model(kind)
        and (dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct) or hasattr(kind, "__attrs_attrs__"))
    )


def _has_own_tag(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None


def _classes(members: tuple[Any, ...]) -> list[Any]:
    """Members of a union that need a class name; empty if there are fewer than two."""
    found = [each for each in map(_plain_type, members) if _is_class_with_fields(each)]
    return found if len(found) > 1 and not all(map(_has_own_tag, found)) else []


def _is_mixed_enum(kind: Any) -> bool:
    if not isinstance(kind, type) or not issubclass(kind, enum.Enum):
        return False
    kinds = {type(each.value) for each in kind}
    return len(kinds) > 1 or not kinds <= {int, str}


def _class_of(declared: Any) -> Any:
    """The class behind a generic alias such as `Box[int]`; else the type itself."""
    origin = typing.get_origin(declared)
    return origin if _is_class_with_fields(origin) else declared


def _field_types(declared: Any) -> dict[str, Any]:
    kind = _class_of(declared)
    if not (
        _is_class_with_fields(kind)
        or typing.is_typeddict(kind)
        or (isinstance(kind, type) and hasattr(kind, "_fields"))
    ):
        return {}
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return {}
    filled: dict[Any, Any] = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(declared), strict=False))
    return {
        name: filled.get(hint, hint) if isinstance(hint, typing.TypeVar) else hint
        for name, hint in hints.items()
        if typing.get_origin(hint) is not typing.ClassVar
    }


def _is_special(declared: Any, seen: set[int]) -> bool:
    """Tell whether a type contains anything that msgspec cannot decode."""
    declared = _plain_type(declared)
    if id(declared) in seen:
        return False
    seen.add(id(declared))
    members = _members(declared)
    if len(members) > 1:
        return bool(_classes(members)) or any(_is_special(each, seen) for each in members)
    if _is_mixed_enum(declared):
        return True
    parts = [*typing.get_args(declared), *_field_types(declared).values()]
    return any(_is_special(each, seen) for each in parts)


def _check(declared: Any, seen: set[int]) -> None:
    declared = _plain_type(declared)
    if id(declared) in seen:
        return
    seen.add(id(declared))
    members = _members(declared)
    names = [each.__name__ for each in _classes(members)]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"two classes of a union are called {min(twice)!r}; give them different names")
    for each in members if len(members) > 1 else [*typing.get_args(declared), *_field_types(declared).values()]:
        _check(each, seen)


def _to_plain(value: Any, declared: Any) -> Any:
    declared = _plain_type(declared)
    members = _members(declared)
    if len(members) > 1:
        classes = _classes(members)
        for kind in classes:
            if type(value) is kind:
                return {TAG: kind.__name__, **_fields_to_plain(value, kind)}
        chosen = [each for each in map(_plain_type, members) if _may_be(value, each)]
        return _to_plain(value, chosen[0]) if len(chosen) == 1 else value
    if not _is_special(declared, set()):
        return value
    return _special_to_plain(value, declared)


def _special_to_plain(value: Any, declared: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin is tuple and isinstance(value, list | tuple) and not (len(args) == 2 and args[1] is ...):
        return [_to_plain(each, arg) for each, arg in zip(value, args, strict=False)]
    if isinstance(value, list | tuple | set | frozenset) and args:
        return [_to_plain(each, args[0]) for each in value]
    if isinstance(value, dict) and args:
        return {key: _to_plain(each, args[-1]) for key, each in value.items()}
    if typing.is_typeddict(declared) and isinstance(value, dict):
        hints = _field_types(declared)
        return {key: _to_plain(each, hints.get(key, Any)) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(declared, "_fields"):
        hints = _field_types(declared)
        return [_to_plain(each, hints.get(name, Any)) for name, each in zip(declared._fields, value, strict=False)]
    if type(value) is _class_of(declared):
        return _fields_to_plain(value, declared)
    return value


def _fields_to_plain(value: Any, declared: Any) -> dict[str, Any]:
    hints, kind = _field_types(declared), _class_of(declared)
    names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else hints
    found = {name: getattr(value, name, msgspec.UNSET) for name in names}
    return {name: _to_plain(each, hints.get(name, Any)) for name, each in found.items() if each is not msgspec.UNSET}


def _may_be(value: Any, declared: Any) -> bool:
    origin = typing.get_origin(declared) or declared
    if declared is None or declared is type(None):
        return value is None
    return isinstance(origin, type) and isinstance(value, origin)


def _from_plain(raw: Any, declared: Any, path: str) -> Any:
    declared = _plain_type(declared)
    members = _members(declared)
    if len(members) > 1:
        return _member_from_plain(raw, members, path)
    if not _is_special(declared, set()):
        return _converted(raw, declared, path)
    if _is_mixed_enum(declared):
        return declared(raw)
    origin, args = typing.get_origin(declared), typing.get_args(declared)
    if origin in _SEQUENCES and isinstance(raw, list):
        fixed = origin is tuple and not (len(args) == 2 and args[1] is ...)
        if fixed and len(args) != len(raw):
            raise ValueError(f"Expected {len(args)} items, got {len(raw)}{_at(path)}")
        kinds = args if fixed else [args[0]] * len(raw)
        parts = [
            _from_plain(each, kind, f"{path}[{at}]") for at, (each, kind) in enumerate(zip(raw, kinds, strict=True))
        ]
        return _SEQUENCES[origin](parts)
    if origin in _MAPPINGS and isinstance(raw, dict):
        key_type: Any = dict
        keys = _converted(dict.fromkeys(raw, 0), key_type[args[0], int], path)
        return {
            key: _from_plain(each, args[1], f"{path}[{key!r}]") for key, each in zip(keys, raw.values(), strict=True)
        }
    return _object_from_plain(raw, declared, path)


def _member_from_plain(raw: Any, members: tuple[Any, ...], path: str) -> Any:
    classes = _classes(members)
    others = [each for each in members if _plain_type(each) not in classes]
    if classes and isinstance(raw, dict) and TAG in raw:
        for kind in classes:
            if kind.__name__ == raw[TAG]:
                return _object_from_plain({name: each for name, each in raw.items() if name != TAG}, kind, path)
        known = ", ".join(kind.__name__ for kind in classes)
        raise ValueError(f"{raw[TAG]!r} is not one of {known}{_at(path)}")
    if raw is None and any(each is type(None) for each in others):
        return None
    others = [each for each in others if each is not type(None)]
    problem: Exception | None = None
    for each in others:
        try:
            return _from_plain(raw, each, path)
        except Exception as error:
            problem = error
    if problem is not None and len(others) == 1:
        raise problem
    known = ", ".join(kind.__name__ for kind in classes)
    raise ValueError(f"it is not a value of the union; an object needs {TAG!r}, one of {known}{_at(path)}")


def _object_from_plain(raw: Any, kind: Any, path: str) -> Any:
    if not isinstance(raw, dict | list):
        # Decoders raise ValueError.
        raise ValueError(f"Expected `object`, got `{type(raw).__name__}`{_at(path)}")  # noqa: TRY004 # as msgspec
    if not _is_special(kind, set()):
        return _converted(raw, kind, path)
    hints, kind = _field_types(kind), _class_of(kind)
    if isinstance(raw, list):
        pairs = zip(getattr(kind, "_fields", ()), raw, strict=False)
        return kind(**{name: _from_plain(each, hints.get(name, Any), f"{path}.{name}") for name, each in pairs})
    values = {name: _from_plain(raw[name], hint, f"{path}.{name}") for name, hint in hints.items() if name in raw}
    if typing.is_typeddict(kind):
        return values
    fields: Mapping[str, dataclasses.Field[Any]] = getattr(kind, "__dataclass_fields__", {})
    left_out = [name for name, each in fields.items() if not each.init]
    made = kind(**{name: each for name, each in values.items() if name not in left_out})
    for name in left_out:
        if name in values:
            object.__setattr__(made, name, values[name])
    return made


def _converted(raw: Any, declared: Any, path: str) -> Any:
    try:
        return convert_to(declared, raw, dec_hook=decode_model)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}{_at(path)}") from error


def _at(path: str) -> str:
    return f" - at `${path}`" if path else ""
