"""`perdure demo`: a workflow survives a `kill -9`.

The scenario: start an order and worker A, kill A in the middle, let worker B finish. It runs in a third process, which
reads the traces of the steps and the database, prints a timeline, and approves the order. It kills A when some steps
are recorded and another is in flight.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.errors import PerdureError
from perdure.workflow.definition import Call

RUN = "order-42"
LEASE = "2s"
#: Seconds after which the demo is broken; it takes about ten.
_TIMEOUT = 90.0
#: Seconds between two looks at the database.
_POLL = 0.04


_LANE_WIDTH = 36
_LANE_STYLES = ("cyan", "magenta")


class StepTrace(Struct, frozen=True):
    """A line of `activity.jsonl`: an attempt at a step begins, fails or is done."""

    step: str
    attempt: int
    pid: int
    what: str


class KilledWorker(Struct, frozen=True):
    """Process id of worker A and the signal that ended it."""

    pid: int
    signal: str


class StepSummary(Struct, frozen=True, kw_only=True):
    """Attempts and effects of one step."""

    name: str
    attempts_by_a: int
    attempts_by_b: int
    #: Lines in `effects.log`.
    effects: int
    finished_before_kill: bool
    in_flight_at_kill: bool

    @property
    def repeated(self) -> bool:
        """True if the step ran again although it had finished."""
        if self.finished_before_kill:
            return self.effects != 1 or self.attempts_by_b > 0
        return self.effects != 1 and not self.in_flight_at_kill

    @property
    def note(self) -> str:
        """Explanation of the figures."""
        if self.finished_before_kill:
            return "finished before the kill: not run again"
        if self.in_flight_at_kill:
            return "in flight at the kill: run again"
        return "attempts by A still count" if self.attempts_by_a else ""


class Summary(Struct, frozen=True, kw_only=True):
    """Result of the demo."""

    ok: bool
    run: str
    status: str
    result: str
    killed: KilledWorker
    took_over: int
    in_flight: list[str]
    steps: list[StepSummary]


def count_steps(
    activity: Sequence[StepTrace],
    effects: Sequence[str],
    killed: int,
    finished: Sequence[str],
    in_flight: Sequence[str],
) -> list[StepSummary]:
    """Summarize the steps in the order of their first attempts. `effects` names a step once for each effect."""
    begun = [one for one in activity if one.what == "begins"]
    by_a = Counter(one.step for one in begun if one.pid == killed)
    by_b = Counter(one.step for one in begun if one.pid != killed)
    had = Counter(effects)
    return [
        StepSummary(
            name=name,
            attempts_by_a=by_a[name],
            attempts_by_b=by_b[name],
            effects=had[name],
            finished_before_kill=name in finished,
            in_flight_at_kill=name in in_flight,
        )
        for name in dict.fromkeys(one.step for one in begun)
    ]


_traces = decoder_for(StepTrace)


class DemoFailed(PerdureError):
    """The demo could not run to its end."""


class Timeline:
    """Printed lines with the time since the beginning: one lane for each worker. Silent with `--json`."""

    def __init__(self, output: Printer) -> None:
        self._output = output
        self._began = time.monotonic()

    def lane(self, worker: int, text: str) -> None:
        """Print an event of worker A (0) or B (1)."""
        self._print(f"{' ' * _LANE_WIDTH * worker}{'AB'[worker]}  {text}", _LANE_STYLES[worker])

    def across(self, text: str, style: str = "bold") -> None:
        """Print an event of the run or of both workers."""
        self._print(f"-- {text}", style)

    def _print(self, text: str, style: str) -> None:
        if not self._output.json:
            self._output.line(f"{time.monotonic() - self._began:6.2f}s  {text}", style)


class Scenario:
    """One execution of the demo in a folder."""

    def __init__(self, folder: Path, timeline: Timeline) -> None:
        self._folder = folder
        self._timeline = timeline
        self._workers: list[subprocess.Popen[bytes]] = []
        self._traces: list[StepTrace] = []
        self._read = 0
        self._state: tuple[Status, Reason | None] = (Status.PENDING, None)
        self._holders: list[str] = []
        self._give_up_at = time.monotonic() + _TIMEOUT

    async def run(self) -> Summary:
        """Run the scenario and return its summary. Raises `DemoFailed`."""
        # The workers run in the folder, so that their steps write the traces there.
        async with Engine(f"sqlite:///{self._folder.resolve()}/shop.db") as engine:
            try:
                return await self._run(engine)
            finally:
                for worker in self._workers:
                    _stop(worker)

    async def _run(self, engine: Engine) -> Summary:
        order = {"id": "42", "item": "a blue vase", "cents": 4200}
        run: Handle[Any] = await engine.start(Call("demo.checkout.v1", {"order": order}), id=RUN)
        self._timeline.across(f"{RUN} is started: charge, reserve and print_label run in parallel")
        self._start_worker()
        await self._until(run, lambda: self._is_time_to_kill(run))
        killed = self._kill()
        finished, in_flight = await self._steps_at_kill(run)
        self._start_worker()
        await self._until(run, lambda: _waits_for_approval(run))
        self._timeline.across("a person approves: perdure send ... approval true")
        await run.send("approval", True)
        await self._until(run, lambda: _is_finished(run))
        return await self._summarize(run, killed, finished, in_flight)

    def _start_worker(self) -> None:
        command = [sys.executable, "-m", "perdure.cli", "worker", "perdure.cli.demo.shop:engine"]
        command += ["--lease", LEASE, "--log-level", "error", "--stop-at-eof"]
        with (self._folder / f"worker-{'AB'[len(self._workers)]}.log").open("wb") as log:
            worker = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command, cwd=self._folder, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )
        self._workers.append(worker)
        self._timeline.lane(len(self._workers) - 1, f"worker process {worker.pid} starts")

    async def _is_time_to_kill(self, run: Handle[Any]) -> bool:
        """True once a step is recorded, and another that has failed once is in flight again.

        While the step waited for its next attempt, the kill would leave open whether that attempt had begun.
        """
        kinds = {record.kind for record in await run.history()}
        _, in_flight = await self._steps_at_kill(run)
        again = {one.step for one in self._traces if one.attempt > 1}
        return RecordKind.STEP in kinds and not again.isdisjoint(in_flight)

    async def _steps_at_kill(self, run: Handle[Any]) -> tuple[list[str], list[str]]:
        """Return the finished steps, and those with an attempt that the history has not recorded."""
        history = await run.history()
        self._print_traces()
        finished = [record.location for record in history if record.kind is RecordKind.STEP]
        failed = {(record.location, record.attempts) for record in history if record.kind is RecordKind.ATTEMPT}
        open_ = {one.step for one in self._traces if (one.step, one.attempt) not in failed} - set(finished)
        return finished, sorted(open_)

    def _kill(self) -> KilledWorker:
        worker = self._workers[0]
        worker.send_signal(signal.SIGKILL)
        code = worker.wait()
        if code != -signal.SIGKILL:
            raise DemoFailed(f"worker A (process {worker.pid}) ended with {code} before it could be killed")
        self._timeline.across(f"kill -9 {worker.pid}: worker A is dead, with steps in flight", "bold red")
        return KilledWorker(worker.pid, signal.Signals(-code).name)

    async def _until(self, run: Handle[Any], question: Callable[[], Awaitable[Any]]) -> Any:
        """Print the timeline until the question has a truthy answer, and return that."""
        while True:
            answer = await question()
            await self._print_state(run)
            if answer:
                return answer
            code = self._workers[-1].poll()
            if code is not None or time.monotonic() > self._give_up_at:
                raise DemoFailed(self._describe_problem(code))
            await asyncio.sleep(_POLL)

    def _print_traces(self) -> None:
        """Print the traces that the steps have written since the last call."""
        path = self._folder / "activity.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        for line in lines[self._read :]:
            if not line.endswith(b"\n"):
                return
            self._read += 1
            one = _traces.decode(line)
            self._traces.append(one)
            again = f" (attempt {one.attempt})" if one.attempt > 1 else ""
            self._timeline.lane(int(one.pid != self._workers[0].pid), f"{one.step} {one.what}{again}")

    async def _print_state(self, run: Handle[Any]) -> None:
        now = await run.info()
        before, self._state = self._state, (now.status, now.reason)
        if now.worker is not None and now.worker not in self._holders:
            self._holders.append(now.worker)
            if len(self._holders) > 1:
                self._timeline.lane(1, "takes over: the lease of A has run out")
        # Read after the state, so that its causes are printed before it.
        self._print_traces()
        if self._state == before:
            return
        if now.status is Status.WAITING and now.reason is Reason.MESSAGE:
            self._timeline.across("the run waits for an approval; it uses no slot and no thread meanwhile")
        elif now.status is Status.WAITING and now.reason is Reason.TIMER:
            self._timeline.across("the run sleeps for 1.5 s; it could be a month")
        elif now.status.finished:
            self._timeline.across(f"the run is {now.status}", "bold green")

    async def _summarize(
        self, run: Handle[Any], killed: KilledWorker, finished: list[str], in_flight: list[str]
    ) -> Summary:
        second = self._workers[1]
        _stop(second)
        self._print_traces()
        effects = [line.split()[0] for line in (self._folder / "effects.log").read_text().splitlines()]
        steps = count_steps(self._traces, effects, killed.pid, finished, in_flight)
        outcome = await run.info()
        return Summary(
            ok=outcome.status is Status.COMPLETED and not any(step.repeated for step in steps),
            run=run.id,
            status=outcome.status.value,
            result=str(await run.result()),
            killed=killed,
            took_over=second.pid,
            in_flight=in_flight,
            steps=steps,
        )

    def _describe_problem(self, code: int | None) -> str:
        letter = "AB"[len(self._workers) - 1]
        log = (self._folder / f"worker-{letter}.log").read_text(errors="replace").strip()
        what = f"took longer than {_TIMEOUT:g} s" if code is None else f"ended by itself with {code}"
        return f"the demo failed: worker {letter} {what}; its log ends: {log[-500:] or '(empty)'}"


async def _waits_for_approval(run: Handle[Any]) -> bool:
    now = await run.info()
    return now.status is Status.WAITING and now.reason is Reason.MESSAGE


async def _is_finished(run: Handle[Any]) -> bool:
    return (await run.status()).finished


def _stop(worker: subprocess.Popen[bytes]) -> None:
    if worker.poll() is None:
        worker.terminate()
        try:
            worker.wait(timeout=15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
    if worker.stdin is not None:
        worker.stdin.close()


@click.command("demo", cls=Command, example="perdure demo --folder demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the database and the traces in this folder.",
)
@with_output
def command(folder: Path | None, output: Printer) -> None:
    """Watch a workflow survive a kill -9, in about ten seconds.

    The demo uses two worker processes and one SQLite file, and no server. Process A works on an order and is killed
    with SIGKILL in the middle; process B takes over. Steps that A had finished do not run again.
    """
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-") as name:
            _run(Path(name), output, kept=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.UsageError(f"the folder {folder} is not empty; name another")
    _run(folder, output, kept=True)


def _run(folder: Path, output: Printer, *, kept: bool) -> None:
    # SIGTERM raises KeyboardInterrupt, so that the worker processes are stopped with this one.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    summary = asyncio.run(Scenario(folder, Timeline(output)).run())
    if output.json:
        output.document(msgspec.to_builtins(summary))
    else:
        _print_summary(output, summary)
        if kept:
            output.line(f"Inspect the run: perdure show sqlite:///{folder}/shop.db {summary.run}")
    if not summary.ok:
        raise click.exceptions.Exit(1)


def _print_summary(output: Printer, summary: Summary) -> None:
    output.heading("Attempts and effects")
    rows = [
        (step.name, str(step.attempts_by_a), str(step.attempts_by_b), str(step.effects), step.note)
        for step in summary.steps
    ]
    output.table(("step", "attempts by A", "attempts by B", "effects", ""), rows)
    output.line("")
    output.line(
        f"Process {summary.killed.pid} (A) was killed with {summary.killed.signal}; {summary.took_over} (B) took over."
    )
    if summary.ok:
        output.line(f"The order is {summary.status}: {summary.result}. No finished step ran twice.", "bold green")
    else:
        output.line("A finished step ran twice. This is a bug: please report it.", "bold red")
    if summary.in_flight:
        were, them, effect = (
            ("were", "them", "their effects") if len(summary.in_flight) > 1 else ("was", "it", "its effect")
        )
        output.line(
            f"{' and '.join(summary.in_flight)} {were} in flight when A died, so B ran {them} again: "
            f"{effect} may happen twice. "
            "Use an idempotency key for such an effect, for example run id and location."
        )
