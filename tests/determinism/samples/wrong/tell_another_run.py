"""A workflow that talks to another run through the engine, as the web handlers next to it do."""

from perdure import Channel, Context, Engine, workflow
from perdure.testing import Environment

stock = Channel("stock", int)


@workflow("samples.warehouse.v1")
async def warehouse(ctx: Context) -> int:
    return await ctx.receive(stock)


async def count(item: str) -> int:
    return 7


@workflow("samples.stocktaking.v1")
async def take_stock(ctx: Context, item: str, run_id: str) -> str:
    counted = await ctx.step(count, item)
    await engine.send(run_id, "stock", counted)  # mistake
    return f"{counted} x {item}"


WORKFLOWS = [warehouse, take_stock]
engine = Engine("sqlite://", [warehouse, take_stock])


async def http_count(item: str, run_id: str) -> str:
    """A web handler, where the engine belongs."""
    run = await engine.start(take_stock(item, run_id))
    return run.id


async def drive(env: Environment) -> object:
    receiver = await env.start(warehouse())
    run = await env.start(take_stock("pen", receiver.id))
    return await run.result()
