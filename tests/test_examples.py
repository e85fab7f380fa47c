"""Every example runs as a user would run it, and says what it is meant to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"

SAID = {
    "checkout": """\
        parcel o-42 with a receipt for 42.00
        charge failed at attempt 1 and was tried again
        """,
    "agent": """\
        How did the world's population grow? From 1650 to 6150 million.
        ask_model population ask_model#2 population#2 ask_model#3
        """,
    "assistant": """\
        approved: pay {'number': 7, 'cents': 4200}
        Done: paid 4200 cents for invoice 7
        assistant.model assistant.tools.find_invoice assistant.model#2 tool_calls assistant.tools.pay assistant.model#3
        """,
    "approval": """\
        900 cents: approved
        90000 cents: no one decided
        ['lunch', 'party']
        """,
    "fan_out": """\
        {'short': 4, 'long': 500}
        101 pages were runs of their own
        """,
    "expenses": """\
        dear Ann: approved
        approved
        ['decision', 'answer/expenses.tell.v1']
        """,
    "activities": """\
        22 characters
        13
        attempt 1 failed
        attempt 2 failed
        """,
    "unit_test": """\
        test_a_customer_who_pays_is_reminded_no_more passes
        test_a_customer_who_does_not_pay_is_reminded_three_times passes
        """,
}


#: Runs an example as its command line does.
RUNNER = """
import logging, runpy, sys
# Only a busy machine blocks the loop of an example.
logging.getLogger("perdure.worker").addFilter(lambda record: "was blocked for" not in record.msg)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(name: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", RUNNER, str(EXAMPLES / f"{name}.py"), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert (answer.returncode, answer.stderr) == (0, "")
    return [line.strip() for line in answer.stdout.splitlines()]


@pytest.mark.parametrize("name", SAID)
def test_an_example_says_what_it_is_meant_to_say(name: str) -> None:
    assert run(name) == [line.strip() for line in SAID[name].splitlines() if line.strip()]


def test_the_script_does_nothing_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "backup.db")
    assert run("script", path) == [
        "copying users",
        "verifying 500 rows of users",
        "copying orders",
        "verifying 600 rows of orders",
        "1100 rows are safe",
    ]
    assert run("script", path) == ["1100 rows are safe"]


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAID.keys() | {"script"}


def test_examples_stay_short() -> None:
    long = {path.name: count for path in EXAMPLES.glob("*.py") if (count := len(path.read_text().splitlines())) >= 60}
    assert not long
