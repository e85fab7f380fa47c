"""Workflows that the tests of frameworks start."""

from __future__ import annotations

from perdure import Context, workflow


@workflow("frameworks.count.v1")
async def count(ctx: Context, upto: int) -> int:
    for number in range(upto):
        ctx.emit("numbers", number)
    return upto


@workflow("frameworks.approval.v1")
async def approval(ctx: Context) -> str:
    return await ctx.receive("approval", str)
