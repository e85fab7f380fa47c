"""Completion in shells: run ids, types, queues, schedules and workers of the target on the line.

A shell calls `perdure` anew for each press of the tabulator key. The answer is bounded in time, and an error means that
there is no suggestion. Names that a shell could take for more than a word are left out: a run id such as `$(reboot)`
would be executed with the line that it is inserted into.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING

import click

from perdure.cli.console.command_groups import WORDS, Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from perdure.client.engine import Engine

#: Environment variable by which a shell asks for completions.
VARIABLE = "_PERDURE_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
#: Environment variable with the longest time of an answer, in seconds; and the default.
PATIENCE = "PERDURE_COMPLETION_SECONDS"
_SECONDS = 2.0
#: Number of suggestions.
_SUGGESTIONS = 50
#: Names that every shell takes for one word.
_ONE_WORD = re.compile(r"[\w.:/@%+=,-]+", re.ASCII)

#: Bash breaks words at colons, which targets and run ids have: the whole line is passed on, and the part of the word
#: that bash keeps is taken off the suggestions.
_BASH = """\
%(complete_func)s() {
    local line="${COMP_LINE:0:COMP_POINT}" kept="" kind name
    if [[ "$COMP_WORDBREAKS" == *:* ]]; then
        kept="${line##*[[:space:]]}"
        kept="${kept%%"${kept##*:}"}"
        kept="${kept##*=}"
    fi
    COMPREPLY=()
    while IFS=, read -r kind name; do
        case "$kind" in
            plain) COMPREPLY+=("${name#"$kept"}") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done < <(COMP_LINE="$line" %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

Names = Iterable[tuple[str, str]]
Lookup = Callable[["Engine", str], Awaitable[Names]]
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


async def _runs(engine: Engine, beginning: str) -> Names:
    page = await engine.runs.list(id_prefix=beginning or None, limit=_SUGGESTIONS)
    return [(run.id, f"{run.type} {run.status.value}") for run in page.runs]


async def _types(engine: Engine, beginning: str) -> Names:
    return [(one.type, one.kind) for one in await engine.queues.types()]


async def _queues(engine: Engine, beginning: str) -> Names:
    served = {queue for worker in await engine.workers.list() for queue in worker.queues}
    used = {str(group.value) for group in await engine.runs.count_by("queue")}
    return [(queue, "") for queue in sorted(served | used)]


async def _schedules(engine: Engine, beginning: str) -> Names:
    return [(one.id, one.type) for one in await engine.schedules.list(limit=1000)]


async def _workers(engine: Engine, beginning: str) -> Names:
    return [(one.id, f"{one.host} {one.status.value}") for one in await engine.workers.list()]


#: What the values of an argument are, by its name or its metavar.
_ARGUMENTS: dict[str, Lookup] = {
    "run": _runs,
    "type": _types,
    "id": _schedules,
    "worker": _workers,
    "[TARGET] RUN...": _runs,
    "[TARGET] [RUN]": _runs,
    "[TARGET] [QUEUE]": _queues,
}


def complete_argument(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Suggest values of the next argument. The TARGET takes any number of words, so click asks it for all of them."""
    words = _words(ctx)
    target = _target(words)
    place = len(words) - (bool(words) and ":" in words[0])
    others = [one for one in ctx.command.params if isinstance(one, click.Argument) and one.name != "target"]
    if not target or not others:
        return []
    following = others[min(place, len(others) - 1)]
    if place >= len(others) and following.nargs != -1:
        return []
    lookup = _ARGUMENTS.get(following.name or "") or _ARGUMENTS.get(str(following.metavar))
    return [] if lookup is None else suggest(target, lookup, incomplete)


def complete_option(lookup: Lookup) -> Completer:
    """Make the completion of an option whose values the database has."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        target = _target(_words(ctx))
        return suggest(target, lookup, incomplete) if target else []

    return complete


complete_runs, complete_types = complete_option(_runs), complete_option(_types)
complete_queues, complete_schedules = complete_option(_queues), complete_option(_schedules)


def _words(ctx: click.Context) -> list[str]:
    """List the arguments on the line, without options and without the word that is being written."""
    valued = {
        name
        for one in ctx.command.params
        if isinstance(one, click.Option) and not one.is_flag and not one.count
        for name in one.opts
    }
    words: list[str] = []
    rest = iter(ctx.meta.get(WORDS, ()))
    for word in rest:
        if not word.startswith("-"):
            words.append(word)
        elif word in valued:
            next(rest, None)
    return words


def _target(words: list[str]) -> str:
    from perdure.cli.console.params import ENVIRONMENT

    return words[0] if words and ":" in words[0] else os.environ.get(ENVIRONMENT, "")


def suggest(target: str, lookup: Lookup, incomplete: str) -> list[CompletionItem]:
    """Ask the target for names that begin with a text; none if that takes too long or fails."""
    import asyncio

    from click.shell_completion import CompletionItem

    from perdure.cli.console.target import engine_at
    from perdure.core.printed_text import harmless

    async def ask(seconds: float) -> Names:
        async with asyncio.timeout(seconds), engine_at(target) as engine:
            return await lookup(engine, incomplete)

    try:
        seconds = float(os.environ.get(PATIENCE) or _SECONDS)
        # Code of the user may print while it is imported.
        with (
            _time_limit(1.5 * seconds),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            found = asyncio.run(ask(seconds))
    except Exception:
        return []
    names = [(name, note) for name, note in found if name.startswith(incomplete) and _ONE_WORD.fullmatch(name)]
    return [CompletionItem(name, help=harmless(note) or None) for name, note in names[:_SUGGESTIONS]]


@contextlib.contextmanager
def _time_limit(seconds: float) -> Generator[None]:
    """End the process in silence where even a cancelled call does not return, such as one that waits for a lock."""
    if not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def install() -> None:
    """Replace click's completion for bash by one that knows colons."""
    from click.shell_completion import BashComplete, add_completion_class, split_arg_string

    class ColonBashComplete(BashComplete):
        """Completion for bash that reads the whole line."""

        source_template = _BASH

        def get_completion_args(self) -> tuple[list[str], str]:
            """Split the line up to the cursor into the words before the last one, and the last one."""
            line = os.environ.get("COMP_LINE", "")
            words = split_arg_string(line)[1:]
            return (words, "") if not words or line[-1].isspace() else (words[:-1], words[-1])

    add_completion_class(ColonBashComplete)


@click.command("completion", cls=Command, example="perdure completion bash")
@click.argument("shell", type=click.Choice(SHELLS))
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def completion(shell: str, as_json: bool) -> None:
    """Print the script that makes a shell complete commands, options, run ids, types, queues and schedules.

    bash: eval "$(perdure completion bash)" in ~/.bashrc. zsh: the same with zsh, in ~/.zshrc, after compinit. fish:
    perdure completion fish | source, in ~/.config/fish/config.fish.
    """
    from click.shell_completion import get_completion_class

    from perdure.cli.console.output import dump

    install()
    found = get_completion_class(shell)
    assert found is not None
    script = found(click.get_current_context().find_root().command, {}, "perdure", VARIABLE).source()
    print(dump({"shell": shell, "script": script}) if as_json else script)
