from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.check import Figures, _by_library, compare, functions_of

ROOT = Path(__file__).parent.parent
#: Runs that are counted. Tracing every bytecode is slow, and what a few runs cost repeats itself as well.
RUNS = 15


SLOWER = """

_call = StepResults.call


def _slower(self, *args):
    for _ in range(200):
        pass
    return _call(self, *args)


StepResults.call = _slower
"""


def total(functions: dict[str, dict[str, float]]) -> Figures:
    """Figures in which bytecodes are all that is known."""
    return Figures("bytecodes", {unit: sum(one.values()) for unit, one in functions.items()}, {}, functions)


def figures(step: float, run: float, function: float = 10.0) -> Figures:
    return Figures(
        "instructions",
        {"step": step, "run": run},
        {"step": {"libsqlite3": step / 2}, "run": {"libsqlite3": run / 2}},
        {"step": {"perdure/worker/commit/journal.py:Journal.add": function}, "run": {}},
    )


def test_growth_of_less_than_three_per_cent_passes() -> None:
    assert compare(figures(1000, 5000), figures(1029, 5149), "before").passed


def test_a_step_that_grew_by_more_than_three_per_cent_fails_and_the_growth_has_a_name() -> None:
    verdict = compare(figures(1000, 5000), figures(1031, 5000, function=17.0), "before")
    assert not verdict.passed
    assert "a step" in verdict.text
    assert "+3.10%" in verdict.text
    assert "+15.5 instructions libsqlite3" in verdict.text
    assert "+7.0 bytecodes    perdure/worker/commit/journal.py:Journal.add" in verdict.text
    assert "A run costs" not in verdict.text


def test_a_run_that_grew_by_more_than_three_per_cent_fails() -> None:
    verdict = compare(figures(1000, 5000), figures(1000, 5151), "before")
    assert not verdict.passed
    assert "A run costs more than 3% more" in verdict.text


def test_the_count_of_a_callee_belongs_to_the_library_that_executed_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text(
        "ob=(1) /lib/libpython3.11.so.1.0\nfn=(1) call\n16 100\n+3 20\n"
        "cob=(2) /lib/libsqlite3.so.0\ncfn=(2) step\ncalls=1 0\n* 7000\n* 5\n\nob=(2)\nfn=(2)\n0 7000\n"
    )
    assert _by_library(out) == {"libpython3.11": 125, "libsqlite3": 7000}


@pytest.mark.timeout(300)
def test_the_counted_work_repeats_itself_and_shows_the_function_that_does_more(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    before = functions_of(source, RUNS)
    again = functions_of(source, RUNS)
    # How often the event loop turns depends on how long the file system takes, so some counts differ slightly.
    assert total(again).total == pytest.approx(total(before).total, rel=0.01)
    module = source / "perdure" / "worker" / "batched_calls.py"
    module.write_text(module.read_text() + SLOWER)
    after = functions_of(source, RUNS)
    text = compare(total(before), total(after), "before").text
    assert "A step costs more than 3% more" in text
    grown = text.splitlines()[text.splitlines().index("A step costs more than 3% more. What grew:") + 1]
    assert "perdure/worker/batched_calls.py:_slower" in grown
