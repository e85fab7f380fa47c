"""The next of a set of reviewers is an arbitrary one, and another one in the next process."""

from dataclasses import dataclass

from perdure import Channel, Context, workflow
from perdure.testing import Environment

verdicts = Channel("verdict", bool)


@dataclass
class Document:
    title: str
    reviewers: frozenset[str]


async def ask(reviewer: str, title: str) -> None:
    """Send a mail."""


@workflow("samples.review.v1")
async def review(ctx: Context, document: Document, needed: int = 2) -> list[str]:
    left = set(document.reviewers)
    approved: list[str] = []
    while left and len(approved) < needed:
        reviewer = left.pop()  # mistake
        await ctx.step(ask, reviewer, document.title)
        if await ctx.receive(verdicts):
            approved.append(reviewer)
    return approved


WORKFLOWS = [review]


async def drive(env: Environment) -> object:
    people = frozenset({"ann", "bob", "cid", "dora", "eve", "fred", "gus", "hal"})
    run = await env.start(review(Document("plan", people)))
    for _ in range(2):
        await env.send(run, "verdict", True)
    return await run.result()
