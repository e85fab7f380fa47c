"""Report of `engine.check`: unfinished runs that the current code does not fit."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class DeployProblem(StrEnum):
    """Kind of mismatch between the code and a run."""

    #: The code does not make the calls that the history has.
    DIVERGED = "diverged"
    #: The input, or a result in the history, does not fit the types of the code.
    UNDECODABLE = "undecodable"
    #: No workflow of the run's type is registered.
    UNSERVED = "unserved"
    #: The code calls a recorded operation with other arguments; the recorded result stays. A warning.
    ARGUMENTS = "arguments"


class DeployFinding(Struct, frozen=True, kw_only=True):
    """A run that the code does not fit."""

    run_id: str
    type: str
    problem: DeployProblem
    #: Operation in the history, and the code's operation in its place.
    expected: str
    found: str
    #: Most likely fix.
    fix: str

    @property
    def is_warning(self) -> bool:
        """True if the run can continue nevertheless."""
        return self.problem is DeployProblem.ARGUMENTS


class DeployReport(Struct, frozen=True, kw_only=True):
    """Result of a check."""

    #: Number of runs that were checked; `more`: there are others beyond the limit.
    checked: int
    more: bool
    findings: tuple[DeployFinding, ...]

    @property
    def ok(self) -> bool:
        """True if every checked run can continue with this code."""
        return all(finding.is_warning for finding in self.findings)
