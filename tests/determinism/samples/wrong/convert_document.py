"""A converter is started as a process by the workflow itself, in a helper two calls away."""

import subprocess
import sys

from perdure import Context, workflow
from perdure.testing import Environment


async def download(url: str) -> str:
    return f"contents of {url}"


async def index(text: str) -> int:
    return len(text)


def to_text(document: str) -> str:
    return _run("-c", "import sys; print(sys.stdin.read().upper())", given=document)


def _run(*arguments: str, given: str) -> str:
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True)  # mistake
    return done.stdout.strip()


@workflow("samples.ingest.v1")
async def ingest(ctx: Context, urls: list[str]) -> int:
    total = 0
    for url in urls:
        document = await ctx.step(download, url)
        total += await ctx.step(index, to_text(document))
    return total


WORKFLOWS = [ingest]


async def drive(env: Environment) -> object:
    run = await env.start(ingest(["https://shop.example/a.pdf"]))
    return await run.result()
