"""Steps of a held run that have to pass gates before their functions are called.

A step asks when it could begin. It begins when it is answered that it may; otherwise it stands in a line, and a run with nothing else to do
waits without a worker until it is called. None of that is recorded: a worker that takes the run up anew asks again, and finds the place that the
step had. Every attempt asks, and gives back what it had when it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET

from perdure.core.limits.admission import StepAdmission, StepArrival, StepDeparture
from perdure.core.limits.breaker import PREFIX, Breaker
from perdure.core.limits.limit import Limit, PermitScope, RequiredGates, required_gates, stored_location
from perdure.core.model.record import Message, RecordKind
from perdure.core.model.run import Reason
from perdure.replay.operations import StepOperation
from perdure.worker.callbacks import guarded
from perdure.worker.limits.gatekeeper import breaker_open_error
from perdure.worker.run.held_run import Stage
from perdure.worker.run.policy import policy_of

if TYPE_CHECKING:
    from perdure.worker.run.workflow_run import WorkflowRun
    from perdure.worker.services import Services


class _Passed(NamedTuple):
    """A step that has passed."""

    operation: StepOperation
    since: int
    #: Of the lease under which it has.
    token: int
    permit: bool
    probe: bool


class StepLimits:
    """What one run has to do with gates."""

    def __init__(self, held: WorkflowRun, services: Services) -> None:
        self._held = held
        self._services = services
        #: By place: those of which nothing is known yet, and those that stand in line, with the gate and since when at the latest.
        self._asked: dict[str, StepOperation] = {}
        self._waiting: dict[str, tuple[StepOperation, str, int]] = {}
        #: Those that may begin or have begun.
        self._passed: dict[str, _Passed] = {}

    def block(self, error: Exception) -> None:
        """See `Blockable`."""
        self._held.block(error)

    @property
    def asks(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._asked)

    @property
    def reason(self) -> Reason | None:
        """What the run waits for; None: for nothing here."""
        gates = [gate for _, gate, _ in self._waiting.values()]
        if not gates:
            return None
        return Reason.BREAKER if all(gate.startswith(PREFIX) for gate in gates) else Reason.LIMIT

    def may_begin(self, operation: StepOperation) -> bool:
        """Whether a step has passed; one that has not asks."""
        place = stored_location(operation.location)
        passed = self._passed.get(place)
        if passed is not None and passed.operation is operation:
            if passed.token == self._held.lease.token:
                return True
            # It passed for an earlier lease, and does not count any more.
            self._give_back(place, self._passed.pop(place))
        if place not in self._waiting:
            self._ask(operation)
        return False

    def _ask(self, operation: StepOperation) -> None:
        held, place = self._held, stored_location(operation.location)
        self._asked[place] = operation
        try:
            wanted = self._gating(operation)
        except Exception as error:
            # From a callback of its own: the run's steps are being gone through.
            asyncio.get_running_loop().call_soon(self._fail, operation, error)
            return
        arrival = StepArrival(held.run.id, held.lease.token, place, held.run.priority, wanted)
        self._services.gatekeeper.ask(arrival, self.answered)

    def _gating(self, operation: StepOperation) -> RequiredGates:
        request, type = operation.request, self._held.run.type
        limits: tuple[Limit, ...] = request.options.limit if request.options.limit is not UNSET else ()
        own = f"step:{type}:{request.name}"
        return required_gates(
            type,
            limits,
            None,
            (request.args, request.kwargs),
            hold=PermitScope.LEASE,
            breaker=_breaker(operation),
            own=own,
        )

    @guarded
    def answered(self, verdict: StepAdmission, token: int, now: int) -> None:
        """What became of a step that asked. From a plain callback of the loop."""
        held = self._held
        operation = self._asked.pop(verdict.place, None)
        if operation is None or held.stage is Stage.OVER or token != held.lease.token:
            self._services.gatekeeper.leave(StepDeparture(held.run.id, token, verdict.place))
            if operation is not None and held.stage is not Stage.OVER:
                # That was for an earlier lease; under this one it has yet to ask.
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
            self._passed[verdict.place] = _Passed(operation, now, token, verdict.permit, verdict.probe)
            held.make_ready(operation)
        self.tidy()
        held.settle(self._services.read_clock())

    @guarded
    def _fail(self, operation: StepOperation, error: Exception) -> None:
        """Fail a step whose function is not called."""
        self._asked.pop(stored_location(operation.location), None)
        self._held.fail_uncalled(operation, error)

    def called(self, messages: Iterable[Message]) -> None:
        """Those whose turn has come ask again."""
        for message in messages:
            waiting = self._waiting.pop(message.name, None) if message.kind is RecordKind.CALL else None
            if waiting is not None and waiting[0].open:
                self._ask(waiting[0])

    def ended(self, operation: StepOperation, error: BaseException | None) -> None:
        """An attempt has ended: it gives back what it had, and says how its breaker is doing."""
        passed = self._passed.pop(stored_location(operation.location), None)
        if passed is None:
            return
        services, breaker = self._services, _breaker(operation)
        if breaker is not None:
            services.gatekeeper.report_outcome(
                breaker, error, policy_of(operation, services), passed.since, probe=passed.probe
            )
        self._give_back(stored_location(operation.location), passed)

    def _give_back(self, place: str, passed: _Passed) -> None:
        if passed.permit:
            self._services.gatekeeper.leave(StepDeparture(self._held.run.id, passed.token, place))

    def tidy(self) -> None:
        """Let go of what nobody wants any more."""
        gatekeeper, run_id, token = self._services.gatekeeper, self._held.run.id, self._held.lease.token
        for place, passed in list(self._passed.items()):
            if not passed.operation.open:
                self._give_back(place, self._passed.pop(place))
        for place, (operation, _, since) in list(self._waiting.items()):
            if not operation.open:
                del self._waiting[place]
                gatekeeper.leave(StepDeparture(run_id, token, place, waiting_since=since))

    def close(self, *, ended: bool) -> None:
        """The run is let go of; one that has ended stands in no line."""
        gatekeeper, run_id, token = self._services.gatekeeper, self._held.run.id, self._held.lease.token
        for place, passed in self._passed.items():
            self._give_back(place, passed)
        for place in self._asked:
            gatekeeper.leave(StepDeparture(run_id, token, place))
        for place, (_, _, since) in self._waiting.items() if ended else ():
            gatekeeper.leave(StepDeparture(run_id, token, place, waiting_since=since))
        self._asked.clear()
        self._passed.clear()
        self._waiting.clear()


def is_limited(operation: StepOperation) -> bool:
    """Whether there are gates on its way."""
    options = operation.request.options
    return options.limit is not UNSET or options.breaker is not UNSET


def _breaker(operation: StepOperation) -> Breaker | None:
    breaker = operation.request.options.breaker
    return breaker if isinstance(breaker, Breaker) else None
