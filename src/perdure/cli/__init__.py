"""The command line `perdure`."""

from perdure.cli.app import main

__all__ = ["main"]
