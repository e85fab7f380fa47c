"""Many children at once: each is a run of its own, on whatever worker is free.

Run it: python examples/fan_out.py
"""

from __future__ import annotations

import asyncio

from perdure import Context, Engine, workflow


def count_words(page: str) -> int:
    if not page:
        raise ValueError("an empty page")
    return len(page.split())


@workflow("words.page.v1")
async def page_words(ctx: Context, page: str) -> int:
    return await ctx.step(count_words, page)


@workflow("words.book.v1")
async def book_words(ctx: Context, pages: list[str]) -> int:
    counts = await asyncio.gather(*(ctx.call(page_words(page)) for page in pages))
    return sum(counts)


@workflow("words.library.v1")
async def library_words(ctx: Context, books: dict[str, list[str]]) -> dict[str, int]:
    async with asyncio.TaskGroup() as group:
        tasks = {title: group.create_task(ctx.call(book_words(pages))) for title, pages in books.items()}
    return {title: task.result() for title, task in tasks.items()}


async def main() -> None:
    books = {"short": ["once upon a time"], "long": [f"page {number} of the book" for number in range(100)]}
    async with Engine("sqlite://", [page_words, book_words, library_words]) as engine, engine.worker():
        run = await engine.start(library_words(books))
        print(await run.result())
        print(len((await engine.runs.list(type="words.page.v1", limit=1000)).runs), "pages were runs of their own")


if __name__ == "__main__":
    asyncio.run(main())
