"""`perdure start`: start a run."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, cast

import click
import msgspec

from perdure.cli.console.command_groups import Command
from perdure.cli.console.describe import short, status, status_style
from perdure.cli.console.document import run_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import AttributeParam, HeaderParam, JsonParam, TimeParam, with_output, with_target
from perdure.cli.console.target import fill_in_target, with_engine
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.runs.start import StartOptions
from perdure.core.model.run import Run
from perdure.core.policy.singleton import POLICIES, Debounce, Singleton
from perdure.core.printed_text import closest
from perdure.errors import PerdureError, RunCancelled, RunFailed, UnknownWorkflow
from perdure.workflow.definition import Call, Definition


@click.command("start", cls=Command, example="perdure start shop:engine checkout --arg order=42 --id order-42")
@with_target
@click.argument("type")
@click.option("--input", "given", type=JsonParam(), help="Arguments: a JSON object by name, or an array by position.")
@click.option(
    "--arg", "named", multiple=True, metavar="NAME=VALUE", help="One argument by name; JSON if it parses, else text."
)
@click.option("--id", help="Id of the run; the same id and input return the same run.")
@click.option("--at", type=TimeParam(), help="Start at this time, or this duration from now.")
@click.option("--priority", type=int, help="Lower goes first.  [default: 100]")
@click.option("--queue", help="Queue of the run.  [default: default]")
@click.option("--deadline", type=TimeParam(), help="Fail the run if it has not finished by then.")
@click.option("--idempotency-key", help="Create at most one run with this key, ever.")
@click.option("--singleton", "single", metavar="KEY", help="Allow one unfinished run of this key at a time.")
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in POLICIES]),
    default="reject",
    show_default=True,
    help="With --singleton: what to do while another run has not finished.",
)
@click.option("--debounce", "delay", metavar="DURATION", help="Start this long after the last of several such starts.")
@click.option(
    "--attribute",
    "attributes",
    multiple=True,
    type=AttributeParam(filter=False),
    metavar="NAME=VALUE",
    help="Attribute to find the run by; JSON if it parses, a time, else text.",
)
@click.option(
    "--header",
    "headers",
    multiple=True,
    type=HeaderParam(),
    metavar="NAME=VALUE",
    help="Text that travels with the run to its steps, children and activities.",
)
@click.option("--wait", is_flag=True, help="Wait for the outcome, and exit with 1 unless the run completes.")
@with_output
def start(
    target: str,
    type: str,
    given: Any,
    named: tuple[str, ...],
    single: str | None,
    policy: str,
    delay: str | None,
    wait: bool,
    output: Printer,
    **options: Any,
) -> None:
    """Start a run of the workflow TYPE.

    A TARGET that is an engine, such as shop:engine, checks type and arguments before the start. A database or a server
    takes any type; standard error says if no live worker serves it.
    """
    chosen = cast("StartOptions", options)
    chosen["singleton"] = None if single is None else Singleton(single, policy)
    chosen["attributes"] = dict(options["attributes"]) or None
    chosen["headers"] = dict(options["headers"]) or None
    chosen["debounce"] = None if delay is None else Debounce(delay)

    async def act(engine: Engine) -> tuple[Run, RunFailed | RunCancelled | None, str]:
        handle = await engine.start(make_call(engine, type, given, named_values(named)), **chosen)
        error: RunFailed | RunCancelled | None = None
        unserved = "" if output.json else await _unserved(engine, handle, target)
        if wait:
            if unserved:
                output.hint(unserved)
            try:
                await handle.result()
            except (RunFailed, RunCancelled) as failed:
                error = failed
        return await handle.info(), error, unserved

    run, error, unserved = with_engine(target, act, create=True)
    if output.json:
        output.document(run_document(run))
    else:
        output.line(f"{run.id}  {status(run)}", status_style(run.status.value))
        if wait and run.output is not None:
            output.line(short(run.output))
        if unserved and not wait:
            output.hint(unserved)
    if error is not None:
        raise error


async def _unserved(engine: Engine, handle: Handle[Any], target: str) -> str:
    """Say that no live worker serves a run that was started, and which type was probably meant; empty if one does."""
    try:
        run = await handle.info()
        return fill_in_target(await handle.why(), target) if await engine.runs.unserved([run]) else ""
    except PerdureError:
        # The run is started, and the commands that inspect it report the error.
        return ""


def make_call(engine: Engine, type: str, given: Any, named: Mapping[str, str]) -> Call[Any]:
    """Return the call that the arguments describe, checked if the engine has the workflow's code.

    Raises `UnknownWorkflow` and `BadArguments`.
    """
    workflow = engine.workflows.get(type)
    if workflow is None and engine.workflows:
        raise UnknownWorkflow(f"this engine has no workflow {type!r}; it has {closest(type, engine.workflows)}")
    values = {name: _value(text, workflow, name) for name, text in named.items()}
    if isinstance(given, list):
        if values:
            raise click.UsageError("give all arguments by position (--input '[...]'), or all by name")
        args, kwargs = tuple(given), {}
    elif isinstance(given, dict | None):
        args, kwargs = (), {**(given or {}), **values}
    else:
        raise click.BadParameter("give a JSON object or array", param_hint="--input")
    if workflow is None:
        return Call(type, args or kwargs)
    return Call(type, workflow.signature.bind(args, kwargs, f"{type}()"), workflow)


def named_values(named: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of `--arg`, by name."""
    values: dict[str, str] = {}
    for pair in named:
        name, found, value = pair.partition("=")
        if not found or not name or name in values:
            raise click.BadParameter(f"{pair!r} is not a NAME=VALUE, or repeats a name", param_hint="--arg")
        values[name] = value
    return values


def _value(text: str, workflow: Definition[Any, Any] | None, name: str) -> Any:
    if workflow is not None:
        parameter = inspect.signature(workflow.function).parameters.get(name)
        if parameter is not None and parameter.annotation in (str, "str"):
            return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
