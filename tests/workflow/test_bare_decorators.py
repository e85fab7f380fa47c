"""`@workflow`, `@activity` and `@step` without a type name or parentheses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Context, activity, step, workflow
from perdure.errors import BadArguments, InvalidName
from tests.stage import Stage


@workflow
async def bare(ctx: Context, number: int) -> int:
    return await ctx.step(double, number) + await ctx.call(bare_activity(number))


@workflow(retry=2)
async def with_options(ctx: Context) -> None: ...


@activity
def bare_activity(number: int) -> int:
    return number + 1


@activity(queue="slow")
async def activity_with_options() -> None: ...


@step
def double(number: int) -> int:
    return 2 * number


class Shop:
    @staticmethod
    @workflow
    async def checkout(ctx: Context) -> None: ...


def test_a_type_is_the_module_and_name_of_the_function_if_none_is_given() -> None:
    here = __name__
    assert [bare.type, with_options.type] == [f"{here}.bare", f"{here}.with_options"]
    assert [bare_activity.type, activity_with_options.type] == [
        f"{here}.bare_activity",
        f"{here}.activity_with_options",
    ]
    assert Shop.checkout.type == f"{here}.Shop.checkout"

    @workflow
    async def local(ctx: Context) -> None: ...

    assert local.type == (f"{here}.test_a_type_is_the_module_and_name_of_the_function_if_none_is_given.local")


async def test_bare_definitions_run(stage: Stage) -> None:
    engine = stage.engine(bare, bare_activity)
    async with engine.worker():
        assert await (await engine.start(bare(3))).result("60s") == 10


@pytest.mark.parametrize(
    "way", [["orders.py"], ["-m", "orders"], ["-c", "import orders"]], ids=["script", "m", "import"]
)
def test_a_script_and_its_import_have_the_same_types(way: list[str], tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(
        "from perdure import workflow\n@workflow\nasync def checkout(ctx): ...\nprint(checkout.type)\n"
    )
    run = subprocess.run([sys.executable, *way], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "orders.checkout"


def test_a_type_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidName, match="give a str"):
        workflow(3)  # type: ignore[call-overload] # the mistake that is tested
    with pytest.raises(InvalidName, match="give a str"):
        activity(3)  # type: ignore[call-overload] # the mistake that is tested


def test_options_cannot_be_attached_to_what_takes_no_attributes() -> None:
    with pytest.raises(BadArguments, match=r"ctx.options\(...\).step"):
        step(retry=3)(print)
    with pytest.raises(BadArguments, match="is a run of its own"):
        step(retry=3)(bare_activity)
