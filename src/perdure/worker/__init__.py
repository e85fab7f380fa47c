"""Workers: claim runs, execute them, commit their turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.lazy_exports import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from perdure.replay.run_loop import in_workflow
    from perdure.worker.claiming.pushed_runs import UnknownRun, UnservedType
    from perdure.worker.commit.hooks import HookCaller
    from perdure.worker.deploy_check import ReplayCheck
    from perdure.worker.log_fields import JsonFormatter, RunFields, current_fields
    from perdure.worker.options import WorkerOptions, WorkerSettings
    from perdure.worker.signals import work_until_signalled
    from perdure.worker.sweeper import delete_events
    from perdure.worker.tracing import TraceListener, WorkerTracing
    from perdure.worker.worker import Worker

__all__ = [
    "HookCaller",
    "JsonFormatter",
    "ReplayCheck",
    "RunFields",
    "TraceListener",
    "UnknownRun",
    "UnservedType",
    "Worker",
    "WorkerOptions",
    "WorkerSettings",
    "WorkerTracing",
    "current_fields",
    "delete_events",
    "in_workflow",
    "work_until_signalled",
]

if not TYPE_CHECKING:
    # Hidden from type checkers, for which a package with `__getattr__` has every name.
    __getattr__, __dir__ = _lazy_exports(
        __name__,
        {
            "perdure.replay.run_loop": ("in_workflow",),
            "perdure.worker.claiming.pushed_runs": (
                "UnknownRun",
                "UnservedType",
            ),
            "perdure.worker.commit.hooks": ("HookCaller",),
            "perdure.worker.deploy_check": ("ReplayCheck",),
            "perdure.worker.log_fields": (
                "JsonFormatter",
                "RunFields",
                "current_fields",
            ),
            "perdure.worker.options": (
                "WorkerOptions",
                "WorkerSettings",
            ),
            "perdure.worker.signals": ("work_until_signalled",),
            "perdure.worker.sweeper": ("delete_events",),
            "perdure.worker.tracing": (
                "TraceListener",
                "WorkerTracing",
            ),
            "perdure.worker.worker": ("Worker",),
        },
    )
