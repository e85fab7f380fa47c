"""Execution of one run on request: claimed by its id, and awaited until the worker lets go of it.

Leases, heartbeats and commits are the worker's. A second request for the same run waits for the first. A run that may
have killed its workers is claimed only when the worker holds nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from perdure.core.background_loops import Alarm
from perdure.core.codec.failure import Failure
from perdure.core.limits.limit import WaitlistPosition
from perdure.core.model.claim import ClaimByIdRequest, ClaimByIdResult, ClaimRefusal, ExecutionResult, ExecutionState
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.turn import Finish, Turn, TurnOutcome
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.errors import StoreError
from perdure.store.contract import Store

if TYPE_CHECKING:
    from collections.abc import Generator

    from perdure.worker.worker import Worker

#: Time after which to retry a run that another worker holds, in microseconds.
RETRY_AFTER = 2_000_000
#: Factor of the longest such time for a run in a waitlist.
_LONGEST_RETRY = 8
#: Seconds between two checks whether this worker lives, or holds nothing.
_CHECK_INTERVAL = 0.05
#: Seconds by which the clock of this process may be behind the server's, at most, before it is measured.
_BEHIND = 1.0

_STANDINGS = {
    ClaimRefusal.FINISHED: ExecutionState.FINISHED,
    ClaimRefusal.WAITING: ExecutionState.WAITING,
    ClaimRefusal.BLOCKED: ExecutionState.BLOCKED,
    ClaimRefusal.HELD: ExecutionState.HELD,
    ClaimRefusal.PAUSED: ExecutionState.PAUSED,
}


class UnknownRun(Exception):
    """There is no run with that id."""


class UnservedType(Exception):
    """The worker has no code for the run's type, which is the argument."""


class PushExecutor:
    """Executes single runs on request."""

    def __init__(self, store: Store, system: System, worker: Worker) -> None:
        self._store = store
        self._system = system
        self._worker = worker
        #: For each requested run: done when the request has been answered.
        self._requests: dict[str, asyncio.Future[None]] = {}
        #: Runs that are being claimed or loaded.
        self._taking: set[str] = set()
        #: For each requested run that is held: done when the worker lets go of it.
        self.executing: dict[str, asyncio.Future[None]] = {}
        self._credentials: dict[str, Mapping[str, Any]] = {}
        #: Exists while a request waits to claim a suspect: nothing else is claimed meanwhile.
        self._alone: asyncio.Future[None] | None = None

    # called by the worker

    def is_claiming(self, run_id: str) -> bool:
        """True if a claim of the run may be under way."""
        return run_id in self._taking

    def release(self, run_id: str) -> None:
        """Note that the worker has released a run."""
        waiter = self.executing.pop(run_id, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def release_all(self) -> None:
        """Note that the worker has released every run."""
        for run_id in list(self.executing):
            self.release(run_id)

    def credentials(self, run_id: str) -> Mapping[str, Any]:
        """Credentials that were given for a run, while it is executed."""
        return self._credentials.get(run_id, {})

    # requests

    async def execute(
        self, run_id: str, timeout: float | None = None, credentials: Mapping[str, Any] | None = None
    ) -> ExecutionResult:
        """Execute a run until it waits, ends or the time is up. Raises `UnknownRun` and `UnservedType`."""
        until = None if timeout is None else self._system.monotonic() + timeout
        while (asked := self._requests.get(run_id)) is not None:
            # Afterwards this request claims for itself: a message may have come in that the first one has not seen.
            if not await self._wait(asked, None if until is None else until - self._system.monotonic()):
                return await self._answer(run_id, worked=False, progressed=False)
        with self._requested(run_id):
            if credentials is not None:
                self._credentials[run_id] = credentials
            return await self._work_on(run_id, until)

    async def fail(self, run_id: str, failure: Failure, limit: str = "") -> Run | None:
        """Fail a run that is ready. Returns None if it has failed, or the run as it is if it cannot be claimed."""
        if run_id in self._requests:
            return await self._store.get(run_id)
        with self._requested(run_id):
            taken = await self._claim(run_id)
            if taken.claimed is None:
                return taken.run
            finish = Finish(Status.FAILED, failure.to_json(), limit)
            turn = Turn(lease=taken.claimed.lease, next=finish)
            while True:
                [verdict] = await self._store.commit([turn], self._worker.id)
                if verdict is not TurnOutcome.BUSY:
                    self._taking.discard(run_id)
                    self._worker.gatekeeper.ended(run_id, finish)
                    await self._report()
                    return None if verdict is TurnOutcome.APPLIED else await self._store.get(run_id)

    @contextmanager
    def _requested(self, run_id: str) -> Generator[None]:
        asked = self._requests[run_id] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._requests[run_id]
            self._taking.discard(run_id)
            self._credentials.pop(run_id, None)
            asked.set_result(None)

    async def _work_on(self, run_id: str, until: float | None) -> ExecutionResult:
        worked = progressed = False
        while True:
            taken = await self._claim(run_id)
            if taken.claimed is None:
                return await self._refused(taken, worked=worked, progressed=progressed)
            worked = True
            in_time = await self._until_released(taken, until)
            await self._report()
            progressed = progressed or in_time or await self._has_grown(run_id, taken.progress)
            run = await self._store.get(run_id)
            ready = run is not None and _is_ready(run, self._store.clock())
            if not in_time or not ready or self._worker.stopping:
                return await self._answer(run_id, worked=True, progressed=progressed)

    async def _report(self) -> None:
        """Report released permits, for speed only: other workers find the room by themselves in time."""
        with suppress(StoreError):
            await self._worker.gatekeeper.report(self._worker.id)

    async def _refused(self, taken: ClaimByIdResult, *, worked: bool, progressed: bool) -> ExecutionResult:
        """Answer for a run that could not be claimed."""
        run = taken.run
        assert run is not None
        stands = _STANDINGS.get(taken.refused or ClaimRefusal.HELD, ExecutionState.HELD)
        if taken.refused is ClaimRefusal.WAITING:
            # Another worker may have claimed it since, or it was admitted.
            stands = _standing_of(run, taken.now)
        return await self._with_retry_time(_executed(run, stands, taken.now, worked, progressed), taken.now)

    async def _with_retry_time(self, done: ExecutionResult, now: int) -> ExecutionResult:
        """Add the time of the next try for a run that is in a waitlist, itself or one of its steps."""
        if done.reason not in (Reason.LIMIT, Reason.BREAKER) or done.state is not ExecutionState.WAITING:
            return done
        again_at = _waitlist_retry_time(await self._store.waitlist_position(done.run_id), now)
        return replace(done, again_at=again_at, again_in=(again_at - now) / 1e6)

    async def _claim(self, run_id: str) -> ClaimByIdResult:
        """Claim a run, or say why it cannot be claimed. Raises `UnknownRun` and `UnservedType`."""
        suspect = False
        while True:
            await self._worker.ensure_alive()
            if suspect:
                taken = await self._claim_alone(run_id)
            else:
                while self._alone is not None:
                    await self._wait(self._alone, None)
                taken = await self._try_claim(run_id)
            match taken.refused:
                case None:
                    return taken
                case ClaimRefusal.DEAD:
                    self._worker.declared_dead()
                    await self._system.sleep(_CHECK_INTERVAL)
                case ClaimRefusal.SUSPECT:
                    suspect = True
                case ClaimRefusal.WAITING if await self._is_due_soon(taken):
                    pass
                case ClaimRefusal.UNKNOWN:
                    raise UnknownRun(run_id)
                case ClaimRefusal.FOREIGN:
                    raise UnservedType("" if taken.run is None else taken.run.type)
                case _:
                    return taken

    async def _is_due_soon(self, taken: ClaimByIdResult) -> bool:
        """Wait until a ready run is due by this process's clock, which may be behind that of the process it is from."""
        run = taken.run
        if run is None or run.status is not Status.PENDING or run.wake_at <= taken.now:
            return False
        seconds = (run.wake_at - await self._store.now()) / 1e6
        if 0 < seconds <= _BEHIND:
            await self._system.sleep(seconds)
        return seconds <= _BEHIND

    async def _claim_alone(self, run_id: str) -> ClaimByIdResult:
        """Claim a suspect: keep other requests from claiming until the worker holds nothing."""
        while self._alone is not None:
            await self._wait(self._alone, None)
        alone = self._alone = asyncio.get_running_loop().create_future()
        try:
            while not self._worker.holds_nothing or self._taking:
                await self._system.sleep(_CHECK_INTERVAL)
            return await self._try_claim(run_id)
        finally:
            self._alone = None
            alone.set_result(None)

    async def _try_claim(self, run_id: str) -> ClaimByIdResult:
        alone = self._worker.holds_nothing and not self._taking
        self._taking.add(run_id)
        tell, began = self._system.telemetry.claimed, self._system.monotonic()
        taken = await self._store.claim_by_id(self._request(run_id, alone=alone))
        if taken.refused is ClaimRefusal.GATED and taken.run is not None:
            taken = await self._admit(taken, taken.run, alone=alone)
        if tell is not None:
            claimed = () if taken.claimed is None else (taken.claimed,)
            tell(claimed, 1, taken.now, self._system.monotonic() - began)
        if taken.claimed is None:
            self._taking.discard(run_id)
        return taken

    async def _admit(self, taken: ClaimByIdResult, run: Run, *, alone: bool) -> ClaimByIdResult:
        """Claim a run that has limits; if they do not admit it, it goes into the waitlist."""
        worker = self._worker
        admitted = await worker.gatekeeper.admit_one(
            worker.id, run, taken.limited, alone=alone, poison_after=worker.settings.poison_after
        )
        if admitted.runs:
            [claimed] = admitted.runs
            return ClaimByIdResult(claimed=claimed, now=admitted.now, progress=claimed.last)
        refused = ClaimRefusal.SUSPECT if admitted.suspects else ClaimRefusal.WAITING
        return ClaimByIdResult(refused=refused, run=await self._store.get(run.id), now=admitted.now)

    async def _wait(self, future: asyncio.Future[None], seconds: float | None) -> bool:
        """Wait for a future (True), at most for so many seconds (False)."""
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
            poison_after=self._worker.settings.poison_after,
            build=self._worker.build,
        )

    async def _until_released(self, taken: ClaimByIdResult, until: float | None) -> bool:
        """Execute a claimed run; True if the worker released it in time."""
        assert taken.claimed is not None
        run_id = taken.claimed.run.id
        released = self.executing[run_id] = asyncio.get_running_loop().create_future()
        timer = None
        try:
            await self._worker.take_up(taken.claimed)
            self._taking.discard(run_id)
            if not self._worker.holds(run_id):
                # The run could not be loaded and was blocked.
                self.release(run_id)
            if until is not None:
                left = max(0.0, until - self._system.monotonic())
                timer = self._system.call_later(left, lambda: self._worker.release(run_id))
            await released
        except BaseException:
            # The request was cancelled.
            self._worker.release(run_id)
            raise
        finally:
            self.executing.pop(run_id, None)
            if timer is not None:
                timer.cancel()
        return until is None or self._system.monotonic() < until

    async def _has_grown(self, run_id: str, progress: int) -> bool:
        records = await self._store.history(run_id)
        return bool(records) and records[-1].seq > progress

    async def _answer(self, run_id: str, *, worked: bool, progressed: bool) -> ExecutionResult:
        run = await self._store.get(run_id)
        if run is None:
            raise UnknownRun(run_id)
        now = self._store.clock()
        return await self._with_retry_time(_executed(run, _standing_of(run, now), now, worked, progressed), now)


def _waitlist_retry_time(place: WaitlistPosition | None, now: int) -> int:
    """Time of the next try for a run in a waitlist, by the pace of its gate or by its place."""
    if place is None:
        return now + RETRY_AFTER
    if place.gate.bounds.pace:
        return max(now, place.gate.due_at) + place.ahead * place.gate.bounds.pace
    return now + RETRY_AFTER * min(_LONGEST_RETRY, 1 + place.ahead // max(1, place.gate.bounds.concurrency))


def _is_ready(run: Run, now: int) -> bool:
    return run.status in (Status.PENDING, Status.WAITING) and run.wake_at <= now


def _standing_of(run: Run, now: int) -> ExecutionState:
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
        again_at = now + RETRY_AFTER
    elif stands is ExecutionState.READY:
        again_at = now
    elif stands is ExecutionState.WAITING and run.wake_at < NEVER:
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
