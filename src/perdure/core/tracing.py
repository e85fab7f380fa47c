"""Traces: the ids of spans, and what a worker tells the tracer of an engine.

A replay makes no spans: the span of an attempt is made when its function is called, and every other span when the turn
that records the thing is durable. The id of a span follows from run, location and attempt, so that workers which never
meet agree on the parents. `perdure.tracing` has the tracer for OpenTelemetry.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextvars import Context, ContextVar
from typing import Any, Protocol

from perdure.core.model.headers import NO_HEADERS, Headers, is_value
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message
from perdure.core.model.run import NewRun, Run
from perdure.core.model.turn import Turn
from perdure.errors import UsageError

#: Headers of a request that carry the context of a trace, by the W3C.
W3C_HEADERS = ("traceparent", "tracestate", "baggage")

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")

#: The headers among them of the request that the caller serves. Runs that it starts get them.
request_headers: ContextVar[Headers] = ContextVar("perdure_request_headers", default=NO_HEADERS)


def derived_id(size: int, *parts: object) -> int:
    """Id of that many bytes that follows from some values; never 0."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=size).digest(), "big") or 1


def carried_headers(found: Mapping[str, str]) -> Headers:
    """Return the headers of a request that carry the context of a trace; none without a valid `traceparent`."""
    if _TRACEPARENT.fullmatch(found.get("traceparent", "")) is None:
        return NO_HEADERS
    carried = {name: found[name] for name in W3C_HEADERS if name in found}
    return {name: value for name, value in carried.items() if is_value(value)}


def trace_id_of(headers: Headers) -> str:
    """Id of the trace in the headers of a run, in hexadecimal digits; empty if there is none."""
    found = headers.get("traceparent", "")
    return found[3:35] if _TRACEPARENT.fullmatch(found) is not None else ""


class AttemptSpan(Protocol):
    """The span of an attempt that is under way."""

    def attach(self) -> Any:
        """Make it the current span of the calling context; returns what `detach` needs."""

    def detach(self, token: Any, /) -> None:
        """Make the span before it the current one again."""

    def ended(self, error: BaseException | None, /, *, outcome: str, at: int) -> None:
        """Note the end of the function. Calling it again changes nothing."""

    def publish(self) -> None:
        """End the span, with the time that was noted. Calling it again changes nothing."""


class RunTrace(Protocol):
    """The part of a trace that belongs to an attempt at a run."""

    #: Whether spans are made.
    sampled: bool

    #: Context variables of the steps that the run calls, once `set_variables` was called; None if spans are made.
    variables: Context | None

    def attach(self) -> Any:
        """Make the span of the run the current one of the calling context; returns what `detach` needs."""

    def detach(self, token: Any, /) -> None:
        """Make the span before it the current one again."""

    def set_variables(self, worker: Context, /) -> Context:
        """Make `variables` from those of the worker: beside them the span of the run is current."""

    @property
    def trace_id(self) -> str:
        """Id of the trace, in hexadecimal digits."""

    def attempt_begun(self, location: str, name: str, number: int, at: int, /, *, key: str = "") -> AttemptSpan:
        """Make the span of an attempt whose function is about to be called.

        `key` tells it from another call of the same attempt.
        """

    def keep(self, location: str, span: AttemptSpan) -> None:
        """Keep the span of an attempt that has ended until its record is durable."""

    def let_go(self) -> None:
        """Publish the spans that were kept: the worker lets go of the run."""

    def interrupted(self, location: str, name: str, number: int, since: int, interruption: Interruption) -> None:
        """Make the span of an attempt that ended with its worker."""

    def arrived(self, messages: Iterable[Message]) -> None:
        """Note when messages were sent that the next turns record."""

    def fired(self, location: str) -> None:
        """Note that a timer has fired, which the next turn records."""

    def traced_child(self, child: NewRun, now: int) -> NewRun:
        """Give a run that this one starts the context of the trace, and note that it is awaited if it is a child."""

    def awaits(self, location: str, since: int) -> None:
        """Note a child that the run has started before and still waits for."""

    def left(self, location: str) -> None:
        """Note that the run no longer waits for a child, as the next turn tells."""

    def claimed(self, run: Run, now: int, seconds: float, runs: int) -> None:
        """Make the span of a claim, whose answer was this row."""

    def publish_recorded(self, turn: Turn) -> None:
        """Publish the kept spans of the attempts that a durable turn has recorded."""

    def committed(self, turn: Turn, now: int, seconds: float, turns: int) -> None:
        """Make the span of the commit, and those of what the turn has recorded."""


class Tracer(Protocol):
    """Makes the spans of an engine."""

    def outgoing(self) -> Headers:
        """Return the headers that carry the context of the caller; none if it has none."""

    def is_active(self) -> bool:
        """Tell whether there is anything that spans go to."""

    def of_run(self, run: Run, is_activity: bool, /) -> RunTrace:
        """Begin or go on with the trace of a run that a worker has claimed."""


def check_tracer(given: object) -> Tracer | None:
    """Check the option `tracing` of an engine. Raises `UsageError`."""
    fits = all(callable(getattr(given, name, None)) for name in ("outgoing", "is_active", "of_run"))
    if given is None or (fits and not isinstance(given, type)):
        return given  # type: ignore[return-value] # its methods are there
    raise UsageError("tracing takes an instance of perdure.tracing.Tracing, such as tracing=Tracing()")
