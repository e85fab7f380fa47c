"""Kill the process that publishes and delivers events at the crash points that it passes; another one goes on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.faults.family import Family
from tests.faults.homes import Homes
from tests.faults.publishing import EVENTS

PROVE = bool(os.environ.get("PERDURE_PROVE"))


def check(file: Path) -> None:
    first: dict[tuple[str, str], list[int]] = {}
    ids: dict[tuple[str, int], set[str]] = {}
    for line in file.read_text().splitlines():
        name, key, index, id = json.loads(line)
        arrived = first.setdefault((name, key), [])
        if index not in arrived:
            arrived.append(index)
        ids.setdefault((key, index), set()).add(id)
    expected = list(range(EVENTS))
    assert first == {(name, key): expected for name in ("a", "b") for key in ("one", "other")}
    assert {len(known) for known in ids.values()} == {1}


def cases(homes: Homes) -> int:
    if PROVE:
        return 200 if homes.is_file else 60
    return 8 if homes.is_file else 3


@pytest.mark.timeout(7200 if PROVE else 1200)
async def test_events_arrive_in_order_wherever_the_process_is_killed(
    homes: Homes, processes: Family, tmp_path: Path
) -> None:
    async with homes.at(tmp_path / "none") as home:
        whole = await processes.fork("publish", home.directory, url=home.url)
        assert await whole.ended() == 0, whole.noise()
        points = len(whole.passed)
        check(home.directory / "arrived")
    for case in range(cases(homes)):
        async with homes.at(tmp_path / str(case)) as home:
            hit = 1 + case * (points - 1) // cases(homes)
            killed = await processes.fork("publish", home.directory, trap={"hit": hit}, url=home.url)
            code = await killed.ended()
            assert code < 0 or (case and code == 0), "the first points are passed in every run"
            heir = await processes.fork("publish", home.directory, url=home.url)
            assert await heir.ended() == 0, heir.noise()
            check(home.directory / "arrived")
