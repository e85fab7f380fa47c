"""The examples of the project pass its own lint."""

from __future__ import annotations

from pathlib import Path

from perdure.lint import lint, python_files

ROOT = Path(__file__).parents[2]


def test_the_examples_are_deterministic() -> None:
    files = list(python_files([ROOT / "examples"]))
    assert files
    assert lint(files) == []
