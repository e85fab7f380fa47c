"""An execution that tells an observer of each record before it is applied, for the replay debugger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.model.record import Record
from perdure.replay.execution import Execution
from perdure.replay.run_loop import DrainContext

#: Called before the workflow function is (None), and before each record is applied.
Observer = Callable[[Record | None], None]


class ObservedExecution(Execution):
    """Replays as any execution does; `observer` is called on the same thread."""

    def __init__(self, *args: Any, observer: Observer, **options: Any) -> None:
        super().__init__(*args, **options)
        self._observer = observer

    def begin(self, drain_context: DrainContext | None = None) -> None:
        """Call the workflow function and run it to its first wait."""
        self._observer(None)
        super().begin(drain_context)

    def _apply(self, record: Record) -> None:
        self._observer(record)
        super()._apply(record)

    def _apply_result(self, record: Record) -> bool:
        return False

    def _apply_messages(self, batch: Sequence[Record]) -> None:
        for record in batch:
            self._observer(record)
        super()._apply_messages(batch)
