from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from contextlib import closing

import pytest

from perdure import Engine, Retry, Status, activity
from perdure.admin import Interruption, RunningStep, Wait, WaitKind
from perdure.cli.console.params import ENVIRONMENT
from perdure.core.model.outputs import interruption_output
from perdure.core.model.waits import waits_to_json
from perdure.core.model.worker_info import steps_to_json
from tests.cli.conftest import URL, Perdure, work
from tests.stage import until


def start(perdure: Perdure, run_id: str, cents: int = 7) -> None:
    order = f'[{{"id": "o", "cents": {cents}}}]'
    assert perdure("start", "shop:engine", "checkout", "--input", order, "--id", run_id).code == 0


def test_runs_are_listed_newest_first_and_page_by_page(perdure: Perdure) -> None:
    for run_id in ("a", "b", "c"):
        start(perdure, run_id)
    first = perdure("runs", URL, "--limit", "2", "--json").json
    assert [run["id"] for run in first["runs"]] == ["c", "b"]
    second = perdure("runs", URL, "--limit", "2", "--cursor", first["cursor"], "--json").json
    assert [run["id"] for run in second["runs"]] == ["a"]
    assert second["cursor"] is None


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (("--status", "completed"), ["done"]),
        (("--status", "completed", "--status", "pending"), ["open", "done"]),
        (("--type", "approval"), ["open"]),
        (("--queue", "elsewhere"), []),
        (("--since", "1h"), ["open", "done"]),
        (("--until", "1h"), []),
        (("--since", "2999-01-01T00:00Z"), []),
        (("--parent", "done"), []),
    ],
)
def test_runs_are_filtered(perdure: Perdure, filters: tuple[str, ...], found: list[str]) -> None:
    start(perdure, "done")
    work("done")
    perdure("start", "shop:engine", "approval", "--id", "open")
    answer = perdure("runs", URL, *filters, "--json")
    assert [run["id"] for run in answer.json["runs"]] == found


def test_the_listing_is_plain_text_where_there_is_no_terminal(perdure: Perdure) -> None:
    start(perdure, "o-1")
    heading, line = perdure("runs", URL).out.splitlines()
    assert heading.split() == ["ID", "TYPE", "STATUS", "QUEUE", "CREATED", "FINISHED"]
    assert line.split()[:5] == ["o-1", "checkout", "pending:", "unserved", "default"]


def test_a_run_that_no_live_worker_serves_is_listed_as_such(perdure: Perdure) -> None:
    start(perdure, "o-1")
    work("o-1")
    perdure("start", URL, "checkout.v2", "--id", "new")
    [new, old] = perdure("runs", URL, "--json").json["runs"]
    assert (new["id"], new["status"], new["unserved"]) == ("new", "pending", True)
    assert (old["status"], old["unserved"]) == ("completed", False)


def test_no_runs_is_a_remark_and_no_error(perdure: Perdure) -> None:
    perdure("migrate", URL)
    answer = perdure("runs", URL)
    assert (answer.code, answer.out, answer.err) == (0, "", "No runs.\n")


def test_the_target_may_come_from_the_environment(perdure: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    start(perdure, "o-1")
    monkeypatch.setenv(ENVIRONMENT, URL)
    assert [run["id"] for run in perdure("runs", "--json").json["runs"]] == ["o-1"]
    assert perdure("show", "o-1").code == 0
    assert perdure("start", "approval", "--id", "a").code == 0
    assert perdure("send", "a", "approval", "true").code == 0


def test_show_tells_the_history_with_every_attempt(perdure: Perdure) -> None:
    start(perdure, "bad", cents=-1)
    work("bad")
    known = perdure("show", URL, "bad", "--json").json
    assert known["run"]["status"] == "failed"
    assert [(record["kind"], record["location"], record["attempts"]) for record in known["history"]] == [
        ("attempt", "charge", 1),
        ("attempt", "charge", 2),
        ("step", "charge", 3),
    ]
    assert {record["error"]["type"] for record in known["history"]} == {"ValueError"}
    assert [event["kind"] for event in known["events"]] == ["created", "started", "failed"]
    text = perdure("show", URL, "bad").out
    assert "attempt 1 failed, the next is due 0.001s later: ValueError: nothing to charge" in text
    assert "failed at attempt 3: ValueError: nothing to charge" in text
    assert 'raise ValueError("nothing to charge")' in text


def test_show_tells_how_an_activity_stands(perdure: Perdure) -> None:
    @activity("knock.v1")
    def knock() -> None:
        raise OSError("no answer")

    async def until_it_waits() -> None:
        async with Engine(URL, [knock]) as engine, engine.worker():
            policy = Retry.fixed("1h", attempts=3)
            run = await engine.start(knock().options(retry=policy, start_to_close="5s", schedule_to_start="1d"), id="k")
            await until(run, Status.WAITING)
            await engine.start(knock().options(schedule_to_start="1d"), id="later", queue="elsewhere")

    asyncio.run(until_it_waits())
    lines = {line.split()[0]: line for line in perdure("show", URL, "k").out.splitlines() if line.strip()}
    assert "attempt 2 of 3. The last attempt failed: OSError: no answer." in lines["why"]
    assert lines["attempt"].split()[1:] == ["2", "of", "3"]
    assert '"start_to_close":5.0' in lines["policy"]
    # Times count from the first attempt, though the run waits for its second.
    assert "attempt 1 failed, the next is due 1:00:00 later: OSError: no answer" in lines["0"]
    assert not lines["0"].split()[1].startswith("+1")
    waiting = perdure("show", URL, "later").out
    assert "It fails if no worker begins it within" in waiting
    assert "start by" in waiting


def test_show_tells_what_could_not_be_undone(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "doomed", "--id", "sad").code == 0
    work("sad")
    known = perdure("show", URL, "sad", "--json").json
    assert known["run"]["error"]["message"] == "no van"
    assert known["run"]["error"]["not_undone"]["charge"]["message"] == "the bank is closed"
    assert "Undoing 'charge' failed: OSError: the bank is closed" in perdure("show", URL, "sad").out


def test_show_keeps_what_proves_a_lease_to_itself(perdure: Perdure) -> None:
    start(perdure, "o-1")
    run = perdure("show", URL, "o-1", "--json").json["run"]
    assert not {"token", "nonce", "seed"} & run.keys()


def test_show_names_the_children(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "family", "--id", "parent")
    work("parent")
    [child] = perdure("show", URL, "parent", "--json").json["children"]
    assert (child["parent_id"], child["type"], child["output"]) == ("parent", "checkout", "paid 5")
    assert child["id"] in perdure("show", URL, "parent").out
    listed = perdure("runs", URL, "--parent", "parent", "--json").json["runs"]
    assert [run["id"] for run in listed] == [child["id"]]


def test_why_answers_in_a_sentence(perdure: Perdure) -> None:
    start(perdure, "o-1")
    answer = perdure("why", URL, "o-1")
    assert answer.out.startswith("It is ready, but no worker is alive; start one: ")
    assert perdure("why", URL, "o-1", "--json").json == {"id": "o-1", "status": "pending", "why": answer.out.strip()}


def test_a_message_reaches_its_run(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    assert perdure("send", URL, "a", "approval", "true", "--json").json == {"id": "a", "name": "approval", "sent": True}
    work("a")
    assert perdure("show", URL, "a", "--json").json["run"]["output"] is True


def test_show_lists_the_messages_that_the_run_has_not_read(perdure: Perdure) -> None:
    perdure("start", "shop:engine", "approval", "--id", "a")
    perdure("send", URL, "a", "chatter", '"hello"', "--key", "k1")
    perdure("send", URL, "a", "approval", "true")
    first, second = perdure("show", URL, "a", "--json").json["inbox"]
    assert {name: first[name] for name in ("seq", "kind", "name", "value", "error", "key")} == {
        "seq": 1, "kind": "message", "name": "chatter", "value": "hello", "error": None, "key": "k1",
    }  # fmt: skip
    assert (second["seq"], second["name"], second["value"]) == (2, "approval", True)
    [title, heading, line, _] = perdure("show", URL, "a").out.partition("Unread")[2].splitlines()[:4]
    assert title == " messages"
    assert heading.split() == ["SEQ", "SENT", "KIND", "NAME", "VALUE"]
    assert line.split()[-3:] == ["message", "chatter", '"hello"']
    work("a")
    assert perdure("show", URL, "a", "--json").json["inbox"] == []
    assert "Unread" not in perdure("show", URL, "a").out


def test_a_finished_run_takes_no_message(perdure: Perdure) -> None:
    start(perdure, "o-1")
    work("o-1")
    answer = perdure("send", URL, "o-1", "approval", "true")
    assert answer.code == 1
    assert "has finished and takes no more messages" in answer.err


def test_cancelling_a_run_keeps_the_reason(perdure: Perdure) -> None:
    start(perdure, "o-1")
    assert perdure("cancel", URL, "o-1", "--reason", "a mistake", "--json").json == {"id": "o-1", "cancelling": True}
    known = perdure("show", URL, "o-1", "--json").json
    assert known["run"]["status"] == "cancelled"
    assert known["run"]["error"]["message"].endswith(": a mistake")
    again = perdure("cancel", URL, "o-1")
    assert (again.code, again.out) == (0, "o-1 had finished already.\n")


def test_a_blocked_run_continues_when_it_is_retried(perdure: Perdure) -> None:
    start(perdure, "o-1")
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute("UPDATE perdure_runs SET status = 'blocked', reason = 'poison', error = '{}' WHERE id = 'o-1'")
    database.close()
    assert "retry" in perdure("why", URL, "o-1").out
    assert perdure("runs", "retry", URL, "o-1", "--json").json == {"id": "o-1", "generation": 1}
    work("o-1")
    assert perdure("show", URL, "o-1", "--json").json["run"]["status"] == "completed"
    again = perdure("retry", URL, "o-1")
    assert (again.code, again.out) == (1, "")
    assert "run 'o-1' completed" in again.err


def test_what_others_wrote_into_the_tables_is_shown_as_it_is(perdure: Perdure) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute("INSERT INTO perdure_runs (id, type, input) VALUES ('x', 'odd', '{not json')")
    database.close()
    assert perdure("show", URL, "x", "--json").json["run"]["input"] == "{not json"
    assert perdure("show", URL, "x").code == 0


def test_stored_text_cannot_act_on_the_terminal(perdure: Perdure) -> None:
    perdure("migrate", URL)
    evil = "\x1b[2J\x9b31m\r\n\u202egnp.exe\x07[red]"
    with closing(sqlite3.connect("shop.db")) as database, database:
        database.execute(
            "INSERT INTO perdure_runs (id, type, input, status, error) VALUES (?, ?, ?, 'failed', ?)",
            (
                "x",
                evil,
                f'"{evil}"',
                f'{{"type": "E", "message": "{chr(92)}u001b[2J", "traceback": "a{chr(92)}u001b{chr(92)}n"}}',
            ),
        )
    database.close()
    for answer in (perdure("runs", URL), perdure("show", URL, "x"), perdure("show", URL, "x", "--json")):
        assert answer.code == 0
        text = answer.out.replace("\n", "")
        assert text.isprintable()
        assert "\u202e" not in text
    assert "\\x1b[2J\\x9b31m\\r\\n\\u202egnp.exe\\x07[red]" in perdure("runs", URL).out


def test_workers_are_listed_with_the_errors_of_their_loops(perdure: Perdure) -> None:
    start(perdure, "a")
    assert perdure("workers", URL).err == "No worker is known.\n"
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute(
            "INSERT INTO perdure_workers (id, host, pid, slots) VALUES ('w1', 'here', 7, 3), ('w2', 'here', 8, 3)"
        )
        connection.execute(
            "INSERT INTO perdure_health (worker_id, errors, problem) VALUES ('w1', 2, 'claimer: KeyError: x')"
        )
    first, second = perdure("workers", URL).out.splitlines()[1:]
    assert re.fullmatch(
        r"w1 +alive +here \(7\) +3 +\d+ d( \d+ h)? ago, taken over at the next sweep +2 +claimer: KeyError: x", first
    )
    assert re.fullmatch(r"w2 +alive +here \(8\) +3 +\d+ d( \d+ h)? ago, taken over at the next sweep *", second)
    assert [one["errors"] for one in perdure("workers", URL, "--json").json] == [2, 0]


def test_workers_are_listed_with_what_they_have_under_way(perdure: Perdure) -> None:
    start(perdure, "a")
    now = time.time_ns() // 1000
    steps = [
        RunningStep(run_id="a", type="order.v1", location="charge", attempt=2, since=now - 60_000_000, token=1),
        RunningStep(
            run_id="b", type="mail.v1", location="mail.v1", attempt=1, since=now, token=1, heartbeat_at=now - 3_000_000
        ),
    ]
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute(
            "INSERT INTO perdure_workers (id, host, pid, slots, lease, heartbeat_at, running) "
            "VALUES ('w1', 'here', 7, 3, ?, ?, ?)",
            (100_000_000, now, steps_to_json(steps)),
        )
        connection.execute("UPDATE perdure_runs SET status = 'running', worker = 'w1', token = 1 WHERE id = 'a'")
    listed = perdure("workers", URL).out.splitlines()
    assert re.fullmatch(r"w1 +alive +here \(7\) +3 +\d+ s ago *", listed[1])
    assert [line.split()[:4] for line in listed[-2:]] == [
        ["a", "order.v1", "charge", "2"], ["b", "mail.v1", "mail.v1", "1"],
    ]  # fmt: skip
    assert re.search(r"0:01:\d\d +w1$", listed[-2])
    assert re.search(r"\d+ s ago +w1$", listed[-1])
    [worker] = perdure("workers", URL, "--json").json
    assert [(one["run_id"], one["location"], one["attempt"]) for one in worker["running"]] == [
        ("a", "charge", 2), ("b", "mail.v1", 1),
    ]  # fmt: skip
    assert worker["taken_over_in"] is None
    assert re.search(r"Under way\nLOCATION +ATTEMPT +SINCE +LAST HEARTBEAT\ncharge +2", perdure("show", URL, "a").out)
    assert "Under way at its last heartbeat: 'charge' for 1 m" in perdure("why", URL, "a").out


def test_what_a_run_waits_for_is_shown_by_name(perdure: Perdure) -> None:
    start(perdure, "a")
    waits = [
        Wait(kind=WaitKind.MESSAGE, name="approval", since=1_790_000_000_000_000, until=1_800_000_000_000_000),
        Wait(kind=WaitKind.CHILD, name="a/ship", since=1_790_000_000_000_000, detail="ship.v1"),
    ]
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute(
            "UPDATE perdure_runs SET status = 'waiting', reason = 'message', token = 1, wake_at = ?, waits = ? "
            "WHERE id = 'a'",
            (1_800_000_000_000_000, waits_to_json(1, waits, 5)),
        )
    shown = perdure("show", URL, "a").out
    assert "Waits for\nKIND" in shown
    assert re.search(r"message +approval +2026-09-21 14:13:20Z +2027-01-15 08:00:00Z", shown)
    assert re.search(r"child +a/ship +2026-09-21 14:13:20Z +ship.v1", shown)
    assert "There are 3 more." in perdure("show", URL, "a").err
    assert perdure("show", URL, "a", "--json").json["waits"]["more"] == 3
    why = perdure("why", URL, "a").out
    assert (
        "It waits for message 'approval' since Monday 2026-09-21 14:13:20 UTC, at most until Friday 2027-01-15" in why
    )
    assert "; child 'a/ship' (ship.v1) since Monday 2026-09-21 14:13:20 UTC; 3 more." in why


def test_interruptions_are_shown(perdure: Perdure) -> None:
    assert perdure("start", "shop:engine", "approval", "--id", "a-1").code == 0
    assert "Interruptions" not in perdure("show", URL, "a-1").out
    lost = Interruption(worker="w-1", reason="lost", generation=1, attempt=1, last=-1)
    stopped = Interruption(worker="w-2", reason="stopped", generation=1, attempt=1, last=3, steps=("charge",))
    with closing(sqlite3.connect("shop.db")) as database, database:
        for position, one in enumerate((lost, stopped)):
            database.execute(
                "INSERT INTO perdure_outputs (run_id, kind, name, position, payload, failed, at, output_key) "
                "VALUES (?, ?, '', ?, ?, 0, 1, ?)",
                ("a-1", "takeover", position, interruption_output(one, position).payload, f"k{position}"),
            )
    database.close()
    shown = perdure("show", URL, "a-1").out
    assert "worker w-1 lost" in shown
    assert "all steps under way" in shown
    assert "worker w-2 stopped" in shown
    [_, told] = perdure("show", URL, "a-1", "--json").json["interruptions"]
    assert (told["worker"], told["last"], told["steps"]) == ("w-2", 3, ["charge"])
