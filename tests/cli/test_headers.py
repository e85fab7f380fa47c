from __future__ import annotations

import re

from tests.cli.conftest import Perdure


def test_a_run_is_started_with_headers_and_shows_them(perdure: Perdure) -> None:
    answer = perdure(
        "start", "shop:engine", "approval", "--id", "a", "--header", "tenant=acme", "--header", "note=a=b", "--json"
    )
    assert answer.json["headers"] == {"tenant": "acme", "note": "a=b"}
    shown = perdure("show", "shop:engine", "a")
    assert re.search("headers +tenant=acme note=a=b", shown.out)
    assert "policy" not in shown.out
    assert perdure("show", "shop:engine", "a", "--json").json["run"]["headers"] == {"tenant": "acme", "note": "a=b"}


def test_a_schedule_has_headers(perdure: Perdure) -> None:
    made = perdure(
        "schedules",
        "create",
        "shop:engine",
        "nightly",
        "approval",
        "--every",
        "1d",
        "--header",
        "tenant=acme",
        "--json",
    )
    assert made.json["headers"] == {"tenant": "acme"}
    changed = perdure("schedules", "change", "shop:engine", "nightly", "--header", "tenant=b", "--json")
    assert changed.json["headers"] == {"tenant": "b"}


def test_a_header_without_a_value_is_refused(perdure: Perdure) -> None:
    answer = perdure("start", "shop:engine", "approval", "--header", "tenant")
    assert answer.code != 0
    assert "'tenant' is not of the form NAME=VALUE" in answer.err


def test_a_bad_header_is_refused(perdure: Perdure) -> None:
    answer = perdure("start", "shop:engine", "approval", "--header", "a b=c")
    assert answer.code == 1
    assert "'a b' cannot be the name of a header" in answer.err
