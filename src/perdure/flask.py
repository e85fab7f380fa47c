"""Perdure in applications of Flask: an extension with the blocking engine and the command `flask perdure`.

It needs the extra `perdure[flask]`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable
from typing import Any

import click
from flask import Flask, current_app, has_app_context
from flask.cli import with_appcontext

from perdure.client.blocking import Engine as BlockingEngine
from perdure.client.engine import Engine
from perdure.core.printed_text import brief
from perdure.errors import UsageError
from perdure.middleware import Invocation, Middleware, Next
from perdure.workflow.discover import Definable

__all__ = ["Perdure"]

#: Name of the extension in an application, and key of the engine's address in its configuration.
_NAME = "perdure"
_URL = "PERDURE_URL"
#: Target of the command line: an engine of the current application, which `__getattr__` makes.
_TARGET = "perdure.flask:current_engine"


class Perdure:
    """The extension: `durable = Perdure([checkout])`, then `durable.init_app(app)`.

    The configuration of an application names the database as `PERDURE_URL`. `options` are those of `Engine`. Steps and
    activities run in the context of the application.
    """

    def __init__(self, workflows: Iterable[Definable] = (), *, app: Flask | None = None, **options: Any) -> None:
        if isinstance(workflows, Flask):
            raise UsageError(f"{brief(workflows)} is no list of workflows; write Perdure([checkout], app=app)")
        self._workflows = tuple(workflows)
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Make the engine of an application, and its command `flask perdure`. The engine connects on first use."""
        url = app.config.get(_URL)
        if not isinstance(url, str):
            raise UsageError(f"app.config[{_URL!r}] is {brief(url)}; give an address such as postgresql://host/shop")
        middleware = [*self._options.get("middleware", ()), AppContext(app)]
        options = {**self._options, "middleware": middleware}
        app.extensions[_NAME] = _Extension(partial(Engine, url, self._workflows, **options))
        app.cli.add_command(_command)

    @property
    def engine(self) -> BlockingEngine:
        """The engine of the current application, whose methods block. Threads and forked processes may share it."""
        return _current().blocking


class AppContext(Middleware):
    """Executes steps and activities in the context of an application, which ends with each of them.

    So extensions that clean up at the end of a context, such as sessions of Flask-SQLAlchemy, do so after each step.
    """

    def __init__(self, app: Flask) -> None:
        self._app = app

    def step(self, call: Invocation, next: Next, /) -> Any:
        """Enter the context for an attempt."""
        with self._app.app_context():
            result = next(call)
            if not isawaitable(result):
                return result
        return self._awaited(result)

    activity = step

    async def _awaited(self, result: Awaitable[Any]) -> Any:
        with self._app.app_context():
            return await result


class _Extension:
    """Engines of one application: one that blocks, and others for event loops of the command line."""

    def __init__(self, make: Callable[[], Engine]) -> None:
        self.make = make
        self.blocking = make().blocking()


def _current() -> _Extension:
    if not has_app_context():
        raise UsageError("the engine belongs to an application; use it in a request, or in `with app.app_context():`")
    found = current_app.extensions.get(_NAME)
    if not isinstance(found, _Extension):
        raise UsageError(f"the application {current_app.name!r} has no engine; call init_app(app) of the extension")
    return found


def __getattr__(name: str) -> Engine:
    """Make an engine of the current application, for the command line."""
    if name == "current_engine":
        return _current().make()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@click.command(
    "perdure",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Durable execution: worker, migrate, runs, why, serve...",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@with_appcontext
def _command(arguments: tuple[str, ...]) -> None:
    """Run the command line of Perdure on the engine of the application."""
    # Imported late: the application itself does not need it.
    from perdure.cli.app import run

    if code := run(arguments, target=_TARGET):
        raise click.exceptions.Exit(code)
