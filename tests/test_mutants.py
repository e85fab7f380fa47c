"""The tool that plants faults: it draws the same ones each time, and a fault that matters is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import PACKAGES, faults
from tests.mutants.drawing import Functions, draw, faults_of
from tests.mutants.forking import Job
from tests.mutants.trying import SOURCE, answers, plant

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
        (1, "", "sql", " < ", False),
        (5, "", "sql", " <= ", True),
        (5, "", "sql", " OR ", False),
        (11, "f", "negation", "(a < 2)", False),
        (11, "f", "comparison", "(a <= 2)", True),
        (11, "f", "constant", "3", False),
        (12, "f", "statement", "pass", False),
        (12, "f", "constant", "6", False),
        (14, "f", "return", "return None", False),
        (14, "f", "connective", "(a or a + 7)", False),
        (14, "f", "condition", "(a)", False),
        (14, "f", "arithmetic", "(a - 7)", False),
        (14, "f", "constant", "8", False),
    ]


def test_a_fault_is_noticed_and_a_source_without_one_passes() -> None:
    text = (SOURCE / DURATION).read_text(encoding="utf-8")
    assert plant(DURATION, text, TESTS, 200) == ("survived", "")
    [fault] = [fault for fault in faults_of(SOURCE, SOURCE / DURATION) if fault.kind == "comparison"][:1]
    end, by = plant(DURATION, fault.apply(text), TESTS, 200)
    assert end == "killed"
    assert "tests/core/time/test_duration.py" in by


def test_the_functions_of_a_file_are_known_by_their_qualified_names() -> None:
    text = "class A:\n    def f(self):\n        async def g():\n            pass\n        return g\n\nB = 1\n"
    functions = Functions(text)
    assert [functions.at(line) for line in range(1, 8)] == ["", "A.f", *["A.f.<locals>.g"] * 2, "A.f", "", ""]


def test_faults_are_noticed_in_copies_of_a_process_that_has_the_tests() -> None:
    text = (SOURCE / DURATION).read_text(encoding="utf-8")
    found = [fault for fault in faults_of(SOURCE, SOURCE / DURATION) if fault.function == "instant"]
    added = next(fault for fault in found if fault.kind == "arithmetic")
    constant = next(fault for fault in found if fault.kind == "constant")
    tests = [f"{TESTS[0]}::test_a_duration_counts_from_now", f"{TESTS[0]}::test_the_zone_of_a_datetime_counts"]
    texts = {"none": text, "noticed": added.apply(text), "left": constant.apply(text)}
    found_by = list(answers([Job(id, str(SOURCE / DURATION), text, one, tests, 200) for id, one in texts.items()]))
    assert [(answer.id, answer.end) for answer in found_by] == [
        ("none", "survived"), ("noticed", "killed"), ("left", "survived"),
    ]  # fmt: skip
    assert found_by[1].by.startswith(tests[0])


def test_a_fault_that_a_copy_cannot_try_is_not_taken_for_noticed() -> None:
    path = SOURCE / "perdure/replay/run_loop.py"
    text = path.read_text(encoding="utf-8")
    # Without it the function has no free variable any more, and a function cannot be given such code.
    [fault] = [fault for fault in faults_of(SOURCE, path) if fault.was == "super().cancel()"]
    jobs = [
        Job("without tests", str(path), text, text, [f"{TESTS[0]}::test_that_is_not_there"], 200),
        Job("not planted", str(path), text, fault.apply(text), TESTS, 200),
    ]
    assert [(answer.id, answer.end) for answer in answers(jobs)] == [
        ("without tests", "unseen"), ("not planted", "survived"),
    ]  # fmt: skip
