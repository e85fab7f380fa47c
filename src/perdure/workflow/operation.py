"""Something durable under way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

R = TypeVar("R")

if TYPE_CHECKING:

    class Operation(asyncio.Future[R], Coroutine[Any, Any, R]):
        """Something durable under way. Declared as a coroutine too, so that a `TaskGroup` takes it."""

else:
    Operation = asyncio.Future
