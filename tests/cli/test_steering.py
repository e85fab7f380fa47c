"""Commands for builds, drain, priorities, fires, sources and deploy checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import SHOP, URL, Perdure, work


def start(perdure: Perdure, run_id: str) -> None:
    assert perdure("start", "shop:engine", "checkout", "--input", '[{"id": "o", "cents": 1}]', "--id", run_id).code == 0


def test_a_worker_is_drained_by_the_beginning_of_its_id(perdure: Perdure) -> None:
    start(perdure, "o")
    work("o")
    [worker] = perdure("workers", "list", URL, "--json").json
    # It has stopped by now, so there is nothing to order.
    answer = perdure("workers", "drain", URL, worker["id"][:12], "--reason", "new host", "--json")
    assert answer.json == {"id": worker["id"], "draining": False}
    assert perdure("workers", "drain", URL, worker["id"]).out.endswith("drains already, has stopped or is dead.\n")
    missing = perdure("workers", "drain", URL, "unknown")
    assert (missing.code, "unknown" in missing.err) == (1, True)


def test_the_priority_of_a_run_is_changed(perdure: Perdure) -> None:
    start(perdure, "o")
    words = ("runs", "set-priority", URL, "o")
    assert perdure(*words, "7", "--reason", "waits since noon", "--json").json == {
        "id": "o",
        "priority": 7,
        "changed": True,
    }
    assert perdure("show", URL, "o", "--json").json["run"]["priority"] == 7
    assert perdure(*words, "7", "--json").json == {"id": "o", "priority": 7, "changed": False}
    assert perdure(*words, "high").code == 2


def test_fires_of_a_schedule_are_listed_with_their_runs(perdure: Perdure) -> None:
    assert perdure("schedules", "create", "shop:engine", "nightly", "approval", "--cron", "0 3 * * *").code == 0
    assert perdure("schedules", "fires", URL, "nightly").err == "nightly has not fired yet.\n"
    backfill = ("schedules", "backfill", "shop:engine", "nightly", "--from", "3d")
    assert "3" in perdure(*backfill, "--dry-run").out
    assert perdure("schedules", "fires", URL, "nightly", "--json").json == []
    started = perdure(*backfill, "--json").json["runs"]
    fires = perdure("schedules", "fires", URL, "nightly", "--json").json
    assert [(fire["run_id"], fire["status"]) for fire in fires] == [(run_id, "pending") for run_id in started[::-1]]
    assert len(fires) == 3
    assert started[0] in perdure("schedules", "fires", URL, "nightly").out


def test_the_source_of_a_type_is_shown_unless_the_engine_keeps_it(perdure: Perdure) -> None:
    Path("shop.py").write_text(SHOP.replace("[checkout,", "register_sources=False, workflows=[checkout,"))
    start(perdure, "o")
    work("o")
    assert perdure("queues", "source", URL, "checkout").err == "No worker has registered the source of checkout.\n"
    Path("shop.py").write_text(SHOP)
    start(perdure, "p")
    work("p")
    printed = perdure("queues", "source", URL, "checkout").out
    assert "shop.py:" in printed.splitlines()[0]
    assert "return await ctx.step(charge, order.cents) + note" in printed


@pytest.mark.parametrize("saved", [True, False])
def test_a_deploy_check_with_a_run_that_diverges_is_kept(perdure: Perdure, *, saved: bool) -> None:
    receive = "    return await ctx.receive"
    Path("shop.py").write_text(SHOP.replace(receive, f"    await ctx.step(charge, 5)\n{receive}"))
    perdure("start", "shop:engine", "approval", "--id", "a")
    start(perdure, "b")
    work("b")
    assert perdure("audit", "checks", URL).err.startswith("No check has been stored")
    Path("shop.py").write_text(SHOP)
    assert perdure("check", "shop:engine", *([] if saved else ["--no-save"])).code == 1
    kept = perdure("audit", "checks", URL, "--json").json
    assert [one["ok"] for one in kept] == [False] * saved
    if saved:
        [of_type] = [one for one in kept[0]["types"] if one["type"] == "approval"]
        assert (of_type["checked"], of_type["diverged"], of_type["run_id"]) == (1, 1, "a")
        assert "'charge'" in of_type["expected"]
        assert "ctx.removed" in of_type["fix"]
        assert "approval" in perdure("audit", "checks", URL).out
