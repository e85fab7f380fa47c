"""What the simulation found, each as the few steps that it takes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from typing import Any

import pytest

from perdure import Breaker, Context, Engine, Limit, StoreUnavailable, workflow
from perdure.core.limits.admission_requests import AdmissionRequest, AdmissionResult, StepAdmission
from perdure.core.model.claim import LoadedRun
from perdure.core.model.turn import Turn, TurnOutcome
from perdure.host import Host
from perdure.store import open_store
from perdure.testing.clock import VirtualClock
from perdure.testing.environment import START
from perdure.worker import Worker, WorkerSettings
from perdure.worker.run.held_run import Stage
from perdure.worker.run.workflow_run import WorkflowRun


@workflow("test.two_words")
async def two_words(ctx: Context) -> list[str]:
    return [await ctx.receive("word", str), await ctx.receive("word", str)]


class LateAnswers:
    """A store whose answers to a commit or a transaction come late, and only when the gate is open."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.commits = 0
        self.gate = asyncio.Event()
        self.gate.set()
        #: The same for loading, and how often that was asked for.
        self.loading = asyncio.Event()
        self.loading.set()
        self.loads = 0
        #: The same for admissions, and how many steps were kept out by a breaker.
        self.admitting = asyncio.Event()
        self.admitting.set()
        self.admissions = 0
        self.barred = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        verdicts: list[TurnOutcome] = await self._store.commit(turns, actor)
        self.commits += 1
        for _ in range(3):
            await asyncio.sleep(0)  # lets the others go on
        await self.gate.wait()
        return verdicts

    async def transact(self, step: Any) -> TurnOutcome:
        verdict: TurnOutcome = await self._store.transact(step)
        await self.gate.wait()
        return verdict

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        admitted: AdmissionResult = await self._store.admit(request)
        self.admissions += 1
        self.barred += sum(step.refused_until > 0 for step in admitted.steps)
        await self.admitting.wait()
        return admitted

    async def load(self, run_ids: Sequence[str]) -> list[LoadedRun]:
        self.loads += 1
        loaded: list[LoadedRun] = await self._store.load(run_ids)
        await self.loading.wait()
        return loaded


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - no event tells when it holds
            await asyncio.sleep(0)  # lets the others go on


async def test_a_run_that_comes_back_before_its_park_was_answered_is_held_once() -> None:
    host = Host()
    store: Any = LateAnswers(open_store("sqlite://", host, inline=True))
    async with Engine("sqlite://", [two_words], system=host, store=store) as engine, engine.worker() as started:
        worker = started._worker
        assert isinstance(worker, Worker)
        store.gate.clear()
        run = await engine.start(two_words(), id="r")
        await until(lambda: store.commits == 1)
        before = worker._held["r"]
        await run.send("word", "one")
        await until(lambda: worker._held.get("r") is not before)
        assert before.stage is Stage.OVER
        store.gate.set()
        await run.send("word", "two")
        assert await run.result() == ["one", "two"]


async def test_a_run_that_is_parked_after_it_was_claimed_again_is_let_go_of() -> None:
    host = Host()
    store: Any = LateAnswers(open_store("sqlite://", host, inline=True))
    async with Engine("sqlite://", [two_words], system=host, store=store) as engine, engine.worker() as started:
        worker = started._worker
        assert isinstance(worker, Worker)
        store.gate.clear()
        store.loading.clear()
        run = await engine.start(two_words(), id="r")
        await until(lambda: store.commits == 1)
        before = worker._held["r"]
        await run.send("word", "one")
        await until(lambda: store.loads == 1)
        store.gate.set()
        await until(lambda: before.stage is Stage.PARKED)
        store.loading.set()
        await until(lambda: store.commits == 2 and len(worker._claimer.residents) == 1 and "r" not in worker._held)
        assert before.stage is Stage.OVER
        await run.send("word", "two")
        assert await run.result() == ["one", "two"]


async def test_a_slot_is_used_as_soon_as_it_is_free() -> None:
    host = Host()
    store: Any = LateAnswers(open_store("sqlite://", host, inline=True))
    gates = {name: asyncio.Event() for name in "abcdefgh"}

    async def pass_gate(name: str) -> str:
        await gates[name].wait()
        return name

    @workflow("test.gated")
    async def gated(ctx: Context, name: str) -> str:
        return await ctx.step(pass_gate, name)

    async with Engine("sqlite://", [gated], system=host, store=store) as engine, engine.worker(slots=8, grace=0):
        first = await engine.start_many([gated(name) for name in "abcdefgh"])
        later = await engine.start_many([gated("a") for _ in range(3)])
        gates["a"].set()
        assert await first[0].result(timeout=20) == "a"
        for run in later:
            assert await run.result(timeout=20) == "a"


async def test_a_step_that_is_kept_out_by_a_breaker_while_a_transaction_commits_fails_afterwards() -> None:
    host = Host()
    store: Any = LateAnswers(open_store("sqlite://", host, inline=True))
    broken = Breaker("broken", when_open="fail")

    def write(connection: sqlite3.Connection) -> str:
        return "written"

    async def call() -> str:
        return "called"

    @workflow("test.both")
    async def both(ctx: Context) -> list[str]:
        step = ctx.options(breaker=broken).step(call)
        ended = await asyncio.gather(ctx.transaction(write), step, return_exceptions=True)
        return [one if isinstance(one, str) else type(one).__name__ for one in ended]

    async with Engine("sqlite://", [both], system=host, store=store) as engine, engine.worker():
        await engine.breakers.open("broken")
        store.gate.clear()
        run = await engine.start(both())
        await until(lambda: store.barred == 1)
        for _ in range(10):
            await asyncio.sleep(0)  # lets the others go on
        store.gate.set()
        assert await run.result(timeout=20) == ["written", "BreakerOpen"]


async def test_a_step_whose_answer_was_for_an_earlier_lease_asks_again() -> None:
    host = Host()
    store: Any = LateAnswers(open_store("sqlite://", host, inline=True))

    async def call() -> str:
        return "called"

    @workflow("test.asking")
    async def asking(ctx: Context) -> str:
        return await ctx.options(limit=Limit("one", concurrency=1)).step(call)

    async with Engine("sqlite://", [asking], system=host, store=store) as engine, engine.worker() as started:
        worker = started._worker
        assert isinstance(worker, Worker)
        store.admitting.clear()
        run = await engine.start(asking(), id="r")
        await until(lambda: store.admissions == 1)
        held = worker._held["r"]
        assert isinstance(held, WorkflowRun)
        assert held._step_limits is not None
        held._step_limits.answered(StepAdmission("r", "call"), held.lease.token - 1, host.now())
        store.admitting.set()
        assert await run.result(timeout=20) == "called"


class Interrupting:
    """A store whose first transaction finds no database."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, step: Any) -> TurnOutcome:
        if not self._interrupted:
            self._interrupted = True
            raise StoreUnavailable("gone")
        verdict: TurnOutcome = await self._store.transact(step)
        return verdict


async def test_a_transaction_that_is_begun_again_under_another_lease_has_passed_for_that_one() -> None:
    host = Host()
    store: Any = Interrupting(open_store("sqlite://", host, inline=True))
    permitted: list[tuple[int, ...]] = []

    def write(connection: sqlite3.Connection) -> None:
        permitted.extend(
            connection.execute(
                "SELECT r.token, p.token FROM perdure_runs r LEFT JOIN perdure_permits p ON p.run_id = r.id"
            )
        )

    @workflow("test.limited")
    async def limited(ctx: Context) -> None:
        await ctx.options(limit=Limit("one", concurrency=1)).transaction(write)

    async with Engine("sqlite://", [limited], system=host, store=store) as engine:
        worker = engine._session.make_worker(WorkerSettings(linger=0.0))
        await worker.start()
        await (await engine.start(limited())).result(timeout=20)
        assert permitted == [(2, 2)], "it has parked in between"
        await worker.stop()


class Unready:
    """A store that is gone again as soon as a worker has registered."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def unblock(self, *_: object) -> int:
        raise StoreUnavailable("gone")


async def test_a_worker_that_could_not_start_has_no_heartbeat() -> None:
    clock = VirtualClock(START)
    store: Any = Unready(open_store("sqlite://", clock, inline=True))
    async with Engine("sqlite://", [two_words], system=clock, store=store) as engine:
        with pytest.raises(StoreUnavailable):
            await engine.worker().start()
        assert "perdure heartbeat" not in {task.get_name() for task in asyncio.all_tasks()}
