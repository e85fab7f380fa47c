"""The command line `perdure`."""

from __future__ import annotations

from perdure.cli.app import main

__all__ = ["main"]
