"""A shop of a user's, in the working directory, and the command line to talk to it."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from perdure.cli.app import run
from perdure.cli.console.command_groups import CommandGroup
from perdure.cli.console.params import ENVIRONMENT
from perdure.cli.console.target import load_engine

SHOP = """
from __future__ import annotations

from dataclasses import dataclass

from perdure import Context, Engine, Retry, step, workflow


@dataclass
class Order:
    id: str
    cents: int


@step(retry=Retry.fixed("1ms", attempts=3))
def charge(cents: int) -> str:
    if cents < 0:
        raise ValueError("nothing to charge")
    return f"paid {cents}"


@workflow("checkout")
async def checkout(ctx: Context, order: Order, note: str = "") -> str:
    return await ctx.step(charge, order.cents) + note


@workflow("approval")
async def approval(ctx: Context) -> bool:
    return await ctx.receive("approval", bool)


@workflow("family")
async def family(ctx: Context) -> str:
    return await ctx.call(checkout(Order("child", 5)))


@step(retry=Retry.never())
def refund(receipt: str) -> None:
    raise OSError("the bank is closed")


@workflow("doomed")
async def doomed(ctx: Context) -> None:
    await ctx.options(undo=refund).step(charge, 5)
    raise LookupError("no van")


engine = Engine("sqlite:///shop.db", [checkout, approval, family, doomed])
not_an_engine = 42
"""

URL = "sqlite:///shop.db"


@dataclass
class Answer:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Perdure = Callable[..., Answer]


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """What a command does to the log of its process ends with the test: its stream is closed by then."""
    loggers = [logging.getLogger(), logging.getLogger("perdure")]
    before = [(one, one.handlers[:], one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        one.handlers[:], one.propagate = handlers, propagate
        one.setLevel(level)


@pytest.fixture
def perdure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Perdure:
    """`perdure ...` in a directory of its own that has a shop.py."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    # A shop.py that is written twice in one second may have the same size: bytecode of the first would be used.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    importlib.invalidate_caches()

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        # An engine that was closed stays closed: each command is a process of its own outside of tests.
        sys.modules.pop("shop", None)
        code = run(arguments)
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


def parse_command(command: click.Command, words: list[str], parent: click.Context | None = None) -> None:
    """Parse a command line down to its command, without running it."""
    if not isinstance(command, CommandGroup):
        command.make_context(words[0], words[1:], parent=parent)
        return
    context = click.Context(command, parent=parent, info_name=words[0])
    name, inner, rest = command.resolve_command(context, command.with_default(context, words[1:]))
    assert inner is not None
    parse_command(inner, [str(name), *rest], context)


def commands_in(text: str) -> list[list[str]]:
    """Words of the commands that a text suggests; each is between backquotes, and none elsewhere."""
    assert "perdure " not in re.sub(r"`[^`]*`", "", text), text
    return [shlex.split(found) for found in re.findall(r"`(perdure [^`]*)`", text)]


def check_suggestions(command: click.Command, text: str, target: str) -> list[list[str]]:
    """Parse the commands that a text suggests; those that need a database name the target, not a placeholder."""
    found = commands_in(text)
    for words in found:
        parse_command(command, words)
        assert target in words or (words[1] in ("worker", "check") and "://" in target), words
    return found


def work(*run_ids: str, **options: Any) -> None:
    """Let a worker finish these runs, however they end."""

    async def main() -> None:
        sys.modules.pop("shop", None)
        engine = load_engine("shop:engine")
        async with engine, engine.worker(**options):
            for run_id in run_ids:
                handle = await engine.get(run_id)
                try:
                    await handle.result(timeout=30)
                except Exception as error:
                    assert type(error).__name__ in {"RunFailed", "RunCancelled"}, error

    asyncio.run(main())
