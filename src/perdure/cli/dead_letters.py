"""`perdure dead`: runs that failed for good or were set aside, and what to do with them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from perdure.cli.audit import Listing
from perdure.cli.console.describe import short, span, when
from perdure.cli.console.document import Document, failure, moment, payload
from perdure.cli.console.output import Output
from perdure.cli.console.params import Json, Moment, chosen_or_one, with_output, with_target
from perdure.cli.console.target import engine_at
from perdure.client.dead_letters import BulkResult, DeadOptions
from perdure.client.reopen import RetryOptions
from perdure.client.runs import PruneReport
from perdure.core.codec.failure import Failure
from perdure.core.model.dead_letter import DeadLetter, DeadLetterPage, DeadLetterReason, Fault
from perdure.core.policy.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])

_FILTERS = ("type", "queue", "error", "reason", "dead_after", "dead_before")


def with_filters(function: F) -> F:
    """Give a command the ways to choose dead letters."""
    reasons = click.Choice([reason.value for reason in DeadLetterReason])
    for option in (
        click.option("--until", "dead_before", type=Moment(), help="Dead before this time, or for longer than this."),
        click.option("--since", "dead_after", type=Moment(), help="Dead after this time, or for less long than this."),
        click.option("--reason", type=reasons, multiple=True, help="Dead for this reason."),
        click.option("--error", metavar="CLASS", help="Whose last error is of this class."),
        click.option("--queue", help="In this queue."),
        click.option("--type", help="Of this type, or of types that begin like this: 'billing.%'."),
    ):
        function = option(function)
    return function


def with_choice(function: F) -> F:
    """Give a command one dead letter, or many that are chosen."""
    function = click.option("--all", "everything", is_flag=True, help="All dead letters.")(with_filters(function))
    return click.argument("names", nargs=-1, metavar="[TARGET] [RUN]")(function)


@click.group("dead", cls=Listing)
def command() -> None:
    """List dead letters, let them go on, discard or delete them.

    A dead letter is a run that failed for good, or that was set aside because it killed its workers or cannot be decoded. Without
    a command it lists: `perdure dead shop:engine --type 'billing.%'`.
    """


@command.command("list")
@with_target
@with_filters
@click.option("--discarded", is_flag=True, help="Those that were discarded.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier listing ended.")
@with_output
def list_dead(target: str, output: Output, limit: int, cursor: str | None, discarded: bool, **filters: Any) -> None:
    """List dead letters, the latest run first."""
    which = _which(filters)
    which["deleted"] = discarded
    page = asyncio.run(_list(target, limit, cursor, which))
    if output.json:
        output.document({"letters": [letter_document(letter) for letter in page.letters], "cursor": page.cursor})
        return
    if not page.letters:
        output.hint("No dead letters.")
        return
    columns = ("id", "type", "reason", "attempts", "dead since", "requeued", "error")
    output.table(columns, [_row(letter) for letter in page.letters])
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")


async def _list(target: str, limit: int, cursor: str | None, which: DeadOptions) -> DeadLetterPage:
    async with engine_at(target) as engine:
        return await engine.dead_letters.list(limit=limit, cursor=cursor, **which)


@command.command("show")
@with_target
@click.argument("run")
@with_output
def show_dead(target: str, run: str, output: Output) -> None:
    """Show a dead letter with every error that it had."""
    letter = asyncio.run(_show(target, run))
    if output.json:
        output.document(letter_document(letter))
        return
    output.line(f"{letter.run_id}  {letter.type}  {letter.reason.value}", "bold red")
    output.fields(
        [
            ("queue", letter.queue),
            ("input", short(letter.input)),
            ("attempts", str(letter.attempts)),
            ("created", when(letter.created_at)),
            ("dead since", when(letter.dead_since)),
            ("requeued", f"{letter.requeued} times, last {when(letter.requeued_at)}" if letter.requeued else ""),
            ("parent", letter.parent_id or ""),
            ("discarded", when(letter.deleted_at)),
        ]
    )
    output.heading("errors")
    columns = ("time", "took", "where", "attempt", "error")
    output.table(columns, [_fault_row(fault) for fault in letter.errors])


async def _show(target: str, run_id: str) -> DeadLetter:
    async with engine_at(target) as engine:
        return await engine.dead_letters.get(run_id)


@command.command("requeue")
@with_choice
@click.option("--input", type=Json(), help="Other arguments, as a JSON object; for one run.")
@click.option("--attempts", type=click.IntRange(min=1), help="How often an activity may be tried now.")
@click.option("--start-to-close", help="How long an attempt at an activity may take now.")
@click.option("--schedule-to-start", help="How long an activity may wait for a worker now.")
@click.option("--schedule-to-close", help="How long an activity may take in all now.")
@click.option("--heartbeat", help="How long an activity may be silent now.")
@click.option("--deadline", type=Moment(), help="By when it is to be finished now; needed if its deadline has passed.")
@click.option("--to-queue", metavar="QUEUE", help="Another queue.")
@click.option("--priority", type=int, help="Another priority; lower goes first.")
@with_output
def requeue(
    names: tuple[str, ...], everything: bool, output: Output, attempts: int | None, to_queue: str | None, **given: Any
) -> None:
    """Let a dead letter go on, or all that are chosen."""
    target, run_id, which = chosen_or_one(names, everything, _which({name: given.pop(name) for name in _FILTERS}))
    changes = {name: value for name, value in given.items() if value is not None}
    if attempts is not None:
        changes["retry"] = Retry(attempts=attempts)
    if to_queue is not None:
        changes["queue"] = to_queue
    decided = asyncio.run(_requeue(target, run_id, which, cast("RetryOptions", changes)))
    _report(output, decided, "goes on", "go on")


async def _requeue(target: str, run_id: str | None, which: DeadOptions | None, changes: RetryOptions) -> BulkResult:
    async with engine_at(target) as engine:
        return await engine.dead_letters.retry(run_id, where=which, **changes)


@command.command("discard")
@with_choice
@click.option("--because", default="", metavar="TEXT", help="Why, for the audit trail.")
@with_output
def discard(names: tuple[str, ...], everything: bool, because: str, output: Output, **filters: Any) -> None:
    """Take a dead letter off the list, or all that are chosen; `perdure undelete` brings it back."""
    target, run_id, which = chosen_or_one(names, everything, _which(filters))
    decided = asyncio.run(_discard(target, run_id, which, because))
    _report(output, decided, "is discarded", "are discarded")


async def _discard(target: str, run_id: str | None, which: DeadOptions | None, reason: str) -> BulkResult:
    async with engine_at(target) as engine:
        return await engine.dead_letters.discard(run_id, where=which, reason=reason)


@command.command("purge")
@with_target
@click.option("--older-than", required=True, help="Dead for longer than this, such as 30d.")
@with_filters
@with_output
def purge(target: str, older_than: str, output: Output, **filters: Any) -> None:
    """Delete old dead letters for good."""
    gone = asyncio.run(_purge(target, older_than, _which(filters)))
    if output.json:
        output.document({"deleted": gone.runs, "spared": gone.spared})
    else:
        spared = f"; {gone.spared} are left, because runs above or below them are not over" if gone.spared else ""
        output.line(f"{gone.runs} runs are deleted{spared}.")


async def _purge(target: str, older_than: str, which: DeadOptions) -> PruneReport:
    async with engine_at(target) as engine:
        return await engine.dead_letters.prune(older_than, **which)


def _which(filters: dict[str, Any]) -> DeadOptions:
    now = datetime.datetime.now(datetime.UTC)
    given = {
        name: now - value if isinstance(value, datetime.timedelta) else value
        for name, value in filters.items()
        if value not in (None, ())
    }
    return cast("DeadOptions", given)


def _report(output: Output, decided: BulkResult, one: str, many: str) -> None:
    if output.json:
        output.document({"done": list(decided.done), "refused": decided.refused})
    elif len(decided.done) == 1:
        output.line(f"{decided.done[0]} {one}.")
    elif decided.done or not decided.refused:
        output.line(f"{len(decided.done)} runs {many}.")
    for why in decided.refused.values():
        output.hint(f"perdure: {why}")
    if decided.refused:
        click.get_current_context().exit(1)


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        letter.run_id,
        letter.type,
        letter.reason.value,
        str(letter.attempts),
        when(letter.dead_since),
        str(letter.requeued or ""),
        _line(letter.error),
    )


def _fault_row(fault: Fault) -> tuple[str, ...]:
    took = span(fault.at - fault.started_at) if fault.started_at else ""
    return when(fault.at), took, fault.location or "the run", str(fault.attempt or ""), _line(fault.error)


def _line(error: Failure) -> str:
    name = error.type.rpartition(".")[2]
    return short(f"{name}: {error.message}" if name and error.message else name or error.message)


def letter_document(letter: DeadLetter) -> Document:
    """A dead letter, for programs."""
    return {
        "id": letter.run_id,
        "type": letter.type,
        "queue": letter.queue,
        "input": payload(letter.input),
        "reason": letter.reason.value,
        "attempts": letter.attempts,
        "generation": letter.generation,
        "error": failure(letter.error.to_json()),
        "errors": [
            {
                "at": moment(fault.at),
                "started_at": moment(fault.started_at),
                "location": fault.location,
                "attempt": fault.attempt,
                "error": failure(fault.error.to_json()),
            }
            for fault in letter.errors
        ],
        "created_at": moment(letter.created_at),
        "dead_since": moment(letter.dead_since),
        "requeued": letter.requeued,
        "requeued_at": moment(letter.requeued_at),
        "parent_id": letter.parent_id,
        "deleted_at": moment(letter.deleted_at),
    }
