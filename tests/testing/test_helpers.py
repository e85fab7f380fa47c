"""Assertions about histories, `replay_everywhere`, strategies, and the edges of `crash_everywhere`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import Channel, Context, Retry, activity, step, workflow
from perdure.errors import Fatal, UsageError
from perdure.testing import (
    Environment,
    EnvironmentFactory,
    StillWaiting,
    assert_absent,
    assert_attempts,
    assert_failure,
    assert_operations,
    assert_order,
    assert_result,
    crash_everywhere,
    replay_everywhere,
    strategies,
)

MAILS: list[str] = []
approval = Channel("approval", bool)
comment = Channel("comment", str)


@step(retry=Retry(attempts=3, initial="1s"))
async def quote(item: str) -> dict[str, int]:
    return {item: 5}


async def refuse(item: str) -> None:
    raise Fatal(f"no {item}")


async def mail(address: str) -> None:
    MAILS.append(address)


async def mail_once(address: str) -> None:
    if address not in MAILS:
        MAILS.append(address)


@workflow("testing.helpers.order.v1")
async def order(ctx: Context, item: str) -> str:
    await ctx.step(quote, item)
    await ctx.sleep("1d")
    try:
        await ctx.step(refuse, item)
    except Fatal:
        return f"no {item}"
    return item


async def test_assertions_say_what_a_history_has() -> None:
    async with Environment([order], auto_advance=True) as env:
        run = await env.start(order("pen"))
        assert await run.result() == "no pen"
        history = await run.history()
    assert_operations(history, "quote", "sleep", "refuse")
    assert_order(history, "quote", "refuse")
    assert_absent(history, "ship")
    assert_attempts(history, "quote", 1)
    assert_result(history, "quote", {"pen": 5})
    assert_failure(history, "refuse", Fatal)
    wrong: list[tuple[Callable[[], None], str]] = [
        (lambda: assert_operations(history, "quote"), r"expected the operations \['quote'\]"),
        (lambda: assert_order(history, "refuse", "quote"), "expected 'quote' in the order"),
        (lambda: assert_absent(history, "sleep"), "expected no record of 'sleep'"),
        (lambda: assert_attempts(history, "quote", 2), "expected 2 attempts at 'quote', found 1"),
        (lambda: assert_result(history, "quote", 5), "expected 'quote' to have the result 5"),
        (lambda: assert_failure(history, "quote", "KeyError"), "to fail with KeyError, found no error"),
        (lambda: assert_result(history, "ship", 5), "expected a record of 'ship'"),
    ]
    for assertion, words in wrong:
        with pytest.raises(AssertionError, match=words) as caught:
            assertion()
        assert "step quote" in str(caught.value)


async def test_the_histories_of_a_folder_are_replayed_against_other_code(tmp_path: Path) -> None:
    @workflow("testing.helpers.order.v1")
    async def changed(ctx: Context, item: str) -> str:
        await ctx.sleep("1d")
        return item

    folder = tmp_path / "histories" / "may"
    folder.mkdir(parents=True)
    async with Environment([order], auto_advance=True) as env:
        await (await env.start(order("pen"), id="o-1")).result()
        await env.engine.runs.export(folder / "orders.jsonl")
    report = await replay_everywhere(tmp_path, [order])
    assert report.ok, report
    assert (report.checked, list(report.files)) == (1, ["histories/may/orders.jsonl"])
    report = await replay_everywhere(tmp_path, [changed])
    assert not report.ok
    assert "orders.jsonl: run 'o-1' (testing.helpers.order.v1) diverged: expected" in str(report)
    with pytest.raises(UsageError, match="has no file"):
        await replay_everywhere(folder, [order], pattern="*.json")


@given(
    planned=strategies.failures_of(quote),
    sent=strategies.messages(approval, comment, values={"note": st.text(alphabet="ab")}),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_strategies_make_failures_and_messages(
    perdure_env: EnvironmentFactory, planned: dict[object, object], sent: list[tuple[str, object]]
) -> None:
    assert all(isinstance(value, bool if name == "approval" else str) for name, value in sent)
    async with perdure_env(order) as env:
        replaced = [env.replace(one, fake) for one, fake in planned.items()]  # type: ignore[arg-type] # functions
        run = await env.start(order("pen"))
        for name, value in sent:
            await env.send(run, name, value)
        assert await run.result() == "no pen"
        assert_attempts(await run.history(), "quote", replaced[0].count)


async def test_a_workflow_in_a_function_is_resumed_in_the_same_process() -> None:
    @workflow("testing.helpers.local.v1")
    async def local(ctx: Context, address: str) -> str:
        await ctx.step(mail, address)
        return await ctx.receive("answer", str)

    MAILS[:] = ["earlier"]
    messages = [("answer", "yes")]
    report = await crash_everywhere(local("ann"), world=MAILS, messages=messages)
    assert (report.isolated, report.crashes, report.ok) == (False, 3, False)
    assert str(report.findings[0]) == (
        "effect at mail: after a crash before the record of mail was written, MAILS has 'ann' twice instead of once"
    )
    assert MAILS == ["earlier"]
    report = await crash_everywhere(local("ann"), world=MAILS, messages=messages, replace={mail: mail_once})
    assert report.ok, report
    assert str(report) == "3 crashes made no difference"
    with pytest.raises(StillWaiting, match=r"message 'answer'.*messages="):
        await crash_everywhere(local("ann"))


async def test_a_call_or_world_that_cannot_be_crashed_is_refused() -> None:
    with pytest.raises(UsageError, match="give a call of a workflow"):
        await crash_everywhere(order)  # type: ignore[arg-type] # on purpose
    with pytest.raises(UsageError, match="give an object with attributes"):
        await crash_everywhere(order("pen"), world=5)
    with pytest.raises(UsageError, match="cannot be copied with pickle"):
        await crash_everywhere(order("pen"), world=[lambda: None])


@dataclass(slots=True)
class Shelf:
    """A world without `__dict__`."""

    left: int = 3
    letters: list[str] = field(default_factory=list)


SHELF = Shelf()


async def take() -> int:
    SHELF.left -= 1
    return 1


@activity("testing.letter.v1")
async def letter(to: str) -> None:
    SHELF.letters.append(to)


@workflow("testing.helpers.sell.v1")
async def sell(ctx: Context, to: str) -> None:
    await ctx.step(take)
    with suppress(TimeoutError):
        await ctx.receive("paid", bool, timeout="2d")
    await ctx.call(letter(to))


async def test_a_finding_names_the_activity_and_both_values() -> None:
    report = await crash_everywhere(sell("ann"), workflows=[letter], world=SHELF, messages=[("paid", True)])
    assert [(finding.location, finding.text.partition("was written, ")[2]) for finding in report.findings] == [
        ("take", "SHELF.left is 1 instead of 2"),
        ("testing.letter.v1", "SHELF.letters has 'ann' twice instead of once"),
    ]
    assert report.isolated
    assert Shelf() == SHELF


async def test_a_message_that_the_run_never_waits_for_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="the run ended without the message 'payed'.*it waits for 'paid'"):
        await crash_everywhere(sell("ann"), workflows=[letter], world=SHELF, messages=[("payed", True)])
