"""Checkpoints of scopes: how far each loop or race has got, which records lie inside, and which may be deleted.

A checkpoint record (`RecordKind.SCOPE`) says that its scope goes on from there. Records inside the scope and before the
checkpoint may be trimmed; replay skips those that were kept for people to read. Records outside of the scope stay,
whenever they were made.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec
from msgspec import Struct, field

from perdure.core.model.record import Record, RecordKind
from perdure.workflow.scopes import Checkpoint, read_checkpoint

# Looking up an enum member through its class is slow; this is needed for every record.
_SCOPE = RecordKind.SCOPE


class Checkpoints(Struct, eq=False):
    """Checkpoints of one execution."""

    #: By location, the latest checkpoint and its record's number; those of earlier attempts included.
    _latest: dict[str, tuple[int, Checkpoint]] = field(default_factory=dict)
    #: Numbers of the records inside each scope, by the scope's path.
    _inside: dict[str, list[int]] = field(default_factory=dict)
    #: Numbers of the messages received inside each scope. Their records do not name the scope.
    _messages: dict[str, list[int]] = field(default_factory=dict)
    #: Numbers of records that the next turn deletes.
    trimmed: list[int] = field(default_factory=list)
    #: Whether anything was trimmed since the last turn, even if it was not saved yet.
    has_trimmed: bool = False

    @classmethod
    def of(cls, earlier: Iterable[Record], history: Iterable[Record]) -> Checkpoints:
        """Read the checkpoints of a history, and of the attempts before it."""
        records = chain(earlier, history)
        return cls({one.location: (one.seq, read_checkpoint(one)) for one in records if one.kind is _SCOPE})

    def latest(self, location: str) -> Checkpoint | None:
        """Return the latest checkpoint of a scope."""
        known = self._latest.get(location)
        return None if known is None else known[1]

    def advance(self, record: Record) -> None:
        """Note a newer checkpoint of a scope."""
        self._latest[record.location] = record.seq, read_checkpoint(record)

    def note(self, path: str, seq: int) -> None:
        """Note that a record lies inside a scope."""
        self._inside.setdefault(path, []).append(seq)

    def received(self, path: str, seq: int) -> None:
        """Note that a message was received inside a scope."""
        self._messages.setdefault(path, []).append(seq)

    def is_behind(self, record: Record) -> bool:
        """True if a record belongs to a part of a scope that is over, kept for people or of an abandoned child."""
        *scopes, _ = record.location.split("/")
        for depth in range(1, len(scopes)):
            seq, latest = self._latest.get("/".join(scopes[:depth]), (-1, None))
            if (
                latest is not None
                and (record.seq < seq or record.kind is RecordKind.CHILD)
                and is_part_over(scopes[depth], latest)
            ):
                return True
        return False

    def trim(
        self, location: str, upto: int, paths: Sequence[str], unsaved: list[Record], seq: int
    ) -> tuple[list[Record], int]:
        """Trim the records at the paths and the scope's earlier checkpoint, which record `seq` is about to replace.

        Returns the rest of the unsaved records, and the number of the first record that such checkpoints have deleted.
        Messages received in any iteration before `upto` are always trimmed: replay would deliver them again.
        """
        doomed = {self._latest[location][0]} if location in self._latest else set[int]()
        firsts = [self._latest[location][1].first] if location in self._latest else list[int]()
        over = set(paths)
        doomed.update(*_pop_below(self._inside, over))
        doomed.update(*_pop_below(self._messages, over.union(_iterations(self._messages, f"{location}/", upto))))
        for place in [place for place in self._latest if _is_below(place, over)]:
            firsts.append(self._latest.pop(place)[1].first)
        # A checkpoint of an earlier version does not tell.
        first = -1 if -1 in firsts else min([*firsts, *doomed], default=seq)  # equivalent: constant: below 0: unknown
        if not doomed:
            return unsaved, first
        self.has_trimmed = True
        # By binary search: very many messages may be unsaved.
        for low, high in _ranges(doomed):
            start = bisect_left(unsaved, low, key=_seq)
            end = bisect_right(unsaved, high, lo=start, key=_seq)
            self.trimmed += set(range(low, high + 1)).difference([record.seq for record in unsaved[start:end]])
            del unsaved[start:end]
        return unsaved, first

    def finished_iterations(self, path: str, upto: int) -> list[str]:
        """Return the paths of a loop's iterations before `upto` that have records."""
        return list(dict.fromkeys([*_iterations(self._inside, path, upto), *_iterations(self._messages, path, upto)]))

    def take_trimmed(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges of records that the next turn deletes, and forget them."""
        trimmed, self.trimmed, self.has_trimmed = self.trimmed, [], False
        return _ranges(trimmed)


def is_part_over(part: str, latest: Checkpoint) -> bool:
    """True if a part of a scope is over: an iteration before the checkpoint, or a branch that lost."""
    if part.startswith("~"):
        return int(part[1:]) < latest.upto
    return latest.ended and part != msgspec.json.decode(latest.value, type=str)


def is_location_over(location: str, path: str, upto: int, paths: Sequence[str]) -> bool:
    """True if a location is at one of the paths, or in an iteration before `upto` of the loop at `path`."""
    if location.startswith(f"{path}~"):
        return int(location[len(path) + 1 :].partition("/")[0]) < upto
    return location.startswith(tuple(paths))


def places_below(places: Iterable[str], paths: Iterable[str]) -> set[str]:
    """Return the places that are at one of the paths."""
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
    # By the parts of the place, not by the paths: there is a path for each iteration between two checkpoints.
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
