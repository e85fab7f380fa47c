from __future__ import annotations

import pytest

from tests.cli.conftest import URL, Perdure

CREATE = ("schedules", "create", "shop:engine", "nightly", "checkout", "--input", '[{"id": "o", "cents": 1}]')


def test_a_schedule_is_created_shown_changed_and_deleted(perdure: Perdure) -> None:
    made = perdure(*CREATE, "--cron", "30 2 * * *", "--zone", "Europe/Prague", "--misfire", "3", "--json").json
    assert made["when"] == {"cron": "30 2 * * *", "zone": "Europe/Prague"}
    assert (made["misfire"]["limit"], made["overlap"], made["paused"]) == (3, "skip", False)
    assert made["input"] == {"order": {"id": "o", "cents": 1}, "note": ""}
    assert "30 2 * * * (Europe/Prague)" in perdure("schedules", "list", URL).out
    [listed] = perdure("schedules", "list", URL, "--json").json["schedules"]
    assert listed == made
    times = perdure("schedules", "next", URL, "nightly", "--count", "3", "--json").json
    assert [time[11:16] for time in times] == ["02:30"] * 3
    assert perdure("schedules", "next", URL, "nightly", "--count", "3").out.count("02:30:00+0") == 3
    changed = perdure("schedules", "change", URL, "nightly", "--every", "15m", "--overlap", "allow", "--json").json
    assert (changed["when"]["every"], changed["overlap"], changed["misfire"]["limit"]) == (900_000_000, "allow", 3)
    shown = perdure("schedules", "show", URL, "nightly")
    assert "every 0:15:00" in shown.out
    assert "schedule_changed" in shown.out
    events = perdure("schedules", "show", URL, "nightly", "--json").json["events"]
    assert [event["kind"] for event in events] == ["schedule_created", "schedule_changed"]
    assert perdure("schedules", "delete", URL, "nightly").out == "nightly is deleted.\n"
    gone = perdure("schedules", "show", URL, "nightly")
    assert (gone.code, gone.err) == (1, "perdure: there is no schedule 'nightly'\n")
    assert perdure("schedules", "list", URL).err == "No schedules.\n"


def test_a_schedule_is_paused_and_resumed(perdure: Perdure) -> None:
    perdure(*CREATE, "--every", "1h")
    assert perdure("schedules", "pause", URL, "nightly", "--reason", "holidays").out == "nightly is paused.\n"
    assert "paused: holidays" in perdure("schedules", "list", URL).out
    assert perdure("schedules", "pause", URL, "nightly", "--json").json == {"id": "nightly", "paused": False}
    assert perdure("schedules", "resume", URL, "nightly", "--catch-up").out == "nightly is resumed.\n"
    assert perdure("schedules", "resume", URL, "nightly").out == "nightly was not paused.\n"


def test_runs_are_started_by_hand(perdure: Perdure) -> None:
    perdure(*CREATE, "--every", "1h", "--start", "2026-01-01T00:00Z")
    run = perdure("schedules", "trigger", URL, "nightly", "--reason", "a test").out.strip()
    assert "a test" in perdure("schedules", "show", URL, "nightly").out
    assert perdure("show", URL, run, "--json").json["run"]["type"] == "checkout"
    filled = perdure(
        "schedules", "backfill", URL, "nightly", "--from", "2026-01-01T00:00Z", "--to", "2026-01-01T03:00Z", "--json"
    ).json
    assert filled["runs"] == [f"nightly@2026-01-01T0{hour}:00:00Z" for hour in range(3)]
    again = perdure("schedules", "backfill", URL, "nightly", "--from", "2026-01-01T00:00Z", "--to", "2026-01-01T02:00Z")
    assert again.out == "Fire times with a run: 2.\n"


def test_a_backfill_reads_a_date_in_the_time_zone_of_the_schedule(perdure: Perdure) -> None:
    perdure(*CREATE, "--cron", "0 * * * *", "--zone", "America/New_York")
    filled = perdure(
        "schedules", "backfill", URL, "nightly", "--from", "2026-01-01", "--to", "2026-01-01T02:00", "--json"
    ).json
    assert filled["runs"] == ["nightly@2026-01-01T05:00:00Z", "nightly@2026-01-01T06:00:00Z"]


def test_a_schedule_has_a_beginning_an_end_and_skipped_dates(perdure: Perdure) -> None:
    made = perdure(
        *CREATE, "--cron", "0 * * * *", "--zone", "Asia/Tokyo", "--starts", "2099-01-02T06:00",
        "--ends", "2099-01-04T02:00+09:00", "--skip", "2099-01-03, 2099-01-05", "--json",
    ).json  # fmt: skip
    assert made["when"] == {"cron": "0 * * * *", "zone": "Asia/Tokyo"}
    assert (made["starts"], made["ends"]) == ("2099-01-01T21:00:00+00:00", "2099-01-03T17:00:00+00:00")
    assert made["skip"] == ["2099-01-03", "2099-01-05"]
    times = perdure("schedules", "next", URL, "nightly", "--count", "30", "--json").json
    assert (times[0], times[-1], len(times)) == ("2099-01-02T06:00:00+09:00", "2099-01-04T01:00:00+09:00", 20)
    shown = perdure("schedules", "show", URL, "nightly").out
    assert "2099-01-02 06:00:00+09:00" in shown
    assert "2099-01-03, 2099-01-05" in shown
    changed = perdure("schedules", "change", URL, "nightly", "--skip", "none", "--json").json
    assert (changed["skip"], changed["starts"]) == ([], made["starts"])
    assert "is not a date" in perdure("schedules", "change", URL, "nightly", "--skip", "someday").err


def test_runs_of_a_schedule_are_printed_in_its_zone(perdure: Perdure) -> None:
    perdure(*CREATE, "--cron", "0 * * * *", "--zone", "America/New_York")
    assert perdure("schedules", "runs", URL, "nightly").err == "nightly has started no run yet.\n"
    perdure("schedules", "backfill", URL, "nightly", "--from", "2026-01-01", "--to", "2026-01-01T02:00")
    perdure("schedules", "trigger", URL, "nightly")
    printed = perdure("schedules", "runs", URL, "nightly").out
    assert "2026-01-01 00:00:00-05:00" in printed
    assert "by hand" in printed
    [by_hand, *others] = perdure("schedules", "runs", URL, "nightly", "--json").json
    assert by_hand["fire_time"] is None
    assert {one["fire_time"] for one in others} == {"2026-01-01T00:00:00-05:00", "2026-01-01T01:00:00-05:00"}


def test_a_schedule_may_run_once(perdure: Perdure) -> None:
    perdure(*CREATE, "--at", "1h")
    assert len(perdure("schedules", "next", URL, "nightly").out.splitlines()) == 1
    assert "at 20" in perdure("schedules", "show", URL, "nightly").out


@pytest.mark.parametrize(
    ("options", "code", "named"),
    [
        ((), 2, "give one of --cron"),
        (("--cron", "@daily", "--every", "1h"), 2, "give only one of"),
        (("--cron", "61 * * * *"), 1, "bad minute"),
        (("--cron", "@daily", "--zone", "Mars/Olympus"), 1, "Mars/Olympus"),
        (("--every", "soon"), 1, "soon"),
        (("--every", "1h", "--misfire", "maybe"), 1, "misfire='maybe'"),
        (("--every", "1h", "--overlap", "maybe"), 2, "maybe"),
    ],
)
def test_a_bad_schedule_is_refused(perdure: Perdure, options: tuple[str, ...], code: int, named: str) -> None:
    answer = perdure(*CREATE, *options)
    assert answer.code == code
    assert named in answer.err
    assert "Traceback" not in answer.err
