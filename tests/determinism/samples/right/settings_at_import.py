"""Configuration is read when the module is imported, and in a step; the workflow sees values."""

import os
from dataclasses import dataclass
from pathlib import Path

from perdure import Context, workflow
from perdure.testing import Environment

SENDER = os.environ.get("MAIL_FROM", "shop@shop.example")
FOLDER = Path(__file__).parent
GREETING = (FOLDER / "greeting.txt").read_text().strip()


@dataclass(frozen=True)
class Settings:
    sender: str
    dry_run: bool


async def load_settings() -> Settings:
    return Settings(os.getenv("SENDER", SENDER), "DRY_RUN" in os.environ)


async def mail(sender: str, to: str, text: str) -> str:
    return f"{sender} to {to}: {text}"


@workflow("samples.right.settings.v1")
async def greet(ctx: Context, to: str) -> str:
    settings = await ctx.step(load_settings)
    if settings.dry_run:
        return "dry"
    target = FOLDER / "outbox" / f"{to}.eml"
    return await ctx.step(mail, settings.sender, target.stem, GREETING)


WORKFLOWS = [greet]


async def drive(env: Environment) -> object:
    run = await env.start(greet("ann"))
    return await run.result()
