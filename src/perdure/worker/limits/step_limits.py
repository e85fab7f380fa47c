"""Admission of the steps of one run that have limits or breakers.

A step asks for admission when it could begin. If it is not admitted it is in the waitlist, and a run with nothing else
to do parks until it is called. None of that is recorded: the next holder of the run asks again and finds the step's
place in the waitlist. Every attempt asks, and releases its permit when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from perdure.core.limits.admission_requests import StepAdmission, StepArrival, StepDeparture
from perdure.core.limits.breaker import PREFIX, Breaker
from perdure.core.limits.limit import Limit, PermitScope, RequiredGates, required_gates, stored_location
from perdure.core.model.record import Message, RecordKind
from perdure.core.model.waits import Wait, WaitKind
from perdure.replay.operations import StepOperation
from perdure.worker.batched_calls import guarded
from perdure.worker.limits.gatekeeper import breaker_open_error
from perdure.worker.run.held_run import Stage
from perdure.worker.run.policy import policy_of

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun
    from perdure.worker.services import Services


class _Admission(NamedTuple):
    """A step that was admitted."""

    operation: StepOperation
    since: int
    #: Token of the lease under which it was admitted.
    token: int
    permit: bool
    probe: bool


class StepLimits:
    """Steps of one run that ask for admission, wait, or have been admitted."""

    def __init__(self, held: WorkflowRun, services: Services) -> None:
        self._held = held
        self._services = services
        #: By place: steps without an answer, and steps in the waitlist with the gate and the latest time at which they
        #: entered it.
        self._unanswered: dict[str, StepOperation] = {}
        self._waiting: dict[str, tuple[StepOperation, str, int]] = {}
        #: Steps that may begin or have begun.
        self._admitted: dict[str, _Admission] = {}

    def block(self, error: Exception) -> None:
        """Block the run because of an error."""
        self._held.block(error)

    @property
    def is_asking(self) -> bool:
        """True if an answer is outstanding."""
        return bool(self._unanswered)

    def waits(self) -> dict[str, Wait]:
        """Return the limit or breaker that each step in a waitlist waits for, by the step's location."""
        return {
            operation.location: Wait(
                kind=WaitKind.BREAKER if gate.startswith(PREFIX) else WaitKind.LIMIT,
                name=gate.removeprefix(PREFIX),
                since=since,
                detail=operation.location,
            )
            for operation, gate, since in self._waiting.values()
        }

    def may_begin(self, operation: StepOperation) -> bool:
        """True if a step was admitted. Asks for admission if it was not."""
        place = stored_location(operation.location)
        passed = self._admitted.get(place)
        if passed is not None and passed.operation is operation:
            if passed.token == self._held.lease.token:
                return True
            # An admission under an earlier lease does not count any more.
            self._give_back(place, self._admitted.pop(place))
        if place not in self._waiting:
            self._ask(operation)
        return False

    def _ask(self, operation: StepOperation) -> None:
        held, place = self._held, stored_location(operation.location)
        self._unanswered[place] = operation
        try:
            wanted = self._gating(operation)
        except Exception as error:
            # A callback of its own: the caller iterates over the run's steps.
            asyncio.get_running_loop().call_soon(self._fail, operation, error)
            return
        arrival = StepArrival(held.run.id, held.lease.token, place, held.run.priority, wanted)
        self._services.gatekeeper.ask(arrival, self.answered)

    def _gating(self, operation: StepOperation) -> RequiredGates:
        request, type = operation.request, self._held.run.type
        limits: tuple[Limit, ...] = request.options.limit if request.options.limit is not UNSET else ()
        own = f"step:{type}:{request.name}"
        needs_arguments = any(limit.key_function is not None for limit in limits)
        return required_gates(
            type,
            limits,
            None,
            request.arguments() if needs_arguments else {},
            hold=PermitScope.LEASE,
            breaker=_breaker(operation),
            own=own,
        )

    @guarded
    def answered(self, verdict: StepAdmission, token: int, now: int) -> None:
        """Handle the answer to a step. Called from a plain callback of the loop."""
        held = self._held
        operation = self._unanswered.pop(verdict.place, None)
        if operation is None or held.stage is Stage.OVER or token != held.lease.token:
            self._services.gatekeeper.release_step(StepDeparture(held.run.id, token, verdict.place))
            if operation is not None and held.stage is not Stage.OVER:
                # The answer was for an earlier lease; under this one the step asks again.
                held.make_ready(operation)
                held.settle(self._services.read_clock())
            return
        if verdict.refused_until:
            breaker = _breaker(operation)
            assert breaker is not None
            what = f"step {operation.location!r} of run {held.run.id!r}"
            self._fail(operation, breaker_open_error(breaker, verdict.refused_until, what))
            return
        if verdict.gate:
            self._waiting[verdict.place] = operation, verdict.gate, now
        else:
            self._admitted[verdict.place] = _Admission(operation, now, token, verdict.permit, verdict.probe)
            held.make_ready(operation)
        self.release_unneeded()
        held.settle(self._services.read_clock())

    @guarded
    def _fail(self, operation: StepOperation, error: Exception) -> None:
        """Fail a step whose function is not called."""
        self._unanswered.pop(stored_location(operation.location), None)
        self._held.fail_uncalled(operation, error)

    def ask_again(self, messages: Iterable[Message]) -> None:
        """Ask again for the steps that have been called from the waitlist."""
        for message in messages:
            waiting = self._waiting.pop(message.name, None) if message.kind is RecordKind.CALL else None
            if waiting is not None and waiting[0].open:
                self._ask(waiting[0])

    def ended(self, operation: StepOperation, error: BaseException | None) -> None:
        """Release the permit of an attempt that has ended, and report its outcome to the breaker."""
        passed = self._admitted.pop(stored_location(operation.location), None)
        if passed is None:
            return
        services, breaker = self._services, _breaker(operation)
        if breaker is not None:
            services.gatekeeper.report_outcome(
                breaker, error, policy_of(operation, services), passed.since, probe=passed.probe
            )
        self._give_back(stored_location(operation.location), passed)

    def _give_back(self, place: str, passed: _Admission) -> None:
        if passed.permit:
            self._services.gatekeeper.release_step(StepDeparture(self._held.run.id, passed.token, place))

    def release_unneeded(self) -> None:
        """Release permits and places of steps that are not needed any more."""
        gatekeeper, run_id, token = self._services.gatekeeper, self._held.run.id, self._held.lease.token
        for place, passed in list(self._admitted.items()):
            if not passed.operation.open:
                self._give_back(place, self._admitted.pop(place))
        for place, (operation, _, since) in list(self._waiting.items()):
            if not operation.open:
                del self._waiting[place]
                gatekeeper.release_step(StepDeparture(run_id, token, place, waiting_since=since))

    def close(self, *, ended: bool) -> None:
        """Release everything. Places in the waitlist stay unless the run has ended."""
        gatekeeper, run_id, token = self._services.gatekeeper, self._held.run.id, self._held.lease.token
        for place, passed in self._admitted.items():
            self._give_back(place, passed)
        for place in self._unanswered:
            gatekeeper.release_step(StepDeparture(run_id, token, place))
        for place, (_, _, since) in self._waiting.items() if ended else ():
            gatekeeper.release_step(StepDeparture(run_id, token, place, waiting_since=since))
        self._unanswered.clear()
        self._admitted.clear()
        self._waiting.clear()


def is_limited(operation: StepOperation) -> bool:
    """True if a step has limits or a breaker."""
    options = operation.request.options
    return bool(options.limit) or options.breaker is not UNSET


def _breaker(operation: StepOperation) -> Breaker | None:
    breaker = operation.request.options.breaker
    return breaker if isinstance(breaker, Breaker) else None
