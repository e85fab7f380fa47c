"""`perdure init`: make a small project that runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.core.printed_text import brief
from perdure.errors import UsageError

_TEMPLATES = Path(__file__).parent / "template"

#: Files of the project, each with its template and what it is.
FILES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "app.py": ("app.py", "the engine: a database and its workflows"),
        "orders.py": ("orders.py", "a workflow: a step, a wait for an approval, another step"),
        "tests/test_orders.py": ("test_orders.py", "its tests, with a clock that they move"),
        "pyproject.toml": ("pyproject.toml", "dependencies, and settings of pytest, mypy and ruff"),
        "README.md": ("README.md", "what to do next"),
        ".gitignore": ("gitignore", "leaves out the database"),
    }
)

DEV = "perdure dev app:engine"
TEST = "pip install --group dev && pytest"


@click.command("init", cls=Command, example="perdure init shop")
@click.argument("folder", required=False, default=".", type=click.Path(path_type=Path))
@with_output
def init(folder: Path, output: Printer) -> None:
    """Make a small project in FOLDER: a workflow with its tests, an engine and a README.

    Nothing is overwritten: the command refuses a folder that has one of the files. Without FOLDER, it uses the working
    directory.
    """
    make_project(folder)
    enter = "" if folder.resolve() == Path.cwd() else f"cd {_quoted(folder)} && "
    if output.json:
        output.document({"folder": str(folder.resolve()), "files": [*FILES], "next": [enter + DEV, enter + TEST]})
        return
    output.line(f"made {folder}:")
    output.fields([(name, what) for name, (_, what) in FILES.items()])
    output.heading("next:")
    output.fields([(enter + DEV, "runs a worker and opens the dashboard"), (enter + TEST, "runs the tests")])


def make_project(folder: Path) -> None:
    """Write the files of the project, or none of them. Raises `UsageError`."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{brief(str(folder))} is a file; name a folder")
    if taken := [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]:
        raise UsageError(
            f"{brief(str(folder))} has {', '.join(taken)} already, and nothing is overwritten; name another folder"
        )
    made: list[Path] = []
    try:
        for name, (template, _) in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (_TEMPLATES / f"{template}.template").read_text(encoding="utf-8")
            # "x" also refuses a file that another process has made meanwhile.
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text.replace("{{name}}", project_name(folder)))
    except OSError as error:
        for path in made:
            with suppress(OSError):
                path.unlink()
        raise UsageError(f"cannot make a project in {brief(str(folder))}: {error}") from error


def project_name(folder: Path) -> str:
    """Name of a project in a folder, as packages are named: lower case, with hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or "orders"


def _quoted(folder: Path) -> str:
    text = str(folder)
    return text if re.fullmatch(r"[\w./~-]+", text) else "'" + text.replace("'", "'\\''") + "'"
