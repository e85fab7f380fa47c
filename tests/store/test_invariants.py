"""The scanner itself: a sound database has nothing to report, and every kind of damage is found."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest

from perdure.core.time.duration import NEVER
from perdure.host import Host
from perdure.store import migration_script, open_store
from perdure.store.sql.invariants import INVARIANTS
from perdure.store.url import MysqlUrl, PostgresUrl, parse
from tests.invariants import Known, scan
from tests.servers.databases import Databases
from tests.servers.schemas import POSTGRES, Schemas

ERROR = '{"type": "x"}'
SOUND = f"""
INSERT INTO perdure_workers (id) VALUES ('w1');
INSERT INTO perdure_runs (id, type, status, output, finished_at, inbox_seq, inbox_read, token, nonce, started_at, seed)
VALUES ('done', 't', 'completed', '1', 5, 1, 1, 2, 'n', 1, 's');
INSERT INTO perdure_runs (id, type, status, error, finished_at) VALUES ('failed', 't', 'failed', '{ERROR}', 5);
INSERT INTO perdure_runs (id, type, status, worker, nonce, token, started_at, seed, idempotency_key)
VALUES ('live', 't', 'running', 'w1', 'n', 1, 1, 's', 'k');
INSERT INTO perdure_runs (id, type, status, reason, wake_at, started_at)
  VALUES ('asleep', 't', 'waiting', 'message', {NEVER}, 1);
INSERT INTO perdure_runs (id, type, parent_id, parent_location) VALUES ('child', 't', 'live', 'call');
INSERT INTO perdure_runs (id, type, status, reason, error) VALUES ('aside', 't', 'blocked', 'poison', '{ERROR}');
INSERT INTO perdure_runs (id, type, status, reason, error) VALUES ('buggy', 't', 'blocked', 'broken', '{ERROR}');
INSERT INTO perdure_history (run_id, seq, token, kind, location, at) VALUES ('done', 0, 1, 'step', 'a', 1);
INSERT INTO perdure_history (run_id, seq, token, kind, location, at, inbox_seq)
  VALUES ('done', 1, 2, 'message', 'm', 2, 1);
INSERT INTO perdure_history (run_id, seq, token, kind, location, at) VALUES ('done', 2, 2, 'step', 'b', 2);
INSERT INTO perdure_history (run_id, seq, token, kind, location, payload, at, attempts) VALUES
  ('live', 3, 1, 'packed', '', '[["step","a","1",1,1,"",1],["step","b","1",1,1,"",1],["step","c","1",1,1,"",1],
    ["timer","d",null,2,1,"",0]]', 2, 4), ('live', 4, 1, 'step', 'e', '1', 2, 1);
INSERT INTO perdure_messages (run_id, seq, kind, message_key, sent_at, consumed)
  VALUES ('done', 1, 'message', 'k1', 1, 1);
INSERT INTO perdure_runs (id, type, status, reason, wake_at, started_at, inbox_seq, inbox_read, token)
VALUES ('loop', 't', 'waiting', 'message', {NEVER}, 1, 9, 9, 4);
INSERT INTO perdure_history (run_id, seq, token, kind, location, at) VALUES ('loop', 3, 3, 'step', 'beside', 2),
  ('loop', 8, 4, 'scope', 'loop', 3), ('loop', 9, 4, 'step', 'loop/~5/x', 3);
INSERT INTO perdure_messages (run_id, seq, kind, message_key, sent_at, consumed)
  VALUES ('loop', 9, 'message', 'k9', 1, 1);
INSERT INTO perdure_runs (id, type, generation, inbox_seq, inbox_read) VALUES ('anew', 't', 2, 2, 1);
INSERT INTO perdure_messages (run_id, seq, kind, message_key, sent_at) VALUES ('anew', 2, 'message', 'k2', 1);
INSERT INTO perdure_events (run_id, at, kind) VALUES ('anew', 1, 'created'), ('anew', 2, 'continued');
INSERT INTO perdure_outputs (run_id, kind, name, position, payload, at, output_key) VALUES
  ('anew', 'state', 'phase', 0, '1', 1, NULL), ('anew', 'stream', 'tokens', 0, '1', 1, 'a'),
  ('anew', 'stream', 'tokens', 1, '1', 1, 'b'), ('anew', 'reply', 'k2', 0, '1', 1, 'c');
INSERT INTO perdure_topics (topic, run_id) VALUES ('news@1', 'loop'), ('news@1', 'done');
INSERT INTO perdure_events (run_id, at, kind) VALUES ('gate:g', 4, 'limit_set');
INSERT INTO perdure_runs (id, type, status, reason, wake_at) VALUES ('lined', 't', 'waiting', 'limit', {NEVER});
INSERT INTO perdure_gates (name, concurrency, due_at, waits_for) VALUES ('g', 1, 9, 'room');
INSERT INTO perdure_lines (run_id, gate, queue, type, priority, turn, gating, since)
  VALUES ('lined', 'g', 'q', 't', 0, 1, '{{}}', 1);
INSERT INTO perdure_permits (gate, run_id, token, granted_at) VALUES ('g', 'live', 1, 1);
INSERT INTO perdure_events (run_id, at, kind)
  VALUES ('done', 4, 'started'), ('done', 5, 'completed'), ('failed', 5, 'expired'), ('live', 1, 'created');
"""

#: What is done to the sound database, and a word of the complaint.
DAMAGE = {
    "DELETE FROM perdure_history WHERE seq = 0 AND run_id = 'done'": "no holes but below",
    "UPDATE perdure_history SET attempts = 3 WHERE kind = 'packed'": "no holes but below",
    "UPDATE perdure_history SET attempts = 5 WHERE kind = 'packed'": "no holes but below",
    "DELETE FROM perdure_history WHERE seq = 4 AND run_id = 'live'": "newest record is never packed",
    """INSERT INTO perdure_history (run_id, seq, token, kind, location, at)
       VALUES ('live', 2, 1, 'step', 'c', 2)""": "holds consecutive records",
    "UPDATE perdure_history SET location = 'a' WHERE seq = 2": "one result",
    "UPDATE perdure_history SET token = 1 WHERE seq = 2": "former owner",
    "UPDATE perdure_history SET token = 3 WHERE seq = 2": "never had",
    "UPDATE perdure_history SET at = 1 WHERE seq = 2": "never go back",
    "UPDATE perdure_history SET run_attempt = 2 WHERE seq = 1": "never go back",
    "INSERT INTO perdure_events (run_id, at, kind) VALUES ('ghost', 1, 'created')": "belong to a run",
    "INSERT INTO perdure_events (run_id, at, kind) "
    "VALUES ('schedule:s', 1, 'schedule_fired'), ('schedule:s', 2, 'schedule_fired')": ("becomes a run once"),
    "UPDATE perdure_runs SET finished_at = 0 WHERE id = 'done'": "exactly one outcome",
    "UPDATE perdure_runs SET error = '{}' WHERE id = 'done'": "exactly one outcome",
    "UPDATE perdure_runs SET output = NULL WHERE id = 'done'": "exactly one outcome",
    "UPDATE perdure_runs SET output = '1' WHERE id = 'failed'": "exactly one outcome",
    "UPDATE perdure_runs SET output = '1' WHERE id = 'live'": "has no outcome",
    "UPDATE perdure_runs SET deleted_at = 1 WHERE id = 'live'": "a deleted run is finished, paused or cancelled",
    "INSERT INTO perdure_events (run_id, at, kind) VALUES ('done', 6, 'failed')": "one final event",
    "DELETE FROM perdure_events WHERE kind = 'completed'": "its final event",
    "UPDATE perdure_runs SET worker = NULL WHERE id = 'live'": "has a known worker",
    "UPDATE perdure_runs SET worker = 'unknown' WHERE id = 'live'": "has a known worker",
    "UPDATE perdure_runs SET nonce = '' WHERE id = 'live'": "has a known worker",
    "UPDATE perdure_runs SET worker = 'w1' WHERE id = 'asleep'": "only a running run",
    "UPDATE perdure_runs SET marked = 1 WHERE id = 'live'": "is marked",
    "UPDATE perdure_runs SET reason = NULL WHERE id = 'asleep'": "says what for",
    "UPDATE perdure_runs SET reason = 'timer' WHERE id = 'asleep'": "says what for",
    """INSERT INTO perdure_messages (run_id, seq, kind, message_key, sent_at) VALUES ('asleep', 1, 'message', 'k', 1);
       UPDATE perdure_runs SET inbox_seq = 1 WHERE id = 'asleep'""": "waits with something unread",
    "UPDATE perdure_runs SET reason = 'timer' WHERE id = 'child'": "waits for nothing",
    "UPDATE perdure_runs SET error = NULL WHERE id = 'aside'": "says why",
    """DROP INDEX perdure_runs_by_key;
       UPDATE perdure_runs SET idempotency_key = 'k' WHERE id = 'asleep'""": "one run",
    "INSERT INTO perdure_events (run_id, at, kind) VALUES ('live', 1, 'created')": "created once",
    "UPDATE perdure_runs SET inbox_seq = 2 WHERE id = 'done'": "its counter",
    "UPDATE perdure_messages SET consumed = 0": "is consumed",
    "UPDATE perdure_history SET inbox_seq = 0, kind = 'step' WHERE seq = 1": "in the history once",
    "UPDATE perdure_history SET kind = 'cancel' WHERE seq = 1": "as what it was",
    "UPDATE perdure_history SET inbox_seq = 7 WHERE seq = 2": "had been sent",
    """INSERT INTO perdure_history (run_id, seq, token, kind, location, at) VALUES ('done', 5, 2, 'scope', 'loop', 3),
       ('done', 7, 2, 'step', 'c', 3)""": "no holes but below",
    "INSERT INTO perdure_topics (topic, run_id) VALUES ('news@1', 'ghost')": "belong to a run",
    "INSERT INTO perdure_waiters (target, run_id, message_key, location) VALUES ('done', 'loop', 'k', 'l')": (
        "no run waits for the end of a run that is finished"
    ),
    "DELETE FROM perdure_messages": "all that its counter says",
    "DELETE FROM perdure_outputs WHERE position = 0 AND kind = 'stream'": "positions of a stream",
    "UPDATE perdure_outputs SET position = 1 WHERE kind = 'state'": "is there once",
    "UPDATE perdure_outputs SET output_key = NULL WHERE kind = 'reply'": "key of its own",
    """INSERT INTO perdure_messages (run_id, seq, kind, message_key, sent_at, consumed) VALUES ('done', 2, 'step', 'k2',
    1, 1);
       UPDATE perdure_runs SET inbox_seq = 2, inbox_read = 2 WHERE id = 'done';
       UPDATE perdure_history SET inbox_seq = 2 WHERE seq = 0""": "in the order",
    "UPDATE perdure_runs SET parent_id = 'unknown' WHERE id = 'child'": "has a parent",
    """UPDATE perdure_runs SET status = 'completed', output = '1', finished_at = 1 WHERE id = 'child'""": "been told",
    "UPDATE perdure_lines SET location = 'x', run_id = 'asleep'": "stands in a line",
    "UPDATE perdure_lines SET run_id = 'live'": "being worked on",
    f"UPDATE perdure_gates SET due_at = {NEVER}": "looked at some day",
    "DELETE FROM perdure_gates": "looked at some day",
    "UPDATE perdure_permits SET token = 2": "a token that its run never had",
    "UPDATE perdure_permits SET run_id = 'ghost'": "belong to a run",
}


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(migration_script("sqlite://"))
    connection.executescript(SOUND)
    yield connection
    connection.close()


def test_a_sound_database_breaks_no_promise(database: sqlite3.Connection) -> None:
    known = Known(
        starts=frozenset({"done", "live"}),
        sends=frozenset({("done", "k1"), ("loop", "k1")}),
        effects=(
            *(("done", location) for location in "abb"),
            *(("live", location) for location in "abce"),
            *(("loop", location) for location in ("beside", "loop/~5/x")),
        ),
        repeats=1,
        results={("done", "a"): None, ("live", "b"): "1", ("loop", "loop/~1/x"): "1"},
        planned={"done": 1, "asleep": 1, "child": 9},
        settled=frozenset({"live", "asleep", "child", "aside", "buggy", "loop", "anew", "lined"}),
        counted={"completed": 1, "failed": 1, "running": 1, "waiting": 3, "pending": 2, "blocked": 2, "cancelled": 0},
    )
    assert scan(database.execute, known) == []


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(database: sqlite3.Connection, damage: str) -> None:
    database.executescript(damage)
    assert any(DAMAGE[damage] in complaint for complaint in scan(database.execute))


def test_what_is_mended_between_two_looks_is_reported_all_the_same(database: sqlite3.Connection) -> None:
    def query(sql: str) -> list[tuple[Any, ...]]:
        rows = database.execute(sql).fetchall()
        database.execute("UPDATE perdure_runs SET error = '{}' WHERE id = 'aside'")
        return rows

    database.execute("UPDATE perdure_runs SET error = NULL WHERE id = 'aside'")
    [complaint] = scan(query)
    assert "For a moment" in complaint
    assert "says why" in complaint


@contextmanager
def on_a_server(url: str) -> Iterator[Callable[[str], list[tuple[Any, ...]]]]:
    """Executes statements in a transaction that is never committed."""
    where = parse(url)
    connection: Any
    if isinstance(where, PostgresUrl):
        connection = psycopg.connect(os.environ[POSTGRES])
        connection.execute(f"SET search_path = {where.schema}")
    else:
        assert isinstance(where, MysqlUrl)
        connection = pymysql.connect(
            host=where.host,
            port=where.port,
            user=where.user,
            password=where.password,
            database=where.database,
            ssl_disabled=True,
        )

    def execute(sql: str) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    yield execute
    connection.rollback()
    connection.close()


@pytest.mark.parametrize("server", ["postgres", "mysql"])
async def test_damage_is_found_on_servers(server: str, schemas: Schemas, databases: Databases) -> None:
    places = schemas if server == "postgres" else databases
    async with places.one() as url:
        store = open_store(url, Host())
        await store.open()
        await store.close()
        with on_a_server(url) as execute:
            for statement in SOUND.split(";\n"):
                if statement.strip():
                    execute(statement)
            assert scan(execute) == []
            for damage, word in DAMAGE.items():
                if "DROP INDEX" in damage:
                    continue  # which would end the transaction on MySQL
                execute("SAVEPOINT sound")
                for statement in damage.split(";\n"):
                    execute(statement)
                assert any(word in complaint for complaint in scan(execute)), damage
                execute("ROLLBACK TO SAVEPOINT sound")


def test_every_rule_is_broken_by_some_damage() -> None:
    assert [rule.promise for rule in INVARIANTS if not any(word in rule.promise for word in DAMAGE.values())] == []


@pytest.mark.parametrize(
    ("known", "word"),
    [
        (Known(starts=frozenset({"lost"})), "start was acknowledged"),
        (Known(sends=frozenset({("done", "lost")})), "'lost' was acknowledged"),
        (Known(results={("done", "a"): "7"}), "was '7' and is None"),
        (Known(results={("live", "b"): "7"}), "was '7' and is '1'"),
        (Known(planned={"done": 2}), "begun at 1, although not before 2"),
        (Known(planned={"lost": 2}), "start was acknowledged"),
        (
            Known(settled=frozenset({"live", "asleep", "aside", "loop", "anew", "lined"})),
            "'child': nothing holds it up, and it is pending",
        ),
        (Known(counted={"completed": 2, "failed": 1}), "2 completed runs were counted, and there are 1"),
        (Known(counted={"completed": 1, "failed": 1}), "0 pending runs were counted, and there are 2"),
        (Known(counted={"lost": 1}), "1 lost runs were counted, and there are 0"),
        (Known(effects=(("done", "a"),)), "never executed"),
        (Known(effects=(("done", "a"), ("done", "b"), ("done", "b"))), "too many"),
    ],
)
def test_what_the_test_knows_is_compared(database: sqlite3.Connection, known: Known, word: str) -> None:
    assert any(word in complaint for complaint in scan(database.execute, known))
