"""A blocking function is moved to a thread by the workflow, as one would in a web handler."""

import asyncio
from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Picture:
    name: str
    width: int
    height: int


def shrink(picture: Picture, width: int) -> Picture:
    return Picture(f"{picture.name}@{width}", width, picture.height * width // picture.width)


async def upload(picture: Picture) -> str:
    return f"https://cdn.example/{picture.name}"


@workflow("samples.thumbnails.v1")
async def thumbnails(ctx: Context, picture: Picture, widths: list[int]) -> list[str]:
    urls: list[str] = []
    for width in widths:
        small = await asyncio.to_thread(shrink, picture, width)  # mistake
        urls.append(await ctx.step(upload, small))
    return urls


WORKFLOWS = [thumbnails]


async def drive(env: Environment) -> object:
    run = await env.start(thumbnails(Picture("cat", 800, 600), [100, 200]))
    return await run.result()
