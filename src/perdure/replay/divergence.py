"""Saying how code and history differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perdure.core.errors import Diverged
from perdure.core.model import Kind, Record
from perdure.replay.operations import Operation, StepOperation


def diverged(
    run_id: str,
    record: Record,
    open_operations: Mapping[str, Operation],
    *,
    ended: bool = False,
    reordered: bool = False,
) -> Diverged:
    """The error for a record that the code cannot account for, with the difference spelled out."""
    expected = f"{record.kind} {record.location!r}"
    if ended:
        found = "the workflow returned"
    elif reordered:
        found = f"the code now calls {record.location!r} with the arguments of another recorded call of that name"
    elif record.location in open_operations:
        found = f"the code asks for a {open_operations[record.location].kind} there"
    elif open_operations:
        found = "the code waits for " + ", ".join(f"{op.kind} {op.location!r}" for op in open_operations.values())
    else:
        found = "the code waits for nothing that is recorded"
    return Diverged(
        f"run {run_id!r} does not follow its history any more:\n"
        f"  - record {record.seq}: {expected}\n"
        f"  + {found}\n"
        "Nothing was written. Deploy code that makes the recorded calls in the recorded order, and the run goes on"
    )


class Digests:
    """Where the recorded steps of a name had which arguments."""

    def __init__(self, history: Sequence[Record]) -> None:
        self._locations: dict[tuple[str, str], set[str]] = {}
        for record in history:
            if record.kind is Kind.STEP:
                name = record.location.partition("#")[0]
                self._locations.setdefault((name, record.digest), set()).add(record.location)

    def belongs_elsewhere(self, operation: StepOperation) -> bool:
        """Whether the arguments are those of another recorded call of the same name: the calls have changed places."""
        locations = self._locations.get((operation.request.name, operation.digest), set())
        return bool(locations - {operation.location})
