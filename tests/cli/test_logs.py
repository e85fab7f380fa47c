"""The log of `perdure worker`: what a person and a program read, and what of the user's own configuration stays."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from perdure.cli.console.logs import configure
from perdure.workflow.step import StepInfo, current_step
from tests.cli.conftest import Perdure

POOR = '[{"id": "o", "cents": -1}]'
PERDURE = logging.getLogger("perdure")


@contextmanager
def unconfigured() -> Iterator[io.StringIO]:
    """Logging without handlers, as in a new process, and standard error; afterwards everything is as it was.

    No fixture, because pytest adds handlers when a test begins.
    """
    root = logging.getLogger()
    before = root.handlers[:], root.level, PERDURE.handlers[:], PERDURE.level, PERDURE.propagate
    root.handlers[:], PERDURE.handlers[:] = [], []
    root.setLevel(logging.WARNING)
    PERDURE.setLevel(logging.NOTSET)
    with redirect_stderr(io.StringIO()) as err:
        yield err
    root.handlers[:], PERDURE.handlers[:], PERDURE.propagate = before[0], before[2], before[4]
    root.setLevel(before[1])
    PERDURE.setLevel(before[3])


def test_only_the_level_of_perdure_is_set() -> None:
    with unconfigured() as err:
        configure(None, None, json=False)
        logging.getLogger("perdure.worker").info("ours")
        logging.getLogger("shop").info("not asked for")
        logging.getLogger("shop").warning("theirs")
        assert logging.getLogger().level == logging.WARNING
    assert re.findall(r"(\w+) +([\w.]+): (.*)", err.getvalue()) == [
        ("info", "perdure.worker", "ours"), ("warning", "shop", "theirs"),
    ]  # fmt: skip


def test_what_the_users_code_has_configured_stays() -> None:
    theirs = io.StringIO()
    with unconfigured() as err:
        logging.getLogger().addHandler(logging.StreamHandler(theirs))
        PERDURE.setLevel(logging.ERROR)
        configure(None, None, json=True)
        PERDURE.warning("too low")
        PERDURE.error("high enough")
    assert (theirs.getvalue(), err.getvalue()) == ("high enough\n", "")


def test_a_form_that_is_asked_for_is_used_and_nothing_is_written_twice() -> None:
    theirs = io.StringIO()
    with unconfigured() as err:
        logging.getLogger().addHandler(logging.StreamHandler(theirs))
        configure("debug", "json", json=False)
        PERDURE.debug("once", extra={"run_id": "r", "worker": "w"})
    [line] = map(json.loads, err.getvalue().splitlines())
    assert (line["message"], line["level"], line["run_id"], line["worker"]) == ("once", "debug", "r", "w")
    assert theirs.getvalue() == ""


class Control:
    def is_over(self) -> bool:
        return False

    def emit(self, stream: str, value: object) -> None: ...

    def credentials(self) -> dict[str, object]:
        return {}

    def headers(self) -> dict[str, str]:
        return {}

    def run_fields(self) -> dict[str, object]:
        return {"run_type": "shop.order.v1"}


def test_a_record_of_the_users_own_logger_names_the_step_that_it_comes_from() -> None:
    with unconfigured() as err:
        configure(None, "json", json=False)
        token = current_step.set(StepInfo("order-1", "charge", 2, 0, Control()))
        logging.getLogger("shop").warning("slow bank")
        current_step.reset(token)
    line = json.loads(err.getvalue())
    assert (line["run_id"], line["location"], line["attempt"]) == ("order-1", "charge", 2)
    assert line["run_type"] == "shop.order.v1"


def test_a_line_for_people_names_the_step_that_it_comes_from_once() -> None:
    with unconfigured() as err:
        configure(None, None, json=False)
        logging.getLogger("shop").warning("outside")
        token = current_step.set(StepInfo("order-1", "charge", 2, 0, Control()))
        logging.getLogger("shop").warning("slow bank")
        current_step.reset(token)
        of_workflow = {"run_id": "order-1\n", "run_type": "shop.order.v1", "attempt": 1}
        logging.getLogger("perdure.workflow").warning("begins", extra=of_workflow)
        logging.getLogger("perdure.worker").warning("run order-1 is dropped", extra={"run_id": "order-1"})
    assert [line.partition(" warning ")[2] for line in err.getvalue().splitlines()] == [
        "shop: outside",
        "shop: slow bank [run order-1, charge, attempt 2]",
        "perdure.workflow: begins [run order-1\\n]",
        "perdure.worker: run order-1 is dropped",
    ]


def test_a_traceback_cannot_imitate_a_line() -> None:
    with unconfigured() as err:
        configure(None, None, json=False)
        try:
            raise ValueError("x\n2026-01-01T00:00:00.000Z error   perdure.worker: forged\x1b[31m")
        except ValueError:
            PERDURE.exception("it failed")
    first, *others = err.getvalue().splitlines()
    assert first.endswith("perdure: it failed")
    assert all(line.startswith("    ") for line in others)
    assert "\x1b" not in err.getvalue()


def log_of_a_worker(perdure: Perdure, *options: str) -> str:
    """Standard error of a worker while a run fails."""
    perdure("start", "shop:engine", "checkout", "--id", "poor", "--input", POOR)
    command = [sys.executable, "-m", "perdure.cli", "worker", "shop:engine", *options]
    with subprocess.Popen(
        [*command, "--stop-at-eof"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            again = perdure("start", "shop:engine", "checkout", "--id", "poor", "--input", POOR, "--wait", "--json")
            assert again.json["status"] == "failed"
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    return said


def test_a_person_sees_when_a_worker_starts_why_a_run_failed_and_when_the_worker_stops(perdure: Perdure) -> None:
    said = log_of_a_worker(perdure)
    lines = [line for line in said.splitlines() if not line.startswith("    ")]
    assert re.search(
        r"info    perdure.worker: worker \S+ has started on sqlite:///shop.db as process \d+: types ", lines[0]
    )
    assert re.search(r"info    perdure.worker: worker \S+ stops$", lines[-2])
    assert re.search(r"info    perdure.worker: worker \S+ has stopped$", lines[-1])
    failed = said.index("error   perdure.execution: run poor (checkout): failed, attempt 1")
    trace = said[failed:].splitlines()[1:]
    assert trace[0] == "    Traceback (most recent call last):"
    assert re.match(r'      File ".*shop\.py", line \d+, in checkout', trace[1])
    assert any(re.match(r'      File ".*shop\.py", line \d+, in charge', line) for line in trace)


def test_a_program_finds_run_type_location_attempt_and_worker_in_every_line_about_a_run(perdure: Perdure) -> None:
    lines = [json.loads(line) for line in log_of_a_worker(perdure, "--log-format", "json").splitlines()]
    about = [line for line in lines if line["logger"] == "perdure.execution"]
    [worker] = {line["worker"] for line in about}
    assert all((line["run_id"], line["run_type"]) == ("poor", "checkout") for line in about)
    assert {line["location"] for line in about} == {"charge", None}
    assert about[-1]["traceback"].startswith("Traceback (most recent call last):")
    assert {line.get("worker") for line in lines if line["logger"] == "perdure.worker"} == {worker}


def test_logging_that_the_users_module_configures_is_used_as_it_is(perdure: Perdure) -> None:
    shop = Path("shop.py")
    configured = "import logging\nlogging.basicConfig(level=logging.INFO, format='MINE %(name)s %(message)s')\n"
    shop.write_text(shop.read_text().replace("from __future__ import annotations\n", "", 1))
    shop.write_text(configured + shop.read_text())
    said = log_of_a_worker(perdure)
    assert "MINE perdure.worker worker" in said
    # The stack is that of a loop that a busy machine has blocked for a moment.
    mine = ("MINE", " ", "Traceback", "Value", "In the", "Stored", "Stack (most recent call last):")
    assert all(line.startswith(mine) for line in said.splitlines())
