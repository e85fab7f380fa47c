"""`perdure lint`: workflow code that is not deterministic."""

from __future__ import annotations

from pathlib import Path

import click

from perdure.cli.console.command_groups import Command
from perdure.cli.console.output import Printer
from perdure.cli.console.params import with_output
from perdure.lint import RULES, Finding, python_files
from perdure.lint import lint as find

FOUND = 1


@click.command("lint", cls=Command, example="perdure lint src/shop --ignore PD008")
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--ignore", "ignored", multiple=True, help="Rule to leave out, by code or by name; repeatable.")
@with_output
def lint(paths: tuple[Path, ...], ignored: tuple[str, ...], output: Printer) -> int:
    """Find workflow code that is not deterministic, without importing it.

    PATHS are files and folders; without any, the working directory. Exits with 1 if something was found. A comment
    `# perdure: allow` on the line allows all rules there, `# perdure: allow PD001` one.
    """
    known = {name: rule.code for rule in RULES for name in (rule.code, rule.name)}
    if unknown := [name for name in ignored if name not in known]:
        raise click.UsageError(
            f"there is no rule {unknown[0]!r}; the rules are {', '.join(each.code for each in RULES)}"
        )
    if absent := [path for path in paths if not path.exists()]:
        raise click.UsageError(f"{absent[0]} does not exist")
    files = list(python_files(paths or (Path(),)))
    if not files:
        raise click.UsageError(f"no Python file in {', '.join(map(str, paths)) or 'the working directory'}")
    left_out = {known[name] for name in ignored}
    findings = [finding for finding in find(files) if finding.code not in left_out]
    if output.json:
        output.document({"ok": not findings, "files": len(files), "findings": [_document(each) for each in findings]})
    else:
        for finding in findings:
            output.line(str(finding))
        count = f"{len(files)} file{'' if len(files) == 1 else 's'} checked"
        output.line(f"{count}, {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}.")
    return FOUND if findings else 0


def _document(finding: Finding) -> dict[str, object]:
    return {
        "path": finding.path,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "rule": finding.rule,
        "message": finding.message,
        "remedy": finding.remedy,
    }
