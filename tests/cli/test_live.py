"""Views that refresh themselves: `perdure runs --watch` and `perdure top`, on a terminal and anywhere else."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import IO

import pytest
from msgspec.structs import replace

from perdure import Call, Context, Engine, step, workflow
from perdure.cli.live.top import StoreReader, sections
from perdure.cli.runs.watch import Changes
from perdure.core.model.run import Run, Status
from perdure.host import Host
from perdure.store import open_store
from perdure.store.sql.diagnosis import read_work_counts
from tests.cli.conftest import URL, Perdure, work
from tests.helpers import eventually
from tests.stage import Stage

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LEAVES_THE_SCREEN = "\x1b[?1049l"


class Screen:
    """A command whose output is a terminal."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self._leader = leader
        self.process = process
        self.text = ""
        # A read may end in the middle of a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def read_until(self, holds: Callable[[str], bool]) -> None:
        """Read what is drawn from now on, until the condition holds for it without its colours."""
        seen = ""
        while not holds(COLOURS.sub("", seen)):
            part = self._decoder.decode(os.read(self._leader, 65536))
            self.text += part
            seen += part

    def rest(self) -> str:
        """Read to the end."""
        text = ""
        try:
            while part := os.read(self._leader, 65536):
                text += self._decoder.decode(part)
        except OSError:
            # Linux reports the closed other end as an error.
            pass
        return text


@contextmanager
def on_a_terminal(*arguments: str) -> Iterator[Screen]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "perdure.cli", *arguments], stdout=follower, env={**environment, "TERM": "xterm"}
    )
    os.close(follower)
    try:
        yield Screen(leader, process)
    finally:
        process.kill()
        process.wait()
        os.close(leader)


@contextmanager
def into_a_pipe(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    process = subprocess.Popen([sys.executable, "-m", "perdure.cli", *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def start(perdure: Perdure, run_id: str) -> None:
    given = json.dumps({"order": {"id": "o", "cents": 5}})
    assert perdure("start", "shop:engine", "checkout", "--id", run_id, "--input", given).code == 0


def test_a_watched_list_marks_new_and_changed_rows_until_it_is_interrupted(perdure: Perdure) -> None:
    start(perdure, "first")
    with on_a_terminal("runs", URL, "--watch") as screen:
        screen.read_until(lambda text: "first" in text and "pending" in text)
        assert "* first" not in screen.text
        start(perdure, "second")
        screen.read_until(lambda text: "*  second" in text)
        work("first")
        screen.read_until(lambda text: "completed" in text)
        screen.process.send_signal(signal.SIGINT)
        assert LEAVES_THE_SCREEN in screen.rest()
        assert screen.process.wait(timeout=60) == 0


def test_a_view_that_is_terminated_leaves_the_screen(perdure: Perdure) -> None:
    start(perdure, "first")
    with on_a_terminal("runs", URL, "--watch") as screen:
        screen.read_until(lambda text: "first" in text)
        screen.process.terminate()
        assert LEAVES_THE_SCREEN in screen.rest()
        assert screen.process.wait(timeout=60) == 128 + signal.SIGTERM


def test_a_watched_list_prints_each_change_as_a_line_into_a_pipe(perdure: Perdure) -> None:
    start(perdure, "first")
    with into_a_pipe("runs", URL, "--watch") as (process, out):
        assert out.readline().split()[2:] == ["listed", "first", "checkout", "pending"]
        start(perdure, "second")
        assert out.readline().split()[2:] == ["new", "second", "checkout", "pending"]
        work("second")
        words: list[str] = []
        while "completed" not in words:
            words = out.readline().split()
            assert words[2] == "changed"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_changes_are_documents_with_json(perdure: Perdure) -> None:
    start(perdure, "first")
    with into_a_pipe("runs", "list", URL, "--watch", "--json", "--status", "pending") as (process, out):
        listed = json.loads(out.readline())
        assert [listed["change"], listed["id"], listed["status"]] == ["listed", "first", "pending"]
        perdure("cancel", URL, "first")
        left = json.loads(out.readline())
        assert [left["change"], left["id"], left["before"]] == ["left", "first", "pending"]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0


def test_a_watched_list_has_no_cursor(perdure: Perdure) -> None:
    assert perdure("runs", URL, "--watch", "--cursor", "x").code == 2


async def listed(*run_ids: str) -> list[Run]:
    """Rows of runs that were created in this order."""
    async with Engine("sqlite://") as engine:
        for run_id in run_ids:
            await engine.start(Call.named("t"), id=run_id)
        return [await (await engine.get(run_id)).info() for run_id in run_ids]


async def test_a_run_that_newer_ones_push_off_the_page_has_not_left() -> None:
    a, b, c = await listed("a", "b", "c")
    changes = Changes(2, newest_first=True)
    changes.update([b, a])
    assert [(one.kind, one.run.id) for one in changes.update([c, b])] == [("new", "c")]
    assert [(one.kind, one.run.id) for one in changes.update([b, a])] == [("left", "c"), ("listed", "a")]
    [change] = changes.update([replace(b, status=Status.RUNNING), a])
    assert (change.kind, change.before, change.run.status) == ("changed", "pending", "running")


@pytest.mark.parametrize("arguments", [("runs", URL, "--watch"), ("top", URL)])
def test_control_characters_in_stored_text_do_not_reach_the_terminal(
    perdure: Perdure, arguments: tuple[str, ...]
) -> None:
    perdure("migrate", URL)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("INSERT INTO perdure_runs (id, type) VALUES ('evil', '\x1b[2Jgone')")
        connection.commit()
    with on_a_terminal(*arguments) as screen:
        screen.read_until(lambda text: "gone" in text)
        assert "\\x1b[2Jgone" in screen.text
        assert "\x1b[2Jgone" not in screen.text


def test_the_top_of_a_database_is_refreshed_until_it_is_interrupted(perdure: Perdure) -> None:
    start(perdure, "first")
    with on_a_terminal("top", URL) as screen:
        screen.read_until(lambda text: "pending 1" in text and "no worker is alive" in text)
        work("first")
        screen.read_until(lambda text: "completed 1" in text and "1 completed" in text)
        screen.process.send_signal(signal.SIGINT)
        assert LEAVES_THE_SCREEN in screen.rest()
        assert screen.process.wait(timeout=60) == 0


RELEASED = threading.Event()


@step
def dwell() -> None:
    RELEASED.wait()


@workflow("long")
async def long(ctx: Context) -> None:
    await ctx.step(dwell)


@workflow("buggy")
async def buggy(ctx: Context) -> None:
    raise NameError("no such name")


async def test_the_top_shows_workers_steps_queues_counts_and_what_needs_a_person(stage: Stage) -> None:
    """On every database."""
    RELEASED.clear()
    async with stage.engine(long, buggy) as engine, engine.worker(slots=7, lease="9s") as worker:
        try:
            running = await engine.start(long(), id="r-long")
            await engine.start(buggy(), id="r-buggy")
            await engine.start(Call.named("lonely"), id="r-lonely", queue="far")
            await engine.queues.pause(queue="reports", reason="stocktaking")

            async def seen() -> bool:
                named = [step.location for one in await engine.workers.list() for step in one.running.steps]
                return named == ["dwell"] and (await (await engine.get("r-buggy")).status()) is Status.BLOCKED

            await eventually(seen)
            assert stage.store is not None
            snapshot = await StoreReader(stage.store).read()
            activity = await read_work_counts(stage.store, 0)
        finally:
            RELEASED.set()
        await running.result(timeout=120)
    text = "\n".join("  ".join(row) for one in sections(snapshot, "here") for row in one.rows)
    assert "pending 1  ◐ running 1  ◔ waiting 0" in text
    assert "◆ blocked 1" in text
    assert "last minute: " in text
    assert (activity.started, activity.finished) == (3, {})
    assert "1 run of type buggy blocked: broken" in text
    assert "no live worker serves 1 ready run of type lonely in queue far" in text
    assert "the queue reports is paused" in text
    assert "far  lonely  1  " in text
    assert f"{worker.id}  " in text
    assert "1 of 7" in text
    assert "r-long  long  dwell  1" in text


async def test_a_refresh_costs_three_statements() -> None:
    store = open_store("sqlite://", Host())
    await store.open()
    reader = StoreReader(store)
    await reader.read()
    statements: list[str] = []
    # A database in memory has one connection, whose statements are all traced.
    await store.trace(statements.append)
    await reader.read()
    selects = [one for one in statements if one.lstrip().upper().startswith("SELECT")]
    await store.close()
    assert len(selects) == 3, selects


def test_the_top_is_printed_once_where_no_terminal_listens(perdure: Perdure) -> None:
    start(perdure, "first")
    assert "pending 1" in perdure("top", URL).out
    assert "pending 1" in perdure("top", "shop:engine", "--once").out
    document = perdure("top", URL, "--json").json
    assert document["counts"]["pending"] == 1
    assert document["last_minute"]["started"] == 1
    assert [(one["queue"], one["type"], one["ready"]) for one in document["queues"]] == [("default", "checkout", 1)]
    assert perdure("top", "sqlite:///absent.db").code == 1
