"""How a workflow says that it begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.workflow.definition import Call


class ContinuedAsNew(BaseException):
    """Ends a workflow that goes on as a new generation. Not an `Exception`: nobody is to take it for a failure."""

    def __init__(self, call: Call[Any]) -> None:
        super().__init__(call.type)
        self.call = call
