"""Scopes as the history has them: which records lie inside, how far each has got, and what may be forgotten.

A record of a scope (`RecordKind.SCOPE`) says that the scope goes on from there. What lies inside and before may be trimmed then; what was
kept all the same, for people to read, is passed over by replay. Records that are not inside stay, whenever they were made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import msgspec

from perdure.core.codec.decoders import decoder_for
from perdure.core.model.record import Record, RecordKind
from perdure.workflow.runtime import Checkpoint


class Checkpoints:
    """See the module. One for each execution."""

    def __init__(self, earlier: Sequence[Record], history: Sequence[Record]) -> None:
        #: By location, those of earlier attempts at the run among them.
        self._marks: dict[str, tuple[int, Checkpoint]] = {
            one.location: (one.seq, read_checkpoint(one))
            for records in (earlier, history)
            for one in records
            if one.kind is RecordKind.SCOPE
        }
        #: Numbers of the records inside each scope, by its path.
        self._inside: dict[str, list[int]] = {}
        #: And of the messages that were received there, whose records do not say where they went.
        self._letters: dict[str, list[int]] = {}
        #: Numbers of records that the next turn is to delete.
        self.trimmed: list[int] = []
        #: Whether anything was forgotten since the last turn, though it may have been recorded nowhere yet.
        self.let_go = False

    def mark(self, location: str) -> Checkpoint | None:
        """How far the scope there has got."""
        known = self._marks.get(location)
        return None if known is None else known[1]

    def reached(self, record: Record) -> None:
        """A scope has got further."""
        self._marks[record.location] = record.seq, read_checkpoint(record)

    def note(self, path: str, seq: int) -> None:
        """A record lies inside a scope."""
        self._inside.setdefault(path, []).append(seq)

    def received(self, path: str, seq: int) -> None:
        """A message was received inside a scope."""
        self._letters.setdefault(path, []).append(seq)

    def is_behind(self, record: Record) -> bool:
        """Whether a record belongs to a part that is over: it was kept for people to read, or is of a child that was given up."""
        *scopes, _ = record.location.split("/")
        for depth in range(1, len(scopes)):
            seq, mark = self._marks.get("/".join(scopes[:depth]), (-1, None))
            if (
                mark is not None
                and (record.seq < seq or record.kind is RecordKind.CHILD)
                and is_part_over(scopes[depth], mark)
            ):
                return True
        return False

    def trim(self, location: str, upto: int, paths: Sequence[str], unsaved: list[Record]) -> list[Record]:
        """Forget what is at the paths, and the scope's earlier mark; what is left of the records that are not saved yet.

        Messages received in any iteration before `upto` are always forgotten: replay would deliver them again.
        """
        doomed = {self._marks[location][0]} if location in self._marks else set[int]()
        over = set(paths)
        doomed.update(*_pop_below(self._inside, over))
        doomed.update(*_pop_below(self._letters, over.union(_iterations(self._letters, f"{location}/", upto))))
        for place in [place for place in self._marks if _is_below(place, over)]:
            del self._marks[place]
        if not doomed:
            return unsaved
        self.let_go = True
        # Looked up and not gone through: very many messages may be waiting to be recorded.
        for first, last in _ranges(doomed):
            start = bisect_left(unsaved, first, key=_seq)
            end = bisect_right(unsaved, last, lo=start, key=_seq)
            self.trimmed += set(range(first, last + 1)).difference([record.seq for record in unsaved[start:end]])
            del unsaved[start:end]
        return unsaved

    def finished_iterations(self, path: str, upto: int) -> list[str]:
        """The paths of a loop's iterations before `upto` that have records."""
        return list(dict.fromkeys([*_iterations(self._inside, path, upto), *_iterations(self._letters, path, upto)]))

    def take_trimmed(self) -> tuple[tuple[int, int], ...]:
        """What the next turn is to delete, as ranges; it is then somebody else's business."""
        trimmed, self.trimmed, self.let_go = self.trimmed, [], False
        return _ranges(trimmed)


def is_part_over(part: str, mark: Checkpoint) -> bool:
    """Whether a part of a scope is over: an iteration before the mark, or a branch that lost."""
    if part.startswith("~"):
        return int(part[1:]) < mark.upto
    return mark.ended and part != msgspec.json.decode(mark.value, type=str)


def is_location_over(location: str, path: str, upto: int, paths: Sequence[str]) -> bool:
    """Whether a location is at one of the paths, or in an iteration before `upto` of the loop at `path`."""
    if location.startswith(f"{path}~"):
        return int(location[len(path) + 1 :].partition("/")[0]) < upto
    return location.startswith(tuple(paths))


def places_below(places: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Those of the places that are at one of the paths."""
    over = set(paths)
    return {place for place in places if _is_below(place, over)} if over else set()


def _ranges(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def _seq(record: Record) -> int:
    return record.seq


def _pop_below(numbers: dict[str, list[int]], paths: set[str]) -> list[list[int]]:
    return [numbers.pop(path) for path in [path for path in numbers if _is_below(path, paths)]]


def _is_below(place: str, paths: set[str]) -> bool:
    # By its own parts and not by each of the paths, which are as many as there are iterations between two marks.
    cut = place.find("/")
    while cut >= 0:
        if place[: cut + 1] in paths:
            return True
        cut = place.find("/", cut + 1)
    return False


def _iterations(numbers: Iterable[str], path: str, upto: int) -> list[str]:
    found: dict[str, None] = {}
    for inner in numbers:
        if inner.startswith(path) and inner.startswith("~", len(path)):
            number = inner[len(path) + 1 :].partition("/")[0]
            if int(number) < upto:
                found[f"{path}~{number}/"] = None
    return list(found)


class _StoredCheckpoint(msgspec.Struct):
    upto: int
    ended: bool
    value: msgspec.Raw
    errors: dict[str, str] = {}


_stored = decoder_for(_StoredCheckpoint)


def checkpoint_payload(mark: Checkpoint) -> str:
    """A mark as it is recorded."""
    errors = f',"errors":{msgspec.json.encode(mark.errors).decode()}' if mark.errors else ""
    return f'{{"upto":{mark.upto},"ended":{"true" if mark.ended else "false"},"value":{mark.value}{errors}}}'


def read_checkpoint(record: Record) -> Checkpoint:
    """The mark that a record is of."""
    stored = _stored.decode(record.payload or "")
    return Checkpoint(bytes(stored.value).decode(), stored.upto, stored.ended, stored.errors)
