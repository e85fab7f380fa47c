"""Commands by which a person finds out why runs are stuck."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest

from perdure import Context, Engine, Limit, Status, activity, workflow
from perdure.admin import Reason
from perdure.cli.app import cli
from perdure.workflow.definition import Workflow
from tests.cli.conftest import URL, Perdure, check_suggestions
from tests.helpers import eventually
from tests.stage import until


@activity("stuck.export.v1", limit=Limit("one", concurrency=1))
async def export() -> str:
    return "exported"


@workflow("stuck.parent.v1", limit=Limit("one", concurrency=1))
async def parent(ctx: Context) -> str:
    return await ctx.call(export())


@workflow("stuck.approval.v1")
async def approval(ctx: Context) -> bool:
    return await ctx.receive("approval", bool)


def test_doctor_and_why_tell_of_a_parent_that_waits_for_its_own_permit(perdure: Perdure) -> None:
    async def scene() -> None:
        engine = Engine(URL, [parent, export])
        async with engine, engine.worker():
            run = await engine.start(parent(), id="p-1")

            async def is_stuck() -> bool:
                page = await engine.runs.list(parent="p-1")
                return bool(page.runs) and page.runs[0].reason is Reason.LIMIT

            await until(run, Status.WAITING)
            await eventually(is_stuck)

    asyncio.run(scene())
    answer = perdure("doctor", URL)
    assert answer.code == 2
    assert "All is well" not in answer.out
    assert "1 run or step is waiting for ever for the limit one: 'p-1', which holds a permit of 'one', waits for" in (
        answer.out
    )
    assert f"perdure limits set {URL} one --concurrency 2" in answer.out
    why = perdure("why", URL, "p-1").out
    assert "This never ends" in why
    assert "Nothing lets it go on: no worker is alive" in why


def test_unserved_runs_are_a_status_of_the_listing(perdure: Perdure) -> None:
    perdure("start", URL, "stuck.unserved.v1", "--id", "new")
    answer = perdure("runs", "list", URL, "--status", "unserved", "--json")
    assert [run["id"] for run in answer.json["runs"]] == ["new"]
    assert perdure("runs", "count", URL, "--status", "unserved").out == "1\n"
    both = perdure("runs", "list", URL, "--status", "unserved", "--status", "failed")
    assert both.code == 2
    assert "--status unserved is a part of pending" in both.err


@pytest.mark.parametrize("delivered", [True, False])
def test_messages_tells_what_is_unread_and_which_name_was_meant(perdure: Perdure, delivered: bool) -> None:
    async def scene() -> None:
        engine = Engine(URL, [approval])
        async with engine:
            run = await engine.start(approval(), id="o-1")
            async with engine.worker():
                await until(run, Status.WAITING)
                if delivered:
                    for _ in range(2):
                        await run.send("aproval", True)
                    await run.send("other", True)

                    async def is_told() -> bool:
                        waits = (await run.report()).waits
                        return waits is not None and sum(waits.unread.values()) == 3

                    await eventually(is_told)
            if not delivered:
                await run.send("aproval", True)

    asyncio.run(scene())
    answer = perdure("messages", URL, "o-1")
    known = perdure("messages", URL, "o-1", "--json").json
    assert "o-1 has set aside no message." in answer.err
    if delivered:
        assert [line.split() for line in answer.out.splitlines()[1:]] == [
            ["aproval", "2", "did", "you", "mean", "approval?"],
            ["other", "1"],
        ]
        assert "o-1 waits for approval." in answer.err
        assert known["unread"] == {"aproval": 2, "other": 1}
        assert (known["waits_for"], known["meant"]) == (["approval"], {"aproval": "approval"})
    else:
        assert known["unread"] == {"aproval": 1}


def test_workers_are_listed_with_the_first_types_and_queues(perdure: Perdure) -> None:
    def numbered(number: int) -> Workflow[[], None]:
        @workflow(f"stuck.many.v{number}")
        async def one(ctx: Context) -> None: ...

        return one

    many = [numbered(number) for number in range(5)]

    async def scene() -> tuple[str, list[str]]:
        engine = Engine(URL, many)
        async with engine, engine.worker(queues=["default", "mail", "slow"]):
            out = await asyncio.to_thread(lambda: perdure("workers", URL).out)
            listed = await asyncio.to_thread(lambda: perdure("workers", URL, "--json").json)
            return out, listed[0]["types"]

    out, types = asyncio.run(scene())
    assert "stuck.many.v0, stuck.many.v1 and 3 more  default, mail and 1 more" in out
    assert len(types) == 5


#: Rows of a run, and a command that `why` suggests for it, with TARGET for the target.
SUGGESTED = {
    """INSERT INTO perdure_runs (id, type, status, finished_at, error)
    VALUES ('r 1', 't', 'failed', 1, '{"type":"OSError"}')""": "perdure retry TARGET 'r 1'",
    "INSERT INTO perdure_runs (id, type) VALUES ('r 1', 't')": "perdure worker module:engine",
    "INSERT INTO perdure_runs (id, type, queue) VALUES ('r 1', 't', 'default~1.4')": "perdure worker module:engine",
    """INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, heartbeat_at)
    VALUES ('w', 'h', 7, '["default"]', '["t"]', 5, 9, 4000000000000000);
    INSERT INTO perdure_runs (id, type, queue) VALUES ('r 1', 't', 'default~1.4')""": "perdure runs unpin TARGET 'r 1'",
    """INSERT INTO perdure_runs (id, type, status, reason, wake_at, started_at, seed)
    VALUES ('r 1', 't', 'waiting', 'message', 253402300799999999, 1, 's');
    INSERT INTO perdure_outputs (run_id, position, kind, name, payload, failed, at)
    VALUES ('r 1', 0, 'aside', '', '{"name":"go","payload":"1","error":{"type":"x","message":"no"}}', 1, 1)""": (
        "perdure messages deliver TARGET 'r 1' 0 --value null"
    ),
    """INSERT INTO perdure_gates (name, concurrency, pace, burst, due_at, waits_for)
    VALUES ('g', 1, 600000, 3, 253402300799999999, 'room');
    INSERT INTO perdure_runs (id, type, status, reason, wake_at, token, started_at, seed, waits) VALUES
    ('p', 't', 'waiting', 'child', 253402300799999999, 3, 1, 's',
    '{"token": 3, "waits": [{"kind": "child", "name": "r 1"}]}');
    INSERT INTO perdure_runs (id, type, status, reason, wake_at, parent_id, parent_location) VALUES
    ('r 1', 't', 'waiting', 'limit', 253402300799999999, 'p', 'c');
    INSERT INTO perdure_permits (gate, run_id, token, hold, granted_at) VALUES ('g', 'p', 1, 'run', 1);
    INSERT INTO perdure_lines (run_id, gate, queue, type, priority, turn, gating, since)
    VALUES ('r 1', 'g', 'q', 't', 0, 1, '{}', 1)""": (
        "perdure limits set TARGET g --concurrency 2 --rate 100/m --burst 3"
    ),
}


@pytest.mark.parametrize("rows", SUGGESTED)
def test_every_command_that_why_suggests_parses_and_names_the_target(perdure: Perdure, rows: str) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript(rows)
    wanted = SUGGESTED[rows].replace("TARGET", URL)
    for answer in (perdure("why", URL, "r 1"), perdure("show", URL, "r 1")):
        assert f"`{wanted}`" in answer.out
    check_suggestions(cli, perdure("why", URL, "r 1").out, URL)
    check_suggestions(cli, perdure("why", "shop:engine", "r 1", "--json").json["why"], "shop:engine")


def test_why_tells_the_age_of_a_heartbeat_before_the_worker_counts_as_late(perdure: Perdure) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript(
            f"""INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, heartbeat_at)
            VALUES ('w', 'h', 7, '["default"]', '["t"]', 5, 99000000000, {int(time.time() * 1e6) - 7_000_000});
            INSERT INTO perdure_runs (id, type, status, worker, nonce, token, started_at, seed)
            VALUES ('r', 't', 'running', 'w', 'n', 1, 1, 's')"""
        )
    assert "by worker w (pid 7 on h), last heard of " in perdure("why", URL, "r").out


def test_a_build_without_a_name_has_a_row(perdure: Perdure) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.executescript(
            """INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, heartbeat_at)
            VALUES ('w', 'h', 7, '["default"]', '["t"]', 5, 9, 4000000000000000)"""
        )
    assert perdure("workers", "builds", URL).out.splitlines()[1].split()[:2] == ["(none)", "1"]
    [document] = perdure("workers", "builds", URL, "--json").json
    assert (document["build"], document["workers"]) == ("", 1)
