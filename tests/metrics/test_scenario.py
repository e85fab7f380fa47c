"""Metrics of two worker processes, one of which is killed, read at the end point that they share."""

from __future__ import annotations

import importlib
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from perdure import Every
from perdure.metrics.shared_directory import directory_of
from tests.helpers import eventually
from tests.metrics.scrape import Scrape, scrape
from tests.servers.private import free_port
from tests.stage import Stage

pytestmark = pytest.mark.shared

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def shop_on_stage(stage: Stage, shop: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SHOP_URL", stage.url)
    return importlib.reload(shop)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("SHOP_FOLDER", str(tmp_path))
    monkeypatch.setenv("SHOP_URL", f"sqlite:///{tmp_path}/shop.db")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    sys.modules.pop("tests.metrics.shop", None)
    yield importlib.import_module("tests.metrics.shop")
    sys.modules.pop("tests.metrics.shop", None)


def start_worker(stack: ExitStack, port: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "perdure.cli", "worker", "tests.metrics.shop:engine", "--lease", "5s"]
    process = stack.enter_context(
        subprocess.Popen([*command, "--metrics", f"127.0.0.1:{port}"], cwd=ROOT, text=True, stderr=subprocess.DEVNULL)
    )
    stack.callback(process.kill)
    return process


async def scraped(port: int, wanted: Callable[[Scrape], object]) -> Scrape:
    def look() -> Scrape | None:
        found = scrape(port)
        return found if found is not None and wanted(found) else None

    found = await eventually(look)
    assert found is not None
    return found


async def test_every_instrument_tells_what_happened_through_retries_parking_a_kill_and_a_takeover(
    shop_on_stage: Any, tmp_path: Path
) -> None:
    port, shop = free_port(), shop_on_stage
    engine = shop.engine
    with ExitStack() as stack:
        async with engine:
            first = start_worker(stack, port)
            order = await engine.start(shop.order())
            await order.result()
            held = await engine.start(shop.held())
            # A file is there before anything is written into it.
            hanging = tmp_path / "hanging"
            assert int(await eventually(lambda: hanging.exists() and hanging.read_text())) == first.pid
            # The second process shares the end point of the first, and shows it after the first was killed.
            start_worker(stack, port)
            await scraped(port, lambda one: one("perdure_workers") == 2)
            first.send_signal(signal.SIGKILL)
            await scraped(port, lambda one: one("perdure_takeovers_total") == 1 and one("perdure_workers") == 1)
            (tmp_path / "go").touch()
            await held.result()
            (tmp_path / "go").unlink()

            await _leave_traces_of_all_kinds(shop, engine, tmp_path)
            last = await scraped(port, _is_complete)
            ticks = len((await engine.runs.list(type="tick", queue="default")).runs)
            assert last("perdure_schedule_fires_total") == ticks
    _check_runs(last)
    _check_latencies(last)
    _check_fleet(last)


async def _leave_traces_of_all_kinds(shop: Any, engine: Any, folder: Path) -> None:
    fails = await engine.start(shop.fails())
    with pytest.raises(Exception, match="never"):
        await fails.result()
    patient = await engine.start(shop.patient())
    await eventually(lambda: _is_waiting(patient))
    await patient.cancel()
    broken = await engine.start(shop.broken())
    await eventually(lambda: _has_status(broken, "blocked"))
    (folder / "hanging").unlink()
    terminated = await engine.start(shop.terminated())
    await eventually((folder / "hanging").exists)
    await terminated.terminate("a test")
    await engine.start(shop.tick(), queue="unserved")
    await engine.breakers.open("bank")
    await engine.schedules.create("ticks", shop.tick(), Every("1s"))
    await eventually(lambda: _any_run(engine, "tick", "completed"))
    await engine.schedules.pause("ticks")
    for _ in range(2):
        await engine.start(shop.limited())


async def _has_status(handle: Any, status: str) -> bool:
    return bool(await handle.status() == status)


async def _is_waiting(handle: Any) -> bool:
    return await _has_status(handle, "waiting")


async def _any_run(engine: Any, type: str, status: str) -> bool:
    return bool((await engine.runs.list(type=type, status=status)).runs)


def _is_complete(one: Scrape) -> bool:
    return (
        one("perdure_limit_waiting", limit="one") == 1
        and one("perdure_attempts_running", type="limited") == 1
        and one("perdure_worker_slots", state="used") == 1
        and one("perdure_lease_losses_total") == 1
        and one("perdure_runs_finished_total", type="patient", status="cancelled") == 1
        and one("perdure_breaker_state", breaker="bank", state="open") == 1
    )


def _check_runs(one: Scrape) -> None:
    started = dict(one.by("perdure_runs_started_total", "type"))
    finished = {type: count for type, count in one.by("perdure_runs_finished_total", "type").items() if count}
    ticks = started.pop("tick")
    # The run that was taken over, and the one that was retried, began once.
    assert started == dict.fromkeys(["order", "charge", "held", "hopeless", "patient", "broken", "terminated"], 1) | {
        "limited": 1
    }
    assert finished == {"order": 1, "charge": 1, "held": 1, "hopeless": 1, "patient": 1, "tick": ticks}
    assert one("perdure_runs_finished_total", type="hopeless", status="failed") == 1
    assert one("perdure_runs_finished_total", type="held", status="completed") == 1
    # A timer, and the wait for the activity.
    assert one("perdure_runs_parked_total", type="order") == 2
    assert one("perdure_runs_parked_total", type="patient") == 1
    assert one.by("perdure_runs_blocked_total", "type") == {"broken": 1}
    assert one.by("perdure_runs_retried_total", "type") == {"charge": 1}
    assert [one("perdure_step_attempts_total", type="order", status=word) for word in ("success", "retrying")] == [1, 2]
    assert [one("perdure_step_attempts_total", type="hopeless", status=word) for word in ("failed", "retrying")] == [
        1,
        1,
    ]
    # The attempt of the killed process is in no record; the one after it is.
    assert one("perdure_step_attempts_total", type="held", status="success") == 2
    assert one.by("perdure_activity_attempts_total", "status") == {"retrying": 1, "success": 1}


def _check_latencies(one: Scrape) -> None:
    assert one("perdure_step_duration_seconds_count", type="order") == 3
    assert one("perdure_activity_duration_seconds_count", type="charge") == 2
    assert one("perdure_run_duration_seconds_count", type="order") == 1
    duration = one("perdure_run_duration_seconds_sum", type="order")
    assert duration is not None
    assert duration >= 2
    assert one("perdure_run_duration_seconds_bucket", type="order", le="0.1") == 0
    assert one("perdure_run_duration_seconds_bucket", type="order", le="+Inf") == 1
    # The run that was taken over.
    assert one("perdure_replay_duration_seconds_count") == 1
    assert one("perdure_timer_lateness_seconds_count") == 1
    claims, commits = one("perdure_claim_batch_runs_sum"), one("perdure_commit_batch_turns_sum")
    waits = one("perdure_queue_wait_seconds_count", queue="default")
    assert claims == waits
    assert commits is not None
    assert commits >= sum(one.by("perdure_runs_finished_total", "type").values())
    for name in ("claim_duration", "commit_duration", "schedule_lateness", "loop_lag"):
        count, total = one(f"perdure_{name}_seconds_count"), one(f"perdure_{name}_seconds_sum")
        assert count, name
        assert total, name


def _check_fleet(one: Scrape) -> None:
    assert one("perdure_dead_workers_total") == 1
    assert one("perdure_runs_expired_total") == 0
    assert one("perdure_workers") == 1
    assert one("perdure_worker_slots", state="used") == 1
    assert one("perdure_worker_slots", state="free") == 499
    assert one("perdure_attempts_running", type="limited") == 1
    # None if it ended between two samples; the number of the dead process is gone.
    assert not one("perdure_attempts_running", type="held")
    age = one("perdure_attempts_oldest_age_seconds", type="limited")
    assert age is not None
    assert age > 0
    assert one("perdure_database_up") == 1
    assert one("perdure_queue_depth", queue="unserved") == 1
    age = one("perdure_queue_oldest_age_seconds", queue="unserved")
    assert age is not None
    assert age > 0
    assert one("perdure_limit_held", limit="one") == one("perdure_limit_concurrency", limit="one") == 1
    assert one.by("perdure_breaker_state", "state") == {"closed": 0, "half_open": 0, "open": 1}
    # Failed, terminated; broken.
    assert one("perdure_dead_letters", status="failed") == 2
    assert one("perdure_dead_letters", status="blocked") == 1
    assert one("perdure_store_reconnects_total") == 0


def test_a_port_of_a_stranger_is_refused_and_nothing_is_left_behind(shop: Any, tmp_path: Path) -> None:
    with socket.socket() as stranger, ExitStack() as stack:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        command = [sys.executable, "-m", "perdure.cli", "worker", "tests.metrics.shop:engine"]
        process = stack.enter_context(
            subprocess.Popen(
                [*command, "--metrics", f"127.0.0.1:{port}"], cwd=ROOT, text=True, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
        stack.callback(process.kill)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"metrics cannot be shown at 127.0.0.1:{port}" in error
    assert sorted(one.name for one in (tmp_path / directory_of(port).name).iterdir()) == ["gather.lock", "join.lock"]
