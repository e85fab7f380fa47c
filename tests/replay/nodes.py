"""Nodes of random programs, and the notation of what they observe."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from msgspec import Struct


class Node(Struct, frozen=True, omit_defaults=True):
    """One use of a primitive."""

    op: str
    #: Number that tells this node from all others; also the argument of a step or child.
    id: int = 0
    #: Of a step, child or message.
    name: str = ""
    #: Seconds, a count, or which of several locks, queues, …
    number: int = 1
    body: tuple[Node, ...] = ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for each in node.body:
        yield from walk(each)


def given_as_it_is(node: Node, number: int) -> bool:
    """True if that branch of a node, if it is a step, is the operation itself."""
    return (node.number + number) % 3 == 0


def numbers(node: Node) -> list[int]:
    """Return the numbers that a node iterates over; in reverse if its own number is negative."""
    return list(range(node.number)) if node.number >= 0 else list(reversed(range(-node.number)))


def described(value: object) -> str:
    """A result or an error, without addresses and lines."""
    if isinstance(value, BaseExceptionGroup):
        return f"{type(value).__name__}[{', '.join(described(each) for each in value.exceptions)}]"
    if isinstance(value, asyncio.CancelledError):
        return "cancelled"
    if isinstance(value, BaseException):
        return f"{type(value).__name__}({value})"
    return repr(value)
