"""One pass of the linter: files in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from perdure.lint.checks import FunctionCheck
from perdure.lint.project import Project
from perdure.lint.reach import Reach
from perdure.lint.rules import SYNTAX, Finding, shown_path
from perdure.lint.values import Values

#: Folders that hold no code of the project.
_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "build", "dist"))


def lint(files: Iterable[Path]) -> list[Finding]:
    """Check files, and the modules of the same packages that their workflows call into; findings in order."""
    project = Project()
    modules = [module for path in files if (module := project.add(path.resolve())) is not None]
    values = Values(project)
    found = [
        finding
        for reached in Reach(project, values).functions(modules)
        for finding in FunctionCheck(reached, values).findings()
    ]
    found += [
        Finding(
            path=shown_path(path),
            line=error.lineno or 1,
            column=error.offset or 1,
            code=SYNTAX.code,
            rule=SYNTAX.name,
            message=f"the file {SYNTAX.reason}: {error.msg}",
            remedy=SYNTAX.remedy,
        )
        for path, error in project.broken.items()
    ]
    return sorted({(each.path, each.line, each.column, each.code): each for each in found}.values())


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Python files in folders, without hidden ones and installed packages; files are taken as they are."""
    for path in paths:
        if path.is_dir():
            for found in sorted(path.rglob("*.py")):
                inside = found.relative_to(path).parts
                if not any(part.startswith(".") or part in _SKIPPED for part in inside):
                    yield found
        else:
            yield path
