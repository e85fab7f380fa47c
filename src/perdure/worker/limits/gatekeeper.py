"""Admission of runs and steps that have limits or breakers, as one worker asks for it.

Types with limits, and types and queues with a limit that was set at run time, are left out of ordinary claims. For
these a worker previews what has become ready, computes the limits of each run (only code knows keys and inputs), and
the store claims the runs that are admitted. Permits that the worker has released go along with its next request.
Nothing here is durable state: a permit counts by its run alone, and a worker that dies takes nothing with it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.codec.codec import Codec
from perdure.core.limits.admission_requests import (
    AdmissionPreview,
    AdmissionRequest,
    AdmissionResult,
    RunArrival,
    StepAdmission,
    StepArrival,
    StepDeparture,
    UnadmittedRun,
)
from perdure.core.limits.breaker import Breaker, BreakerReport, count_outcomes
from perdure.core.limits.call_limits import NO_CALL_LIMITS, CallLimit, call_limits_of, has_call_limits
from perdure.core.limits.limit import Limit, PermitScope, RequiredGates, queue_gate, required_gates, type_gate
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.run import NO_OPTIONS, Run
from perdure.core.model.turn import Finish, NextState
from perdure.core.pinning import base_queue
from perdure.core.policy.retry import Retry
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.errors import BreakerOpen
from perdure.store.contract import Store
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Definition

logger = logging.getLogger("perdure.worker")

#: Called with the verdict on a step, the token under which the step asked, and the time.
Answer = Callable[[StepAdmission, int, int], None]

#: Runs of each queue and type that one preview returns. Fewer while runs are being admitted, which need not wait until
#: the rest are in the waitlist.
ARRIVALS = 200
FEW = 20
#: Steps are in the waitlist without queue and type: any worker may admit them.
_STEPS = (("", ""),)


class Gatekeeper:
    """Admission requests of one worker."""

    def __init__(
        self,
        store: Store,
        system: System,
        codec: Codec,
        definitions: Mapping[str, Definition[Any, Any]],
        queues: tuple[str, ...],
        ring: Callable[[], None],
        build: str = "",
    ) -> None:
        self._store = store
        self._system = system
        self._codec = codec
        self._code = definitions
        #: Those of types that do not belong to another runtime.
        self._definitions = definitions
        self._queues = queues
        self._ring = ring
        #: Build of the worker's code.
        self._build = build
        self._declared = frozenset(
            type for type, one in definitions.items() if one.limits or one.fair is not None or one.breaker is not None
        )
        self._failing = tuple(
            (type, one.breaker.gate)
            for type, one in definitions.items()
            if one.breaker is not None and one.breaker.rule.fails
        )
        self._breaker_reports = BreakerReports()
        #: Steps that ask for admission, with their callbacks; and steps that have ended or are not needed any more.
        self._asking: dict[tuple[str, str], tuple[StepArrival, Answer]] = {}
        self._left: list[StepDeparture] = []
        self._has_steps = False
        #: Claimed runs that have to fail because a breaker is open, and until when it is.
        self._barred_until: dict[str, int] = {}
        #: Errors of runs whose limit's key or weight is invalid or cannot be computed.
        self._key_errors: dict[str, Exception] = {}
        self._limited: tuple[str, ...] = ()
        self._lined: set[str] = set()
        #: Types of which single calls have limits of their own.
        self._mixed: frozenset[str] = frozenset()
        self.types: tuple[str, ...] = ()
        self.queues: tuple[str, ...] = ()
        self._pairs: list[tuple[str, str]] = []
        #: True if some of the runs that this worker serves have limits.
        self.has_runs = False
        #: Runs that were admitted here: their tokens, and whether the permit lasts to the end of the run.
        self._admitted: dict[str, tuple[int, bool]] = {}
        self._released: list[tuple[str, int]] = []
        self._pace = PollPace(system)
        #: Whether the last request admitted a run.
        self._busy = False
        self._split_types()

    @property
    def has_work(self) -> bool:
        """True if this worker serves anything with a limit, or has something to report."""
        return bool(self._pairs or self._has_reports)

    @property
    def has_steps(self) -> bool:
        """True if steps ask for admission, here or, as far as is known, elsewhere."""
        return self._has_steps or "" in self._lined

    async def refresh_waiting_types(self) -> None:
        """Find types that are in the waitlist although their code no longer declares a limit."""
        # Steps are in the waitlist without a type.
        lined = await self._store.waitlisted_types(
            ["", *(type for type in self._definitions if type not in self._declared)]
        )
        if lined != self._lined:
            self._lined = lined
            self._split_types()

    def set_limited(self, limited: tuple[str, ...]) -> None:
        """Set the types and queues for which a limit was set at run time."""
        if limited != self._limited:
            self._limited = limited
            self._split_types()

    def set_elsewhere(self, types: Collection[str]) -> None:
        """Leave out types that belong to another runtime."""
        served = {type: one for type, one in self._code.items() if type not in types}
        if served.keys() != self._definitions.keys():
            self._definitions = served
            self._split_types()

    @property
    def served(self) -> tuple[str, ...]:
        """Types with and without limits that do not belong to another runtime."""
        return tuple(self._definitions)

    def take_misclaimed(self, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
        """Return the claimed runs that have limits of their own; from now on their types are claimed here."""
        away = [one for one in claimed if one.run.options != NO_OPTIONS and has_call_limits(one.run.options)]
        mixed = self._mixed | {one.run.type for one in away}
        if mixed != self._mixed:
            self._mixed = mixed
            self._split_types()
        return away

    def _split_types(self) -> None:
        limited, asked = self._limited, self._declared | self._lined | self._mixed
        gated = {type for type in self._definitions if type in asked or type_gate(type) in limited}
        queues = {queue for queue in self._queues if queue_gate(base_queue(queue)) in limited}
        self.types = tuple(type for type in self._definitions if type not in gated)
        self.queues = tuple(queue for queue in self._queues if queue not in queues)
        self._pairs = [
            (queue, type) for queue in self._queues for type in self._definitions if queue in queues or type in gated
        ]
        if self.has_steps:
            self._pairs += _STEPS
        self.has_runs = any(type for _, type in self._pairs)

    def ended(self, run_id: str, after: NextState | None) -> None:
        """Note that this worker no longer holds a run."""
        passed = self._admitted.get(run_id)
        if passed is None:
            return
        token, whole = passed
        if not whole or isinstance(after, Finish):
            self._released.append((run_id, token))
        del self._admitted[run_id]

    def forget(self) -> None:
        """Forget everything: the worker was declared dead and has lost its runs."""
        self._admitted.clear()
        self._released.clear()
        self._barred_until.clear()
        self._key_errors.clear()
        self._asking.clear()
        self._left.clear()

    def ask(self, arrival: StepArrival, answer: Answer) -> None:
        """Ask for admission of a step."""
        self._asking[arrival.run_id, arrival.place] = arrival, answer
        if not self._has_steps:
            self._has_steps = True
            self._split_types()
        self._ring()

    def release_step(self, left: StepDeparture) -> None:
        """Report that a step has ended or is not needed any more."""
        asked = self._asking.get((left.run_id, left.place))
        if asked is not None and asked[0].token == left.token:
            del self._asking[left.run_id, left.place]
        self._left.append(left)
        self._ring()

    def report_outcome(
        self, breaker: Breaker, error: BaseException | None, policy: Retry, since: int, *, probe: bool
    ) -> None:
        """Note the outcome of an attempt behind a breaker. A failure, or a probe's outcome, is reported at once."""
        succeeded = breaker.assess(error, policy)
        if succeeded is not None and self._breaker_reports.add(breaker, since, succeeded, probe):
            self._ring()

    def report_run_outcome(self, breaker: Breaker, error: BaseException | None, policy: Retry, run: Run) -> None:
        """Note the outcome of an activity behind a breaker. One that has a permit may be a probe."""
        self.report_outcome(breaker, error, policy, run.wake_at, probe=run.id in self._admitted)

    def breaker_of(self, run: Run) -> Breaker | None:
        """Breaker of a run: the one that its call gives, or else its code's."""
        given = call_limits_of(run.options).breaker
        return self._code[run.type].breaker if given is None else given.breaker

    def breaker_error(self, run: Run) -> BreakerOpen | None:
        """Error for a run that was claimed although a breaker is open; None if it may be executed."""
        until = self._barred_until.pop(run.id, None)
        if until is None or (breaker := self.breaker_of(run)) is None:
            return None
        return breaker_open_error(breaker, until, f"activity {run.type!r} of run {run.id!r}")

    def key_error(self, run_id: str) -> Exception | None:
        """Error for a claimed run that may not be executed because of its limit's key or weight; None if it may.

        A key that no database can store, `InvalidId`, fails the run. Any other error is one of the user's function, and
        blocks the run until the function is corrected.
        """
        return self._key_errors.pop(run_id, None)

    async def report(self, worker: str) -> None:
        """Report what this worker has released, without asking for runs."""
        if self._has_reports:
            nonce = self._system.entropy(16).hex()
            request = AdmissionRequest(
                worker=worker, nonce=nonce, limit=0, types=self._all_types, queues=(), wait_for_locks=True
            )
            try:
                await self._send(request)
            except Exception as error:
                # A permit counts by its run alone, so others find the room by themselves, a little later.
                logger.warning("worker %s could not say what it has let go of: %s", worker, error)

    @property
    def has_reports(self) -> bool:
        """True if other workers wait for a report of this one that may be sent now."""
        return self._has_reports and self._lock_wait <= 0

    @property
    def _lock_wait(self) -> float:
        # A step that asks waits for its limits anyway.
        return 0.0 if self._asking else self._pace.lock_wait

    @property
    def _has_reports(self) -> bool:
        return bool(self._released or self._asking or self._left or self._breaker_reports.urgent)

    @property
    def _all_types(self) -> tuple[str, ...]:
        """Types that the released permits may make room for."""
        return (*self._definitions, "") if self._has_steps else tuple(self._definitions)

    @property
    def gated(self) -> frozenset[str]:
        """Types all of whose runs have limits, as far as is known."""
        return frozenset(type for type in self._definitions if type not in self.types)

    async def admit_one(
        self, worker: str, run: Run, limited: tuple[str, ...], *, alone: bool, poison_after: int
    ) -> AdmissionResult:
        """Admit a run that was asked for by its id if its limits have room; otherwise put it into the waitlist."""
        self.set_limited(limited)
        waiting = UnadmittedRun(run.id, run.type, run.queue, run.token, run.input, run.options)
        request = AdmissionRequest(
            worker=worker,
            nonce=self._system.entropy(16).hex(),
            limit=1,
            types=self._all_types,
            queues=(run.queue,),
            arrivals=tuple(self._arrivals([waiting])),
            alone=alone,
            only=True,
            wait_for_locks=True,
            poison_after=poison_after,
            build=self._build,
        )
        admitted = await self._send(request)
        self._note(admitted)
        return admitted

    async def admit(self, worker: str, room: int, *, alone: bool, poison_after: int) -> AdmissionResult:
        """Claim up to `room` runs that their limits admit."""
        if (off := self._lock_wait) > 0:
            now = self._store.clock()
            return AdmissionResult(next_due=now + int(off * 1e6), now=now)
        page = FEW if self._busy else ARRIVALS
        pairs = self._pairs if room > 0 else _STEPS if self.has_steps else ()
        look = await self._store.preview_admission(pairs, page)
        arrivals = [*self._arrivals(look.arrived), *await self._overtaking(look, page)]
        due = look.next_due <= look.now and not self._pace.backs_off
        if not (look.arrived or due or self.has_reports):
            return AdmissionResult(next_due=self._pace.next_poll(look.next_due, look.now), now=look.now)
        request = AdmissionRequest(
            worker=worker,
            nonce=self._system.entropy(16).hex(),
            limit=room,
            types=tuple(dict.fromkeys(type for _, type in pairs)),
            queues=tuple(dict.fromkeys(queue for queue, _ in pairs)),
            arrivals=tuple(arrivals),
            alone=alone,
            poison_after=poison_after,
            build=self._build,
        )
        admitted = await self._send(request)
        self._note(admitted)
        self._busy = bool(admitted.runs)
        self._pace.adjust(admitted, arrived=bool(look.arrived), due=due)
        more = len(look.arrived) >= page and not admitted.busy
        next_due = admitted.now if more else self._pace.next_poll(admitted.next_due, admitted.now)
        return replace(admitted, next_due=next_due)

    async def _overtaking(self, look: AdmissionPreview, page: int) -> list[RunArrival]:
        """Find newly arrived runs of fairness keys that a full preview does not show.

        A key with more ready runs than one preview returns so holds up no other key. The runs of one key keep their
        order.
        """
        full = {type for type, count in Counter(one.type for one in look.arrived).items() if count >= page}
        fair = [(queue, type) for queue, type in self._pairs if type in full and self._definitions[type].fair]
        if not fair:
            return []
        known = {(one.type, self._gating(one).fair_key) for one in look.arrived if one.type in full}
        last = (await self._store.preview_admission(fair, 4 * page, newest=True)).arrived
        found = [(one, self._gating(one)) for one in reversed(last)]
        return [RunArrival(one.run_id, one.token, own) for one, own in found if (one.type, own.fair_key) not in known]

    def _note(self, admitted: AdmissionResult) -> None:
        for one in admitted.runs:
            if one.run.id in admitted.counted:
                self._admitted[one.run.id] = one.run.token, self._holds_whole(one.run)

    async def _send(self, request: AdmissionRequest) -> AdmissionResult:
        """Send a request together with everything that is to be reported."""
        released, self._released = self._released, []
        asking, self._asking = self._asking, {}
        left, self._left = self._left, []
        reports = self._breaker_reports.report()
        steps = tuple(arrival for arrival, _ in asking.values())
        request = replace(
            request, released=tuple(released), reports=reports, failing=self._failing, steps=steps, left=tuple(left)
        )
        try:
            admitted = await self._store.admit(request)
        except BaseException:
            self._released += released
            self._left += left
            self._asking = {**asking, **self._asking}
            raise
        self._breaker_reports.acknowledge(reports)
        self._released += admitted.undelivered
        self._left += admitted.undelivered_steps
        self._answer(asking, admitted)
        claimed = {one.run.id for one in admitted.runs}
        for run_id in claimed:
            # An earlier claim may have ended before its attempt asked.
            self._barred_until.pop(run_id, None)
        self._barred_until |= {run_id: until for run_id, until in admitted.barred if run_id in claimed}
        return admitted

    def _answer(self, asking: dict[tuple[str, str], tuple[StepArrival, Answer]], admitted: AdmissionResult) -> None:
        loop = asyncio.get_running_loop()
        for verdict in admitted.steps:
            arrival, answer = asking.pop((verdict.run_id, verdict.place))
            loop.call_soon(answer, verdict, arrival.token, admitted.now)
        for key, unanswered in asking.items():
            self._asking.setdefault(key, unanswered)

    def _arrivals(self, arrived: Iterable[UnadmittedRun]) -> Iterable[RunArrival]:
        for one in arrived:
            yield RunArrival(one.run_id, one.token, self._gating(one))

    def _gating(self, one: UnadmittedRun) -> RequiredGates:
        definition = self._definitions[one.type]
        breaker = definition.breaker
        also = [gate for gate in (queue_gate(base_queue(one.queue)), type_gate(one.type)) if gate in self._limited]
        hold = PermitScope.LEASE if isinstance(definition, Activity) else PermitScope.RUN
        given = NO_CALL_LIMITS
        self._key_errors.pop(one.run_id, None)
        limits, fair = definition.limits, definition.fair
        try:
            given = call_limits_of(one.options)
            arguments = definition.signature.decode(one.input, self._codec, f"input of run {one.run_id!r} ({one.type})")
            arguments = definition.signature.complete(arguments)
        except Exception:
            # Limits without a key still apply. The run is blocked when it begins, before its code is called.
            logger.exception("run %s: its limit's key needs its input, which cannot be read", one.run_id)
            plain = [limit for limit in definition.limits if limit.key is None]
            rest = given.required_gates(one.type, plain, None, {}, hold=hold, also=also, breaker=breaker)
            return (
                rest if rest.passes else required_gates(one.type, (), None, {}, hold=hold, also=[type_gate(one.type)])
            )
        try:
            return given.required_gates(one.type, limits, fair, arguments, hold=hold, also=also, breaker=breaker)
        except Exception as error:
            # The run passes no limit, is claimed, and is failed or blocked at once (`key_error`).
            self._key_errors[one.run_id] = error
            return RequiredGates(())

    def _holds_whole(self, run: Run) -> bool:
        """True if a run keeps its permit to its end."""
        definition = self._definitions[run.type]
        try:
            given = call_limits_of(run.options).limits
        except msgspec.MsgspecError:
            # The run is blocked when it begins.
            return False
        limits: Sequence[Limit | CallLimit] = definition.limits if given is None else given
        if isinstance(definition, Activity):
            return bool(limits) and all(limit.hold is PermitScope.RUN for limit in limits)
        return all(limit.hold is not PermitScope.LEASE for limit in limits)


#: Time until limits that were due and admitted nothing are polled again; it doubles up to the second, in seconds.
_SHORTEST, _LONGEST = 0.05, 2.0
#: Delay behind a worker that serves the same limit, in seconds.
_BEHIND = 0.3
#: Time until a limit that another worker has locked is tried again; it doubles up to the second, in seconds.
_SHORTEST_OFF, _LONGEST_OFF = 0.01, 0.32


class PollPace:
    """Times at which one worker polls limits: in time where it serves them, later where another worker does."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._serves = False
        self._backoff = _SHORTEST
        self._backoff_until = 0.0
        self._lock_pause = _SHORTEST_OFF
        self._locked_until = 0.0

    @property
    def lock_wait(self) -> float:
        """Seconds for which locked limits are left to the worker that has them."""
        return self._locked_until - self._system.monotonic()

    @property
    def backs_off(self) -> bool:
        """True if limits that are due were polled in vain a moment ago."""
        return self._system.monotonic() < self._backoff_until

    def adjust(self, admitted: AdmissionResult, *, arrived: bool, due: bool) -> None:
        """Adjust the pace to the result of a request."""
        passed = bool(admitted.runs or admitted.called)
        now = self._system.monotonic()
        if passed or due:
            self._serves = passed
        if passed or arrived:
            self._backoff = _SHORTEST
        elif due:
            self._backoff = min(_LONGEST, 2 * self._backoff)
            self._backoff_until = now + self._backoff
        if admitted.busy:
            self._locked_until = now + self._lock_pause * (0.5 + self._system.random())
            self._lock_pause = _SHORTEST_OFF if passed else min(_LONGEST_OFF, 2 * self._lock_pause)
        else:
            self._lock_pause = _SHORTEST_OFF

    def next_poll(self, due: int, now: int) -> int:
        """Time of the next poll for what is due: in time for the worker that serves it, later for others."""
        off = self.lock_wait
        if off > 0:
            return now + int(off * 1e6)
        if due >= NEVER:
            return due
        wait = 0.0 if self._serves else _BEHIND * (0.5 + self._system.random())
        wait = max(wait, self._backoff_until - self._system.monotonic())
        return max(due, now) + int(wait * 1e6)


#: Outcomes that are kept before they are reported, at most.
_ENOUGH = 1000


class BreakerReports:
    """Outcomes of attempts behind breakers that are to be reported.

    Successes of a closed breaker change nothing and wait for another report, so that a working dependency costs
    nothing. A report keeps its number until it is acknowledged, so that a repeated one counts once.
    """

    def __init__(self) -> None:
        self._outcomes: dict[str, list[tuple[int, bool]]] = {}
        self._breakers: dict[str, Breaker] = {}
        self._unanswered: tuple[BreakerReport, ...] = ()
        self._number = 0
        self._urgent = False

    @property
    def urgent(self) -> bool:
        """True if a report should be sent soon."""
        return self._urgent or bool(self._unanswered)

    def add(self, breaker: Breaker, since: int, succeeded: bool, probe: bool) -> bool:
        """Add the outcome of an attempt that was admitted at `since`; True if it should be reported soon."""
        outcomes = self._outcomes.setdefault(breaker.gate, [])
        self._breakers[breaker.gate] = breaker
        outcomes.append((since, succeeded))
        self._urgent |= not succeeded or probe or len(outcomes) >= _ENOUGH
        return self._urgent

    def report(self) -> tuple[BreakerReport, ...]:
        """Return the report to send: the unacknowledged one, or all that has come since."""
        if not self._unanswered and self._urgent:
            self._number += 1
            self._unanswered = tuple(
                BreakerReport(gate, self._breakers[gate].rule, self._number, count_outcomes(outcomes))
                for gate, outcomes in self._outcomes.items()
            )
            self._outcomes.clear()
            self._urgent = False
        return self._unanswered

    def acknowledge(self, reports: tuple[BreakerReport, ...]) -> None:
        """Note that a report was counted."""
        if reports is self._unanswered:
            self._unanswered = ()


def breaker_open_error(breaker: Breaker, until: int, what: str) -> BreakerOpen:
    """Make the error of a call that an open breaker prevented."""
    by_itself = until < NEVER - 1
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=until if by_itself else 0
    )
    when = f"until {moment.isoformat()}" if by_itself else "until it is closed by hand"
    return BreakerOpen(
        f"{what} was not called: the breaker {breaker.name!r} is open {when}",
        name=breaker.name,
        until=until if by_itself else 0,
    )
