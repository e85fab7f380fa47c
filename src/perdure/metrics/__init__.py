"""Metrics of an engine, for Prometheus. Needs the extra `metrics`.

`perdure.metrics.opentelemetry` has the same instruments for OpenTelemetry.
"""

from perdure.metrics.instruments import INSTRUMENTS as INSTRUMENTS
from perdure.metrics.instruments import Instrument as Instrument
from perdure.metrics.prometheus import Metrics as Metrics

__all__ = ["INSTRUMENTS", "Instrument", "Metrics"]
