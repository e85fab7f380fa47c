"""From a target to an engine: one in the user's code, or one without code on a database."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from types import ModuleType

import click

from perdure.cli.console.params import DATABASE_TIMEOUT
from perdure.client.engine import Engine
from perdure.client.session import session_of
from perdure.errors import StoreUnavailable, UsageError
from perdure.store.url import SqliteUrl, parse


@asynccontextmanager
async def engine_at(target: str, *, create: bool = False) -> AsyncGenerator[Engine, None]:
    """The engine of a target, open. Only with `create` may it make a database that is not there."""
    async with find_engine(target, create=create) as engine:
        yield engine


def find_engine(target: str, *, create: bool = False) -> Engine:
    """The engine of a target. Raises `UsageError`, or `StoreUnavailable` where there is no such database."""
    if is_url(target):
        if not create:
            check_exists(target)
        return _told(Engine(target, migrate=create))
    return load_engine(target)


def is_url(target: str) -> bool:
    """Whether a target is a database."""
    return "://" in target


def check_exists(url: str) -> None:
    """Raise `StoreUnavailable` where a look would make an empty database, of a mistyped name most likely."""
    where = parse(url)
    if not isinstance(where, SqliteUrl):
        return
    path = where.path
    if path is None:
        raise UsageError(f"{url} is a database in memory: it is empty and ends with this command. Name a file.")
    if not Path(path).exists():
        raise StoreUnavailable(
            f"There is no database {Path(path).resolve()}. Check the name, or create it: perdure migrate {url}"
        )


def load_engine(target: str) -> Engine:
    """The engine that a module of the user's has. Raises `UsageError`."""
    module_name, _, path = target.partition(":")
    module = _import(module_name)
    try:
        engine = attrgetter(path)(module)
    except AttributeError:
        known = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, Engine)]
        hint = f"it has {', '.join(known)}" if known else "it has no engine at its top level"
        raise UsageError(f"The module {module_name} has no {path}; {hint}.") from None
    if not isinstance(engine, Engine):
        raise UsageError(f"{target} is a {type(engine).__name__}, not an Engine.")
    return _told(engine)


def _told(engine: Engine) -> Engine:
    """The engine, with what the command line says of its database."""
    context = click.get_current_context(silent=True)
    timeout = None if context is None else context.meta.get(DATABASE_TIMEOUT)
    if timeout is not None:
        session_of(engine).bound_calls(timeout)
    return engine


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - an entry of sys.path is a string
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"Cannot import {name}: {error}.") from error
        raise UsageError(f"There is no module {error.name} in {here}, nor is it installed.") from error
    except Exception as error:
        raise UsageError(f"Cannot import {name}: {type(error).__name__}: {error}; --debug shows where.") from error
