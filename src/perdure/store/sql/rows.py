"""Rows in, values out: the columns of each table and what becomes of them.

Nothing behind the store ever sees a row. A row that makes no sense raises `StoreCorrupt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TypeVar

import msgspec

from perdure.core.audit import Event
from perdure.core.codec.failure import Failure
from perdure.core.codec.plain_json import plain_bytes
from perdure.core.model.outputs import Output, OutputKind, source_of
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Reason, Run, RunTimes, Status
from perdure.core.model.worker_info import NO_STEPS, WorkerInfo, WorkerStatus, drain_from_json, steps_from_json
from perdure.errors import PerdureError, StoreCorrupt
from perdure.store.sql.dialect import Row
from perdure.store.sql.packing import PACKED, unpack

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


def _to_listed_run(row: Row) -> Run:
    status, reason = row[4], row[5]
    if status in _STATUS and reason in _REASON:
        return to_run(row)
    id, type, queue, priority, _, _, input, output, _, *rest = row
    cell = f"unknown reason {reason!r}" if status in _STATUS else f"unknown status {status!r}"
    error = failure(StoreCorrupt, str(unreadable("perdure_runs", f"id {id!r}", cell)))
    shown = _STATUS.get(status, Status.BLOCKED)
    return Run(id, type, queue, priority, shown, Reason.UNDECODABLE, input, output, error, *rest)


def to_listed_runs(rows: Sequence[Row]) -> list[Run]:
    """Rows of `RUN` or `SHOWN_RUN` for a listing, in which one unreadable run must not hide the others.

    Such a run is shown as undecodable, with the problem as its error; one of an unknown status is shown as blocked.
    """
    try:
        return [to_run(row) for row in rows]
    except StoreCorrupt:
        return [_to_listed_run(row) for row in rows]


def to_times(rows: Iterable[Row]) -> list[RunTimes]:
    """Rows of a type, a status and times, without those of an unknown status."""
    return [RunTimes(type, _STATUS[status], *times) for type, status, *times in rows if status in _STATUS]


def to_records(rows: Iterable[Row]) -> list[Record]:
    """Rows of `RECORD`; a packed one gives all of its records."""
    records: list[Record] = []
    # Without a call for each row: a history may be very long.
    for (
        seq, kind, location, payload, failed, at, started_at, digest, attempts, retry_at, inbox_seq, run_attempt,
    ) in rows:  # fmt: skip
        known = _KIND.get(kind)
        if known is None:
            if kind == PACKED:
                records += _unpacked(seq, payload, attempts, run_attempt)
                continue
            raise StoreCorrupt(f"a history record (seq {seq}) is of the unknown kind {kind!r}")
        records.append(
            Record(
                seq=seq, kind=known, location=location, payload=payload, failed=failed != 0, at=at,
                started_at=started_at, digest=digest, attempts=attempts, retry_at=retry_at, inbox_seq=inbox_seq,
                run_attempt=run_attempt,
            )
        )  # fmt: skip
    return records


def _unpacked(seq: int, payload: str | None, count: int, run_attempt: int) -> list[Record]:
    try:
        return unpack(seq, payload or "", count, run_attempt)
    except UNREADABLE as error:
        raise StoreCorrupt(f"a packed history row (seq {seq}) cannot be read: {error}") from error


def to_histories(rows: Iterable[Row]) -> dict[str, list[Record]]:
    """Rows of a run's id and `RECORD`: the records by id."""
    histories: dict[str, list[Record]] = {}
    for run_id, part in groupby(rows, itemgetter(0)):
        histories.setdefault(run_id, []).extend(to_records([row[1:] for row in part]))
    return histories


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


def to_json(value: object) -> str:
    """Strict JSON text of a plain value."""
    return plain_bytes(value).decode()


def event_json(reason: str, **data: object) -> str:
    """Data of an event, with the reason that a person gave."""
    return to_json({**data, "reason": reason} if reason else data)


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
