"""What a check of code against the runs that are under way has found."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class DeployProblem(StrEnum):
    """What is wrong between the code and a run."""

    #: The code does not make the calls that the history has.
    DIVERGED = "diverged"
    #: The input, or a result in the history, does not fit the types of the code.
    UNDECODABLE = "undecodable"
    #: There is no workflow of the run's type.
    UNSERVED = "unserved"
    #: The code gives a recorded call other arguments; the result stays what it was. A warning.
    ARGUMENTS = "arguments"


class DeployFinding(Struct, frozen=True, kw_only=True):
    """One run that the code does not fit."""

    run_id: str
    type: str
    problem: DeployProblem
    #: What the history has, and what the code has instead.
    expected: str
    found: str
    #: What to do about it, most likely.
    fix: str

    @property
    def is_warning(self) -> bool:
        """Whether the run goes on all the same."""
        return self.problem is DeployProblem.ARGUMENTS


class DeployReport(Struct, frozen=True, kw_only=True):
    """What a check has found."""

    #: How many runs were looked at, and whether there are more than were asked for.
    checked: int
    more: bool
    findings: tuple[DeployFinding, ...]

    @property
    def ok(self) -> bool:
        """Whether every run that was looked at goes on with this code."""
        return all(finding.is_warning for finding in self.findings)
