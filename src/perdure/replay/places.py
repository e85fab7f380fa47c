"""Where in the history each call of a workflow belongs."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import DuplicateName


class Places:
    """Counts the calls of each name, and holds each name to one function."""

    def __init__(self, run_id: str, type: str) -> None:
        self._run_id = run_id
        self._type = type
        self._counts: dict[str, int] = {}
        self._functions: dict[str, Any] = {}

    def next(self, name: str) -> str:
        """The location of the next call of that name."""
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return name if count == 1 else f"{name}#{count}"

    def check(self, name: str, function: object) -> None:
        """Raise `DuplicateName` if another function was a step of that name."""
        known = self._functions.setdefault(name, function)
        if known is not function and known != function:
            raise DuplicateName(
                f"two different functions are steps named {name!r} in run {self._run_id!r} of {self._type}; "
                'give one of them a name of its own: `ctx.options(name="...").step(...)`'
            )
