"""The plot: start worker A and an order, kill A in the middle, let worker B finish.

The teller is a third process. It sees what the workers' steps wrote and what the database says, and it is the customer's
service that approves the order. It kills at a moment when some steps are recorded and another is in flight.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.cli.demo.summary import Activity, Killed, Summary, count_steps
from perdure.cli.demo.timeline import Timeline
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.errors import PerdureError
from perdure.workflow.definition import Call

RUN = "order-42"
LEASE = "2s"
#: Far more than it ever takes; what is over it is broken.
_LIMIT = 90.0
_LOOK = 0.04

_activity = decoder_for(Activity)


class DemoFailed(PerdureError):
    """The demo could not be told to its end."""


class Story:
    """One telling."""

    def __init__(self, folder: Path, timeline: Timeline) -> None:
        self._folder = folder
        self._timeline = timeline
        self._workers: list[subprocess.Popen[bytes]] = []
        self._activity: list[Activity] = []
        self._read = 0
        self._state: tuple[Status, Reason | None] = (Status.PENDING, None)
        self._holders: list[str] = []
        self._give_up_at = time.monotonic() + _LIMIT

    async def tell(self) -> Summary:
        """From the start to the summary. Raises `DemoFailed`."""
        # The workers run in the folder, so that what their steps write lands there.
        async with Engine(f"sqlite:///{self._folder.resolve()}/shop.db") as engine:
            try:
                return await self._tell(engine)
            finally:
                for worker in self._workers:
                    _end(worker)

    async def _tell(self, engine: Engine) -> Summary:
        order = {"id": "42", "item": "a blue vase", "cents": 4200}
        run: Handle[Any] = await engine.start(Call("demo.checkout.v1", {"order": order}), id=RUN)
        self._timeline.across(f"{RUN} is started: charge, reserve and print_label run in parallel")
        self._hire()
        await self._until(run, lambda: self._middle(run))
        killed = self._kill()
        finished, in_flight = await self._damage(run)
        self._hire()
        await self._until(run, lambda: _waits_for_approval(run))
        self._timeline.across("a person approves: perdure send ... approval true")
        await run.send("approval", True)
        await self._until(run, lambda: _is_finished(run))
        return await self._sum_up(run, killed, finished, in_flight)

    def _hire(self) -> None:
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.cli.demo.shop:engine"]
        command += ["--lease", LEASE, "--log-level", "error", "--stop-at-eof"]
        with (self._folder / f"worker-{'AB'[len(self._workers)]}.log").open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, cwd=self._folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )
        self._workers.append(worker)
        self._timeline.lane(len(self._workers) - 1, f"worker process {worker.pid} starts")

    async def _middle(self, run: Handle[Any]) -> bool:
        """Whether the moment to kill has come: a step is recorded, one has failed once, and one is in flight."""
        kinds = {record.kind for record in await run.history()}
        _, in_flight = await self._damage(run)
        return {RecordKind.STEP, RecordKind.ATTEMPT} <= kinds and bool(in_flight)

    async def _damage(self, run: Handle[Any]) -> tuple[list[str], list[str]]:
        """Which steps are finished, and which have begun an attempt of which the history does not know the end."""
        history = await run.history()
        self._catch_up()
        finished = [record.location for record in history if record.kind is RecordKind.STEP]
        failed = {(record.location, record.attempts) for record in history if record.kind is RecordKind.ATTEMPT}
        open_ = {one.step for one in self._activity if (one.step, one.attempt) not in failed} - set(finished)
        return finished, sorted(open_)

    def _kill(self) -> Killed:
        worker = self._workers[0]
        worker.send_signal(signal.SIGKILL)
        code = worker.wait()
        if code != -signal.SIGKILL:
            raise DemoFailed(f"Worker A (process {worker.pid}) ended with {code} before it could be killed.")
        self._timeline.across(f"kill -9 {worker.pid}: worker A is dead, with a step in its hands", "bold red")
        return Killed(worker.pid, signal.Signals(-code).name)

    async def _until(self, run: Handle[Any], question: Callable[[], Awaitable[Any]]) -> Any:
        """Go on telling until there is a truthy answer."""
        while True:
            answer = await question()
            await self._tell_state(run)
            if answer:
                return answer
            code = self._workers[-1].poll()
            if code is not None or time.monotonic() > self._give_up_at:
                raise DemoFailed(self._what_went_wrong(code))
            await asyncio.sleep(_LOOK)

    def _catch_up(self) -> None:
        """Tell what the steps have written since the last look."""
        path = self._folder / "activity.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for line in lines[self._read :]:
            if not line.endswith(b"\n"):
                return
            self._read += 1
            one = _activity.decode(line)
            self._activity.append(one)
            again = f" (attempt {one.attempt})" if one.attempt > 1 else ""
            self._timeline.lane(int(one.pid != self._workers[0].pid), f"{one.step} {one.what}{again}")

    async def _tell_state(self, run: Handle[Any]) -> None:
        now = await run.run()
        before, self._state = self._state, (now.status, now.reason)
        if now.worker is not None and now.worker not in self._holders:
            self._holders.append(now.worker)
            if len(self._holders) > 1:
                self._timeline.lane(1, "takes over: the lease of A has run out")
        # Read after the state: what led to it is told before it.
        self._catch_up()
        if self._state == before:
            return
        if now.status is Status.WAITING and now.reason is Reason.MESSAGE:
            self._timeline.across("the run waits for an approval; it holds no slot and no thread meanwhile")
        elif now.status is Status.WAITING and now.reason is Reason.TIMER:
            self._timeline.across("the run sleeps for 1.5 s; it could be a month")
        elif now.status.finished:
            self._timeline.across(f"the run is {now.status}", "bold green")

    async def _sum_up(self, run: Handle[Any], killed: Killed, finished: list[str], in_flight: list[str]) -> Summary:
        taker = self._workers[1]
        _end(taker)
        self._catch_up()
        effects = [line.split()[0] for line in (self._folder / "effects.log").read_text().splitlines()]
        steps = count_steps(self._activity, effects, killed.pid, finished, in_flight)
        outcome = await run.run()
        return Summary(
            ok=outcome.status is Status.COMPLETED and not any(step.repeated for step in steps),
            run=run.id,
            status=outcome.status.value,
            result=str(await run.result()),
            killed=killed,
            took_over=taker.pid,
            in_flight=in_flight,
            steps=steps,
        )

    def _what_went_wrong(self, code: int | None) -> str:
        letter = "AB"[len(self._workers) - 1]
        log = (self._folder / f"worker-{letter}.log").read_text(errors="replace").strip()
        what = f"took longer than {_LIMIT:g} s" if code is None else f"ended by itself with {code}"
        return f"The demo cannot go on: worker {letter} {what}. Its log ends: {log[-500:] or '(empty)'}"


async def _waits_for_approval(run: Handle[Any]) -> bool:
    now = await run.run()
    return now.status is Status.WAITING and now.reason is Reason.MESSAGE


async def _is_finished(run: Handle[Any]) -> bool:
    return (await run.status()).finished


def _end(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(timeout=15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()
