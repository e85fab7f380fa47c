"""Faults planted in packed histories."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure.core.model.record import Record
from perdure.store.sql import packing, rows
from tests.simulation.planted import reword

Patch = pytest.MonkeyPatch


def packed_with_a_neighbour(patch: Patch) -> None:
    """The record before those that are packed is deleted with them."""
    reword(patch, packing, "_DELETE_OTHERS", "seq BETWEEN :first AND", "seq BETWEEN :first - 1 AND")


def packed_with_its_scope(patch: Patch) -> None:
    """Records that a checkpoint trims are packed, too."""
    patch.setattr(packing, "_is_in_scope", lambda location: False)


def unpacked_without_times(patch: Patch) -> None:
    """Packed records are read without the time of their steps."""
    unpack = packing.unpack

    def forget(seq: int, payload: str, count: int, run_attempt: int) -> list[Record]:
        return [replace(record, started_at=0) for record in unpack(seq, payload, count, run_attempt)]

    patch.setattr(rows, "unpack", forget)


PLANTED_IN_PACKING: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (packed_with_a_neighbour, packed_with_its_scope, unpacked_without_times)
}
