"""Divergence: detection and description of differences between code and history.

A record at a location that the code did not ask for is a divergence. So are recorded calls of one name that have
changed places: their locations do not show it, but the digests of their arguments do. Different arguments alone only
cause a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from perdure.core.model.record import Record, RecordKind
from perdure.errors import Diverged
from perdure.replay.operations import OpenOperation
from perdure.replay.outcome import RunOutcome

_SHOWN = 5


def diverged(run_id: str, record: Record, found: str) -> Diverged:
    """Make the error for a record that the code does not account for; `found`: what the code does instead."""
    expected = f"record {record.seq}: {record.kind} {record.location!r}"
    return Diverged(
        f"run {run_id!r} does not follow its history any more:\n"
        f"  - {expected}\n"
        f"  + {found}\n"
        "nothing was written; deploy code that makes the recorded calls in the recorded order, and the run goes on",
        expected=expected,
        found=found,
    )


def position(
    location: str, operations: Collection[OpenOperation], messages: Collection[str], outcome: RunOutcome | None
) -> str:
    """Describe what the code waits for instead of the record at `location`."""
    if outcome is not None:
        error = outcome.error
        return "the workflow returned" if error is None else f"the workflow raised {type(error).__name__}: {error}"
    for operation in operations:
        if operation.location == location:
            return f"the code asks for a {operation.kind} there"
    waits = [f"{operation.kind} {operation.location!r}" for operation in operations]
    waits += [f"message {name!r}" for name in messages]
    if not waits:
        return "the code waits for nothing"
    rest = f" and {len(waits) - _SHOWN} more" if len(waits) > _SHOWN else ""
    return f"the code waits for {', '.join(waits[:_SHOWN])}{rest}"


class RecordedArguments:
    """Digests of the arguments of recorded calls."""

    def __init__(self, run_id: str, history: Sequence[Record]) -> None:
        self._run_id = run_id
        self._locations: dict[tuple[RecordKind, str, str], set[str]] = {}
        self._changed: list[Record] = []
        for record in history:
            if record.digest and record.kind is not RecordKind.ATTEMPT:  # equivalent: connective: no call asks for more
                key = (record.kind, _name(record), record.digest)
                self._locations.setdefault(key, set()).add(record.location)

    def changed(self, operation: OpenOperation, record: Record) -> str:
        """Make a warning that the arguments differ from the recorded ones. Raises `Diverged` if calls were swapped."""
        elsewhere = self._locations.get((operation.kind, _name(operation), operation.digest), set()) - {record.location}
        if elsewhere:
            found = f"the code calls it with the arguments of another recorded call, {min(elsewhere)!r}"
            raise diverged(self._run_id, record, found)
        self._changed.append(record)
        return f"{record.kind} {record.location!r} was recorded with other arguments than the code gives it now"

    def check(self, operations: Iterable[OpenOperation]) -> None:
        """Raise `Diverged` if an open operation is the call of a changed record: the call would be made twice."""
        if not self._changed:
            return
        moved = {(operation.kind, _name(operation), operation.digest): operation.location for operation in operations}
        for record in self._changed:
            location = moved.get((record.kind, _name(record), record.digest))
            if location is not None:
                found = f"the code makes that call, with the same arguments, at {location!r}, and another one there"
                raise diverged(self._run_id, record, found)


def _name(place: Record | OpenOperation) -> str:
    """Location without its numbers, which calls that could be swapped have in common."""
    return re.sub(r"[#~]\d+", "", place.location)
