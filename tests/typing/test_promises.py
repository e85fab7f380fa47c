"""Type checkers accept the promised uses of the public interface, and report misuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROMISES = "tests/typing/promises.py"

CHECKERS = {
    "mypy": ("mypy", PROMISES),
    "pyright": ("pyright", "--pythonpath", sys.executable, PROMISES),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_agrees_with_every_promise(checker: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
