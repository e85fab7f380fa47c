"""The table of features names every line that it must, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if re.match(r"\| \d{3}-", line)]


def numbered(prefix: str, *ranges: range) -> list[str]:
    return [f"{prefix}{number}" if "G" in prefix else f"{prefix}{number:02}" for each in ranges for number in each]


def test_every_line_has_its_row() -> None:
    wanted = [
        *numbered("000-", range(1, 36), range(40, 41), range(49, 57)),
        *numbered("001-", range(1, 5), range(14, 32), range(35, 53), range(57, 58)),
        *numbered("001-G", range(1, 14), range(16, 17)),
        *numbered("002-", range(1, 41)),
        *numbered("002-G", range(1, 5), range(7, 8)),
        *numbered("003-", range(1, 42), range(43, 49), range(51, 56)),
        *numbered("003-G", range(1, 7), range(9, 11)),
        *numbered("004-", range(1, 27)),
        *numbered("004-G", range(1, 13), range(14, 15), range(16, 18)),
    ]
    assert [row[0] for row in ROWS] == wanted


def test_every_test_that_is_named_exists() -> None:
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "perdure" / "testing" / "conformance").rglob("*.py")]
    known = {name for file in files for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))}
    named = {name for row in ROWS for name in re.findall(r"`(test_\w+)`", row[3])}
    assert named - known == set()
    assert all("`test_" in row[3] for row in ROWS)
