"""A loop that treats a cancellation like any other error, and so cannot be cancelled."""

from perdure import Channel, Context, RunCancelled, workflow
from perdure.testing import Environment

jobs = Channel("job", str)


async def process(job: str) -> str:
    return f"processed {job}"


async def report(problem: str) -> None:
    """Write it to the log of problems."""


@workflow("samples.consumer.v1")
async def consume(ctx: Context, most: int = 3) -> list[str]:
    done: list[str] = []
    while len(done) < most:
        try:
            job = await ctx.receive(jobs)
            done.append(await ctx.step(process, job))
        except BaseException as error:  # mistake
            await ctx.step(report, repr(error))
    return done


WORKFLOWS = [consume]


async def drive(env: Environment) -> object:
    run = await env.start(consume())
    await env.send(run, "job", "a")
    await env.settle()
    await env.cancel(run)
    for name in ("b", "c"):
        await env.send(run, "job", name)
    try:
        return await run.result()
    except RunCancelled as cancelled:
        return cancelled.partial
