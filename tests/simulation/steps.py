"""The functions that the steps and activities of a simulation call.

Each execution is one of its own: it is noted, takes a while, fails or succeeds, and returns something new.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AbstractContextManager
from random import Random
from typing import Any, cast

from perdure.core.model.cloud_event import CloudEvent
from perdure.errors import Fatal
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.worker.steps.attempt import Attempt
from perdure.workflow.activity import Pending
from perdure.workflow.step import StepInfo, activity_info, step_info
from tests.simulation.emitted import STREAM, Execution
from tests.simulation.guards import Guards
from tests.simulation.ledger import Effect, Ledger
from tests.simulation.turnstile import Turnstile

ACT = "sim.act"
#: An activity whose calls say themselves what they have to pass.
GIVEN = "sim.act.given"

_DONE = "SELECT 1 FROM deeds WHERE run_id = ? AND location = ? AND generation = ?"


class Steps:
    """The steps of one simulated process."""

    def __init__(
        self,
        worker: str,
        rng: Random,
        ledger: Ledger,
        guards: Guards | None = None,
        turnstile: Turnstile | None = None,
        *,
        streams: bool = False,
        broken: bool = False,
        build: str = "",
    ) -> None:
        self.worker = self._worker = worker
        #: Build of the code of this process, where builds differ.
        self.build = build
        self._rng = rng
        self.ledger = ledger
        #: Where there are limits.
        self.guards = guards
        self._turnstile = turnstile
        #: Whether every execution emits, and many end in one turn of the loop.
        self._streams = streams
        #: Whether the code of workflows has a bug in this process.
        self.broken = broken

    async def work(self, seen: list[str], seconds: float, failures: int, fatal: bool, ephemeral: bool) -> str:
        """Have an effect, take a while, then fail or succeed."""
        info = step_info()
        self._check_headers(info)
        effect = Effect(info.run_id, info.location, info.attempt, tuple(seen), ephemeral, self._worker)
        number = self.ledger.effect(effect)
        said = self._begin_to_emit(number, info)
        await self._take(seconds)
        self._emit(number, said, info)
        if fatal:
            raise Fatal(f"execution {number} says that it is of no use")
        if info.attempt <= failures:
            self.ledger.sometimes["a step failed and was tried again"] += 1
            raise RuntimeError(f"execution {number} failed")
        return f"result {number}"

    async def work_once(self, seen: list[str], seconds: float) -> str:
        """The same as a step that must not run twice."""
        info = step_info()
        self.ledger.once(info.run_id, info.location)
        return await self.work(seen, seconds, 0, False, False)

    async def deliver(self, subscription: str, event: CloudEvent) -> None:
        """Take an event for another system, fail some times, and then have it."""
        info = activity_info()
        self.ledger.outbox.begins(subscription, event)
        self.ledger.note(self._worker, "delivers", subscription, event.partitionkey, event.data, info.attempt)
        await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0)))  # simulated time
        if info.attempt <= self._rng.choice((0, 0, 1, 2)):
            self.ledger.sometimes["a delivery failed and was tried again"] += 1
            raise RuntimeError("the receiver does not answer")
        self.ledger.outbox.ends(subscription, event)

    async def perform(
        self, seen: list[str], seconds: float, beats: int, failures: int, fatal: bool, pending: bool = False
    ) -> str:
        """The same as an activity, with signs of life. If it is `pending`, its end is reported from outside."""
        info = activity_info()
        self._check_headers(info)
        if info.max_attempts is not None and info.attempt > info.max_attempts:
            self.ledger.violated(f"attempt {info.attempt} of {info.max_attempts} was made at run {info.run_id}")
        # The run's own attempt, which does not count those that were interrupted.
        attempt = int(info.attempt_id.rsplit(".", 2)[1])
        effect = Effect(info.run_id, info.location, attempt, tuple(seen), False, self._worker, info.parent_id)
        number = self.ledger.effect(effect)
        self.ledger.sometimes["an attempt knew how far the one before had got"] += info.last_heartbeat is not None
        said = self._begin_to_emit(number, info, attempt, info.last_heartbeat)
        for beat in range(beats):
            await self._take(seconds / beats)
            info.heartbeat([number, beat])
            said.beats += 1
        # In a world with streams, the last heartbeat and the end are in one turn of the loop.
        if not (beats and self._streams):
            await asyncio.sleep(0.0 if beats else seconds * (0.5 + self._rng.random()))  # simulated time
        self._emit(number, said, info)
        if fatal:
            raise Fatal(f"execution {number} says that it is of no use")
        if info.attempt <= failures:
            self.ledger.sometimes["an activity failed and was tried again"] += 1
            raise RuntimeError(f"execution {number} failed")
        if pending:
            # An execution that was interrupted had the same token, and what it emitted may be lost.
            self.ledger.permits[info.token] = (info.run_id, f"result {number}")
            return Pending
        return f"result {number}"

    def _check_headers(self, info: StepInfo) -> None:
        """A run has the headers of the run that a client started, however far it is from it."""
        root = info.run_id.partition("/")[0].partition("~")[0]
        if root in self.ledger.with_headers and info.headers != {"root": root}:
            self.ledger.violated(f"run {info.run_id} has the headers {dict(info.headers)}")

    async def _take(self, seconds: float) -> None:
        """Take a while of simulated time; in a world with streams often as long as others."""
        if self._streams:
            seconds = round(seconds, 1) if self._rng.random() < 0.5 else 0.0
            await asyncio.sleep(seconds)  # simulated time
        else:
            await asyncio.sleep(seconds * (0.5 + self._rng.random()))  # simulated time

    def _begin_to_emit(self, number: int, info: StepInfo, attempt: int = 0, given: Any = None) -> Execution:
        execution = self.ledger.emitted.begun(number, info.run_id, attempt or info.attempt, given)
        if self._streams and self._rng.random() < 0.3:
            self._emit(number, execution, info)
        return execution

    def _emit(self, number: int, execution: Execution, info: StepInfo) -> None:
        if self._streams:
            for _ in range(self._rng.randint(1, 3)):
                info.emit(STREAM, [number, execution.items])
                execution.items += 1

    async def work_guarded(
        self, key: str, guard: int, seen: list[str], seconds: float, failures: int, fatal: bool
    ) -> str:
        """As a step that has passed what guards it."""
        with self._passed(key, guard):
            return await self.work(seen, seconds, failures, fatal, False)

    async def write_guarded(
        self, connection: sqlite3.Connection, key: str, guard: int, seen: list[str], failures: int
    ) -> str:
        """As a transaction that has passed what guards it. One that the database interrupts is begun anew with what it
        has."""
        with self._passed(key, guard, again=True):
            return await self.write(connection, seen, failures)

    def _passed(self, key: str, guard: int, *, again: bool = False) -> AbstractContextManager[None]:
        assert self.guards is not None
        assert self._turnstile is not None
        info = step_info()
        attempt = cast("Attempt", info._made_by)
        held = cast("WorkflowRun", attempt.recipient)
        own = f"step:{held.run.type}:{attempt.operation.request.name}"
        bounds = self.guards.all[guard].of_steps().bounds(own, key)
        return self._turnstile.step(info.run_id, info.location, held.lease.token, bounds, again=again)

    async def perform_guarded(
        self, key: str, guard: int, seen: list[str], seconds: float, beats: int, failures: int, fatal: bool
    ) -> str:
        """As an activity that has passed what guards it."""
        assert self.guards is not None
        assert self._turnstile is not None
        info = activity_info()
        whole = self.guards.all[guard]
        bounds = (whole.of_calls() if info.type == GIVEN else whole).bounds(f"type:{info.type}", key)
        token = int(info.attempt_id.rpartition(".")[2])
        with self._turnstile.activity(info.run_id, token, bounds):
            return await self.perform(seen, seconds, beats, failures, fatal)

    def begin(self, run_id: str, key: str) -> None:
        """A workflow begins of which only so many go on at once."""
        if self.guards is not None and self._turnstile is not None:
            token = self.ledger.token(run_id, self._worker)
            self._turnstile.workflow(run_id, token, self.guards.flows.bounds("", key, whole=True))

    async def undo(self, result: str) -> str:
        """Undo what a step did."""
        self.ledger.sometimes["something was undone"] += 1
        info = step_info()
        self.ledger.undone(info.run_id, info.location, result)
        return await self.work([result], 0.0, 0, False, False)

    async def write(self, connection: sqlite3.Connection, seen: list[str], failures: int) -> str:
        """Write a row, then fail or succeed."""
        info = step_info()
        number = self.ledger.effect(
            Effect(info.run_id, info.location, info.attempt, tuple(seen), ephemeral=False, worker=self._worker)
        )
        self._emit(number, self._begin_to_emit(number, info), info)
        result = f"result {number}"
        where = info.run_id, info.location, self.ledger.generation(info.run_id)
        done = connection.execute(_DONE, where).fetchone() is not None
        if done and self.ledger.is_first_try(info.run_id, self._worker):
            self.ledger.violated(f"{info.location} of run {info.run_id} was committed, and is done again")
        connection.execute("INSERT INTO deeds VALUES (?, ?, ?, ?)", (*where[:2], result, where[2]))
        if info.attempt <= failures:
            self.ledger.sometimes["a transaction failed and was tried again"] += 1
            raise RuntimeError(f"execution {number} failed")
        return result
