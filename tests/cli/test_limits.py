from __future__ import annotations

import asyncio

from perdure import Engine, Limit, activity
from tests.cli.conftest import URL, Perdure


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
    assert said == "post office: 2 a second, 4 in a burst.\n"
    [gate] = perdure("limits", "list", URL, "--json").json
    assert gate["override"] == {"concurrency": 0, "pace": 500_000, "burst": 4}
    assert perdure("limits", "clear", URL, "post office", "--json").json == {"name": "post office", "override": None}
    [gate] = perdure("limits", "list", URL, "--json").json
    assert gate["override"] is None


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
