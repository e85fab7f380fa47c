"""Views that refresh themselves: on a terminal a screen that is drawn again, anywhere else lines.

The alternate screen of the terminal is left in every case, so that Ctrl-C ends a view as if it had never been there.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from perdure.cli.console.output import Printer, Rows, RowStyle, rich_table
from perdure.core.printed_text import harmless
from perdure.errors import StoreUnavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Seconds between two refreshes.
INTERVAL = 1.0
#: Exit code after SIGTERM, as shells report it.
_TERMINATED = 128 + signal.SIGTERM


class Section(Struct, frozen=True, kw_only=True):
    """A part of a view: a title, and either a table or, without columns, one line for each row."""

    title: str = ""
    columns: tuple[str, ...] = ()
    rows: Rows = ()
    style: RowStyle | None = None


Read = Callable[[], Awaitable[Sequence[Section]]]


def run_until_interrupted(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a view until it ends, or until Ctrl-C, which is its usual end. SIGTERM leaves the screen, too."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    try:
        with suppress(KeyboardInterrupt):
            asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


def print_sections(output: Printer, sections: Sequence[Section]) -> None:
    """Print a view once."""
    for section in sections:
        if section.title:
            output.heading(section.title)
        if section.columns:
            output.table(section.columns, section.rows, section.style)
        else:
            for row in section.rows:
                output.line("  ".join(row), section.style(row) if section.style else "")


async def show_live(read: Read, console: Console | None = None) -> None:
    """Draw a view on the terminal again and again. A database that does not answer is named above the last view."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    shown = console or Console(highlight=False, markup=False, emoji=False)
    sections: Sequence[Section] = ()
    with Live(console=shown, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            problem = ""
            try:
                sections = await read()
            except StoreUnavailable as error:
                problem = harmless(str(error))
            parts: list[RenderableType] = [Text(problem, style="bold red")] if problem else []
            parts += [part for section in sections for part in _drawn(section)]
            live.update(Group(*parts), refresh=True)
            await asyncio.sleep(INTERVAL)


def _drawn(section: Section) -> list[RenderableType]:
    from rich.text import Text

    rows = [[harmless(cell) for cell in row] for row in section.rows]
    parts: list[RenderableType] = []
    if section.title:
        parts += [Text(""), Text(harmless(section.title), style="bold")]
    if section.columns:
        parts.append(rich_table(section.columns, rows, section.style))
    else:
        parts += [Text("  ".join(row), style=section.style(row) if section.style else "") for row in rows]
    return parts
