from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Handle, Status, UsageError, Workflow, discover, workflow
from perdure.admin import RecordKind
from tests.helpers import eventually
from tests.stage import Stage, until, until_recorded


async def quote(item: str) -> int:
    return len(item)


async def tax(cents: int) -> int:
    return cents * 2


async def receipt(cents: int) -> str:
    return f"paid {cents}"


def version(number: int) -> Workflow[Any, Any]:
    """The code of an order as it was before, in between and after a change."""

    @workflow("versions.order.v1")
    async def order(ctx: Context, item: str) -> str:
        cents = await ctx.step(quote, item)
        if number == 1:
            await ctx.step(receipt, 0)
        else:
            await ctx.removed("receipt", "step")
        await ctx.receive("go")
        if number == 2 and ctx.patched("tax"):
            cents = await ctx.step(tax, cents)
        elif number == 3:
            await ctx.removed("tax", "version")
            cents = await ctx.step(tax, cents)
        await ctx.receive("on")
        return await ctx.step(receipt, cents)

    return order


async def worked(stage: Stage, code: Workflow[Any, Any], run_id: str, status: Status, *messages: str) -> Any:
    """Let a process with that code work on a run until it stands there."""
    engine = stage.engine(code)
    async with engine.worker():
        run = await engine.get(run_id, code)
        before = len(await run.history())
        for message in messages:
            await run.send(message)
        await until_recorded(run, before + len(messages))
        await until(run, status)
        return await run.result("20s") if status is Status.COMPLETED else await run.history()


async def started(stage: Stage, code: Workflow[Any, Any], *run_ids: str) -> None:
    engine = stage.engine(code)
    async with engine.worker():
        for run_id in run_ids:
            run = await engine.start(code("book"), id=run_id)
            await until_recorded(run)
            await until(run, Status.WAITING)


@pytest.mark.shared
async def test_a_deploy_leaves_runs_that_passed_the_change_as_they_are_and_takes_the_others_along(stage: Stage) -> None:
    await started(stage, version(1), "early", "late")
    await worked(stage, version(1), "late", Status.WAITING, "go")
    history = await worked(stage, version(2), "early", Status.WAITING, "go")
    assert (RecordKind.VERSION, "tax") in [(record.kind, record.location) for record in history]
    await started(stage, version(2), "new")
    assert await worked(stage, version(2), "late", Status.COMPLETED, "on") == "paid 4"
    # The change is there for good once nothing of the time before it is left.
    assert await worked(stage, version(3), "early", Status.COMPLETED, "on") == "paid 8"
    await worked(stage, version(3), "new", Status.WAITING, "go")
    assert await worked(stage, version(3), "new", Status.COMPLETED, "on") == "paid 8"


def with_a_step_before_the_wait(guard: str, timeout: int) -> Workflow[Any, Any]:
    """The code of an order without a new step, or with the step and with this guard."""

    @workflow("versions.wait.v1")
    async def order(ctx: Context, item: str) -> int:
        new = guard == "first line" and ctx.patched("tax")
        cents = await ctx.step(quote, item)
        if new or guard == "none" or (guard == "place" and ctx.patched("tax")):
            cents = await ctx.step(tax, cents)
        try:
            await ctx.receive("approved", timeout=timeout)
        except TimeoutError:
            return -cents
        return cents

    return order


#: By guard, what an order does that waited before the deploy: when the message comes, and when the time is up.
DEPLOYED = {
    "none": (8, ["quote", "approved", "tax"], -8, ["quote", "tax", "receive.timeout"]),
    "first line": (4, ["quote", "approved"], -4, ["quote", "receive.timeout"]),
    "place": (4, ["quote", "approved"], -4, ["quote", "receive.timeout"]),
}


async def _outlasting(stage: Stage) -> int:
    """Let an order wait for so many seconds, which are not over when its worker has ended."""
    for seconds in (1, 4, 16):
        code = with_a_step_before_the_wait("old", seconds)
        engine = stage.engine(code)
        async with engine.worker():
            run = await engine.start(code("book"), id=f"waits {seconds}")

            async def waits_or_ended(run: Handle[Any] = run) -> bool:
                return bool(await run.history()) and await run.status() in (Status.WAITING, Status.COMPLETED)

            await eventually(waits_or_ended, saying="the order waiting")
        # On a busy machine, the time may be over by now.
        if len(await run.history()) == 1:
            return seconds
    pytest.fail("no order waited until its worker had ended")


@pytest.mark.shared
@pytest.mark.parametrize("guard", DEPLOYED)
@pytest.mark.parametrize("approved", [True, False])
async def test_a_step_before_a_wait_is_executed_when_the_wait_ends_unless_it_is_guarded(
    stage: Stage, guard: str, approved: bool
) -> None:
    timeout = 3600 if approved else await _outlasting(stage)
    run_id = f"waits {timeout}"
    if approved:
        await started(stage, with_a_step_before_the_wait("old", timeout), run_id)
    code = with_a_step_before_the_wait(guard, timeout)
    engine = stage.engine(code)
    run = await engine.get(run_id, code)
    if approved:
        await run.send("approved")
    async with engine.worker():
        outcome = (await run.result("60s"), [record.location for record in await run.history()])
    assert outcome == (DEPLOYED[guard][:2] if approved else DEPLOYED[guard][2:])
    if outcome[1][1] == "tax":
        _, executed, timed_out = await run.history()
        assert timed_out.at >= executed.at + timeout * 1_000_000  # the timeout begins again


@pytest.mark.shared
async def test_versions_run_side_by_side_and_one_without_code_waits_and_says_so(stage: Stage) -> None:
    @workflow("side.order.v1")
    async def first(ctx: Context) -> str:
        return await ctx.receive("word", str) + " of old"

    @workflow("side.order.v2")
    async def second(ctx: Context) -> str:
        return await ctx.receive("word", str) + " of new"

    both = stage.engine(first, second)
    async with both.worker():
        runs = [await both.start(first()), await both.start(second())]
        for run in runs:
            await run.send("word", "word")
        assert [await run.result("20s") for run in runs] == ["word of old", "word of new"]
        left = await both.start(first())
        await until(left, Status.WAITING)
    only_new = stage.engine(second)
    async with only_new.worker():
        await left.send("word", "late")
        assert "serves the type 'side.order.v1'; add it to a worker's engine" in await left.why()
        assert await only_new.runs.unserved([await left.info()]) == {left.id}
        assert await left.status() is Status.PENDING
    async with both.worker():
        assert await both.runs.unserved([await left.info()]) == set()
        assert await left.result("20s") == "late of old"


FLOWS = """
from perdure import workflow
{more}

@workflow("{type}")
async def {name}(ctx) -> None: ...
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "found_shop"
    (root / "inner").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "__main__.py").write_text("raise SystemExit('it was run')")
    (root / "orders.py").write_text(FLOWS.format(more="", type="found.order.v1", name="order"))
    (root / "inner" / "__init__.py").write_text("from found_shop.orders import order")
    (root / "inner" / "mail.py").write_text(FLOWS.format(more="", type="found.mail.v1", name="mail"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in [name for name in sys.modules if name.startswith("found_shop")]:
        monkeypatch.delitem(sys.modules, name)
    return root


def test_the_workflows_of_a_package_are_found_each_once(package: Path) -> None:
    found = discover("found_shop")
    assert sorted(one.type for one in found) == ["found.mail.v1", "found.order.v1"]
    assert Engine("sqlite://", found).workflows.keys() == {"found.mail.v1", "found.order.v1"}
    assert [one.type for one in discover(sys.modules["found_shop.orders"])] == ["found.order.v1"]


def test_two_workflows_of_one_type_are_named_with_their_places(package: Path) -> None:
    (package / "twin.py").write_text(FLOWS.format(more="", type="found.order.v1", name="another"))
    with pytest.raises(UsageError, match=r"found_shop\.orders\.order and found_shop\.twin\.another"):
        discover("found_shop")


def test_a_module_that_cannot_be_imported_is_named(package: Path) -> None:
    (package / "broken.py").write_text("import nowhere_at_all")
    with pytest.raises(UsageError, match=r"found_shop\.broken: ModuleNotFoundError: .*nowhere_at_all"):
        discover("found_shop")
    with pytest.raises(UsageError, match="no_such_package"):
        discover("no_such_package")
    with pytest.raises(UsageError, match="not 5"):
        discover(5)  # type: ignore[arg-type] # wrong on purpose


async def test_a_version_may_follow_a_transaction_at_once(stage: Stage) -> None:
    async def write(_: Any, item: str) -> str:
        return item.upper()

    @workflow("versions.transaction.v1")
    async def order(ctx: Context, item: str) -> list[Any]:
        return [await ctx.transaction(write, item), ctx.patched("tax"), await ctx.step(quote, item)]

    engine = stage.engine(order)
    async with engine.worker():
        run = await engine.start(order("pen"))
        assert await run.result("20s") == ["PEN", True, 3]
    assert [record.kind for record in await run.history()] == [RecordKind.STEP, RecordKind.VERSION, RecordKind.STEP]
