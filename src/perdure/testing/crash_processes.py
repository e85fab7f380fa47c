"""Resumption after a crash in helper processes, which have nothing in memory and other hash seeds."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import pickle
import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from perdure.testing.crash_state import CrashState, ExecutionEnd, ExecutionPlan, name_of_object, resume
from perdure.testing.environment import Environment
from perdure.testing.hash_seeds import RESUME, CodePlace, import_code, in_child, place_of_code, processes
from perdure.workflow.context import Context
from perdure.workflow.definition import workflow
from perdure.workflow.discover import Definable, definition_of

logger = logging.getLogger("perdure.testing")

#: States in one request, so that no request takes long.
_AT_ONCE = 10


class PortablePlan(msgspec.Struct, frozen=True):
    """A plan by the places that its parts can be imported from."""

    path: list[str]
    workflows: list[CodePlace]
    world: list[CodePlace]
    replacements: list[tuple[CodePlace | None, str, CodePlace]]
    errors: list[CodePlace]
    #: Pickled, because values of users are of any type.
    messages: bytes


class ResumeRequest(msgspec.Struct, frozen=True):
    """States to go on from."""

    plan: PortablePlan
    states: list[CrashState]


def portable_plan(plan: ExecutionPlan) -> PortablePlan | None:
    """Find out from where the parts of a plan are imported; None if one of them cannot be imported elsewhere."""
    if not hasattr(os, "fork"):
        return None
    codes = [one if isinstance(one, type) else definition_of(one) for one in plan.workflows]
    workflows = [place_of_code(code) for code in codes]
    modules = [code.__module__ for code in codes]
    world = [_place_of_object(one, modules) for one in plan.world]
    errors = [place_of_code(each) for each in plan.errors]
    replacements = [
        (None, replaced, place_of_code(fake)) if isinstance(replaced, str)
        else (place_of_code(replaced), "", place_of_code(fake))
        for replaced, fake in plan.replacements
    ]  # fmt: skip
    if None in workflows or None in world or None in errors:
        return None
    if any(fake is None or (place is None and not name) for place, name, fake in replacements):
        return None
    try:
        messages = pickle.dumps(plan.messages)
    except Exception:
        return None
    return PortablePlan(
        path=list(sys.path),
        workflows=[place for place in workflows if place is not None],
        world=[place for place in world if place is not None],
        replacements=[(place, name, fake) for place, name, fake in replacements if fake is not None],
        errors=[place for place in errors if place is not None],
        messages=messages,
    )


def _place_of_object(one: object, modules: Sequence[str]) -> CodePlace | None:
    found = name_of_object(one, modules)
    if found is None:
        return None
    module, name = found
    if sys.modules[module].__spec__ is None:
        # A script, or a module that exists only here.
        return None
    return CodePlace(module, name, getattr(sys.modules[module], "__file__", None) or "")


def resume_elsewhere(plan: PortablePlan, states: Sequence[CrashState]) -> list[ExecutionEnd] | str:
    """Go on from each state in a process of its own; returns the ends, in order, or a problem of the helpers."""
    parts = [list(states[start : start + _AT_ONCE]) for start in range(0, len(states), _AT_ONCE)]
    requests = [msgspec.msgpack.encode(ResumeRequest(plan, part)) for part in parts]
    ends: list[ExecutionEnd] = []
    for answer, problem in processes.spread(RESUME, requests):
        if problem:
            return problem
        ends += _ENDS.decode(answer)
    return ends


# the helper process


@workflow("perdure.testing.warm_up")
async def _warming(ctx: Context) -> None:
    await ctx.step(os.getpid)
    await ctx.sleep("1s")


def warm_up() -> None:
    """Execute a workflow, so that modules are imported, empty tables are made and caches are filled."""

    async def execute() -> None:
        async with Environment([_warming], auto_advance=True) as env:
            await (await env.start(_warming())).result()

    asyncio.run(execute())
    gc.collect()
    gc.freeze()


def answer(request: bytes) -> bytes:
    """Answer a request: import the code, then go on from each state in a child."""
    decoded = _REQUEST.decode(request)
    sys.path[:] = decoded.plan.path
    plan = _import_plan(decoded.plan)
    ends = [_ENDS.decode(in_child(partial(_resumed, plan, state)) or _LOST)[0] for state in decoded.states]
    return msgspec.msgpack.encode(ends)


def _resumed(plan: ExecutionPlan, state: CrashState) -> bytes:
    return msgspec.msgpack.encode([asyncio.run(resume(plan, state))])


def _import_plan(plan: PortablePlan) -> ExecutionPlan:
    workflows: list[Definable] = [import_code(place) for place in plan.workflows]
    return ExecutionPlan(
        workflows=tuple(workflows),
        world=tuple(import_code(place) for place in plan.world),
        replacements=tuple(
            (name if place is None else import_code(place), import_code(fake))
            for place, name, fake in plan.replacements
        ),
        errors=tuple(import_code(place) for place in plan.errors),
        messages=pickle.loads(plan.messages),  # noqa: S301 - of the parent process
    )


_REQUEST = msgspec.msgpack.Decoder(ResumeRequest)
_ENDS = msgspec.msgpack.Decoder(list[ExecutionEnd])
#: The end of an execution that ended its process.
_LOST = msgspec.msgpack.encode([ExecutionEnd("lost", None, None, b"")])
