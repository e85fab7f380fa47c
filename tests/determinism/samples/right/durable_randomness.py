"""The names are those of the random module; the numbers are those of the run."""

from perdure import Context, workflow
from perdure.testing import Environment


async def draw_winner(entries: list[str]) -> str:
    return entries[0]


async def congratulate(winner: str, prize: int) -> str:
    return f"{winner} wins {prize}"


@workflow("samples.right.raffle.v1")
async def raffle(ctx: Context, entries: list[str]) -> list[str]:
    random = ctx.random
    shuffled = list(entries)
    random.shuffle(shuffled)
    results: list[str] = []
    for _ in range(2):
        winner = random.choice(shuffled)
        prize = random.randint(1, 6) * 100 if random.random() < 0.9 else 1000
        results.append(await ctx.step(congratulate, winner, prize))
        await ctx.sleep(random.uniform(1, 10))
    results.append(await ctx.step(draw_winner, random.sample(entries, k=2)))
    return results


WORKFLOWS = [raffle]


async def drive(env: Environment) -> object:
    run = await env.start(raffle(["ann", "bob", "cid"]))
    await env.advance("1m")
    return await run.result()
