"""The fixtures of the pytest plugin, with pytest-asyncio; and replacing steps."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Retry, activity, step, workflow
from perdure.errors import UsageError
from perdure.testing import (
    EngineFactory,
    EnvironmentFactory,
    StillWaiting,
    assert_attempts,
    assert_operations,
)

ROOT = Path(__file__).parents[2]


@step(retry=Retry(attempts=3, initial="1m"))
async def charge(account: str, cents: int) -> str:
    raise AssertionError("no test may charge an account")


def ship(account: str) -> str:
    return f"parcel for {account}"


@activity("testing.invoice.v1", start_to_close="1m")
async def invoice(account: str) -> str:
    raise AssertionError("no test may write an invoice")


@workflow("testing.plugin.order.v1")
async def order(ctx: Context, account: str) -> str:
    receipt = await ctx.step(charge, account, 500)
    await ctx.sleep("30d")
    parcel = await ctx.step(ship, account)
    return f"{receipt}, {parcel}, {await ctx.call(invoice(account))}"


async def test_steps_and_activities_are_replaced_and_their_calls_counted(perdure_env: EnvironmentFactory) -> None:
    async with perdure_env(order, invoice) as env:
        begun = env.now

        async def flaky(account: str, cents: int) -> str:
            if charged.count < 3:
                raise ConnectionError("try again")
            return f"{cents} of {account}"

        charged = env.replace(charge, flaky)
        shipped = env.replace("ship", lambda account: "first")
        shipped_later = env.replace("ship", lambda account: f"fake for {account}")
        invoiced = env.replace(invoice, lambda account: "invoice")
        run = await env.start(order("ann"))
        assert await run.result() == "500 of ann, fake for ann, invoice"
        assert (charged.count, shipped.count, shipped_later.count, invoiced.count) == (3, 0, 1, 1)
        assert (charged.calls[0].args, charged.calls[0].location) == (("ann", 500), "charge")
        assert (env.now - begun).days == 30
        history = await run.history()
        assert_operations(history, "charge", "sleep", "ship", "testing.invoice.v1")
        assert_attempts(history, "charge", 3)


async def test_a_step_is_replaced_for_the_runs_that_wait(perdure_env: EnvironmentFactory) -> None:
    async with perdure_env(order, invoice, auto_advance=False) as env:
        env.replace(charge, lambda account, cents: "paid")
        run = await env.start(order("bob"))
        with pytest.raises(StillWaiting):
            await run.result()
        env.replace(ship, lambda account: "drone")
        env.replace("testing.invoice.v1", lambda account: "none")
        await env.advance("30d")
        assert await run.result() == "paid, drone, none"


def never_opened() -> None:
    raise AssertionError("no test may open this database")


async def set_status(connection: object, status: str) -> str:
    raise AssertionError("no test may write to this database")


def set_status_blocking(connection: object, status: str) -> str:
    raise AssertionError("no test may write to this database")


@pytest.mark.parametrize("function", [set_status, set_status_blocking])
@pytest.mark.parametrize("fake", [lambda status: f"is {status}", None], ids=["def", "async def"])
async def test_a_transaction_on_the_users_connection_is_replaced_without_the_connection(
    perdure_env: EnvironmentFactory, function: Any, fake: Any
) -> None:
    @workflow("testing.plugin.transaction.v1")
    async def close(ctx: Context) -> str:
        status = await ctx.options(using=never_opened, retry=Retry.never()).transaction(function, "closed")
        return f"{status}"

    async def fake_later(status: str) -> str:
        return f"is {status}"

    async with perdure_env(close) as env:
        closed = env.replace(function, fake or fake_later)
        assert await (await env.start(close())).result() == "is closed"
        assert closed.calls[0].args == ("closed",)


async def test_a_run_that_waits_for_a_message_is_not_waited_for(perdure_env: EnvironmentFactory) -> None:
    @workflow("testing.plugin.wait.v1")
    async def wait(ctx: Context) -> str:
        await ctx.sleep("1h")
        return await ctx.receive("answer", str)

    async with perdure_env(wait) as env:
        run = await env.start(wait())
        with pytest.raises(StillWaiting, match="answer"):
            await run.result()
        await env.send(run, "answer", "yes")
        assert await run.result() == "yes"
        with pytest.raises(UsageError, match="is a workflow"):
            env.replace(wait, lambda: "no")
        with pytest.raises(UsageError, match="give a function"):
            env.replace("ship", "parcel")  # type: ignore[arg-type] # on purpose


async def test_engines_of_one_test_share_a_database(perdure_engine: EngineFactory) -> None:
    @workflow("testing.plugin.echo.v1")
    async def echo(ctx: Context, text: str) -> str:
        return await ctx.step(ship, text)

    async with perdure_engine(echo) as engine:
        run = await engine.start(echo("ann"), id="o-1")
        assert await run.result() == "parcel for ann"
    async with perdure_engine(echo) as engine:
        assert await (await engine.get("o-1", echo)).result() == "parcel for ann"


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
async def test_engines_on_a_server_get_a_place_that_is_removed(kind: str) -> None:
    from tests.servers.databases import mysql_dsn
    from tests.servers.schemas import postgres_dsn

    dsn = postgres_dsn() if kind == "postgres" else mysql_dsn()
    factory = EngineFactory(dsn)
    assert factory.url != dsn
    async with factory() as engine:
        assert not (await engine.runs.list()).runs
    factory.drop()
    other = EngineFactory(dsn)
    assert other.url != factory.url


def test_the_plugin_is_registered_under_its_name(pytestconfig: pytest.Config) -> None:
    plugin = pytestconfig.pluginmanager.get_plugin("perdure")
    assert plugin is sys.modules["perdure_pytest.plugin"]
    assert Path(str(plugin.__file__)).is_relative_to(ROOT)
