"""Histories in a file: their export, and their replay without a database."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Pending, Status, UsageError, activity, step, workflow
from perdure.blocking import Engine as BlockingEngine
from perdure.client.histories import find_history
from perdure.client.session import session_of
from perdure.core.model.attempt_reports import make_token
from perdure.core.model.histories import VERSION, DamagedLine, RunHistory, read_histories
from perdure.core.model.record import Record
from perdure.core.model.reports import DeployProblem
from perdure.errors import AttemptNotFound, RunNotFound
from perdure.worker import ReplayCheck
from tests.client.changes import child, other_child
from tests.client.test_deploy_check import deployed, settled
from tests.stage import Stage, until
from tests.worker.damage import damage


@step
async def charge(card: dict[str, str]) -> dict[str, str]:
    return {"receipt": "sk-abc123", "token": card["number"], "note": "größer 💡"}


@workflow("histories.order.v1")
async def order(ctx: Context, card: dict[str, str]) -> str:
    paid = await ctx.step(charge, card)
    return paid["note"] + await ctx.receive("go", str)


@workflow("histories.order.v1")
async def other_order(ctx: Context, card: dict[str, str]) -> str:
    await ctx.sleep("1h")
    return ""


@workflow("histories.failing.v1")
async def failing(ctx: Context, amount: int) -> int:
    return int((await ctx.step(charge, {"number": str(amount)}))["note"])


CARD = {"number": "4111-1111", "holder": "Ada"}


async def some_runs(engine: Engine) -> None:
    """Two runs that wait, one that has completed, one that has failed, and one that has not begun."""
    async with engine.worker():
        for name in ("w1", "w2"):
            await until(await engine.start(order(CARD), id=name), Status.WAITING)
        done, bad = await engine.start(order(CARD), id="done"), await engine.start(failing(1), id="bad")
        await done.send("go", "!")
        await until(done, Status.COMPLETED)
        await until(bad, Status.FAILED)
    await engine.start(order(CARD), id="new")


def nowhere(*workflows: Any) -> Engine:
    """An engine whose database cannot be opened."""
    return Engine("sqlite:////nonexistent/directory/app.db", workflows)


@pytest.mark.shared
async def test_histories_are_replayed_without_their_database_and_nothing_is_written(
    stage: Stage, tmp_path: Path
) -> None:
    engine, file = stage.engine(order, failing), tmp_path / "histories.jsonl"
    await some_runs(engine)
    before = await stage.dump()
    report = await engine.runs.export(file)
    assert (report.runs, report.records, report.more) == (5, 5, False)
    assert await stage.dump() == before
    same = await nowhere(order, failing).runs.replay(file)
    assert (same.ok, same.checked, same.findings, same.damaged) == (True, 5, (), ())
    assert same.by_type == {"histories.order.v1": 4, "histories.failing.v1": 1}
    changed = await nowhere(other_order, failing).runs.replay(file)
    assert {one.run_id: one.problem.value for one in changed.findings} == dict.fromkeys(
        ["w1", "w2", "done"], "diverged"
    )
    assert all(one.fix and "step 'charge'" in one.expected for one in changed.findings)
    unserved = await nowhere(order).runs.replay(file, types=["histories.failing.v1"])
    assert [(one.run_id, one.problem.value) for one in unserved.findings] == [("bad", "unserved")]


async def test_an_exported_file_does_not_let_its_reader_complete_an_activity(on_disk: Stage) -> None:
    @activity("histories.approve.v1")
    async def approve() -> str:
        return Pending

    @workflow("histories.approved.v1")
    async def approved(ctx: Context) -> str:
        await ctx.step(charge, CARD)
        return await ctx.call(approve(), id="a1")

    engine = on_disk.engine(approved, approve)
    async with engine.worker():
        await until(await engine.start(approved(), id="p1"), Status.WAITING)
        await until(await engine.get("a1"), Status.WAITING)
    for exporting in (engine, on_disk.engine()):
        file = io.BytesIO()
        await exporting.runs.export(file)
        found = {
            one.run.id: one for one in read_histories(io.BytesIO(file.getvalue()), "h") if isinstance(one, RunHistory)
        }
        forged = make_token("a1", 1, 0, found["a1"].run.seed or "none")
        with pytest.raises(AttemptNotFound):
            await engine.runs.complete(forged, "yes")
        # A workflow draws its random numbers from its seed.
        assert found["p1"].run.seed


@pytest.mark.shared
async def test_filters_ids_and_a_limit_choose_the_runs(stage: Stage) -> None:
    engine = stage.engine(order, failing)
    await some_runs(engine)

    async def chosen(*args: Any, **options: Any) -> list[str]:
        file = io.BytesIO()
        await engine.runs.export(file, *args, **options)
        return [one.run.id for one in read_histories(file.getvalue().splitlines(), "it") if isinstance(one, RunHistory)]

    assert await chosen() == ["new", "bad", "done", "w2", "w1"]
    assert await chosen(where={"status": Status.WAITING}) == ["w2", "w1"]
    assert await chosen(["w1", "unknown", "bad"]) == ["w1", "bad"]
    assert await chosen(limit=2) == ["new", "bad"]
    assert (await engine.runs.export(io.BytesIO(), limit=2)).more
    assert not (await engine.runs.export(io.BytesIO(), limit=5)).more
    for options in ({"limit": 0}, {"where": 7}, {"redact_keys": "password"}, {"run_ids": "w1", "where": {}}):
        with pytest.raises(UsageError):
            await engine.runs.export(io.BytesIO(), **options)


async def test_a_replayed_file_gives_the_findings_of_a_check_for_every_planted_change(
    on_disk: Stage, tmp_path: Path
) -> None:
    before, file = deployed(on_disk, new=False), tmp_path / "histories.jsonl"
    async with before.worker():
        runs = [await before.start(flow()) for flow in before.workflows.values() if flow not in (child, other_child)]
        for run in runs:
            await run.send("word", "hello")
        for run in runs:
            await settled(run)
    unfinished = [one for one in Status if not one.finished]
    await before.runs.export(file, where={"status": unfinished})
    after = deployed(on_disk, new=True)
    checked, replayed = await after.check(), await after.runs.replay(file)
    assert checked.findings
    assert replayed.checked == checked.checked
    assert sorted(replayed.findings, key=repr) == sorted(checked.findings, key=repr)


async def test_a_damaged_line_is_reported_and_the_others_are_replayed(on_disk: Stage, tmp_path: Path) -> None:
    engine, file, broken = on_disk.engine(order, failing), tmp_path / "h.jsonl", tmp_path / "broken.jsonl"
    await some_runs(engine)
    await engine.runs.export(file)
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    rng = random.Random(7)
    for _ in range(200):
        number = rng.randrange(1, len(lines))
        line = bytearray(lines[number])
        place = rng.randrange(len(line) - 1)
        line[place] ^= 1 << rng.randrange(8)
        damaged = [*lines]
        damaged[number] = bytes(line)
        broken.write_bytes(b"".join(damaged))
        report = await engine.runs.replay(broken)
        if b"\n" in line[:-1]:
            continue  # one line became two, both of which are damaged
        assert (report.checked, [one.line for one in report.damaged], report.ok) == (4, [number + 1], False), line
    # A file that ends in the middle of a line, as one that was copied in part does.
    broken.write_bytes(whole[:-40])
    report = await engine.runs.replay(broken)
    assert (report.checked, [one.line for one in report.damaged]) == (4, [6])
    assert report.damaged[0].error


async def test_a_file_that_is_none_or_is_of_a_newer_version_is_refused(on_disk: Stage, tmp_path: Path) -> None:
    engine, file = on_disk.engine(order), tmp_path / "h.jsonl"
    for text in ("", "\n", "{}", "[1]", "no JSON", '{"perdure":"histories","version":"x"}', "\x00\xff", "[" * 100_000):
        file.write_text(text)
        with pytest.raises(UsageError, match="is no file of histories"):
            await engine.runs.replay(file)
    file.write_text(json.dumps({"perdure": "histories", "version": VERSION + 1}))
    with pytest.raises(UsageError, match=f"has version {VERSION + 1} of the format"):
        await engine.runs.replay(file)
    for missing in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            await engine.runs.replay(missing)
    file.write_text(json.dumps({"perdure": "histories", "version": VERSION, "later": 1}))
    assert (await engine.runs.replay(file)).ok


async def test_fields_of_a_later_version_are_ignored(on_disk: Stage) -> None:
    engine, file = on_disk.engine(order, failing), io.BytesIO()
    await some_runs(engine)
    await engine.runs.export(file, "w1")
    header, line = file.getvalue().splitlines()
    found = json.loads(line)
    assert found.keys() == {"sum", "history"}
    later = {**found["history"], "later": [1]}
    later["run"] = {**later["run"], "later": {}}
    body = json.dumps(later, separators=(",", ":")).encode()
    text = b'{"sum":"%b","history":%b}' % (hashlib.sha256(body).hexdigest()[:16].encode(), body)
    [read] = read_histories([header, text], "it")
    assert isinstance(read, RunHistory)
    assert (read.run.id, [one.location for one in read.records]) == ("w1", ["charge"])


async def test_secrets_are_redacted_and_the_history_still_replays(on_disk: Stage, tmp_path: Path) -> None:
    engine, file = on_disk.engine(order, failing), tmp_path / "h.jsonl"
    await some_runs(engine)
    await engine.runs.export(file, redact_keys=["number", "tok*"], redact_texts=["sk-[a-z0-9]+"])
    text = file.read_text()
    assert "4111" not in text
    assert "sk-abc123" not in text
    assert "Ada" in text
    report = await nowhere(order, failing).runs.replay(file)
    assert (report.ok, report.checked, report.findings) == (True, 5, ())
    assert not (await nowhere(other_order, failing).runs.replay(file)).ok
    # No lease, no key and no outcome of a run leaves with it.
    found = [one for one in read_histories(text.encode().splitlines(), "it") if isinstance(one, RunHistory)]
    [history] = [one for one in found if one.run.id == "done"]
    assert (history.run.nonce, history.run.worker, history.run.output) == ("", None, None)


async def test_an_export_that_ends_early_leaves_no_file_and_spares_the_old_one(on_disk: Stage, tmp_path: Path) -> None:
    engine, file = on_disk.engine(order, failing), tmp_path / "out" / "h.jsonl"
    await some_runs(engine)
    file.parent.mkdir()
    file.write_text("the old one")
    for rounds in range(12):
        task = asyncio.create_task(engine.runs.export(file))
        for _ in range(rounds):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            break  # it was complete before
        assert [(path.name, path.read_text()) for path in file.parent.iterdir()] == [("h.jsonl", "the old one")]
    assert rounds > 1
    assert [path.name for path in file.parent.iterdir()] == ["h.jsonl"]


@pytest.mark.shared
async def test_a_history_is_observed_record_by_record_and_nothing_is_written(stage: Stage, tmp_path: Path) -> None:
    engine, file = stage.engine(order, failing), tmp_path / "h.jsonl"
    await some_runs(engine)
    await engine.runs.export(file)
    before = await stage.dump()
    for source in (None, file):
        history = await find_history(session_of(engine), "done", source)
        seen: list[Record | None] = []
        session = session_of(engine)
        check = ReplayCheck(session.codec, session.errors, session.layers, seen.append)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[object] = loop.create_future()

        def replay(history: RunHistory = history, check: ReplayCheck = check, ended: Any = ended) -> None:
            ended.set_result(check.findings(history.run, order, history.records))

        loop.call_soon(replay)
        assert await ended == []
        assert seen == [None, *history.records]
        assert check.end == "The history is complete: the code has come to its end."
    assert await stage.dump() == before
    with pytest.raises(RunNotFound):
        await find_history(session_of(engine), "unknown", None)
    with pytest.raises(UsageError, match="has no run 'unknown'"):
        await find_history(session_of(engine), "unknown", file)


def test_the_blocking_facade_exports_and_replays(on_disk: Stage, tmp_path: Path) -> None:
    file = tmp_path / "h.jsonl"
    with BlockingEngine(on_disk.url, [order]) as engine:
        with engine.worker():
            run = engine.start(order(CARD), id="b")
            run.send("go", "!")
            assert run.result("60s") == "größer 💡!"
        assert engine.runs.export(file).runs == 1
        assert engine.runs.replay(file).ok


def test_lines_are_read_one_at_a_time() -> None:
    def endless() -> Any:
        yield b'{"perdure":"histories","version":1}\n'
        while True:
            yield b"damaged\n"

    found = read_histories(endless(), "it")
    assert [next(found) for _ in range(3)] == [
        DamagedLine(line, "JSON is malformed: invalid character (byte 0)") for line in (2, 3, 4)
    ]


async def test_a_first_line_without_an_end_is_refused_before_it_is_in_memory(on_disk: Stage, tmp_path: Path) -> None:
    """As that of a device, or of a large file of another kind."""
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(64 << 20)
    engine = on_disk.engine(order)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="is no file of histories"):
            await engine.runs.replay(tmp_path / "zeros")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


async def test_a_run_that_cannot_be_read_is_reported_and_the_others_are_exported(
    on_disk: Stage, tmp_path: Path
) -> None:
    engine = on_disk.engine(order, failing)
    await some_runs(engine)
    await damage(on_disk, "UPDATE perdure_history SET kind = 'nonsense' WHERE run_id = 'w1'")
    report = await engine.runs.export(tmp_path / "all.jsonl")
    assert (report.runs, [one.run_id for one in report.unreadable], report.more) == (4, ["w1"], False)
    assert "nonsense" in report.unreadable[0].error
    assert (await engine.runs.replay(tmp_path / "all.jsonl")).checked == 4
    await damage(on_disk, "UPDATE perdure_runs SET reason = 'nonsense' WHERE id = 'w2'")
    report = await engine.runs.export(tmp_path / "named.jsonl", ["w1", "w2", "done", "bad"])
    assert (report.runs, [one.run_id for one in report.unreadable]) == (2, ["w1", "w2"])
    report = await engine.runs.export(tmp_path / "listed.jsonl")
    assert (report.runs, [one.run_id for one in report.unreadable]) == (3, ["w2", "w1"])
    checked = await engine.check()
    assert checked.checked == 3
    assert [(one.run_id, one.problem) for one in checked.findings] == [
        ("w2", DeployProblem.UNDECODABLE),
        ("w1", DeployProblem.UNDECODABLE),
    ]
    assert (await engine.runs.preview_bulk(["w1", "w2", "done"])).count.count == 2
