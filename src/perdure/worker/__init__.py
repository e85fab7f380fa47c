"""Workers: claim runs, execute them, commit their turns."""

from perdure.replay.run_loop import in_workflow
from perdure.worker.claiming.pushed_runs import UnknownRun, UnservedType
from perdure.worker.commit.hooks import HookCaller
from perdure.worker.deploy_check import ReplayCheck
from perdure.worker.options import WorkerOptions, WorkerSettings
from perdure.worker.sweeper import delete_events
from perdure.worker.worker import Worker

__all__ = [
    "HookCaller",
    "ReplayCheck",
    "UnknownRun",
    "UnservedType",
    "Worker",
    "WorkerOptions",
    "WorkerSettings",
    "delete_events",
    "in_workflow",
]
