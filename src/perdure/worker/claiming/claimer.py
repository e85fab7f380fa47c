"""The claim loop: one per worker, in batches of the free slots or a good part of them.

It claims again at once while there is more. Otherwise it waits for a notification, for the next timer, or for a poll
whose interval grows while nothing happens. Notifications only make it faster; correctness does not depend on them.

A run that was parked here may still be in memory (`Residents`); claimed again, it goes on without replay.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perdure.core.background_loops import Alarm, LoopGuard
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import Failure
from perdure.core.model.claim import SUSPECT_AFTER, ClaimedRun, ClaimRequest, ClaimResult, LoadedRun
from perdure.core.model.record import Message
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Block, Finish, Lease, Release, Turn, TurnOutcome
from perdure.core.pinning import pinned_build, pinned_queue
from perdure.core.system import System
from perdure.core.time.duration import NEVER
from perdure.errors import (
    EngineClosed,
    InvalidId,
    PerdureError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UsageError,
)
from perdure.store.contract import Change, Store
from perdure.store.sql.reads import check_counters
from perdure.worker.run.workflow_run import WorkflowRun

if TYPE_CHECKING:
    from perdure.worker.worker import Worker


class Residents:
    """Parked runs by id, up to a limit, so that they go on without replay. The least recently used goes first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parked: OrderedDict[str, WorkflowRun] = OrderedDict()

    def __len__(self) -> int:
        return len(self._parked)

    def keep(self, held: WorkflowRun) -> None:
        """Keep a run that was parked, dropping another if there is no room."""
        self.forget(held.run.id)
        self._parked[held.run.id] = held
        while len(self._parked) > self._limit:
            self._parked.popitem(last=False)[1].drop()

    def take(self, claimed: ClaimedRun) -> WorkflowRun | None:
        """Return a parked run if this claim is the first since and its history has not changed."""
        run = claimed.run
        held = self._parked.pop(run.id, None)
        if held is None:
            return None
        if held.lease.token + 1 == run.token and held.run.attempt == run.attempt and held.last == claimed.last:
            return held
        held.drop()
        return None

    def forget(self, run_id: str) -> None:
        """Drop a run that was loaded from the database instead, because it was parked after another claim."""
        held = self._parked.pop(run_id, None)
        if held is not None:
            held.drop()

    def clear(self) -> None:
        """Drop all runs."""
        while self._parked:
            self._parked.popitem()[1].drop()


logger = logging.getLogger("perdure.worker")

#: One in so many claimed runs is chosen by age alone.
AGE_SHARE = 8
#: Queues times types from which on a claim chooses by age only once in so many times, and then so many times as many.
MANY_RANGES = 64
AGE_TURNS = 4
#: Where commits overlap, a claim takes a third of the slots or this many, whichever is more.
SMALLEST_SHARE = 32
#: Polls without a change after which a claim is made all the same.
UNASKED_POLLS = 20
#: Changes that concern a claimer.
_CONCERNS = Change.READY | Change.MARKED | Change.ENDED
#: Seconds for which a worker that gave a run away does not claim runs that have another home.
AVOID_RECLAIM = 2.0


#: Seconds for which free slots stay empty, at first and at most; and the pause after that, as a multiple.
SHORTEST_RESERVE = 5.0
LONGEST_RESERVE = 60.0
PAUSE_SHARE = 2.0


class Quarantine:
    """Decides when a worker claims suspects: runs that may have killed their workers are executed apart from others.

    A worker that holds nothing claims a group of suspects and nothing else until the group is gone, for at most a
    lease: a suspect that lives that long does no harm. Then it claims other runs for as long as the group took, so that
    neither starve. A worker that holds other runs leaves its free slots empty for a while, so that it can claim
    suspects; if that was in vain, for twice as long the next time.
    """

    def __init__(self, system: System, lease: float) -> None:
        self._system = system
        self._lease = lease
        #: Suspects that are held, and since when.
        self._suspects: frozenset[str] = frozenset()
        self._since = 0.0
        #: Time until which other runs are claimed.
        self._others_until = 0.0
        self._reserve = SHORTEST_RESERVE
        self._reserve_until = 0.0
        self._reserve_again = 0.0

    @property
    def is_due(self) -> bool:
        """True if suspects may be claimed now, if there are any."""
        return self._system.monotonic() >= self._others_until

    @property
    def reserves_slots(self) -> bool:
        """True if free slots stay empty, so that suspects can be claimed."""
        return self._system.monotonic() < self._reserve_until

    @property
    def ends_in(self) -> float:
        """Seconds after which free slots are filled again."""
        ends = self._since + self._lease if self._suspects else self._reserve_until
        left = ends - self._system.monotonic()
        return left if left > 0 else inf

    def note_claim(self, runs: Sequence[ClaimedRun]) -> None:
        """Note a claim. Suspects come in a claim of their own, and the claim itself is counted in `claims`."""
        suspects = frozenset(one.run.id for one in runs if one.run.claims > SUSPECT_AFTER)
        if suspects:
            self._suspects, self._since = suspects, self._system.monotonic()
            self._reserve, self._reserve_until, self._reserve_again = SHORTEST_RESERVE, 0.0, 0.0

    def is_active(self, holds: Callable[[str], bool]) -> bool:
        """True if suspects are held, beside which nothing may be claimed."""
        if not self._suspects:
            return False
        now = self._system.monotonic()
        if now < self._since + self._lease:
            self._suspects = frozenset(run_id for run_id in self._suspects if holds(run_id))
            if self._suspects:
                return True
        self._suspects = frozenset()
        self._others_until = now + (now - self._since)
        return False

    def reserve_slots(self) -> None:
        """Leave free slots empty for a while because suspects wait for a worker that holds nothing."""
        now = self._system.monotonic()
        if now < self._reserve_again or not self.is_due:
            return
        length = self._reserve * (0.75 + 0.5 * self._system.random())
        self._reserve_until = now + length
        self._reserve_again = self._reserve_until + PAUSE_SHARE * length
        self._reserve = min(LONGEST_RESERVE, 2 * self._reserve)


class Claimer:
    """Claims runs for one worker."""

    def __init__(self, store: Store, system: System, worker: Worker) -> None:
        self._store = store
        self._system = system
        self._worker = worker
        self._guard = LoopGuard("claimer", system, worker.health, logger)
        #: Time since which every round has failed; None while rounds succeed.
        self._failing_since: float | None = None
        self._alarm = Alarm(system)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        #: The task of a claimer that was told to stop; `stop` may be called again if it was cancelled.
        self._ended: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._hint = Change.NONE
        self._waiting = False
        self._claims = 0
        self._backoff = worker.settings.poll_backoff
        #: Pause before the next poll, in seconds.
        self._poll = self._backoff.first
        #: Earliest time to come for which other workers were told that a run waits.
        self._told_wake = 0
        #: Whether the last claim filled all the room that there was; None during a claim.
        self._full: bool | None = False
        #: Whether a slot was freed during a claim.
        self._freed = False
        #: Whether there are suspects, which only a worker without other runs may claim.
        self._suspects = False
        self._quarantine = Quarantine(system, worker.settings.lease)
        self.residents = Residents(worker.settings.resident)
        #: Time of the last claim, on the monotonic clock.
        self.claimed_at = 0.0
        #: Time at which the next waiting run becomes ready, as far as is known.
        self._next_wake = NEVER
        #: Time of the next reconciliation: once per lease, because a claim may arrive late.
        self._reconcile_at = 0.0
        self._avoid_reclaim_until = 0.0

    def start(self) -> None:
        """Start to claim. Calling it twice is harmless: a worker may be declared dead while it starts."""
        if self._task is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._store.subscribe(self._on_change)
        self._task = self._system.spawn(self._guard.keep_going(self._run, self._rest), "perdure claimer")

    async def stop(self) -> None:
        """Stop claiming. Waits for a claim that is under way, so that its runs are not stranded."""
        if self._unsubscribe is not None:
            self._unsubscribe()
        if self._task is not None:
            self._ended, self._task = self._task, None
        task = self._ended
        if task is not None:
            self._alarm.ring()
            await asyncio.wait([task])
            self._ended = None
            if not task.cancelled() and task.exception() is not None:
                logger.error("claiming ended early", exc_info=task.exception())

    @property
    def quiet(self) -> bool:
        """True if the claimer is only waiting."""
        return self._waiting and self._hint is Change.NONE

    def slot_freed(self) -> None:
        """Note that a slot is free. All runs of one batch wake the claimer once."""
        if self._full is None:
            # The answer to the claim tells whether there is more to claim.
            self._freed = True
        elif self._full or self._worker.gatekeeper.has_reports or (self._suspects and self._worker.holds_nothing):
            self._alarm.ring()

    def wake(self) -> None:
        """Note that there is a report to send with the next admission request."""
        self._alarm.ring()

    def note_wake_time(self, time: int) -> None:
        """Note that a run waits for that time. Only the earliest time matters."""
        if time < self._next_wake:
            self._next_wake = time
            self._alarm.ring()
        if self._store.announces:
            self._tell_wake_time(time)

    def _tell_wake_time(self, time: int) -> None:
        """Make idle workers, which may sleep for long, look for the time of a run that waits.

        They look again at the earliest time, so that later ones need not be told.
        """
        now = self._store.clock()
        if time < now + int(self._backoff.longest * 1e6) and not now < self._told_wake <= time:
            self._told_wake = time
            self._store.announce(Change.READY)

    def _on_change(self, change: Change) -> None:
        # Called from the thread that wrote. The end of a run makes nothing ready.
        if change & _CONCERNS and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notified, change)

    def _notified(self, change: Change) -> None:
        self._hint |= change
        if change & Change.ENDED:
            self._reconcile_at = 0.0
        self._alarm.ring()

    async def _run(self) -> None:
        while self._task is not None:
            hint, self._hint = self._hint, Change.NONE
            self._alarm.forget()
            wait = await self._round(hint)
            if self._failing_since is not None:
                self._failing_since = None
                self._guard.succeeded()
                self._worker.claim_succeeded()
            if wait > 0:
                self._waiting = True
                await self._idle(wait)
                self._waiting = False

    @property
    def failing_for(self) -> float:
        """Seconds since claims began to fail; 0 while they succeed."""
        return 0.0 if self._failing_since is None else self._system.monotonic() - self._failing_since

    async def _rest(self, seconds: float) -> None:
        """Pause after an error, whatever is notified meanwhile.

        Afterwards everything is examined that the failed round may have missed.
        """
        now = self._system.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        self._worker.claims_failed(now - self._failing_since)
        self._waiting = True
        while self._task is not None and (left := now + seconds - self._system.monotonic()) > 0:
            await self._alarm.wait(left)
        self._waiting = False
        self._hint |= Change.ALL
        self._reconcile_at = 0.0  # the lost answer may have given us runs

    async def _idle(self, longest: float) -> None:
        """Wait for a notification, for a write of another connection, or for `longest` seconds."""
        until = self._system.monotonic() + longest
        longest_poll = self._longest_poll
        while self._task is not None and self._hint is Change.NONE:
            left = until - self._system.monotonic()
            pause = min(self._poll, longest_poll) * (0.8 + 0.4 * self._system.random())
            if left <= 0 or await self._alarm.wait(min(left, pause)):
                return
            try:
                changed = await self._store.poll_changes()
            except StoreError:
                changed = True
            if changed:
                self._hint |= Change.ALL
            # Grows on every poll: some stores cannot tell and always report a change. A claimed run resets it.
            longest_poll = self._longest_poll
            self._poll = self._backoff.after_nothing(min(self._poll, longest_poll), longest_poll)

    @property
    def _longest_poll(self) -> float:
        """Longest pause between two polls, in seconds.

        A worker that holds runs polls their inboxes. One that serves limits polls for room, which not every commit
        announces.
        """
        given = self._worker.settings.poll_interval
        longest = self._store.poll_interval if given is None else given
        return max(longest, self._backoff.longest) if self._relies_on_notifications else longest

    @property
    def _relies_on_notifications(self) -> bool:
        worker = self._worker
        return (
            worker.holds_nothing and not self._suspects and not worker.gatekeeper.has_work and self._store.is_notified
        )

    @property
    def _longest_wait(self) -> float:
        """Longest time between two rounds, in seconds."""
        if self._relies_on_notifications:
            return max(0.0, min(self._backoff.longest, self._reconcile_at - self._system.monotonic()))
        return self._store.poll_interval * UNASKED_POLLS

    async def _round(self, hint: Change) -> float:
        """Deliver messages to held runs and claim into free slots; return the seconds to wait before the next round."""
        if hint & Change.MARKED and not self._worker.holds_nothing:
            await self._deliver()
        if self._system.monotonic() >= self._reconcile_at:
            self._reconcile_at = self._system.monotonic() + self._worker.settings.lease
            await self._reconcile()
            await self._worker.gatekeeper.refresh_waiting_types()
        room = self._room()
        gatekeeper = self._worker.gatekeeper
        if room <= 0:
            self._full = True
            return await self._stand_by(min(self._longest_wait, self._quarantine.ends_in))
        # Runs with limits and runs without share the room, so that neither takes all of it.
        share = (room + self._claims % 2) // 2 if gatekeeper.has_runs else room
        self._full, self._freed = None, False
        claimed = await self._claim_in_turn(share)
        self._full = len(claimed.runs) >= share > 0
        self._suspects = claimed.suspects
        if self._freed:
            self.slot_freed()
        self._next_wake = claimed.next_wake
        self.claimed_at = self._system.monotonic()
        if claimed.next_fire < NEVER:
            self._worker.scheduler.note_next_fire(claimed.next_fire)
        gatekeeper.set_limited(claimed.limited)
        if away := gatekeeper.take_misclaimed(claimed.runs):
            claimed = replace(claimed, runs=tuple(one for one in claimed.runs if one not in away))
            await self._give_back([one.lease for one in away])
        self._quarantine.note_claim(claimed.runs)
        await self.take_up(claimed.runs)
        if gatekeeper.has_work and not self._quarantined and (admitted := await self._admit(room - len(claimed.runs))):
            self._full |= len(claimed.runs) + len(admitted) >= room
        elif share == 0:
            return 0.0  # the one slot was reserved for runs with limits, and none was admitted
        if self._suspects:
            self._quarantine.reserve_slots()
        if claimed.runs or self._full:
            self._poll = self._backoff.after_work(self._poll)
            if self._full:
                return 0.0 if self._room() > 0 else self._longest_wait
        return max(0.0005, min(self._longest_wait, (self._next_wake - claimed.now) / 1e6))

    async def _stand_by(self, longest: float) -> float:
        """Admit steps although there is no room for runs; return the seconds to wait before the next round."""
        gatekeeper = self._worker.gatekeeper
        if not gatekeeper.has_steps and not gatekeeper.has_reports:
            return longest
        admitted = await gatekeeper.admit(
            self._worker.id, 0, alone=False, poison_after=self._worker.settings.poison_after
        )
        return max(0.0005, min(longest, (admitted.next_due - admitted.now) / 1e6))

    async def _admit(self, room: int) -> tuple[ClaimedRun, ...]:
        """Claim runs that their limits admit."""
        worker = self._worker
        alone = worker.holds_nothing and self._quarantine.is_due
        tell = self._system.telemetry.claimed
        began = 0.0 if tell is None else self._system.monotonic()
        admitted = await worker.gatekeeper.admit(
            worker.id, room, alone=alone, poison_after=worker.settings.poison_after
        )
        if tell is not None:
            tell(admitted.runs, room, admitted.now, self._system.monotonic() - began)
        self._suspects |= admitted.suspects
        self._quarantine.note_claim(admitted.runs)
        self._next_wake = min(self._next_wake, admitted.next_due)
        await self.take_up(admitted.runs)
        if admitted.runs:
            self._poll = self._backoff.after_work(self._poll)
        return admitted.runs

    @property
    def _avoids_reclaim(self) -> bool:
        return self._system.monotonic() < self._avoid_reclaim_until

    def _room(self) -> int:
        if self._quarantined or (self._quarantine.reserves_slots and not self._worker.holds_nothing):
            return 0
        free = self._worker.free_slots
        if self._store.lanes == 1 or (self._suspects and self._worker.holds_nothing):
            return free
        # Not all slots at once: while some runs are claimed, others are executed and others written.
        return min(free, max(SMALLEST_SHARE, self._worker.settings.slots // (2 if self._has_many_ranges else 3)))

    @property
    def _has_many_ranges(self) -> bool:
        """True if a claim reads so many ranges, one for each queue and type, that few large claims are better."""
        gatekeeper = self._worker.gatekeeper
        return len(gatekeeper.types) * len(gatekeeper.queues) > MANY_RANGES

    @property
    def _quarantined(self) -> bool:
        return self._quarantine.is_active(self._worker.knows)

    def avoid_reclaim(self) -> None:
        """Do not claim back a run that is about to go to another worker."""
        self._avoid_reclaim_until = self._system.monotonic() + self._worker.settings.grace + AVOID_RECLAIM

    async def _claim_in_turn(self, room: int) -> ClaimResult:
        """Claim suspects and other runs by turns, unless there are only suspects."""
        alone = self._worker.holds_nothing
        claimed = await self._claim(room, alone=alone and self._quarantine.is_due)
        if claimed.suspects and alone and not claimed.runs and room > 0:
            claimed = await self._claim(room, alone=True)
        return claimed

    async def _claim(self, room: int, *, alone: bool) -> ClaimResult:
        self._claims += 1
        by_age = room // AGE_SHARE or (1 if self._claims % AGE_SHARE == 0 else 0)
        if by_age > 1 and self._has_many_ranges:
            # Choosing by age reads all ranges again: the same share, in one claim of a few.
            by_age = AGE_TURNS * by_age if self._claims % AGE_TURNS == 0 else 0
        settings = self._worker.settings
        request = ClaimRequest(
            worker=self._worker.id,
            nonce=self._system.entropy(16).hex(),
            limit=room,
            by_age=by_age,
            types=self._worker.gatekeeper.types,
            queues=self._worker.gatekeeper.queues,
            alone=alone,
            poison_after=settings.poison_after,
            affinity=int(max(settings.affinity, AVOID_RECLAIM if self._avoids_reclaim else 0.0) * 1e6),
            build=self._worker.build,
        )
        tell = self._system.telemetry.claimed
        if tell is None:
            return await self._store.claim(request)
        began = self._system.monotonic()
        claimed = await self._store.claim(request)
        tell(claimed.runs, room, claimed.now, self._system.monotonic() - began)
        return claimed

    async def take_up(self, runs: tuple[ClaimedRun, ...]) -> None:
        """Hand claimed runs to the worker, with their histories. A run that cannot be loaded is blocked alone."""
        if self._worker.pinned:
            runs = await self._pin(runs)
        to_load: dict[str, ClaimedRun] = {}
        unread: list[tuple[WorkflowRun, ClaimedRun]] = []
        for claimed in runs:
            run = claimed.run
            if (key_error := self._worker.gatekeeper.key_error(run.id)) is not None:
                self.residents.forget(run.id)
                await self._refuse(claimed, key_error)
                continue
            try:
                check_counters(run)
                resident = self.residents.take(claimed)
                if resident is not None and run.inbox_seq > run.inbox_read:
                    unread.append((resident, claimed))
                elif resident is not None:
                    self._worker.continue_parked(resident, claimed)
                elif claimed.last < 0 and run.inbox_seq == run.inbox_read:
                    self._worker.begin(claimed, (), ())
                else:
                    to_load[run.id] = claimed
            except Exception as error:
                await self._block(claimed.lease, error)
        if to_load:
            for loaded in await self._load(list(to_load.values())):
                claimed = to_load[loaded.run.id]
                try:
                    self.residents.forget(loaded.run.id)
                    self._worker.begin(claimed, loaded.records, loaded.inbox)
                except Exception as error:
                    await self._block(claimed.lease, error)
        if unread:
            await self._continue_with_messages(unread)

    async def _pin(self, runs: tuple[ClaimedRun, ...]) -> tuple[ClaimedRun, ...]:
        """Pin runs that begin here to this build, before anything of them is executed; return those still held."""
        pinned, build = self._worker.pinned, self._worker.build
        # A run with a history was begun by another build before its type was pinned, or was unpinned.
        new = [one for one in runs if one.fresh and one.run.type in pinned and not pinned_build(one.run.queue)]
        kept: dict[str, bool] = {}
        for one in new:
            try:
                pinned_queue(one.run.queue, build)
            except UsageError as error:
                await self._block(one.lease, error)
                kept[one.run.id] = False
        leases = [one.lease for one in new if one.run.id not in kept]
        while leases:
            try:
                answers = await self._store.pin(leases, build, self._worker.id)
            except (StoreUnavailable, StoreFull, StoreReadOnly) as error:
                await self._system.sleep(self._guard.failed(error))
            else:
                kept |= {lease.run_id: answer for lease, answer in zip(leases, answers, strict=True)}
                break
        return tuple(_pinned(one, build) if kept.get(one.run.id) else one for one in runs if kept.get(one.run.id, True))

    async def _continue_with_messages(self, parked: list[tuple[WorkflowRun, ClaimedRun]]) -> None:
        """Continue runs that stayed in memory, together with their messages.

        A message wins over a timer that is due, as in a run that is loaded.
        """
        messages: Sequence[Message] | None = ()
        broken: list[tuple[Lease, Exception]] = []
        try:
            messages = await self._unread([claimed.run.id for _, claimed in parked])
        finally:
            for held, claimed in parked:
                try:
                    self._worker.continue_parked(held, claimed)
                except Exception as error:
                    broken.append((claimed.lease, error))
        for lease, failure in broken:
            await self._block(lease, failure)
        if messages is None:
            await self._deliver_one_by_one()
        else:
            self._worker.deliver(messages)

    async def _unread(self, run_ids: list[str]) -> Sequence[Message] | None:
        """Messages of runs that were just claimed; None if one of them cannot be read."""
        while True:
            try:
                return await self._store.unread_messages(run_ids)
            except StoreCorrupt:
                return None
            except (StoreUnavailable, StoreFull, StoreReadOnly) as error:
                await self._system.sleep(self._guard.failed(error))

    async def _load(self, claimed: list[ClaimedRun]) -> list[LoadedRun]:
        while True:
            try:
                return await self._store.load([one.run.id for one in claimed])
            except (StoreUnavailable, StoreFull, StoreReadOnly) as error:
                await self._system.sleep(self._guard.failed(error))
            except EngineClosed:
                raise
            except Exception as error:
                if len(claimed) == 1:
                    await self._block(claimed[0].lease, error)
                    return []
                return [loaded for one in claimed for loaded in await self._load([one])]

    async def _deliver(self) -> None:
        """Deliver messages to held runs. A run whose inbox cannot be read is blocked alone."""
        try:
            marked = await self._store.unread_messages_of_worker(self._worker.id)
        except StoreCorrupt:
            await self._deliver_one_by_one()
            return
        if marked:
            self._poll = self._backoff.after_work(self._poll)
        self._worker.deliver(marked)

    async def _deliver_one_by_one(self) -> None:
        for lease in await self._store.leases(self._worker.id):
            try:
                self._worker.deliver(await self._store.inbox(lease.run_id, 0))
            except StoreCorrupt as error:
                self._worker.forget(lease.run_id)
                await self._block(lease, error)

    async def _refuse(self, claimed: ClaimedRun, error: Exception) -> None:
        """Fail or block a run that was claimed and may not be executed, because of its limit's key or weight."""
        run, failure = claimed.run, Failure.of(error, Codec())
        after: Finish | Block
        if isinstance(error, InvalidId):
            logger.error("run %s (%s) fails: %s", run.id, run.type, error)
            after = Finish(Status.FAILED, replace(failure, given_up="fatal").to_json())
        else:
            logger.error(
                "run %s is blocked: the key or weight of its limit cannot be computed: %s",
                run.id,
                error,
                exc_info=error,
            )
            after = Block(Reason.BROKEN, failure.to_json())
        if TurnOutcome.BUSY in await self._store.commit([Turn(lease=claimed.lease, next=after)], self._worker.id):
            # The run is given back, and is claimed again.
            self._reconcile_at = 0.0
        else:
            self._worker.gatekeeper.ended(run.id, after)

    async def _block(self, lease: Lease, error: Exception) -> None:
        """Block a run that was claimed and cannot be executed."""
        known = isinstance(error, PerdureError)
        logger.error("run %s is blocked: %s", lease.run_id, error, exc_info=None if known else error)
        block = Block(Reason.UNDECODABLE, Failure.of(error, Codec()).to_json())
        if TurnOutcome.BUSY in await self._store.commit([Turn(lease=lease, next=block)], self._worker.id):
            self._reconcile_at = 0.0

    async def _reconcile(self) -> None:
        """Give back runs that the database assigns to this worker and that it does not know, and drop the converse.

        The answer to a claim was lost, or a claim was repeated and both took effect. A run that the worker holds and
        the database does not assign to it was terminated.
        """
        held = self._worker.stable_leases()
        leases = await self._store.leases(self._worker.id)
        if held - set(leases):
            await self._drop_lost(held - set(leases))
        unknown = [lease for lease in leases if not self._worker.knows(lease.run_id)]
        if unknown:
            logger.warning("giving back %d runs of a claim whose answer was lost", len(unknown))
            await self._give_back(unknown)

    async def _drop_lost(self, leases: set[Lease]) -> None:
        """Let go of runs whose leases are gone. Each is read again: a replica may not have had the claim yet."""
        current = await self._store.get_many([lease.run_id for lease in leases])
        held = {Lease(run.id, run.token, run.nonce) for run in current if run.status is Status.RUNNING}
        for lease in leases - held:
            asyncio.get_running_loop().call_soon(self._worker.lose, lease)

    async def _give_back(self, leases: list[Lease]) -> None:
        """Give back runs. Busy ones are given back by the next reconciliation, which is soon then."""
        turns = [Turn(lease=lease, next=Release()) for lease in leases]
        if TurnOutcome.BUSY in await self._store.commit(turns, self._worker.id):
            self._reconcile_at = 0.0


def _pinned(claimed: ClaimedRun, build: str) -> ClaimedRun:
    """Return a claimed run as its pin left it."""
    return replace(claimed, run=replace(claimed.run, queue=pinned_queue(claimed.run.queue, build)))
