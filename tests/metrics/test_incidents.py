"""Four incidents and a quiet day, told by the series alone: the rules of the guide name exactly the cause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, Limit, step, workflow
from perdure.errors import StoreFull
from perdure.host import Host
from perdure.metrics import Metrics
from perdure.store import Retrying, open_store
from tests.helpers import eventually
from tests.metrics.incidents.render import write
from tests.metrics.promql import Alerts, Prometheus
from tests.metrics.scrape import Scrape

RUNS = 6


@step
async def call_bank(hangs: bool) -> None:
    if hangs:
        await asyncio.Event().wait()


@workflow("incident.pay.v1")
async def pay(ctx: Context, hangs: bool = False) -> None:
    await ctx.step(call_bank, hangs)


@workflow("incident.mail.v1", limit=Limit("mail-server", concurrency=1))
async def mail(ctx: Context) -> None:
    await ctx.step(call_bank, True)


def causes(now: Scrape) -> set[str]:
    """What the table of the guide makes of a scrape."""
    found: set[str] = set()
    if now("perdure_claims_failing_seconds"):
        found.add("a worker cannot claim")
    commits, seconds = now("perdure_commit_duration_seconds_count"), now("perdure_commit_duration_seconds_sum")
    if commits and (seconds or 0) / commits > 0.5:
        found.add("the database is slow")
    waiting, held = now.by("perdure_limit_waiting", "limit"), now.by("perdure_limit_held", "limit")
    for name, bound in now.by("perdure_limit_concurrency", "limit").items():
        if waiting[name] and held[name] >= bound and now("perdure_worker_slots", state="free"):
            found.add(f"the limit {name} is too low")
    for type, age in now.by("perdure_attempts_oldest_age_seconds", "type").items():
        if age > 0.5 and not now("perdure_step_duration_seconds_count", type=type) and not waiting:
            found.add(f"{type} calls something that hangs")
    return found


@pytest.mark.parametrize(
    ("incident", "cause"),
    [
        ("none", None),
        ("hang", "incident.pay.v1 calls something that hangs"),
        ("limit", "the limit mail-server is too low"),
        ("claim", "a worker cannot claim"),
        ("slow", "the database is slow"),
    ],
)
async def test_the_series_name_the_cause_of_an_incident(
    incident: str, cause: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Host()
    store: Any = open_store("sqlite://", system)
    if incident == "claim":
        monkeypatch.setattr(store, "claim", _failing)
    elif incident == "slow":
        monkeypatch.setattr(store, "commit", _slow(store.commit))
    async with Engine("sqlite://", [pay, mail], system=system, store=Retrying(store, system)) as engine:
        metrics = Metrics(engine, keep=0)
        await engine.start_many([mail() if incident == "limit" else pay(incident == "hang")] * RUNS)
        worker = engine.worker()
        await worker.start()

        async def look() -> Scrape | None:
            found = Scrape((await metrics.exposition())[0].decode())
            settled = causes(found) if cause is not None else now_finished(found) == RUNS
            return found if settled else None

        def now_finished(scrape: Scrape) -> float:
            return sum(scrape.by("perdure_runs_finished_total", "type").values())

        found = await eventually(look)
        await worker.stop(0)
    assert found is not None
    assert causes(found) == (set() if cause is None else {cause})


async def test_a_worker_that_has_signed_off_is_still_told_as_one_that_cannot_claim(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    system = Host()
    store: Any = open_store("sqlite://", system)
    monkeypatch.setattr(store, "claim", _failing)
    async with Engine("sqlite://", [pay], system=system, store=Retrying(store, system)) as engine:
        metrics = Metrics(engine, keep=0)
        worker = engine.worker(lease=1.0)
        await worker.start()
        await eventually(lambda: "has signed off" in caplog.text)
        first = Scrape((await metrics.exposition())[0].decode())("perdure_claims_failing_seconds")
        then = Scrape((await metrics.exposition())[0].decode())("perdure_claims_failing_seconds")
        await worker.stop(0)
    assert first is not None
    assert then is not None
    assert then >= first >= 1.0


def test_what_a_reader_gets_has_the_panels_the_alerts_and_the_traces(tmp_path: Path) -> None:
    rule = {
        "alert": "Deep", "expr": "max by (queue) (perdure_queue_depth) > 2", "labels": {"severity": "page"},
        "annotations": {"summary": "{{ $labels.queue }} is deep", "action": "add workers"},
    }  # fmt: skip
    data, alerts = Prometheus(), Alerts([rule])
    for number in range(9):
        head = "# HELP perdure_queue_depth Ready runs.\n# TYPE perdure_queue_depth gauge\n"
        data.scraped(1000 + number * 15, "one", f'{head}perdure_queue_depth{{queue="a"}} {number}\n')
        alerts.evaluate(data, 1000 + number * 15)
    span = {
        "trace_id": "a", "span_id": "b", "parent_id": None, "name": "run x", "instance": "one", "seconds": 1.0,
        "status": "error", "description": "broken", "attributes": {"perdure.run.id": "r"},
        "start": datetime.fromtimestamp(1061, UTC).isoformat(),
    }  # fmt: skip
    (tmp_path / "spans.jsonl").write_text(json.dumps(span) + "\n")
    panel = {
        "type": "timeseries", "title": "Ready runs",
        "targets": [{"expr": "max by (queue) (perdure_queue_depth)", "legendFormat": "{{queue}}"}],
    }  # fmt: skip
    write(tmp_path, data, alerts, [panel], 1000, 1120)
    assert "  a      4      8" in (tmp_path / "dashboard.txt").read_text()
    assert "00:45  firing   Deep (page) queue=a\n                 a is deep" in (tmp_path / "alerts.txt").read_text()
    assert "perdure_queue_depth (gauge): Ready runs." in (tmp_path / "metrics.txt").read_text()
    assert "01:01.000     1.000s  run x [one] ERROR broken perdure.run.id=r" in (tmp_path / "traces.txt").read_text()


async def _failing(*_: object) -> None:
    raise StoreFull("the disk is full")


def _slow(commit: Callable[..., Any]) -> Callable[..., Any]:
    async def committing(*args: Any) -> Any:
        await asyncio.sleep(1)
        return await commit(*args)

    return committing
