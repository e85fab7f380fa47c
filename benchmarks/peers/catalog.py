"""The peers: where each comes from, what it can be asked to do, and how its own tables show that it did it."""

from __future__ import annotations

from msgspec import Struct


class Peer(Struct, frozen=True, kw_only=True):
    """A system that can be had from a package registry."""

    name: str
    #: `pip` or `npm`; empty for this project.
    registry: str
    packages: tuple[str, ...] = ()
    driver: str
    #: For each workload, the part of our runs that it gets, so that a slow system ends within minutes.
    shares: dict[str, float]
    #: Queries for the runs that have finished and the steps that were recorded. Empty: the driver asks its own
    #: server.
    runs_query: str = ""
    steps_query: str = ""
    #: Makes the run of a killed process claimable at once, for w6.
    release: str = ""
    note: str = ""


class Missing(Struct, frozen=True):
    """A system that is not measured, and why."""

    name: str
    reason: str


#: This project.
OURS = Peer(
    name="Perdure",
    registry="",
    driver="perdure_driver.py",
    shares=dict.fromkeys(("w1", "w2", "w3", "w4", "w5", "w6"), 1.0),
    runs_query="SELECT count(*) FROM perdure_runs WHERE status = 'completed'",
    steps_query="""
SELECT coalesce(sum(CASE WHEN kind = 'packed' THEN json_array_length(payload::json) ELSE 1 END), 0)
FROM perdure_history WHERE kind IN ('step', 'packed')
""",
)

PEERS = (
    Peer(
        name="PgQueuer",
        registry="pip",
        packages=("pgqueuer[asyncpg]", "uvloop"),
        driver="pgqueuer_driver.py",
        shares={"w1": 1.0, "w3": 1.0},
        runs_query="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        note="a queue without steps: a run is one job",
    ),
    Peer(
        name="Procrastinate",
        registry="pip",
        packages=("procrastinate",),
        driver="procrastinate_driver.py",
        shares={"w1": 0.2, "w3": 0.5},
        runs_query="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        note="a queue without steps: a run is one job",
    ),
    Peer(
        name="DBOS",
        registry="pip",
        packages=("dbos",),
        driver="dbos_driver.py",
        shares={"w1": 0.1, "w2": 0.2, "w3": 0.5, "w4": 0.2, "w5": 0.05, "w6": 0.2},
        runs_query="SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
        steps_query="SELECT count(*) FROM dbos.operation_outputs WHERE function_name LIKE '%pay'",
    ),
    Peer(
        name="Absurd",
        registry="pip",
        packages=("absurd-sdk", "absurdctl"),
        driver="absurd_driver.py",
        shares={"w1": 0.2, "w2": 0.3, "w3": 0.3, "w5": 0.1},
        runs_query="SELECT count(*) FROM absurd.t_default WHERE state = 'completed'",
        steps_query="SELECT count(*) FROM absurd.c_default WHERE status = 'committed'",
        note="no parallel steps in the Python SDK",
    ),
    Peer(
        name="OpenWorkflow",
        registry="npm",
        packages=("openworkflow", "postgres"),
        driver="openworkflow_driver.mjs",
        shares={"w1": 0.2, "w2": 0.3, "w3": 0.1, "w4": 0.2, "w5": 0.1, "w6": 0.2},
        runs_query="SELECT count(*) FROM openworkflow.workflow_runs WHERE status = 'completed'",
        steps_query="""
SELECT count(*) FROM openworkflow.step_attempts WHERE status = 'completed' AND step_name LIKE 'pay%'
""",
        release="UPDATE openworkflow.workflow_runs SET available_at = now() WHERE status = 'running'",
    ),
    Peer(
        name="Restate",
        registry="npm",
        packages=("@restatedev/restate-server", "@restatedev/restate-sdk"),
        driver="restate_driver.mjs",
        shares={"w1": 0.3, "w2": 0.3, "w3": 0.5, "w4": 0.2, "w5": 0.1},
        note="a server with a log of its own on the same disk; w1 and w2 include starting the runs",
    ),
)

#: Systems whose server no registry package contains.
MISSING = (
    Missing("Temporal", "`temporalio` on PyPI has no server; it downloads one when it starts a development server"),
    Missing("Hatchet", "`hatchet-sdk` on PyPI has no server, and no registry package contains one"),
)
