"""Functions within the workflow that do I/O, all of them handed to `ctx.step`."""

import json
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import quote, urljoin

from perdure import Context, workflow
from perdure.testing import Environment

SITE = "http://127.0.0.1:9/"


@workflow("samples.right.closures.v1")
async def mirror(ctx: Context, page: str) -> str:
    address = urljoin(SITE, quote(page))

    def fetch() -> str:
        try:
            with urllib.request.urlopen(address, timeout=1) as answer:
                return str(answer.read())
        except OSError:
            return "offline"

    async def store(text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "page.json")
            path.write_text(json.dumps({"text": text}))
            return str(json.loads(path.read_text())["text"])

    def summary(text: str) -> str:
        return f"{page}: {text}"

    text = await ctx.step(fetch)
    stored = await ctx.step(store, text)
    return summary(stored)


WORKFLOWS = [mirror]


async def drive(env: Environment) -> object:
    run = await env.start(mirror("a b"))
    return await run.result()
