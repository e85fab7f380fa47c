"""What a case leaves behind, and what must be true of it.

A snapshot is what was durable when a process had died or stood still. At the end its histories must be beginnings of
the final ones, no step in it may have been executed again, and what was finished must be as it was.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from perdure.store.sql.packing import PACKED, unpack
from tests.faults import app
from tests.faults.app import ITEMS, STREAM
from tests.faults.homes import Home, Look
from tests.invariants import Known, scan_store

Row = tuple[Any, ...]

FINISHED = ("completed", "failed", "cancelled")

#: Steps of these runs fail them, and are executed again by the next attempt; one is finished, and then opened again.
RETRIED = ("again", "broken")
REOPENED = "broken"
#: The attempts of this one's step are counted anew.
RECOVERED = "stuck"
#: This one is deleted, unless a crash came before; then another process begins it anew.
PRUNED = "litter"

#: What each run must be in the end. The odd one cannot be read by its workflow; every worker that starts tries it
#: again.
OUTCOMES = {
    "main": ("completed",),
    "again": ("completed",),
    "broken": ("completed",),
    "stuck": ("completed",),
    "fork": ("completed",),
    "stopped": ("cancelled",),
    "charged": ("completed",),
    "ended": ("failed",),
    "mailed": ("completed",),
    "pinned": ("completed",),
    "watching": ("completed",),
    "slow": ("completed",),
    "odd": ("blocked", "pending"),
}


class Snapshot(Struct, frozen=True):
    """The rows of a database at one moment, and how long the ledger was then."""

    lines: int
    runs: dict[str, dict[str, Any]]
    history: dict[str, list[dict[str, Any]]]
    messages: list[Row]
    events: list[tuple[str, str]]

    def finished(self) -> dict[str, Any]:
        """Everything that is known of the runs that are finished; this never changes again."""
        return {
            id: (run, self.history.get(id), [row for row in self.messages if row[0] == id])
            for id, run in self.runs.items()
            if run["status"] in FINISHED and id != PRUNED
        }


async def snapshot(home: Home, name: str) -> Snapshot:
    """What is there now."""
    async with home.looking(name) as look:
        if look is None:
            return Snapshot(_lines(home), {}, {}, [], [])
        history: dict[str, list[dict[str, Any]]] = {}
        for row in await look("SELECT * FROM perdure_history ORDER BY run_id, seq"):
            history.setdefault(row["run_id"], []).extend(_unpacked(row))
        # Afterwards: whatever is recorded was executed before, also by a process that goes on meanwhile.
        return Snapshot(
            _lines(home),
            {row["id"]: row for row in await look("SELECT * FROM perdure_runs")},
            history,
            [tuple(row.values()) for row in await look("SELECT * FROM perdure_messages ORDER BY run_id, seq")],
            [tuple(row.values()) for row in await look("SELECT run_id, kind FROM perdure_events ORDER BY id")],
        )


def _unpacked(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a row. Those that are packed have forgotten their token."""
    if row["kind"] != PACKED:
        return [row]
    records = unpack(row["seq"], row["payload"], row["attempts"], row["run_attempt"])
    return [{**row, **structs.asdict(record), "failed": 0, "token": None} for record in records]


def _has_begun_with(history: list[dict[str, Any]], records: list[dict[str, Any]]) -> bool:
    """Whether a history begins with these records, which may have been packed since."""
    known = [
        row | {"token": None} if later["token"] is None else row for row, later in zip(records, history, strict=False)
    ]
    return len(history) >= len(records) and history[: len(records)] == known


def _lines(home: Home) -> int:
    return len(app.read(home.directory / "ledger"))


async def judge(home: Home, crashes: list[Snapshot], thawed: int = 0) -> list[str]:
    """Everything that is wrong at the end of a case. `thawed` is the process that was frozen and not killed."""
    ledger = app.read(home.directory / "ledger")
    end = await snapshot(home, "end")
    wrong = await scan_for_wrongs(home)
    wrong += [
        f"run {id!r} should be {' or '.join(wanted)} and is {end.runs[id]['status'] if id in end.runs else 'not there'}"
        for id, wanted in OUTCOMES.items()
        if id not in end.runs or end.runs[id]["status"] not in wanted
    ]
    wrong += await _check_rows(home, end)
    wrong += await _check_outputs(home, end)
    wrong += await _check_items(home, end, ledger)
    wrong += [
        f"child {id!r} is {run['status']}"
        for id, run in end.runs.items()
        if id not in OUTCOMES and run["status"] not in FINISHED
    ]
    for crash in crashes:
        wrong += _compare(crash, end, ledger, thawed)
    return wrong + _check_values(end, ledger) + _check_repeats(end, ledger) + _check_headers(ledger)


def _check_headers(ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every run has the headers of the run that was started, however far it is from it."""
    started = {line["run"] for line in ledger if line["did"] == "started"}
    return [
        f"step {line['location']!r} of run {line['run']!r} had the headers {line['headers']}"
        for line in ledger
        if "headers" in line and (root := line["run"].partition("/")[0].partition("~")[0]) in started
        and line["headers"] != {"root": root}
    ]  # fmt: skip


async def _check_rows(home: Home, end: Snapshot) -> list[str]:
    """What a transaction has written is what it has recorded, once."""
    async with home.looking("rows") as look:
        rows = [] if look is None else [(row["run"], row["value"]) for row in await look("SELECT * FROM effects")]
    recorded = sorted(
        (id, json.loads(record["payload"]))
        for id, records in end.history.items()
        for record in records
        if record["location"] == "effect_in_a_transaction" and not record["failed"]
    )
    return [] if sorted(rows) == recorded else [f"a transaction has written {rows} and recorded {recorded}"]


async def _check_items(home: Home, end: Snapshot, ledger: Sequence[Mapping[str, Any]]) -> list[str]:
    """Items of an execution are there in order and once: all of them if its end is recorded, else the first ones."""
    async with home.looking("items") as look:
        where = f"kind = 'stream' AND name = '{STREAM}'"
        sql = f"SELECT run_id, payload FROM perdure_outputs WHERE {where} ORDER BY run_id, position"
        rows = [] if look is None else [(row["run_id"], *json.loads(row["payload"])) for row in await look(sql)]
    runs = {line["value"]: line["run"] for line in ledger if line["did"] == "step"}
    recorded = {
        json.loads(record["payload"])
        for records in end.history.values()
        for record in records
        if record["kind"] == "step" and "effect" in record["location"] and not record["failed"]
    }
    found: defaultdict[str, list[int]] = defaultdict(list)
    for run_id, value, number in rows:
        if runs.get(value) != run_id:
            return [f"an item of {value} is in the stream of run {run_id!r}"]
        found[value].append(number)
    wrong = [f"{value} emitted {items}" for value, items in found.items() if items != [*range(len(items))]]
    return wrong + [
        f"{value} of run {run_id!r} is recorded with {len(found[value])} of {ITEMS} items"
        for value, run_id in runs.items()
        if look is not None and value in recorded and run_id in end.runs and len(found[value]) != ITEMS
    ]


async def _check_outputs(home: Home, end: Snapshot) -> list[str]:
    """What a run has shown is what it came to, each thing once: nothing that a crash undid was ever to be seen."""
    async with home.looking("outputs") as look:
        sql = (
            "SELECT kind, payload FROM perdure_outputs "
            f"WHERE run_id = 'main' AND kind IN ('state', 'stream') AND name <> '{STREAM}' "
            "ORDER BY kind, name, position"
        )
        shown = [] if look is None else [(row["kind"], json.loads(row["payload"])) for row in await look(sql)]
    seen = json.loads(end.runs.get("main", {}).get("output") or "[]")
    third = [value for value in seen if value.startswith("third")]
    wanted = [("state", seen[-1]), *(("stream", value) for value in [*seen[:2], *third, seen[-1]])] if seen else []
    return [] if shown == wanted else [f"run 'main' has shown {shown} and came to {wanted}"]


async def scan_for_wrongs(home: Home) -> list[str]:
    """Every promise that the database breaks, given what the ledger knows."""
    ledger = app.read(home.directory / "ledger")
    known = Known(
        starts=frozenset(line["run"] for line in ledger if line["did"] == "started"),
        sends=frozenset((line["run"], line["key"]) for line in ledger if line["did"] == "sent"),
        effects=tuple((line["run"], line["location"]) for line in ledger if line["did"] in ("step", "copy")),
        repeats=len(ledger),
    )
    async with home.looking("scan") as look:
        assert look is not None
        return await scan_store(lambda sql: _tuples(look, sql), known)


async def _tuples(look: Look, sql: str) -> list[Row]:
    return [tuple(row.values()) for row in await look(sql)]


def _compare(crash: Snapshot, end: Snapshot, ledger: list[dict[str, Any]], thawed: int) -> list[str]:
    wrong = []
    for id, records in crash.history.items():
        if not _has_begun_with(end.history.get(id, []), records) and id != RECOVERED:
            wrong.append(f"run {id!r}: what was recorded before the crash was changed by its recovery")
    for id, known in crash.finished().items():
        if end.finished().get(id) != known and (id != REOPENED or known[0]["status"] == "completed"):
            wrong.append(f"run {id!r} was finished before the crash and changed afterwards")
    settled = {
        (id, record["location"]): record
        for id, records in crash.history.items()
        for record in records
        if record["kind"] == "step" or (record["kind"] == "attempt" and id not in (*RETRIED, RECOVERED))
    }
    begun = {
        (id, record["location"])
        for id, records in crash.history.items()
        for record in records
        if record["kind"] == "begin"
    }
    for line in ledger[crash.lines :]:
        # A process that was frozen right before it called the function calls it when it goes on.
        if line["did"] == "step" and (line["run"], line["location"]) in begun and line["pid"] != thawed:
            wrong.append(
                f"run {line['run']!r}: {line['location']!r} had begun before the crash, and is executed: {line}"
            )
        record = settled.get((line.get("run", ""), line.get("location", "")))
        if line["did"] == "step" and record is not None and _is_settled(record, line["attempt"]):
            wrong.append(f"run {line['run']!r}: {line['location']!r} was executed again although recorded: {line}")
    return wrong


def _is_settled(record: dict[str, Any], attempt: int) -> bool:
    if record["kind"] == "attempt":
        return bool(attempt <= record["attempts"])
    return not (record["failed"] and record["run_id"] in RETRIED)


def _check_values(end: Snapshot, ledger: list[dict[str, Any]]) -> list[str]:
    """What a step recorded is what some execution of it returned."""
    wrong = []
    returned: dict[tuple[str, str], set[str]] = {}
    for line in ledger:
        if line["did"] in ("step", "copy"):
            returned.setdefault((line["run"], line["location"]), set()).add(line["value"])
    for id, records in end.history.items():
        for record in records:
            if record["kind"] == "step" and not record["failed"]:
                value = json.loads(record["payload"])
                if value not in returned.get((id, record["location"]), set()):
                    wrong.append(f"run {id!r}: {record['location']!r} recorded {value!r}, which no execution returned")
    errands = {one.type for one in app.ACTIVITIES}
    for id, run in end.runs.items():
        if run["type"] in errands and run["status"] == "completed":
            value = json.loads(run["output"])
            if value not in returned.get((id, run["type"]), set()):
                wrong.append(f"activity {id!r} has the result {value!r}, which no execution returned")
    first = next((record for record in end.history.get("main", []) if record["location"] == "effect"), None)
    wrong += [
        f"a step was begun with a result that was not durable yet: {line}"
        for line in ledger
        if (line.get("run"), line.get("location")) == ("main", "effect_async")
        and (first is None or f"after {json.loads(first['payload'])}:" not in line["value"])
    ]
    main = end.runs.get("main", {})
    seen = json.loads(main.get("output") or "[]")
    recorded = {
        json.loads(record["payload"])
        for record in end.history.get("main", [])
        if record["kind"] in ("step", "child", "message") and not record["failed"]
    }
    missing = recorded - set(seen)
    return wrong + ([f"run 'main' returned {seen}, which lacks the recorded {missing}"] if missing else [])


def _check_repeats(end: Snapshot, ledger: list[dict[str, Any]]) -> list[str]:
    """An attempt is made once for every time that its run was lost by, or taken from, the worker that made it."""
    made = Counter((line["run"], line["location"], line["attempt"]) for line in ledger if line["did"] == "step")
    lost = Counter(run for run, kind in end.events if kind in ("reclaimed", "released"))
    once = Counter(
        (line["run"], line["location"])
        for line in ledger
        if line["did"] == "step" and line["location"].startswith(app.CHARGE)
    )
    twice = [f"run {run!r}: {location!r} must not run twice" for (run, location), times in once.items() if times > 1]
    return twice + [
        f"run {run!r}: attempt {attempt} of {location!r} was made {times} times, and the run was lost {lost[run]} times"
        for (run, location, attempt), times in made.items()
        if times > 1 + lost[run] + (2 if run in (*RETRIED, RECOVERED) else 0)
    ]
