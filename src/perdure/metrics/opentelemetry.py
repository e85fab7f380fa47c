"""The same instruments through the metrics API of OpenTelemetry; the SDK is the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, get_meter

from perdure.client.engine import Engine
from perdure.metrics.cells import Labels, Readings
from perdure.metrics.instruments import INSTRUMENTS, Instrument, Kind
from perdure.metrics.prometheus import Metrics


class OpenTelemetryMetrics:
    """Exports the instruments of an engine through a meter of OpenTelemetry.

    Counters and gauges are read when the SDK asks for them; values of histograms are recorded at once.
    """

    def __init__(self, engine: Engine, meter: Meter | None = None, *, metrics: Metrics | None = None) -> None:
        """`meter`: by default one of the global provider. `metrics`: what also a Prometheus registry shows."""
        meter = get_meter("perdure") if meter is None else meter
        self.metrics = Metrics(engine) if metrics is None else metrics
        self._histograms: dict[str, Histogram] = {}
        self._reading: Readings = {}
        #: Instruments that have not been shown with this reading.
        self._unread: set[str] = set()
        for one in INSTRUMENTS.values():
            if one.kind is Kind.HISTOGRAM:
                self._histograms[one.name] = meter.create_histogram(
                    one.dotted, one.unit, one.help, explicit_bucket_boundaries_advisory=list(one.buckets)
                )
            elif one.kind is Kind.COUNTER:
                meter.create_observable_counter(one.dotted, [self._reader(one)], one.unit, one.help)
            else:
                meter.create_observable_gauge(one.dotted, [self._reader(one)], one.unit, one.help)
        self.metrics.recorder.sink = self._record

    def close(self) -> None:
        """Stop counting."""
        self.metrics.recorder.sink = None
        self.metrics.close()

    def _record(self, instrument: Instrument, labels: Labels, value: float) -> None:
        self._histograms[instrument.name].record(value, dict(zip(instrument.labels, labels, strict=True)))

    def _read_for(self, instrument: Instrument) -> Readings:
        """Return all numbers, read once for all instruments of a collection, which asks for each of them once.

        The SDK gives up a collection after ten seconds, and a reading takes several while the loop is blocked.
        """
        if instrument.name not in self._unread:
            self._reading = self.metrics.read_from_thread()
            self._unread = set(INSTRUMENTS)
        self._unread.discard(instrument.name)
        return self._reading

    def _reader(self, instrument: Instrument) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterable[Observation]:
            for (name, labels), values in self._read_for(instrument).items():
                if name == instrument.name:
                    yield Observation(values[0], dict(zip(instrument.labels, labels, strict=True)))

        return read
