"""The most common mistake of all: an operation that is not awaited."""

from dataclasses import dataclass

from perdure import Context, workflow
from perdure.testing import Environment


@dataclass
class Signup:
    name: str
    address: str
    newsletter: bool = False


async def create_user(signup: Signup) -> str:
    return f"user {signup.name}"


async def send_welcome(address: str) -> None:
    """Send a mail."""


async def subscribe(address: str) -> None:
    """Add the address to the newsletter."""


@workflow("samples.signup.v1")
async def sign_up(ctx: Context, signup: Signup) -> str:
    user = await ctx.step(create_user, signup)
    ctx.step(send_welcome, signup.address)  # mistake
    if signup.newsletter:
        await ctx.step(subscribe, signup.address)
    return user


WORKFLOWS = [sign_up]


async def drive(env: Environment) -> object:
    run = await env.start(sign_up(Signup("ann", "ann@shop.example")))
    return await run.result()
