"""Effects that need no await: messages, states, stream items, and runs of their own."""

from perdure import Channel, Context, workflow
from perdure.testing import Environment

news = Channel("news", str)


@workflow("samples.right.reader.v1")
async def reader(ctx: Context, name: str) -> str:
    text = await ctx.receive(news)
    return f"{name} read {text}"


async def write(topic: str) -> str:
    return f"all about {topic}"


@workflow("samples.right.press.v1")
async def press(ctx: Context, topic: str) -> str:
    child = ctx.spawn(reader("ann"), id="reader-ann")
    ctx.start(reader("bob"), id="reader-bob")
    ctx.publish("topic", topic)
    text = await ctx.step(write, topic)
    ctx.emit("lines", text)
    ctx.send("reader-ann", news, text)
    ctx.send("reader-bob", "news", text, key="news-1")
    return await child.result()


WORKFLOWS = [reader, press]


async def drive(env: Environment) -> object:
    run = await env.start(press("bees"))
    return await run.result()
