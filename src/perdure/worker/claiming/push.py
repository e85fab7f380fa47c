"""Working on one run at somebody's request: taken by its id, worked on as any other, and waited for until it is let go of.

All else is the worker's: leases, heartbeats, the journal. A request for a run that is in these hands already waits with the
first one. A run that may have killed its workers is taken when nothing else is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.core.codec.failure import Failure
from perdure.core.limits.limit import WaitlistPosition
from perdure.core.model.claim import ClaimByIdRequest, ClaimByIdResult, ClaimRefusal, ExecutionResult, ExecutionState
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.core.system import System
from perdure.core.time.duration import FAR
from perdure.errors import StoreError
from perdure.store.contract import Store
from perdure.worker.alarm import Alarm

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.worker.worker import Worker

#: After how long to try again what another worker has, in microseconds.
HELD_FOR = 2_000_000
#: So many times that is the longest to wait for a place.
_LINES = 8
#: After how long to look again whether this worker lives, or holds nothing, in seconds.
_MOMENT = 0.05

_STANDS = {
    ClaimRefusal.FINISHED: ExecutionState.FINISHED,
    ClaimRefusal.WAITING: ExecutionState.WAITING,
    ClaimRefusal.BLOCKED: ExecutionState.BLOCKED,
    ClaimRefusal.HELD: ExecutionState.HELD,
    ClaimRefusal.PAUSED: ExecutionState.PAUSED,
}


class UnknownRun(Exception):
    """There is no such run."""


class UnservedType(Exception):
    """The worker has no code for the run's type, which is the argument."""


class PushExecutor:
    """See the module."""

    def __init__(self, store: Store, system: System, worker: Worker) -> None:
        self._store = store
        self._system = system
        self._worker = worker
        #: For each run that was asked for: done when nobody works on it here any more.
        self._asked: dict[str, asyncio.Future[None]] = {}
        #: Runs whose taking is under way, or whose history is being loaded.
        self._taking: set[str] = set()
        #: For each run in these hands: done when it is let go of.
        self._hands: dict[str, asyncio.Future[None]] = {}
        self._credentials: dict[str, Mapping[str, Any]] = {}
        #: There while somebody waits to take a suspect: others take nothing meanwhile.
        self._alone: asyncio.Future[None] | None = None

    # what the worker asks

    def expects(self, run_id: str) -> bool:
        """Whether the run may be this worker's without its knowing."""
        return run_id in self._taking

    def let_go(self, run_id: str) -> None:
        """The worker works on it no longer."""
        waiter = self._hands.pop(run_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def let_go_of_all(self) -> None:
        """Nor on any other."""
        for run_id in list(self._hands):
            self.let_go(run_id)

    def credentials(self, run_id: str) -> Mapping[str, Any]:
        """What was given for the run, while it is worked on."""
        return self._credentials.get(run_id, {})

    # what others ask

    async def execute(
        self, run_id: str, timeout: float | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """Work on a run until it waits, ends or the time is up. Raises `UnknownRun` and `UnservedType`."""
        until = None if timeout is None else self._system.monotonic() + timeout
        while (asked := self._asked.get(run_id)) is not None:
            # Then it looks for itself: something may have come in for the run that the first one has not seen.
            if not await self._wait(asked, None if until is None else until - self._system.monotonic()):
                return await self._look(run_id, worked=False, progressed=False)
        with self._asking(run_id):
            if credentials is not None:
                self._credentials[run_id] = credentials
            return await self._work_on(run_id, until)

    async def fail(self, run_id: str, failure: Failure, limit: str = "") -> Run | None:
        """End a run that is ready, as failed; the run as it is if it cannot be taken, None if it has failed."""
        if run_id in self._asked:
            return await self._store.get(run_id)
        with self._asking(run_id):
            taken = await self._take(run_id)
            if taken.claimed is None:
                return taken.run
            finish = Finish(Status.FAILED, failure.to_json(), limit)
            turn = Turn(lease=taken.claimed.lease, next=finish)
            while True:
                [verdict] = await self._store.commit([turn], self._worker.id)
                if verdict is not TurnOutcome.BUSY:
                    self._taking.discard(run_id)
                    self._worker.gatekeeper.ended(run_id, finish)
                    await self._tell()
                    return None if verdict is TurnOutcome.APPLIED else await self._store.get(run_id)

    @contextmanager
    def _asking(self, run_id: str) -> Generator[None]:
        asked = self._asked[run_id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._asked[run_id]
            self._taking.discard(run_id)
            self._credentials.pop(run_id, None)
            asked.set_result(None)

    async def _work_on(self, run_id: str, until: float | None) -> ExecutionResult:
        worked = progressed = False
        while True:
            taken = await self._take(run_id)
            if taken.claimed is None:
                return await self._left(taken, worked=worked, progressed=progressed)
            worked = True
            in_time = await self._until_let_go(taken, until)
            await self._tell()
            progressed = progressed or in_time or await self._has_grown(run_id, taken.progress)
            run = await self._store.get(run_id)
            ready = run is not None and _is_ready(run, self._store.clock())
            if not in_time or not ready or self._worker.stopping:
                return await self._look(run_id, worked=True, progressed=progressed)

    async def _tell(self) -> None:
        """Say what gates have room now. For speed only: others look by themselves in time."""
        with suppress(StoreError):
            await self._worker.gatekeeper.tell(self._worker.id)

    async def _left(self, taken: ClaimByIdResult, *, worked: bool, progressed: bool) -> ExecutionResult:
        """Where a run stands that was not to be had."""
        run = taken.run
        assert run is not None
        stands = _STANDS.get(taken.refused or ClaimRefusal.HELD, ExecutionState.HELD)
        if taken.refused is ClaimRefusal.WAITING:
            # It may have been taken by somebody else since, or been let pass.
            stands = _stands(run, taken.now)
        return await self._in_turn(_executed(run, stands, taken.now, worked, progressed), taken.now)

    async def _in_turn(self, done: ExecutionResult, now: int) -> ExecutionResult:
        """Say when to ask again for a run that, or a step of which, stands in a line."""
        if done.reason not in (Reason.LIMIT, Reason.BREAKER) or done.state is not ExecutionState.WAITING:
            return done
        again_at = _turn_of(await self._store.standing(done.run_id), now)
        return replace(done, again_at=again_at, again_in=(again_at - now) / 1e6)

    async def _take(self, run_id: str) -> ClaimByIdResult:
        """Take it, and hand it to the worker; or say why not. Raises `UnknownRun` and `UnservedType`."""
        suspect = False
        while True:
            await self._worker.ensure_alive()
            if suspect:
                taken = await self._take_alone(run_id)
            else:
                while self._alone is not None:
                    await self._wait(self._alone, None)
                taken = await self._ask_for(run_id)
            match taken.refused:
                case None:
                    return taken
                case ClaimRefusal.DEAD:
                    self._worker.declared_dead()
                    await self._system.sleep(_MOMENT)
                case ClaimRefusal.SUSPECT:
                    suspect = True
                case ClaimRefusal.UNKNOWN:
                    raise UnknownRun(run_id)
                case ClaimRefusal.FOREIGN:
                    raise UnservedType("" if taken.run is None else taken.run.type)
                case _:
                    return taken

    async def _take_alone(self, run_id: str) -> ClaimByIdResult:
        """Keep others from taking anything until nothing is held, and take it then."""
        while self._alone is not None:
            await self._wait(self._alone, None)
        alone = self._alone = asyncio.get_running_loop().create_future()
        try:
            while not self._worker.holds_nothing or self._taking:
                await self._system.sleep(_MOMENT)
            return await self._ask_for(run_id)
        finally:
            self._alone = None
            alone.set_result(None)

    async def _ask_for(self, run_id: str) -> ClaimByIdResult:
        alone = self._worker.holds_nothing and not self._taking
        self._taking.add(run_id)
        taken = await self._store.take(self._request(run_id, alone=alone))
        if taken.refused is ClaimRefusal.GATED and taken.run is not None:
            taken = await self._pass(taken, taken.run, alone=alone)
        if taken.claimed is None:
            self._taking.discard(run_id)
        return taken

    async def _pass(self, taken: ClaimByIdResult, run: Run, *, alone: bool) -> ClaimByIdResult:
        """Have a run pass its gates; one that may not waits in line."""
        worker = self._worker
        admitted = await worker.gatekeeper.admit_one(
            worker.id, run, taken.limited, alone=alone, poison_after=worker.options.poison_after
        )
        if admitted.runs:
            [claimed] = admitted.runs
            return ClaimByIdResult(claimed=claimed, now=admitted.now, progress=claimed.last)
        refused = ClaimRefusal.SUSPECT if admitted.suspects else ClaimRefusal.WAITING
        return ClaimByIdResult(refused=refused, run=await self._store.get(run.id), now=admitted.now)

    async def _wait(self, future: asyncio.Future[None], seconds: float | None) -> bool:
        """Wait for its end (True), or for so long (False)."""
        alarm = Alarm(self._system)

        def ring(_: object) -> None:
            alarm.ring()

        future.add_done_callback(ring)
        try:
            return await alarm.wait(seconds)
        finally:
            future.remove_done_callback(ring)

    def _request(self, run_id: str, *, alone: bool) -> ClaimByIdRequest:
        return ClaimByIdRequest(
            run_id=run_id,
            worker=self._worker.id,
            nonce=self._system.entropy(16).hex(),
            types=self._worker.types,
            gated=self._worker.gatekeeper.gated,
            alone=alone,
            poison_after=self._worker.options.poison_after,
        )

    async def _until_let_go(self, taken: ClaimByIdResult, until: float | None) -> bool:
        """Work on it; whether it was let go of in time."""
        assert taken.claimed is not None
        run_id = taken.claimed.run.id
        let_go = self._hands[run_id] = asyncio.get_running_loop().create_future()
        timer = None
        try:
            await self._worker.take_up(taken.claimed)
            self._taking.discard(run_id)
            if not self._worker.holds(run_id):
                # What was loaded made no sense, and it was set aside.
                self.let_go(run_id)
            if until is not None:
                left = max(0.0, until - self._system.monotonic())
                timer = self._system.call_later(left, lambda: self._worker.release(run_id))
            await let_go
        except BaseException:
            # Whoever asked has gone.
            self._worker.release(run_id)
            raise
        finally:
            self._hands.pop(run_id, None)
            if timer is not None:
                timer.cancel()
        return until is None or self._system.monotonic() < until

    async def _has_grown(self, run_id: str, progress: int) -> bool:
        records = await self._store.history(run_id)
        return bool(records) and records[-1].seq > progress

    async def _look(self, run_id: str, *, worked: bool, progressed: bool) -> ExecutionResult:
        run = await self._store.get(run_id)
        if run is None:
            raise UnknownRun(run_id)
        now = self._store.clock()
        return await self._in_turn(_executed(run, _stands(run, now), now, worked, progressed), now)


def _turn_of(place: WaitlistPosition | None, now: int) -> int:
    """When to ask again for a run that stands in line: when it is its turn, by the pace of its gate, or after a while that grows with the line."""
    if place is None:
        return now + HELD_FOR
    if place.gate.bounds.pace:
        return max(now, place.gate.due_at) + place.ahead * place.gate.bounds.pace
    return now + HELD_FOR * min(_LINES, 1 + place.ahead // max(1, place.gate.bounds.concurrency))


def _is_ready(run: Run, now: int) -> bool:
    return run.status in (Status.PENDING, Status.WAITING) and run.wake_at <= now


def _stands(run: Run, now: int) -> ExecutionState:
    if run.status.finished:
        return ExecutionState.FINISHED
    if run.status is Status.BLOCKED:
        return ExecutionState.BLOCKED
    if run.status is Status.RUNNING:
        return ExecutionState.HELD
    return ExecutionState.READY if _is_ready(run, now) else ExecutionState.WAITING


def _executed(run: Run, stands: ExecutionState, now: int, worked: bool, progressed: bool) -> ExecutionResult:
    again_at = None
    if stands is ExecutionState.HELD:
        again_at = now + HELD_FOR
    elif stands is ExecutionState.READY:
        again_at = now
    elif stands is ExecutionState.WAITING and run.wake_at < FAR:
        again_at = run.wake_at
    return ExecutionResult(
        run_id=run.id,
        state=stands,
        status=run.status,
        reason=run.reason,
        again_at=again_at,
        again_in=None if again_at is None else max(0.0, (again_at - now) / 1e6),
        worked=worked,
        progressed=progressed,
        parent_id=run.parent_id,
    )
