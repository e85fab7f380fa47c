"""What workers and whoever guards the gates say to each other: who has arrived, who may pass, and who stands in line."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.limits.breaker import BreakerReport
from perdure.core.limits.limit import RequiredGates
from perdure.core.model.claim import ClaimedRun
from perdure.core.time.duration import FAR


class UnadmittedRun(Struct, frozen=True, gc=False):
    """A run that is ready and has yet to be looked at by whoever guards the gates."""

    run_id: str
    type: str
    queue: str
    token: int
    input: str
    options: str


class AdmissionPreview(Struct, frozen=True):
    """What there is to do at the gates."""

    arrived: tuple[UnadmittedRun, ...]
    #: When somebody in a line may pass next.
    next_due: int
    now: int


class RunArrival(Struct, frozen=True):
    """A run that was looked at, as it was then, and what it has to pass."""

    run_id: str
    token: int
    gating: RequiredGates


class StepArrival(Struct, frozen=True):
    """A step that wants to pass, of a run that is held."""

    run_id: str
    token: int
    #: See `place_of`.
    place: str
    priority: int
    gating: RequiredGates


class StepDeparture(Struct, frozen=True):
    """A step that has ended, or that nobody wants any more."""

    run_id: str
    token: int
    place: str
    #: When it was known to stand in a line; 0: it does not.
    waiting_since: int = 0


class StepAdmission(Struct, frozen=True):
    """What became of a step."""

    run_id: str
    place: str
    #: The gate that does not let it pass; empty if it may begin.
    gate: str = ""
    #: It is to fail, because a breaker is open until then.
    refused_until: int = 0
    #: It has permits, which are to be given back; and it may be a probe of a breaker that is half open.
    permit: bool = False
    probe: bool = False


class AdmissionRequest(Struct, frozen=True, kw_only=True):
    """What a worker with room wants from the gates."""

    worker: str
    #: Random, new for every request. A repeated one with the same nonce gets the same runs.
    nonce: str
    limit: int
    types: tuple[str, ...]
    queues: tuple[str, ...]
    arrivals: tuple[RunArrival, ...] = ()
    #: Runs that this worker was let have and has no more, and the tokens that it had them under.
    released: tuple[tuple[str, int], ...] = ()
    #: How attempts behind breakers ended.
    reports: tuple[BreakerReport, ...] = ()
    #: Types whose runs fail if their breaker does not let them pass, and its gate.
    failing: tuple[tuple[str, str], ...] = ()
    #: Steps of runs that this worker holds, which want to pass, and those that have no need to any more.
    steps: tuple[StepArrival, ...] = ()
    left: tuple[StepDeparture, ...] = ()
    alone: bool = False
    #: Let only the arrivals pass, whoever stands in line: somebody has named them.
    only: bool = False
    #: Wait for every gate that is asked for or told something, instead of leaving those alone that somebody has locked.
    wait_for_locks: bool = False
    poison_after: int = 5


class AdmissionResult(Struct, frozen=True, kw_only=True):
    """What may be worked on."""

    runs: tuple[ClaimedRun, ...] = ()
    #: Those of them that count somewhere, until they are released.
    counted: frozenset[str] = frozenset()
    #: Those that are to fail because a breaker does not let them pass, and until when.
    barred: tuple[tuple[str, int], ...] = ()
    #: What became of the steps.
    steps: tuple[StepAdmission, ...] = ()
    #: Steps in lines whose turn has come.
    called: int = 0
    next_due: int = FAR
    #: Suspects were passed over because this worker holds something else.
    suspects: bool = False
    #: Somebody else has a gate locked that was asked for: what it has not said yet may be had soon.
    busy: bool = False
    #: What was to be told and could not be, for that reason.
    undelivered: tuple[tuple[str, int], ...] = ()
    undelivered_steps: tuple[StepDeparture, ...] = ()
    now: int = 0
