from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench import KEYS
from benchmarks.programs import PAYLOAD, pay
from perdure.core.codec.codec import Codec
from tests.servers.databases import MYSQL
from tests.servers.places import dsn_of
from tests.servers.schemas import POSTGRES

ROOT = Path(__file__).parent.parent

TINY = [
    "--rounds", "1", "--runs", "10", "--steps", "20", "--sleep", "0.2", "--finished", "100", "--sleeping", "100",
    "--foreign", "100", "--raw-commits", "5", "--raw-batches", "1",
]  # fmt: skip

#: What each workload tells besides the common keys.
OF_ITS_OWN = {
    "w1": {"ratio_steps_to_raw_commits"},
    "w2": {"ratio_steps_to_raw_commits"},
    "w3": {"step_p50_ms", "step_p99_ms", "ratio_step_to_raw_commit"},
    "w4": {"ratio_steps_to_raw_commits"},
    "w5": {"done_after_last_due_s"},
    "w6": {"records_per_s"},
    "w7": {"alone_p50_ms", "ratio_beside_to_alone", "ratio_woken_beside_to_alone"},
    "w8": {
        "alone_steps_per_s",
        "ratio_two_workers_to_one",
        "computing_steps_per_s",
        "ratio_two_workers_to_one_computing",
    },
    "w9": {"cpu_us_per_activity", "awaited_per_s", "cpu_us_per_awaited", "together_per_s", "cpu_us_per_one_of_many"},
    "idle": {"idle_cpu_percent"},
    "types": {"types", "ratio_to_one_type"},
    "large": {"bytes_per_result", "megabytes_per_s", "ratio_to_small_results"},
    "memory": {"rss_growth_mb", "resident_bytes_per_run"},
    "audit": {"full_runs_per_s", "lifecycle_runs_per_s", "off_runs_per_s", "off_cpu_us_per_step"},
    "watched": {"alone_steps_per_s", "watched_steps_per_s", "ratio_watched_to_alone", "tabs"},
    "observed": {"metrics_steps_per_s", "cpu_ratio_metrics", "cpu_ratio_traces", "cpu_ratio_again_most"},
}


def bench(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    ).stdout


@pytest.mark.parametrize("workload", OF_ITS_OWN)
def test_each_workload_prints_one_json_object_with_the_keys_that_are_promised(workload: str, tmp_path: Path) -> None:
    [line] = bench(workload, "--json", "--store", f"sqlite:///{tmp_path}/bench.db", *TINY).splitlines()
    result = json.loads(line)
    assert result["workload"] == workload
    assert result.keys() >= {*KEYS, *OF_ITS_OWN[workload], "python", "sqlite", "loop"}
    assert all(result[key] is not None for key in OF_ITS_OWN[workload])
    assert all(result[key] > 0 for key in ("raw_commits_per_s", "raw_commit_p50_ms", "raw_batch_rows_per_s"))


@pytest.mark.parametrize("workload", ["w1", "w3", "w7"])
@pytest.mark.parametrize(("variable", "store"), [(POSTGRES, "postgresql"), (MYSQL, "mysql")])
def test_a_server_is_measured_in_the_same_way(variable: str, store: str, workload: str) -> None:
    [line] = bench(workload, "--json", "--store", dsn_of(variable), *TINY).splitlines()
    result = json.loads(line)
    assert result["store"] == store
    assert result.keys() >= {*KEYS, *OF_ITS_OWN[workload]}
    assert all(result[key] > 0 for key in ("raw_commits_per_s", "raw_commit_p50_ms", "raw_batch_rows_per_s"))


def test_without_json_it_prints_a_table_for_people() -> None:
    lines = bench("w4", *TINY).splitlines()
    assert lines[0].startswith("w4 on sqlite synchronous=FULL")
    assert any("steps_per_s" in line for line in lines)


async def test_the_payload_of_the_raw_measurement_is_what_a_step_of_the_benchmark_returns() -> None:
    assert Codec().encode(await pay(1), "receipt") == PAYLOAD
