"""Metrics for Prometheus: a collector with the numbers of an engine and the readings of its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from perdure.client.blocking import Engine as BlockingEngine
from perdure.client.engine import Engine
from perdure.client.facade import Facade, parts_of
from perdure.client.session import session_of
from perdure.core.option_checks import check_duration, check_whole
from perdure.core.time.duration import Duration
from perdure.metrics.cells import Cells, Readings, add, cells_in_memory
from perdure.metrics.database import PATIENCE, DatabaseReader
from perdure.metrics.instruments import INSTRUMENTS, Instrument, Kind
from perdure.metrics.recorder import Recorder, add_successes

#: Types and queues that have labels of their own.
TYPES = 100
QUEUES = 50


class Metrics(Collector):
    """Numbers that an engine counts, and readings of its database about the fleet, for `prometheus_client`.

    `registry.register(Metrics(engine))` adds all series to a registry. Make it before the worker starts, once for each
    engine.
    """

    def __init__(
        self,
        engine: Engine | BlockingEngine,
        *,
        types: int = TYPES,
        queues: int = QUEUES,
        keep: Duration = 10.0,
        cells: Cells | None = None,
    ) -> None:
        """`types`, `queues`: how many of them have series of their own; the rest is counted as `other`.

        `keep`: how long a reading of the database is shown again. `cells`: numbers that processes share.
        """
        if isinstance(engine, Facade):
            engine = parts_of(engine)[1]
        session = session_of(cast("Engine", engine))
        queues = check_whole("queues", queues, 1)
        self.recorder = Recorder(
            session.system,
            cells_in_memory() if cells is None else cells,
            types=check_whole("types", types, 1),
            queues=queues,
        )
        self._database = DatabaseReader(session, keep=check_duration("keep", keep), queues=queues)
        #: Returns what other processes of the host have counted; None: there are none.
        self.others: Callable[[], Readings] | None = None
        self._detach = session.system.telemetry.attach(self.recorder)
        self.recorder.shown_by = self

    def close(self) -> None:
        """Stop counting."""
        self._detach()

    async def read(self) -> Readings:
        """Return all numbers, with those of the database."""
        return self._counted() | await self._database.read()

    def read_from_thread(self) -> Readings:
        """Return all numbers. From any thread: the worker's loop reads the database, if it answers in time."""
        loop = self.recorder.loop
        if loop is None or loop.is_closed():
            return self._counted()
        reading = asyncio.run_coroutine_threadsafe(self._database.read(), loop)
        if _is_running(loop):
            # The caller keeps the loop from reading; the next caller gets what is read then.
            return self._counted() | self._database.last
        try:
            return self._counted() | reading.result(PATIENCE + 1)
        except Exception:
            # The loop is blocked, or ends. Old readings would be taken for new ones.
            reading.cancel()
            return self._counted()

    def _counted(self) -> Readings:
        self.recorder.sample()
        total = self.recorder.cells.read()
        if self.others is not None:
            add(total, self.others())
        add_successes(total)
        return total

    # Collector

    def describe(self) -> Iterable[Metric]:
        """Return all families without samples."""
        return list(families({}))

    def collect(self) -> Iterable[Metric]:
        """Return all families with their samples."""
        return families(self.read_from_thread())

    async def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return all samples as text, and the content type, as the header `Accept` asks for."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Fixed(await self.read()))
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    """True if this thread executes code of the loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


class _Fixed(Collector):
    """A collector of numbers that were read before."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        return families(self._readings)


def families(readings: Readings) -> Iterator[Metric]:
    """Make the families of all instruments, in their order."""
    by_name: dict[str, list[tuple[tuple[str, ...], list[float]]]] = {}
    for (name, labels), values in sorted(readings.items()):
        by_name.setdefault(name, []).append((labels, values))
    for name, instrument in INSTRUMENTS.items():
        yield _family(instrument, by_name.get(name, []))


def _family(instrument: Instrument, series: list[tuple[tuple[str, ...], list[float]]]) -> Metric:
    if instrument.kind is Kind.HISTOGRAM:
        histogram = HistogramMetricFamily(instrument.name, instrument.help, labels=instrument.labels)
        for labels, values in series:
            counts = list(accumulate(values[:-1]))
            bounds = [*(f"{one:g}" for one in instrument.buckets), "+Inf"]
            histogram.add_metric(labels, list(zip(bounds, counts, strict=True)), values[-1])
        return histogram
    make = CounterMetricFamily if instrument.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(instrument.name, instrument.help, labels=instrument.labels)
    for labels, values in series:
        family.add_metric(labels, values[0])
    return family


def metrics_of(engine: Engine) -> Metrics:
    """Return the metrics of an engine, which are made if there are none."""
    for one in session_of(engine).system.telemetry.listeners:
        if isinstance(one, Recorder) and isinstance(one.shown_by, Metrics):
            return one.shown_by
    return Metrics(engine)
