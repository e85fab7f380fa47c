"""Which version of the code a run follows, and what of its history the code no longer does.

A version is pinned by a record that is made while the loop drains, and so leaves in the same turn as the record that led there. So a
history that goes on, or that ends, without a pin where the code asks for one was made by code that did not ask.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence

from perdure.core.model.run import Kind, Record
from perdure.errors import Diverged
from perdure.replay.divergence import diverged, position
from perdure.replay.futures import watch
from perdure.replay.operations import Operation, RemovedOperation
from perdure.replay.operations_api import Requests
from perdure.replay.outcome import Outcome
from perdure.replay.results import Results
from perdure.workflow.scopes import current_scope

#: Counts versions apart from what else has their name; no name contains a tilde.
_APART = "~version."

#: A version that nobody asks for any more may be any.
_ANY = -1


class Recorded:
    """The records of a history by kind and place, looked up once somebody asks."""

    def __init__(self, history: Sequence[Record]) -> None:
        self._history = history
        self._index: dict[tuple[Kind, str], Record] | None = None

    def find(self, kind: Kind, location: str) -> Record | None:
        """The record of that kind there."""
        if self._index is None:
            self._index = {(record.kind, record.location): record for record in self._history}
        return self._index.get((kind, location))


NOTHING_RECORDED = Recorded(())


class Versioning(Requests):
    """The part of an execution that answers for versions."""

    outcome: Outcome | None = None
    unsaved: list[Record]
    next_seq: int
    recorded = NOTHING_RECORDED
    _results: Results

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether what the workflow does now was done before."""

    def describe(self, error: Exception) -> str:
        """See `Runtime`."""
        return self._results.describe(error)

    def restore(self, failure: str) -> Exception:
        """See `Runtime`."""
        return self._results.restore(failure)

    def version(self, name: str, latest: int) -> int:
        """See `Runtime`."""
        self._check_inside()
        location = self._version_place(name)
        self._versions[location] = latest
        pinned = self.recorded.find(Kind.VERSION, location)
        if pinned is not None:
            return int(pinned.payload or 0)
        if self.silent:
            return 0
        self._pin(location, latest)
        return latest

    def removed(self, name: str, kind: Kind) -> asyncio.Future[None]:
        """See `Runtime`."""
        self._check_inside()
        if kind is Kind.VERSION:
            self._versions.setdefault(self._version_place(name), _ANY)
        scope = current_scope.get(self._root)
        location = "" if kind is Kind.VERSION else scope.next(name)
        future = watch(self.loop, scope, location, None)
        if self.loop.closed:
            return future
        self._removed.add(location)
        if kind is Kind.CHILD:
            self._closed_children.add(location)
        early = self._early_children.pop(location, None)
        if not location or early is not None or self.recorded.find(kind, location) is None:
            future.set_result(None)
        else:
            self._open[location] = RemovedOperation(location, future, kind)
        return future

    def knows_child(self, location: str) -> bool:
        """Whether the workflow has called a child there."""
        return location in self._open or location in self._closed_children

    def position(self, location: str) -> str:
        """Where the code stands instead of waiting for what is there, in words."""
        return position(location, self._open.values(), self.awaited_messages(), self.outcome)

    def _diverged(self, record: Record) -> Diverged:
        return diverged(self.run_id, record, self.position(record.location))

    def _version_place(self, name: str) -> str:
        return current_scope.get(self._root).next(_APART + name).replace(_APART, "", 1)

    def _pin(self, location: str, version: int) -> None:
        self.unsaved.append(
            Record(
                seq=self.next_seq, kind=Kind.VERSION, location=location, payload=str(version), at=self.time,
                run_attempt=self._origin.attempt,
            )
        )  # fmt: skip
        if "/" in location:
            self.scoping.note(location[: location.rindex("/") + 1], self.next_seq)
        self.next_seq += 1

    def _is_for_nobody(self, record: Record, operation: Operation | None) -> bool:
        """Whether a record that no operation waits for is as it should be. Raises `Diverged`."""
        if record.kind is Kind.FORK:
            self._salt = f":{record.payload}"
            return True
        if record.kind is Kind.VERSION:
            self._check_version(record)
            return True
        if isinstance(operation, RemovedOperation) and operation.was is record.kind:
            self._close(operation)
            operation.future.set_result(None)
            return True
        return False

    def _check_version(self, record: Record) -> None:
        known = self._versions.get(record.location)
        if known is None:
            name = record.location.rpartition("/")[2].partition("#")[0]
            found = (
                f'the code does not ask for that version; if it is needed no more, say ctx.removed("{name}", "version")'
            )
            raise diverged(self.run_id, record, found)
        if known != _ANY and int(record.payload or 0) > known:
            raise diverged(self.run_id, record, f"it is {record.payload}, and the code knows none after {known}")
