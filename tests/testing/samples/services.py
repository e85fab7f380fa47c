"""Systems outside of the program, which the samples use: a bank, a mail server, a document store, a printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from perdure import Call


class Services:
    """What survives a crash of the program, besides the database."""

    def __init__(self) -> None:
        self.charges: list[tuple[str, int]] = []
        self.mails: list[str] = []
        self.documents: dict[str, str] = {}
        self.balances: dict[str, int] = {}
        self.keys: dict[str, str] = {}
        self.printed = 0

    def charge(self, account: str, cents: int, key: str = "") -> str:
        """Charge an account; a request with a key that was used before returns the receipt of then."""
        if key and key in self.keys:
            return self.keys[key]
        self.charges.append((account, cents))
        receipt = f"receipt {len(self.charges)}"
        if key:
            self.keys[key] = receipt
        return receipt

    def print_number(self) -> int:
        self.printed += 1
        return self.printed


class Sample(Struct, frozen=True):
    """A workflow, with what it is given and what `crash_everywhere` has to report."""

    name: str
    call: Callable[[], Call[Any]]
    workflows: tuple[Any, ...]
    #: Messages that it waits for.
    messages: tuple[tuple[str, object], ...] = ()
    #: Kind of the finding; empty for a correct workflow.
    finds: str = ""
    #: Part of the location of a finding.
    at: str = ""
    #: The bug report or documentation that the mistake is known from.
    source: str = ""
