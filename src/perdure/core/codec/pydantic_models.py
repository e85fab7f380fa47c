"""Models of pydantic among the values that travel: known by their shape, so that pydantic is not imported where nobody uses it.

A model is encoded as the JSON that it makes of itself, if it can read that back as an equal; what differs is named by its field. It is
decoded by its own validation.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class ModelError(ValueError):
    """A model that would not come back as it is."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem


def is_model(kind: object) -> bool:
    """Whether a class is a model of pydantic."""
    return isinstance(kind, type) and hasattr(kind, "__pydantic_serializer__") and hasattr(kind, "model_validate_json")


def encode_model(value: Any) -> msgspec.Raw:
    """A model as JSON. For msgspec, which asks about every object that it does not know. Raises `ModelError`."""
    if not is_model(type(value)):
        raise NotImplementedError(f"objects of type {type(value).__name__} are not supported")
    problem: ModelError | None = None
    # A model is read by its aliases, unless it says otherwise.
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
    """A model as plain values in one order, whatever the order of its sets. As `encode_model`, for digests."""
    encode_model(value)
    return _in_order(value.model_dump(round_trip=True), value.model_dump(mode="json", round_trip=True))


def decode_model(kind: Any, value: Any) -> Any:
    """A model from plain JSON values. For msgspec, which asks about every class that it does not know."""
    if kind is object:
        return value
    if not is_model(kind):
        if isinstance(kind, type) and isinstance(value, kind):
            return value  # `object`, of which everything is one
        raise NotImplementedError(f"objects of type {getattr(kind, '__name__', kind)} are not supported")
    try:
        return kind.model_validate_json(_encode(value))
    except Exception as error:
        raise ValueError("; ".join(problems_of(error))) from error


def problems_of(error: BaseException) -> Iterator[str]:
    """What a validation found, as `field: message`; of any other error its text."""
    listed = getattr(error, "errors", None)
    problems = listed() if callable(listed) else None
    if not isinstance(problems, list):
        yield str(error)
        return
    for problem in problems:
        place = ".".join(str(part) for part in problem.get("loc", ()))
        yield f"{place}: {problem.get('msg', '')}" if place else str(problem.get("msg", ""))


class AdaptedDecoder:
    """Decodes a type that msgspec cannot, such as a union of models, by pydantic's own means."""

    def __init__(self, kind: Any) -> None:
        """Raises whatever pydantic does about a type that it cannot decode either."""
        self._adapter: Any = sys.modules["pydantic"].TypeAdapter(kind)

    def decode(self, payload: str | bytes) -> Any:
        """The value. Raises `ValueError`."""
        try:
            return self._adapter.validate_json(payload)
        except Exception as error:
            raise ValueError("; ".join(problems_of(error))) from error


def mentions_model(kind: Any) -> bool:
    """Whether there is a model anywhere in a type."""
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
    return ModelError("", "comes back from JSON without what it has besides its fields")


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
