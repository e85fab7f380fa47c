"""Names, locations, options and digests of steps."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Context, Retry, step
from perdure.errors import DuplicateName, EncodeError, InvalidName
from perdure.replay.operations import StepOperation
from perdure.workflow.step import StepSettings
from tests.replay.driver import Driver, named


def charge(amount: int = 0) -> int:
    return amount


async def reserve() -> None:
    pass


class Gateway:
    def pay(self, amount: int = 0) -> int:
        return amount

    @classmethod
    def make(cls) -> None:
        pass

    @staticmethod
    def ping() -> None:
        pass

    class Inner:
        def pay(self) -> None:
            pass


class Mailer:
    def __call__(self) -> None:
        pass


def make_local() -> Callable[[], None]:
    def local() -> None:
        pass

    return local


@step(name="renamed")
def original() -> None:
    pass


def place(function: Callable[..., Any], *args: Any) -> str:
    async def flow(ctx: Context) -> None:
        await ctx.step(function, *args)

    run = Driver(flow)
    assert run.outcome is None, run.error
    [location] = run.open
    assert run.execution.evict()
    return location


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (charge, "charge"),
        (reserve, "reserve"),
        (Gateway().pay, "Gateway.pay"),
        (Gateway.make, "Gateway.make"),
        (Gateway.ping, "Gateway.ping"),
        (Gateway.Inner().pay, "Gateway.Inner.pay"),
        (functools.partial(charge, 3), "charge"),
        (functools.partial(functools.partial(Gateway().pay, 3)), "Gateway.pay"),
        (functools.partial(Mailer()), "Mailer"),
        (Mailer(), "Mailer"),
        (make_local(), "local"),
        (original, "renamed"),
        (len, "len"),
        ("abc".upper, "str.upper"),
        (math.sqrt, "sqrt"),
    ],
)
def test_a_step_is_named_after_its_function(function: Callable[..., Any], name: str) -> None:
    assert place(function, *([[]] if function is len else [])) == name


def test_a_lambda_needs_a_name() -> None:
    async def unnamed(ctx: Context) -> None:
        await ctx.step(lambda: 1)

    async def with_a_name(ctx: Context) -> None:
        await ctx.options(name="one").step(lambda: 1)

    run = Driver(unnamed)
    assert isinstance(run.error, InvalidName)
    assert "ctx.options(name=" in str(run.error)
    other = Driver(with_a_name)
    assert other.open == ["one"]
    assert other.execution.evict()


def test_a_name_with_the_characters_of_locations_is_refused() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.options(name="a#2").step(charge)

    assert isinstance(Driver(flow).error, InvalidName)


def test_calls_of_one_name_are_counted() -> None:
    async def flow(ctx: Context) -> Any:
        first, second = ctx.step(charge, 1), ctx.step(charge, 2)
        return [await second, await first, await ctx.step(charge, 3)]

    run = Driver(flow)
    assert run.open == ["charge", "charge#2"]
    run.complete("charge", 10)
    run.complete("charge#2", 20)
    run.complete("charge#3", 30)
    assert run.settled().result == [20, 10, 30]


def test_two_functions_of_one_name_are_an_error_that_says_what_to_do() -> None:
    async def flow(ctx: Context) -> None:
        await ctx.step(charge, 1)
        await ctx.options(name="charge").step(reserve)

    run = Driver(flow)
    run.complete("charge", 1)
    assert isinstance(run.error, DuplicateName)
    for part in ("'charge'", "'run-1'", "test.flow.v1", "ctx.options(name="):
        assert part in str(run.error)
    run.settled()


def test_methods_of_two_instances_and_repeated_local_functions_are_the_same_step() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(
            ctx.step(Gateway().pay, 1),
            ctx.step(Gateway().pay, 2),
            ctx.step(functools.partial(charge, 1)),
            ctx.step(charge, 1),
            ctx.step(make_local()),
            ctx.step(make_local()),
        )

    run = Driver(flow)
    assert run.open == ["Gateway.pay", "Gateway.pay#2", "charge", "charge#2", "local", "local#2"]
    assert run.execution.evict()


def test_a_function_that_is_another_object_each_time_it_is_named_is_one_step_if_it_is_equal() -> None:
    async def flow(ctx: Context) -> list[str]:
        return [
            await ctx.options(name="join").step(",".join, ["a"]),
            await ctx.options(name="join").step(",".join, ["b"]),
        ]

    run = Driver(flow)
    run.complete("join", "a")
    run.complete("join#2", "b")
    assert run.settled().result == ["a", "b"]


def test_arguments_that_cannot_be_stored_are_refused_where_the_step_is_called() -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.step(charge, object())  # type: ignore[call-overload] # wrong on purpose
        except EncodeError:
            return await named(ctx, "other")
        return None

    run = Driver(flow)
    assert run.open == ["other"]
    run.complete("other", "handled")
    assert run.settled().result == "handled"


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((1, object()), {}, "argument 2"),
        (([{"a": object()}],), {}, "argument 1[0].a"),
        ((1,), {"cents": {"a": [object()]}}, "cents.a[0]"),
    ],
)
def test_arguments_that_cannot_be_stored_are_refused_by_the_name_of_their_step_and_their_place(
    args: Any, kwargs: Any, path: str
) -> None:
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.step(charge, *args, **kwargs)
        except EncodeError as error:
            return [str(error), error.path]

    run = Driver(flow)
    message, where = run.settled().result
    assert message.startswith(f"cannot store the arguments of step 'charge': {path} ")
    assert where == path


def options(run: Driver, location: str) -> StepSettings:
    operation = run.operation(location)
    assert isinstance(operation, StepOperation)
    return operation.request.options


def test_the_nearest_options_win_and_the_rest_is_filled_up() -> None:
    patient, hasty = Retry(attempts=9), Retry(attempts=2)

    @step(retry=patient, timeout="30s", ephemeral=True)
    def work() -> None:
        pass

    async def flow(ctx: Context) -> None:
        outer = ctx.options(timeout="5s", retry=hasty)
        await asyncio.gather(
            ctx.step(work),
            outer.step(work),
            outer.options(name="inner", ephemeral=False).step(work),
            outer.options(timeout=1).step(work),
        )

    run = Driver(flow)
    assert options(run, "work") == StepSettings(retry=patient, timeout=30.0, ephemeral=True)
    assert options(run, "work#2") == StepSettings(retry=hasty, timeout=5.0, ephemeral=True)
    assert options(run, "inner") == StepSettings(name="inner", retry=hasty, timeout=5.0, ephemeral=False)
    assert options(run, "work#3").timeout == 1.0
    assert run.execution.evict()


def test_options_do_not_change_the_context_they_come_from() -> None:
    async def flow(ctx: Context) -> None:
        ctx.options(name="other", timeout=5)
        await ctx.step(charge, 1)

    run = Driver(flow)
    assert options(run, "charge") == StepSettings()
    assert run.execution.evict()


def test_equal_arguments_have_equal_digests_whatever_their_order_in_memory() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(
            named(ctx, "a", {"x": 1, "y": {3, 1, 2}}),
            named(ctx, "a", {"y": {2, 3, 1}, "x": 1}),
            named(ctx, "a", {"x": 1, "y": {2, 3}}),
        )

    run = Driver(flow)
    first, second, third = (operation.digest for operation in _steps(run))
    assert first == second != third
    assert run.execution.evict()


def test_positional_and_keyword_arguments_have_different_digests() -> None:
    async def flow(ctx: Context) -> None:
        await asyncio.gather(ctx.step(charge, 1), ctx.step(charge, amount=1))

    run = Driver(flow)
    first, second = (operation.digest for operation in _steps(run))
    assert first != second
    assert run.execution.evict()


def _steps(run: Driver) -> list[StepOperation]:
    return [operation for operation in run.execution.open_operations() if isinstance(operation, StepOperation)]
