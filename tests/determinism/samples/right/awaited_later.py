"""Operations that are begun in one place and awaited in another."""

import asyncio

from perdure import Context, Operation, workflow
from perdure.testing import Environment


async def render(page: int) -> str:
    return f"page {page}"


async def bind(pages: list[str]) -> str:
    return " | ".join(pages)


async def cover(title: str) -> str:
    return f"cover of {title}"


def begin_pages(ctx: Context, count: int) -> list[Operation[str]]:
    return [ctx.step(render, page) for page in range(count)]


@workflow("samples.right.book.v1")
async def make_book(ctx: Context, title: str) -> str:
    front = ctx.step(cover, title)
    pages = begin_pages(ctx, 2)
    extra: dict[str, Operation[str]] = {}
    for name in ("preface", "index"):
        extra[name] = ctx.options(name=name).step(cover, name)
    done = await asyncio.gather(*pages)
    if front.done():
        ctx.log.info("the cover was first")
    alarm = ctx.sleep("1h")
    alarm.cancel()
    return await ctx.step(bind, [await front, *done, *[await each for each in extra.values()]])


WORKFLOWS = [make_book]


async def drive(env: Environment) -> object:
    run = await env.start(make_book("Perdurance"))
    return await run.result()
