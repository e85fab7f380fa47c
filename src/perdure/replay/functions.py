"""Which function each name of a workflow stands for."""

from __future__ import annotations

from typing import Any

from perdure.core.errors import DuplicateName


class Functions:
    """Holds each name to one function."""

    def __init__(self, run_id: str, type: str) -> None:
        self._run_id = run_id
        self._type = type
        self._known: dict[str, Any] = {}

    def check(self, name: str, function: object) -> None:
        """Raise `DuplicateName` if another function was a step of that name."""
        known = self._known.setdefault(name, function)
        if known is not function and known != function:
            raise DuplicateName(
                f"two different functions are steps named {name!r} in run {self._run_id!r} of {self._type}; "
                'give one of them a name of its own: `ctx.options(name="...").step(...)`'
            )
