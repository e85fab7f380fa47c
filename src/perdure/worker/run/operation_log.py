"""Events of timers and children for the audit trail, made only at the level `full`.

The log compares what is open at each turn with what was open at the turn before. A timer that is set and cancelled
between two turns leaves no event: it was never durable. After the death of a worker or a lost answer, an event may be
missing or be written twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.core.audit import error_summary
from perdure.core.codec.plain_json import plain_json
from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import NewRun
from perdure.core.time.duration import NEVER
from perdure.replay.execution import Execution
from perdure.replay.operations import ChildOperation


class OperationLog:
    """Timers and children of one run that the audit trail knows of."""

    def __init__(self) -> None:
        #: Locations of open timers that the trail knows of, and ids of children by their location.
        self._timers: set[str] = set()
        self._children: dict[str, str] = {}

    def remember(self, execution: Execution, *, timers: bool) -> None:
        """Take over what an earlier turn has noted; without `timers`, only the ids of the children."""
        self._children = {
            operation.location: operation.child_id
            for operation in execution.open_operations()
            if isinstance(operation, ChildOperation)
        }
        self._timers = {*_open_timers(execution)} if timers else set()

    def take(
        self, execution: Execution, records: Iterable[Record], children: Iterable[NewRun], run_id: str
    ) -> tuple[tuple[str, str], ...]:
        """Return the events since the last turn."""
        notes: list[tuple[str, dict[str, Any]]] = []
        for record in records:
            if record.kind is RecordKind.TIMER:
                if record.location not in self._timers:
                    # It fired before the turn that would have noted its start.
                    notes.append(("timer_started", {"timer": record.location, "until": record.at}))
                self._timers.discard(record.location)
                notes.append(("timer_fired", {"timer": record.location}))
            elif record.kind is RecordKind.CHILD:
                notes.append(self._ended(record))
        open_timers = _open_timers(execution)
        notes += [("timer_cancelled", {"timer": location}) for location in sorted(self._timers - open_timers.keys())]
        for location, due in open_timers.items():
            if location not in self._timers:
                notes.append(("timer_started", {"timer": location, "until": due if due < NEVER else None}))
        self._timers = {*open_timers}
        for child in children:
            if child.parent_id == run_id and child.parent_location:
                self._children[child.parent_location] = child.id
                notes.append(("child_started", {"child": child.parent_location, "run": child.id, "type": child.type}))
        return tuple((kind, plain_json(data)) for kind, data in notes)

    def _ended(self, record: Record) -> tuple[str, dict[str, Any]]:
        child = {"child": record.location, "run": self._children.pop(record.location, "")}
        if record.failed:
            return "child_failed", {**child, **error_summary(record.payload)}
        return "child_completed", child


def _open_timers(execution: Execution) -> dict[str, int]:
    """Times at which the open timers are due, by location."""
    return {timer.location: timer.due for timer in execution.timers.heap if timer.open}
