"""`manage.py perdure ...`: the command line of Perdure, on the engine of the project."""

from __future__ import annotations

import sys
from argparse import REMAINDER
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from perdure.cli.app import run

#: Options of every management command, which Django has read already.
_OF_DJANGO = ("--settings", "--pythonpath")


class Command(BaseCommand):
    """Passes its arguments to the command line of Perdure."""

    help = "Durable execution: worker, migrate, runs, why, serve... Run `manage.py perdure --help`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a command line, options of Perdure included, and exit with its code."""
        sys.exit(_run(_without_django_options(argv[2:])))

    def add_arguments(self, parser: CommandParser) -> None:
        """Take all arguments as they are."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a command for `call_command("perdure", "migrate")`."""
        if code := _run(options["arguments"]):
            raise CommandError(f"perdure failed with the exit code {code}", returncode=code)


def _run(arguments: Sequence[str]) -> int:
    return run(arguments, target="perdure.django.target:engine")


def _without_django_options(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word in _OF_DJANGO:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in _OF_DJANGO)):
            kept.append(word)
    return kept
