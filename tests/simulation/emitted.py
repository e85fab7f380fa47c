"""Items that simulated steps emit and details of simulated heartbeats, compared with those that the database has.

Every execution numbers its own. Those that were given before a recorded end must all be there, in order and once; of an
execution that a crash interrupted, the first ones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.model.record import Record, RecordKind
from perdure.core.model.run import Run

STREAM = "items"

_ITEMS = "SELECT run_id, payload FROM perdure_outputs WHERE kind = 'stream' AND name = ? ORDER BY run_id, position"
#: Every result and every error of a simulated step names its execution.
_EXECUTION = re.compile(r"\b(?:result|execution) (\d+)\b")


class Execution(Struct):
    """One execution of a step or an activity, and what it has given so far."""

    run_id: str
    attempt: int
    items: int = 0
    beats: int = 0
    #: The execution and the number of the heartbeat whose details it was given.
    given: tuple[int, int] | None = None


class Emitted:
    """What every execution has given, by its number."""

    def __init__(self) -> None:
        self.executions: dict[int, Execution] = {}

    def begun(self, number: int, run_id: str, attempt: int, given: Any = None) -> Execution:
        """An execution begins, with the details of an earlier one."""
        execution = Execution(run_id, attempt, given=None if given is None else (given[0], given[1]))
        self.executions[number] = execution
        return execution

    def findings(
        self, query: Any, runs: dict[str, Run], records: Iterable[tuple[str, Iterable[Record]]], spared: set[str]
    ) -> Iterator[str]:
        """Everything that is wrong, as sentences; `spared` are runs whose attempts were counted anew."""
        ended = list(self._ended(runs, records))
        yield from self._streams(query, runs, {number for number, _ in ended})
        yield from self._details([(number, record) for number, record in ended if record is not None], spared)

    def _ended(
        self, runs: dict[str, Run], records: Iterable[tuple[str, Iterable[Record]]]
    ) -> Iterator[tuple[int, Record | None]]:
        """Executions whose end is durable, each with the record of a failed attempt at an activity."""
        for run_id, history in records:
            for record in history:
                number = self._execution(run_id, record.payload)
                if number and record.kind in (RecordKind.STEP, RecordKind.ATTEMPT):
                    yield number, record if record.location == runs[run_id].type else None
        for run in runs.values():
            if number := self._execution(run.id, run.output or run.error):
                yield number, None

    def _execution(self, run_id: str, payload: str | None) -> int:
        """The execution of that run's own step that a payload names; 0 if there is none."""
        found = _EXECUTION.search(payload or "")
        number = int(found[1]) if found else 0
        execution = self.executions.get(number)
        return number if execution is not None and execution.run_id == run_id else 0

    def _streams(self, query: Any, runs: dict[str, Run], ended: set[int]) -> Iterator[str]:
        found: defaultdict[int, list[int]] = defaultdict(list)
        for run_id, payload in query(_ITEMS, (STREAM,)):
            number, item = msgspec.json.decode(payload, type=tuple[int, int])
            found[number].append(item)
            if self.executions[number].run_id != run_id:
                yield f"item {item} of execution {number} is in the stream of run {run_id}"
        for number, execution in self.executions.items():
            if execution.run_id not in runs:
                continue
            items = found[number]
            if items != [*range(len(items))]:
                yield f"execution {number} of run {execution.run_id} emitted {items}, in that order"
            elif number in ended and len(items) < execution.items:
                yield (
                    f"execution {number} of run {execution.run_id} emitted {execution.items} items before its end, of "
                    f"which {len(items)} are there"
                )

    def _details(self, ended: list[tuple[int, Record]], spared: set[str]) -> Iterator[str]:
        """An attempt is given the last details of the one before, unless a later one has given some."""
        for number, record in ended:
            before = self.executions[number]
            if not before.beats or before.run_id in spared:
                continue
            for later, execution in self.executions.items():
                # Attempts of a blocked run may be counted anew, so that an earlier one has that number.
                if later < number or (execution.run_id, execution.attempt) != (before.run_id, record.attempts + 1):
                    continue
                given = execution.given or (0, 0)
                if given < (number, before.beats - 1):
                    yield (
                        f"execution {later} of run {before.run_id} was given the details {given}, and execution "
                        f"{number} had given {before.beats} before it failed"
                    )
