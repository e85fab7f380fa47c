"""Commands that send messages to runs, ask them questions, and decide about messages that were set aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import msgspec
from msgspec import Struct

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import short, when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Printer, dump
from perdure.cli.console.params import JsonParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.core.model.record import RecordKind
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.core.model.waits import WaitKind, meant_by


@click.command("send", cls=Command, example="perdure send sqlite:///shop.db order-42 approval true")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--key", help="Idempotency key: a message with the same key is sent once.")
@click.option("--reason", default="", metavar="TEXT", help="Stored in the audit trail.")
@with_output
def send(target: str, run: str, name: str, value: Any, key: str | None, reason: str, output: Printer) -> None:
    """Send a message to a run, which is stored until the run receives it."""

    async def act(engine: Engine) -> list[str]:
        # Before the message wakes the run.
        waits = (await (await engine.get(run)).report()).waits
        await engine.send(run, name, value, key=key, reason=reason)
        return [] if waits is None else [wait.name for wait in waits.waits if wait.kind is WaitKind.MESSAGE]

    awaited = with_engine(target, act)
    output.result({"id": run, "name": name, "sent": True}, f"Sent {name} to {run}.")
    if awaited and name not in awaited and not output.json:
        waited = ", ".join(awaited)
        output.hint(f"{run} waits for {waited}, not for {name}: it is kept until the workflow asks for it.")


@click.command("ask", cls=Command, example="perdure ask sqlite:///shop.db order-42 quote 3")
@with_target
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--key", help="Idempotency key: asking again with the same key returns the same answer.")
@click.option("--timeout", default="1m", help="How long to wait for the answer.", show_default=True)
@with_output
def ask(target: str, run: str, name: str, value: Any, key: str | None, timeout: str, output: Printer) -> None:
    """Ask a run a question and print the answer of its workflow."""

    async def act(engine: Engine) -> Any:
        return await (await engine.get(run)).ask(name, value, key=key, timeout=timeout)

    answer = with_engine(target, act)
    output.result({"id": run, "name": name, "answer": answer}, dump(answer))


@click.command("broadcast", cls=Command, example="perdure broadcast sqlite:///shop.db alarm true --correlation ritz")
@with_target
@click.argument("name")
@click.argument("value", metavar="JSON", type=JsonParam())
@click.option("--correlation", required=True, help="The correlation value that the runs listen for.")
@click.option("--key", help="Idempotency key: each run receives the message once.")
@with_output
def broadcast(target: str, name: str, value: Any, correlation: str, key: str | None, output: Printer) -> None:
    """Send a message to all runs that listen for a name and a correlation value."""
    sent = with_engine(target, lambda engine: engine.runs.broadcast(name, value, correlation=correlation, key=key))
    text = f"Sent {name} to {sent} {'run' if sent == 1 else 'runs'}."
    output.result({"name": name, "correlation": correlation, "sent": sent}, text)


group = CommandGroup(
    "messages",
    {
        "Inspect": {"list": "perdure.cli.runs.messages:list_messages"},
        "Decide": {
            "deliver": "perdure.cli.runs.messages:deliver",
            "drop": "perdure.cli.runs.messages:drop",
        },
    },
    help="""List the unread messages of a run, and list, deliver and drop those that it set aside.

    A message is set aside if the workflow cannot decode it. The run goes on waiting.
    """,
    example="perdure messages sqlite:///shop.db order-42",
)


def set_aside_document(message: SetAsideMessage) -> Document:
    """Document of a message that was set aside."""
    return {
        "number": message.number,
        "name": message.name,
        "payload": message.payload,
        "error": {"type": message.error.type, "message": message.error.message},
        "at": moment(message.at),
        "decision": message.decision or None,
    }


def print_set_aside(output: Printer, messages: Sequence[SetAsideMessage]) -> None:
    """Print a table of messages that were set aside."""
    rows = [
        (str(one.number), when(one.at), one.name, short(one.payload), one.error.message, one.decision or "undecided")
        for one in messages
    ]
    output.table(("number", "at", "name", "payload", "error", "decision"), rows)


@click.command("list", cls=Command, example="perdure messages list sqlite:///shop.db order-42")
@with_target
@click.argument("run")
@with_output
def list_messages(target: str, run: str, output: Printer) -> None:
    """List the messages that a run set aside, with their errors, and count those that it has not received."""

    async def read(engine: Engine) -> tuple[list[SetAsideMessage], UnreadMessages]:
        handle = await engine.get(run)
        return await handle.set_aside_messages(), await _read_unread(handle)

    found, unread = with_engine(target, read)
    if output.json:
        document = {"id": run, "messages": [set_aside_document(one) for one in found]}
        output.document({**document, **msgspec.to_builtins(unread)})
        return
    if found:
        print_set_aside(output, found)
    else:
        output.hint(f"{run} has set aside no message.")
    if unread.unread:
        if found:
            output.heading("Unread messages")
        rows = [
            (name, str(count), f"did you mean {unread.meant[name]}?" if name in unread.meant else "")
            for name, count in unread.unread.items()
        ]
        output.table(("unread", "messages", ""), rows)
        if unread.waits_for:
            output.hint(f"{run} waits for {', '.join(unread.waits_for)}.")


class UnreadMessages(Struct, frozen=True, kw_only=True):
    """Messages that a run has not received yet, and what it waits for instead."""

    #: By name, the number of messages.
    unread: dict[str, int]
    #: Names of the messages that it waits for.
    waits_for: list[str]
    #: By the name of an unread message, the awaited name that was probably meant.
    meant: dict[str, str]


async def _read_unread(handle: Handle[Any]) -> UnreadMessages:
    waits, inbox = (await handle.report()).waits, await handle.inbox()
    unread = Counter(one.name for one in inbox if one.kind is RecordKind.MESSAGE)
    if waits is None:
        return UnreadMessages(unread=dict(unread), waits_for=[], meant={})
    # Those that its history has, and that its code has not asked for.
    unread += Counter(waits.unread)
    meant = {name: awaited for name in unread if (awaited := meant_by(name, waits)) is not None}
    waits_for = [wait.name for wait in waits.waits if wait.kind is WaitKind.MESSAGE]
    return UnreadMessages(unread=dict(unread), waits_for=waits_for, meant=meant)


@click.command("deliver", cls=Command, example="perdure messages deliver sqlite:///shop.db order-42 0 --value 7")
@with_target
@click.argument("run")
@click.argument("number", type=int)
@click.option("--value", metavar="JSON", type=JsonParam(), default=None, help="Another value.  [default: as it is]")
@with_output
def deliver(target: str, run: str, number: int, value: Any, output: Printer) -> None:
    """Deliver a message that was set aside again, edited or as it is."""
    given = click.get_current_context().get_parameter_source("value") is click.core.ParameterSource.COMMANDLINE

    async def act(engine: Engine) -> None:
        await (await engine.get(run)).deliver_again(number, value if given else ...)

    with_engine(target, act)
    output.result({"id": run, "number": number, "delivered": True}, f"Delivered message {number} to {run} again.")


@click.command("drop", cls=Command, example="perdure messages drop sqlite:///shop.db order-42 0")
@with_target
@click.argument("run")
@click.argument("number", type=int)
@with_output
def drop(target: str, run: str, number: int, output: Printer) -> None:
    """Drop a message that was set aside."""

    async def act(engine: Engine) -> None:
        await (await engine.get(run)).drop_message(number)

    with_engine(target, act)
    output.result({"id": run, "number": number, "dropped": True}, f"Dropped message {number} of {run}.")
