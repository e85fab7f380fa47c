"""Rows in, values out: the columns of each table and what becomes of them.

Nothing behind the store ever sees a row. A row that makes no sense raises `StoreCorrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from perdure.core.audit import Event
from perdure.core.codec.failure import Failure
from perdure.core.codec.plain_json import plain_json
from perdure.core.model.outputs import Output, OutputKind, source_of
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Reason, Run, RunTimes, Status
from perdure.core.model.worker_info import NO_STEPS, WorkerInfo, WorkerStatus, drain_from_json, steps_from_json
from perdure.errors import PerdureError, StoreCorrupt
from perdure.store.sql.dialect import Row

T = TypeVar("T")

#: In the order of the fields of `Run`, and of `Record`. A claim does not read the build, which is for people.
SHOWN_RUN = ", ".join(name for name in Run.__struct_fields__ if name != "attributes")
RUN = SHOWN_RUN.removesuffix(", build")
RECORD = ", ".join(Record.__struct_fields__)
MESSAGE = "run_id, seq, kind, name, payload, failed, message_key, sent_at"
OUTPUT = "run_id, kind, name, position, payload, failed, at, output_key"
EVENT = "id, run_id, at, kind, actor, data"
WORKER = "id, host, pid, queues, types, slots, lease, started_at, heartbeat_at, status, running, build, drain"

_STATUS = {status.value: status for status in Status}
_REASON: dict[str | None, Reason | None] = {None: None, **{reason.value: reason for reason in Reason}}
_KIND = {kind.value: kind for kind in RecordKind}
_OUTPUT_KINDS = frozenset(kind.value for kind in OutputKind)
_WORKER_STATUS = {status.value: status for status in WorkerStatus}


def to_run(row: Row) -> Run:
    """A row of `RUN` or `SHOWN_RUN`."""
    # By position, since `RUN` has the order of the fields: every claim passes here, and names cost several times more.
    id, type, queue, priority, status, reason, *rest = row
    try:
        return Run(id, type, queue, priority, _STATUS[status], _REASON[reason], *rest)
    except KeyError as unknown:
        raise StoreCorrupt(f"run {id!r} has a status or reason that Perdure does not know: {unknown}") from unknown


def to_times(row: Row) -> RunTimes:
    """A row of an id, a type, a status and times."""
    id, type, status, *times = row
    try:
        return RunTimes(type, _STATUS[status], *times)
    except KeyError as unknown:
        raise StoreCorrupt(f"run {id!r} has a status that Perdure does not know: {unknown}") from unknown


def to_record(row: Row) -> Record:
    """A row of `RECORD`."""
    (
        seq, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq, run_attempt,
    ) = row  # fmt: skip
    known = _KIND.get(kind)
    if known is None:
        raise StoreCorrupt(f"a history record (seq {seq}) is of the unknown kind {kind!r}")
    return Record(
        seq=seq, kind=known, location=location, payload=payload, failed=failed != 0, at=at, started_at=started_at,
        digest=digest, attempts=attempts, retry_at=retry_at, inbox_seq=inbox_seq, run_attempt=run_attempt,
    )  # fmt: skip


def to_message(row: Row) -> Message:
    """A row of `MESSAGE`."""
    run_id, seq, kind, name, payload, failed, key, sent_at = row
    if kind not in _KIND:
        raise StoreCorrupt(f"message {seq} of run {run_id!r} is of the unknown kind {kind!r}")
    return Message(
        run_id=run_id,
        seq=seq,
        kind=_KIND[kind],
        name=name,
        payload=payload,
        failed=bool(failed),
        key=key,
        sent_at=sent_at,
    )


def to_output(row: Row) -> Output:
    """A row of `OUTPUT`."""
    run_id, kind, name, position, payload, failed, at, key = row
    if kind not in _OUTPUT_KINDS:
        raise unreadable(
            "perdure_outputs", f"run_id {run_id!r}, name {name!r}, position {position}", f"unknown kind {kind!r}"
        )
    return Output(
        run_id=run_id,
        kind=OutputKind(kind),
        name=name,
        position=position,
        payload=payload,
        failed=bool(failed),
        at=at,
        source=source_of(key) if kind == OutputKind.STREAM else "",
    )


def to_event(row: Row) -> Event:
    """A row of `EVENT`."""
    id, run_id, at, kind, actor, data = row
    return Event(id=id, run_id=run_id, at=at, kind=kind, actor=actor, data=data)


def to_worker(row: Row) -> WorkerInfo:
    """A row of `WORKER`, followed by its error count and latest problem. An unreadable row says so in its problem."""
    (
        id, host, pid, queues, types, slots, lease, started_at, heartbeat_at, status, running, build, drain, errors,
        problem,
    ) = row  # fmt: skip
    known = _WORKER_STATUS.get(status, WorkerStatus.DEAD)
    try:
        serves = _names(queues), _names(types)
        broken = "" if status in _WORKER_STATUS else f"unknown status {status!r}"
    except msgspec.MsgspecError as error:
        serves, broken = ((), ()), str(error)
    if broken:
        problem = f"its row (perdure_workers, id {id!r}) cannot be read: {broken}"
    return WorkerInfo(
        id=id,
        host=host,
        pid=pid,
        queues=serves[0],
        types=serves[1],
        slots=slots,
        lease=lease,
        started_at=started_at,
        heartbeat_at=heartbeat_at,
        status=known,
        errors=errors or 0,
        problem=problem or "",
        # A worker that has stopped in order has ended its steps or given their runs back.
        running=NO_STEPS if known is WorkerStatus.STOPPED else steps_from_json(running),
        build=build,
        drain=drain_from_json(drain),
    )


def values(convert: Callable[[Row], T], rows: Iterable[Row]) -> list[T]:
    """Every row as a value."""
    return [convert(row) for row in rows]


#: Strict JSON text of a plain value.
to_json = plain_json


def failure(kind: type[Exception], message: str) -> str:
    """A `Failure` as JSON, made by the store itself."""
    return Failure(type=f"{kind.__module__}.{kind.__qualname__}", message=message).to_json()


def _names(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


#: Errors of decoding a cell, or of using what is in it.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError)


def readable(read: Callable[[str], T], text: str, table: str, key: str) -> T:
    """Decode a cell. Raises `StoreCorrupt` with its table and key."""
    try:
        return read(text)
    except UNREADABLE as error:
        raise unreadable(table, key, error) from error


def unreadable(table: str, key: str, error: object) -> StoreCorrupt:
    """The error for a cell that cannot be read."""
    return StoreCorrupt(
        f"{table} has data that cannot be read, at {key}: {error}; restore it from a backup, or delete it"
    )


def known(error: BaseException, verb: str, where: str) -> BaseException:
    """The error that the contract of a store has for one that a verb met; the same if there is none."""
    if isinstance(error, PerdureError) or not isinstance(error, UNREADABLE):
        return error
    return StoreCorrupt(
        f"{where} has or was given data that cannot be used, met by {verb}: {type(error).__name__}: {error}"
    )
