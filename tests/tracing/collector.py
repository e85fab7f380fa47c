"""A collector of spans: an OTLP/HTTP server for exporters of other processes, and what tests ask of spans."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from msgspec import Struct
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.trace import ReadableSpan


class Seen(Struct, frozen=True):
    """A span, as a collector sees it."""

    name: str
    trace_id: int
    span_id: int
    parent_id: int
    start: int
    end: int
    attributes: dict[str, Any]
    links: tuple[int, ...]
    failed: bool

    @property
    def told(self) -> tuple[str, int, str]:
        """Name, number of the attempt and outcome."""
        return self.name, self.attributes.get("perdure.attempt", 0), self.attributes.get("perdure.outcome", "")


def of_sdk(spans: Iterable[ReadableSpan]) -> list[Seen]:
    found = []
    for one in spans:
        assert one.context is not None
        found.append(
            Seen(
                *(one.name, one.context.trace_id, one.context.span_id, 0 if one.parent is None else one.parent.span_id),
                *(one.start_time or 0, one.end_time or 0, dict(one.attributes or {})),
                tuple(link.context.span_id for link in one.links),
                not one.status.is_ok,
            )
        )
    return found


class Spans:
    """Spans that were received."""

    def __init__(self, seen: Iterable[Seen] = ()) -> None:
        self.all = list(seen)
        #: The id of a span that another program has made.
        self.outside = 0

    def named(self, name: str) -> list[Seen]:
        return [one for one in self.all if one.name == name]

    def one(self, name: str) -> Seen:
        [found] = self.named(name)
        return found

    def told(self) -> Counter[tuple[str, int, str]]:
        """How often each span but those of claims and commits was received."""
        return Counter(one.told for one in self.all if one.name not in ("claim", "commit"))

    def parent(self, span: Seen) -> str:
        """The name of the parent; empty for a root. Fails if the parent was never received."""
        if not span.parent_id or span.parent_id == self.outside:
            return ""
        [found] = [one for one in self.all if (one.span_id, one.trace_id) == (span.parent_id, span.trace_id)]
        return found.name

    def check(self) -> None:
        """No span came twice, and none has a parent that is not there."""
        assert [number for number in Counter(one.span_id for one in self.all).values() if number > 1] == []
        for one in self.all:
            self.parent(one)


@contextmanager
def collector() -> Iterator[tuple[str, Spans]]:
    """An OTLP/HTTP server: its address, and the spans that have come so far."""
    spans = Spans()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            spans.all += [
                _of_otlp(span)
                for resource in request.resource_spans
                for scope in resource.scope_spans
                for span in scope.spans
            ]
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", spans
    finally:
        server.shutdown()
        server.server_close()


def _of_otlp(span: Any) -> Seen:
    return Seen(
        *(span.name, int.from_bytes(span.trace_id, "big"), int.from_bytes(span.span_id, "big")),
        *(int.from_bytes(span.parent_span_id, "big"), span.start_time_unix_nano, span.end_time_unix_nano),
        {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes},
        tuple(int.from_bytes(link.span_id, "big") for link in span.links),
        span.status.code == span.status.STATUS_CODE_ERROR,
    )
