"""The demo as it happens: one lane for each worker, and what concerns both across them."""

from __future__ import annotations

import time

from perdure.cli.console.output import Output

_LANE = 36
_STYLES = ("cyan", "magenta")


class Timeline:
    """Lines with the time since the beginning. Silent when the answer is JSON."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._began = time.monotonic()

    def lane(self, worker: int, text: str) -> None:
        """Something that worker A (0) or B (1) did."""
        letter = "AB"[worker]
        self._print(f"{' ' * _LANE * worker}{letter}  {text}", _STYLES[worker])

    def across(self, text: str, style: str = "bold") -> None:
        """Something that happened to both, or to the run."""
        self._print(f"-- {text}", style)

    def _print(self, text: str, style: str) -> None:
        if not self._output.json:
            self._output.line(f"{time.monotonic() - self._began:6.2f}s  {text}", style)
