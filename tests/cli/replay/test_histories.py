"""`perdure export`, `replay` and `debug`."""

from __future__ import annotations

import hashlib
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import pytest

from tests.cli.conftest import SHOP, URL, Perdure, work

PAIR = '[{"id": "o", "cents": 700}]'


@pytest.fixture
def worked(perdure: Perdure) -> Perdure:
    """A shop in which one order was paid, and a file of it."""
    assert perdure("start", "shop:engine", "checkout", "--input", PAIR, "--id", "o-1").code == 0
    work("o-1")
    assert perdure("export", URL, "-o", "h.jsonl").out == "1 run, 1 records in h.jsonl.\n"
    return perdure


def change_code() -> None:
    Path("shop.py").write_text(SHOP.replace("def charge(", "def pay(").replace("step(charge", "step(pay"))


def test_a_file_is_replayed_with_an_exit_code_and_a_document(worked: Perdure) -> None:
    answer = worked("replay", "shop:engine", "h.jsonl")
    assert (answer.code, answer.out) == (0, "1 history replayed, all follow this code.\n")
    change_code()
    answer = worked("replay", "shop:engine", "h.jsonl")
    assert (answer.code, answer.out.splitlines()[:3]) == (
        1,
        ["o-1 (checkout): diverged", "  - record 0: step 'charge'", "  + the code waits for step 'pay'"],
    )
    assert 'ctx.removed("charge", "step")' in answer.out
    document = worked("replay", "shop:engine", "h.jsonl", "--json")
    assert document.code == 1
    assert document.json["ok"] is False
    assert [one["problem"] for one in document.json["findings"]] == ["diverged"]


def test_the_replay_needs_no_database_and_reports_damaged_lines(worked: Perdure) -> None:
    Path("shop.db").unlink()
    with Path("h.jsonl").open("a") as file:
        file.write('{"sum": "0", "history": {}}\n')
    answer = worked("replay", "shop:engine", "h.jsonl", "--json")
    assert answer.code == 1
    assert answer.json["damaged"] == [{"line": 3, "error": "its checksum does not fit; the line was changed"}]
    assert worked("replay", "shop:engine", "h.jsonl").out.endswith(
        "1 history replayed, all follow this code; 1 damaged.\n"
    )
    assert not Path("shop.db").exists()


def test_mistakes_are_named(worked: Perdure) -> None:
    for words, text in (
        (("replay", URL, "h.jsonl"), "a replay needs code"),
        (("replay", "shop:engine", "missing.jsonl"), "cannot be read"),
        (("replay", "shop:engine", "shop.py"), "is no file of histories"),
        (("debug", "o-1", URL), "a replay needs code"),
        (("debug", "unknown", "shop:engine"), "there is no run 'unknown'"),
        (("debug", "unknown", "shop:engine", "--from-file", "h.jsonl"), "has no run 'unknown'"),
        (("debug", "o-1", "shop:engine", "--at", "chrage"), "is not in the history; it has charge"),
        (("debug", "o-1", "shop:engine", "--at", "7"), "is not in the history"),
        (("export", URL, "--redact-text", "("), "not a regular expression"),
    ):
        answer = worked(*words)
        assert answer.code in (1, 2), words
        assert text in answer.err, words


def test_an_export_goes_to_standard_output_with_filters_and_without_secrets(worked: Perdure) -> None:
    words = [sys.executable, "-m", "perdure.cli", "export", URL, "--type", "checkout", "--redact-key", "id"]
    lines = subprocess.run(words, capture_output=True, check=True, text=True).stdout.splitlines()
    assert len(lines) == 2
    assert r"\"id\":\"[redacted]\"" in lines[1]
    answer = worked("export", URL, "-o", "none.jsonl", "--type", "approval", "--json")
    assert answer.json == {"file": "none.jsonl", "runs": 0, "records": 0, "more": False, "unreadable": []}


class Terminal:
    """`perdure ...` on a terminal, as a person uses it."""

    def __init__(self, *arguments: str) -> None:
        # The follower stays open here: when its last holder closes it, Linux may
        # answer EIO before the last output.
        self._leader, self._follower = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", *arguments],
            stdin=self._follower, stdout=self._follower, stderr=self._follower,
            env={**os.environ, "TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"},
        )  # fmt: skip
        self.said = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)
        os.close(self._follower)

    def expect(self, text: str) -> str:
        """Read until a text has come; what came before it since the last one."""
        limit = time.monotonic() + 90
        while text not in self.said:
            ended = self._process.poll() is not None
            if select.select([self._leader], [], [], 0.1)[0]:
                self.said = (self.said + os.read(self._leader, 65536).decode()).replace("\r\n", "\n")
            else:
                assert not ended, (text, self.said)
                assert time.monotonic() < limit, (text, self.said)
        before, _, self.said = self.said.partition(text)
        return before

    def type(self, text: str) -> str:
        """Type a line, and return the answer up to the next prompt."""
        os.write(self._leader, text.encode() + b"\n")
        self.expect(text + "\n")
        return self.expect("(perdure) ").strip()

    def end(self, text: str, last: str) -> int:
        """Type a line after which the command ends, with the exit code."""
        os.write(self._leader, text.encode() + b"\n")
        self.expect(last)
        return self._process.wait(timeout=90)


LONG = """
from __future__ import annotations

import asyncio
from dataclasses import dataclass

from perdure import Context, Engine, workflow


@dataclass
class Order:
    items: list[str]


async def price(item: str) -> int:
    open("executed", "a").write(item)
    return len(item)


async def ship(total: int) -> str:
    return f"shipped for {total}"


@workflow("order")
async def order(ctx: Context, order: Order) -> str:
    total = 0
    for item in order.items:
        cents = await ctx.step(price, item)
        total += cents
    try:
        label = await ctx.step(ship, total)
    except Exception:
        label = "nothing"
    answer = await ctx.receive("go", str)
    return label + answer


engine = Engine("sqlite:///shop.db", [order])
"""


def digest(*names: str) -> dict[str, str]:
    return {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in names if Path(name).exists()}


@pytest.fixture
def parked(perdure: Perdure) -> Perdure:
    """A run that has three records and waits for a message."""
    Path("shop.py").write_text(LONG)
    assert (
        perdure("start", "shop:engine", "order", "--input", '[{"items": ["tea", "coffee"]}]', "--id", "o-1").code == 0
    )
    script = (
        "import asyncio, shop\n"
        "async def main():\n"
        "    async with shop.engine, shop.engine.worker():\n"
        "        run = await shop.engine.get('o-1')\n"
        "        while (await run.info()).status != 'waiting':\n"
        "            await asyncio.sleep(0.02)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=90)
    return perdure


FILES = ("shop.db", "shop.db-wal", "shop.db-journal", "executed")


def test_a_person_steps_through_a_history_and_nothing_is_written_or_executed(parked: Perdure) -> None:
    before = digest(*FILES)
    assert before.keys() == {"shop.db", "executed"}
    with Terminal("debug", "o-1", "shop:engine", "--at", "price#2") as terminal:
        assert "-> total += cents" in terminal.expect("(perdure) ")
        assert terminal.type("p item, cents, total") == "('coffee', 6, 3)"
        assert terminal.type("p order") == "Order(items=['tea', 'coffee'])"
        assert ">     1 step price#2  6" in terminal.type("records")
        assert "-> for item in order.items:" in terminal.type("n")
        assert terminal.type("p total") == "9"
        assert "Breakpoint 1" in terminal.type("b 34")
        assert "-> answer = await" in terminal.type("c")
        assert terminal.type("p label") == "'shipped for 9'"
        assert "order()" in terminal.type("w")
        assert terminal.end("c", "The history ends here; the code waits for message 'go'.") == 0
    assert digest(*FILES) == before


def test_the_debugger_begins_at_the_first_line_and_quits_without_an_error_in_the_code(parked: Perdure) -> None:
    before = digest(*FILES)
    with Terminal("debug", "shop:engine", "o-1") as terminal:
        assert "-> total = 0" in terminal.expect("(perdure) ")
        assert terminal.type("p order.items[0]") == "'tea'"
        assert "-> for item in order.items:" in terminal.type("n")
        assert "-> cents = await" in terminal.type("n")
        # A wait is one line, although the history goes on meanwhile.
        assert "-> total += cents" in terminal.type("n")
        assert terminal.type("p cents") == "3"
        assert terminal.end("q", "The history ends here") == 0
    with Terminal("debug", "shop:engine", "o-1", "--at", "ship") as terminal:
        terminal.expect("(perdure) ")
        # In the block that catches every Exception: Ctrl-D is no error either.
        assert terminal.end("\x04", "The history ends here") == 0
    assert digest(*FILES) == before


def test_an_exported_history_is_debugged_without_its_database(parked: Perdure) -> None:
    assert parked("export", URL, "-o", "h.jsonl", "--run", "o-1").code == 0
    Path("shop.db").unlink()
    with Terminal("debug", "o-1", "shop:engine", "--from-file", "h.jsonl", "--at", "2") as terminal:
        assert "-> answer = await" in terminal.expect("(perdure) ")
        assert terminal.type("p label") == "'shipped for 9'"
        assert terminal.end("c", "The history ends here") == 0
    assert not Path("shop.db").exists()


def test_the_debugger_steps_through_a_def_workflow(parked: Perdure) -> None:
    code = LONG.replace("async def order", "def order").replace("await ctx", "ctx")
    imports = "import Engine, workflow\nfrom perdure.blocking import Context"
    Path("shop.py").write_text(code.replace("import Context, Engine, workflow", imports))
    with Terminal("debug", "o-1", "shop:engine") as terminal:
        assert "-> total = 0" in terminal.expect("(perdure) ")
        assert "-> for item in order.items:" in terminal.type("n")
        assert "-> cents = ctx" in terminal.type("n")
        assert "-> total += cents" in terminal.type("n")
        assert terminal.type("p cents") == "3"
        assert terminal.end("q", "The history ends here") == 0
    with Terminal("debug", "o-1", "shop:engine", "--at", "price#2") as terminal:
        assert "-> total += cents" in terminal.expect("(perdure) ")
        assert terminal.type("p item, cents, total") == "('coffee', 6, 3)"
        assert "Breakpoint 1" in terminal.type("b 35")
        assert "-> answer = ctx" in terminal.type("c")
        assert terminal.type("p label") == "'shipped for 9'"
        assert terminal.end("c", "The history ends here; the code waits for message 'go'.") == 0


def test_a_history_that_the_code_does_not_follow_is_shown_up_to_the_difference(parked: Perdure) -> None:
    Path("shop.py").write_text(LONG.replace("async def ship(", "async def send(").replace("step(ship", "step(send"))
    with Terminal("debug", "o-1", "shop:engine", "--at", "price#2") as terminal:
        terminal.expect("(perdure) ")
        assert "-> for item" in terminal.type("n")
        assert terminal.end("c", "+ the code waits for step 'send'") == 1


def test_builds_are_listed_and_a_run_is_unpinned(perdure: Perdure) -> None:
    Path("shop.py").write_text(SHOP.replace("[checkout,", "build='1.4.2', pinned=True, workflows=[checkout,"))
    assert perdure("start", "shop:engine", "approval", "--id", "a").code == 0
    script = (
        "import asyncio, shop\n"
        "async def main():\n"
        "    async with shop.engine, shop.engine.worker():\n"
        "        run = await shop.engine.get('a')\n"
        "        while (await run.info()).status != 'waiting':\n"
        "            await asyncio.sleep(0.02)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=90)
    [build] = perdure("workers", "builds", URL, "--json").json
    assert {name: build[name] for name in ("build", "workers", "runs", "pinned", "exact")} == {
        "build": "1.4.2", "workers": 0, "runs": 1, "pinned": 1, "exact": True,
    }  # fmt: skip
    assert "start a worker of this build, or unpin its runs" in perdure("workers", "builds", URL).out
    assert "Builds" in perdure("workers", "list", URL).out
    assert perdure("show", URL, "a", "--json").json["run"]["pinned_to"] == "1.4.2"
    words = ("runs", "unpin", URL, "a", "--reason", "gone", "--json")
    assert [perdure(*words).json["unpinned"] for _ in range(2)] == [True, False]
    assert perdure("check", "shop:engine", "--pinned").code == 0
