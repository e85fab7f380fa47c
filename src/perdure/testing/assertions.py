"""Assertions about histories, as `await run.history()` returns them. Each shows the history when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec

from perdure.core.codec.failure import Failure
from perdure.core.model.record import Record, RecordKind
from perdure.core.option_checks import check_list
from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Records of the ends of operations.
_ENDS = frozenset({RecordKind.STEP, RecordKind.TIMER, RecordKind.MESSAGE, RecordKind.CHILD})


def assert_operations(history: Sequence[Record], *locations: str) -> None:
    """Assert that exactly these operations have ended, in this order: steps, timers, messages and children."""
    found = [record.location for record in _ended(history)]
    if found != list(locations):
        _fail(history, f"expected the operations {brief(list(locations))}, found {brief(found)}")


def assert_order(history: Sequence[Record], *locations: str) -> None:
    """Assert that these operations have ended in this order, with any others between them."""
    found = iter(record.location for record in _ended(history))
    for location in locations:
        if location not in found:
            _fail(history, f"expected {brief(location)} in the order {brief(list(locations))}")


def assert_absent(history: Sequence[Record], *locations: str) -> None:
    """Assert that none of these operations has a record."""
    for record in _checked(history):
        if record.location in locations:
            _fail(history, f"expected no record of {record.location!r}")


def assert_attempts(history: Sequence[Record], location: str, count: int) -> None:
    """Assert that a step has ended, with this number of attempts."""
    # The record of a step that succeeded at once has no count.
    found = max(1, _end_of(history, location).attempts)
    if found != count:
        _fail(history, f"expected {brief(count)} attempts at {brief(location)}, found {brief(found)}")


def assert_result(history: Sequence[Record], location: str, value: object) -> None:
    """Assert that an operation has this result. Values are compared as they are stored."""
    record = _end_of(history, location)
    expected, found = msgspec.to_builtins(value), _value(record)
    if record.failed or found != expected:
        how = "failed with" if record.failed else "has the result"
        _fail(history, f"expected {brief(location)} to have the result {brief(expected)}; it {how} {brief(found)}")


def assert_failure(history: Sequence[Record], location: str, error: type[BaseException] | str) -> None:
    """Assert that an operation has failed with an error of this class, or of a class of this name."""
    record = _end_of(history, location)
    name = error if isinstance(error, str) else getattr(error, "__name__", brief(error))
    found = Failure.read(record.payload).type.rpartition(".")[2] if record.failed else "no error"
    if found != name:
        _fail(history, f"expected {brief(location)} to fail with {name}, found {found}")


def _ended(history: Sequence[Record]) -> list[Record]:
    return [record for record in _checked(history) if record.kind in _ENDS]


def _checked(history: Sequence[Record]) -> tuple[Record, ...]:
    records = check_list("history", history, "await run.history()")
    for record in records:
        if not isinstance(record, Record):
            raise UsageError(f"{brief(record)} is no record; give a history: await run.history()")
    return records


def _end_of(history: Sequence[Record], location: str) -> Record:
    found = next((record for record in _ended(history) if record.location == location), None)
    if found is None:
        _fail(history, f"expected a record of {brief(location)}")
    return found


def _value(record: Record) -> Any:
    return None if record.payload is None else msgspec.json.decode(record.payload)


def _fail(history: Sequence[Record], problem: str) -> NoReturn:
    lines = [f"  {record.seq} {record.kind.value} {record.location} {brief(record.payload)}" for record in history]
    raise AssertionError("\n".join([problem, "history:", *(lines or ["  (empty)"])]))
