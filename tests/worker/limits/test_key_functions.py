"""Key functions of limits, of `Fair` and of singletons: how they get the arguments, and what is refused."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import Call, Context, Engine, Fair, Handle, Limit, Status, activity, step, workflow
from perdure.admin import Reason
from tests.stage import Stage, until


class Keys:
    """Keys by a method and by a callable object."""

    def by_method(self, region: str, tenant: str) -> str:
        return f"{tenant}@{region}"

    def __call__(self, tenant: str) -> str:
        return tenant


def joined(separator: str, region: str, tenant: str) -> str:
    return f"{tenant}{separator}{region}"


#: Key functions by their shape, and the key that each computes from a tenant and a region.
SHAPES: dict[str, tuple[Callable[..., Any], str]] = {
    "one": (lambda tenant: tenant, "{tenant}"),
    "last": (lambda region: region, "{region}"),
    "reversed": (lambda region, tenant, number: f"{tenant}@{region}:{number}", "{tenant}@{region}:1"),
    "subset": (lambda region, tenant: f"{tenant}@{region}", "{tenant}@{region}"),
    "keyword": (lambda *, tenant: tenant, "{tenant}"),
    "everything": (lambda **given: "-".join(map(str, given.values())), "1-{tenant}-{region}"),
    "rest": (lambda tenant, **rest: f"{tenant}+{sorted(rest)}", "{tenant}+['number', 'region']"),
    "own": (lambda tenant, suffix="x": f"{tenant}.{suffix}", "{tenant}.x"),
    "whole": (lambda number: number, "1"),
    "nothing": (lambda: "all", "all"),
    "partial": (functools.partial(joined, "|"), "{tenant}|{region}"),
    "method": (Keys().by_method, "{tenant}@{region}"),
    "object": (Keys(), "{tenant}"),
}
LIMITS = [Limit(shape, key=key, concurrency=5) for shape, (key, _) in SHAPES.items()]

#: The same arguments by position, by name, and with a default: the tenant is `a` and the region `eu`.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "position": ((1, "a", "eu"), {}),
    "name": ((), {"region": "eu", "tenant": "a", "number": 1}),
    "mixed": ((1,), {"region": "eu", "tenant": "a"}),
    "default": ((1, "a"), {}),
}
EXPECTED = {f"{shape}/{text.format(tenant='a', region='eu')}" for shape, (_, text) in SHAPES.items()}


async def limits_of(engine: Engine) -> set[str]:
    return {one.name for one in await engine.limits.list(limit=500) if not one.name.startswith(("type:", "step:"))}


@activity("keys.leaf.v1", limit=LIMITS)
async def leaf(number: int, tenant: str, region: str = "eu") -> str:
    return tenant


@activity("keys.positional.v1", limit=LIMITS)
async def positional(number: int, tenant: str, /, region: str = "eu") -> str:
    return tenant


@activity("keys.bare.v1")
async def bare(number: int, tenant: str, region: str = "eu") -> str:
    return tenant


@workflow("keys.flow.v1", limit=LIMITS)
async def flow(ctx: Context, number: int, tenant: str, region: str = "eu") -> str:
    return tenant


def plain(number: int, tenant: str, region: str = "eu") -> str:
    return tenant


@step(limit=LIMITS)
def declared(number: int, tenant: str, region: str = "eu") -> str:
    return tenant


@step(limit=LIMITS)
async def declared_async(number: int, tenant: str, region: str = "eu") -> str:
    return tenant


class Service:
    """A step that is a method, and one that is an object."""

    @step(limit=LIMITS[:5])
    def charge(self, number: int, tenant: str, region: str = "eu") -> str:
        return tenant

    @step(limit=LIMITS[:5])
    def __call__(self, number: int, tenant: str, region: str = "eu") -> str:
        return tenant


async def write(connection: Any, number: int, tenant: str, region: str = "eu") -> str:
    return tenant


Step = Callable[[Context, tuple[Any, ...], dict[str, Any]], Awaitable[Any]]

#: Ways to call a step with the limits.
STEPS: dict[str, Step] = {
    "declared": lambda ctx, args, kwargs: ctx.step(declared, *args, **kwargs),
    "async": lambda ctx, args, kwargs: ctx.step(declared_async, *args, **kwargs),
    "options": lambda ctx, args, kwargs: ctx.options(limit=LIMITS).step(plain, *args, **kwargs),
    "transaction": lambda ctx, args, kwargs: ctx.options(limit=LIMITS).transaction(write, *args, **kwargs),
    "partial": lambda ctx, args, kwargs: ctx.step(functools.partial(declared, *args), **kwargs),
}


@workflow("keys.steps.v1")
async def steps(ctx: Context, how: str, call: str) -> str:
    args, kwargs = CALLS[call]
    return str(await STEPS[how](ctx, args, kwargs))


def runs(kind: str, call: str) -> Call[Any]:
    """The call of a run with the limits."""
    args, kwargs = CALLS[call]
    match kind:
        case "workflow":
            return flow(*args, **kwargs)
        case "activity":
            return leaf(*args, **kwargs)
        case "positional":
            kwargs = {"region": kwargs["region"]} if "region" in kwargs else {}
            return positional(*(args if len(args) > 1 else (1, "a")), **kwargs)
        case "call":
            return bare(*args, **kwargs).options(limit=LIMITS)
    return steps(kind, call)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["workflow", "activity", "positional", "call", *STEPS])
async def test_a_key_gets_the_arguments_of_any_call_by_name(stage: Stage, kind: str, call: str) -> None:
    engine = stage.engine(flow, leaf, positional, bare, steps)
    async with engine.worker():
        assert await (await engine.start(runs(kind, call))).result("60s") == "a"
        assert await limits_of(engine) == EXPECTED
