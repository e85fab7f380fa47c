"""What every command shares: its target, `--json` and `--debug`, and the kinds of values that options take."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from perdure.cli.console.output import Output
from perdure.core.time.duration import microseconds
from perdure.errors import InvalidDuration

F = TypeVar("F", bound=Callable[..., Any])
Which = TypeVar("Which")

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    # Generic in the newest releases of click only.
    ParamType = click.ParamType

ENVIRONMENT = "PERDURE_URL"
#: Where the context of a command keeps that option for the engine.
DATABASE_TIMEOUT = "perdure.database_timeout"


def _one_target(ctx: click.Context, param: click.Parameter | None, value: tuple[str, ...]) -> str:
    if len(value) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({value[1]})", ctx)
    target = value[0] if value else os.environ.get(ENVIRONMENT, "")
    if not target:
        raise click.UsageError(
            f"Say which TARGET: an engine such as shop:engine, or a database such as sqlite:///shop.db. "
            f"It may also be set in {ENVIRONMENT}.",
            ctx,
        )
    if "://" not in target and not all(target.partition(":")):
        raise click.BadParameter(
            f"{target!r} is neither an engine such as shop:engine nor a database such as sqlite:///shop.db.", ctx, param
        )
    return target


def with_target(function: F) -> F:
    """Give a command its leading TARGET, which may be left out where the environment names one."""
    # A variadic argument takes what the ones behind it leave over, which makes the first of them optional.
    return click.argument("target", nargs=-1, callback=_one_target, metavar="[TARGET]")(function)


def with_what(function: F) -> F:
    """Give a command a run, a type or a queue to act on, behind its TARGET; see `what_of`."""
    function = click.option("--queue", help="All runs in a queue.")(function)
    function = click.option("--type", "type_", help="All runs of a workflow.")(function)
    return click.argument("names", nargs=-1, metavar="[TARGET] [RUN]")(function)


def what_of(names: tuple[str, ...], type: str | None, queue: str | None) -> tuple[str, dict[str, str]]:
    """The target, and what was named: a run, a type or a queue."""
    named = {key: value for key, value in (("type", type), ("queue", queue)) if value is not None}
    if not named and names:
        named, names = {"run_id": names[-1]}, names[:-1]
    if len(named) != 1:
        raise click.UsageError("Say what: one RUN, or one of --type and --queue.")
    return _one_target(click.get_current_context(), None, names), named


def chosen_or_one(names: tuple[str, ...], everything: bool, which: Which) -> tuple[str, str | None, Which | None]:
    """The target, and what was named behind it: one run, or whatever is chosen by options."""
    if everything or which:
        return _one_target(click.get_current_context(), None, names), None, which
    if not names:
        raise click.UsageError("Say which: one RUN, or options that choose some, or --all.")
    return _one_target(click.get_current_context(), None, names[:-1]), names[-1], None


def _database_timeout(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        timeout = microseconds(value)
    except InvalidDuration as error:
        raise click.BadParameter(str(error), ctx, param) from None
    if not timeout:
        raise click.BadParameter(
            f"{value!r} is no time to wait; give a duration longer than 0, such as 15s.", ctx, param
        )
    ctx.meta[DATABASE_TIMEOUT] = value


def with_output(function: F) -> F:
    """Give a command `--json` and `--debug`; it gets its `Output`."""
    function = click.option(
        "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error."
    )(function)  # fmt: skip
    function = click.option(
        "--database-timeout",
        expose_value=False,
        callback=_database_timeout,
        help="How long to wait for a server that cannot be reached.  [default: 15s]",
    )(function)
    return click.option(
        "--json",
        "output",
        is_flag=True,
        callback=lambda ctx, param, value: Output(json=value),
        help="Print JSON, for programs.",
    )(function)


class Json(ParamType):
    """A JSON value, given as it is decoded."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        try:
            return msgspec.json.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            self.fail(f"{value!r} is not JSON: {error}. Text needs quotes of its own: '\"text\"'.", param, ctx)


class Moment(ParamType):
    """A point in time with its offset from UTC, or a duration: `2030-01-31T09:00+01:00`, `2030-01-31T08:00Z`, `1h30m`."""

    name = "moment"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime.datetime | datetime.timedelta:
        """Read it."""
        try:
            return datetime.timedelta(microseconds=microseconds(str(value)))
        except InvalidDuration:
            pass
        try:
            moment = datetime.datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(
                f"{value!r} is neither a duration such as 1h30m nor a time such as 2030-01-31T09:00Z.", param, ctx
            )
        if moment.utcoffset() is None:
            self.fail(f"{value!r} has no offset from UTC: end it with Z, or with one such as +01:00.", param, ctx)
        return moment
