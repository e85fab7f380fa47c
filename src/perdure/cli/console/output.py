"""Output of commands: JSON for programs, coloured tables on a terminal, plain columns anywhere else.

Control characters in stored text are escaped, so that it cannot move the cursor, recolour the screen or imitate
another line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from perdure.core.printed_text import harmless, harmless_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Rows = Sequence[Sequence[str]]
RowStyle = Callable[[Sequence[str]], str]


def dump(value: object) -> str:
    """Encode a value as one line of ASCII JSON, which every terminal and encoding can show."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


class Printer:
    """Standard output and standard error of a command."""

    def __init__(self, *, json: bool) -> None:
        self.json = json

    @cached_property
    def _console(self) -> Console | None:
        if self.json or not sys.stdout.isatty():
            return None
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False)

    @property
    def is_terminal(self) -> bool:
        """True if people read the output on a terminal."""
        return self._console is not None

    def document(self, value: object) -> None:
        """Print a JSON document."""
        print(dump(value), flush=True)

    def result(self, document: object, text: str) -> None:
        """Print the result of a command: the document with `--json`, else the text."""
        if self.json:
            self.document(document)
        else:
            self.line(text)

    def line(self, text: str, style: str = "") -> None:
        """Print a line of text."""
        if self._console is None:
            print(harmless(text), flush=True)
        else:
            self._console.print(harmless(text), style=style or None, soft_wrap=True)

    def lines(self, text: str, style: str = "", indent: int = 4) -> None:
        """Print text that may have several lines, such as an error; the indent shows that those belong to the first."""
        first, *rest = harmless_lines(text)
        self.line(first, style)
        for line in rest:
            self.line(f"{'':<{indent}}{line}", style)

    def hint(self, text: str) -> None:
        """Print a remark to standard error, which is not part of the result; nothing with `--json`."""
        if not self.json:
            print(harmless(text), file=sys.stderr, flush=True)

    def heading(self, text: str) -> None:
        """Print the title of the lines below it."""
        self.line("")
        self.line(text, "bold")

    def table(self, columns: Sequence[str], rows: Rows, style: RowStyle | None = None) -> None:
        """Print rows below the names of their columns; `style` returns the colour of a row."""
        safe = [[harmless(cell) for cell in row] for row in rows]
        if self._console is None:
            print("\n".join(_aligned([[column.upper() for column in columns], *safe])), flush=True)
            return
        self._console.print(rich_table(columns, safe, style))

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Print names and values; skip pairs without a value. Further lines of a value stand below its first."""
        width = max(len(name) for name, _ in pairs)
        for name, value in pairs:
            if value:
                self.lines(f"  {name:<{width}}  {value}", indent=width + 4)


def rich_table(columns: Sequence[str], rows: Rows, style: RowStyle | None = None) -> Table:
    """Make a table of rows that are safe to print; `style` returns the colour of a row."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row), style=style(row) if style else None)
    return table


def _aligned(rows: Rows) -> list[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
