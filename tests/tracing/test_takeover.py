"""Spans of several processes, as an OTLP/HTTP collector gets them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers import eventually
from tests.stage import Stage
from tests.tracing.collector import collector
from tests.tracing.shop import WORKFLOWS, parcel

pytestmark = [pytest.mark.every_database, pytest.mark.shared]

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@contextmanager
def worker(url: str, endpoint: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", "tests.tracing.shop", url, endpoint]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.timeout(240)
async def test_each_attempt_has_one_span_after_retries_parking_a_kill_and_a_takeover(
    stage: Stage, tmp_path: Path
) -> None:
    with collector() as (endpoint, spans):
        async with stage.engine(*WORKFLOWS) as engine:
            with worker(stage.url, endpoint) as first:
                headers = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
                run = await engine.start(parcel(str(tmp_path)), headers=headers)
                await eventually(lambda: (tmp_path / "step").exists() and (tmp_path / "activity").exists())
                await eventually((tmp_path / "payment").exists)
                first.kill()
                first.wait()
            with worker(stage.url, endpoint):
                await run.send("go", "now")
                assert await run.result() == "step activity unpaid packed"
                await eventually(lambda: bool(spans.named("run shop.parcel.v1")))
    told = spans.told()
    assert told == {
        ("step charge", 1, "failed"): 1,
        ("step charge", 2, "succeeded"): 1,
        ("timer sleep", 0, ""): 1,
        ("step hang", 1, "interrupted"): 1,
        ("step hang", 2, "succeeded"): 1,
        ("step pay", 1, "interrupted"): 1,
        ("child shop.print.v1", 0, ""): 1,
        ("activity shop.print.v1", 1, "interrupted"): 1,
        ("activity shop.print.v1", 2, "succeeded"): 1,
        ("message go", 0, ""): 1,
        ("child shop.ship.v1", 0, ""): 1,
        ("run shop.ship.v1", 0, "completed"): 1,
        ("step pack", 1, "succeeded"): 1,
        ("run shop.parcel.v1", 0, "completed"): 1,
    }
    assert {one.trace_id for one in spans.all} == {int(TRACE, 16)}
    spans.outside = spans.one("run shop.parcel.v1").parent_id
    assert spans.outside == int(CALLER, 16)
    spans.check()
    parents = {one.name: spans.parent(one) for one in spans.all if one.name not in ("claim", "commit")}
    assert parents == {
        "run shop.parcel.v1": "",
        **dict.fromkeys(
            [
                *("step charge", "timer sleep", "step hang", "step pay"),
                *("child shop.print.v1", "message go", "child shop.ship.v1"),
            ],
            "run shop.parcel.v1",
        ),
        "activity shop.print.v1": "child shop.print.v1",
        "run shop.ship.v1": "child shop.ship.v1",
        "step pack": "run shop.ship.v1",
    }  # fmt: skip
    assert {spans.parent(one) for one in spans.named("claim") + spans.named("commit")} == {
        "run shop.parcel.v1", "run shop.ship.v1", "child shop.print.v1"
    }  # fmt: skip
