"""Type checkers accept the promised uses of the public interface, and report misuse.

`make test` checks the promises with the rest of the code, because a second start of each checker takes seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PROMISES = "tests/typing/promises.py"

CHECKERS = {
    "mypy": ("mypy", PROMISES),
    "pyright": ("pyright", "--pythonpath", sys.executable, PROMISES),
}


def test_the_usual_runs_of_both_checkers_include_the_promises() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert PROMISES in settings["pyright"]["include"]
    assert "tests" in settings["mypy"]["files"]
    assert "tests" in (ROOT / "Makefile").read_text(encoding="utf-8").partition("CHECKED :=")[2].partition("\n")[0]


@pytest.mark.skipif(not os.environ.get("PERDURE_PROVE"), reason="`make check`, a part of `make test`, does the same")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_type_checker_agrees_with_every_promise(checker: str) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
