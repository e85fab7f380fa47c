"""`perdure wait`: waits for runs to end and prints the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click

from perdure.cli.console import describe
from perdure.cli.console.command_groups import Command
from perdure.cli.console.completion import complete_argument
from perdure.cli.console.describe import short, status, status_style
from perdure.cli.console.document import Document, run_document
from perdure.cli.console.output import Printer
from perdure.cli.console.params import default_target, one_target, with_output
from perdure.cli.console.target import engine_at
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.core.model.run import Run, Status
from perdure.core.time.duration import seconds
from perdure.errors import InvalidDuration, RunCancelled, RunFailed

#: Exit code if time runs out, as that of `timeout`.
TIMED_OUT = 124


@click.command("wait", cls=Command, example="perdure wait sqlite:///shop.db order-42 order-43 --timeout 5m")
@click.argument("names", nargs=-1, metavar="[TARGET] RUN...", shell_complete=complete_argument)
@click.option("--timeout", metavar="DURATION", help="Wait no longer than this, such as 5m.  [default: without end]")
@click.option("--any", "first", is_flag=True, help="End when the first of the runs has ended.")
@with_output
def wait(names: tuple[str, ...], timeout: str | None, first: bool, output: Printer) -> None:
    """Wait until runs have ended, and print the outcome of each as it ends.

    With --json each outcome is one line. The first argument is the TARGET, unless PERDURE_URL is set; then it is only
    if it is a URL.

    Exit codes: 0 all completed (with --any: the first completed), 1 a run failed or was cancelled, 124 time ran out.
    """
    target, run_ids = _split(names)
    try:
        bound = None if timeout is None else seconds(timeout)
    except InvalidDuration as error:
        raise click.BadParameter(str(error), param_hint="--timeout") from None

    async def main() -> int:
        async with engine_at(target) as engine:
            return await _wait(engine, run_ids, bound, output, first=first)

    click.get_current_context().exit(asyncio.run(main()))


def _split(names: tuple[str, ...]) -> tuple[str, Sequence[str]]:
    """Tell the target from the runs. Raises `click.UsageError`."""
    default = default_target(click.get_current_context())
    given = names[:1] if names and (not default or "://" in names[0]) else ()
    target = one_target(click.get_current_context(), None, given)
    run_ids = list(dict.fromkeys(names[len(given) :]))
    if not run_ids:
        raise click.UsageError("name at least one RUN to wait for")
    return target, run_ids


async def _wait(engine: Engine, run_ids: Sequence[str], bound: float | None, output: Printer, *, first: bool) -> int:
    handles = [await engine.get(run_id) for run_id in run_ids]
    open_waits = {asyncio.create_task(_outcome(handle)): handle for handle in handles}
    code = 0
    try:
        async with asyncio.timeout(bound):
            while open_waits:
                done, _ = await asyncio.wait(open_waits, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    del open_waits[task]
                    run = task.result()
                    _print_outcome(output, run)
                    code = code or int(run.status is not Status.COMPLETED)
                    if first:
                        return code
    except TimeoutError:
        for handle in open_waits.values():
            await _print_unfinished(output, handle)
        return TIMED_OUT
    finally:
        for task in open_waits:
            task.cancel()
        await asyncio.gather(*open_waits, return_exceptions=True)
    return code


async def _outcome(handle: Handle[object]) -> Run:
    try:
        await handle.result()
    except (RunFailed, RunCancelled):
        # The row has the same error.
        pass
    return await handle.info()


def _print_outcome(output: Printer, run: Run) -> None:
    if output.json:
        output.document({**run_document(run), "timed_out": False})
        return
    value = short(run.output) if run.status is Status.COMPLETED else describe.error(run.error)
    output.line(f"{run.id}  {status(run)}  {value}".rstrip(), status_style(run.status.value))


async def _print_unfinished(output: Printer, handle: Handle[object]) -> None:
    run, why = await handle.info(), await handle.why()
    if output.json:
        document: Document = {**run_document(run), "timed_out": True, "why": why}
        output.document(document)
    else:
        output.lines(f"{run.id}  {status(run)}  timed out: {why}", status_style(run.status.value))
