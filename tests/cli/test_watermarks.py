from __future__ import annotations

import asyncio

import pytest

from perdure import Context, Engine, Overloaded, workflow
from tests.cli.conftest import URL, Perdure


@workflow("shop.index.v1")
async def index(ctx: Context) -> None: ...


async def start(number: int) -> None:
    async with Engine(URL, [index]) as engine:
        for _ in range(number):
            await engine.start(index())


def test_watermarks_are_set_listed_counted_and_removed(perdure: Perdure) -> None:
    asyncio.run(start(2))
    assert perdure("watermarks", "list", URL).err == "No watermark is set in the database.\n"
    said = perdure("watermarks", "set", URL, "default", "--high", "2").out
    assert said == "default: starts are refused once 2 runs wait, until fewer than 1 do.\n"
    with pytest.raises(Overloaded):
        asyncio.run(start(1))
    said = perdure(
        "watermarks", "set", URL, "--type", "shop.index.v1", "--high", "9", "--low", "5", "--when-full", "wait"
    ).out
    assert said == "shop.index.v1: starts wait once 9 runs wait, until fewer than 5 do.\n"
    listed = perdure("watermarks", URL).out
    assert "shop.index.v1" in listed
    assert "refuse" in listed
    of_queue = {"queue": "default", "type": None, "high": 2, "low": 1, "when_full": "refuse", "depth": 2}
    of_type = {"queue": None, "type": "shop.index.v1", "high": 9, "low": 5, "when_full": "wait", "depth": 2}
    assert perdure("watermarks", "list", URL, "--json").json == [of_queue, of_type]
    assert perdure("watermarks", "depth", URL, "default").out == "default: 2 waiting.\n"
    assert perdure("watermarks", "depth", URL, "--type", "shop.index.v1", "--json").json == {
        "type": "shop.index.v1",
        "depth": 2,
    }
    removed = perdure("watermarks", "remove", URL, "default").out
    assert removed == "default: watermark removed; the one declared in code applies.\n"
    perdure("watermarks", "remove", URL, "--type", "shop.index.v1")
    asyncio.run(start(1))
    assert perdure("watermarks", "list", URL, "--json").json == []


def test_a_watermark_that_makes_no_sense_is_refused(perdure: Perdure) -> None:
    asyncio.run(start(0))
    refused = perdure("watermarks", "set", URL, "default", "--high", "2", "--low", "3")
    assert refused.code == 1
    assert refused.err == "perdure: high=2, low=3: low is between 1 and high\n"
    assert perdure("watermarks", "set", URL, "default").code == 2
