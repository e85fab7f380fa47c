"""Functions that raise what is no `Exception`, for a process that imports them by name."""

from __future__ import annotations

import asyncio

from perdure import step


class Odd(BaseException):
    """Known to no handler."""


ERRORS: dict[str, type[BaseException]] = {
    "generator": GeneratorExit,
    "exit": SystemExit,
    "takeover": KeyboardInterrupt,
    "cancelled": asyncio.CancelledError,
    "odd": Odd,
}


@step(process=True)
def in_process(name: str) -> None:
    """Raise it in a process of its own."""
    raise ERRORS[name]("from user code")
