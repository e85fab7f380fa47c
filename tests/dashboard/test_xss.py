"""Attacks in every text that a user can write, in a real browser: none runs, none is reported.

`make prove` tries all of them, more than a thousand, a few in each run; otherwise it is every third.
"""

from __future__ import annotations

import asyncio
import os
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from selenium.webdriver import Chrome

from perdure import Call, Context, Cron, Engine, Handle, Retry, step, workflow
from perdure.admin import Role
from perdure.core.model.run import Status
from perdure.errors import PerdureError
from perdure.http import Access
from perdure.http.access import Principal
from tests.dashboard.browsing import problems, requires_browser, serving, wait
from tests.dashboard.chromium import command
from tests.dashboard.payloads import payloads
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = requires_browser

PROVE = bool(os.environ.get("PERDURE_PROVE"))
#: Payloads of one run: few in the long form, so that one can hardly hide another.
BATCH = 4 if PROVE else 40
EACH = 1 if PROVE else 3
LISTS = ("", "runs", "workflows", "schedules", "queues", "events", "dead-letters", "workers")
TABS = ("steps", "messages", "state", "family", "audit", "logs", "history")

#: Elements and attributes that no page has, and the mark that a payload leaves.
DANGERS = """
const found = [];
if (window.pwned !== undefined) found.push(`pwned ${window.pwned}`);
for (const one of document.querySelectorAll("*")) {
  for (const name of one.getAttributeNames()) {
    // The library of the charts sets styles by itself.
    const styled = name === "style" && one.closest("[data-plot]") === null;
    if (name.startsWith("on") || name === "srcdoc" || styled) found.push(`${one.tagName} ${name}`);
    if (["href", "src", "action", "formaction", "xlink:href", "data"].includes(name)) {
      const url = new URL(one.getAttribute(name), location.href);
      if (url.origin !== location.origin) found.push(`${one.tagName} ${name} ${url}`);
    }
  }
}
const banned = "iframe, object, embed, base, style, meta[http-equiv], math, marquee, portal";
for (const one of document.querySelectorAll(banned)) {
  found.push(one.tagName);
}
for (const one of document.scripts) if (!one.src.startsWith(`${location.origin}/static/`)) found.push("script");
return found;
"""


@step(retry=Retry.never())
async def explode(texts: list[str]) -> str:
    raise ValueError("\n".join(texts))


async def echo(texts: list[str]) -> list[str]:
    return texts


@workflow("xss.v1")
async def echoes(ctx: Context, texts: list[str]) -> str:
    ctx.publish("state", texts)
    with suppress(PerdureError, ValueError):
        ctx.publish(texts[0][:60], texts)
    with suppress(PerdureError, ValueError):
        ctx.emit(texts[0][:60], texts)
    await ctx.options(name=name_of(texts[0])).step(echo, texts)
    await ctx.receive("go", str)
    return await ctx.step(explode, texts)


def name_of(text: str) -> str:
    """A text as a name: without the characters that no name has."""
    kept = "".join(one for one in text if one.isprintable() and one not in "/#~" and unicodedata.category(one) != "Cf")
    return unicodedata.normalize("NFC", kept.strip()).encode()[:150].decode(errors="ignore").strip() or "none"


def batches() -> Iterator[list[str]]:
    # No database stores the null character in a text.
    found = [text.replace("\0", "\\0") for text in islice(payloads(), 0, None, EACH)]
    yield from (found[start : start + BATCH] for start in range(0, len(found), BATCH))


async def write(engine: Engine, other: Engine, number: int, texts: list[str]) -> Handle[Any]:
    """A run whose every text is an attack, and things besides runs that are named by attacks."""
    name = name_of(texts[0])
    run = await engine.start(
        echoes(texts), id=f"{number} {name}", attributes={"text": texts[0][:200], name[:40].strip(): name}
    )
    with suppress(PerdureError):
        await run.send(name, texts)
    await run.send("go", {"not": texts})
    with suppress(PerdureError):
        await other.start(Call.named(name, texts), id=f"unserved {number}", queue=name)
    with suppress(PerdureError):
        await engine.schedules.create(name, echoes(texts), Cron("0 3 * * *"))
        await engine.schedules.pause(name, "\n".join(texts))
    with suppress(PerdureError):
        await engine.limits.set(name, concurrency=1)
    with suppress(PerdureError):
        await engine.breakers.open(name)
    with suppress(PerdureError):
        await engine.queues.pause(queue=name, reason=texts[0])
    with suppress(PerdureError):
        await engine.tokens.create(name)
    with suppress(PerdureError):
        await engine.outbox.publish(name, texts, key=name, subject=texts[0][:100], id=f"event {number}")
    with suppress(PerdureError):
        await engine.events.emit(name, texts)
    return run


async def end(run: Handle[Any], number: int, texts: list[str]) -> None:
    """Let a run fail with an error that is an attack, or cancel it for such a reason."""

    async def has_set_aside() -> bool:
        return bool(await run.set_aside_messages())

    async def finished() -> bool:
        return (await run.info()).status in (Status.FAILED, Status.CANCELLED)

    await eventually(has_set_aside)
    if number % 5:
        await run.send("go", "on")
    else:
        await run.cancel("\n".join(texts))
    await eventually(finished)


def paths_of(run: Handle[Any], number: int, text: str) -> Iterator[str]:
    """A page of the run and a page with an attack in its address; other runs open others."""
    page = f"runs/{quote(run.id, safe='')}"
    tabs = (TABS[number % len(TABS)],)
    yield from (f"{page}?{urlencode({'tab': tab, 'step': 'explode'})}" for tab in tabs)
    searches: Sequence[dict[str, str]] = ({"q": text}, {"q": f"attr.text={text}"}, {"columns": text}, {"cursor": text})
    addresses = [f"runs?{urlencode(one)}" for one in searches]
    addresses += [f"{page}?{urlencode({name: text})}" for name in ("done", "step", "open", "at", "tab")]
    addresses += [
        f"runs/{quote(text, safe='')}",
        f"{quote(text, safe='')}",
        f"dead-letters?{urlencode({'done': text})}",
    ]
    addresses += [f"{page}/{name}" for name in ("retry", "fork", "send")]
    addresses += [f"login?{urlencode({'next': text})}", f"bulk/cancel?{urlencode({'q': text})}"]
    addresses += [
        f"queues/limit/{quote(name_of(text), safe='')}/set",
        f"schedules/{quote(name_of(text), safe='')}/resume",
        f"events/event%20{number}",
        f"events?{urlencode({'type': text, 'key': text, 'cursor': text})}",
    ]
    yield addresses[number % len(addresses)]


@pytest.mark.timeout(7200 if PROVE else 600)
async def test_no_text_of_a_user_runs_in_a_browser(on_disk: Stage, driver: Chrome) -> None:
    actor = "anonymous"
    access = Access(authenticate=lambda _: Principal(name=actor, role=Role.ADMIN))
    async with (
        on_disk.engine(echoes, audit="full") as engine,
        on_disk.engine(audit="full") as other,
        engine.worker(slots=200, grace=0),
        serving(engine, access=access) as base,
    ):
        every = list(batches())
        runs = [await write(engine, other, number, texts) for number, texts in enumerate(every)]
        await asyncio.gather(
            *(end(run, number, texts) for number, (run, texts) in enumerate(zip(runs, every, strict=True)))
        )
        for texts in every[:50]:
            with suppress(PerdureError):
                await engine.locks.acquire(name_of(texts[0]), "1h", owner=texts[-1][:100])
        seen = 0

        async def request(path: str) -> None:
            nonlocal seen
            await asyncio.to_thread(driver.get, f"{base}/{path}")
            assert await asyncio.to_thread(driver.execute_script, DANGERS) == [], path
            seen += 1

        for path in LISTS:
            await request(path)
        for number, (run, texts) in enumerate(zip(runs, every, strict=True)):
            actor = texts[0][:100]
            for path in paths_of(run, number, texts[-1]):
                await request(path)
        # What the server sends to open pages is put into them by the script.
        await request(f"runs/{quote(runs[0].id, safe='')}")
        command(
            driver, "Runtime.evaluate", expression="document.addEventListener('perdure:updated', () => window.told = 1)"
        )
        await runs[0].retry()
        await asyncio.to_thread(wait, driver, _told)
        assert await asyncio.to_thread(driver.execute_script, DANGERS) == []
        found = [one for one in problems(driver, base) if not _is_refusal(one)]
        assert found == []
        assert seen > 2 * len(runs)
        await asyncio.to_thread(driver.get, "about:blank")


def _told(driver: Chrome) -> bool:
    return bool(driver.execute_script("return window.told"))


def _is_refusal(entry: Any) -> bool:
    """A page that does not exist, or a query that cannot be read, is an error of the network to the browser."""
    message = entry.get("message", "") if isinstance(entry, dict) else ""
    return any(f"status of {status}" in message for status in (400, 404, 422))
