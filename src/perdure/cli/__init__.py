"""The command line, `perdure`. Imports nothing until it is run, and each command only what it needs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that the process was started with, and end with its exit code."""
    from perdure.cli.app import run

    sys.exit(run(sys.argv[1:]))
