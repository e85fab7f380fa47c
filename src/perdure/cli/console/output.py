"""What a command prints: JSON for programs, tables with colours on a terminal, plain columns anywhere else.

Whatever comes from the database is shown with its control characters escaped, so that stored text cannot move the cursor,
recolour the screen or pretend to be another line.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

#: Categories of characters that a terminal acts on, or that it cannot show: controls, invisible formats (which reorder
#: text), lone surrogates, and separators of lines.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

Rows = Sequence[Sequence[str]]
RowStyle = Callable[[Sequence[str]], str]


def harmless(text: str) -> str:
    """The text on one line, with everything that a terminal would act on spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(one) if unicodedata.category(one) in _UNSAFE else one for one in text)


def harmless_lines(text: str) -> list[str]:
    """The same for text of several lines, such as a traceback."""
    return [harmless(line.expandtabs()) for line in text.split("\n")]


def _spelled(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def dump(value: object) -> str:
    """One line of JSON, in ASCII: safe on any terminal, in any encoding."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


class Output:
    """Where a command's answer goes."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @cached_property
    def _console(self) -> Console | None:
        if self.json or not sys.stdout.isatty():
            return None
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    def document(self, value: object) -> None:
        """The answer, for programs."""
        print(dump(value), flush=True)

    def line(self, text: str, style: str = "") -> None:
        """A line for people."""
        if self._console is None:
            print(harmless(text), flush=True)
        else:
            self._console.print(harmless(text), style=style or None, soft_wrap=True)

    def hint(self, text: str) -> None:
        """A remark for people that is no part of the answer."""
        if not self.json:
            print(harmless(text), file=sys.stderr, flush=True)

    def heading(self, text: str) -> None:
        """What the next lines are about."""
        self.line("")
        self.line(text, "bold")

    def table(self, columns: Sequence[str], rows: Rows, style: RowStyle | None = None) -> None:
        """Columns with a heading each; `style` gives the colour of a row."""
        safe = [[harmless(cell) for cell in row] for row in rows]
        if self._console is None:
            print("\n".join(_aligned([[column.upper() for column in columns], *safe])), flush=True)
            return
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in safe:
            table.add_row(*(Text(cell) for cell in row), style=style(row) if style else None)
        self._console.print(table)

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Names and values, a pair a line; pairs without a value are left out."""
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            if value:
                self.line(f"  {name:<{width}}  {value}")


def _aligned(rows: Rows) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
