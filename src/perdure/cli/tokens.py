"""`perdure tokens`: tokens for access over HTTP."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.console.command_groups import Command, CommandGroup
from perdure.cli.console.describe import when
from perdure.cli.console.document import Document, moment
from perdure.cli.console.output import Printer
from perdure.cli.console.params import TimeParam, with_output, with_target
from perdure.cli.console.target import with_engine
from perdure.core.access import Role, TokenInfo

group = CommandGroup(
    "tokens",
    {
        "Commands": {
            "list": "perdure.cli.tokens:list_tokens",
            "create": "perdure.cli.tokens:create",
            "revoke": "perdure.cli.tokens:revoke",
        }
    },
    help="Create, list and revoke tokens for the HTTP API.",
    example="perdure tokens create sqlite:///shop.db ci --role operator --expires 90d",
)


@click.command("create", cls=Command, example="perdure tokens create sqlite:///shop.db ci --role operator")
@with_target
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default=Role.VIEWER.value,
    show_default=True,
    help="Viewers read, operators also change, admins also manage tokens.",
)
@click.option("--expires", type=TimeParam(), help="End of its validity: a time, or a duration from now.")
@with_output
def create(target: str, name: str, role: str, expires: Any, output: Printer) -> None:
    """Create a token and print it, this once: the database stores only a digest."""
    made = with_engine(target, lambda engine: engine.tokens.create(name, role, expires=expires), create=True)
    output.result({"token": made.token, **_document(made.info)}, made.token)
    output.hint("Keep it: it is not shown again.")


@click.command("list", cls=Command, example="perdure tokens list sqlite:///shop.db")
@with_target
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="Maximum number of tokens.")
@click.option("--after", default="", metavar="NAME", help="After this name.")
@with_output
def list_tokens(target: str, limit: int, after: str, output: Printer) -> None:
    """List tokens by name, also expired and revoked ones."""
    found = with_engine(target, lambda engine: engine.tokens.list(limit=limit, after=after))
    if output.json:
        output.document([_document(one) for one in found])
    elif found:
        rows = [
            (
                one.name,
                one.role.value,
                when(one.created_at),
                when(one.expires_at) or "never",
                when(one.used_at) or "never",
                f"revoked {when(one.revoked_at)}" if one.revoked_at else "",
            )
            for one in found
        ]
        output.table(("name", "role", "created", "expires", "last used", ""), rows)
    else:
        output.hint("There is no token.")


@click.command("revoke", cls=Command, example="perdure tokens revoke sqlite:///shop.db ci")
@with_target
@click.argument("name")
@with_output
def revoke(target: str, name: str, output: Printer) -> None:
    """Revoke a token for good, with its sessions.

    Servers refuse it within a few seconds.
    """
    revoked = with_engine(target, lambda engine: engine.tokens.revoke(name))
    output.result(_document(revoked), f"{revoked.name}  revoked")


def _document(token: TokenInfo) -> Document:
    return {
        "name": token.name,
        "role": token.role.value,
        "created_at": moment(token.created_at),
        "created_by": token.created_by,
        "expires_at": moment(token.expires_at),
        "revoked_at": moment(token.revoked_at),
        "used_at": moment(token.used_at),
    }
