"""The recipes are complete programs, which print what their pages show."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "docs" / "recipes"
PAGES = sorted(FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_there_is_a_recipe_for_each_task() -> None:
    names = {"agent", "cron-report", "etl", "human-tasks", "saga", "tenant-limits", "webhooks"}
    assert {page.stem for page in PAGES} == names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_prints_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    (_, program), (_, output) = (one for one in BLOCK.findall(page.read_text(encoding="utf-8")) if one[0] != "sh")
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "recipe.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert (ran.returncode, ran.stdout) == (0, output), ran.stderr
