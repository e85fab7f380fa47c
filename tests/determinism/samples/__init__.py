"""Sample workflows: 30 with one planted mistake each, and 30 correct ones that look suspicious.

Each sample has `WORKFLOWS` and a function `drive`, which executes them in an environment. In `wrong`, the comment
`# mistake` marks the line at fault.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

WRONG = sorted(path.stem for path in (HERE / "wrong").glob("*.py")) + ["experiment"]
RIGHT = sorted(path.stem for path in (HERE / "right").glob("*.py"))


def module_of(kind: str, name: str) -> Any:
    inner = f"{name}.flow" if name == "experiment" else name
    return importlib.import_module(f"tests.determinism.samples.{kind}.{inner}")


def files_of(kind: str, name: str) -> list[Path]:
    folder = HERE / kind / name
    return sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def marked_lines(kind: str, name: str) -> list[tuple[Path, int]]:
    """Return the lines that have a planted mistake."""
    return [
        (path, number)
        for path in files_of(kind, name)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.endswith("# mistake")
    ]
