"""Waiting for something to become true, without guessing how long it takes."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(question: Callable[[], Awaitable[T]], *, within: float = ..., saying: str = ...) -> T: ...
@overload
async def eventually(question: Callable[[], T], *, within: float = ..., saying: str = ...) -> T: ...
async def eventually(question: Callable[[], Any], *, within: float = 90.0, saying: str = "") -> Any:
    """The first truthy answer. Fails, showing the last one, after `within` seconds, which only a broken test ever
    waits."""
    loop = asyncio.get_running_loop()
    limit = loop.time() + within
    while True:
        answer = question()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        if loop.time() > limit:
            raise AssertionError(
                f"{saying or 'it'} did not become true within {within} s; the last answer was {answer!r}"
            )
        await asyncio.sleep(0.01)


def in_memory(*kinds: type[T]) -> list[T]:
    """Objects of some types that the garbage collector knows.

    `isinstance` asks each object for its class, and a lazy object of a library, of which other tests leave some, then
    begins to load.
    """
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]
