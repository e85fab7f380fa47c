"""Lines of `perdure dev`."""

from __future__ import annotations

import json
import logging
import threading
import time

import pytest

from perdure.cli.dev.lines import LOGGED, EventLines, LineHandler, LinePrinter, Observed, event_line
from perdure.core.model.run import Status
from perdure.core.status_signs import STATUS_SIGNS


def event(kind: str, data: str = "{}", run_id: str = "a", actor: str = "anonymous") -> Observed:
    return run_id, 0, kind, actor, data


@pytest.mark.parametrize(
    ("kind", "data", "status", "said"),
    [
        ("started", '{"token": 1, "attempt": 1}', Status.RUNNING, ("started", "")),
        ("started", '{"token": 1, "attempt": 2}', Status.RUNNING, ("started", "attempt 2")),
        ("claimed", '{"token": 2, "attempt": 1}', Status.RUNNING, ("running", "")),
        ("parked", '{"for": "message", "until": 0}', Status.WAITING, ("waiting", "message")),
        (
            "parked",
            '{"for": "timer", "until": 1000000}',
            Status.WAITING,
            ("waiting", "timer, until 1970-01-01 00:00:01Z"),
        ),
        ("reclaimed", "{}", Status.BLOCKED, ("interrupted", "its worker was lost; another one takes over")),
        ("expired", '{"error": "Expired", "message": "late"}', Status.FAILED,
         ("expired", "error Expired, message late, by anonymous")),
        ("cancelled", "not JSON", Status.CANCELLED, ("cancelled", "by anonymous")),
    ],
)  # fmt: skip
def test_an_event_has_the_sign_of_its_status(kind: str, data: str, status: Status, said: tuple[str, str]) -> None:
    line = event_line(event(kind, data))
    assert line is not None
    assert (line.glyph, line.style) == (STATUS_SIGNS[status].glyph, STATUS_SIGNS[status].style)
    assert (line.word, line.detail) == said


def test_other_events_are_shown_by_their_name_and_repetitions_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LinePrinter(json=False)
    EventLines(lines, without=LOGGED).observe(
        [
            event("created", '{"type": "t.v1", "parent": "p"}'),
            event("sent", '{"name": "approval", "key": ""}'),
            event("timer_started", '{"timer": "sleep", "until": 1000000}'),
            event("cancel_requested", '{"reason": "late"}'),
            event("heartbeat"),
            event("completed"),
        ]
    )
    assert [line[10:] for line in capsys.readouterr().out.splitlines()] == [
        "○ created     a  t.v1, child of p, by anonymous",
        "○ sent        a  approval, by anonymous",
        "○ timer started a  timer sleep, until 1970-01-01 00:00:01Z, by anonymous",
        "○ cancel requested a  reason late, by anonymous",
    ]


def test_text_of_users_cannot_imitate_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    EventLines(LinePrinter(json=False)).observe([event("sent", '{"name": "x\\n\\u001b[31my"}', run_id="a\nb")])
    [line] = capsys.readouterr().out.splitlines()
    assert line.endswith(r"a\nb  x\n\x1b[31my, by anonymous")


def test_a_run_that_waits_is_shown_after_the_steps_of_the_same_commit(capsys: pytest.CaptureFixture[str]) -> None:
    lines = LinePrinter(json=True)
    events = EventLines(lines, delay=600)
    events.observe([event("parked", '{"for": "message", "until": 0}')])
    lines.say("attempt", "a step has ended")
    # The next event of the run does not overtake it.
    events.observe([event("claimed", '{"attempt": 1}')])
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["event"] for one in said] == ["attempt", "parked", "claimed"]
    assert all(one["at"].startswith(time.strftime("%Y-")) for one in said)


def test_a_run_that_waits_is_shown_without_a_next_event() -> None:
    shown = threading.Event()

    class Told(LinePrinter):
        def show(self, line: object) -> None:
            shown.set()

    EventLines(Told(json=False)).observe([event("parked", '{"for": "timer", "until": 0}')])
    assert shown.wait(60)


def test_a_log_record_is_a_line_and_its_traceback_is_indented(capsys: pytest.CaptureFixture[str]) -> None:
    handler = LineHandler(LinePrinter(json=False))
    try:
        raise ValueError("no\nvan")
    except ValueError as error:
        failed = (ValueError, error, None)
    record = logging.LogRecord("shop", logging.ERROR, "shop.py", 1, "it %s\nx", ("fails",), failed)
    handler.emit(record)
    shared = "%s is written by more than one process, and SQLite"
    handler.emit(logging.LogRecord("perdure.store", logging.WARNING, "", 1, shared, ("app.db",), None))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0][10:] == r"✕ error       it fails\nx"
    assert lines[1:] == ["    ValueError: no", "    van"]
