"""`perdure dead-letters`: runs that failed for good or were set aside, and what to do with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.completion import complete_argument
from perdure.cli.console.describe import short, span, when
from perdure.cli.console.document import Document, failure, moment, payload
from perdure.cli.console.output import Printer
from perdure.cli.console.params import JsonParam, TimeParam, in_the_past, one_or_filtered, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.cli.runs.control import print_deleted
from perdure.client.dead_letters import BulkResult, DeadOptions
from perdure.client.runs.reopen import RetryOptions
from perdure.core.codec.failure import Failure
from perdure.core.model.dead_letter import DeadLetter, DeadLetterAttempt, DeadLetterReason
from perdure.core.policy.retry import Retry

F = TypeVar("F", bound=Callable[..., Any])

_FILTERS = ("type", "queue", "error", "cause", "dead_after", "dead_before")

group = CommandGroup(
    "dead-letters",
    {
        "Commands": {
            "list": "perdure.cli.dead_letters:list_dead_letters",
            "show": "perdure.cli.dead_letters:show",
            "retry": "perdure.cli.dead_letters:retry",
            "discard": "perdure.cli.dead_letters:discard",
            "prune": "perdure.cli.dead_letters:prune",
        }
    },
    help="""List, retry, discard and prune dead letters.

    A dead letter is a run that failed for good, or that was set aside because it killed its workers or cannot be
    decoded.
    """,
    example="perdure dead-letters sqlite:///shop.db --type 'billing.%'",
    moved={"requeue": "dead-letters retry", "purge": "dead-letters prune"},
)


def _with_filters(function: F) -> F:
    """Give a command the options that select dead letters."""
    causes = click.Choice([reason.value for reason in DeadLetterReason])
    for option in (
        click.option(
            "--until", "dead_before", type=TimeParam(), help="Dead before this time, or for longer than this."
        ),
        click.option("--since", "dead_after", type=TimeParam(), help="Dead after this time, or for less than this."),
        click.option("--cause", type=causes, multiple=True, help="Dead for this cause."),
        click.option("--error", metavar="CLASS", help="With a last error of this class."),
        click.option("--queue", help="In this queue."),
        click.option("--type", help="Of this type, or of types with a prefix: 'billing.%'."),
    ):
        function = option(function)
    return function


def _with_selection(function: F) -> F:
    """Give a command one dead letter, or options that select many; `one_or_filtered` reads them."""
    function = click.option("--all", "everything", is_flag=True, help="All dead letters.")(_with_filters(function))
    return click.argument("names", nargs=-1, metavar="[TARGET] [RUN]", shell_complete=complete_argument)(function)


@click.command("list", cls=Command, example="perdure dead-letters list sqlite:///shop.db --cause poison --since 1d")
@with_target
@_with_filters
@click.option("--discarded", is_flag=True, help="Discarded dead letters.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of letters.")
@click.option("--cursor", help="Continue where an earlier list ended.")
@with_output
def list_dead_letters(
    target: str, output: Printer, limit: int, cursor: str | None, discarded: bool, **filters: Any
) -> None:
    """List dead letters, newest run first."""
    options = _options(filters)
    options["deleted"] = discarded
    page = with_engine(target, lambda engine: engine.dead_letters.list(limit=limit, cursor=cursor, **options))
    if output.json:
        output.document({"letters": [_document(letter) for letter in page.letters], "cursor": page.cursor})
        return
    if not page.letters:
        output.hint("No dead letters.")
        return
    columns = ("id", "type", "cause", "attempts", "dead since", "retried", "error")
    output.table(columns, [_row(letter) for letter in page.letters])
    if page.cursor is not None:
        output.hint(f"There are more: --cursor {page.cursor}")


@click.command("show", cls=Command, example="perdure dead-letters show sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def show(target: str, run: str, output: Printer) -> None:
    """Show a dead letter with all its errors."""
    letter = with_engine(target, lambda engine: engine.dead_letters.get(run))
    if output.json:
        output.document(_document(letter))
        return
    output.line(f"{letter.run_id}  {letter.type}  {letter.reason.value}", "bold red")
    output.fields(
        [
            ("queue", letter.queue),
            ("input", short(letter.input)),
            ("attempts", str(letter.attempts)),
            ("created", when(letter.created_at)),
            ("dead since", when(letter.dead_since)),
            ("retried", f"{letter.requeued} times, last {when(letter.requeued_at)}" if letter.requeued else ""),
            ("parent", letter.parent_id or ""),
            ("discarded", when(letter.deleted_at)),
        ]
    )
    output.heading("Errors")
    columns = ("time", "took", "where", "attempt", "error")
    output.table(columns, [_attempt_row(failed) for failed in letter.errors])


@click.command("retry", cls=Command, example="perdure dead-letters retry sqlite:///shop.db --error ConnectionError")
@_with_selection
@click.option("--input", type=JsonParam(), help="Other arguments of one run, as a JSON object.")
@click.option("--attempts", type=click.IntRange(min=1), help="New maximum of attempts at an activity.")
@click.option("--start-to-close", metavar="DURATION", help="New timeout of an attempt at an activity.")
@click.option("--schedule-to-start", metavar="DURATION", help="New limit of an activity's wait for a worker.")
@click.option("--schedule-to-close", metavar="DURATION", help="New timeout of an activity with all its attempts.")
@click.option("--heartbeat", metavar="DURATION", help="New limit of the time between an activity's heartbeats.")
@click.option("--deadline", type=TimeParam(), help="New deadline; required if the old one has passed.")
@click.option("--to-queue", metavar="QUEUE", help="Another queue.")
@click.option("--priority", type=int, help="Another priority; lower goes first.")
@with_output
def retry(
    names: tuple[str, ...], everything: bool, output: Printer, attempts: int | None, to_queue: str | None, **given: Any
) -> None:
    """Let one dead letter run again, or all that the options select."""
    selected = _options({name: given.pop(name) for name in _FILTERS})
    target, run_id, where = one_or_filtered(names, everything, selected)
    changes = {name: value for name, value in given.items() if value is not None}
    if attempts is not None:
        changes["retry"] = Retry(attempts=attempts)
    if to_queue is not None:
        changes["queue"] = to_queue
    options = cast("RetryOptions", changes)
    result = with_engine(target, lambda engine: engine.dead_letters.retry(run_id, where=where, **options))
    _print_result(output, result, "continues", "continue")


@click.command("discard", cls=Command, example="perdure dead-letters discard sqlite:///shop.db order-42 --reason paid")
@_with_selection
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def discard(names: tuple[str, ...], everything: bool, reason: str, output: Printer, **filters: Any) -> None:
    """Take one dead letter off the list, or all that the options select.

    `perdure runs undelete` restores a discarded dead letter.
    """
    target, run_id, where = one_or_filtered(names, everything, _options(filters))
    result = with_engine(target, lambda engine: engine.dead_letters.discard(run_id, where=where, reason=reason))
    _print_result(output, result, "is discarded", "are discarded")


@click.command("prune", cls=Command, example="perdure dead-letters prune sqlite:///shop.db --older-than 90d")
@with_target
@click.option("--older-than", required=True, metavar="DURATION", help="Dead for longer than this, such as 30d.")
@_with_filters
@with_output
def prune(target: str, older_than: str, output: Printer, **filters: Any) -> None:
    """Delete old dead letters for good."""
    options = _options(filters)
    print_deleted(output, with_engine(target, lambda engine: engine.dead_letters.prune(older_than, **options)))


def _options(filters: dict[str, Any]) -> DeadOptions:
    """Return the filters that were given, with durations as times in the past."""
    given = {name: in_the_past(value) for name, value in filters.items() if value not in (None, ())}
    if "cause" in given:
        given["reason"] = given.pop("cause")
    return cast("DeadOptions", given)


def _print_result(output: Printer, result: BulkResult, one: str, many: str) -> None:
    """Print the runs that were changed, and the refused ones with their reasons; exit with 1 if one was refused."""
    if output.json:
        output.document({"done": list(result.done), "refused": result.refused})
    elif len(result.done) == 1:
        output.line(f"{result.done[0]} {one}.")
    elif result.done or not result.refused:
        output.line(f"{len(result.done)} runs {many}.")
    for why in result.refused.values():
        output.hint(f"perdure: {why}")
    if result.refused:
        click.get_current_context().exit(1)


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        letter.run_id,
        letter.type,
        letter.reason.value,
        str(letter.attempts),
        when(letter.dead_since),
        str(letter.requeued or ""),
        _error_line(letter.error),
    )


def _attempt_row(failed: DeadLetterAttempt) -> tuple[str, ...]:
    took = span(failed.at - failed.started_at) if failed.started_at else ""
    return when(failed.at), took, failed.location or "the run", str(failed.attempt or ""), _error_line(failed.error)


def _error_line(error: Failure) -> str:
    name = error.type.rpartition(".")[2]
    return short(f"{name}: {error.message}" if name and error.message else name or error.message)


def _document(letter: DeadLetter) -> Document:
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
                "at": moment(failed.at),
                "started_at": moment(failed.started_at),
                "location": failed.location,
                "attempt": failed.attempt,
                "error": failure(failed.error.to_json()),
            }
            for failed in letter.errors
        ],
        "created_at": moment(letter.created_at),
        "dead_since": moment(letter.dead_since),
        "requeued": letter.requeued,
        "requeued_at": moment(letter.requeued_at),
        "parent_id": letter.parent_id,
        "deleted_at": moment(letter.deleted_at),
    }
