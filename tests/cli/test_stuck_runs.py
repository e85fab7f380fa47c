"""Commands by which a person finds out why runs are stuck."""

from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Engine, Limit, Status, activity, workflow
from perdure.admin import Reason
from perdure.workflow.definition import Workflow
from tests.cli.conftest import URL, Perdure
from tests.helpers import eventually
from tests.stage import until


@activity("stuck.export.v1", limit=Limit("one", concurrency=1))
async def export() -> str:
    return "exported"


@workflow("stuck.parent.v1", limit=Limit("one", concurrency=1))
async def parent(ctx: Context) -> str:
    return await ctx.call(export())


@workflow("stuck.approval.v1")
async def approval(ctx: Context) -> bool:
    return await ctx.receive("approval", bool)


def test_doctor_and_why_tell_of_a_parent_that_waits_for_its_own_permit(perdure: Perdure) -> None:
    async def scene() -> None:
        engine = Engine(URL, [parent, export])
        async with engine, engine.worker():
            run = await engine.start(parent(), id="p-1")

            async def is_stuck() -> bool:
                page = await engine.runs.list(parent="p-1")
                return bool(page.runs) and page.runs[0].reason is Reason.LIMIT

            await until(run, Status.WAITING)
            await eventually(is_stuck)

    asyncio.run(scene())
    answer = perdure("doctor", URL)
    assert answer.code == 2
    assert "All is well" not in answer.out
    assert "1 run or step is waiting for ever for the limit one: 'p-1', which holds a permit of 'one', waits for" in (
        answer.out
    )
    assert f"perdure limits set {URL} one --concurrency 2" in answer.out
    why = perdure("why", URL, "p-1").out
    assert "This never ends" in why
    assert "Nothing lets it go on: no worker is alive" in why


def test_unserved_runs_are_a_status_of_the_listing(perdure: Perdure) -> None:
    perdure("start", URL, "stuck.unserved.v1", "--id", "new")
    answer = perdure("runs", "list", URL, "--status", "unserved", "--json")
    assert [run["id"] for run in answer.json["runs"]] == ["new"]
    assert perdure("runs", "count", URL, "--status", "unserved").out == "1\n"
    both = perdure("runs", "list", URL, "--status", "unserved", "--status", "failed")
    assert both.code == 2
    assert "--status unserved is a part of pending" in both.err


@pytest.mark.parametrize("delivered", [True, False])
def test_messages_tells_what_is_unread_and_which_name_was_meant(perdure: Perdure, delivered: bool) -> None:
    async def scene() -> None:
        engine = Engine(URL, [approval])
        async with engine:
            run = await engine.start(approval(), id="o-1")
            async with engine.worker():
                await until(run, Status.WAITING)
                if delivered:
                    for _ in range(2):
                        await run.send("aproval", True)
                    await run.send("other", True)

                    async def is_told() -> bool:
                        waits = (await run.report()).waits
                        return waits is not None and sum(waits.unread.values()) == 3

                    await eventually(is_told)
            if not delivered:
                await run.send("aproval", True)

    asyncio.run(scene())
    answer = perdure("messages", URL, "o-1")
    known = perdure("messages", URL, "o-1", "--json").json
    assert "o-1 has set aside no message." in answer.err
    if delivered:
        assert [line.split() for line in answer.out.splitlines()[1:]] == [
            ["aproval", "2", "did", "you", "mean", "approval?"],
            ["other", "1"],
        ]
        assert "o-1 waits for approval." in answer.err
        assert known["unread"] == {"aproval": 2, "other": 1}
        assert (known["waits_for"], known["meant"]) == (["approval"], {"aproval": "approval"})
    else:
        assert known["unread"] == {"aproval": 1}


def test_workers_are_listed_with_the_first_types_and_queues(perdure: Perdure) -> None:
    def numbered(number: int) -> Workflow[[], None]:
        @workflow(f"stuck.many.v{number}")
        async def one(ctx: Context) -> None: ...

        return one

    many = [numbered(number) for number in range(5)]

    async def scene() -> tuple[str, list[str]]:
        engine = Engine(URL, many)
        async with engine, engine.worker(queues=["default", "mail", "slow"]):
            out = await asyncio.to_thread(lambda: perdure("workers", URL).out)
            listed = await asyncio.to_thread(lambda: perdure("workers", URL, "--json").json)
            return out, listed[0]["types"]

    out, types = asyncio.run(scene())
    assert "stuck.many.v0, stuck.many.v1 and 3 more  default, mail and 1 more" in out
    assert len(types) == 5
