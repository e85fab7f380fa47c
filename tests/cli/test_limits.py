from __future__ import annotations

import asyncio
from typing import Any

from perdure import Engine, Limit, activity
from tests.cli.conftest import URL, Perdure
from tests.helpers import eventually


@activity("shop.post.v1", limit=Limit("post office", concurrency=3))
async def post() -> None: ...


async def send_one() -> None:
    async with Engine(URL, [post]) as engine, engine.worker():
        await (await engine.start(post())).result("20s")


def test_limits_are_listed_set_and_cleared(perdure: Perdure) -> None:
    asyncio.run(send_one())
    listed = perdure("limits", "list", URL).out
    assert "post office" in listed
    assert "3 at once" in listed
    [gate] = perdure("limits", "list", URL, "--json").json
    assert (gate["name"], gate["bounds"]["concurrency"], gate["override"]) == ("post office", 3, None)
    said = perdure("limits", "set", URL, "post office", "--rate", "2/s", "--burst", "4").out
    assert said == (
        "post office: 2 a second, 4 in a burst, in place of 3 at once; no concurrency applies; to keep it, name "
        "--concurrency, too.\n"
    )
    said = perdure("limits", "set", URL, "post office", "--concurrency", "4", "--rate", "2/s", "--json").json
    assert said["replaced"] == {"concurrency": 0, "pace": 500_000, "burst": 4}
    [gate] = perdure("limits", "list", URL, "--json").json
    assert gate["override"] == {"concurrency": 4, "pace": 500_000, "burst": 1}
    assert perdure("limits", "clear", URL, "post office", "--json").json == {"name": "post office", "override": None}
    [gate] = perdure("limits", "list", URL, "--json").json
    assert gate["override"] is None


def test_a_limit_that_no_run_has_met_is_set_without_a_word_of_another(perdure: Perdure) -> None:
    perdure("migrate", URL)
    assert perdure("limits", "set", URL, "post office", "--rate", "2/s").out == (
        "post office: 2 a second, 1 in a burst.\n"
    )


def test_a_value_for_a_limit_whose_keys_have_their_own_is_warned_of(perdure: Perdure) -> None:
    perdure("migrate", URL)
    assert perdure("limits", "set", URL, "tenant/acme", "--concurrency", "1").err == ""
    said = perdure("limits", "set", URL, "tenant", "--concurrency", "2")
    assert (said.code, said.out) == (0, "tenant: 2 at once.\n")
    assert said.err == (
        "'tenant' is a limit of its own; the keys tenant/… keep theirs: set each key, or change the code.\n"
    )
    assert perdure("limits", "set", URL, "tenan", "--concurrency", "2").err == ""


@activity("shop.desk.v1", limit=Limit("desk", concurrency=1))
async def desk() -> None:
    await asyncio.sleep(3600)


async def occupy(perdure: Perdure) -> tuple[str, Any, str]:
    """What is said while a run has the permit, and while none has."""
    async with Engine(URL, [desk]) as engine:
        async with engine.worker(grace=0):
            await engine.start(desk(), id="first")

            async def works() -> bool:
                return bool(await engine.limits.holders("desk"))

            await eventually(works)
            table = await asyncio.to_thread(perdure, "limits", "holders", URL, "desk")
            document = await asyncio.to_thread(perdure, "limits", "holders", URL, "desk", "--json")
        await engine.runs.terminate("first", "closed")
        none = await asyncio.to_thread(perdure, "limits", "holders", URL, "desk")
    return table.out, document.json, none.err


def test_the_runs_that_have_a_permit_are_listed(perdure: Perdure) -> None:
    table, document, none = asyncio.run(occupy(perdure))
    assert table.split()[:4] == ["RUN", "STEP", "WORKER", "SINCE"]
    assert "first" in table
    [permit] = document
    assert (permit["limit"], permit["run_id"], permit["location"]) == ("desk", "first", "")
    assert none == "No permit is in use.\n"


def test_a_limit_that_limits_nothing_is_refused(perdure: Perdure) -> None:
    asyncio.run(send_one())
    refused = perdure("limits", "set", URL, "post office")
    assert refused.code == 1
    assert "needs a concurrency" in refused.err


def test_a_database_without_limits_lists_none(perdure: Perdure) -> None:
    async def make() -> None:
        async with Engine(URL):
            pass

    asyncio.run(make())
    assert perdure("limits", "list", URL).err == "No run has met a limit, and none was set.\n"
