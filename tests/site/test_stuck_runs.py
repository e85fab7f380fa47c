"""The page about stuck runs shows what `why` says today."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "stuck-runs.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Moments and durations.
TIME = re.compile(r"(?:[A-Z]\w+day )?\d{4}-\d\d-\d\d[T ][\d:.+]+(?: UTC)?|\b\d+ [smhd]\b(?: \d+ [smhd]\b)*")


def test_the_program_of_the_page_prints_what_the_page_shows(tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8").split("## Try it")[1])
    (_, program), (_, output) = blocks
    (tmp_path / "stuck.py").write_text(program, encoding="utf-8")
    command = [sys.executable, "-W", "error", "stuck.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert TIME.sub("*", ran.stdout) == TIME.sub("*", output)
