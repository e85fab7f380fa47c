"""The workflow that executes any program, and what it is made of.

What the workflow has seen goes into the arguments of every step, and every execution of a step returns something new.
So a result that was acted upon and then lost, replaced or given twice leaves a mark.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

from perdure.core.policy.retry import Retry
from perdure.errors import RunFinished, StepInterrupted, WorkflowError
from perdure.replay.execution import Execution
from perdure.workflow.activity import Activity
from perdure.workflow.channels import Channel
from perdure.workflow.context import Context
from perdure.workflow.definition import Call, Workflow
from perdure.workflow.other_run import OtherRun
from perdure.workflow.run_settings import NO_SETTINGS
from tests.simulation import programs
from tests.simulation.guards import Guard, Guards
from tests.simulation.language import Language, Log
from tests.simulation.programs import (
    DEMAND,
    NEWS,
    ONCE,
    QUESTION,
    Act,
    Anew,
    Announce,
    Answer,
    Answers,
    Await,
    Bug,
    Child,
    Cleanup,
    Contest,
    Deed,
    FirstEnd,
    Gather,
    Group,
    Guarded,
    Handle,
    Join,
    Limit,
    Lined,
    Listen,
    Loop,
    Map,
    Once,
    Op,
    Other,
    Outcome,
    Program,
    Race,
    Receive,
    ReceiveAny,
    Saga,
    Shield,
    Show,
    Sleep,
    Spawn,
    Stand,
    Step,
    Tell,
    Try,
    Typed,
    Version,
    answer_of,
)
from tests.simulation.steps import ACT, GIVEN, Steps

PLAIN = "sim.plain"
STUBBORN = "sim.stubborn"
#: A workflow of which only so many go on at once.
BOUNDED = "sim.bounded"

#: How much of what it has seen a step is told.
_MEMORY = 8

_RETRY = Retry(attempts=3, initial=0.3, factor=3.0, jitter=0.2)


class Interpreter:
    """Executes programs; counts in `sometimes`, where that is wanted, what came before what."""

    def __init__(self, steps: Steps, sometimes: Counter[str] | None = None) -> None:
        # Bound once: the engine looks at a step's signature once for each function that it is given.
        self._work, self._write, self._undo = steps.work, steps.write, steps.undo
        self._work_once = steps.work_once
        self._work_guarded, self._write_guarded, self._begin = steps.work_guarded, steps.write_guarded, steps.begin
        self._guards = steps.guards
        self._worker, self._build = steps.worker, steps.build
        self._ledger = steps.ledger
        self._broken = steps.broken
        self._sometimes: Counter[str] = Counter() if sometimes is None else sometimes
        self.activity: Activity[Any, str] = Activity(ACT, steps.perform, settings=NO_SETTINGS)
        self._language = Language(self._run, self._child_of, self._next_of)
        self.workflows: tuple[Workflow[Any, list[str]], ...] = (
            Workflow(PLAIN, self.main, retry=None),
            Workflow(STUBBORN, self.main_again, retry=Retry(attempts=3, initial=0.5, jitter=0)),
        )
        self.guarded: dict[str, Activity[Any, str]] = {}
        if steps.guards is not None:
            flows = steps.guards.flows
            self.workflows += (Workflow(BOUNDED, self.main_bounded, retry=None, limits=flows.limits, fair=flows.fair),)
            guards = {f"{ACT}.{number}": guard for number, guard in enumerate(steps.guards.all)}
            self.guarded = {type: _guarded(type, guard, steps) for type, guard in (*guards.items(), (GIVEN, Guard([])))}

    async def main(
        self, ctx: Context, program: str, seen: tuple[str, ...] = (), taken: tuple[str, ...] = ()
    ) -> list[str]:
        """Run a program; what it saw, in the order in which it saw it, after what it had seen before it began anew."""
        self._ledger.executes(ctx.run_id, self._build)
        log = Log(seen, taken)
        await self._run(ctx, programs.decode(program), log)
        return list(log)

    async def main_again(
        self, ctx: Context, program: str, seen: tuple[str, ...] = (), taken: tuple[str, ...] = ()
    ) -> list[str]:
        """The same, where what was slept in an earlier attempt is not slept again."""
        self._ledger.executes(ctx.run_id, self._build)
        log = Log(seen, taken, slept=True)
        await self._run(ctx, programs.decode(program), log)
        return list(log)

    async def main_bounded(self, ctx: Context, key: str, program: str) -> list[str]:
        """The same, of which only so many go on at once."""
        self._begin(ctx.run_id, key)
        return await self.main(ctx, program)

    @property
    def definitions(self) -> tuple[Workflow[Any, Any] | Activity[Any, Any], ...]:
        """All that a worker serves."""
        return *self.workflows, self.activity, *self.guarded.values()

    def _child_of(self, body: Program) -> Call[list[str]]:
        return self.workflows[0](programs.encode(body))

    def _next_of(self, body: Program, log: Log) -> Call[list[str]]:
        workflow = self.workflows[1 if log.slept else 0]
        return workflow(programs.encode(body), tuple(log[-_MEMORY:]), tuple(log.taken))

    async def _run(self, ctx: Context, program: Program, log: Log) -> None:
        for op in program:
            await self._one(ctx, op, log)

    async def _one(self, ctx: Context, op: Op, log: Log) -> None:
        match op:
            case Step():
                log.append(await self._step(ctx, op, log))
            case Once(seconds=seconds):
                await self._once(ctx, seconds, log)
            case Other():
                await self._other(ctx, op, log)
            case Stand(body=body, back=back):
                await self._stand(ctx, body, back, log)
            case Act():
                log.append(await ctx.call(call_of(self.activity, op, log)))
            case Lined():
                assert self._guards is not None
                log.append(await ctx.call(call_of_lined(self.guarded[type_of(op)], self._guards, op, log)))
            case Guarded():
                log.append(await self._guarded_step(ctx, op, log))
            case Show() | Tell() | ReceiveAny() | Version() | Answer() | Listen() | Handle() | Announce() | Await():
                await self._effect(ctx, op, log)
            case (
                Join()
                | Contest()
                | Typed()
                | FirstEnd()
                | Map()
                | Loop()
                | Saga()
                | Outcome()
                | Shield()
                | Spawn()
                | Anew()
            ):
                await self._language.perform(ctx, op, log)
            case Deed(name=name, failures=failures):
                deed = ctx.options(name=name, retry=_RETRY).transaction(self._write, log[-_MEMORY:], failures)
                log.append(await deed)
            case Sleep(seconds=seconds, plain=plain):
                until = ctx.now() + timedelta(seconds=seconds)
                await (asyncio.sleep(seconds) if plain else ctx.sleep(seconds))
                if ctx.now() < until and not log.slept and not self._ledger.may_sleep_less(ctx.run_id):
                    self._ledger.violated(f"run {ctx.run_id} slept until {ctx.now()} instead of {until}")
            case Receive(name=name, timeout=timeout):
                await self._receive(ctx, name, timeout, log)
            case Limit(seconds=seconds, body=body):
                await self._limit(ctx, seconds, body, log)
            case Try(body=body):
                await self._try(ctx, body, log)
            case Cleanup(body=body, name=name):
                try:
                    await self._run(ctx, body, log)
                finally:
                    log.append(await self._step(ctx, Step(name), log))
            case Child(body=body, stubborn=stubborn):
                call: Call[list[str]] = self.workflows[1 if stubborn else 0](programs.encode(body))
                log.append("child " + " ".join(await ctx.call(call)))
            case Gather(branches=branches, tolerant=tolerant):
                await asyncio.gather(*self._branches(ctx, branches, log), return_exceptions=tolerant)
            case Group(branches=branches):
                async with asyncio.TaskGroup() as group:
                    for branch in self._branches(ctx, branches, log):
                        group.create_task(branch)
            case Bug():
                self._bug()
            case Race(branches=branches):
                await self._race(ctx, branches, log)

    def _bug(self) -> None:
        if self._broken:
            self._ledger.sometimes["the code of a run was broken"] += 1
            raise NameError("name 'undefined' is not defined")

    def _branches(self, ctx: Context, branches: Sequence[Program], log: Log) -> list[Any]:
        return [self._run(ctx, branch, log) for branch in branches]

    async def _step(self, ctx: Context, op: Step, log: Log) -> str:
        undo = self._undo if op.undo else None
        options = ctx.options(name=op.name, retry=_RETRY, timeout=op.timeout, ephemeral=op.ephemeral, undo=undo)
        return await options.step(self._work, log[-_MEMORY:], op.seconds, op.failures, op.fatal, op.ephemeral)

    async def _once(self, ctx: Context, seconds: float, log: Log) -> None:
        try:
            options = ctx.options(name=ONCE, at_most_once=True)
            log.append(await options.step(self._work_once, log[-_MEMORY:], seconds))
        except StepInterrupted:
            log.append("interrupted")
            self._sometimes["a step that must not run twice was interrupted"] += 1

    async def _other(self, ctx: Context, op: Other, log: Log) -> None:
        other = ctx.run(ctx.start(self._child_of(op.body)))
        try:
            async with asyncio.timeout(op.seconds or None):
                if op.follow:
                    await self._follow(other, log)
                log.append("other " + " ".join(await other.result(list[str])))
            self._sometimes["a run that is no child was waited for"] += 1
        except TimeoutError:
            log.append("too late")
            self._sometimes["a wait for another run was given up"] += 1
        except Exception:
            self._sometimes["a run that is no child failed those that waited"] += 1
            raise

    async def _follow(self, other: OtherRun, log: Log) -> None:
        try:
            log.append(f"published {await other.wait_state('at', lambda at: at >= 0, int)}")
            self._sometimes["a state of another run was waited for"] += 1
        except RunFinished:
            log.append("unpublished")
        items = [item async for item in other.stream("stream", str)]
        if [item.position for item in items] != list(range(len(items))):
            self._ledger.violated(f"the stream of run {other.id} was read as {items}")
        if items:
            self._sometimes["the stream of another run was followed"] += 1
        log.append(f"followed {len(items)} {await other.state('at', int)}")

    async def _stand(self, ctx: Context, body: Program, back: bool, log: Log) -> None:
        try:
            await self._run(ctx, body, log)
        except asyncio.CancelledError:
            execution = cast("Execution", ctx._runtime)
            try:
                execution.check_main("stand")
            except WorkflowError:
                raise asyncio.CancelledError from None
            if not execution.cancel_requested:
                raise
            if back:
                ctx.uncancel()
            self._sometimes["a cancellation was taken back" if back else "a cancellation was swallowed"] += 1
            log.append("stood")

    async def _guarded_step(self, ctx: Context, op: Guarded, log: Log) -> str:
        assert self._guards is not None
        guard = self._guards.all[op.guard].of_steps()
        options = ctx.options(
            name=op.deed or f"g{op.guard}",
            retry=_RETRY,
            timeout=None if op.deed else op.timeout,
            limit=guard.limits or None,
            breaker=guard.breaker,
        )
        seen = log[-_MEMORY:]
        if op.deed:
            return await options.transaction(self._write_guarded, op.key, op.guard, seen, op.failures)
        return await options.step(self._work_guarded, op.key, op.guard, seen, op.seconds, op.failures, op.fatal)

    async def _effect(
        self,
        ctx: Context,
        op: Show | Tell | ReceiveAny | Version | Answer | Listen | Handle | Announce | Await,
        log: Log,
    ) -> None:
        match op:
            case Handle():
                self._answer_all(ctx)
            case Announce(topic=topic, key=key, named=named):
                ctx.publish_event(topic, str(ctx.uuid()), key=key, id=str(ctx.uuid()) if named else None)
            case Await(name=name, timeout=timeout):
                await self._await(ctx, name, timeout, log)
            case Show(items=items):
                ctx.publish("at", len(log))
                for number in range(items):
                    ctx.emit("stream", f"{len(log)}.{number}")
            case Tell(name=name):
                ctx.send(ctx.run_id, name, f"message {ctx.uuid()}")
            case Answer(timeout=timeout):
                await self._answer(ctx, timeout, log)
            case Listen(correlation=correlation, timeout=timeout):
                await self._listen(ctx, correlation, timeout, log)
            case Version(name=name):
                log.append(f"version {ctx.version(name, 1)} {ctx.patched(name)}")
            case ReceiveAny(timeout=timeout, many=many):
                try:
                    if many:
                        received: list[str] = await ctx.receive_many("go", str, limit=2, timeout=timeout)
                        for message in received:
                            log.take(message)
                    else:
                        channels = Channel("go", str), Channel("stop", str)
                        log.take((await ctx.receive_any(*channels, timeout=timeout)).value)
                except TimeoutError:
                    log.append("nothing came")

    def _answer_all(self, ctx: Context) -> None:
        """Answer every question: refuse it, answer it with an error, after a step, or at once."""

        def check(asked: str) -> None:
            self._ledger.validates(ctx.run_id, self._worker, asked)
            if answer_of(asked) is Answers.REFUSED:
                raise ValueError(f"nothing is said about {asked}")

        def handle(asked: str) -> Any:
            if answer_of(asked) is Answers.ERROR:
                raise ValueError(f"nothing is known about {asked}")
            return after_a_step(asked) if answer_of(asked) is Answers.LATER else f"answer to {asked}"

        async def after_a_step(asked: str) -> str:
            await ctx.options(name="handled", retry=_RETRY).step(self._work, [], 0.1, 0, False, False)
            return f"answer to {asked}"

        ctx.answer(DEMAND, handle, str, validate=check)

    async def _await(self, ctx: Context, name: str, timeout: float | None, log: Log) -> None:
        try:
            async with asyncio.timeout(timeout):
                value = await ctx.event(name, str)
        except TimeoutError:
            log.append(f"no {name}")
        else:
            log.append(value)
            self._sometimes["a sticky event was seen"] += 1
            if value not in self._ledger.emitted_events:
                self._ledger.violated(f"run {ctx.run_id} saw {value!r} as the event {name}, which was not emitted")

    async def _answer(self, ctx: Context, timeout: float, log: Log) -> None:
        try:
            asked = await ctx.receive_question(QUESTION, str, timeout=timeout)
        except TimeoutError:
            log.append("no question came")
        else:
            log.append(f"asked {asked.value}")
            asked.reply(f"answer to {asked.value}")

    async def _listen(self, ctx: Context, correlation: str, timeout: float | None, log: Log) -> None:
        try:
            log.take(await ctx.receive(NEWS, str, correlation=correlation, timeout=timeout))
        except TimeoutError:
            log.append("no news")
        else:
            self._sometimes["a broadcast was received"] += 1

    async def _receive(self, ctx: Context, name: str, timeout: float | None, log: Log) -> None:
        try:
            log.take(await ctx.receive(name, str, timeout=timeout))
        except TimeoutError:
            log.append(f"no {name}")
            self._sometimes["a timeout came before its message"] += 1
        else:
            self._sometimes["a message came before its timeout"] += timeout is not None

    async def _limit(self, ctx: Context, seconds: float, body: Program, log: Log) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._run(ctx, body, log)
        except TimeoutError:
            log.append("too late")

    async def _try(self, ctx: Context, body: Program, log: Log) -> None:
        try:
            await self._run(ctx, body, log)
        except Exception as error:
            log.append(f"caught {type(error).__name__}")

    async def _race(self, ctx: Context, branches: Sequence[Program], log: Log) -> None:
        tasks = [asyncio.create_task(branch) for branch in self._branches(ctx, branches, log)]
        done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        log.append(f"winner {[task in done for task in tasks]}")
        for task in pending:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def call_of(activity: Activity[Any, str], act: Act, seen: Sequence[str] = ()) -> Call[str]:
    """An activity, as it is to be called after a workflow has seen that."""
    call: Call[str] = activity(list(seen[-_MEMORY:]), act.seconds, act.beats, act.failures, act.fatal, act.pending)
    return _with_options(call, act)


def type_of(lined: Lined) -> str:
    """The type of an activity that has to pass gates."""
    return GIVEN if lined.given else f"{ACT}.{lined.guard}"


def call_of_lined(activity: Activity[Any, str], guards: Guards, lined: Lined, seen: Sequence[str] = ()) -> Call[str]:
    """The same of one that has to pass gates."""
    act, told = lined.act, list(seen[-_MEMORY:])
    call: Call[str] = activity(lined.key, lined.guard, told, act.seconds, act.beats, act.failures, act.fatal)
    if lined.given:
        guard = guards.all[lined.guard].of_calls()
        call = call.options(limit=guard.limits, fair=guard.fair, breaker=guard.breaker)
    return _with_options(call, act)


def is_act(type: str) -> bool:
    """Whether runs of a type are activities."""
    return type.startswith(ACT)


def _guarded(type: str, guard: Guard, steps: Steps) -> Activity[Any, str]:
    return Activity(
        type,
        steps.perform_guarded,
        settings=NO_SETTINGS,
        limits=guard.limits,
        fair=guard.fair,
        breaker=guard.breaker,
    )


def _with_options(call: Call[str], act: Act) -> Call[str]:
    return call.options(
        retry=Retry(attempts=act.attempts, initial=0.3, factor=3.0, jitter=0.2),
        schedule_to_start=act.start,
        start_to_close=act.close,
        schedule_to_close=act.total,
        heartbeat=act.heartbeat,
    )
