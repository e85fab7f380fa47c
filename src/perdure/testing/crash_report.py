"""`crash_everywhere`: a run that crashes at each of its durable points, and is resumed each time."""

from __future__ import annotations

import asyncio
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from perdure.core.codec.failure import Failure
from perdure.core.model.claim import LoadedRun
from perdure.core.model.run import Run, Status
from perdure.core.printed_text import brief
from perdure.errors import DecodeError, UsageError
from perdure.testing.crash_processes import portable_plan, resume_elsewhere
from perdure.testing.crash_state import (
    RUN_ID,
    CrashEnvironment,
    CrashState,
    ExecutionEnd,
    ExecutionPlan,
    StateRecorder,
    check_world,
    dump_world,
    load_world,
    name_of_object,
    resume,
)
from perdure.testing.environment import StillWaiting
from perdure.testing.hash_seeds import Difference, compare, make_request, processes
from perdure.testing.strict import DeterminismGuard
from perdure.worker.workflow_guard import CodeLine
from perdure.workflow.definition import Call, Workflow
from perdure.workflow.discover import Definable, definition_of

_QUOTED = re.compile(r"'([^']+)'")

FindingKind = Literal["effect", "result", "divergence"]


class CrashFinding(Struct, frozen=True):
    """A difference that a crash makes."""

    #: `effect`: the world differs. `result`: the run ends otherwise. `divergence`: the code takes another path.
    kind: FindingKind
    #: Location of the operation at the crash, or the line of code at fault.
    location: str
    #: Description of the difference.
    text: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.location}: {self.text}"


class CrashReport(Struct, frozen=True):
    """Result of `crash_everywhere`."""

    #: Number of crashes.
    crashes: int
    #: Differences from the execution without a crash.
    findings: tuple[CrashFinding, ...]
    #: True if the run was resumed in other processes, which have nothing in memory and other hash seeds.
    isolated: bool

    @property
    def ok(self) -> bool:
        """True if no crash makes a difference."""
        return not self.findings

    def __str__(self) -> str:
        if self.ok:
            return f"{self.crashes} crashes made no difference"
        return "\n".join([f"{self.crashes} crashes, {len(self.findings)} findings:", *map(str, self.findings)])


async def crash_everywhere(
    call: Call[Any],
    *,
    workflows: Iterable[Definable] = (),
    world: object = None,
    messages: Sequence[tuple[str, object]] = (),
    replace: Mapping[Any, Callable[..., Any]] | None = None,
    errors: Iterable[type[Exception]] = (),
    result_key: Callable[[Any], object] | None = None,
) -> CrashReport:
    """Execute a run once, then crash it at each durable point and resume it; report what a crash changes.

    `workflows` are the other workflows and activities that the run needs. `world` is the object, or a tuple of objects,
    that stands for systems outside of the program: it survives a crash, and its contents are compared. `messages` are
    names and values; each is sent once the run waits for its name. `replace` replaces steps, as `Environment.replace`.
    `result_key` picks the part of the result that is compared. The world is left as it was found.

    If the workflows, the world and the replacements are at the top level of modules, the run is resumed in other
    processes. Otherwise it is resumed in this one, which does not find memory that a crash would lose.

    Raises `StillWaiting` if the run does not end without a crash, and `UsageError`.
    """
    if not isinstance(call, Call) or call.definition is None:
        raise UsageError(f"crash_everywhere({brief(call)}): give a call of a workflow, such as checkout(order)")
    code = {definition.type: definition for definition in (call.definition, *map(definition_of, workflows))}
    plan = ExecutionPlan(
        workflows=tuple(code.values()),
        world=check_world(world),
        messages=tuple(messages),
        replacements=tuple((replace or {}).items()),
        errors=tuple(errors),
    )
    before = dump_world(plan.world)
    try:
        return await _Crashes(plan, call, result_key).report()
    finally:
        load_world(plan.world, before)


class _NotingGuard(DeterminismGuard):
    """Notes what a strict environment would refuse."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, int], CrashFinding] = {}

    def saw(self, place: CodeLine, what: str, remedy: str) -> None:
        """Note the problem, once for each line of code."""
        self.found.setdefault((place.file, place.line), CrashFinding("divergence", str(place), f"{what}; {remedy}"))


class _Crashes:
    """The executions of one `crash_everywhere`."""

    def __init__(self, plan: ExecutionPlan, call: Call[Any], result_key: Callable[[Any], object] | None) -> None:
        self._plan = plan
        self._call = call
        self._result_key = result_key
        self._findings: list[CrashFinding] = []

    async def report(self) -> CrashReport:
        plan = self._plan
        before = dump_world(plan.world)
        guard = _NotingGuard()
        env = plan.environment()
        env.use_guard(guard)
        async with env:
            recorder = StateRecorder(env, plan.world)
            env.clock.crash_point = recorder.pass_point
            await env.start(self._call, id=RUN_ID)
            run = await env.drive(plan.messages)
            env.clock.crash_point = None
            states = recorder.finish()
            await _check_over(env, run)
            end = await env.end(run, plan.world)
            self._findings += guard.found.values()
            loaded = await _load_all(env)
            portable = portable_plan(plan)
            # The process with the first seed resumes.
            await self._replay(env, loaded, first=0 if portable is None else 1)
            ends: list[ExecutionEnd] | str = ""
            if portable is not None:
                ends = await asyncio.to_thread(resume_elsewhere, portable, states)
            isolated = not isinstance(ends, str)
            if isinstance(ends, str):
                load_world(plan.world, before)
                ends = [await resume(plan, state) for state in states]
            for state, other in zip(states, ends, strict=True):
                self._compare(env, state, end, other)
        unique = tuple(dict.fromkeys(self._findings))
        return CrashReport(len(states), unique, isolated)

    async def _replay(self, env: CrashEnvironment, loaded: list[LoadedRun], first: int) -> None:
        """Replay the runs here, after they were executed here, and in processes with other hash seeds."""
        session = env.session
        workflows = [one for one in loaded if isinstance(session.workflows.get(one.run.type), Workflow)]
        found = [compare(session, one.run, one.records) for one in workflows]
        request = make_request(session, self._plan.errors, workflows)
        if request.runs:
            found += await asyncio.to_thread(processes.replay, request, first)
        self._findings += [_finding_of(one) for one in found if one is not None]

    def _compare(self, env: CrashEnvironment, state: CrashState, end: ExecutionEnd, other: ExecutionEnd) -> None:
        when = "after" if state.written else "before"
        crash = f"after a crash {when} the record of {state.place} was written, "

        def found(kind: FindingKind, text: str) -> None:
            self._findings.append(CrashFinding(kind, state.place, crash + text))

        if other.diverged:
            for run_id, error in other.diverged:
                found("divergence", f"run {run_id!r} is blocked: {Failure.read(error).message}")
            return
        if other.status != end.status:
            why = f" with {_described(other.error)}" if other.error else ""
            found("result", f"the run is {other.status}{why}; without the crash it is {end.status}")
        elif (mine := self._result(env, end)) != (its := self._result(env, other)):
            found("result", f"the result is {brief(its)} instead of {brief(mine)}")
        if other.world:
            for text in world_differences(self._plan.world, end.world, other.world):
                found("effect", text)

    def _result(self, env: CrashEnvironment, end: ExecutionEnd) -> object:
        if end.status != Status.COMPLETED.value:
            return _described(end.error)
        assert self._call.definition is not None
        try:
            value = env.session.codec.decode(end.output or "null", self._call.definition.signature.returns, "result")
        except DecodeError:
            return end.output
        return value if self._result_key is None else self._result_key(value)


async def _check_over(env: CrashEnvironment, run: Run) -> None:
    if not run.status.finished:
        raise StillWaiting(
            f"the run does not end without a crash: {await env.why(run)} Give the messages that it waits for, in "
            "crash_everywhere(..., messages=[(name, value)]), and its other workflows, in workflows=[...]"
        )
    if env.unsent:
        names = ", ".join(map(brief, sorted(env.awaited))) or "no message"
        raise UsageError(
            f"the run ended without the message {brief(env.unsent[0][1][0])}, for which it did not wait; it waits for "
            f"{names}"
        )


async def _load_all(env: CrashEnvironment) -> list[LoadedRun]:
    ids = [id for (id,) in await env.store.query("SELECT id FROM perdure_runs ORDER BY id")]
    return list(await env.store.load(ids))


def _finding_of(difference: Difference) -> CrashFinding:
    named = _QUOTED.search(difference.expected) or _QUOTED.search(difference.found)
    return CrashFinding(
        "result" if difference.is_result else "divergence",
        named.group(1) if named is not None else difference.type,
        f"a replay of run {difference.run_id!r} ({difference.type}) expected {difference.expected} and found "
        f"{difference.found}; the code may use hash(), id(), the order of a set, or variables that outlive the run",
    )


def _described(error: str | None) -> str:
    failure = Failure.read(error)
    return f"{failure.type.rpartition('.')[2]}: {failure.message}"


# the world


def world_differences(world: Sequence[object], expected: bytes, found: bytes) -> list[str]:
    """Describe how two states of the world differ. The order of collections does not count."""
    texts: list[str] = []
    states = zip(world, pickle.loads(expected), pickle.loads(found), strict=True)  # noqa: S301 - of our own processes
    for one, mine, its in states:
        if mine != its:
            named = name_of_object(one, ())
            label = type(one).__name__ if named is None else named[1]
            texts += _differences(_entries(label, mine), _entries(label, its))
    return texts


_Entries = Counter[tuple[str, str, bool]]


def _entries(path: str, value: object) -> _Entries:
    """The contents of a value: where they are, what they are, and whether they are items of a collection."""
    entries: _Entries = Counter()
    if isinstance(value, dict):
        for key, inner in value.items():
            entries += _entries(f"{path}[{key!r}]" if "." in path else f"{path}.{key}", inner)
    elif isinstance(value, list | tuple | set | frozenset):
        entries.update((path, _shown(item), True) for item in value)
    else:
        entries[path, _shown(value), False] = 1
    return entries


def _differences(mine: _Entries, its: _Entries) -> list[str]:
    texts: list[str] = []
    for path, shown, is_item in sorted(set(mine) | set(its)):
        expected, found = mine[path, shown, is_item], its[path, shown, is_item]
        if found == expected:
            continue
        if is_item and found and expected:
            texts.append(f"{path} has {shown} {_times(found)} instead of {_times(expected)}")
        elif is_item:
            texts.append(f"{path} has {shown}, which it lacks otherwise" if found else f"{path} lacks {shown}")
        elif found:
            other = next((text for where, text, inside in mine if where == path and not inside), None)
            texts.append(f"{path} is {shown}" + (", and not otherwise" if other is None else f" instead of {other}"))
    if not texts and mine != its:
        missing = sorted({path for path, _, _ in mine - its})
        texts.append(f"{', '.join(missing)} is missing")
    return texts


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _shown(value: object) -> str:
    """Describe a value, without addresses of objects."""
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        fields = ", ".join(f"{name}={_shown(field)}" for name, field in sorted(vars(value).items()))
        return f"{type(value).__name__}({fields})"
    return repr(value)
