"""Key functions of limits, of `Fair` and of singletons: how they get the arguments, and what is refused."""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from perdure import (
    Call,
    Context,
    Engine,
    Fair,
    Limit,
    RunFailed,
    Singleton,
    Status,
    UsageError,
    activity,
    step,
    workflow,
)
from perdure.admin import Reason
from perdure.core.limits.key_function import KeyFunction
from perdure.core.limits.limit import RequiredGates
from perdure.core.policy.singleton import stored_singleton_of
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Workflow
from tests.helpers import eventually
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


METHOD_LIMITS = [one for one in LIMITS if one.name in ("last", "subset", "keyword", "everything")]


class Service:
    """A step that is a method, and one that is an object."""

    @step(limit=METHOD_LIMITS)
    def charge(self, number: int, tenant: str, region: str = "eu") -> str:
        return tenant

    @step(limit=METHOD_LIMITS)
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
        assert await (await engine.start(runs(kind, call))).result("20s") == "a"
        assert await limits_of(engine) == EXPECTED


@workflow("keys.methods.v1")
async def methods(ctx: Context) -> str:
    service = Service()
    await ctx.step(service.charge, 1, "a")
    await ctx.step(service.charge, tenant="a", number=1)
    await ctx.step(service, 1, "a")
    return str(await ctx.step(functools.partial(service, region="eu"), 1, "a"))


async def test_a_method_an_object_and_a_partial_of_them_have_the_limit_of_their_arguments(stage: Stage) -> None:
    engine = stage.engine(methods)
    async with engine.worker():
        assert await (await engine.start(methods())).result("20s") == "a"
        assert await limits_of(engine) == {"last/eu", "subset/a@eu", "keyword/a", "everything/1-a-eu"}


def collect(tenant: str, *rest: int, **more: str) -> str:
    return tenant


@workflow("keys.collect.v1")
async def collecting(ctx: Context) -> str:
    limits = [
        Limit("more", key=lambda tenant, region: f"{tenant}@{region}", concurrency=1),
        Limit("rest", key=lambda rest: f"{len(rest)}", concurrency=1),
        Limit("all", key=lambda **given: "-".join(sorted(given)), concurrency=1),
    ]
    return str(await ctx.options(limit=limits).step(collect, "a", 1, 2, region="eu"))


async def test_a_key_names_an_argument_that_a_step_collects(stage: Stage) -> None:
    engine = stage.engine(collecting)
    async with engine.worker():
        assert await (await engine.start(collecting())).result("20s") == "a"
        assert await limits_of(engine) == {"more/a@eu", "rest/2", "all/region-rest-tenant"}


FAIR: dict[str, Activity[..., Any] | Workflow[..., Any]] = {}
for _shape, (_key, _) in SHAPES.items():
    FAIR[_shape] = activity(f"keys.fair.{_shape}.v1", limit=Limit("turns", concurrency=1), fair=Fair(_key))(plain)
    FAIR[f"{_shape} of a workflow"] = workflow(
        f"keys.fairflow.{_shape}.v1", limit=Limit("turns", concurrency=1), fair=Fair(_key)
    )(flow.function)


@pytest.mark.parametrize("call", CALLS)
async def test_a_key_of_fair_gets_the_arguments_of_any_call_by_name(stage: Stage, call: str) -> None:
    @activity("keys.holder.v1", limit=Limit("turns", concurrency=1))
    async def holder() -> None:
        begun.set()
        await over.wait()

    begun, over = asyncio.Event(), asyncio.Event()
    engine = stage.engine(holder, *FAIR.values())
    args, kwargs = CALLS[call]
    expected = sorted(text.format(tenant="a", region="eu") for _, text in SHAPES.values() for _ in range(3))

    async def all_wait() -> bool:
        found = [
            RequiredGates.from_json(text).fair_key for [text] in await stage.rows("SELECT gating FROM perdure_lines")
        ]
        return sorted(found) == expected

    async with engine.worker():
        await engine.start(holder())
        await begun.wait()
        for one in FAIR.values():
            await engine.start(one(*args, **kwargs))
        for shape, (key, _) in SHAPES.items():
            await engine.start(FAIR[shape](*args, **kwargs).options(fair=Fair(key)))
        await eventually(all_wait)
        over.set()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_of_a_singleton_gets_the_arguments_of_any_call_by_name(shape: str, call: str) -> None:
    (key, text), (args, kwargs) = SHAPES[shape], CALLS[call]
    declared = activity("keys.single.v1", singleton=Singleton(by=key))(plain)
    given = bare(*args, **kwargs).options(singleton=Singleton(by=key))
    expected = text.format(tenant="a", region="eu")
    for one, type in ((declared(*args, **kwargs), "keys.single.v1"), (given, "keys.bare.v1")):
        single = stored_singleton_of(one.place(0, None, None, 0).options)
        assert single is not None
        assert single.name == f"{type}/{expected}"


#: Key functions that fit no call of a function with the parameters `number`, `tenant` and `region`, and the reason.
MISFITS: dict[str, tuple[Callable[..., Any], str]] = {
    "missing": (
        lambda tenant, customer: tenant,
        "takes 'customer', which .* does not have; .* 'number', 'tenant', 're",
    ),
    "context": (lambda ctx: "a", "takes 'ctx', which .* does not have"),
    "positional": (lambda tenant, /: tenant, "takes 'tenant' by position, but gets the arguments by name"),
    "star": (lambda *tenant: tenant, r"takes '\*tenant' by position"),
    "builtin": (len, "by position"),
    "unreadable": (str, "its parameters cannot be read"),
    "async": (declared_async, "async def"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_key_that_fits_no_call_is_refused_where_it_is_declared(misfit: str) -> None:
    key, reason = MISFITS[misfit]

    async def body(ctx: Context, number: int, tenant: str, region: str = "eu") -> None: ...

    declarations: list[Callable[[], object]] = [
        lambda: activity("keys.bad.v1", limit=Limit("bad", key=key, concurrency=1))(plain),
        lambda: activity("keys.bad.v1", fair=Fair(key))(plain),
        lambda: activity("keys.bad.v1", singleton=Singleton(by=key))(plain),
        lambda: workflow("keys.bad.v1", limit=Limit(key=key, concurrency=1))(body),
        lambda: workflow("keys.bad.v1", fair=Fair(key))(body),
        lambda: workflow("keys.bad.v1", singleton=Singleton(by=key))(body),
        lambda: step(limit=[Limit("fine", concurrency=1), Limit("bad", key=key, concurrency=1)])(fresh()),
        lambda: bare(1, "a").options(limit=Limit("bad", key=key, concurrency=1)),
        lambda: bare(1, "a").options(fair=Fair(key)),
        lambda: bare(1, "a").options(singleton=Singleton(by=key)).place(0, None, None, 0),
    ]
    for declare in declarations:
        with pytest.raises(UsageError, match=reason):
            declare()


def fresh() -> Callable[..., Any]:
    def take(number: int, tenant: str, region: str = "eu") -> str:
        return tenant

    return take


def test_the_error_of_a_key_that_does_not_fit_names_the_function_and_its_parameters() -> None:
    shared = Limit("shared", key=lambda customer: customer, concurrency=1)
    with pytest.raises(UsageError) as caught:
        activity("keys.bad.v1", limit=shared)(plain)
    assert str(caught.value) == (
        "key of Limit('shared') takes 'customer', which the activity 'keys.bad.v1' does not have; its parameters are "
        "'number', 'tenant', 'region'"
    )
    with pytest.raises(UsageError, match="the step .*take does not have; its parameters are 'number'"):
        step(limit=shared)(fresh())
    with pytest.raises(UsageError, match="it has no parameters"):
        step(limit=shared)(lambda: None)


def test_a_weight_that_cannot_be_called_with_a_key_is_refused() -> None:
    for weight in (lambda: 1.0, lambda tenant, number: 1.0, lambda *, tenant: 1.0):
        with pytest.raises(UsageError, match="weight of Fair gets the key alone"):
            Fair(lambda tenant: tenant, weight=weight)  # type: ignore[arg-type] # the mistake that is made here
    Fair(lambda tenant: tenant, weight={"a": 2.0}.__getitem__)


def test_a_call_by_type_name_has_keys_if_its_arguments_are_by_name() -> None:
    by_tenant = Limit("named", key=lambda tenant: tenant, concurrency=1)
    call = Call.named("elsewhere.v1", tenant="a").options(limit=by_tenant, fair=Fair(lambda tenant: tenant))
    assert '"named/a"' in call.settings.to_json()
    for options in ({"limit": by_tenant}, {"fair": Fair(lambda tenant: tenant)}):
        with pytest.raises(UsageError, match="by position; give them by name"):
            Call.named("elsewhere.v1", "a").options(**options)
        with pytest.raises(UsageError, match="takes 'tenant', which this call does not have"):
            Call.named("elsewhere.v1", customer="a").options(**options)
    with pytest.raises(UsageError, match="by position; give them by name"):
        Call.named("elsewhere.v1", "a").options(singleton=Singleton(by=lambda tenant: tenant)).place(0, None, None, 0)
    Call.named("elsewhere.v1", "a").options(limit=Limit("all", concurrency=1), singleton=Singleton("k"))


class Plan(enum.StrEnum):
    PRO = "pro"


@pytest.mark.parametrize(
    ("key", "text"), [("a", "a"), (7, "7"), (Plan.PRO, "pro"), (-1, "-1"), ("", ""), (UUID(int=7), str(UUID(int=7)))]
)
def test_a_key_is_text_a_whole_number_or_a_uuid(key: Any, text: str) -> None:
    assert KeyFunction(lambda: key, "key").compute({}) == text


@pytest.mark.parametrize("key", [None, True, 1.5, ("a", "b"), b"a", object()])
def test_any_other_key_is_refused(key: Any) -> None:
    with pytest.raises(UsageError, match="return text, a whole number or a UUID"):
        KeyFunction(lambda: key, "key").compute({})


def tenant_of(tenant: str | None) -> Any:
    return tenant


@activity("keys.nonekeyed.v1", limit=Limit("none", key=tenant_of, concurrency=1))
async def none_keyed(tenant: str | None) -> str | None:
    return tenant


@activity("keys.nonefair.v1", limit=Limit("turns", concurrency=1), fair=Fair(tenant_of))
async def none_fair(tenant: str | None) -> str | None:
    return tenant


@workflow("keys.noneflow.v1", limit=Limit("none", key=tenant_of, concurrency=1))
async def none_flow(ctx: Context, tenant: str | None) -> str | None:
    return tenant


@workflow("keys.nonefairflow.v1", limit=Limit("turns", concurrency=1), fair=Fair(tenant_of))
async def none_fair_flow(ctx: Context, tenant: str | None) -> str | None:
    return tenant


@workflow("keys.nonestep.v1")
async def none_step(ctx: Context, tenant: str | None) -> str | None:
    limited: str | None = await ctx.options(limit=Limit("none", key=tenant_of, concurrency=1)).step(echo, tenant)
    return limited


async def echo(tenant: str | None) -> str | None:
    return tenant


NONE: list[Any] = [none_keyed, none_fair, none_flow, none_fair_flow]


@pytest.mark.parametrize("kind", NONE, ids=lambda kind: str(kind.type))
async def test_a_run_whose_key_is_none_is_blocked_and_shares_no_limit(stage: Stage, kind: Any) -> None:
    engine = stage.engine(*NONE)
    async with engine.worker():
        without = await engine.start(kind(None))
        assert await (await engine.start(kind("a"))).result("20s") == "a"
        await until(without, Status.BLOCKED)
        run = await without.info()
        assert (run.reason, "UsageError" in (run.error or "")) == (Reason.BROKEN, True)
        assert "returned None; return text, a whole number or a UUID" in (run.error or "")
        assert not any("None" in name for name in await limits_of(engine))


async def test_a_step_whose_key_is_none_fails_and_shares_no_limit(stage: Stage) -> None:
    engine = stage.engine(none_step)
    async with engine.worker():
        assert await (await engine.start(none_step("a"))).result("20s") == "a"
        with pytest.raises(RunFailed, match=r"key of Limit\('none'\) returned None"):
            await (await engine.start(none_step(None))).result("20s")
        assert await limits_of(engine) == {"none/a"}


async def test_the_call_that_gives_a_key_of_none_is_refused(stage: Stage) -> None:
    engine = stage.engine(none_keyed)
    for options in ({"limit": Limit("n", key=tenant_of, concurrency=1)}, {"fair": Fair(tenant_of)}):
        with pytest.raises(UsageError, match="returned None"):
            none_keyed(None).options(**options)
    with pytest.raises(UsageError, match="by of Singleton returned None"):
        await engine.start(none_keyed(None), singleton=Singleton(by=tenant_of))
    assert not (await engine.runs.list()).runs


@workflow("keys.misfit.v1")
async def misfit_step(ctx: Context) -> str:
    return str(await ctx.options(limit=Limit("x", key=lambda customer: customer, concurrency=1)).step(plain, 1, "a"))


async def test_a_limit_of_options_that_does_not_fit_fails_the_step(stage: Stage) -> None:
    engine = stage.engine(misfit_step)
    async with engine.worker():
        with pytest.raises(RunFailed, match="takes 'customer', which this call does not have; .* 'number', 'tenant'"):
            await (await engine.start(misfit_step())).result("20s")


async def test_a_run_that_was_no_singleton_is_forked_where_its_workflow_declares_one(on_disk: Stage) -> None:
    @workflow("keys.forked.v1", singleton=Singleton(by=lambda tenant: tenant))
    async def forked(ctx: Context, tenant: str) -> str:
        return tenant

    producer, engine = on_disk.engine(), on_disk.engine(forked)
    started = await producer.start(Call.named("keys.forked.v1", tenant="a"))
    async with engine.worker():
        run = await engine.get(started.id)
        assert await run.result("20s") == "a"
        assert await (await run.fork()).result("20s") == "a"
