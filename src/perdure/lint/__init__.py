"""`perdure lint`: finds workflow code that is not deterministic, without importing it."""

from __future__ import annotations

from perdure.lint.checks import lint, python_files
from perdure.lint.rules import RULES, Finding, Rule

__all__ = ["RULES", "Finding", "Rule", "lint", "python_files"]
