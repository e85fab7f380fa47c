"""Steps that are made by a function, bound to an object, or picked from a table."""

import functools
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from perdure import Context, workflow
from perdure.testing import Environment

tenant: ContextVar[str] = ContextVar("tenant", default="none")


class Mailer:
    def __init__(self, server: str) -> None:
        self.server = server

    def send(self, to: str) -> str:
        time.sleep(0.001)
        return f"{self.server}: {to}"


def sender(kind: str) -> Callable[[str], Awaitable[str]]:
    async def send(to: str) -> str:
        return f"{kind} to {to}, {time.time() > 0}"

    return send


mailer = Mailer("mx")
CHANNELS: dict[str, Callable[[str], str]] = {"mail": mailer.send, "post": functools.partial(Mailer.send, mailer)}


@workflow("samples.right.notify.v1")
async def notify(ctx: Context, to: str) -> list[str]:
    tenant.set(to)
    sent = [await ctx.options(name="sms").step(sender("sms"), to)]
    sent.append(await ctx.step(mailer.send, to))
    sent.append(await ctx.options(name="post").step(CHANNELS["post"], to))
    late = functools.partial(mailer.send, f"{to} again")
    sent.append(await ctx.options(name="late").step(late))
    return [*sent, tenant.get()]


WORKFLOWS = [notify]


async def drive(env: Environment) -> object:
    run = await env.start(notify("ann"))
    return await run.result()
