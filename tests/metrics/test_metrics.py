"""Metrics of an engine in this process: in a registry, over HTTP, through OpenTelemetry, and how many there are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from perdure import Breaker, Context, Engine, Limit, Retry, activity, blocking, step, workflow
from perdure.client.session import session_of
from perdure.core.background_loops import LoopGuard, LoopHealth
from perdure.errors import StoreFull, StoreUnavailable, UsageError
from perdure.host import Host
from perdure.metrics import INSTRUMENTS, Metrics
from perdure.metrics.cells import Readings
from perdure.metrics.endpoint import logger, parse_address
from perdure.metrics.instruments import Instrument, Kind, most_samples
from perdure.metrics.opentelemetry import OpenTelemetryMetrics
from perdure.store.retrying import Repeating
from perdure.store.server.pool import Pool
from tests.helpers import eventually
from tests.http.serving import WORKFLOWS, Served, served
from tests.metrics.scrape import Scrape
from tests.stage import Stage

pytestmark = pytest.mark.every_database

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "metrics.md"
#: Runs of the test of cardinality.
RUNS = 10_000 if os.environ.get("PERDURE_PROVE") else 200


@step(retry=Retry.fixed("1ms", attempts=2))
async def succeed(id: str) -> str:
    return id


@workflow("metrics.order.v1")
async def order(ctx: Context, id: str) -> str:
    return await ctx.step(succeed, id)


@activity("metrics.charge.v1", limit=Limit("tenant", key=lambda tenant: tenant, concurrency=2), breaker=Breaker("bank"))
async def charge(tenant: str) -> None:
    pass


def counted(scrape: Scrape, name: str, **labels: str) -> float:
    found = scrape(name, **labels)
    assert found is not None, (name, labels)
    return found


async def test_a_registry_of_the_user_has_all_families_and_what_was_counted() -> None:
    registry = CollectorRegistry()
    async with Engine("sqlite://", [order]) as engine:
        metrics = Metrics(engine)
        registry.register(metrics)
        async with engine.worker():
            await (await engine.start(order("a"))).result()
        # After the worker has stopped, on its own loop.
        found = Scrape(generate_latest(registry).decode())
        with pytest.raises(ValueError, match="Duplicated"):
            registry.register(metrics)
    names = {one.name.removesuffix("_total") for one in INSTRUMENTS.values()}
    assert found.families.keys() == names
    assert all(family.documentation for family in found.families.values())
    assert counted(found, "perdure_step_attempts_total", type=order.type, status="success") == 1
    assert counted(found, "perdure_runs_finished_total", type=order.type, status="completed") == 1


async def test_readings_of_the_database_are_right_on_every_database(stage: Stage) -> None:
    engine = stage.engine(order, charge)
    metrics = Metrics(engine, keep=0.001)
    for number in range(3):
        await engine.start(order(str(number)), queue="later")
    await engine.breakers.open("bank", "a test")
    await engine.limits.set("tenant", concurrency=7, rate="5/2s")
    text, _ = await metrics.exposition()
    found = Scrape(text.decode())
    assert counted(found, "perdure_database_up") == 1
    assert counted(found, "perdure_queue_depth", queue="later") == 3
    assert counted(found, "perdure_queue_oldest_age_seconds", queue="later") >= 0
    assert counted(found, "perdure_limit_concurrency", limit="tenant") == 7
    assert counted(found, "perdure_limit_rate_per_second", limit="tenant") == 2.5
    assert counted(found, "perdure_breaker_state", breaker="bank", state="open") == 1
    assert counted(found, "perdure_dead_letters", status="failed") == 0


@workflow("metrics.nap.v1")
async def nap(ctx: Context) -> None:
    await ctx.step(succeed, "a")
    # Long enough for the run to park although the machine is busy.
    await ctx.sleep(2.0)
    await ctx.step(succeed, "b")


async def test_what_workers_count_is_right_on_every_database(stage: Stage) -> None:
    engine = stage.engine(nap)
    metrics = Metrics(engine)
    async with engine.worker():
        for handle in await engine.start_many([nap()] * 5):
            await handle.result()
    text, _ = await metrics.exposition()
    found = Scrape(text.decode())
    for name, wanted in (("runs_started", 5), ("runs_parked", 5)):
        assert counted(found, f"perdure_{name}_total", type=nap.type) == wanted
    assert counted(found, "perdure_runs_finished_total", type=nap.type, status="completed") == 5
    assert counted(found, "perdure_step_attempts_total", type=nap.type, status="success") == 10
    assert counted(found, "perdure_timer_lateness_seconds_count") == 5
    assert counted(found, "perdure_queue_wait_seconds_count", queue="default") == 10
    for name in ("queue_wait_seconds_sum", "timer_lateness_seconds_sum"):
        labels = {"queue": "default"} if name.startswith("queue") else {}
        assert 0 <= counted(found, f"perdure_{name}", **labels) < 600
    assert counted(found, "perdure_run_duration_seconds_bucket", type=nap.type, le="0.1") == 0


async def test_a_database_that_does_not_answer_is_told_and_hides_no_other_number(tmp_path: Path) -> None:
    engine = Engine(f"sqlite:///{tmp_path}/there/is/no/such/folder.db", [order])
    text, _ = await Metrics(engine).exposition()
    found = Scrape(text.decode())
    assert counted(found, "perdure_database_up") == 0
    assert found("perdure_dead_letters", status="failed") is None
    assert counted(found, "perdure_lease_losses_total") == 0


async def test_many_runs_of_many_types_make_no_more_series_than_the_guide_says() -> None:
    types = [workflow(f"metrics.type{number}.v1")(order.function) for number in range(20)]
    async with Engine("sqlite://", types) as engine:
        metrics = Metrics(engine)
        async with engine.worker():
            runs = [types[number % 20](f"id-{number}") for number in range(RUNS)]
            for handle in await engine.start_many(runs):
                await handle.result()
        text, _ = await metrics.exposition()
    found = Scrape(text.decode())
    assert sum(found.by("perdure_runs_finished_total", "type").values()) == RUNS
    assert len(found.samples) <= most_samples(types=20, queues=1) == 1561
    assert "id-1" not in text.decode()


async def test_types_and_queues_beyond_the_bounds_are_counted_together() -> None:
    types = [workflow(f"metrics.type{number}.v1")(order.function) for number in range(5)]
    queues = ["a", "b", "c"]
    async with Engine("sqlite://", types) as engine:
        metrics = Metrics(engine, types=2, queues=2)
        async with engine.worker(queues=queues):
            for number, one in enumerate(types):
                await (await engine.start(one(str(number)), queue=queues[number % 3])).result()
        text, _ = await metrics.exposition()
    found = Scrape(text.decode())
    assert found.by("perdure_runs_finished_total", "type") == {
        "metrics.type0.v1": 1, "metrics.type1.v1": 1, "other": 3,
    }  # fmt: skip
    assert found.by("perdure_queue_wait_seconds_count", "queue") == {"a": 2, "b": 2, "other": 1}
    assert found.by("perdure_queue_depth", "queue").keys() <= {"a", "b", "other"}


def test_the_guide_has_the_registered_series_and_the_true_bounds() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(perdure_\w+)` \| (\w+) \| ?(.*?) ?\| (.+) \|$", text, flags=re.MULTILINE)
    assert [(name, kind, re.findall(r"`(\w+)`", labels), meaning) for name, kind, labels, meaning in rows] == [
        (one.name, one.kind.value, list(one.labels), one.help) for one in INSTRUMENTS.values()
    ]
    none = most_samples(types=0, queues=0)
    each = [most_samples(**{"types": 0, "queues": 0, name: 1}) - none for name in ("types", "queues", "limits")]
    breaker = most_samples(types=0, queues=0, breakers=1) - none
    told = " ".join(text.split())
    assert (
        f"at most {none} samples, plus {each[0]} samples for each type, {each[1]} for each queue, "
        f"{each[2]} for each limit and {breaker} for each breaker"
    ) in told


async def test_opentelemetry_has_the_same_instruments_and_numbers() -> None:
    reader = InMemoryMetricReader()
    async with Engine("sqlite://", [order]) as engine:
        metrics = OpenTelemetryMetrics(engine, MeterProvider([reader]).get_meter("perdure"))
        async with engine.worker():
            for number in range(3):
                await (await engine.start(order(str(number)))).result()
        text, _ = await metrics.metrics.exposition()
        data = reader.get_metrics_data()
        metrics.close()
    shown = Scrape(text.decode())
    assert data is not None
    found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
    assert found.keys() <= {one.dotted for one in INSTRUMENTS.values()}
    for name, instrument in ((one, INSTRUMENTS[one]) for one in INSTRUMENTS if INSTRUMENTS[one].dotted in found):
        for point in cast("Any", found[instrument.dotted]).data.data_points:
            labels = {label: str(value) for label, value in point.attributes.items()}
            if name in ("perdure_queue_oldest_age_seconds", "perdure_loop_lag_seconds"):
                continue
            if instrument.kind.value == "histogram":
                assert point.count == counted(shown, f"{name}_count", **labels)
                assert point.sum == pytest.approx(counted(shown, f"{name}_sum", **labels))
                assert point.explicit_bounds == instrument.buckets
            else:
                assert point.value == counted(shown, name, **labels), name
    assert {"perdure.step_duration", "perdure.runs_finished", "perdure.dead_letters"} <= found.keys()


def exported_name(instrument: Instrument) -> str:
    """The name that an exporter to Prometheus makes of name and unit, by the specification of OpenTelemetry."""
    name, counter = instrument.dotted.replace(".", "_"), instrument.kind is Kind.COUNTER
    unit, _, each = re.sub(r"\{.*?\}", "", instrument.unit).partition("/")
    words = {"s": "seconds", "1": "" if instrument.kind is not Kind.GAUGE else "ratio", "": ""}[unit]
    return "_".join(filter(None, [name, words, {"s": "per_second", "": ""}[each], "total" if counter else ""]))


def test_exporters_of_opentelemetry_give_instruments_their_names_for_prometheus() -> None:
    assert [exported_name(one) for one in INSTRUMENTS.values()] == list(INSTRUMENTS)


async def test_a_collection_of_opentelemetry_reads_the_numbers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, readings = InMemoryMetricReader(), []
    async with Engine("sqlite://", [order]) as engine:
        metrics = OpenTelemetryMetrics(engine, MeterProvider([reader]).get_meter("perdure"))
        read = metrics.metrics.read_from_thread

        def reading() -> Readings:
            readings.append(read())
            return readings[-1]

        # Each takes seconds while the loop is blocked, and the SDK gives up after ten.
        monkeypatch.setattr(metrics.metrics, "read_from_thread", reading)
        async with engine.worker():
            for number in range(1, 4):
                await (await engine.start(order(str(number)))).result()
                data = reader.get_metrics_data()
                assert len(readings) == number
                assert data is not None
                found = {one.name: one for one in data.resource_metrics[0].scope_metrics[0].metrics}
                [point] = cast("Any", found["perdure.runs_started"]).data.data_points
                assert point.value == number
        metrics.close()


async def test_metrics_over_http_are_for_viewers(on_disk: Stage) -> None:
    async with served(on_disk.engine(*WORKFLOWS), work=False) as site:
        await _check_metrics_over_http(site)


async def _check_metrics_over_http(idle: Served) -> None:
    for caller, status in ((idle.anonymous, 401), (idle.viewer, 200), (idle.admin, 200)):
        answer = await _get_metrics(caller, "/metrics")
        assert answer.status_code == status
    answer = await _get_metrics(idle.viewer, "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["cache-control"] == "no-store"
    assert counted(Scrape(answer.text), "perdure_database_up") == 1
    posted = await idle.admin.client.post("/metrics", headers=idle.admin.headers)
    assert (posted.status_code, posted.headers["allow"]) == (405, "GET")
    modern = await _get_metrics(idle.viewer, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert modern.headers["content-type"].startswith("application/openmetrics-text")
    assert modern.text.endswith("# EOF\n")


async def _get_metrics(caller: Any, path: str, **headers: str) -> httpx.Response:
    answer: httpx.Response = await caller.client.get(path, headers={**caller.headers, **headers})
    return answer


async def test_errors_of_the_database_and_of_loops_and_reconnections_are_counted() -> None:
    engine = Engine("sqlite://", [order])
    metrics, system = Metrics(engine), session_of(engine).system
    answers: list[Exception | None] = [StoreUnavailable("away"), StoreUnavailable("away"), None, StoreFull("full")]

    async def verb() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    store = Repeating(system, 30.0, strict=True)
    await store.within_bound(verb, (), {})
    with pytest.raises(StoreFull):
        await store.within_bound(verb, (), {})
    LoopGuard("claimer", system, LoopHealth(), logger).failed(StoreFull("full"))

    answers += [OSError("refused"), OSError("refused"), None]
    pool: Pool[Any] = Pool(system, lambda: _connect(verb), _nothing, 1, lambda _: True, lambda _: None)
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            await pool.take()
    await pool.take()
    await pool.close()
    await engine.open()
    text, _ = await metrics.exposition()
    await engine.close()
    found = Scrape(text.decode())
    assert found.by("perdure_store_errors_total", "error") == {"StoreUnavailable": 2, "StoreFull": 1}
    assert found.by("perdure_loop_errors_total", "loop") == {"claimer": 1}
    assert counted(found, "perdure_store_reconnects_total") == 1


class _Connection:
    epoch = 0

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        pass

    def fileno(self) -> int:
        return -1


async def _connect(verb: Any) -> _Connection:
    await verb()
    return _Connection()


async def _nothing(_: object) -> None:
    pass


async def test_a_scrape_while_the_loop_is_blocked_has_the_numbers_of_workers() -> None:
    async with Engine("sqlite://", [order]) as engine:
        metrics = Metrics(engine)
        async with engine.worker():
            await (await engine.start(order("a"))).result()
            await eventually(metrics.recorder.cells.read)
            # On the worker's own loop, which cannot read the database meanwhile.
            assert metrics.read_from_thread()["perdure_database_up", ()] == [0.0]
            found = await Host().in_thread(metrics.read_from_thread)
            assert found["perdure_database_up", ()] == [1.0]
            assert found["perdure_workers", ()] == [1.0]
    assert metrics.recorder.cells.read()["perdure_workers", ()] == [0.0]


@pytest.mark.parametrize(
    ("text", "address"), [(":9464", ("0.0.0.0", 9464)), ("9464", ("0.0.0.0", 9464)), ("[::1]:80", ("::1", 80))]
)
def test_an_address_is_a_port_or_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_an_engine_whose_methods_block_has_metrics() -> None:
    registry = CollectorRegistry()
    with blocking.Engine("sqlite://", [order]) as engine:
        registry.register(Metrics(engine))
        with engine.worker():
            engine.start(order("a")).result()
            found = Scrape(generate_latest(registry).decode())
    assert counted(found, "perdure_runs_started_total", type=order.type) == 1
    assert counted(found, "perdure_database_up") == 1


@pytest.mark.parametrize("text", ["", ":", "metrics", "host:", ":0", ":70000", ":-1", "localhost:http"])
def test_another_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give a port, or a host and a port"):
        parse_address(text)
