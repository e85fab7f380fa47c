"""Values of the Python API, made from the answers of the HTTP API.

A field has the name that it has in the answer. Times come as RFC 3339 and become microseconds; payloads come as JSON
and stay the text that they are. Fields that no answer has, such as the proof of a lease, are empty.
"""

from __future__ import annotations

import datetime
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw, Struct

from perdure.core.access import TokenInfo
from perdure.core.codec.decoders import convert_to, decoder_for
from perdure.core.codec.failure import Failure
from perdure.core.limits.breaker import BreakerInfo
from perdure.core.limits.limit import LimitBounds, LimitInfo
from perdure.core.model.attributes import attributes_to_json, make_attributes
from perdure.core.model.headers import with_headers
from perdure.core.model.record import Message, Record
from perdure.core.model.reports import RunReport
from perdure.core.model.run import NO_OPTIONS, Run, Status
from perdure.core.model.waits import RunWaits, Wait
from perdure.core.model.worker_info import DrainOrder, RunningStep, RunningSteps, WorkerInfo
from perdure.core.time.cron import At, Cron, Every, Timing, Window, to_stored
from perdure.core.time.duration import NEVER, instant
from perdure.core.time.schedule import Schedule

S = TypeVar("S", bound=Struct)

#: Fields that are payloads, and those that are errors, wherever they occur.
_PAYLOADS = frozenset({"input", "output", "payload", "data"})
_NULL = b"null"
#: Times that are "never" where the answer has null.
_ENDLESS = frozenset({"wake_at", "deadline", "next_fire_time", "due_at"})
_EMPTY: dict[Any, Any] = {int: 0, str: "", bool: False, float: 0.0}

_object = decoder_for(dict[str, Raw])
_array = decoder_for(list[Raw])
_plain = msgspec.json.Decoder()


def members(answer: bytes | Raw) -> dict[str, Raw]:
    """Members of an object, not decoded."""
    return _object.decode(answer)


def decoded(answer: bytes | Raw, name: str, type: Any = Any) -> Any:
    """One member of an object."""
    value = _plain.decode(members(answer)[name])
    return value if type is Any else convert_to(type, value)


def elements(answer: bytes | Raw) -> list[Raw]:
    """Elements of an array, not decoded."""
    return _array.decode(answer)


def text_of(value: Raw | None) -> str | None:
    """The JSON of a payload; None if there is none."""
    return None if value is None or bytes(value) == _NULL else bytes(value).decode()


def time_of(value: Raw) -> int:
    """A time in microseconds; 0 for null."""
    return 0 if bytes(value) == _NULL else instant(datetime.datetime.fromisoformat(_plain.decode(value)), 0)


@cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return get_type_hints(kind)


def restore(kind: type[S], answer: bytes | Raw, **known: Any) -> S:
    """Make a value of a class from an object; `known` are fields that the object does not have, or has otherwise."""
    found = members(answer)
    for field in msgspec.structs.fields(kind):
        name, hint = field.name, _hints(kind)[field.name]
        if name in known:
            continue
        value = found.get(name)
        if value is not None:
            known[name] = _restored(name, hint, value)
        elif field.required:
            known[name] = _EMPTY.get(hint)
    return kind(**known)


def restore_all(kind: type[S], answer: bytes | Raw, **known: Any) -> list[S]:
    """Make values of a class from an array."""
    make = _SPECIAL.get(kind, restore)
    return [make(kind, one, **known) for one in elements(answer)]


def _restored(name: str, hint: Any, value: Raw) -> Any:
    if name in _PAYLOADS:
        return text_of(value) or ("null" if hint is str else None)
    if hint is int and bytes(value) == _NULL:
        return NEVER if name in _ENDLESS else 0
    if hint is int and bytes(value).startswith(b'"'):
        return time_of(value)
    if hint is Failure:
        return failure_of(value)
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _SPECIAL.get(hint, restore)(hint, value)
    if get_origin(hint) is tuple and isinstance(member := get_args(hint)[0], type) and issubclass(member, Struct):
        return tuple(restore_all(member, value))
    return convert_to(hint, _plain.decode(value))


def failure_of(answer: Raw | bytes) -> Failure:
    """An error."""
    found = members(answer)
    failure = _failure_decoder.decode(answer)
    cause = found.get("cause", Raw(_NULL))
    return Failure(
        type=failure.type,
        message=failure.message,
        notes=failure.notes,
        traceback=failure.traceback,
        args=text_of(found.get("args")),
        state=text_of(found.get("state")),
        partial=text_of(found.get("partial")),
        cause=None if bytes(cause) == _NULL else failure_of(cause),
        members=tuple(failure_of(one) for one in elements(found.get("members", Raw(b"[]")))),
        not_undone={name: failure_of(one) for name, one in members(found.get("not_undone", Raw(b"{}"))).items()},
    )


class _PlainFailure(Struct, frozen=True):
    """The texts of an error."""

    type: str = "Exception"
    message: str = ""
    notes: tuple[str, ...] = ()
    traceback: str = ""


_failure_decoder = decoder_for(_PlainFailure)


def _error_text(found: dict[str, Raw]) -> str | None:
    value = found.get("error", Raw(_NULL))
    return None if bytes(value) == _NULL else failure_of(value).to_json()


def attributes_of(answer: Raw | bytes) -> dict[str, Any]:
    """Attributes by name; a time comes as an object."""
    found: dict[str, Any] = _plain.decode(answer)
    return {name: attribute_of(value) for name, value in found.items()}


def attribute_of(value: Any) -> Any:
    """The value of an attribute."""
    return datetime.datetime.fromisoformat(value["time"]) if isinstance(value, dict) else value


def _run(kind: type[Run], answer: Raw | bytes) -> Run:
    found = members(answer)
    output = text_of(found.get("output"))
    if output is None and decoded(answer, "status", Status) is Status.COMPLETED:
        output = "null"
    attributes = attributes_of(found.get("attributes", Raw(b"{}")))
    known = {"error": _error_text(found), "output": output, "attributes": attributes, "options": _options_of(found)}
    if "revision" in found:
        known["token"] = decoded(answer, "revision", int)
    return restore(kind, answer, **known)


def _options_of(found: dict[str, Raw]) -> str:
    """Options with the headers of an answer; it has no other options."""
    return with_headers(NO_OPTIONS, _plain.decode(found.get("headers", Raw(b"{}"))))


def _record(kind: type[Record], answer: Raw | bytes) -> Record:
    found = members(answer)
    return restore(kind, answer, payload=_error_text(found) or text_of(found["result"]))


def _message(kind: type[Message], answer: Raw | bytes, run_id: str) -> Message:
    found = members(answer)
    error = _error_text(found)
    return restore(kind, answer, run_id=run_id, payload=error or text_of(found["value"]), failed=error is not None)


def _report(kind: type[RunReport], answer: Raw | bytes) -> RunReport:
    waits, more = tuple(restore_all(Wait, members(answer)["waits"])), decoded(answer, "waits_more", int)
    running = tuple(restore_all(RunningStep, members(answer)["running"]))
    return restore(
        kind, answer, running=running, waits=RunWaits(token=0, waits=waits, more=more) if waits or more else None
    )


def _worker(kind: type[WorkerInfo], answer: Raw | bytes) -> WorkerInfo:
    found = members(answer)
    steps = tuple(restore_all(RunningStep, found["running"]))
    return restore(
        kind,
        answer,
        lease=round(decoded(answer, "lease_seconds", float) * 1e6),
        running=RunningSteps(steps=steps, more=decoded(answer, "running_more", int)),
        drain=None if bytes(found["drain"]) == _NULL else restore(DrainOrder, found["drain"], key=""),
        read_at=time_of(found["heartbeat_at"]) + round(decoded(answer, "silence", float) * 1e6),
    )


def _schedule(kind: type[Schedule], answer: Raw | bytes) -> Schedule:
    found = members(answer)
    return restore(
        kind,
        answer,
        spec=_spec(found),
        deadline=round((decoded(answer, "deadline_seconds", float | None) or 0) * 1e6),
        jitter=round(decoded(answer, "jitter_seconds", float) * 1e6),
        waiting=tuple(time_of(one) for one in elements(found["waiting"])),
        attributes=attributes_to_json(make_attributes(attributes_of(found["attributes"]))),
        options=_options_of(found),
        last_run=decoded(answer, "last_run") or "",
        error=decoded(answer, "error") or "",
    )


class _Timing(Struct, frozen=True):
    """Timing of a schedule, as an answer has it."""

    cron: str | None = None
    zone: str | None = None
    every: float | None = None
    start: datetime.datetime | None = None
    at: datetime.datetime | None = None


_dates_decoder: msgspec.json.Decoder[tuple[datetime.date, ...]] = decoder_for(tuple[datetime.date, ...])
_moment_decoder: msgspec.json.Decoder[datetime.datetime | None] = decoder_for(cast("Any", datetime.datetime | None))
_timing_decoder: msgspec.json.Decoder[_Timing | None] = decoder_for(cast("Any", _Timing | None))


def _spec(answer: dict[str, Raw]) -> str:
    found = _timing_decoder.decode(answer["timing"])
    timing: Timing
    match found:
        case _Timing(cron=str(cron)):
            timing = Cron(cron, found.zone or "UTC")
        case _Timing(every=float(every)):
            timing = Every(datetime.timedelta(seconds=every), found.start)
        case _Timing(at=datetime.datetime() as at):
            timing = At(at)
        case _:
            # The server cannot read it either; the schedule's error says why.
            return ""
    starts, ends = (_moment_decoder.decode(answer.get(name, _NULL)) for name in ("starts", "ends"))
    return to_stored(Window(timing, starts, ends, _dates_decoder.decode(answer.get("skip", b"[]"))))


def _bounds(kind: type[LimitBounds], answer: Raw | bytes) -> LimitBounds:
    per_second = decoded(answer, "per_second", float | None)
    concurrency = decoded(answer, "concurrency", int | None) or 0
    return restore(kind, answer, concurrency=concurrency, pace=round(1e6 / per_second) if per_second else 0)


def _limit(kind: type[LimitInfo], answer: Raw | bytes) -> LimitInfo:
    found = members(answer)
    override = None if bytes(found["override"]) == _NULL else _bounds(LimitBounds, found["override"])
    return restore(kind, answer, override=override, due_at=time_of(found["due_at"]))


def _token(kind: type[TokenInfo], answer: Raw | bytes) -> TokenInfo:
    expires = members(answer)["expires_at"]
    return restore(kind, answer, expires_at=NEVER if bytes(expires) == _NULL else time_of(expires))


#: Classes whose answers differ in more than names, payloads and times.
_SPECIAL: dict[type, Any] = {
    Run: _run,
    Record: _record,
    Message: _message,
    RunReport: _report,
    WorkerInfo: _worker,
    Schedule: _schedule,
    LimitBounds: _bounds,
    LimitInfo: _limit,
    BreakerInfo: restore,
    TokenInfo: _token,
}


def value_of(kind: type[S], answer: Raw | bytes, **known: Any) -> S:
    """Make a value of a class from an object."""
    made: S = _SPECIAL.get(kind, restore)(kind, answer, **known)
    return made
