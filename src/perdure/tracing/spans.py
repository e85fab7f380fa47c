"""Traces with OpenTelemetry: spans of runs, steps, activities, children, messages, timers, claims and commits.

Install `perdure[otel]`, which brings the API of OpenTelemetry; the program brings the SDK. The guide on traces lists
the spans, their parents and their attributes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context as Variables
from contextvars import ContextVar, Token
from functools import partial
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from perdure.core.codec.failure import Failure
from perdure.core.model.headers import (
    MOST_HEADERS,
    NO_HEADERS,
    Headers,
    headers_of,
    is_value,
    readable_headers,
    with_headers,
)
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import NO_OPTIONS, NewRun, Run
from perdure.core.model.run import Status as RunStatus
from perdure.core.model.turn import ContinueAsNew, Finish, RetryLater, Turn
from perdure.core.option_checks import check_duration
from perdure.core.time.duration import Duration
from perdure.core.time.schedule import fire_time_of
from perdure.core.tracing import AttemptSpan, RunTrace, derived_id
from perdure.errors import DecodeError, InvalidId

logger = logging.getLogger("perdure.tracing")

_SAMPLED, _UNSAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags(TraceFlags.DEFAULT)
_NO_CONTEXT = Context()
#: Makes the hash of the ids of a run. A copy is cheaper than a new one, which parses its options.
_new_hash = blake2b(digest_size=24).copy
#: Key of the current span in a context, by which a context is made for each run without copies.
[_SPAN_KEY] = trace.set_span_in_context(trace.INVALID_SPAN, _NO_CONTEXT)
# Looking up an enum member through its class is slow; this one is needed for every run.
_CONSUMER = SpanKind.CONSUMER
_MESSAGE, _CHILD, _TIMER = RecordKind.MESSAGE, RecordKind.CHILD, RecordKind.TIMER

#: Ids of the next span that this code makes: of its trace, if it is a root, and of itself.
_next_ids: ContextVar[tuple[int, int] | None] = ContextVar("perdure_next_ids", default=None)


class _ChosenIds:
    """An id generator for the tracer of this module: gives the ids that were chosen, and otherwise random ones."""

    def __init__(self, others: Any) -> None:
        self._others = others

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        chosen = _next_ids.get()
        return int(self._others.generate_trace_id()) if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        """Return the id of a new span."""
        chosen = _next_ids.get()
        return int(self._others.generate_span_id()) if chosen is None else chosen[1]

    def is_trace_id_random(self) -> bool:
        """Tell whether ids of traces are random; those that follow from a run are not."""
        return _next_ids.get() is None and bool(self._others.is_trace_id_random())


class Tracing:
    """Makes spans of what an engine does: `Engine(url, workflows, tracing=Tracing())`.

    Spans go to the given tracer provider, or to the global one, which has to be set before a worker starts. A run that
    begins later than `link_after` after it was asked for has a trace of its own, with a link to its producer.
    """

    def __init__(self, provider: trace.TracerProvider | None = None, *, link_after: Duration = "1h") -> None:
        self._provider = provider
        #: In microseconds.
        self.link_after = int(check_duration("link_after", link_after) * 1e6)
        #: Begins or goes on with the trace of a run that a worker has claimed. Called for each, so without a method.
        self.of_run: Callable[[Run, bool], RunTrace] = partial(_RunTrace, self)
        #: The tracer, once there is a provider.
        self.tracer: trace.Tracer | None = None
        #: The sampler of the tracer; None: it has none that may be asked.
        self.sampler: Any = None
        #: A decision of the sampler that records nothing. Most are the same object.
        self.usual_decision: object = None

    def is_active(self) -> bool:
        """Tell whether there is a tracer provider; logs a warning if there is none."""
        if self.tracer is not None:
            return True
        provider = self._provider or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            logger.warning("no spans are made: set a tracer provider before the worker starts, or give it to Tracing()")
            return False
        tracer = provider.get_tracer("perdure")
        generator = getattr(tracer, "id_generator", None)
        if generator is not None:
            # The tracer of the SDK is this module's own; other tracers of the provider keep their generator.
            tracer.id_generator = _ChosenIds(generator)  # type: ignore[attr-defined] # of the SDK's tracer
        self.tracer = tracer
        self.sampler = getattr(tracer, "sampler", None)
        return True

    def outgoing(self) -> Headers:
        """Return the headers that carry the context of the caller; none if it has no span and no baggage."""
        if not contexts.get_current():
            return NO_HEADERS
        carrier = _injected(contexts.get_current())
        return {name: value for name, value in carrier.items() if is_value(value)}


class _RunSpan(NonRecordingSpan):
    """The span of a run, as the current one. Steps that do not look at it do not pay for its identity."""

    def __init__(self, parts: _Parts) -> None:
        # Without the run's part of the trace, which refers to this span: a cycle would have to be collected.
        self._parts = parts

    def get_span_context(self) -> SpanContext:
        """Return its identity."""
        return _span_context(*self._parts)

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"


#: Trace id, digest that has the id of the span, attempt, flags, and state of the trace.
_Parts = tuple[int, bytes, int, TraceFlags, TraceState | None]


def _span_context(
    trace_id: int, digest: bytes, attempt: int, flags: TraceFlags, state: TraceState | None
) -> SpanContext:
    return SpanContext(trace_id, int.from_bytes(digest[16:], "big") ^ attempt or 1, True, flags, state)


class _RunTrace:
    """The part of a trace that belongs to an attempt at a run.

    For a workflow it has a span of its own, which is made when the attempt has ended; its id is known before. For an
    activity the span of the attempt is this span.

    Most traces are not recorded. So what only a recorded run or a step needs is made when it is asked for.
    """

    #: The producer, if it is too old to be the parent.
    _links: tuple[Link, ...] = ()
    #: Context of the producer.
    _above = _NO_CONTEXT
    #: Context with the baggage of the producer, and no span.
    _base = _NO_CONTEXT
    _state: TraceState | None = None
    _sampler_failed = False
    _own_context: SpanContext | None = None
    _inside_context: Context | None = None
    #: Context variables of the steps that the run calls, once `set_variables` was called; None if spans are made.
    variables: Variables | None = None

    def __init__(self, tracing: Tracing, run: Run, is_activity: bool, /) -> None:
        self._tracing = tracing
        self._run = run
        self._is_activity = is_activity
        waited = run.started_at - run.created_at > tracing.link_after
        text = f"{run.id}\0{run.generation}\0{run.attempt if waited else 0}"
        # One digest for the ids of the trace and of the span.
        hashing = _new_hash()
        hashing.update(text.encode())
        self._digest = digest = hashing.digest()
        self._trace_id = int.from_bytes(digest[:16], "big") or 1
        if run.options != NO_OPTIONS and (headers := run.headers):
            self._follow(_extracted(headers), waited=waited)
        #: Whether spans are made.
        self.sampled = sampled = tracing.sampler is None
        if not sampled:
            # As the tracer will when it makes the span of the run.
            name = f"activity {run.type}" if is_activity else f"run {run.type}"
            try:
                result = tracing.sampler.should_sample(self._above, self._trace_id, name, _CONSUMER, None, self._links)
                if result.decision is not tracing.usual_decision:
                    self.sampled = sampled = bool(result.decision.is_sampled())
                    if not sampled:
                        tracing.usual_decision = result.decision
            except Exception as error:
                self._note_sampler_failure(error)
        if sampled:
            self._sent_at: dict[int, int] = {}
            self._fired: set[str] = set()
            #: Times at which children were called that the run waits for, by location.
            self._children: dict[str, int] = {}
            self._left: list[str] = []
            #: Spans of attempts whose records are not durable, by location.
            self._kept: dict[str, list[AttemptSpan]] = {}

    def _follow(self, base: Context, *, waited: bool) -> None:
        """Make the producer's span the parent of this one, or a link."""
        self._above = self._base = base
        producer = trace.get_current_span(base).get_span_context()
        if not producer.is_valid:
            return
        if waited or self._run.generation > 1 or _is_scheduled(self._run.id):
            self._links = (Link(producer),)
            self._above = trace.set_span_in_context(trace.INVALID_SPAN, base)
        else:
            self._trace_id, self._state = producer.trace_id, producer.trace_state

    def _note_sampler_failure(self, error: Exception) -> None:
        if not self._sampler_failed:
            # Once: it fails for every run.
            type(self).mark_sampler_failed()
            text = "the sampler failed; run %s, and others after it, are not recorded"
            logger.error(text, self._run.id, exc_info=error)

    @classmethod
    def mark_sampler_failed(cls) -> None:
        """Report no more failures of samplers."""
        cls._sampler_failed = True

    @property
    def _parts(self) -> _Parts:
        flags = _SAMPLED if self.sampled else _UNSAMPLED
        return self._trace_id, self._digest, self._run.attempt, flags, self._state

    @property
    def own(self) -> SpanContext:
        """Identity of the run's span."""
        if self._own_context is None:
            self._own_context = _span_context(*self._parts)
        return self._own_context

    @property
    def _inside(self) -> Context:
        """Context of what the run does: its span, and the baggage of the producer."""
        if self._inside_context is None:
            self._inside_context = Context({**self._base, _SPAN_KEY: _RunSpan(self._parts)})
        return self._inside_context

    def attach(self) -> Token[Context]:
        """Make the span of the run the current one of the calling context."""
        return contexts.attach(self._inside)

    def detach(self, token: Token[Context], /) -> None:
        """Make the span before it the current one again."""
        contexts.detach(token)

    def set_variables(self, worker: Variables, /) -> Variables:
        """Make the context variables of steps from those of the worker: beside them the span of the run is current."""
        span = _RunSpan((self._trace_id, self._digest, self._run.attempt, _UNSAMPLED, self._state))
        self.variables = variables = worker.copy()
        variables.run(contexts.attach, Context({**self._base, _SPAN_KEY: span}))
        return variables

    @property
    def trace_id(self) -> str:
        """Id of the trace, in hexadecimal digits."""
        return trace.format_trace_id(self._trace_id)

    @property
    def _attributes(self) -> dict[str, Any]:
        """Attributes of each span."""
        return {"perdure.run.id": self._run.id, "perdure.run.type": self._run.type}

    @property
    def _own_attributes(self) -> dict[str, Any]:
        """Attributes of the span of the run or the activity."""
        run = self._run
        place = {"perdure.run.attempt": run.attempt, "perdure.run.generation": run.generation}
        return {**self._attributes, **place, "perdure.queue": run.queue}

    # attempts

    def attempt_begun(self, location: str, name: str, number: int, at: int, /, *, key: str = "") -> AttemptSpan:
        """Make the span of an attempt whose function is about to be called."""
        if self.sampled:
            try:
                return _LiveSpan(self._start_attempt(location, name, number, key, at), self._inside)
            except Exception:
                logger.exception("step %s of run %s has no span", location, self._run.id)
        return _Unrecorded(self._inside)

    def _start_attempt(self, location: str, name: str, number: int, key: str = "", since: int | None = None) -> Span:
        if self._is_activity:
            attributes = {**self._own_attributes, "perdure.attempt": number}
            span_id = derived_id(8, "activity", self._run.id, self._run.generation, number)
            return self._start_own(span_id, attributes, since)
        attributes = {**self._attributes, "perdure.location": location, "perdure.attempt": number}
        return self._start(f"step {name}", self._id("step", location, number, key), attributes, since)

    def _id(self, *parts: object) -> int:
        return derived_id(8, self._run.id, self._run.generation, self._run.attempt, *parts)

    def keep(self, location: str, span: AttemptSpan) -> None:
        """Keep the span of an attempt that has ended until its record is durable.

        A worker that is killed before has not published it, so that the next one may tell of the interruption.
        """
        if self.sampled:
            self._kept.setdefault(location, []).append(span)

    def let_go(self) -> None:
        """Publish the spans that were kept: the worker lets go of the run."""
        if self.sampled and self._kept:
            for location in list(self._kept):
                self._publish(location)

    def publish_recorded(self, turn: Turn) -> None:
        """Publish the kept spans of the attempts that a durable turn has recorded.

        After a state of the run no record follows. The outcome of an activity is such a state.
        """
        if turn.next is not None:
            self.let_go()
        elif self.sampled and self._kept:
            for record in turn.records:
                self._publish(record.location)

    def _publish(self, location: str) -> None:
        for span in self._kept.pop(location, ()):
            span.publish()

    def interrupted(self, location: str, name: str, number: int, since: int, interruption: Interruption) -> None:
        """Make the span of an attempt that ended with its worker."""
        if not self.sampled:
            return
        try:
            span = self._start_attempt(location, name, number, since=since)
            span.set_attributes({"perdure.outcome": "interrupted", "perdure.worker": interruption.worker})
            span.set_status(Status(StatusCode.ERROR, "the worker was lost"))
            span.end(max(since, interruption.at) * 1000)
        except Exception:
            logger.exception("an interrupted attempt of run %s has no span", self._run.id)

    # what turns have recorded

    def arrived(self, messages: Iterable[Message]) -> None:
        """Note when messages were sent that the next turns record."""
        if self.sampled:
            self._sent_at.update((one.seq, one.sent_at) for one in messages if one.kind is _MESSAGE)

    def fired(self, location: str) -> None:
        """Note that a timer has fired, which the next turn records."""
        if self.sampled:
            self._fired.add(location)

    def awaits(self, location: str, since: int) -> None:
        """Note a child that the run has started before and still waits for."""
        if self.sampled:
            self._children[location] = since

    def left(self, location: str) -> None:
        """Note that the run no longer waits for a child, as the next turn tells."""
        if self.sampled:
            self._left.append(location)

    def claimed(self, run: Run, now: int, seconds: float, runs: int) -> None:
        """Make the span of the claim, which also tells how long the run was ready."""
        self._run = run
        if self.sampled:
            ready = max(0, now - max(run.wake_at, run.created_at))
            attributes = {**self._attributes, "perdure.batch.size": runs, "perdure.queue.wait": ready / 1e6}
            if run.wake_at == now and run.token == 1:
                # Only an admission makes a run ready and claims it at one time.
                attributes["perdure.limit.wait"] = max(0, now - run.created_at) / 1e6
            begun = now - int(seconds * 1e6)
            try:
                self._start("claim", self._id("claim", run.token), attributes, begun).end(now * 1000)
            except Exception:
                logger.exception("the claim of run %s has no span", run.id)

    def committed(self, turn: Turn, now: int, seconds: float, turns: int) -> None:
        """Make the span of the commit, and those of what the turn has recorded."""
        if not self.sampled:
            return
        for record in turn.records:
            self._recorded(record)
        left, self._left = self._left, []
        if isinstance(turn.next, Finish | ContinueAsNew):
            left = list(self._children)
        for location in left:
            if since := self._children.pop(location, 0):
                self._start_child_span(location, since, "abandoned").end(max(since, now) * 1000)
        if seconds:
            attributes = {**self._attributes, "perdure.batch.size": turns, "perdure.records": len(turn.records)}
            begun, seq = now - int(seconds * 1e6), turn.records[0].seq if turn.records else f"{now}"
            self._start("commit", self._id("commit", turn.lease.token, seq), attributes, begun).end(now * 1000)
        if isinstance(turn.next, Finish | RetryLater | ContinueAsNew) and not self._is_activity:
            self._end_run(turn.next, now)

    def _recorded(self, record: Record) -> None:
        location, name = record.location, record.location.rpartition("/")[2].partition("#")[0]
        attributes = {**self._attributes, "perdure.location": location}
        if record.kind is _TIMER and location in self._fired:
            self._fired.discard(location)
            span = self._start(f"timer {name}", self._id("timer", location), attributes, record.started_at)
        elif record.kind is _MESSAGE and record.inbox_seq:
            attributes = {**self._attributes, "perdure.message": location}
            sent = min(record.at, self._sent_at.pop(record.inbox_seq, record.at))
            key = self._id("message", record.inbox_seq)
            span = self._start(f"message {location}", key, attributes, sent, kind=SpanKind.CONSUMER)
        elif record.kind is _CHILD and record.inbox_seq:
            since = self._children.pop(location, 0) or record.started_at
            if not since and self._run.attempt == 1:
                # The end of a child that the run has left behind before, which was told then.
                return
            span = self._start_child_span(location, since or self._run.started_at)
            if record.failed:
                _fail(span, record.payload)
        else:
            return
        span.end(record.at * 1000)

    def _end_run(self, after: Finish | RetryLater | ContinueAsNew, now: int) -> None:
        error = None
        if isinstance(after, Finish):
            outcome, error = after.status.value, None if after.status is RunStatus.COMPLETED else after.payload
        elif isinstance(after, RetryLater):
            outcome, error = "retrying", after.error
        else:
            outcome = "continued"
        span = self._start_own(self.own.span_id, self._own_attributes, self._run.started_at)
        span.set_attribute("perdure.outcome", outcome)
        if error is not None:
            _fail(span, error, is_error=outcome != RunStatus.CANCELLED.value)
        span.end(max(now, self._run.started_at) * 1000)

    # the runs that this one starts

    def _start_child_span(self, location: str, since: int, outcome: str = "") -> Span:
        attributes = {**self._attributes, "perdure.location": location}
        if outcome:
            attributes["perdure.outcome"] = outcome
        name = f"child {location.rpartition('/')[2].partition('#')[0]}"
        return self._start(name, self._child_id(location), attributes, since, kind=SpanKind.PRODUCER)

    def _child_id(self, location: str) -> int:
        # Without the attempt: a later attempt at the run awaits the same child.
        return derived_id(8, "child", self._run.id, self._run.generation, location)

    def traced_child(self, child: NewRun, now: int) -> NewRun:
        """Give a run that this one starts the context of the trace, unless it was given another.

        A child is also noted as awaited.
        """
        try:
            headers = dict(headers_of(child.options))
        except DecodeError:
            return child
        own = readable_headers(self._run.options)
        above = self.own
        if child.parent_id == self._run.id and child.parent_location is not None:
            span_id = self._child_id(child.parent_location)
            if self.sampled:
                self._children.setdefault(child.parent_location, now)
            above = SpanContext(above.trace_id, span_id, True, above.trace_flags, above.trace_state)
        carrier = _injected(trace.set_span_in_context(NonRecordingSpan(above), self._inside))
        for name, value in carrier.items():
            if headers.get(name) == own.get(name) and is_value(value):
                headers[name] = value
        return child if len(headers) > MOST_HEADERS else replace(child, options=with_headers(child.options, headers))

    # making spans

    def _start_own(self, span_id: int, attributes: dict[str, Any], since: int | None) -> Span:
        has_ids = isinstance(getattr(self._tracing.tracer, "id_generator", None), _ChosenIds)
        # Where ids cannot be chosen, the span is a child of the one that others name as their parent.
        above = self._above if has_ids else self._inside
        name = f"{'activity' if self._is_activity else 'run'} {self._run.type}"
        return self._make(name, span_id, above, attributes, since, SpanKind.CONSUMER, self._links)

    def _start(
        self, name: str, span_id: int, attributes: dict[str, Any], since: int | None, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        # The claims and commits of an activity are siblings of its attempts.
        above = self._above if self._is_activity else self._inside
        return self._make(name, span_id, above, attributes, since, kind, ())

    def _make(
        self,
        name: str,
        span_id: int,
        above: Context,
        attributes: dict[str, Any],
        since: int | None,
        kind: SpanKind,
        links: Sequence[Link],
    ) -> Span:
        token = _next_ids.set((self.own.trace_id, span_id))
        try:
            assert self._tracing.tracer is not None
            return self._tracing.tracer.start_span(
                name, above, kind, attributes, links, start_time=None if since is None else since * 1000
            )
        finally:
            _next_ids.reset(token)


class _Unrecorded:
    """The span of an attempt in a trace that is not recorded: only its context travels."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def attach(self) -> Token[Context]:
        """Make it the current span of the calling context."""
        return contexts.attach(self._context)

    def detach(self, token: Token[Context], /) -> None:
        """Make the span before it the current one again."""
        contexts.detach(token)

    def ended(self, error: BaseException | None, /, *, outcome: str, at: int) -> None:
        """Do nothing."""

    def publish(self) -> None:
        """Do nothing."""


class _LiveSpan(_Unrecorded):
    """The span of an attempt that is under way."""

    def __init__(self, span: Span, context: Context) -> None:
        super().__init__(trace.set_span_in_context(span, context))
        self._span: Span | None = span
        self._ended_at = 0

    def ended(self, error: BaseException | None, /, *, outcome: str, at: int) -> None:
        """Note the end of the function. Calling it again changes nothing."""
        span = self._span
        if span is None or self._ended_at:
            return
        self._ended_at = at
        try:
            span.set_attribute("perdure.outcome", outcome)
            if error is not None:
                span.record_exception(error)
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        except Exception:
            logger.exception("the span of an attempt has no outcome")

    def publish(self) -> None:
        """End the span, with the time that was noted. Calling it again changes nothing."""
        span, self._span = self._span, None
        try:
            if span is not None:
                span.end(self._ended_at * 1000 or None)
        except Exception:
            logger.exception("the span of an attempt cannot be ended")


def _injected(context: Context) -> dict[str, str]:
    """Headers that carry a context; none if a propagator of the user fails."""
    carrier: dict[str, str] = {}
    try:
        propagate.inject(carrier, context)
    except Exception:
        logger.exception("the context of a trace cannot be passed on")
        return {}
    return carrier


def _extracted(headers: Headers) -> Context:
    """Context that headers carry; none if a propagator of the user fails."""
    try:
        return propagate.extract(headers, _NO_CONTEXT)
    except Exception:
        logger.exception("the context of a trace cannot be read from the headers of a run")
        return _NO_CONTEXT


def _is_scheduled(run_id: str) -> bool:
    """Tell whether a schedule has started the run: what created the schedule may be years old."""
    try:
        return "@" in run_id and fire_time_of(run_id) is not None
    except InvalidId:
        return False


def _fail(span: Span, payload: str | None, *, is_error: bool = True) -> None:
    failure = Failure.read(payload)
    span.set_attribute("error.type", failure.type)
    if is_error:
        span.set_status(Status(StatusCode.ERROR, f"{failure}"))
