"""Findings, and the comments that allow them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from perdure.lint.rules import RULES, Rule

_ALLOW = re.compile(r"#\s*perdure:\s*allow\b([^#]*)")


class Finding(Struct, frozen=True, order=True):
    """One place that breaks a rule."""

    path: str
    line: int
    column: int
    code: str
    rule: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.code} {self.message}; {self.remedy}"


def shown_path(path: Path) -> str:
    """Path relative to the working directory, if it is inside."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def is_allowed(rule: Rule, lines: Sequence[str], numbers: Sequence[int]) -> bool:
    """True if a comment `# perdure: allow` on one of the lines covers the rule."""
    for number in numbers:
        found = _ALLOW.search(lines[number - 1]) if 0 < number <= len(lines) else None
        if found is None:
            continue
        named = {word for word in re.split(r"[\s,()]+", found[1]) if word in _KNOWN}
        if not named or {rule.code, rule.name} & named:
            return True
    return False


_KNOWN = frozenset(name for rule in RULES for name in (rule.code, rule.name))
