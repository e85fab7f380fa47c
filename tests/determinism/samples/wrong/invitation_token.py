"""A token for an invitation link, made in the workflow because it is only one line."""

import secrets

from perdure import Channel, Context, workflow
from perdure.testing import Environment

accepted = Channel("accepted", str)


async def mail_invitation(address: str, link: str) -> None:
    """Send the link."""


async def create_account(address: str) -> str:
    return f"account of {address}"


@workflow("samples.invitation.v1")
async def invite(ctx: Context, address: str) -> str:
    token = secrets.token_urlsafe(16)  # mistake
    await ctx.step(mail_invitation, address, f"https://shop.example/join/{token}")
    while True:
        try:
            given = await ctx.receive(accepted, timeout="7d")
        except TimeoutError:
            return "expired"
        if given == token:
            return await ctx.step(create_account, address)


WORKFLOWS = [invite]


async def drive(env: Environment) -> object:
    run = await env.start(invite("ann@shop.example"))
    await env.send(run, "accepted", "guess")
    await env.advance("8d")
    return await run.result()
