"""The comparison with other systems, without installing any: our own driver, the checks and the table."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import asyncpg
import msgspec
import pytest
from click.testing import CliRunner

from benchmarks.peers import measure
from benchmarks.peers.catalog import MISSING, OURS, PEERS, Missing, Peer
from benchmarks.peers.command import PAGE, peers
from benchmarks.peers.environments import DRIVERS, Environment, Unavailable
from benchmarks.peers.measure import WORKLOADS, PeerSizes, Void, check, figures_of, sample, sizes_of
from benchmarks.peers.table import BEGIN, END, Comparison, System, insert, render
from tests.servers.places import dsn_of
from tests.servers.schemas import POSTGRES

TINY = PeerSizes(rounds=1, runs=10, steps=20, sleep=0.2, slots=10, timeout=100)


def comparison() -> Comparison:
    ours = System(name="Perdure", version="1", figures={"w1": [1000.0, 3000.0], "w3": [2.0, 2.0]})
    theirs = System(name="Other", version="2.0", note="a queue", figures={"w1": [500.0, None, 100.0], "w3": [3.0, 5.0]})
    return Comparison(
        date="2026-01-01",
        machine="2 cores",
        server={"server_version": "15", "fsync": "on", "synchronous_commit": "on"},
        command="python -m benchmarks peers",
        systems=[ours, theirs],
        missing=[Missing("Gone", "no package has it")],
    )


@pytest.mark.parametrize("workload", list(OURS.shares))
async def test_our_own_driver_does_each_workload_and_its_tables_show_it(workload: str, tmp_path: Path) -> None:
    found = await sample(Environment(OURS, tmp_path), workload, dsn_of(POSTGRES), TINY)
    assert found.figures.keys() == ({"w1", "start"} if workload == "w1" else {workload})
    assert all(figure > 0 or workload == "w5" for figure in found.figures.values())


async def test_a_driver_that_fails_makes_the_sample_void_and_leaves_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "time", SimpleNamespace(time_ns=os.getpid))
    broken = msgspec.structs.replace(OURS, name="Broken", driver="reporting.py")
    with pytest.raises(Void, match="Broken failed with w1: it printed nothing"):
        await sample(Environment(broken, tmp_path), "w1", dsn_of(POSTGRES), TINY)
    connection = await asyncpg.connect(dsn_of(POSTGRES))
    assert not await connection.fetchval("SELECT count(*) FROM pg_database WHERE datname = $1", f"peer_{os.getpid()}")
    await connection.close()


@pytest.mark.parametrize(
    ("workload", "runs", "steps", "message"),
    [
        ("w1", 49, 50, "finished 49 of 50 runs"),
        ("w2", 10, 99, "recorded 99 of 100 steps"),
        ("w3", 1, 1, "finished 1 of 2 runs"),
    ],
)
def test_a_system_that_did_less_than_it_was_asked_is_not_measured(
    workload: str, runs: int, steps: int, message: str
) -> None:
    asked = sizes_of(workload, 1.0, TINY)
    with pytest.raises(Void, match=message):
        check(OURS, workload, asked, runs, steps)
    check(OURS, workload, asked, 50, 200)


def test_a_slow_system_gets_fewer_runs_or_fewer_steps_of_one_run() -> None:
    assert [sizes_of("w1", share, TINY)["runs"] for share in (1.0, 0.1, 0.001)] == [50, 5, 1]
    assert sizes_of("w4", 0.5, TINY) == {"runs": 1, "steps": 10, "sleep": 0.2, "slots": 10}


def test_figures_are_rates_or_median_times() -> None:
    asked = {"runs": 10, "steps": 10, "sleep": 2.0}
    assert figures_of("w1", {**asked, "steps": 1}, {"start_s": 0.5, "work_s": 2.0}) == {"w1": 5.0, "start": 20.0}
    assert figures_of("w2", asked, {"work_s": 2.0}) == {"w2": 50.0}
    assert figures_of("w3", asked, {"latencies_ms": [1.0, 9.0, 2.0]}) == {"w3": 2.0}
    assert figures_of("w5", asked, {"work_s": 2.5}) == {"w5": 0.5}


def test_the_table_shows_medians_and_how_many_times_as_fast_ours_is_in_the_same_round() -> None:
    table = render(comparison())
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[1].startswith("| Perdure | 1 | - | 2,000 |")
    # Of the rounds in which both have a figure; less is better for w3.
    assert rows[2].startswith("| Other | 2.0 | - | 300 (2) | - | 4 (2) |")
    assert "* Other: a queue." in table
    assert "* Gone is missing: no package has it." in table


def test_the_table_replaces_what_is_between_the_markers_and_nothing_else() -> None:
    page = insert(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new\n" + "word " * 40)
    assert page.startswith(f"before\n{BEGIN}\nnew\n")
    assert page.endswith(f"\n{END}\nafter\n")
    assert "old" not in page
    assert max(map(len, page.splitlines())) <= 120
    with pytest.raises(ValueError, match="no <!-- peers: begin -->"):
        insert("nothing", "new")


def test_the_documentation_has_the_markers_and_the_table_of_the_last_run() -> None:
    page = PAGE.read_text(encoding="utf-8")
    last = PAGE.parent.parent / "benchmarks" / "peers" / "last.json"
    assert insert(page, render(msgspec.json.decode(last.read_bytes(), type=Comparison))) == page


def test_a_server_that_may_lose_commits_is_refused() -> None:
    # The tests' server does not wait for the disk.
    answer = CliRunner().invoke(peers, ["--store", dsn_of(POSTGRES), "--rounds", "0"])
    assert answer.exit_code == 1
    assert "fsync" in answer.output
    assert "must be on" in answer.output


def test_unknown_names_are_refused_before_anything_is_installed() -> None:
    for option, known in (("--only", "pgqueuer"), ("--workloads", "w1")):
        answer = CliRunner().invoke(peers, [option, "nonsense"])
        assert answer.exit_code == 2
        assert known in answer.output


def test_every_peer_has_a_driver_and_only_workloads_that_exist() -> None:
    assert len({peer.name for peer in (*PEERS, *MISSING)}) == len(PEERS) + len(MISSING)
    for peer in PEERS:
        assert (DRIVERS / peer.driver).is_file()
        assert peer.shares.keys() <= {workload.name for workload in WORKLOADS}


def test_a_peer_that_cannot_be_installed_is_reported_with_the_reason(tmp_path: Path) -> None:
    peer = Peer(name="Nowhere", registry="npm", packages=("/nowhere/at-all",), driver="x.mjs", shares={})
    with pytest.raises(Unavailable, match="npm"):
        Environment(peer, tmp_path).install(60)
