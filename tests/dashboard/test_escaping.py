"""Texts of users on every page: nothing of them becomes an element, an attribute, a script or a link."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from perdure import Context, Cron, Engine, Handle, Retry, step, workflow
from perdure.core.model.run import Status
from perdure.errors import InvalidId, InvalidName, PerdureError
from tests.dashboard.html import Page
from tests.dashboard.shop import browsing
from tests.helpers import eventually
from tests.stage import Stage

SCRIPTS = ("alert(1)", "self.pwned=1")
FRAMES = (
    "<script>{}</script>",
    "</script><script>{}</script>",
    "<ScRiPt>{}</sCrIpT>",
    "<img src=x onerror={}>",
    '"><img src=x onerror={}>',
    "'><svg onload={}>",
    "<svg><script>{}</script></svg>",
    "</title><script>{}</script>",
    "</textarea><script>{}</script>",
    "</pre></div><script>{}</script>",
    '" onmouseover="{}" x="',
    "' autofocus onfocus='{}' x='",
    "javascript:{}",
    " javascript:{}",
    "java\tscript:{}",
    "data:text/html,<script>{}</script>",
    "<a href=javascript:{}>x</a>",
    "<iframe srcdoc='<script>{}</script>'>",
    "<math><mtext></mtext><script>{}</script></math>",
    "<!--><script>{}</script-->",
    "]]><script>{}</script>",
    "{{{{ {} }}}}",
    "{{% {} %}}",
    "${{{}}}",
    "&lt;script&gt;{}&lt;/script&gt;",
    "&#60;script&#62;{}",
    "\\u003cscript\\u003e{}",
    "<style>@import '//evil.example/{}'</style>",
    "<meta http-equiv=refresh content='0;url=javascript:{}'>",
    "<base href=//evil.example/{}>",
    "<form action=//evil.example/{}><button>x",
    "\u202e<script>{}</script>",
    "<b\x0bonclick={}>",
    "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16") + "<script>{}</script>",
)


def payloads() -> Iterator[str]:
    for number, frame in enumerate(FRAMES):
        yield frame.format(SCRIPTS[number % len(SCRIPTS)])


@step(retry=Retry.fixed("1ms", attempts=2))
async def explode(text: str) -> str:
    raise ValueError(text)


async def echo(text: str) -> str:
    return text


@workflow("escaping.v1")
async def echoes(ctx: Context, text: str) -> str:
    ctx.publish("state", text)
    with suppress(PerdureError, ValueError):
        ctx.publish(text[:80], text)
    ctx.emit("stream", text)
    await ctx.step(echo, text)
    await ctx.receive("go", str)
    return await ctx.step(explode, text)


async def start(engine: Engine, number: int, text: str) -> Handle[Any]:
    try:
        return await engine.start(echoes(text), id=f"x{number}{text}"[:200], attributes={"text": text[:200]})
    except PerdureError:
        # Some of these texts cannot be an id, or an attribute.
        return await engine.start(echoes(text), id=f"x{number}")


async def test_no_text_of_a_user_becomes_part_of_a_page(on_disk: Stage) -> None:
    async with on_disk.engine(echoes, audit="full") as engine, engine.worker(slots=100):
        runs = [await start(engine, number, text) for number, text in enumerate(payloads())]
        for handle, text in zip(runs, payloads(), strict=True):
            with suppress(InvalidName, InvalidId, PerdureError):
                await handle.send(text[:100], text)
            await handle.send("go", {"not": text})
            await eventually(partial(_has_set_aside, handle))
            await handle.send("go", text)
        for number, (handle, text) in enumerate(zip(runs, payloads(), strict=True)):
            await eventually(partial(_failed, handle))
            with suppress(PerdureError):
                await engine.schedules.create(f"s{number}", echoes(text), Cron("0 3 * * *"))
                await engine.schedules.pause(f"s{number}", text)
            with suppress(PerdureError):
                await engine.limits.set(text[:100], concurrency=1)
            with suppress(PerdureError):
                await engine.queues.pause(queue=text[:100], reason=text)
        async with browsing(engine) as client:
            paths = ["/", "/runs", "/workflows", "/schedules", "/queues", "/dead-letters", "/workers"]
            for number, (handle, text) in enumerate(zip(runs, payloads(), strict=True)):
                run = f"/runs/{quote(handle.id, safe='')}"
                paths += [f"{run}?tab={tab}&step=explode" for tab in TABS]
                paths += [f"{run}/retry", f"{run}/fork"]
                # Each payload is in every stored text, and in one parameter of each page.
                queries = ({"q": text}, {"cursor": text}, {"q": f"attr.text={text}"}, {"columns": text})
                await _check(client, "/runs", queries[number % len(queries)])
                await _check(client, run, {("done", "step", "tab", "open", "at")[number % 5]: text})
                await _check(client, "/theme", {"to": text, "back": text})
                await _check(client, "/login", {"next": text})
            for path in paths:
                await _check(client, path)


TABS = ("steps", "messages", "state", "family", "audit", "logs", "history")


async def _check(client: Any, path: str, parameters: dict[str, str] | None = None) -> None:
    answer = await client.get(path, params=parameters)
    assert answer.status_code in (200, 303, 404, 422), (path, parameters, answer.status_code)
    location = answer.headers.get("location", "/")
    assert location.startswith("/")
    assert not location.startswith("//")
    page = Page(answer.text)
    assert page.dangers("") == [], (path, parameters)
    assert page.unmatched == [], (path, parameters)


async def _has_set_aside(handle: Handle[Any]) -> bool:
    return bool(await handle.set_aside_messages())


async def _failed(handle: Handle[Any]) -> bool:
    return (await handle.info()).status is Status.FAILED
