"""Who may be worked on: the runs that have to pass gates.

Types with limits, and types and queues for which a limit was set at run time, are left out of ordinary claims. For them a worker looks at what has
arrived, says what each has to pass, and is given what may pass, claimed. What it lets go of it tells with its next request. Nothing here is the
truth: a permit counts by its run alone, and a worker that dies takes nothing with it.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.codec.codec import Codec
from perdure.core.limits.admission import (
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
from perdure.core.model.run import Run
from perdure.core.model.turn import Finish, NextState
from perdure.core.policy.retry import Retry
from perdure.core.system import System
from perdure.core.time.duration import FAR
from perdure.errors import BreakerOpen, InvalidId
from perdure.store.contract import Store
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Definition

logger = logging.getLogger("perdure.worker")

#: Told what became of a step, under which token it had asked, and when.
Answer = Callable[[StepAdmission, int, int], None]

#: So many of each queue and type are looked at together; fewer while others pass, who need not wait until these stand in line.
ARRIVALS = 200
FEW = 20
#: Steps stand in lines without queue and type: anybody may let them pass.
_STEPS = (("", ""),)


class Gatekeeper:
    """What one worker has to do with gates."""

    def __init__(
        self,
        store: Store,
        system: System,
        codec: Codec,
        definitions: Mapping[str, Definition[Any, Any]],
        queues: tuple[str, ...],
        ring: Callable[[], None],
    ) -> None:
        self._store = store
        self._system = system
        self._codec = codec
        self._definitions = definitions
        self._queues = queues
        self._ring = ring
        self._declared = frozenset(
            type for type, one in definitions.items() if one.limits or one.fair is not None or one.breaker is not None
        )
        self._failing = tuple(
            (type, one.breaker.gate)
            for type, one in definitions.items()
            if one.breaker is not None and one.breaker.rule.fails
        )
        self._breaker_reports = BreakerReports()
        #: Steps that want to pass, and who is told what became of them; and those that want nothing any more.
        self._asking: dict[tuple[str, str], tuple[StepArrival, Answer]] = {}
        self._left: list[StepDeparture] = []
        self._has_steps = False
        #: Runs that are to fail because a breaker is open, and until when it is.
        self._barred: dict[str, int] = {}
        #: Runs whose keys cannot be keys, and why.
        self._unfit: dict[str, InvalidId] = {}
        self._limited: tuple[str, ...] = ()
        self._lined: set[str] = set()
        #: Types of which single calls were seen that have gates of their own.
        self._mixed: frozenset[str] = frozenset()
        self.types: tuple[str, ...] = ()
        self.queues: tuple[str, ...] = ()
        self._pairs: list[tuple[str, str]] = []
        #: Runs that were let pass here, and for how long they count.
        self._passed: dict[str, tuple[int, bool]] = {}
        self._released: list[tuple[str, int]] = []
        self._pace = PollPace(system)
        #: Whether the last admission let somebody pass.
        self._busy = False
        self._arrange()

    @property
    def has_work(self) -> bool:
        """Whether anything that this worker serves has to pass gates, or something is to be told."""
        return bool(self._pairs or self._has_news)

    @property
    def has_steps(self) -> bool:
        """Whether steps have to pass, here or as far as is known elsewhere."""
        return self._has_steps or "" in self._lined

    @property
    def has_runs(self) -> bool:
        """Whether some of what it serves is claimed at gates."""
        return any(type for _, type in self._pairs)

    async def look_around(self) -> None:
        """Find out of which types somebody stands in a line although their code asks for that no more."""
        # Steps stand in lines without a type.
        lined = await self._store.lined(["", *(type for type in self._definitions if type not in self._declared)])
        if lined != self._lined:
            self._lined = lined
            self._arrange()

    def hear(self, limited: tuple[str, ...]) -> None:
        """For which types and queues a limit was set at run time."""
        if limited != self._limited:
            self._limited = limited
            self._arrange()

    def turn_away(self, claimed: Sequence[ClaimedRun]) -> list[ClaimedRun]:
        """Those of claimed runs that have gates of their own to pass before; from now on, their types are claimed there."""
        away = [one for one in claimed if has_call_limits(one.run.options)]
        mixed = self._mixed | {one.run.type for one in away}
        if mixed != self._mixed:
            self._mixed = mixed
            self._arrange()
        return away

    def _arrange(self) -> None:
        limited, asked = self._limited, self._declared | self._lined | self._mixed
        gated = {type for type in self._definitions if type in asked or type_gate(type) in limited}
        queues = {queue for queue in self._queues if queue_gate(queue) in limited}
        self.types = tuple(type for type in self._definitions if type not in gated)
        self.queues = tuple(queue for queue in self._queues if queue not in queues)
        self._pairs = [
            (queue, type) for queue in self._queues for type in self._definitions if queue in queues or type in gated
        ]
        if self.has_steps:
            self._pairs += _STEPS

    def ended(self, run_id: str, after: NextState | None) -> None:
        """A run is in this worker's hands no more."""
        passed = self._passed.get(run_id)
        if passed is None:
            return
        token, whole = passed
        if not whole or isinstance(after, Finish):
            self._released.append((run_id, token))
        del self._passed[run_id]

    def forget(self) -> None:
        """The worker has lost everything that it had, and others know."""
        self._passed.clear()
        self._released.clear()
        self._barred.clear()
        self._unfit.clear()
        self._asking.clear()
        self._left.clear()

    def ask(self, arrival: StepArrival, answer: Answer) -> None:
        """A step of a held run wants to pass."""
        self._asking[arrival.run_id, arrival.place] = arrival, answer
        if not self._has_steps:
            self._has_steps = True
            self._arrange()
        self._ring()

    def leave(self, left: StepDeparture) -> None:
        """A step has ended, or is wanted no more."""
        asked = self._asking.get((left.run_id, left.place))
        if asked is not None and asked[0].token == left.token:
            del self._asking[left.run_id, left.place]
        self._left.append(left)
        self._ring()

    def report_outcome(
        self, breaker: Breaker, error: BaseException | None, policy: Retry, since: int, *, probe: bool
    ) -> None:
        """An attempt behind a breaker has ended. That one failed, or may have been a probe, is told at once."""
        succeeded = breaker.assess(error, policy)
        if succeeded is not None and self._breaker_reports.add(breaker, since, succeeded, probe):
            self._ring()

    def report_run_outcome(self, breaker: Breaker, error: BaseException | None, policy: Retry, run: Run) -> None:
        """The same of an activity: one that has a permit may be a probe."""
        self.report_outcome(breaker, error, policy, run.wake_at, probe=run.id in self._passed)

    def breaker_of(self, run: Run) -> Breaker | None:
        """What its call says, or else its code."""
        given = call_limits_of(run.options).breaker
        return self._definitions[run.type].breaker if given is None else given.breaker

    def barred(self, run: Run) -> BreakerOpen | None:
        """Why a run may not be executed although it was claimed."""
        until = self._barred.pop(run.id, None)
        if until is None or (breaker := self.breaker_of(run)) is None:
            return None
        return breaker_open_error(breaker, until, f"activity {run.type!r} of run {run.id!r}")

    def unfit(self, run_id: str) -> InvalidId | None:
        """Why a run that was claimed at the gates is to fail: a key that its code makes of its input cannot be one."""
        return self._unfit.pop(run_id, None)

    async def tell(self, worker: str) -> None:
        """Say what this worker has let go of, and ask for nothing."""
        if self._has_news:
            nonce = self._system.entropy(16).hex()
            request = AdmissionRequest(
                worker=worker, nonce=nonce, limit=0, types=self._all_types, queues=(), wait_for_locks=True
            )
            try:
                await self._ask(request)
            except Exception as error:
                # A permit counts by its run alone: others find the room by themselves, a little later.
                logger.warning("worker %s could not say what it has let go of: %s", worker, error)

    @property
    def tells(self) -> bool:
        """Whether others wait for what this worker has to tell, and it may be told now."""
        return self._has_news and self._off_for <= 0

    @property
    def _off_for(self) -> float:
        # A step that asks waits for its gates anyway.
        return 0.0 if self._asking else self._pace.off_for

    @property
    def _has_news(self) -> bool:
        return bool(self._released or self._asking or self._left or self._breaker_reports.urgent)

    @property
    def _all_types(self) -> tuple[str, ...]:
        """For whom there may be room by what is told: whoever is next in line."""
        return (*self._definitions, "") if self._has_steps else tuple(self._definitions)

    @property
    def gated(self) -> frozenset[str]:
        """Types of which each has to pass gates, as far as is known."""
        return frozenset(type for type in self._definitions if type not in self.types)

    async def admit_one(
        self, worker: str, run: Run, limited: tuple[str, ...], *, alone: bool, poison_after: int
    ) -> AdmissionResult:
        """Let a run pass that somebody has named, if its gates have room; if not, it stands in line."""
        self.hear(limited)
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
        )
        admitted = await self._ask(request)
        self._note(admitted)
        return admitted

    async def admit(self, worker: str, room: int, *, alone: bool, poison_after: int) -> AdmissionResult:
        """What may be worked on."""
        if (off := self._off_for) > 0:
            now = self._store.clock()
            return AdmissionResult(next_due=now + int(off * 1e6), now=now)
        page = FEW if self._busy else ARRIVALS
        pairs = self._pairs if room > 0 else _STEPS if self.has_steps else ()
        look = await self._store.look(pairs, page)
        arrivals = [*self._arrivals(look.arrived), *await self._overtaking(look, page)]
        due = look.next_due <= look.now and not self._pace.is_patient
        if not (look.arrived or due or self.tells):
            return AdmissionResult(next_due=self._pace.expect(look.next_due, look.now), now=look.now)
        request = AdmissionRequest(
            worker=worker,
            nonce=self._system.entropy(16).hex(),
            limit=room,
            types=tuple(dict.fromkeys(type for _, type in pairs)),
            queues=tuple(dict.fromkeys(queue for queue, _ in pairs)),
            arrivals=tuple(arrivals),
            alone=alone,
            poison_after=poison_after,
        )
        admitted = await self._ask(request)
        self._note(admitted)
        self._busy = bool(admitted.runs)
        self._pace.saw(admitted, arrived=bool(look.arrived), due=due)
        more = len(look.arrived) >= page and not admitted.busy
        next_due = admitted.now if more else self._pace.expect(admitted.next_due, admitted.now)
        return replace(admitted, next_due=next_due)

    async def _overtaking(self, look: AdmissionPreview, page: int) -> list[RunArrival]:
        """Of types that take turns, who has come last of those whose keys have nobody among the first.

        So whoever has more runs ready than can be looked at together holds up nobody who comes later, and those of one key stay in their order.
        """
        full = {type for type, count in Counter(one.type for one in look.arrived).items() if count >= page}
        fair = [(queue, type) for queue, type in self._pairs if type in full and self._definitions[type].fair]
        if not fair:
            return []
        known = {(one.type, self._gating(one).fair_key) for one in look.arrived if one.type in full}
        last = (await self._store.look(fair, 4 * page, newest=True)).arrived
        found = [(one, self._gating(one)) for one in reversed(last)]
        return [RunArrival(one.run_id, one.token, own) for one, own in found if (one.type, own.fair_key) not in known]

    def _note(self, admitted: AdmissionResult) -> None:
        for one in admitted.runs:
            if one.run.id in admitted.counted:
                self._passed[one.run.id] = one.run.token, self._holds_whole(one.run)

    async def _ask(self, request: AdmissionRequest) -> AdmissionResult:
        """Say what is to be told, and ask."""
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
        self._breaker_reports.told(reports)
        self._released += admitted.undelivered
        self._left += admitted.undelivered_steps
        self._answer(asking, admitted)
        claimed = {one.run.id for one in admitted.runs}
        self._barred |= {run_id: until for run_id, until in admitted.barred if run_id in claimed}
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
        also = [gate for gate in (queue_gate(one.queue), type_gate(one.type)) if gate in self._limited]
        hold = PermitScope.LEASE if isinstance(definition, Activity) else PermitScope.RUN
        given = NO_CALL_LIMITS
        self._unfit.pop(one.run_id, None)
        try:
            given = call_limits_of(one.options)
            arguments = definition.signature.decode(one.input, self._codec, f"input of run {one.run_id!r} ({one.type})")
            spread = definition.signature.spread(arguments)
            limits, fair = definition.limits, definition.fair
            return given.gating(one.type, limits, fair, spread, hold=hold, also=also, breaker=breaker)
        except InvalidId as error:
            # It passes nothing, is claimed, and fails at once: see `unfit`.
            self._unfit[one.run_id] = error
            return RequiredGates(())
        except Exception:
            # It is not let past all limits: those without a key still hold. What is wrong with its input is said when it begins.
            logger.exception(
                "run %s: its limit's key cannot be told from its input; limits by key do not hold for it", one.run_id
            )
            plain = [limit for limit in definition.limits if limit.key is None]
            rest = given.gating(one.type, plain, None, ((), {}), hold=hold, also=also, breaker=breaker)
            return (
                rest
                if rest.passes
                else required_gates(one.type, (), None, ((), {}), hold=hold, also=[type_gate(one.type)])
            )

    def _holds_whole(self, run: Run) -> bool:
        """Whether it gives back nothing before its end."""
        definition = self._definitions[run.type]
        try:
            given = call_limits_of(run.options).limits
        except msgspec.MsgspecError:
            # It is set aside when it is taken up.
            return False
        limits: Sequence[Limit | CallLimit] = definition.limits if given is None else given
        if isinstance(definition, Activity):
            return bool(limits) and all(limit.hold is PermitScope.RUN for limit in limits)
        return all(limit.hold is not PermitScope.LEASE for limit in limits)


#: Gates that are due and have nobody for this worker are looked at again after this, which grows, in seconds.
_SHORTEST, _LONGEST = 0.05, 2.0
#: Where another worker serves a gate, this one looks so much later than it could.
_BEHIND = 0.3
#: Where another worker has a gate locked, what it does not see to is looked at after this, which grows, in seconds.
_SHORTEST_OFF, _LONGEST_OFF = 0.01, 0.32


class PollPace:
    """See the module."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._serves = False
        self._patience = _SHORTEST
        self._patient_until = 0.0
        self._off = _SHORTEST_OFF
        self._off_until = 0.0

    @property
    def off_for(self) -> float:
        """For how long gates are left to those who have them locked, in seconds."""
        return self._off_until - self._system.monotonic()

    @property
    def is_patient(self) -> bool:
        """Whether gates that are due were looked at a moment ago, in vain."""
        return self._system.monotonic() < self._patient_until

    def saw(self, admitted: AdmissionResult, *, arrived: bool, due: bool) -> None:
        """What came of a look."""
        passed = bool(admitted.runs or admitted.called)
        now = self._system.monotonic()
        if passed or due:
            self._serves = passed
        if passed or arrived:
            self._patience = _SHORTEST
        elif due:
            self._patience = min(_LONGEST, 2 * self._patience)
            self._patient_until = now + self._patience
        if admitted.busy:
            self._off_until = now + self._off * (0.5 + self._system.random())
            self._off = _SHORTEST_OFF if passed else min(_LONGEST_OFF, 2 * self._off)
        else:
            self._off = _SHORTEST_OFF

    def expect(self, due: int, now: int) -> int:
        """When to look, by when it is worth that: whoever serves a gate does so in time, and others stand by."""
        off = self.off_for
        if off > 0:
            return now + int(off * 1e6)
        if due >= FAR:
            return due
        wait = 0.0 if self._serves else _BEHIND * (0.5 + self._system.random())
        wait = max(wait, self._patient_until - self._system.monotonic())
        return max(due, now) + int(wait * 1e6)


#: So many outcomes are kept for later at the most.
_ENOUGH = 1000


class BreakerReports:
    """See the module."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[tuple[int, bool]]] = {}
        self._breakers: dict[str, Breaker] = {}
        self._unanswered: tuple[BreakerReport, ...] = ()
        self._number = 0
        self._urgent = False

    @property
    def urgent(self) -> bool:
        """Whether others wait to be told."""
        return self._urgent or bool(self._unanswered)

    def add(self, breaker: Breaker, since: int, succeeded: bool, probe: bool) -> bool:
        """An attempt has ended that was let pass at a time; whether that is to be told at once."""
        outcomes = self._outcomes.setdefault(breaker.gate, [])
        self._breakers[breaker.gate] = breaker
        outcomes.append((since, succeeded))
        self._urgent |= not succeeded or probe or len(outcomes) >= _ENOUGH
        return self._urgent

    def report(self) -> tuple[BreakerReport, ...]:
        """What to tell: what has not been answered, or all that has come since."""
        if not self._unanswered and self._urgent:
            self._number += 1
            self._unanswered = tuple(
                BreakerReport(gate, self._breakers[gate].rule, self._number, count_outcomes(outcomes))
                for gate, outcomes in self._outcomes.items()
            )
            self._outcomes.clear()
            self._urgent = False
        return self._unanswered

    def told(self, reports: tuple[BreakerReport, ...]) -> None:
        """These were counted."""
        if reports is self._unanswered:
            self._unanswered = ()


def breaker_open_error(breaker: Breaker, until: int, what: str) -> BreakerOpen:
    """The error of something that was not called."""
    by_itself = until < FAR - 1
    reading = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(
        microseconds=until if by_itself else 0
    )
    when = f"until {reading.isoformat()}" if by_itself else "until somebody closes it"
    return BreakerOpen(
        f"{what} was not called: the breaker {breaker.name!r} is open {when}",
        name=breaker.name,
        until=until if by_itself else 0,
    )
