"""The engine that the files of this folder run. PERDURE_URL names the database."""

import os

from perdure import Context, Engine, workflow


def pack(article: str) -> str:
    return f"parcel with {article}"


@workflow("shop.order.v1")
async def order(ctx: Context, article: str) -> str:
    return await ctx.step(pack, article)


# `perdure migrate` makes the tables before the workers start.
engine = Engine(
    os.environ.get("PERDURE_URL", "sqlite:///shop.db"),
    [order],
    migrate=False,
    build=os.environ.get("SHOP_BUILD") or None,
)
