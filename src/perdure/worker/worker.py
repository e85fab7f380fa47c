"""The worker: claims runs into free slots, keeps its lease, and gives runs back in order.

A worker has *lives*, each with a fresh random id. A worker that finds itself declared dead drops all of its runs and
begins another life.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.core.codec.codec import Codec
from perdure.core.codec.failure import ErrorTypes
from perdure.core.ids import uuid7
from perdure.core.middleware import NO_LAYERS, Layers
from perdure.core.model.claim import ClaimedRun
from perdure.core.model.record import Message, Record
from perdure.core.model.run import NO_OPTIONS, Reason
from perdure.core.model.turn import Lease, NextState, Park, RetryLater
from perdure.core.model.worker_info import DrainOrder, RunningStep, WorkerInfo, steps_to_json
from perdure.core.routing import PYTHON, SHARED, TypeInfo, matches
from perdure.core.system import LoopTrace, System
from perdure.errors import EngineClosed
from perdure.replay.run_loop import DrainContext
from perdure.store.contract import Change, Store
from perdure.worker.batched_calls import ClockReading, RunStarts, StepResults
from perdure.worker.claiming.claimer import Claimer
from perdure.worker.claiming.inbox_reader import InboxReader
from perdure.worker.claiming.pushed_runs import PushExecutor
from perdure.worker.commit.attempt_log import AttemptLog
from perdure.worker.commit.hooks import HookCaller
from perdure.worker.commit.journal import Journal
from perdure.worker.heartbeat import Heartbeat
from perdure.worker.limits.gatekeeper import Gatekeeper
from perdure.worker.loop_watch import LoopWatch
from perdure.worker.options import WorkerSettings
from perdure.worker.run.activity_run import ActivityRun, read_earlier_attempts
from perdure.worker.run.held_run import HeldRun, Stage
from perdure.worker.run.interrupted_steps import read_interruptions
from perdure.worker.run.packing import HistoryPacking
from perdure.worker.run.pause_and_evict import relocate
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.worker.run_log import RunLog
from perdure.worker.scheduler import Scheduler
from perdure.worker.services import Services
from perdure.worker.signals import work_until_signalled
from perdure.worker.sources import SourceRegistration
from perdure.worker.steps.emit import EmitBuffer
from perdure.worker.steps.middleware_attempt import attempt_makers
from perdure.worker.steps.threads import StepThreads
from perdure.worker.sweeper import Sweeper, singleton_freed_by, start_successors
from perdure.worker.tracing import WorkerTracing, traced_makers
from perdure.worker.unserved_children import UnservedChildren
from perdure.worker.workflow_guard import install_audit_hook, io_guard
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Definition, Workflow

logger = logging.getLogger("perdure.worker")

#: Longest time that a worker stays away after it has drained, in seconds.
LONGEST_AWAY = 600.0

#: Attempts that have been under way for this many microseconds are reported with the heartbeat.
LONG = 1_000_000

#: Reasons for which a run is blocked that another version of its code may remove.
_CURED_BY_CODE = (Reason.DIVERGED, Reason.UNDECODABLE, Reason.BROKEN)
#: States with a time at which the run is due again. Building the tuple at each check would be slower than the check.
_COMES_BACK = (RetryLater, Park)


class Worker:
    """Executes the runs of some workflows. Use it as an async context manager, or `start` and `stop` it."""

    #: Id of the worker's current life; empty before the first.
    id = ""
    #: Whether the worker lets go of its runs and begins nothing: it was stopped, or it drains.
    stopping = False
    _stopped = False
    #: Whether the database was replaced since this life began.
    _replaced = False
    _draining: asyncio.Task[None] | None = None
    _obeying: asyncio.Task[None] | None = None
    _rebirth: asyncio.Task[None] | None = None
    _emptied: asyncio.Future[None] | None = None
    #: Ends the worker after the caller of `stop` was cancelled.
    _giving_back: asyncio.Task[None] | None = None
    _heartbeat: Heartbeat | None = None
    _loop_watch: LoopWatch | None = None
    _unsubscribe: Callable[[], None] | None = None

    def __init__(
        self,
        store: Store,
        workflows: Mapping[str, Definition[Any, Any]],
        *,
        system: System,
        codec: Codec,
        errors: ErrorTypes,
        settings: WorkerSettings,
        hook_caller: HookCaller | None = None,
        where: str = "its database",
        build: str = "",
        pinned: frozenset[str] = frozenset(),
        registers_sources: bool = True,
        layers: Layers = NO_LAYERS,
        tracing: WorkerTracing | None = None,
    ) -> None:
        """`where`: the database in the log, without a password. `build`: version of the code.

        `pinned`: types whose runs are pinned to the build that begins them. `layers`: middleware. `tracing`: makes
        spans.
        """
        self._tracing = tracing
        self.build, self._where = build, where
        self.settings = settings
        self.pinned = pinned
        #: Errors of the background loops.
        self.health = LoopHealth()
        self._guard_tasks = LoopGuard("task", system, self.health, logger)
        #: Set when an operator orders the worker to drain; the task stops it then.
        self.ordered_to_drain = asyncio.Event()
        #: Seconds to stay away after draining; doubles while that does not help.
        self._stay_away = settings.lease
        self._store, self._system, self._workflows = store, system, workflows
        self._unserved_children = UnservedChildren(system, store, workflows)
        self._hook_caller = hook_caller
        attempt_log = AttemptLog(None if hook_caller is None else hook_caller.queue_failures, lambda: self.id)
        self._journal = Journal(store, system, lambda: self.id, self._read_clock, self.health, attempt_log)
        self._threads = StepThreads(settings.abandoned_threads, settings.step_processes)
        self.executor = PushExecutor(store, system, self)
        self._claimer = Claimer(store, system, self)
        self.gatekeeper = Gatekeeper(store, system, codec, workflows, settings.queues, self._claimer.wake, build)
        self._services = self._make_services(codec, errors, layers)
        self._held: dict[str, HeldRun] = {}
        #: Held runs whose outcome is being written.
        self._ending: set[HeldRun] = set()
        self._run_starts = RunStarts(self._read_clock, in_parts=store.lanes > 1)
        self.scheduler = Scheduler(store, system, lambda: self.id, self.health)
        self._sweeper = Sweeper(
            *(store, system, settings.lease),
            lambda: self.scheduler.query_if_stale(self._claimer.claimed_at),
            *(self.health, settings.retention),
        )
        self._run_log = self._keep_log() if settings.keep_log else None
        self._run_tasks: set[asyncio.Task[None]] = set()
        self._inbox_reader = InboxReader(store, system, self._spawn_for_run, self.health)
        self._sources = SourceRegistration(
            store, system, self.health, workflows.values() if registers_sources else (), build
        )

    def _make_services(self, codec: Codec, errors: ErrorTypes, layers: Layers) -> Services:
        return Services(
            system=self._system,
            store=self._store,
            actor=lambda: self.id,
            read_clock=self._read_clock,
            journal=self._journal,
            results=StepResults(self._system, self._read_clock, self._journal, LoopTrace(self._system.monotonic)),
            emit_buffer=EmitBuffer(codec),
            threads=self._threads,
            gatekeeper=self.gatekeeper,
            codec=codec,
            errors=errors,
            settings=self.settings,
            owner=self,
            credentials=self.executor.credentials,
            unserved_children=self._unserved_children,
            attempts=attempt_makers(layers) if self._tracing is None else traced_makers(layers),
            layers=layers,
            guard=self.settings.guard or (io_guard() if self.settings.watch_io else None),
        )

    async def __aenter__(self) -> Worker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # lives

    async def start(self) -> None:
        """Start to work."""
        if self._services.guard is not None:
            install_audit_hook()
        self._services.emit_buffer.begin()
        await self._begin_life()
        # Before anything is written: a hung client may hold a lock, and perhaps no other worker breaks it.
        self._sweeper.start()
        # A deploy may have brought the code that these runs need; those that still do not fit are blocked again.
        try:
            await self._store.unblock(tuple(self._workflows), _CURED_BY_CODE, self.id)
        except BaseException:
            # A worker that did not start is never stopped, and its heartbeat would make others believe that it works.
            await self._sweeper.stop()
            if self._heartbeat is not None:
                await self._heartbeat.stop()
            raise
        self._unsubscribe = self._store.subscribe(partial(self._on_change, asyncio.get_running_loop()))
        if self._hook_caller is not None:
            self._hook_caller.start(self)
        if self._run_log is not None:
            self._run_log.start()
        self.scheduler.start()
        self._begin_to_claim()
        if (tell := self._system.telemetry.worker_started) is not None:
            tell(self)
        if self.settings.warn_blocked:
            self._loop_watch = LoopWatch(
                *(self._system, self.settings.warn_blocked, lambda: self.id),
                self._services.results.trace,
                lambda: [one for held in list(self._held.values()) for one in held.attempts_under_way()],
                lambda: self.holds_nothing,
            )
            self._loop_watch.start()
        self._log_start()

    def _keep_log(self) -> RunLog:
        return RunLog(
            *(self._store, self._system, self.health, self.settings.keep_log),
            actor=lambda: self.id,
            holds=lambda run_id: run_id in self._held,
        )

    def _begin_to_claim(self) -> None:
        self._claimer.start()
        self._sources.start(self.id)

    def _log_start(self) -> None:
        settings = self.settings
        logger.info(
            "worker %s has started on %s as process %d: types %s; queues %s; %d slots; lease %g s",
            *(self.id, self._where, os.getpid(), _listed(sorted(self._workflows)), _listed(settings.queues)),
            *(settings.slots, settings.lease),
            extra={"worker": self.id},
        )

    async def _begin_life(self) -> None:
        fresh, given = uuid7(self._system.now(), self._system.entropy(10)), self.settings.worker_id
        # Two lives must never have the same id, even if two processes are given the same.
        self.id = fresh if given is None else f"{given}.{fresh}"
        self._replaced = False
        # Turns of the previous life must not be written under the id of this one.
        self._journal.forget()
        elsewhere = await self._store.register(
            WorkerInfo(
                id=self.id,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=self.settings.queues,
                types=tuple(sorted(self._workflows)),
                slots=self.settings.slots,
                lease=int(self.settings.lease * 1e6),
                build=self.build,
            ),
            [type_info(workflow, self.settings.shared) for workflow in self._workflows.values()],
        )
        self.gatekeeper.set_elsewhere(elsewhere)
        if elsewhere:
            logger.warning(
                "worker %s claims no runs of %s, which belong to workers of another runtime; see `perdure queues "
                "types`, and share them by name: shared=[...]",
                *(self.id, _listed(elsewhere)),
                extra={"worker": self.id},
            )
        self._heartbeat = Heartbeat(
            self._store,
            self._system,
            self.id,
            lease=self.settings.lease,
            stall_limit=self.settings.stall_limit,
            health=self.health,
            on_dead=self.declared_dead,
            on_drain=self.drain_ordered,
            running=lambda: steps_to_json(self.running_steps(), self._journal.commit_p99()),
        )
        self._heartbeat.start()

    def running_steps(self, least: int = LONG) -> list[RunningStep]:
        """Return the attempts that have been under way for at least so many microseconds. Called from any thread."""
        now, monotonic = self._store.clock(), self._system.monotonic()
        # Copied in one go: the main loop changes it meanwhile.
        return [
            RunningStep(
                run_id=held.run.id,
                type=held.run.type,
                location=attempt.operation.location,
                attempt=attempt.number,
                since=attempt.started_at,
                token=held.lease.token,
                heartbeat_at=attempt.heartbeat_at(now, monotonic),
            )
            for held in list(self._held.values())
            for attempt in held.attempts_under_way()
            if now - attempt.started_at >= least
        ]

    def _on_change(self, loop: asyncio.AbstractEventLoop, change: Change) -> None:
        # Called from any thread.
        if change & Change.REPLACED:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._database_replaced)

    def _database_replaced(self) -> None:
        """Begin a new life: what this one holds may follow from commits that are lost."""
        self._replaced = True
        self.drop_everything()
        self._claimer.residents.clear()
        self._give_up_waiting()
        self.declared_dead()

    def declared_dead(self) -> None:
        """Begin a new life: this one was declared dead, and others have its runs."""
        if not self.stopping and (self._rebirth is None or self._rebirth.done()):
            self._rebirth = self._system.spawn(self._begin_again(), "perdure rebirth")

    async def _begin_again(self) -> None:
        cause = "outlived its database server" if self._replaced else "was declared dead"
        logger.warning("worker %s %s; it drops %d runs and begins a new life", self.id, cause, len(self._held))
        await self._claimer.stop()
        self.drop_everything()
        self._claimer.residents.clear()
        self.gatekeeper.forget()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        former, guard = self.id, LoopGuard("new life", self._system, self.health, logger)
        if self._replaced:
            # In the new database it still has a lease, which would keep its runs from others.
            await guard.keep_going(lambda: self._store.retire(former))
        if await self._is_ordered_to_drain(guard):
            return
        await guard.keep_going(self._begin_life)
        self._begin_to_claim()

    async def ensure_alive(self) -> None:
        """Make sure that the lease allows new work: the process may have been suspended.

        Raises `EngineClosed` once the worker stops.
        """
        if self.stopping:
            raise EngineClosed("this worker was stopped; nothing more can be executed by it")
        if self._rebirth is not None and not self._rebirth.done():
            await asyncio.wait([self._rebirth])
        if self._heartbeat is not None and not self._heartbeat.is_safe():
            await self._heartbeat.renew()

    # draining

    def claim_succeeded(self) -> None:
        """Note that a claim has succeeded after others had failed."""
        self.health.problem = ""
        self._stay_away = self.settings.lease

    def claims_failed(self, seconds: float) -> None:
        """Note that claims have failed for so long. After a lease the worker drains, if its heartbeat still works."""
        is_away = self._heartbeat is None or not self._heartbeat.is_safe()
        if seconds >= self.settings.lease and not (is_away or self.stopping or self._draining is not None):
            self._draining = self._system.spawn(self._drain(seconds), "perdure draining")

    async def _drain(self, seconds: float) -> None:
        """Let go of every run, sign off, and begin a new life after a while."""
        self.stopping = True
        self.health.problem = f"draining: no claim has succeeded for {seconds:.0f} s; {self.health.latest}"
        logger.critical("worker %s is %s", self.id, self.health.problem)
        guard = LoopGuard("draining", self._system, self.health, logger)
        await self._claimer.stop()
        await guard.keep_going(self._report_health)
        await self._let_finish(self.settings.grace)
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        self.drop_everything()
        self.gatekeeper.forget()
        self.health.problem = self.health.problem.replace("draining", "drained", 1)
        await guard.keep_going(self._report_health)
        await guard.keep_going(lambda: self._store.retire(self.id))
        logger.critical("worker %s is empty and has signed off; it tries again in %.0f s", self.id, self._stay_away)
        await self._system.sleep(self._stay_away)
        self._stay_away = min(2 * self._stay_away, LONGEST_AWAY)
        if await self._is_ordered_to_drain(guard):
            return
        await guard.keep_going(self._begin_life)
        self.stopping, self._draining = False, None
        self._begin_to_claim()

    def drain_ordered(self) -> None:
        """Stop in order, because an operator ordered this worker to drain. The process may then end."""
        if not self._stopped and self._obeying is None:
            self._obeying = self._system.spawn(self._obey(), "perdure drain order")

    async def _obey(self) -> None:
        guard = LoopGuard("drain order", self._system, self.health, logger)
        order = await guard.keep_going(self._read_order) or DrainOrder(key="")
        self.health.problem = f"drains, by order of {order.actor or 'an operator'}"
        logger.warning(
            "worker %s is ordered to drain by %s%s; it claims no more runs and stops",
            *(self.id, order.actor or "an operator", f" ({order.reason})" if order.reason else ""),
            extra={"worker": self.id},
        )
        self.ordered_to_drain.set()
        await self.stop(order.grace)

    async def _read_order(self) -> DrainOrder | None:
        return next((one.drain for one in await self._store.workers() if one.id == self.id), None)

    async def _is_ordered_to_drain(self, guard: LoopGuard) -> bool:
        """Obey an order that the life that has ended did not see; it holds for the process, whatever its id."""
        if await guard.keep_going(self._read_order) is None:
            return False
        self.drain_ordered()
        return True

    async def _report_health(self) -> None:
        await self._store.report_health(self.id, self.health.total, self.health.problem or self.health.latest)

    def drop_everything(self) -> None:
        """Let go of every run, writing nothing."""
        for held in list(self._held.values()):
            held.drop()
        self._held.clear()
        self._ending.clear()
        self.executor.release_all()

    def _pass_crash_point(self, name: str) -> None:
        if self._system.crash_point is not None:
            self._system.crash_point(name)

    async def stop(self, grace: float | None = None) -> None:
        """Stop claiming, let steps finish for at most `grace` seconds, then give back what is left.

        If the caller is cancelled, what is left is given back at once, in a task.
        """
        if self._stopped:
            # An order to drain, or a call that was cancelled, has begun it.
            for begun in (self._obeying, self._giving_back):
                if begun is not None and begun is not asyncio.current_task():
                    await asyncio.wait([begun])
            return
        self._stopped = self.stopping = True
        logger.info("worker %s stops", self.id, extra={"worker": self.id})
        try:
            await self._end(self.settings.grace if grace is None else grace)
        except asyncio.CancelledError:
            # Otherwise its heartbeat would keep its runs from others for as long as the process lives.
            self._giving_back = self._system.spawn(self._end(0), "perdure stop")
            raise

    async def _end(self, grace: float) -> None:
        """End all that goes on. May be called again after it was cancelled."""
        self._pass_crash_point("shutdown.begin")
        for task in (self._rebirth, self._draining, self._obeying):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        if self._unsubscribe is not None:
            self._unsubscribe()
        self._unserved_children.stop()
        await self._claimer.stop()
        await self.scheduler.stop()
        await self._sweeper.stop()
        await self._let_finish(grace)
        self._pass_crash_point("shutdown.released")
        for task in list(self._run_tasks):
            task.cancel()
        if self._loop_watch is not None:
            await self._loop_watch.stop()
        if self._heartbeat is not None:
            await self._heartbeat.stop()
        self.drop_everything()
        self._claimer.residents.clear()
        self._threads.processes.close()
        if self._run_log is not None:
            await self._run_log.stop()
        try:
            await self.gatekeeper.report(self.id)
            await self._store.retire(self.id)
        except Exception as error:
            logger.warning(
                "worker %s could not sign off; its runs go to others when its lease ends: %s", self.id, error
            )
        else:
            await self._sources.finish(self.id)
        if self._hook_caller is not None:
            await self._hook_caller.stop(self)
        if (tell := self._system.telemetry.worker_stopped) is not None:
            tell(self)
        logger.info("worker %s has stopped", self.id, extra={"worker": self.id})

    async def run_until_signalled(self) -> None:
        """Start, work until SIGTERM, SIGINT, an order to drain or cancellation, then stop.

        A second signal does not wait for steps.
        """
        await work_until_signalled(self, self._system)

    def abandon(self) -> None:
        """End without writing to the database."""
        if self._giving_back is not None:
            self._giving_back.cancel()
        if self._run_log is not None:
            self._run_log.detach()
        self.drop_everything()
        self._threads.processes.close()

    async def _let_finish(self, grace: float) -> None:
        for held in list(self._held.values()):
            held.settle(self._read_clock())
        until = self._system.monotonic() + grace
        timer = self._system.call_later(grace, self.release_rest)
        speaker = _Speaker(self._system, lambda: self._log_waits(until))
        # After the release only the database can delay the end of a run; that wait is bounded.
        limit = self._system.call_later(grace + self.settings.lease, self._give_up_waiting)
        try:
            if self._held:
                self._emptied = asyncio.get_running_loop().create_future()
                await self._emptied
        finally:
            timer.cancel()
            limit.cancel()
            speaker.stop()

    def _log_waits(self, until: float) -> None:
        """Log what the worker waits for before it can stop."""
        if not self._held:
            return
        left, now = until - self._system.monotonic(), self._store.clock()
        steps = sorted(self.running_steps(0), key=lambda step: step.since)
        named = [f"{one.location} of run {one.run_id} for {(now - one.since) / 1e6:.0f} s" for one in steps]
        logger.info(
            "worker %s waits %s for %d run(s); under way: %s",
            self.id,
            f"at most {left:.0f} s" if left > 0 else "until the database has answered",
            len(self._held),
            _listed(named) if named else "no steps",
            extra={"worker": self.id},
        )

    def release_rest(self) -> None:
        """Give back every run as it is."""
        if self._held:
            logger.warning(
                "worker %s gives %d run(s) back unfinished: %s",
                *(self.id, len(self._held), _listed(list(self._held))),
                extra={"worker": self.id},
            )
        for held in list(self._held.values()):
            held.release()

    def _give_up_waiting(self) -> None:
        if self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    # claiming

    @property
    def free_slots(self) -> int:
        """Number of runs that may be claimed."""
        if self._threads.clogged or not self.settings.claims:
            return 0
        # A run whose outcome is being written needs no slot, so the next one is claimed meanwhile. Not more than there
        # are slots, lest they pile up while nothing can be written.
        return self.settings.slots - len(self._held) + min(self.settings.slots, len(self._ending))

    @property
    def claims_failing_for(self) -> float:
        """Seconds since claims began to fail; 0 while they succeed. A worker that has signed off has not succeeded."""
        return self._claimer.failing_for

    @property
    def now(self) -> int:
        """Time of the database, in microseconds."""
        return self._store.clock()

    @property
    def held_runs(self) -> int:
        """Number of runs that are held."""
        return len(self._held)

    @property
    def holds_nothing(self) -> bool:
        """True if no run is held."""
        return not self._held

    @property
    def types(self) -> tuple[str, ...]:
        """Types of runs that the worker has code for, and that do not belong to another runtime."""
        return self.gatekeeper.served

    def holds(self, run_id: str) -> bool:
        """True if the worker holds that run."""
        return run_id in self._held

    def release(self, run_id: str) -> None:
        """Give a run back as it is, if it is held."""
        if (held := self._held.get(run_id)) is not None:
            held.release()

    async def take_up(self, claimed: ClaimedRun) -> None:
        """Load a run that was claimed by its id, and execute it."""
        await self._claimer.take_up((claimed,))

    def knows(self, run_id: str) -> bool:
        """True if the worker holds that run or is about to."""
        return run_id in self._held or self.executor.is_claiming(run_id)

    def stable_leases(self) -> set[Lease]:
        """Leases of the held runs that write nothing at the moment, so that only others can end them."""
        return {held.lease for held in self._held.values() if held.is_stable}

    def lose(self, lease: Lease) -> None:
        """Let go of a run whose lease was taken away, if it is still held under it. From a plain callback."""
        held = self._held.get(lease.run_id)
        if held is not None and held.lease == lease and held.is_stable:
            held.lose("its lease was taken away")

    def begin(self, claimed: ClaimedRun, records: tuple[Record, ...], inbox: Sequence[Message]) -> None:
        """Execute a claimed run whose history was loaded."""
        definition = self._workflows[claimed.run.type]
        if isinstance(definition, Workflow):
            held: HeldRun = WorkflowRun(claimed, definition, records, self._services)
        else:
            assert isinstance(definition, Activity)
            held = ActivityRun(claimed, definition, records, self._services)
        if self._tracing is not None:
            self._tracing.begin(held)
        self._hold(held)
        if inbox:
            held.receive(inbox)
        self._run_starts.add(held)

    def continue_parked(self, held: WorkflowRun, claimed: ClaimedRun) -> None:
        """Go on with a run that stayed in memory."""
        if self._tracing is not None:
            self._tracing.resume(held, claimed.run)
        self._hold(held)
        asyncio.get_running_loop().call_soon(held.resume, claimed)

    def _hold(self, held: HeldRun) -> None:
        # The answer to the turn that gave the run back may be outstanding; its lease ended with this claim.
        before = self._held.get(held.run.id)
        if before is not None:
            before.drop()
            self._ending.discard(before)
        self._held[held.run.id] = held
        if self._loop_watch is not None and self._loop_watch.is_resting:
            self._loop_watch.wake()

    def deliver(self, messages: Iterable[Message]) -> None:
        """Hand inbox entries to their runs."""
        by_run: dict[str, list[Message]] = {}
        for message in messages:
            by_run.setdefault(message.run_id, []).append(message)
        loop = asyncio.get_running_loop()
        for run_id, entries in by_run.items():
            held = self._held.get(run_id)
            # Entries that a run took in stay unread until its turn is committed; after a full page there may be more.
            if held is not None and (entries[-1].seq > held.inbox_known or self._inbox_reader.is_full(entries)):
                loop.call_soon(self._inbox_reader.hand_over, held, entries)

    def forget(self, run_id: str) -> None:
        """Let go of a run that cannot be executed."""
        held = self._held.get(run_id)
        if held is not None:
            held.drop()
            self._let_go(held)

    def _read_clock(self, drain_context: DrainContext | None = None) -> ClockReading:
        heartbeat = self._heartbeat
        may_start = not self.stopping and heartbeat is not None and self._system.monotonic() < heartbeat.safe_until
        return ClockReading(self._store.clock(), may_start, drain_context)

    # callbacks of runs (`RunOwner`)

    @property
    def is_lease_safe(self) -> bool:
        """True if the leases hold for long enough to begin something."""
        return self._heartbeat is not None and self._system.monotonic() < self._heartbeat.safe_until

    def parked(self, held: WorkflowRun, park: Park) -> None:
        """Keep a parked run in memory."""
        self.gatekeeper.ended(held.run.id, park)
        self._let_go(held)
        self._claimer.note_wake_time(park.wake_at)
        if self.stopping:
            held.drop()
        else:
            self._claimer.residents.keep(held)

    def ending(self, held: HeldRun) -> None:
        """Free the slot of a run whose outcome is about to be written."""
        self._ending.add(held)
        self._claimer.slot_freed()

    def ended(self, held: HeldRun, after: NextState | None) -> None:
        """Let go of a run that has ended here."""
        self.gatekeeper.ended(held.run.id, after)
        self._let_go(held)
        if isinstance(after, _COMES_BACK):
            self._claimer.note_wake_time(after.wake_at)
        elif held.run.options != NO_OPTIONS and (name := singleton_freed_by(held.run, after)) is not None:
            self.start_successors([name])

    def start_successors(self, names: Sequence[str]) -> None:
        """Start the next runs of these singletons."""
        self._spawn_for_run(
            lambda: start_successors(names, self._store, self.id), f"perdure succession {names[0]}", None
        )

    def read_inbox(self, held: HeldRun) -> None:
        """Read inbox entries that a run has not received."""
        self._inbox_reader.read(held)

    def read_interruptions(self, held: WorkflowRun) -> None:
        """Read which steps an earlier holder did not finish."""
        self._spawn_for_run(
            lambda: read_interruptions(held, self._store, self._system), f"perdure interruptions {held.run.id}", held
        )

    def pack_history(self, held: WorkflowRun, packing: HistoryPacking) -> None:
        """Pack the history of a run."""
        self._spawn_for_run(lambda: packing.pack(self._store, self.id), f"perdure packing {held.run.id}", held)

    def read_earlier_attempts(self, held: ActivityRun) -> None:
        """Read the last heartbeat of an earlier attempt at an activity."""
        self._spawn_for_run(
            lambda: read_earlier_attempts(held, self._store, self._system),
            f"perdure heartbeat {held.run.id}",
            held,
        )

    def relocate(self, held: HeldRun, leave: Callable[[str | None], None]) -> None:
        """Find another worker for a run."""
        worker_id = self.id
        self._spawn_for_run(
            lambda: relocate(held.run, leave, worker_id, self._store, self._system, self._claimer.avoid_reclaim),
            f"perdure move {held.run.id}",
            held,
        )

    def _spawn_for_run(self, work: Callable[[], Coroutine[Any, Any, None]], name: str, held: HeldRun | None) -> None:
        task = self._system.spawn(self._run_contained(work, held), name)
        self._run_tasks.add(task)
        task.add_done_callback(self._run_tasks.discard)

    async def _run_contained(self, work: Callable[[], Coroutine[Any, Any, None]], held: HeldRun | None) -> None:
        """Run a task of a run; an error blocks that run alone."""
        try:
            await work()
        except Exception as error:
            self._guard_tasks.failed(error)
            if held is not None and held.stage is not Stage.OVER:
                asyncio.get_running_loop().call_soon(held.block, error)

    def _let_go(self, held: HeldRun) -> None:
        if self._held.get(held.run.id) is held:
            del self._held[held.run.id]
            if self.executor.executing:
                self.executor.release(held.run.id)
        self._ending.discard(held)
        self._claimer.slot_freed()
        if not self._held:
            self._give_up_waiting()

    # for tests and simulations

    @property
    def quiet(self) -> bool:
        """True if nothing is under way: no step, no commit, no claim, no read."""
        return (
            self._journal.idle
            and self._claimer.quiet
            and self.scheduler.quiet
            and not self._run_tasks
            and all(held.idle for held in self._held.values())
        )


#: Names that a log record lists.
_NAMED = 5
#: Seconds between two log records of a worker that waits for its steps.
_SPEAKS_EVERY = 5.0


class _Speaker:
    """Calls a function at once and then every few seconds until it is stopped."""

    def __init__(self, system: System, speak: Callable[[], None]) -> None:
        self._system = system
        self._speak = speak
        self._again()

    def _again(self) -> None:
        self._speak()
        self._timer = self._system.call_later(_SPEAKS_EVERY, self._again)

    def stop(self) -> None:
        """Call it no more."""
        self._timer.cancel()


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


_DESCRIPTION_CHARACTERS = 200


def type_info(definition: Definition[Any, Any], shared: Sequence[str] = ()) -> TypeInfo:
    """Describe a type for the registry, with the first line of its docstring."""
    lines = (definition.__doc__ or "").strip().splitlines()
    description = lines[0].strip()[:_DESCRIPTION_CHARACTERS] if lines else ""
    kind = "activity" if isinstance(definition, Activity) else "workflow"
    is_shared = kind == "activity" and any(matches(pattern, definition.type) for pattern in shared)
    runtime = SHARED if is_shared else PYTHON
    return TypeInfo(type=definition.type, kind=kind, runtime=runtime, description=description)
