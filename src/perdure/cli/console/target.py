"""Engines of targets: one in the user's code, or one without code on a database or a server."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import click

from perdure.cli.console.params import DATABASE_TIMEOUT, TOKEN_ENVIRONMENT, TOKEN_FILE
from perdure.client.engine import Engine
from perdure.client.remote.transport import is_server
from perdure.client.session import session_of
from perdure.core.printed_text import brief
from perdure.errors import StoreUnavailable, UsageError
from perdure.store.url import SqliteUrl, parse, shown

T = TypeVar("T")

#: A command in an explanation, and the words in place of a URL and of any target.
_COMMAND = re.compile(r"`perdure [^`]*`")
_URL = re.compile(r"(?<= )URL(?=[ `])")
_TARGET = re.compile(r"(?<= )(URL|(app|module):engine)(?=[ `])")


def with_engine(target: str, act: Callable[[Engine], Awaitable[T]], *, create: bool = False) -> T:
    """Open the engine of a target, run `act` with it, and return its result. `create` as for `engine_at`."""

    async def main() -> T:
        async with engine_at(target, create=create) as engine:
            return await act(engine)

    return asyncio.run(main())


@asynccontextmanager
async def engine_at(target: str, *, create: bool = False) -> AsyncGenerator[Engine, None]:
    """Open the engine of a target. Only `create` allows it to make a missing database."""
    async with find_engine(target, create=create) as engine:
        yield engine


def find_engine(target: str, *, create: bool = False) -> Engine:
    """Return the engine of a target. Raises `UsageError`, or `StoreUnavailable` if the database does not exist."""
    if is_server(target):
        return _configured(Engine(target, token=read_token()))
    if is_url(target):
        if not create:
            check_exists(target)
        return _configured(Engine(target, migrate=create))
    return load_engine(target)


def read_token() -> str | None:
    """Read the token of the server: from `--token-file`, or from the environment; None if there is none.

    It is no option itself, because other users of a machine see the arguments of processes.
    """
    context = click.get_current_context(silent=True)
    path = None if context is None else context.meta.get(TOKEN_FILE)
    if path is None:
        return os.environ.get(TOKEN_ENVIRONMENT) or None
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise UsageError(f"the token in {path} cannot be read: {type(error).__name__}") from None


def fill_in_target(text: str, target: str) -> str:
    """Write the target into the commands of an explanation, which knows none and says URL, or app:engine, for it."""
    shell = shlex.quote(shown(target) if is_url(target) else target)
    place = _URL if is_url(target) else _TARGET
    return _COMMAND.sub(lambda found: place.sub(lambda _: shell, found[0], count=1), text)


def is_url(target: str) -> bool:
    """Tell a database or a server from an engine."""
    return "://" in target


def check_exists(url: str) -> None:
    """Raise `StoreUnavailable` for a missing SQLite file, which opening would create under a mistyped name."""
    where = parse(url)
    if not isinstance(where, SqliteUrl):
        return
    path = where.path
    if path is None:
        raise UsageError(f"{url} is a database in memory, which is empty and ends with this command; name a file")
    if not Path(path).exists():
        raise StoreUnavailable(
            f"there is no database {os.path.realpath(path)}; check the name, or create it: perdure migrate {url}"
        )


def load_engine(target: str) -> Engine:
    """Import the engine of a user's module. Raises `UsageError`."""
    module_name, _, path = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise UsageError(f"{brief(target)} names no engine; give its module and its name, such as shop:engine")
    module = _import(module_name)
    try:
        engine = attrgetter(path)(module)
    except AttributeError:
        known = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, Engine)]
        hint = f"it has {', '.join(known)}" if known else "it has no engine at its top level"
        raise UsageError(f"the module {module_name} has no {path}; {hint}") from None
    if not isinstance(engine, Engine):
        raise UsageError(f"{target} is of type {type(engine).__name__}, not an Engine")
    return _configured(engine)


def _configured(engine: Engine) -> Engine:
    """Apply `--database-timeout` of the current command."""
    context = click.get_current_context(silent=True)
    timeout = None if context is None else context.meta.get(DATABASE_TIMEOUT)
    if timeout is not None:
        session_of(engine).set_call_timeout(timeout)
    return engine


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - an entry of sys.path is a string
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"cannot import {name}: {error}") from error
        raise UsageError(f"there is no module {error.name} in {here}, nor is it installed") from error
    except Exception as error:
        raise UsageError(
            f"cannot import {name}: {type(error).__name__}: {error}; --debug shows the traceback"
        ) from error
