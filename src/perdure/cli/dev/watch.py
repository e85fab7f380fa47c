"""Watches the Python files of a project, with the package `watchfiles`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from perdure.cli.dev.lines import LinePrinter
from perdure.cli.dev.supervisor import describe

Report = Callable[[Sequence[str]], None]


def make_watch(folders: Sequence[Path], lines: LinePrinter) -> Callable[[Report], Awaitable[None]]:
    """Make a coroutine function that reports the files of each change, as long as it runs."""
    from watchfiles import PythonFilter, awatch

    # Environments have thousands of files, which installations change, not the user.
    environments = {Path(sys.prefix), *(one.parent for folder in folders for one in folder.glob("*/pyvenv.cfg"))}
    chosen = PythonFilter(ignore_paths=[str(one.resolve()) for one in environments])

    async def watch(report: Report) -> None:
        try:
            async for changes in awatch(*folders, watch_filter=chosen):
                report(sorted(describe(path) for _, path in changes))
        except Exception as error:
            lines.say("unwatched", f"files are not watched any more: {error}; restart perdure dev after a change")

    return watch
