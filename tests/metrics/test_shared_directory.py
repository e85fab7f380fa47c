"""Processes that share a directory: what a dead one has counted stays, and counts once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.errors import UsageError
from perdure.metrics.cells import Readings
from perdure.metrics.instruments import TAKEOVERS, WORKERS
from perdure.metrics.shared_directory import SharedDirectory


def count(process: SharedDirectory, takeovers: int, *, workers: int = 1) -> None:
    cells = process.cells
    cells.values[cells.place(TAKEOVERS)] += takeovers
    cells.values[cells.place(WORKERS)] = workers


def numbers(readings: Readings) -> tuple[float, float]:
    return readings[TAKEOVERS.name, ()][0], readings.get((WORKERS.name, ()), [0.0])[0]


def test_counters_of_a_dead_process_stay_and_its_gauges_go(tmp_path: Path) -> None:
    first, second, third = (SharedDirectory(tmp_path, name) for name in ("1", "2", "3"))
    for process, takeovers in ((first, 1), (second, 20), (third, 300)):
        count(process, takeovers)
    assert first.may_gather()
    assert not second.may_gather()
    assert numbers(first.read_others()) == (320, 2)
    second.close()
    assert [numbers(first.read_others()) for _ in range(2)] == [(320, 1)] * 2
    assert not list(tmp_path.glob("2.*"))
    first.close()
    # Another one gathers from now on.
    assert third.may_gather()
    assert numbers(third.read_others()) == (21, 0)


def test_a_crash_while_files_are_added_up_counts_nothing_twice(tmp_path: Path) -> None:
    first, second = SharedDirectory(tmp_path, "1"), SharedDirectory(tmp_path, "2")
    count(second, 20)
    kept = {one: one.read_bytes() for one in tmp_path.glob("2.*")}
    second.close()
    first.read_others()
    # As if the process had died before it removed the files.
    for path, content in kept.items():
        path.write_bytes(content)
    assert numbers(first.read_others())[0] == 20
    assert numbers(first.read_others())[0] == 20


def test_the_first_process_begins_at_zero_and_the_last_leaves_nothing(tmp_path: Path) -> None:
    first = SharedDirectory(tmp_path, "1")
    count(first, 1)
    kept = {one: one.read_bytes() for one in tmp_path.glob("1.*")}
    first.close()
    assert not list(tmp_path.glob("1.*"))
    # As if it had been killed.
    for path, content in kept.items():
        path.write_bytes(content)
    second = SharedDirectory(tmp_path, "2")
    assert second.read_others() == {}


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "letter.txt").write_text("dear all")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with pytest.raises(UsageError, match="is no directory of this user"):
        SharedDirectory(tmp_path / "link", "1")
    assert [one.name for one in (tmp_path / "own").iterdir()] == ["letter.txt"]
