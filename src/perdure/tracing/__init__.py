"""Traces with OpenTelemetry: spans of what an engine and its workers do."""

from perdure.tracing.spans import Tracing

__all__ = [
    "Tracing",
]
