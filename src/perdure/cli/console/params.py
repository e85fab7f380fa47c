"""Arguments and options that commands share: TARGET, `--json`, `--debug`, and types of option values."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from perdure.cli.console.command_groups import WORDS, Command
from perdure.cli.console.completion import (
    complete_argument,
    complete_queues,
    complete_runs,
    complete_schedules,
    complete_types,
)
from perdure.cli.console.output import Printer
from perdure.client.runs.namespace import RunFilters
from perdure.core.model.attributes import read_condition
from perdure.core.model.run import Status
from perdure.core.time.duration import microseconds
from perdure.errors import InvalidDuration, UsageError

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
#: Environment variable with the token of a server.
TOKEN_ENVIRONMENT = "PERDURE_TOKEN"  # noqa: S105 - the name of a variable
#: Keys of `--token-file` and `--database-timeout` in the context of a command.
TOKEN_FILE = "perdure.token_file"  # noqa: S105 - the name of an option
DATABASE_TIMEOUT = "perdure.database_timeout"


def default_target(ctx: click.Context) -> str:
    """Return the target of commands that name none: that of the host program, or of the environment variable."""
    given: object = ctx.find_root().obj
    return given if isinstance(given, str) else os.environ.get(ENVIRONMENT, "")


def one_target(ctx: click.Context, param: click.Parameter | None, value: tuple[str, ...]) -> str:
    """Return the one TARGET among the words, or the default one. Raises `click.UsageError`."""
    if len(value) > 1:
        raise click.UsageError(_too_many(ctx, len(value) - 1), ctx)
    target = value[0] if value else default_target(ctx)
    if not target:
        _refuse_target_in_place_of_another(ctx)
        raise click.UsageError(
            "name a TARGET: an engine such as shop:engine, a database such as sqlite:///shop.db, or a server such as "
            f"https://ops.example.com; or set {ENVIRONMENT}",
            ctx,
        )
    if "://" not in target and not all(target.partition(":")):
        raise click.BadParameter(
            f"{target!r} is neither an engine such as shop:engine nor a database such as sqlite:///shop.db", ctx, param
        )
    return target


def _too_many(ctx: click.Context, extra: int) -> str:
    """Say that a line has `extra` words too many. Which ones they are cannot be told: the TARGET may be left out."""
    wanted = " ".join(one.human_readable_name for one in ctx.command.params if isinstance(one, click.Argument))
    data = any("--input" in one.opts for one in ctx.command.params)
    hint = "; give the arguments of the workflow with --input or --arg" if data else ""
    return f"{extra} argument{'s' if extra > 1 else ''} too many: the command takes {wanted}{hint}"


def _refuse_target_in_place_of_another(ctx: click.Context) -> None:
    """Raise `click.UsageError` if the line has a TARGET, and lacks what follows it."""
    words = ctx.meta.get(WORDS, ())
    given = [word for word in words if "://" in word]
    others = [one for one in ctx.command.params if isinstance(one, click.Argument) and one.name != "target"]
    if not given or not others:
        return
    lacking = ctx.command.lacking(ctx, words) if isinstance(ctx.command, Command) else None
    if lacking in (None, others[0]):
        raise click.UsageError(f"name a {others[0].human_readable_name} after the TARGET {given[0]}", ctx)
    raise click.MissingParameter(ctx=ctx, param=lacking)


def with_target(function: F) -> F:
    """Give a command its first argument, the TARGET, which the environment variable may replace."""
    # A variadic argument takes what the arguments behind it leave over, which makes the first one optional.
    return click.argument(
        "target", nargs=-1, callback=one_target, metavar="[TARGET]", shell_complete=complete_argument
    )(function)


def with_queue_or_type(function: F) -> F:
    """Give a command a TARGET and either a QUEUE or `--type`; `queue_or_type` reads them."""
    function = click.option(
        "--type",
        "type_",
        metavar="TYPE",
        shell_complete=complete_types,
        help="All runs of a type instead of a queue.",
    )(function)
    return click.argument("names", nargs=-1, metavar="[TARGET] [QUEUE]", shell_complete=complete_argument)(function)


def queue_or_type(names: tuple[str, ...], type: str | None) -> tuple[str, dict[str, str]]:
    """Return the target, and the queue or the type that was named. Raises `click.UsageError`."""
    if type is not None:
        return one_target(click.get_current_context(), None, names), {"type": type}
    if not names:
        raise click.UsageError("name one QUEUE, or one type with --type")
    return one_target(click.get_current_context(), None, names[:-1]), {"queue": names[-1]}


def one_or_filtered(
    names: tuple[str, ...], everything: bool, filters: Filters
) -> tuple[str, str | None, Filters | None]:
    """Return the target, and either the run that was named or the filters. Raises `click.UsageError`."""
    if everything or filters:
        return one_target(click.get_current_context(), None, names), None, filters
    if not names:
        raise click.UsageError("name one RUN, or give options that select some, or --all")
    return one_target(click.get_current_context(), None, names[:-1]), names[-1], None


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


def _token_file(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[TOKEN_FILE] = value


def with_reason(function: F) -> F:
    """Give a command `--reason`, for the audit trail."""
    return click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")(function)


def with_output(function: F) -> F:
    """Give a command `--json`, `--debug`, `--database-timeout` and `--token-file`.

    It receives a `Printer` as `output`.
    """
    function = click.option(
        "--token-file",
        expose_value=False,
        callback=_token_file,
        metavar="FILE",
        help=f"File with the token of a server.  [default: {TOKEN_ENVIRONMENT}]",
    )(function)
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


class AttributeParam(ParamType):
    """Attribute and its value: `customer=acme`; of a filter also `amount>=100`, `city^=Ber`, `tier=["a","b"]`."""

    name = "attribute"

    def __init__(self, *, filter: bool) -> None:
        self._filter = filter

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """Split at the operator; a filter gets a pair of the operator and the value."""
        try:
            name, condition = read_condition(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)
        if self._filter:
            return name, condition
        if condition[0] != "=":
            self.fail(f"{value!r} is not of the form NAME=VALUE", param, ctx)
        return name, condition[1]


class HeaderParam(ParamType):
    """Header and its value: `tenant=acme`."""

    name = "header"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Split at the first equals sign."""
        name, found, text = str(value).partition("=")
        if not found:
            self.fail(f"{value!r} is not of the form NAME=VALUE", param, ctx)
        return name, text


#: In the place of a status: ready runs that no live worker takes.
UNSERVED = "unserved"


def with_filters(function: F) -> F:
    """Give a command the filters of a listing of runs; `read_filters` makes them those of `runs.list`."""
    for option in (
        click.option("--deleted", is_flag=True, help="Deleted runs."),
        click.option(
            "--until", "created_before", type=TimeParam(), help="Created before this, or longer ago than this."
        ),
        click.option(
            "--since", "created_after", type=TimeParam(), help="Created after this time, or within this duration."
        ),
        click.option("--error", metavar="TEXT", help="With this in the message or the class of the error."),
        click.option(
            "--attribute",
            "attributes",
            multiple=True,
            type=AttributeParam(filter=True),
            help='With an attribute: customer=acme, amount>=100, city^=Ber (prefix), tier=\'["a","b"]\' (one of).',
        ),
        click.option("--build", metavar="NAME", help="Begun by this build."),
        click.option("--roots", is_flag=True, help="Without a parent."),
        click.option("--parent", metavar="RUN", shell_complete=complete_runs, help="Children of this run."),
        click.option("--schedule", metavar="ID", shell_complete=complete_schedules, help="Started by this schedule."),
        click.option("--id-prefix", metavar="TEXT", help="With an id that begins with this."),
        click.option("--queue", shell_complete=complete_queues, help="In this queue."),
        click.option("--type", shell_complete=complete_types, help="Of this workflow type."),
        click.option(
            "--status",
            multiple=True,
            type=click.Choice([*(one.value for one in Status), UNSERVED]),
            help="In this status; unserved: ready, but no live worker serves its type or queue.",
        ),
    ):
        function = option(function)
    return function


def read_filters(options: dict[str, Any]) -> RunFilters:
    """Take the filters out of the options of a command."""
    given = options.pop("status")
    options |= {"status": [one for one in given if one != UNSERVED], "unserved": UNSERVED in given}
    if options["status"] and options["unserved"]:
        raise click.UsageError("--status unserved is a part of pending: give it without another status")
    filters = {name: options.pop(name) for name in RunFilters.__annotations__}
    for name in ("created_after", "created_before"):
        filters[name] = in_the_past(filters[name])
    filters["status"] = [Status(one) for one in filters["status"]] or None
    attributes: dict[str, list[Any]] = {}
    for name, condition in filters["attributes"]:
        attributes.setdefault(name, []).append(condition)
    filters["attributes"] = attributes or None
    return cast("RunFilters", filters)


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


_BACKOFF_FORMAT = "write it as first=1s,shortest=500ms,longest=30s,idle=1.2,busy=0.8, or a part of that"


def parse_poll_backoff(context: click.Context, option: click.Parameter, text: str | None) -> dict[str, Any]:
    """Parse the pairs of the option `--poll-backoff`. Their values are checked with the other options of a worker."""
    given: dict[str, Any] = {}
    for pair in text.split(",") if text else ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise click.BadParameter(f"{pair!r} has no value; {_BACKOFF_FORMAT}")
        given[name.strip()] = _factor(value) if name.strip() in ("idle", "busy") else value.strip()
    return given


def _factor(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no number; {_BACKOFF_FORMAT}") from None
