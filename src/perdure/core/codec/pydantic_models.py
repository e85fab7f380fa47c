"""Encoding and decoding of pydantic models, without importing pydantic: models are recognised by their shape.

A model is encoded by its own `model_dump_json`, if its validation reads that back as an equal model; an error names the
field that differs. It is decoded by its own validation.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class ModelError(ValueError):
    """A model that does not survive its own JSON."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


def is_model(kind: object) -> bool:
    """Tell whether a class is a pydantic model."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_validate_json")


def encode_model(value: Any) -> msgspec.Raw:
    """Encode a model as JSON; msgspec calls this for objects that it does not know. Raises `ModelError`."""
    if not is_model(type(value)):
        raise NotImplementedError(f"objects of type {type(value).__name__} are not supported")
    problem: ModelError | None = None
    # Models are validated by alias, unless configured otherwise.
    for by_alias in (True, False):
        try:
            text = value.model_dump_json(by_alias=by_alias, round_trip=True, warnings="error")
        except Exception as error:
            raise ModelError("", f"cannot be made JSON: {error}") from error
        problem = _difference(value, text)
        if problem is None:
            return msgspec.Raw(text.encode())
    assert problem is not None
    raise problem


def order_model(value: Any) -> Any:
    """Convert a model to plain values with its sets sorted, for digests. Raises `ModelError`."""
    encode_model(value)
    return _in_order(value.model_dump(round_trip=True), value.model_dump(mode="json", round_trip=True))


def decode_model(kind: Any, value: Any) -> Any:
    """Decode a model from plain JSON values; msgspec calls this for classes that it does not know."""
    if kind is object:
        return value
    if not is_model(kind):
        if isinstance(kind, type) and isinstance(value, kind):
            return value  # the declared class is `object`
        raise NotImplementedError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")
    try:
        return kind.model_validate_json(_encode(value))
    except Exception as error:
        raise ValueError("; ".join(problems_of(error))) from error


def problems_of(error: BaseException) -> Iterator[str]:
    """Problems that a validation found, as `field: message`; the text of any other error."""
    listed = getattr(error, "errors", None)
    problems = listed() if callable(listed) else None
    if not isinstance(problems, list):
        yield str(error)
        return
    for problem in problems:
        place = ".".join(str(part) for part in problem.get("loc", ()))
        yield f"{place}: {problem.get('msg', '')}" if place else str(problem.get("msg", ""))


class AdaptedDecoder:
    """Decodes a type that msgspec cannot decode, such as a union of models, by a pydantic `TypeAdapter`."""

    def __init__(self, kind: Any) -> None:
        """Raises what pydantic raises for a type that it cannot decode either."""
        self._adapter: Any = sys.modules["pydantic"].TypeAdapter(kind)

    def decode(self, payload: str | bytes) -> Any:
        """Decode JSON. Raises `ValueError`."""
        try:
            return self._adapter.validate_json(payload)
        except Exception as error:
            raise ValueError("; ".join(problems_of(error))) from error


def mentions_model(kind: Any) -> bool:
    """Tell whether a type contains a model."""
    return is_model(kind) or any(mentions_model(each) for each in typing.get_args(kind))


def _difference(value: Any, text: str) -> ModelError | None:
    kind = type(value)
    try:
        back = kind.model_validate_json(text)
    except Exception as error:
        first = next(problems_of(error), str(error))
        path, _, problem = first.rpartition(": ")
        return ModelError(path, f"does not fit {kind.__name__} when it comes back from JSON: {problem}")
    if back == value:
        return None
    for name in kind.model_fields:
        before, after = getattr(value, name, None), getattr(back, name, None)
        if before != after:
            return ModelError(name, f"comes back from JSON as {after!r}, not as {before!r}")
    return ModelError("", "comes back from JSON without its data outside of fields")


def _in_order(value: Any, plain: Any) -> Any:
    if isinstance(value, set | frozenset) and isinstance(plain, list):
        return sorted(plain, key=_encode)
    if isinstance(value, dict) and isinstance(plain, dict) and len(value) == len(plain):
        return {
            key: _in_order(before, after) for before, (key, after) in zip(value.values(), plain.items(), strict=True)
        }
    if isinstance(value, list | tuple) and isinstance(plain, list) and len(value) == len(plain):
        return [_in_order(before, after) for before, after in zip(value, plain, strict=True)]
    return plain
