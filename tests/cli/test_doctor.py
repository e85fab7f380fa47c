"""`perdure doctor`: on every database a sound one has nothing to report, and each planted problem is found."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pymysql
import pytest
from msgspec.structs import replace

from perdure import Context, Engine, step, workflow
from perdure.cli.app import cli
from perdure.cli.doctor.checks import CheckResult, Examination, Level, judge_clock, judge_settings, judge_workers
from perdure.core.model.worker_info import DrainOrder, WorkerInfo
from perdure.host import Host
from perdure.store import migration_script
from perdure.store.migrations import indexes
from perdure.store.sql.diagnosis import UNREAD_STATEMENTS, work_counts_statement
from perdure.store.sql.dialect import MYSQL, POSTGRES, SQLITE
from perdure.store.sql.invariants import BOUNDED_INVARIANTS, LIVE_INVARIANTS
from perdure.store.url import MysqlUrl, PostgresUrl, parse, shown
from tests.cli.conftest import URL, Perdure, check_suggestions
from tests.servers import schemas as postgres_server
from tests.servers.databases import Databases
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.private import Missing, skip_without
from tests.servers.schemas import Schemas


@dataclass
class Place:
    """A database of a test's own, and a way to change it behind Perdure's back."""

    url: str
    connect: Callable[[], Any]

    def execute(self, script: str) -> None:
        with closing(self.connect()) as connection:
            for statement in script.split(";"):
                if statement.strip():
                    cursor = connection.cursor()
                    cursor.execute(statement)
            connection.commit()


def place_of(url: str) -> Place:
    where = parse(url)
    if isinstance(where, PostgresUrl):

        def on_postgres() -> Any:
            connection = psycopg.connect(os.environ[postgres_server.POSTGRES])
            connection.execute(f"SET search_path = {where.schema}")
            return connection

        return Place(url, on_postgres)
    if isinstance(where, MysqlUrl):
        return Place(
            url,
            lambda: pymysql.connect(
                host=where.host,
                port=where.port,
                user=where.user,
                password=where.password,
                database=where.database,
                ssl_disabled=True,
            ),
        )
    return Place(url, lambda: sqlite3.connect("shop.db"))


@pytest.fixture
async def postgres(schemas: Schemas) -> AsyncIterator[str]:
    async with schemas.one() as url:
        yield url


@pytest.fixture
async def mysql(databases: Databases) -> AsyncIterator[str]:
    async with databases.one() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def place(request: pytest.FixtureRequest, perdure: Perdure) -> Place:
    """A database with the tables of Perdure, and nothing in them."""
    url = URL if request.param == "sqlite" else request.getfixturevalue(request.param)
    assert perdure("migrate", url).code == 0
    return place_of(url)


def findings(perdure: Perdure, *arguments: str) -> list[dict[str, Any]]:
    """What the doctor finds, but for the settings of the test server, which is careless on purpose."""
    answer = perdure("doctor", *arguments, "--json")
    checks: list[dict[str, Any]] = answer.json["checks"]
    levels = [one["level"] for one in checks]
    assert answer.code == (2 if "problem" in levels else 1 if "warning" in levels else 0)
    return [one for one in checks if one["check"] != "durability" and one["level"] not in ("ok", "skipped")]


ALIVE = "INSERT INTO perdure_workers (id, host, pid, queues, types, slots, lease, heartbeat_at) VALUES "
#: A worker whose heartbeat is far in the past or in the future.
SILENT = f"""{ALIVE} ('w-1', 'web-1', 7, '["default"]', '["t"]', 5, 15000000, 1000000)"""
FUTURE = f"""{ALIVE} ('w-1', 'web-1', 7, '["default"]', '["t"]', 5, 15000000, 4000000000000000)"""
ERROR = '{"type": "x"}'

#: What is done to the database, and the finding: its check, its level, a word of its sentence, a word of its remedy.
PLANTED: dict[str, tuple[str, str, str, str]] = {
    SILENT: ("workers", "problem", "longer than its lease", "start a worker"),
    FUTURE: ("clock", "warning", "later than the database's clock", "set back"),
    f"""{FUTURE}; INSERT INTO perdure_health (worker_id, errors, problem) VALUES ('w-1', 3, 'out of bananas')""": (
        "workers",
        "warning",
        "out of bananas",
        "log",
    ),
    f"""{FUTURE}; INSERT INTO perdure_pauses (kind, name, reason) VALUES ('queue', 'default', '')""": (
        "workers",
        "warning",
        "claims nothing: all of its queues or types are paused",
        "default`",
    ),
    f"""{FUTURE}; UPDATE perdure_workers SET types = '["a b", "c"]';
    INSERT INTO perdure_pauses (kind, name, reason) VALUES ('type', 'a b', '');
    INSERT INTO perdure_pauses (kind, name, reason) VALUES ('type', 'c', '')""": (
        "workers",
        "warning",
        "claims nothing: all of its queues or types are paused",
        "--type 'a b'` and `perdure queues resume",
    ),
    f"""{FUTURE}; INSERT INTO perdure_pauses (kind, name, reason) VALUES ('queue', 'default', '');
    INSERT INTO perdure_runs (id, type) VALUES ('r', 'lonely')""": (
        "work",
        "warning",
        "serves 1 ready run of type lonely in queue default",
        "--queue default",
    ),
    """INSERT INTO perdure_pauses (kind, name, reason, actor) VALUES ('type', 'lonely', '', '');
    INSERT INTO perdure_runs (id, type, queue) VALUES ('r', 'lonely', 'far')""": (
        "work",
        "warning",
        "and the type is paused, too",
        "--queue far",
    ),
    """INSERT INTO perdure_pauses (kind, name, reason, actor) VALUES ('type', 't t', 'a leak', 'ops')""": (
        "pauses",
        "warning",
        "the type t t is paused by ops: a leak",
        "--type 't t'",
    ),
    "INSERT INTO perdure_runs (id, type, queue) VALUES ('r', 'lonely', 'far')": (
        "work",
        "warning",
        "serves 1 ready run of type lonely in queue far",
        "--queue far",
    ),
    f"""{FUTURE}; UPDATE perdure_workers SET types = '["shop.charge.v1"]';
    INSERT INTO perdure_runs (id, type) VALUES ('r', 'shop.chrge.v1')""": (
        "work",
        "warning",
        "serves 1 ready run of type shop.chrge.v1",
        "did you mean shop.charge.v1",
    ),
    "INSERT INTO perdure_runs (id, type, queue) VALUES ('r', 'lonely', 'far~1.4')": (
        "work",
        "warning",
        "serves 1 ready run of type lonely",
        "pinned to the build 1.4: start a worker of it",
    ),
    f"""{ALIVE} ('w-2', 'h', 1, '["default"]', '["t"]', 5, 1, 1); UPDATE perdure_workers SET status = 'dead';
    INSERT INTO perdure_runs (id, type, status, worker, nonce, token, started_at, seed)
    VALUES ('r', 't', 'running', 'w-2', 'n', 1, 1, 's')""": ("work", "warning", "w-2, which is dead", "start a worker"),
    f"""{FUTURE}; UPDATE perdure_workers SET slots = 1;
    INSERT INTO perdure_runs (id, type, status, worker, nonce, token, started_at, seed)
    VALUES ('r', 't', 'running', 'w-1', 'n', 1, 1, 's')""": ("work", "warning", "1 slots are taken", "--slots"),
    """INSERT INTO perdure_runs (id, type, status, worker, nonce, token, started_at, seed, lease_until)
    VALUES ('r', 't', 'running', 'node', 'n', 1, 1, 's', 1)""": ("work", "warning", "for 1 run, such as", "sweep"),
    """INSERT INTO perdure_gates (name, concurrency, due_at, waits_for) VALUES ('g', 1, 9, 'room');
    INSERT INTO perdure_runs (id, type, status, reason, wake_at) VALUES ('r', 't', 'waiting', 'limit',
    253402300799999999); INSERT INTO perdure_lines (run_id, gate, queue, type, priority, turn, gating, since)
    VALUES ('r', 'g', 'q', 't', 0, 1, '{}', 1)""": ("waitlists", "warning", "the waitlist of g", "start a worker"),
    """INSERT INTO perdure_gates (name, concurrency, due_at, waits_for) VALUES ('g', 1, 253402300799999999, 'room');
    INSERT INTO perdure_runs (id, type, status, reason, wake_at, token, started_at, seed, waits) VALUES
    ('p p', 't', 'waiting', 'child', 253402300799999999, 3, 1, 's',
    '{"token": 3, "waits": [{"kind": "child", "name": "c"}]}');
    INSERT INTO perdure_runs (id, type, status, reason, wake_at, parent_id, parent_location) VALUES
    ('c', 't', 'waiting', 'limit', 253402300799999999, 'p p', 'c');
    INSERT INTO perdure_permits (gate, run_id, token, hold, granted_at) VALUES ('g', 'p p', 1, 'run', 1);
    INSERT INTO perdure_lines (run_id, gate, queue, type, priority, turn, gating, since)
    VALUES ('c', 'g', 'q', 't', 0, 1, '{}', 1)""": (
        "deadlocks",
        "problem",
        "for the limit g: 'p p', which holds a permit of 'g', waits for 'c', and 'c' waits for the limit 'g'",
        "g --concurrency 2",
    ),
    """INSERT INTO perdure_runs (id, type, status, reason, wake_at, token, started_at, seed, waits) VALUES
    ('r r', 't', 'waiting', 'message', 253402300799999999, 3, 1, 's',
    '{"token":3,"waits":[{"kind":"message","name":"approval"}],"unread":{"aproval":1}}')""": (
        "messages",
        "warning",
        "run 'r r' waits for the message 'approval', and a message 'aproval' is unread",
        "'r r' approval null`, with its value",
    ),
    """INSERT INTO perdure_pauses (kind, name, reason) VALUES ('queue', 'default', '');
    INSERT INTO perdure_runs (id, type, token, started_at, seed, inbox_seq, waits) VALUES
    ('r', 't', 3, 1, 's', 2, '{"token":3,"waits":[{"kind":"message","name":"approval"}]}');
    INSERT INTO perdure_messages (run_id, seq, kind, name, payload, message_key, sent_at) VALUES
    ('r', 1, 'message', 'aproval', '"it''s"', 'k1', 1), ('r', 2, 'message', 'approval', '1', 'k2', 1)""": (
        "messages",
        "warning",
        "run 'r' waits for the message 'approval', and a message 'aproval' is unread",
        """r approval '"it'"'"'s"'`""",
    ),
    """INSERT INTO perdure_gates (name, concurrency, override) VALUES ('g', 1, '{')""": (
        "limits",
        "problem",
        "the limit g cannot be read",
        "limits clear",
    ),
    """INSERT INTO perdure_gates (name, breaker) VALUES ('breaker:b', '{')""": (
        "limits",
        "problem",
        "the breaker b cannot be read",
        "breakers reset",
    ),
    """INSERT INTO perdure_schedules (id, type, error) VALUES ('nightly', 't', 'no such type')""": (
        "schedules",
        "warning",
        "nightly has an error: no such type",
        "save it",
    ),
    f"""INSERT INTO perdure_runs (id, type, status, reason, error)
    VALUES ('r', 't', 'blocked', 'broken', '{ERROR}')""": (
        "blocked",
        "warning",
        "1 run is blocked",
        "--status blocked",
    ),
    """INSERT INTO perdure_runs (id, type, status, reason, wake_at)
    VALUES ('r 1', 't', 'waiting', 'timer', 253402300799999999)""": (
        "invariants",
        "problem",
        "something can end its waiting",
        "'r 1'",
    ),
    "UPDATE perdure_migrations SET applied_at = 1; DELETE FROM perdure_migrations WHERE version = 17": (
        "schema",
        "problem",
        "1 migration is pending: 0017_steering",
        "perdure migrate",
    ),
    "DELETE FROM perdure_migrations": ("schema", "problem", "no tables of Perdure", "perdure migrate"),
    "UPDATE perdure_migrations SET checksum = 'x'": ("schema", "problem", "in another form", "restore"),
    "INSERT INTO perdure_migrations (version, name, checksum, applied_at) VALUES (999, 'later', 'x', 1)": (
        "schema",
        "problem",
        "which this version of Perdure does not know",
        "install",
    ),
}


@pytest.mark.parametrize("damage", PLANTED)
def test_a_planted_problem_is_reported_with_a_remedy(perdure: Perdure, place: Place, damage: str) -> None:
    place.execute(damage)
    check, level, text, remedy = PLANTED[damage]
    found = findings(perdure, place.url)
    assert any(
        one["check"] == check and one["level"] == level and text in one["text"] and remedy in one["remedy"]
        for one in found
    ), found
    for one in found:
        check_suggestions(cli, one["remedy"] or "", shown(place.url))


def test_an_empty_database_lacks_nothing_but_a_worker(perdure: Perdure, place: Place) -> None:
    [finding] = findings(perdure, place.url)
    assert finding["check"] == "workers"
    assert "no worker is alive" in finding["text"]
    assert "perdure worker" in perdure("doctor", place.url).out


def test_every_index_that_is_dropped_is_missed_and_its_remedy_makes_it_again(perdure: Perdure, place: Place) -> None:
    where = parse(place.url)
    on_mysql = isinstance(where, MysqlUrl)
    dialect = POSTGRES if isinstance(where, PostgresUrl) else MYSQL if on_mysql else SQLITE
    for index in indexes(dialect, "perdure_"):
        table = index.statement.partition(" ON ")[2].split()[0]
        place.execute(f"DROP INDEX {index.name}" + (f" ON {table}" if on_mysql else ""))
    missing = [one for one in findings(perdure, place.url) if one["check"] == "indexes"]
    assert "more of this kind" in missing[-1]["text"]
    mended = 0
    while missing := [one for one in findings(perdure, place.url) if one["check"] == "indexes"]:
        for one in missing:
            if one["remedy"]:
                place.execute(one["remedy"])
                mended += 1
    assert mended == len(indexes(dialect, "perdure_"))


def test_an_index_that_is_not_valid_is_missing(perdure: Perdure, postgres: str) -> None:
    place = place_of(postgres)
    perdure("migrate", postgres)
    damage = "UPDATE pg_index SET indisvalid = {} WHERE indexrelid = 'perdure_runs_by_age'::regclass"
    place.execute(damage.format("false"))
    [finding] = [one for one in findings(perdure, postgres) if one["check"] == "indexes"]
    place.execute(damage.format("true"))
    assert "perdure_runs_by_age" in finding["text"]


def test_rules_of_finished_runs_are_checked_when_asked_for(perdure: Perdure, place: Place) -> None:
    place.execute(
        """INSERT INTO perdure_runs (id, type, status, output, finished_at) VALUES ('r', 't', 'completed', '1', 5);
        INSERT INTO perdure_history (run_id, seq, token, kind, location, at) VALUES ('r', 3, 0, 'step', 'a', 1)"""
    )
    assert not [one for one in findings(perdure, place.url) if one["check"] == "invariants"]
    [finding] = [one for one in findings(perdure, place.url, "--thorough") if one["check"] == "invariants"]
    assert "no holes" in finding["text"]
    assert "(I1)" not in finding["text"]


def test_stored_text_cannot_act_on_the_terminal(perdure: Perdure, place: Place) -> None:
    place.execute("INSERT INTO perdure_pauses (kind, name, reason) VALUES ('queue', 'q', '\x1b[2Jgone')")
    answer = perdure("doctor", place.url)
    assert "\x1b" not in answer.out
    assert "\\x1b[2Jgone" in answer.out


@step
async def add(number: int) -> int:
    return number + 1


@workflow("child")
async def child(ctx: Context, number: int) -> int:
    return await ctx.step(add, number)


@workflow("busy")
async def busy(ctx: Context, number: int) -> int:
    await ctx.sleep("10ms")
    value = await ctx.step(add, number)
    value = await ctx.call(child(value))
    await ctx.receive("go")
    return value


def test_a_busy_database_has_nothing_to_report(perdure: Perdure, place: Place) -> None:
    """Rules, waitlists and leases hold at every moment of work in flight."""

    async def main() -> list[CheckResult]:
        found: list[CheckResult] = []
        async with Engine(place.url, [busy, child]) as engine, engine.worker():
            handles = await engine.start_many([busy(n) for n in range(30)])

            async def examine() -> None:
                examination = Examination(place.url, Host(), timeout=60.0, thorough=True)
                found.extend([one async for many in examination.database() for one in many])
                found.extend([one async for many in examination.fleet(engine) for one in many])

            async def finish() -> None:
                for handle in handles:
                    await handle.send("go", True)
                for handle in handles:
                    await handle.result(timeout=120)

            await asyncio.gather(examine(), finish())
            await examine()
        return found

    bad = [one for one in asyncio.run(main()) if one.level is not Level.OK and one.check != "durability"]
    assert bad == []


def test_a_missing_file_and_an_unreachable_server_are_reported(perdure: Perdure) -> None:
    [finding] = findings(perdure, "sqlite:///absent.db")
    assert finding["check"] == "reachable"
    assert "perdure migrate" in finding["remedy"]
    for url in ("postgresql://127.0.0.1:1/x", "mysql://u:secret@127.0.0.1:1/x"):
        [finding] = findings(perdure, url, "--database-timeout", "20s")
        assert finding["check"] == "reachable"
        assert finding["remedy"]
        assert "secret" not in str(finding)


def test_a_url_that_is_wrong_is_reported(perdure: Perdure) -> None:
    [finding] = findings(perdure, "oracle://host/x")
    assert finding["check"] == "url"


def test_an_engine_names_its_database(perdure: Perdure) -> None:
    perdure("migrate", "shop:engine")
    answer = perdure("doctor", "shop:engine", "--json").json
    assert answer["target"] == URL
    assert "start one: `perdure worker shop:engine`" in [one["remedy"] for one in answer["checks"]]


def test_a_setting_in_the_url_that_loses_commits_is_reported(perdure: Perdure) -> None:
    perdure("migrate", URL)
    checks = perdure("doctor", f"{URL}?synchronous=NORMAL", "--json").json["checks"]
    [finding] = [one for one in checks if one["check"] == "durability"]
    assert finding["level"] == "warning"
    assert "synchronous is NORMAL" in finding["text"]
    [finding] = [one for one in perdure("doctor", URL, "--json").json["checks"] if one["check"] == "durability"]
    assert finding["level"] == "ok"


def durability(perdure: Perdure, url: str) -> list[str]:
    checks = perdure("doctor", url, "--json").json["checks"]
    return [one["text"] for one in checks if one["check"] == "durability" and one["level"] == "problem"]


@pytest.fixture(params=[Postgres, Mariadb])
def careful(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server that forgets nothing, and that only this test changes."""
    try:
        server: Postgres | Mariadb = request.param(durable=True)
    except Missing as missing:
        skip_without("a server of its own", missing)
    try:
        server.create()
        yield server.dsn
    finally:
        server.remove()


def test_careless_settings_of_a_server_are_reported(perdure: Perdure, careful: str) -> None:
    assert perdure("migrate", careful).code == 0
    assert durability(perdure, careful) == []
    where = parse(careful)
    if isinstance(where, MysqlUrl):
        with closing(
            pymysql.connect(
                host=where.host, port=where.port, user=where.user, password=where.password, ssl_disabled=True
            )
        ) as connection:
            connection.cursor().execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        [text] = durability(perdure, careful)
        assert "innodb_flush_log_at_trx_commit is 2" in text
        return
    with closing(psycopg.connect(careful, autocommit=True)) as connection:
        [[name]] = connection.execute("SELECT current_database()").fetchall()
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        [text] = durability(perdure, careful)
        assert "synchronous_commit is off" in text
        connection.execute(f"ALTER DATABASE {name} RESET synchronous_commit")
        for setting in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
        while len(durability(perdure, careful)) < 2:
            pass
        assert "fsync is off" in " ".join(durability(perdure, careful))


def test_settings_are_judged_by_value() -> None:
    binlog = {"innodb_flush_log_at_trx_commit": "1", "log_bin": "1", "sync_binlog": "0", "max_allowed_packet": "1024"}
    found = judge_settings("mysql", binlog)
    assert ["sync_binlog is 0" in found[0].text, found[0].level] == [True, Level.WARNING]
    assert ["max_allowed_packet is 1024" in found[1].text, found[1].level] == [True, Level.PROBLEM]
    assert judge_settings("mysql", {**binlog, "log_bin": "0", "max_allowed_packet": "99999999"})[0].level is Level.OK
    assert judge_settings("sqlite", {"journal_mode": "delete", "synchronous": "2"})[0].level is Level.PROBLEM


class WrongClock(Host):
    """A machine whose clock is an hour behind."""

    def now(self) -> int:
        return super().now() - 3_600_000_000


@pytest.mark.parametrize("kind", ["postgres", "mysql"])
def test_a_clock_that_differs_from_the_servers_is_reported(
    perdure: Perdure, kind: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(kind)
    perdure("migrate", url)

    async def main() -> list[CheckResult]:
        return [one async for many in Examination(url, WrongClock(), timeout=60.0).database() for one in many]

    [finding] = [one for one in asyncio.run(main()) if one.check == "clock"]
    assert finding.level is Level.WARNING
    assert "ahead of the clock of this machine" in finding.text
    assert "NTP" in finding.remedy


def test_the_time_that_the_question_takes_is_no_skew() -> None:
    assert judge_clock(5_000_000, (0, 9_000_000), 0)[0].level is Level.OK
    assert "behind" in judge_clock(5_000_000, (8_000_000, 9_000_000), 0)[0].text


def test_workers_that_are_late_or_cannot_claim_are_reported() -> None:
    fresh = WorkerInfo(id="w", host="h", pid=1, queues=("q",), types=("t",), slots=5, lease=15_000_000)
    [late] = judge_workers([replace(fresh, read_at=9_000_000)], [], URL)
    assert "others take over in 6" in late.text
    [draining] = judge_workers([replace(fresh, drain=DrainOrder(key="k"))], [], URL)
    assert "ordered to drain" in draining.text
    [idle] = judge_workers([replace(fresh, types=())], [], URL)
    assert "serves no type" in idle.text


def test_usual_checks_leave_out_rules_that_read_finished_runs() -> None:
    assert {rule.promise for rule in BOUNDED_INVARIANTS} < {rule.promise for rule in LIVE_INVARIANTS}
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(migration_script("sqlite://"))
        for statement in [work_counts_statement(5), *(rule.broken_by for rule in BOUNDED_INVARIANTS)]:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert not {"SCAN perdure_runs", "SCAN r", "SCAN perdure_history"} & set(plan), plan
        for statement in UNREAD_STATEMENTS:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", (5,))]
            assert not {"SCAN perdure_runs", "SCAN m"} & set(plan), plan
    assert not any(
        "perdure_history" in rule.broken_by or "perdure_events" in rule.broken_by for rule in BOUNDED_INVARIANTS
    )
