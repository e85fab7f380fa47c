"""Typed messages: `Channel` and `Question`, shared by sender and receiver.

A `Channel` is a name and a type. A `Question` also has the type of its answer, which the asking side waits for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

import msgspec
from msgspec import Struct

from perdure.core.codec.codec import Codec
from perdure.core.ids import check_name
from perdure.core.option_checks import check_text
from perdure.workflow.runtime import ExpectedMessage

_ASK = "~ask"
#: Beginning of the payload of a question.
_KEY = '{"key":'

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)


class Channel(Generic[T]):
    """Name of a message and type of its value: `approval = Channel("approval", bool)`."""

    __slots__ = ("name", "type")

    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...

    @overload
    def __init__(self: Channel[Any], name: str, type: Any = ...) -> None: ...

    def __init__(self, name: str, type: Any = Any) -> None:
        self.name = check_name(name, "message name")
        self.type = type

    def __repr__(self) -> str:
        return f"Channel({self.name!r}, {self.type!r})"


class Question(Generic[Q, A]):
    """Name of a question, its type and the type of its answer: `quote = Question("quote", Order, int)`."""

    __slots__ = ("answer", "name", "type")

    @overload
    def __init__(self, name: str, type: type[Q], answer: type[A]) -> None: ...

    @overload
    def __init__(self: Question[Any, Any], name: str, type: Any = ..., answer: Any = ...) -> None: ...

    def __init__(self, name: str, type: Any = Any, answer: Any = Any) -> None:
        self.name = check_name(name, "name of a question")
        self.type = type
        self.answer = answer

    def __repr__(self) -> str:
        return f"Question({self.name!r}, {self.type!r}, {self.answer!r})"


class ReceivedQuestion(Generic[T, A_contra]):
    """A question that has arrived: its `value`, and `reply` or `fail` to answer it once."""

    __slots__ = ("_fail", "_reply", "value")

    def __init__(self, value: T, reply: Callable[[Any], None], fail: Callable[[Exception], None]) -> None:
        self.value = value
        self._reply = reply
        self._fail = fail

    def reply(self, answer: A_contra) -> None:
        """Answer the question; the asking side gets the answer once it is durable."""
        self._reply(answer)

    def fail(self, error: Exception) -> None:
        """Answer the question with an error, which the asking side gets; the run goes on."""
        self._fail(error)


class Envelope(Struct, Generic[T], frozen=True):
    """Payload of the message that carries a question."""

    #: Key of the message; the answer is stored under it.
    key: str
    value: T


def expected_message(channel: Channel[Any] | str, type: Any = Any) -> ExpectedMessage:
    """The message that a receive of a channel, or of a name, waits for."""
    if isinstance(channel, Channel):
        return ExpectedMessage(channel.name, channel.type if type is Any else type)
    return ExpectedMessage(check_name(channel, "message name"), type)


def topic(name: str, correlation: str) -> str:
    """Message name of a broadcast with a correlation value."""
    return check_name(f"{name}@{check_text('correlation', correlation)}", "message name with its correlation value")


def question_name(name: str) -> str:
    """Name of the message that carries a question; no other message can have it."""
    return f"{name}{_ASK}"


def question_of(name: str) -> str:
    """Name of the question that a message of that name carries."""
    return name.removesuffix(_ASK)


def question_key(name: str, payload: str) -> str | None:
    """Key of a question whose payload need not be readable; None if it is none, or its key cannot be found."""
    if not name.endswith(_ASK) or not payload.startswith(_KEY):
        return None
    try:
        key, _ = json.JSONDecoder().raw_decode(payload, len(_KEY))
    except ValueError:
        return None
    return key if isinstance(key, str) else None


def question_payload(key: str, value: object, codec: Codec, what: str, declared: Any = Any) -> str:
    """Encode the payload of a question's message. Raises `EncodeError`."""
    return f'{_KEY}{msgspec.json.encode(key).decode()},"value":{codec.encode(value, what, declared)}}}'
