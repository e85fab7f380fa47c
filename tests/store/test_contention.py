"""Several processes write to one file while another sits on the lock: no process is turned away and nothing is lost."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.invariants import Known, scan

PROCESSES = 6
#: Seconds of writing at least, and of sitting on the lock.
LENGTH, HOLD = (60.0, 3.0) if os.environ.get("PERDURE_PROVE") else (2.0, 1.0)

WRITER = """
import asyncio, json, sys, time
from perdure.core.model.run import Status
from perdure.core.model.turn import Finish, Turn
from perdure.host import Host
from perdure.store import open_store
from perdure.testing.conformance.harness import ACTOR, a_message, a_record, a_run, a_worker, claim

async def write(store, name, end, told, done):
    await store.register(a_worker(name))
    number = 0
    while time.monotonic() < end or not told.done():
        number += 1
        run_id = f"{name}-{number}"
        [answer] = await store.create([a_run(run_id, type=name)], ACTOR)
        done["starts"].append(run_id)
        if len(done["starts"]) == 3:
            print("had its turns", flush=True)
        await store.send([a_message(run_id)], ACTOR)
        done["sends"].append([run_id, "k1"])
        [claimed] = (await claim(store, name, nonce=run_id, types=(name,))).runs
        turns = [Turn(lease=claimed.lease, records=(a_record(0),), next=Finish(Status.COMPLETED, "1"))]
        done["verdicts"].extend(await store.commit(turns, name))
        done["alive"].append(await store.heartbeat(name))

async def main():
    url, name, length = sys.argv[1], sys.argv[2], float(sys.argv[3])
    # Two engines of one process, as in a web server that also runs a worker.
    stores = [open_store(url, Host()) for _ in range(2)]
    for store in stores:
        await store.open()
    done = {"starts": [], "sends": [], "verdicts": [], "alive": []}
    print("up", flush=True)
    sys.stdin.readline()
    end = time.monotonic() + length
    told = asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.gather(*(write(store, f"{name}{letter}", end, told, done) for store, letter in zip(stores, "ab")))
    for store in stores:
        await store.close()
    print(json.dumps(done))

asyncio.run(main())
"""

SITTER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
print("up", flush=True)
sys.stdin.readline()
time.sleep(0.3)  # the writers have begun
connection.execute("BEGIN IMMEDIATE")
time.sleep(float(sys.argv[2]))
connection.execute("COMMIT")
print("{}")
"""


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_writers_and_a_sitter_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    url = f"sqlite:///{path}"
    writers = [start(WRITER, url, f"p{number}", str(LENGTH)) for number in range(PROCESSES)]
    processes = [*writers, start(SITTER, str(path), str(HOLD))]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", process.communicate()
    for process in processes:
        go_on(process)
    # All go on until each has had its turns, which a process that starves never has.
    for process in writers:
        assert process.stdout is not None
        assert process.stdout.readline() == "had its turns\n", process.communicate()
    for process in writers:
        go_on(process)
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), outputs
    results = [json.loads(output[0]) for output in outputs[:PROCESSES]]
    starts = frozenset(start for result in results for start in result["starts"])
    sends = frozenset((run_id, key) for result in results for run_id, key in result["sends"])
    assert {verdict for result in results for verdict in result["verdicts"]} == {"applied"}
    assert sum(sum(result["alive"]) for result in results) == len(starts)
    assert all(len(result["starts"]) > 2 for result in results)
    connection = sqlite3.connect(path)
    assert scan(connection.execute, Known(starts=starts, sends=sends)) == []
    unfinished = connection.execute("SELECT COUNT(*) FROM perdure_runs WHERE status <> 'completed'").fetchone()
    assert unfinished == (0,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
