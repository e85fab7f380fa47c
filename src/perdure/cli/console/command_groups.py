"""Command classes: groups that import a command on first use, and help texts with an example."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import click

#: Command name -> place of the command, as `module:attribute`.
Places = Mapping[str, str]


#: Key of the words of the line, in the context of a command.
WORDS = "perdure.words"


class Command(click.Command):
    """Command whose help ends with an example."""

    def __init__(self, *arguments: Any, example: str = "", **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the line. Words get lost on the way, so completion and error messages get them as they are."""
        ctx.meta[WORDS] = words = tuple(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            if not isinstance(error.param, click.Argument):
                raise
            raise click.MissingParameter(ctx=ctx, param=self.lacking(ctx, words) or error.param) from None

    def lacking(self, ctx: click.Context, words: tuple[str, ...]) -> click.Argument | None:
        """Return the first argument after the TARGET for which the line has no word.

        click gives the words to the arguments from the back, because the TARGET may be left out.
        """
        values, _, _ = self.make_parser(ctx).parse_args(list(words))
        arguments = [one for one in self.params if isinstance(one, click.Argument)]
        found = [values.get(one.name or "") for one in arguments]
        given = [word for word in found if isinstance(word, str) and "://" not in word]
        wanted = [one for one in arguments if one.name != "target" and one.nargs == 1]
        return wanted[len(given)] if len(given) < len(wanted) else None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example on a line of its own, never wrapped, so that it can be copied."""
        _write_example(self.example, formatter)


class CommandGroup(click.Group):
    """Group of commands in titled sections, each command imported on first use.

    A group that has the command `list` runs it when no command is named: `perdure runs sqlite:///shop.db`. `moved`
    maps names of earlier versions to the command that replaces them.
    """

    command_class = Command

    def __init__(
        self,
        name: str,
        sections: Mapping[str, Places],
        *,
        help: str,  # noqa: A002 - the name is click's
        example: str,
        moved: Mapping[str, str] = MappingProxyType({}),
        **options: Any,
    ) -> None:
        self._sections = sections
        self._places = {command: place for places in sections.values() for command, place in places.items()}
        self._lists = "list" in self._places
        if self._lists:
            options.setdefault("subcommand_metavar", "[COMMAND] [ARGS]...")
        super().__init__(name, help=help, **options)
        self._moved = moved
        self.example = example

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of the commands in the order of the sections."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of that name; None if there is none."""
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group, after `with_default` has named the command."""
        return super().parse_args(ctx, self.with_default(ctx, args))

    def with_default(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `list` in front of a target or an option where a command is expected."""
        if ctx.resilient_parsing and not args:
            # A shell completes the names of the commands.
            return args
        lists = self._lists and (not args or _starts_listing(args[0], ctx))
        return ["list", *args] if lists else args

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; raise a usage error with a hint for a name that moved or was mistyped."""
        command = self.get_command(ctx, args[0])
        if command is None and not ctx.resilient_parsing:
            ctx.fail(f"no such command {args[0]!r}; {self._hint(ctx, args[0])}")
        return args[0], command, args[1:]

    def _hint(self, ctx: click.Context, name: str) -> str:
        if name in self._moved:
            return f"see `perdure {self._moved[name]}`"
        if ":" in name:
            return f"the TARGET follows a command; see `{ctx.command_path} --help`"
        close = difflib.get_close_matches(name, self._places, n=1)
        if close:
            return f"did you mean `{ctx.command_path} {close[0]}`?"
        if "." in name or "/" in name:
            return "a TARGET is an engine such as shop:engine or a database such as sqlite:///shop.db"
        if self._lists and self._lists_what(ctx):
            return f"to list, say `{ctx.command_path} list {name}`; see also `{ctx.command_path} --help`"
        return f"see `{ctx.command_path} --help`"

    def _lists_what(self, ctx: click.Context) -> bool:
        """True if the command `list` takes an argument besides the target, such as a run."""
        command = self.get_command(ctx, "list")
        assert command is not None
        return sum(isinstance(one, click.Argument) for one in command.params) > 1

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help, and the command that is meant when none is named."""
        super().format_help_text(ctx, formatter)
        if self._lists:
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(f"Without a COMMAND, it is `{ctx.command_path} list`.")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with the first sentence of its commands' help."""
        width = max(map(len, self._places))
        limit = formatter.width - 6 - width
        for title, places in self._sections.items():
            with formatter.section(title):
                commands = [(name, self.get_command(ctx, name)) for name in places]
                rows = [(name.ljust(width), one.get_short_help_str(limit)) for name, one in commands if one is not None]
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example below the commands."""
        _write_example(self.example, formatter)


def _starts_listing(word: str, ctx: click.Context) -> bool:
    """Tell a target or an option from the name of a command; `--help` is about the group."""
    return ":" in word or (word.startswith("-") and word not in ctx.help_option_names)


def _write_example(example: str, formatter: click.HelpFormatter) -> None:
    if example:
        with formatter.section("Example"):
            formatter.write(f"{'':{formatter.current_indent}}{example}\n")
