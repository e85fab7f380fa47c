"""Cells: the numbers of all series of one process, in memory or in a file that outlives the process.

Each series has a place in one array of numbers, so counting is one addition. The array may be a file that is mapped
into memory: its numbers survive a SIGKILL, and other processes of the host can read them. A second file, a text, names
the series, one line for each, in the order of their places.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterator, MutableSequence
from pathlib import Path
from threading import RLock
from typing import cast

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.metrics.instruments import INSTRUMENTS, WORKER_INSTRUMENTS, Instrument, Kind

#: Values of the labels of a series, in the order of the instrument's labels.
Labels = tuple[str, ...]
#: Numbers by instrument and labels: one number, or the buckets of a histogram (each alone) and the sum of its values.
Readings = dict[tuple[str, Labels], list[float]]

#: Numbers of one process, at most. The file has no blocks where nothing was written.
CAPACITY = 1 << 17

CELLS, SERIES = ".cells", ".series"


class _Series(Struct, frozen=True, array_like=True):
    """A series of a file: instrument, labels, place of its first number, and how many there are."""

    name: str
    labels: Labels
    first: int
    size: int


_series_decoder = decoder_for(_Series)


class Cells:
    """Numbers of the series of this process."""

    def __init__(self, values: MutableSequence[float], names: int | None = None) -> None:
        """Use an array of numbers; `names`: descriptor of the file that names the series."""
        #: The numbers; counting adds to the one at the place of a series.
        self.values = values
        self._names = names
        self._places: dict[tuple[str, Labels], int] = {}
        self._next = 0
        #: Held while a series is added, and by threads other than the worker's while they count.
        self.lock = RLock()

    def place(self, instrument: Instrument, *labels: str) -> int:
        """Return the place of the first number of a series, which is made at first use."""
        known = self._places.get((instrument.name, labels))
        if known is not None:
            return known
        with self.lock:
            return self._make(instrument, labels)

    def _make(self, instrument: Instrument, labels: Labels) -> int:
        if (instrument.name, labels) in self._places:
            return self._places[instrument.name, labels]
        first = self._next
        if first + instrument.size > len(self.values):
            raise OverflowError(f"there is no room for more than {len(self.values)} numbers")
        self._next += instrument.size
        if self._names is not None:
            line = _Series(instrument.name, labels, first, instrument.size)
            os.write(self._names, msgspec.json.encode(line) + b"\n")
        self._places[instrument.name, labels] = first
        return first

    def read(self) -> Readings:
        """Return all numbers."""
        return {
            (name, labels): list(self.values[first : first + INSTRUMENTS[name].size])
            for (name, labels), first in list(self._places.items())
        }


def cells_in_memory() -> Cells:
    """Make cells that end with the process."""
    return _with_plain_series(Cells(array("d", bytes(8 * CAPACITY))))


def cells_in_file(cells: int, names: Path) -> tuple[Cells, mmap.mmap, int]:
    """Make cells in an open file; return also the mapping and the descriptor of the names, which the caller closes."""
    os.ftruncate(cells, 8 * CAPACITY)
    mapped = mmap.mmap(cells, 8 * CAPACITY)
    named = os.open(names, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    view = cast("MutableSequence[float]", memoryview(mapped).cast("d"))
    return _with_plain_series(Cells(view, named)), mapped, named


def _with_plain_series(cells: Cells) -> Cells:
    """Make the series without labels, so that a scrape finds a zero where nothing has happened yet."""
    for one in WORKER_INSTRUMENTS:
        if not one.labels:
            cells.place(one)
    return cells


def read_file(cells: Path, names: Path) -> Readings:
    """Read the numbers of a process, which may be at work or dead. Series of another version are left out."""
    content = cells.read_bytes()
    values = memoryview(content[: len(content) // 8 * 8]).cast("d")
    found: Readings = {}
    for line in _lines(names.read_bytes()):
        instrument = INSTRUMENTS.get(line.name)
        if instrument is not None and (instrument.size, len(instrument.labels)) == (line.size, len(line.labels)):
            found[line.name, line.labels] = list(values[line.first : line.first + line.size])
    return found


def _lines(content: bytes) -> Iterator[_Series]:
    for text in content.splitlines():
        # The last line of a process that was killed may be incomplete.
        try:
            yield _series_decoder.decode(text)
        except msgspec.MsgspecError:
            continue


def add(total: Readings, more: Readings, *, gauges: bool = True) -> None:
    """Add numbers to others; without `gauges`, only what a process has counted."""
    for key, values in more.items():
        instrument, known = INSTRUMENTS[key[0]], total.get(key)
        if not gauges and instrument.kind is Kind.GAUGE:
            continue
        if known is None:
            total[key] = list(values)
        elif instrument.greatest:
            total[key] = [max(known[0], values[0])]
        else:
            total[key] = [one + other for one, other in zip(known, values, strict=True)]
