"""Clients: they start runs, send messages, cancel, and ask again when they got no answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Any, TypeVar

from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.runs.start import StartOptions
from perdure.errors import (
    AttemptNotFound,
    AttemptOver,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunNotFound,
    StoreError,
    UsageError,
)
from perdure.store.sqlite.store import SqliteStore
from perdure.worker import Worker
from perdure.workflow.channels import topic
from tests.simulation import programs
from tests.simulation.author import Author
from tests.simulation.interpreter import PLAIN, STUBBORN
from tests.simulation.ledger import Ledger
from tests.simulation.programs import CORRELATIONS, MESSAGES, NEWS, QUESTION

T = TypeVar("T")

Action = Callable[[str], Awaitable[None]]

#: Seconds between two looks of the operator, and how long a run may wait for a message before it is sent one.
LOOK = 2.0
PATIENCE = 10.0

_LISTENERS = """
SELECT t.run_id FROM perdure_topics t JOIN perdure_runs r ON r.id = t.run_id
WHERE t.topic = ? AND r.status NOT IN ('completed', 'failed', 'cancelled')
"""
_HAS = "SELECT 1 FROM perdure_messages WHERE run_id = ? AND message_key = ?"


_PENDING = "SELECT id FROM perdure_runs WHERE status = 'waiting' AND reason = 'completion'"


async def report(
    engine: Engine, ledger: Ledger, token: str, kind: str, persist: Callable[[Callable[[], Awaitable[None]]], Any]
) -> None:
    """Report about an attempt; a completion that is acknowledged has to be the end of the run."""
    run_id, result = ledger.permits[token]
    try:
        if kind == "complete":
            await persist(lambda: engine.runs.complete(token, result))
            ledger.completed[run_id] = result
        elif kind == "fail":
            await persist(lambda: engine.runs.fail(token, "refused outside"))
        else:
            await persist(lambda: engine.runs.heartbeat(token, kind))
    except (AttemptOver, AttemptNotFound):
        ledger.sometimes["a report about an attempt came too late"] += 1
    else:
        ledger.sometimes[f"an outsider reported: {kind}"] += 1


class Client:
    """One of them, on the event loop of a process of its own."""

    #: How many things it does, at least and at most.
    actions = (4, 10)

    def __init__(
        self, engine: Engine, store: SqliteStore, ledger: Ledger, author: Author, rng: Random, name: str
    ) -> None:
        self.task: asyncio.Task[None] = None  # type: ignore[assignment]  # set by the world, at once
        self._engine = engine
        self._store = store
        self._ledger = ledger
        self._author = author
        self._rng = rng
        self._name = name
        self._runs: list[Handle[Any]] = []

    @property
    def worker(self) -> Worker | None:
        """As which it works on runs, if it does."""
        return None

    async def act(self) -> None:
        """Do a few things, one after the other, without hurry."""
        for number in range(self._rng.randint(*self.actions)):
            await asyncio.sleep(self._rng.choice((0.0, 0.1, 1.0, 3.0)) * self._rng.random())
            kinds, weights = zip(*(self._kinds() if self._runs else ((self._start, 1),)), strict=True)
            kind: Action = self._rng.choices(kinds, weights)[0]
            await kind(f"{self._name}.{number}")

    def _kinds(self) -> tuple[tuple[Action, int], ...]:
        """What it does, and how often."""
        return (
            (self._start, 5), (self._send, 6), (self._cancel, 2), (self._steer, 3), (self._ask, 2),
            (self._broadcast, 2),
        )  # fmt: skip

    async def compare(self) -> None:
        """Wait for the outcome of every run, and see that it is what the database has."""
        for run in self._runs:
            try:
                # mypy cannot infer a lambda with a default; without it every call would ask for the last run.
                result = " ".join(await self._persist(lambda run=run: run.result(timeout=30)))  # type: ignore[misc] # mypy infers no type for the default of a lambda
            except (RunFailed, RunCancelled) as error:
                result = str(error)
            except RunNotFound:
                # Whether it may be gone, the audit knows.
                continue
            self._ledger.results[run.id] = result

    async def _start(self, name: str) -> None:
        program = programs.encode(self._author.whole())
        call = self._engine.workflows[PLAIN if self._rng.random() < 0.7 else STUBBORN](program)
        options = StartOptions(id=name) if self._rng.random() < 0.7 else StartOptions(idempotency_key=name)
        if self._rng.random() < 0.2:
            options["at"] = self._rng.choice((0.5, 3.0))
        if self._rng.random() < 0.1:
            options["deadline"] = self._rng.choice((1.0, 5.0, 20.0))
        if self._rng.random() < 0.3:
            options["priority"] = self._rng.choice((1, 1000))
        self._ledger.asked.add(name)
        options["headers"] = {"root": name}
        if "id" in options:
            self._ledger.with_headers.add(name)
        run = await self._persist(lambda: self._engine.start(call, **options))
        self._ledger.started.add(run.id)
        self._runs.append(run)
        if self._rng.random() < 0.2:
            again = await self._persist(lambda: self._engine.start(call, **options))
            if again.id != run.id:
                self._ledger.violated(f"starting {name} twice gave the runs {run.id} and {again.id}")
            self._ledger.sometimes["a run was started twice and is one"] += 1

    async def _send(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        message = self._rng.choice(MESSAGES)
        self._ledger.sent.add((run.id, name))
        times = 2 if self._rng.random() < 0.2 else 1
        for _ in range(times):
            try:
                await self._persist(lambda: run.send(message, f"message {name}", key=name))
            except RunFinished:
                self._ledger.sometimes["a message came after the end"] += 1
            else:
                self._ledger.received.add((run.id, name))

    async def _report(self, name: str) -> None:
        """Report about an attempt whose function has returned, perhaps long ago."""
        pending = [row[0] for row in await self._store.query(_PENDING)]
        tokens = [token for token, (run_id, _) in self._ledger.permits.items() if run_id in pending]
        if tokens:
            kind = self._rng.choice(("complete", "complete", "fail", "heartbeat"))
            await report(self._engine, self._ledger, self._rng.choice(tokens), kind, self._persist)

    async def _broadcast(self, name: str) -> None:
        correlation = self._rng.choice(CORRELATIONS)
        self._ledger.broadcasts.add(f"broadcast:{name}")
        listeners = await self._listeners(correlation)
        broadcast = functools.partial(
            self._engine.runs.broadcast, NEWS, f"message {name}", correlation=correlation, key=name
        )
        for _ in range(2 if self._rng.random() < 0.2 else 1):
            reached = await self._persist(broadcast)
            self._ledger.sometimes["a broadcast took several chunks"] += reached > 1
        still = await self._listeners(correlation)
        for run_id in listeners & still:
            if not await self._store.query(_HAS, (run_id, f"broadcast:{name}")):
                self._ledger.violated(f"run {run_id} listens to {correlation} and did not get the broadcast {name}")

    async def _listeners(self, correlation: str) -> set[str]:
        """Runs that are under way and listen, as the database has it."""
        return {run_id for (run_id,) in await self._store.query(_LISTENERS, (topic(NEWS, correlation),))}

    async def _cancel(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        asked = await self._persist(lambda: run.cancel(f"{name} does not want it any more"))
        self._ledger.note(self._name, "cancels", run.id, asked)
        if asked:
            self._ledger.to_be_cancelled.add(run.id)
        else:
            self._ledger.sometimes["a cancellation came after the end"] += 1

    async def _steer(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        what = self._rng.choice(("pause", "pause", "resume", "evict", "wake", "wake"))
        if what == "wake":
            self._ledger.woken.add(run.id)
        try:
            done = await self._persist(getattr(run, what))
        except (RunFinished, UsageError) as error:
            done = type(error).__name__
        self._ledger.note(name, "asks", run.id, "to", what, done)
        self._ledger.sometimes[f"{what} was heeded"] += done in (True, None)

    async def _ask(self, name: str) -> None:
        run = self._rng.choice(self._runs)
        try:
            answer = await self._persist(lambda: run.ask(QUESTION, name, returns=str, key=name, timeout=5))
        except (TimeoutError, RunFinished, RunFailed, RunCancelled) as error:
            answer = None
            self._ledger.note(name, "asks in vain", run.id, type(error).__name__)
        if answer is not None:
            self._ledger.sometimes["a question was answered"] += 1
            if answer != f"answer to {name}":
                self._ledger.violated(f"run {run.id} was asked {name} and said {answer!r}")

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await call()
            except StoreError:
                self._ledger.sometimes["a client asked again"] += 1
                await asyncio.sleep(0.2 + self._rng.random())


class Operator:
    """Sees to it that what can end does end: sends what is waited for, and unblocks what was set aside."""

    #: Reasons for which a run may be blocked.
    curable: tuple[str, ...] = ("poison",)
    #: Sticky events that are emitted in the end, if they were not before.
    events: tuple[str, ...] = ()

    def __init__(self, engine: Engine, store: SqliteStore, ledger: Ledger) -> None:
        self._engine = engine
        self._store = store
        self._ledger = ledger
        self._sent = 0
        self._waiting_since: dict[str, float] = {}

    async def see_to_the_end(self, bound: float) -> None:
        """Wait until every run has ended. A run that has not within `bound` seconds is a violation."""
        loop = asyncio.get_running_loop()
        until = loop.time() + bound
        for event in self.events:
            self._ledger.emitted_events.add("event operator")
            await self._engine.events.emit(event, "event operator")
        while rows := await self._unfinished():
            if loop.time() > until:
                self._ledger.violated(f"{bound:g} s after the last fault these have not ended: {rows}")
            for run_id, status, reason, *_ in rows:
                await self._help(run_id, status, reason, loop.time())
            await asyncio.sleep(LOOK)

    async def _unfinished(self) -> list[tuple[Any, ...]]:
        return await self._store.query(
            "SELECT id, status, reason, worker, wake_at, inbox_seq, inbox_read, claims FROM perdure_runs "
            "WHERE status NOT IN ('completed', 'failed', 'cancelled') ORDER BY id"
        )

    async def _help(self, run_id: str, status: str, reason: str | None, now: float) -> None:
        if status == "blocked":
            if reason not in self.curable:
                self._ledger.violated(f"run {run_id} is blocked: {await self._engine.runs.why(run_id)}")
            self._ledger.sometimes["a run was set aside" if reason == "poison" else f"a run stayed {reason}"] += 1
            # A worker that started since may have unblocked it.
            with suppress(UsageError):
                await self._engine.runs.undelete(run_id)
                await self._retry(run_id, reason)
        elif status == "waiting" and reason == "paused":
            await self._engine.runs.resume(run_id)
        elif status == "waiting" and reason == "completion":
            for token, (waiting, _) in [*self._ledger.permits.items()]:
                if waiting == run_id:
                    await report(self._engine, self._ledger, token, "complete", lambda ask: ask())
        elif status == "waiting" and reason == "message":
            if now - self._waiting_since.setdefault(run_id, now) > PATIENCE:
                await self._send(run_id)
        else:
            self._waiting_since.pop(run_id, None)

    async def _retry(self, run_id: str, reason: str | None) -> None:
        try:
            await self._engine.runs.retry(run_id)
        except UsageError as error:
            if reason not in ("broken", "poison") or "deadline" not in str(error):
                raise
            self._ledger.sometimes["a deadline passed while a run was blocked"] += 1
            await self._engine.runs.retry(run_id, deadline=60.0)

    async def _send(self, run_id: str) -> None:
        for correlation in CORRELATIONS:
            self._sent += 1
            key = f"operator.{self._sent}"
            self._ledger.broadcasts.add(f"broadcast:{key}")
            await self._engine.runs.broadcast(NEWS, f"message {key}", correlation=correlation, key=key)
        for message in MESSAGES:
            self._sent += 1
            key = f"operator.{self._sent}"
            self._ledger.sent.add((run_id, key))
            try:
                await self._engine.send(run_id, message, f"message {key}", key=key)
            except (RunFinished, RunNotFound):
                continue
            self._ledger.received.add((run_id, key))
