"""Faults that were thought of by hand, each of which breaks a promise: the text, and what it becomes."""

from __future__ import annotations

from typing import NamedTuple

from tests.mutants.drawing import Fault, function_at


class Planted(NamedTuple):
    """A fault by its words."""

    name: str
    path: str
    was: str
    becomes: str

    def fault(self, text: str) -> Fault:
        """As those that are drawn are."""
        assert text.count(self.was) == 1, (
            f"{self.name}: {self.was!r} is there {text.count(self.was)} times in {self.path}"
        )
        start = text.index(self.was)
        line = text.count("\n", 0, start) + 1
        return Fault(
            self.path, line, function_at(text, line), self.name, start, start + len(self.was), self.was, self.becomes
        )


PLANTED = (
    Planted("a record is known by its number alone", "perdure/store/sql/turn.py",
        "if there and there[0] == record_row(turn, record):", "if there:"),
    Planted("a late release of a former lease frees the permit of a step", "perdure/store/sql/limits/admit_steps.py",
        "AND location = :place AND token <= :token", "AND location = :place AND :token = :token"),
    Planted("a late release of a former lease frees the permit of a run", "perdure/store/sql/limits/gates.py",
        "if token <= tokens[run_id]", "if run_id in tokens"),
    Planted("a lease is its token alone", "perdure/store/sql/turn.py",
        "tuple(rows[0]) == (Status.RUNNING.value, lease.token, lease.nonce)",
        "rows[0][:2] == (Status.RUNNING.value, lease.token)"),
)  # fmt: skip
