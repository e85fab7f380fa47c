"""Attacks in every text that a user can write, in a real browser: none runs, none is reported.

`make prove` tries all of them, more than a thousand, each in a run of its own whose tabs are all opened; otherwise it
is every third, in a few runs.
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

import msgspec
import pytest
from selenium.webdriver import Chrome

from perdure import Call, Context, Cron, Engine, Handle, Retry, step, workflow
from perdure.admin import Role
from perdure.client.session import session_of
from perdure.core.model.documents import Document, DocumentKind, SourceText
from perdure.core.model.run import Status
from perdure.core.run_log import LoggedLine, line_output
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
#: Payloads of one run: one in the long form, so that each is every text.
BATCH = 1 if PROVE else 40
EACH = 1 if PROVE else 3
LISTS = ("", "runs", "workflows", "schedules", "queues", "events", "dead-letters", "workers", "deploy")
TABS = ("steps", "messages", "state", "family", "audit", "logs", "history", "source")
#: A link to further rows of a page.
MORE = "return [...document.querySelectorAll('.pager a')].find((one) => /Older|More/.test(one.textContent))?.href"

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


@workflow("xss.v1")
async def changed(ctx: Context, texts: list[str]) -> None:
    """The next version of the code, which runs that are under way do not fit."""
    await ctx.options(name=f"{name_of(texts[0])} of another build").step(echo, texts)


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
        echoes(texts), id=f"{number} {name}", attributes={"text": texts[0][:200], name[:40].strip(): name},
        headers={"text": "".join(one for one in texts[0][:200] if one.isascii() and one.isprintable())},
    )  # fmt: skip
    await keep_texts(engine, run, name, texts)
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


async def keep_texts(engine: Engine, run: Handle[Any], name: str, texts: list[str]) -> None:
    """Texts that a worker stores: lines of the log of a run, and the source of a type."""
    store = await session_of(engine).connect()
    line = LoggedLine(at=1, level=texts[-1][:40], logger=texts[0], text="\n".join(texts))
    await store.keep_log([(run.id, line_output(line, f"log:{run.id}"))], 5, texts[0][:100])
    body = msgspec.json.encode(
        SourceText(doc="\n".join(texts), source="\n".join(texts), file=texts[0], line=1)
    ).decode()
    for type in (name, "xss.v1"):
        document = Document(kind=DocumentKind.SOURCE, name=type, build=texts[0][:100], body=body)
        await store.save_sources([document], texts[0][:100])


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


def paths_of(run: Handle[Any], number: int, runs: int, text: str) -> Iterator[str]:
    """Pages of the run, and pages with an attack in their address, of which runs open different ones."""
    page = f"runs/{quote(run.id, safe='')}"
    tabs = TABS if PROVE else (TABS[number % len(TABS)],)
    yield from (f"{page}?{urlencode({'tab': tab, 'step': 'explode'})}" for tab in tabs)
    searches: Sequence[dict[str, str]] = ({"q": text}, {"q": f"attr.text={text}"}, {"columns": text}, {"cursor": text})
    addresses = [f"runs?{urlencode(one)}" for one in searches]
    addresses += [f"{page}?{urlencode({name: text})}" for name in ("done", "step", "open", "at", "tab", "stream")]
    addresses += [
        f"runs/{quote(text, safe='')}",
        f"{quote(text, safe='')}",
        f"dead-letters?{urlencode({'done': text})}",
        f"deploy?{urlencode({'report': text})}",
        f"?{urlencode({'range': text})}",
    ]
    addresses += [f"{page}/{name}" for name in ("retry", "fork", "send")]
    addresses += [f"login?{urlencode({'next': text})}", f"bulk/cancel?{urlencode({'q': text})}"]
    type = quote(name_of(text), safe="")
    addresses += [
        f"queues/limit/{type}/set",
        f"schedules/{type}/resume",
        f"schedules/{type}/change",
        f"schedules/{type}/backfill?{urlencode({'start': text, 'end': text})}",
        f"workflows/{type}",
        f"workflows/{type}?{urlencode({'build': text})}",
        f"workflows/{type}/start",
        f"{page}/diff/{quote('0 ' + name_of(next(payloads())), safe='')}?show=all",
        f"{page}/diff?{urlencode({'with': text})}",
        f"events/event%20{number}",
        f"events/event%20{number}/replay",
        f"events?{urlencode({'type': text, 'key': text, 'cursor': text})}",
    ]
    # Together, the runs open all of them, and each at least one.
    yield from addresses[number % len(addresses) :: runs]


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

        for number, (run, texts) in enumerate(zip(runs, every, strict=True)):
            actor = texts[0][:100]
            for path in paths_of(run, number, len(runs), texts[-1]):
                await request(path)
        left = await engine.start(echoes(every[0]), id="left")
        await eventually(lambda: _waits(left))
        report = await on_disk.engine(changed, build=every[0][0][:100]).check()
        assert not report.ok
        for path in LISTS:
            await request(path)
            while more := await asyncio.to_thread(driver.execute_script, MORE):
                await request(str(more).removeprefix(f"{base}/"))
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


async def _waits(run: Handle[Any]) -> bool:
    return (await run.info()).status is Status.WAITING


def _told(driver: Chrome) -> bool:
    return bool(driver.execute_script("return window.told"))


def _is_refusal(entry: Any) -> bool:
    """A page that does not exist, or a query that cannot be read, is an error of the network to the browser."""
    message = entry.get("message", "") if isinstance(entry, dict) else ""
    return any(f"status of {status}" in message for status in (400, 404, 422))
