"""The tool that plants faults: it draws the same ones each time, and a fault that matters is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import PACKAGES, faults
from tests.mutants.drawing import draw, faults_of
from tests.mutants.trying import SOURCE, plant

#: Each starts tests of its own.
pytestmark = pytest.mark.timeout(300)

DURATION = "perdure/core/time/duration.py"
TESTS = ["tests/core/time/test_duration.py"]


def test_forty_faults_are_drawn_of_each_package_and_the_same_each_time() -> None:
    for package in PACKAGES:
        drawn = draw(SOURCE, package, 40, 16)
        assert len({fault.id for fault in drawn}) == 40
        assert drawn == draw(SOURCE, package, 40, 16)
        assert drawn != draw(SOURCE, package, 40, 17)


def test_every_fault_is_a_change_that_compiles() -> None:
    for fault in faults(PACKAGES, 40, 16):
        text = (SOURCE / fault.path).read_text(encoding="utf-8")
        changed = fault.apply(text)
        assert changed != text
        compile(changed, fault.path, "exec")


def test_kinds_of_faults(tmp_path: Path) -> None:
    path = tmp_path / "perdure" / "core" / "sample.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        'SQL = "SELECT 1 FROM t WHERE a <= 1"\n'
        'MORE = """\nSELECT 1\nFROM t\nWHERE a < 1 AND b\n"""  # equivalent: sql <: there is no 1\n\n\n'
        "def f(a: int = 3) -> bool:\n"
        '    """Not 4."""\n'
        "    if not a < 2:  # a word, equivalent: comparison: no caller passes 2\n"
        "        f(5)\n"
        '    logger.info("%s", 6)\n'
        "    return a and a + 7\n"
    )
    found = faults_of(tmp_path, path)
    assert [(fault.line, fault.function, fault.kind, fault.becomes, fault.equivalent) for fault in found] == [
        (1, 0, "sql", " < ", False),
        (5, 0, "sql", " <= ", True),
        (5, 0, "sql", " OR ", False),
        (11, 9, "negation", "(a < 2)", False),
        (11, 9, "comparison", "(a <= 2)", True),
        (11, 9, "constant", "3", False),
        (12, 9, "statement", "pass", False),
        (12, 9, "constant", "6", False),
        (14, 9, "return", "return None", False),
        (14, 9, "connective", "(a or a + 7)", False),
        (14, 9, "condition", "(a)", False),
        (14, 9, "arithmetic", "(a - 7)", False),
        (14, 9, "constant", "8", False),
    ]


def test_a_fault_is_noticed_and_a_source_without_one_passes() -> None:
    text = (SOURCE / DURATION).read_text(encoding="utf-8")
    assert plant(DURATION, text, TESTS, 200) == ("survived", "")
    [fault] = [fault for fault in faults_of(SOURCE, SOURCE / DURATION) if fault.kind == "comparison"][:1]
    end, by = plant(DURATION, fault.apply(text), TESTS, 200)
    assert end == "killed"
    assert "tests/core/time/test_duration.py" in by
