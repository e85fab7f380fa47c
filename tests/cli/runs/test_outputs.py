from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from perdure.cli.console.target import load_engine
from tests.cli.conftest import URL, Perdure, work
from tests.helpers import eventually

HOTEL = """
from perdure import Context, Engine, workflow


@workflow("essay")
async def essay(ctx: Context) -> None:
    ctx.publish("phase", "done\\u202e")
    for word in ("it", "lasts"):
        ctx.emit("words", word)
    ctx.log.warning("two words\\u202e")
    ctx.log.warning("that is all")


@workflow("guest")
async def guest(ctx: Context) -> str:
    asked = await ctx.receive_question("name", int)
    asked.reply({"name": "ann", "room": asked.value})
    return await ctx.receive("alarm", str, correlation="ritz")


engine = Engine("sqlite:///shop.db", [essay, guest])
"""


@pytest.fixture
def hotel(perdure: Perdure) -> Perdure:
    """`perdure`, with runs that show something."""
    Path("shop.py").write_text(HOTEL)
    return perdure


def test_what_a_run_shows_is_printed(hotel: Perdure) -> None:
    hotel("start", "shop:engine", "essay", "--id", "e")
    assert hotel("runs", "states", URL, "e").err == "e has published nothing.\n"
    work("e")
    assert hotel("runs", "states", URL, "e", "--json").json == {"id": "e", "states": {"phase": "done\u202e"}}
    assert hotel("runs", "states", URL, "e").out.split() == ["KEY", "VALUE", "phase", '"done\\u202e"']
    waited = hotel("runs", "states", URL, "e", "--wait", 'phase="done\\u202e"', "--timeout", "1m", "--json")
    assert waited.json == {"id": "e", "states": {"phase": "done\u202e"}}
    answer = hotel("runs", "states", URL, "e", "--wait", 'phase="lost"')
    assert (answer.code, "did not publish the state 'phase'" in answer.err) == (1, True)
    assert hotel("runs", "states", URL, "e", "--wait", "phase=lost").code == 2
    assert hotel("runs", "stream", URL, "e", "words").out == '"it"\n"lasts"\n'
    assert hotel("runs", "stream", URL, "e", "words", "--after", "0", "--no-follow", "--json").json == {
        "position": 1,
        "value": "lasts",
    }
    assert hotel("runs", "stream", URL, "missing", "words").code == 1


def test_a_run_is_asked_and_told_with_others(hotel: Perdure) -> None:
    hotel("start", "shop:engine", "guest", "--id", "g")
    answer = hotel("ask", URL, "g", "name", "7", "--key", "q", "--timeout", "10ms")
    assert answer.code == 1
    assert "did not answer" in answer.err
    assert "traceback" not in answer.err

    async def listen() -> None:
        sys.modules.pop("shop", None)
        engine = load_engine("shop:engine")
        async with engine, engine.worker():
            run = await engine.get("g")

            async def listens() -> bool:
                return (await run.info()).reason == "message"

            await eventually(listens)

    asyncio.run(listen())
    assert hotel("ask", URL, "g", "name", "7", "--key", "q", "--json").json["answer"] == {"name": "ann", "room": 7}
    assert json.loads(hotel("ask", URL, "g", "name", "7", "--key", "q").out) == {"name": "ann", "room": 7}
    assert hotel("broadcast", URL, "alarm", '"fire"', "--correlation", "plaza", "--json").json["sent"] == 0
    assert (
        hotel("broadcast", URL, "alarm", '"fire"', "--correlation", "ritz", "--key", "k").out
        == "Sent alarm to 1 run.\n"
    )
    work("g")
    assert '"fire"' in hotel("show", URL, "g").out
    assert hotel("broadcast", URL, "alarm", '"fire"').code == 2


def test_the_log_lines_of_a_run_are_printed_and_followed(hotel: Perdure) -> None:
    hotel("start", "shop:engine", "essay", "--id", "e")
    assert hotel("logs", URL, "e").err == "no line of e was kept; its worker needs --keep-log\n"
    work("e", keep_log=5)
    shown = hotel("logs", URL, "e").out.splitlines()
    assert [line.partition("Z ")[2] for line in shown] == [
        "WARNING perdure.workflow: two words\\u202e",
        "WARNING perdure.workflow: that is all",
    ]
    assert hotel("runs", "logs", URL, "e", "--follow").out.splitlines() == shown
    last = hotel("logs", URL, "e", "--after", "0", "--json").json
    assert (last["number"], last["level"], last["text"]) == (1, "WARNING", "that is all")
    assert hotel("logs", URL, "e", "--limit", "1").out.splitlines() == shown[1:]
    assert hotel("logs", URL, "missing").code == 1
    assert hotel("logs", URL, "e", "--limit", "0").code == 2
