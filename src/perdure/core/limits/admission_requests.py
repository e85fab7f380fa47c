"""Admission: requests of a worker to pass gates, and the answers of the store.

A gate is the stored row that carries a limit or a breaker. A run or step that cannot pass a gate waits on its waitlist.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.core.limits.breaker import BreakerReport
from perdure.core.limits.limit import RequiredGates
from perdure.core.model.claim import ClaimedRun
from perdure.core.time.duration import NEVER


class UnadmittedRun(Struct, frozen=True, gc=False):
    """A run that is ready and has limits, for which no admission has been requested yet."""

    run_id: str
    type: str
    queue: str
    token: int
    input: str
    options: str


class AdmissionPreview(Struct, frozen=True):
    """Runs that need an admission, and the time of the next one that is due."""

    arrived: tuple[UnadmittedRun, ...]
    #: Time when the next run or step on a waitlist may pass.
    next_due: int
    now: int


class RunArrival(Struct, frozen=True):
    """A run that requests admission, by its token, with the gates that it has to pass."""

    run_id: str
    token: int
    gating: RequiredGates


class StepArrival(Struct, frozen=True):
    """A step that requests admission, of a run that the worker holds."""

    run_id: str
    token: int
    #: Location of the step, shortened by `stored_location`.
    place: str
    priority: int
    gating: RequiredGates


class StepDeparture(Struct, frozen=True):
    """A step that has ended or was given up, so that its permits are free."""

    run_id: str
    token: int
    place: str
    #: Time since when it was known to be on a waitlist; 0: it was not.
    waiting_since: int = 0


class StepAdmission(Struct, frozen=True):
    """Answer to the request of a step."""

    run_id: str
    place: str
    #: Gate that the step waits for; empty if it may begin.
    gate: str = ""
    #: Non-zero if the step has to fail: a breaker is open until then.
    refused_until: int = 0
    #: The step holds permits, which it has to release; it is a probe of a half-open breaker.
    permit: bool = False
    probe: bool = False


class AdmissionRequest(Struct, frozen=True, kw_only=True):
    """Request of a worker with free slots: admit runs and steps, release permits, report outcomes."""

    worker: str
    #: Random, new for each request. Repeating a request with the same nonce gives the same runs.
    nonce: str
    limit: int
    types: tuple[str, ...]
    queues: tuple[str, ...]
    arrivals: tuple[RunArrival, ...] = ()
    #: Runs that this worker held and holds no longer, with the tokens of their leases.
    released: tuple[tuple[str, int], ...] = ()
    #: Outcomes of attempts behind breakers.
    reports: tuple[BreakerReport, ...] = ()
    #: Types whose runs fail if their breaker is open, and the breaker's gate.
    failing: tuple[tuple[str, str], ...] = ()
    #: Steps of this worker's runs that request admission, and those that have ended.
    steps: tuple[StepArrival, ...] = ()
    left: tuple[StepDeparture, ...] = ()
    alone: bool = False
    #: Admit only the arrivals, ahead of the waitlists: they were claimed by id.
    only: bool = False
    #: Wait for gates that another transaction has locked, instead of skipping them.
    wait_for_locks: bool = False
    poison_after: int = 5
    #: Build of the worker's code, which a run that begins with its admission keeps.
    build: str = ""


class AdmissionResult(Struct, frozen=True, kw_only=True):
    """Answer to an `AdmissionRequest`: the admitted runs and steps."""

    runs: tuple[ClaimedRun, ...] = ()
    #: Ids of admitted runs that hold permits until they are released.
    counted: frozenset[str] = frozenset()
    #: Runs that have to fail because a breaker is open, and until when it is.
    barred: tuple[tuple[str, int], ...] = ()
    #: Answers to the steps.
    steps: tuple[StepAdmission, ...] = ()
    #: Number of waiting steps that were admitted.
    called: int = 0
    next_due: int = NEVER
    #: Suspects were skipped because this worker holds other runs.
    suspects: bool = False
    #: A requested gate was locked by another transaction; try again soon.
    busy: bool = False
    #: Releases that were skipped for that reason.
    undelivered: tuple[tuple[str, int], ...] = ()
    undelivered_steps: tuple[StepDeparture, ...] = ()
    now: int = 0
