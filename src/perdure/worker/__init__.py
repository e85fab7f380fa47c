"""Executing runs: joins replay and store."""

from perdure.replay.run_loop import in_workflow
from perdure.worker.claiming.push import Foreign, Unknown
from perdure.worker.commit.hooks import Hooking
from perdure.worker.deploy_check import Checkup
from perdure.worker.options import WorkerOptions
from perdure.worker.sweeper import forget_events
from perdure.worker.worker import Worker

__all__ = ["Checkup", "Foreign", "Hooking", "Unknown", "Worker", "WorkerOptions", "forget_events", "in_workflow"]
