"""The difference of two runs: their timelines aligned by location, and the values that they recorded there.

The functions are pure. Both runs begin at zero, on one scale. A location differs if only one run has it, or if what
the runs recorded there differs. The first difference is the one that the first run recorded first; it is where the two
began to go different ways.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from enum import StrEnum

import msgspec
from msgspec import Struct

from perdure.core.model.record import Record, RecordKind
from perdure.dashboard.timeline import (
    Bar,
    Fold,
    Lane,
    RunFacts,
    Scale,
    Shape,
    Tick,
    folded,
    idle_times,
    read_lanes,
    visible_shapes,
)

#: Rows of a page.
ROWS = 200
#: Lines of a value that are compared.
_LINES = 400


class Verdict(StrEnum):
    """Result of the comparison of one location."""

    SAME = "same"
    CHANGED = "changed"
    #: Only the first run, or only the second, has it.
    ONLY_FIRST = "only first"
    ONLY_SECOND = "only second"


class DiffRow(Struct, frozen=True, kw_only=True):
    """A location of both runs."""

    location: str
    kind: str
    verdict: Verdict
    #: The last records of both runs there.
    first: Record | None
    second: Record | None
    first_shapes: tuple[Shape, ...] = ()
    second_shapes: tuple[Shape, ...] = ()
    first_spent: int = 0
    second_spent: int = 0


class RunDiff(Struct, frozen=True, kw_only=True):
    """Two runs, aligned."""

    rows: tuple[DiffRow, ...]
    #: Number of all rows that there are, and of those that differ.
    total: int
    different: int
    #: Location of the first difference; empty if there is none.
    first_difference: str
    folds: tuple[Fold, ...]
    ticks: tuple[Tick, ...]
    first_length: int
    second_length: int


def compare(first: RunFacts, second: RunFacts, *, only_different: bool = False, start: int = 0) -> RunDiff:
    """Align two runs; `rows` are at most 200, from `start` on."""
    lanes = [_from_zero(facts) for facts in (first, second)]
    lasts = [_last_records(facts.records) for facts in (first, second)]
    ends = [max((bar.end for lane in one.values() for bar in lane.bars), default=0) for one in lanes]
    end = max(1, *ends)
    folds = folded(idle_times([*lanes[0].values(), *lanes[1].values()], 0, end), 0, end)
    scale = Scale(0, end, folds)
    order = _merged([*lanes[0]], [*lanes[1]])
    rows = [_row(location, lanes, lasts) for location in order]
    different = [row for row in rows if row.verdict is not Verdict.SAME]
    chosen = different if only_different else rows
    return RunDiff(
        rows=tuple(_drawn(row, lanes, scale) for row in chosen[start : start + ROWS]),
        total=len(chosen),
        different=len(different),
        first_difference=_first_difference(different, lasts),
        folds=tuple(scale.folds),
        ticks=tuple(scale.ticks(0)),
        first_length=ends[0],
        second_length=ends[1],
    )


def _from_zero(facts: RunFacts) -> dict[str, Lane]:
    """Lanes of a run by location, whose times count from its begin."""
    lanes = read_lanes(facts)
    begin = min((lane.bars[0].start for lane in lanes), default=0)
    return {
        lane.location: msgspec.structs.replace(lane, bars=tuple(_moved(bar, begin) for bar in lane.bars))
        for lane in lanes
    }


def _moved(bar: Bar, begin: int) -> Bar:
    return msgspec.structs.replace(bar, start=bar.start - begin, end=bar.end - begin)


def _last_records(records: Iterable[Record]) -> dict[str, Record]:
    """The last record of each operation; checkpoints and the like are none."""
    kinds = (RecordKind.STEP, RecordKind.ATTEMPT, RecordKind.CHILD, RecordKind.TIMER, RecordKind.MESSAGE)
    return {record.location: record for record in records if record.kind in kinds}


def _merged(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Locations of both runs: those of the first in its order, each of the second after the one that it follows."""
    found: list[str] = []
    for tag, a, b, c, d in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        found += first[a:b]
        if tag != "equal":
            found += second[c:d]
    return list(dict.fromkeys(found))


def _row(location: str, lanes: Sequence[dict[str, Lane]], lasts: Sequence[dict[str, Record]]) -> DiffRow:
    first, second = (one.get(location) for one in lasts)
    lane = lanes[0].get(location) or lanes[1][location]
    if location not in lanes[1]:
        verdict = Verdict.ONLY_FIRST
    elif location not in lanes[0]:
        verdict = Verdict.ONLY_SECOND
    else:
        verdict = Verdict.SAME if _outcome(first) == _outcome(second) else Verdict.CHANGED
    return DiffRow(location=location, kind=lane.kind, verdict=verdict, first=first, second=second)


def _outcome(record: Record | None) -> tuple[str, bool, str | None] | None:
    """Content of a record, without its times and attempts."""
    if record is None:
        return None
    return record.kind.value, record.failed, None if record.kind is RecordKind.TIMER else record.payload


def _first_difference(different: Sequence[DiffRow], lasts: Sequence[dict[str, Record]]) -> str:
    """The location of the difference that came first, by the records of the first run or else of the second."""
    far = 1 << 62

    def when(row: DiffRow) -> int:
        known = [one[row.location].seq for one in lasts if row.location in one]
        return min(known, default=far)

    return min(different, key=when).location if different else ""


def _drawn(row: DiffRow, lanes: Sequence[dict[str, Lane]], scale: Scale) -> DiffRow:
    bars = [one[row.location].bars if row.location in one else () for one in lanes]
    return msgspec.structs.replace(
        row,
        first_shapes=visible_shapes(bars[0], scale),
        second_shapes=visible_shapes(bars[1], scale),
        first_spent=_spent(bars[0]),
        second_spent=_spent(bars[1]),
    )


def _spent(bars: Sequence[Bar]) -> int:
    return max(bar.end for bar in bars) - min(bar.start for bar in bars) if bars else 0


class DiffLine(Struct, frozen=True):
    """A line of two values: of both (" "), of the first ("-") or of the second ("+")."""

    sign: str
    text: str


def line_diff(first: str, second: str) -> list[DiffLine]:
    """Compare two texts by their lines."""
    one, other = first.splitlines()[:_LINES], second.splitlines()[:_LINES]
    found: list[DiffLine] = []
    for tag, a, b, c, d in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag == "equal":
            found += (DiffLine(" ", line) for line in one[a:b])
        else:
            found += (DiffLine("-", line) for line in one[a:b])
            found += (DiffLine("+", line) for line in other[c:d])
    return found
