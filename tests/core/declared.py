"""Errors of an application, and other names in its module."""

from __future__ import annotations

import os  # noqa: F401 - a module in the namespace, which no error may reach
from json import JSONDecodeError  # noqa: F401 - a class from elsewhere, which the module uses


class Declined(Exception):
    """Its constructor decorates the message, so calling it with its own `args` would do so twice."""

    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


class Keyword(Exception):
    """Cannot be called with its `args` at all."""

    def __init__(self, *, order: str, amounts: list[int]) -> None:
        super().__init__(order)
        self.order = order
        self.amounts = amounts
        self.secret_handle = object()


class Shop:
    """Errors may live inside of classes."""

    class Closed(Exception):
        pass


class Batch(ExceptionGroup[Exception]):
    """A group of its own."""


class Odd(Exception):
    """Everything about it fails."""

    def __init__(self) -> None:
        super().__init__("odd", 1)
        self.loop = self

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no text either")

    def __reduce__(self) -> str:
        raise RuntimeError("no pickle")


class Stubborn(Exception):
    """Cannot be built from anything that was stored."""

    def __new__(cls, *args: object) -> Stubborn:
        if len(args) != 3:
            raise TypeError("three arguments, please")
        return super().__new__(cls, *args)


class Stop(StopIteration):
    """Would end the coroutine that it is raised in."""


calls: list[str] = []


def detonate(*args: object) -> None:
    """Must never be called by restoring anything."""
    calls.append(repr(args))


class Trap:
    """Not an exception, so it must never be built either."""

    def __init__(self, *args: object) -> None:
        calls.append(repr(args))
