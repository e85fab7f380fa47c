"""What every part of a `Context` stands on."""

from __future__ import annotations

from perdure.workflow.runtime import Runtime
from perdure.workflow.step import NO_OPTIONS, StepOptions


class Facet:
    """One part of what a workflow can do. A `Context` is all of them."""

    __slots__ = ("_options", "_runtime")

    def __init__(self, runtime: Runtime, options: StepOptions = NO_OPTIONS) -> None:
        self._runtime = runtime
        self._options = options
