"""Arguments and options that commands share: TARGET, `--json`, `--debug`, and types of option values."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from perdure.cli.console.output import Printer
from perdure.core.time.duration import microseconds
from perdure.errors import InvalidDuration

F = TypeVar("F", bound=Callable[..., Any])
Filters = TypeVar("Filters")

#: A point in time, or a duration that the command counts from now, forwards or backwards.
TimeOrDuration = datetime.datetime | datetime.timedelta

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    # Generic in the newest releases of click only.
    ParamType = click.ParamType

ENVIRONMENT = "PERDURE_URL"
#: Key of `--database-timeout` in the context of a command.
DATABASE_TIMEOUT = "perdure.database_timeout"


def _one_target(ctx: click.Context, param: click.Parameter | None, value: tuple[str, ...]) -> str:
    if len(value) > 1:
        raise click.UsageError(f"unexpected argument {value[1]!r}", ctx)
    target = value[0] if value else os.environ.get(ENVIRONMENT, "")
    if not target:
        raise click.UsageError(
            "name a TARGET: an engine such as shop:engine, or a database such as sqlite:///shop.db; "
            f"or set {ENVIRONMENT}",
            ctx,
        )
    if "://" not in target and not all(target.partition(":")):
        raise click.BadParameter(
            f"{target!r} is neither an engine such as shop:engine nor a database such as sqlite:///shop.db", ctx, param
        )
    return target


def with_target(function: F) -> F:
    """Give a command its first argument, the TARGET, which the environment variable may replace."""
    # A variadic argument takes what the arguments behind it leave over, which makes the first one optional.
    return click.argument("target", nargs=-1, callback=_one_target, metavar="[TARGET]")(function)


def with_queue_or_type(function: F) -> F:
    """Give a command a TARGET and either a QUEUE or `--type`; `queue_or_type` reads them."""
    function = click.option("--type", "type_", metavar="TYPE", help="All runs of a type instead of a queue.")(function)
    return click.argument("names", nargs=-1, metavar="[TARGET] [QUEUE]")(function)


def queue_or_type(names: tuple[str, ...], type: str | None) -> tuple[str, dict[str, str]]:
    """Return the target, and the queue or the type that was named. Raises `click.UsageError`."""
    if type is not None:
        return _one_target(click.get_current_context(), None, names), {"type": type}
    if not names:
        raise click.UsageError("name one QUEUE, or one type with --type")
    return _one_target(click.get_current_context(), None, names[:-1]), {"queue": names[-1]}


def one_or_filtered(
    names: tuple[str, ...], everything: bool, filters: Filters
) -> tuple[str, str | None, Filters | None]:
    """Return the target, and either the run that was named or the filters. Raises `click.UsageError`."""
    if everything or filters:
        return _one_target(click.get_current_context(), None, names), None, filters
    if not names:
        raise click.UsageError("name one RUN, or give options that select some, or --all")
    return _one_target(click.get_current_context(), None, names[:-1]), names[-1], None


def _database_timeout(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        timeout = microseconds(value)
    except InvalidDuration as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if not timeout:
        raise click.BadParameter(f"{value!r} is not longer than 0; give a duration such as 15s", ctx, param)
    ctx.meta[DATABASE_TIMEOUT] = value


def with_output(function: F) -> F:
    """Give a command `--json`, `--debug` and `--database-timeout`; it receives a `Printer` as `output`."""
    function = click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )(function)  # fmt: skip
    function = click.option(
        "--database-timeout",
        expose_value=False,
        callback=_database_timeout,
        metavar="DURATION",
        help="How long to wait for an unreachable server.  [default: 15s]",
    )(function)
    return click.option(
        "--json",
        "output",
        is_flag=True,
        callback=lambda ctx, param, value: Printer(json=value),
        help="Print JSON, for programs.",
    )(function)


def in_the_past(value: Any) -> Any:
    """Count a duration back from now; leave any other value as it is."""
    return datetime.datetime.now(datetime.UTC) - value if isinstance(value, datetime.timedelta) else value


def in_the_future(value: Any) -> Any:
    """Count a duration from now on; leave any other value as it is."""
    return datetime.datetime.now(datetime.UTC) + value if isinstance(value, datetime.timedelta) else value


class JsonParam(ParamType):
    """JSON value of an option or argument, decoded."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Decode the text."""
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}; text needs quotes of its own: '\"text\"'", param, ctx)


class TimeParam(ParamType):
    """Time with its offset from UTC, or a duration: `2030-01-31T09:00+01:00`, `2030-01-31T08:00Z`, `1h30m`.

    With `local`, a time or date without an offset is left without one, for a command that knows its time zone.
    """

    name = "time"

    def __init__(self, *, local: bool = False) -> None:
        self._local = local

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TimeOrDuration:
        """Parse a duration first, then a time."""
        try:
            return datetime.timedelta(microseconds=microseconds(str(value)))
        except InvalidDuration:
            pass
        try:
            time = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is neither a duration such as 1h30m nor a time such as 2030-01-31T09:00Z", param, ctx)
        if time.utcoffset() is None and not self._local:
            self.fail(f"{value!r} has no offset from UTC: end it with Z, or with one such as +01:00", param, ctx)
        return time
