"""`perdure start`: begin a run."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping
from typing import Any, cast

import click
import msgspec

from perdure.cli.console.describe import short, status, status_style
from perdure.cli.console.document import run_document
from perdure.cli.console.output import Output
from perdure.cli.console.params import Json, Moment, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.engine import Engine
from perdure.client.start import StartOptions
from perdure.core.model.run import Run
from perdure.core.policy.singleton import POLICIES, Debounce, Singleton
from perdure.errors import RunCancelled, RunFailed, UnknownWorkflow
from perdure.workflow.definition import Call, Definition

Outcome = RunFailed | RunCancelled | None


@click.command("start")
@with_target
@click.argument("type")
@click.option("--input", "given", type=Json(), help="The arguments: a JSON object by name, or an array by position.")
@click.option(
    "--arg", "named", multiple=True, metavar="NAME=VALUE", help="One argument; JSON if it reads as such, else text."
)
@click.option("--id", help="The run's id. The same id with the same input gives the same run.")
@click.option("--at", type=Moment(), help="Not before this time, or this duration from now.")
@click.option("--priority", type=int, help="Lower goes first; 100 by default.")
@click.option("--queue", help="The queue; `default` by default.")
@click.option("--deadline", type=Moment(), help="Fail the run if it is not finished by then.")
@click.option("--idempotency-key", help="At most one run is ever created with this key.")
@click.option("--singleton", "single", metavar="KEY", help="At most one unfinished run of this key at a time.")
@click.option(
    "--policy",
    type=click.Choice([policy.value for policy in POLICIES]),
    default="reject",
    show_default=True,
    help="With --singleton: what becomes of this start while another run is not over.",
)
@click.option("--debounce", "delay", help="Start so long after the last of several such starts, such as 5s.")
@click.option("--wait", is_flag=True, help="Wait for the outcome, and exit with 1 unless the run completes.")
@with_output
def command(
    target: str,
    type: str,
    given: Any,
    named: tuple[str, ...],
    single: str | None,
    policy: str,
    delay: str | None,
    wait: bool,
    output: Output,
    **options: Any,
) -> None:
    """Start a run of the workflow TYPE."""
    chosen = cast("StartOptions", options)
    chosen["singleton"] = None if single is None else Singleton(single, policy)
    chosen["debounce"] = None if delay is None else Debounce(delay)
    run, outcome = asyncio.run(_start(target, type, given, pairs(named), chosen, wait=wait))
    if output.json:
        output.document(run_document(run))
    else:
        output.line(f"{run.id}  {status(run)}", status_style(run.status.value))
        if wait and run.output is not None:
            output.line(short(run.output))
    if outcome is not None:
        raise outcome


async def _start(
    target: str, type: str, given: Any, named: dict[str, str], options: StartOptions, *, wait: bool
) -> tuple[Run, Outcome]:
    async with engine_at(target, create=True) as engine:
        handle = await engine.start(make_call(engine, type, given, named), **options)
        outcome: Outcome = None
        if wait:
            try:
                await handle.result()
            except (RunFailed, RunCancelled) as error:
                outcome = error
        return await handle.run(), outcome


def make_call(engine: Engine, type: str, given: Any, named: Mapping[str, str]) -> Call[Any]:
    """The call that the arguments describe, checked where the engine has the workflow's code.

    Raises `UnknownWorkflow` and `BadArguments`.
    """
    workflow = engine.workflows.get(type)
    if workflow is None and engine.workflows:
        known = ", ".join(sorted(engine.workflows))
        raise UnknownWorkflow(f"This engine has no workflow {type!r}; it has {known}.")
    values = {name: _value(text, workflow, name) for name, text in named.items()}
    if isinstance(given, list):
        if values:
            raise click.UsageError("Give all arguments by position (--input '[...]'), or all by name.")
        args, kwargs = tuple(given), {}
    elif isinstance(given, dict | None):
        args, kwargs = (), {**(given or {}), **values}
    else:
        raise click.BadParameter("it must be a JSON object or array.", param_hint="--input")
    if workflow is None:
        return Call(type, args or kwargs)
    return Call(type, workflow.signature.bind(args, kwargs, f"{type}()"), workflow)


def pairs(named: tuple[str, ...]) -> dict[str, str]:
    """What `--arg` was given, by name."""
    values: dict[str, str] = {}
    for pair in named:
        name, found, value = pair.partition("=")
        if not found or not name or name in values:
            raise click.BadParameter(f"{pair!r} is not a NAME=VALUE, or repeats a name.", param_hint="--arg")
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
