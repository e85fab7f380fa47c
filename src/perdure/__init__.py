"""Durable execution for Python: ordinary async functions that survive crashes, restarts, deploys and month-long waits.

More names are in `perdure.errors`, `perdure.blocking` (for code that is not async), `perdure.push` (queues and web
hooks), `perdure.machine` (state machines), `perdure.admin` (types of inspection) and `perdure.testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.core.lazy_exports import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from perdure.client.engine import Engine
    from perdure.client.handle import Handle
    from perdure.client.locks import Lock
    from perdure.core.limits.breaker import Breaker
    from perdure.core.limits.limit import Fair, Limit
    from perdure.core.model.outputs import StreamItem
    from perdure.core.model.run import Status
    from perdure.core.policy.classify import classify
    from perdure.core.policy.retention import Retention
    from perdure.core.policy.retry import Retry
    from perdure.core.policy.singleton import Debounce, Singleton
    from perdure.core.policy.watermark import Watermark
    from perdure.core.time.cron import At, Cron, Every
    from perdure.core.time.duration import Duration
    from perdure.core.time.schedule import Overlap, fire_time_of
    from perdure.errors import (
        Fatal,
        Locked,
        Overloaded,
        PerdureError,
        RetryAfter,
        Rollback,
        RunCancelled,
        RunExists,
        RunFailed,
        RunFinished,
        RunNotFound,
        SingletonBusy,
        StepFailed,
        StepTimeout,
        StoreUnavailable,
        UsageError,
    )
    from perdure.workflow.activity import Activity, Pending, activity
    from perdure.workflow.branches import Branch, NamedBranch, RaceResult
    from perdure.workflow.channels import Channel, Question, ReceivedQuestion
    from perdure.workflow.child import Child
    from perdure.workflow.context import Context
    from perdure.workflow.definition import Call, Workflow, workflow
    from perdure.workflow.discover import discover
    from perdure.workflow.endless_loop import Break, Continue
    from perdure.workflow.outcomes import Failed, FailureKind, Succeeded
    from perdure.workflow.runtime import Operation, ReceivedMessage
    from perdure.workflow.saga import Saga
    from perdure.workflow.step import ActivityInfo, StepInfo, activity_info, credentials, step, step_info

__all__ = [
    "Activity",
    "ActivityInfo",
    "At",
    "Branch",
    "Break",
    "Breaker",
    "Call",
    "Channel",
    "Child",
    "Context",
    "Continue",
    "Cron",
    "Debounce",
    "Duration",
    "Engine",
    "Every",
    "Failed",
    "FailureKind",
    "Fair",
    "Fatal",
    "Handle",
    "Limit",
    "Lock",
    "Locked",
    "NamedBranch",
    "Operation",
    "Overlap",
    "Overloaded",
    "Pending",
    "PerdureError",
    "Question",
    "RaceResult",
    "ReceivedMessage",
    "ReceivedQuestion",
    "Retention",
    "Retry",
    "RetryAfter",
    "Rollback",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunFinished",
    "RunNotFound",
    "Saga",
    "Singleton",
    "SingletonBusy",
    "Status",
    "StepFailed",
    "StepInfo",
    "StepTimeout",
    "StoreUnavailable",
    "StreamItem",
    "Succeeded",
    "UsageError",
    "Watermark",
    "Workflow",
    "activity",
    "activity_info",
    "classify",
    "credentials",
    "discover",
    "fire_time_of",
    "step",
    "step_info",
    "workflow",
]

if not TYPE_CHECKING:
    # Hidden from type checkers, for which a package with `__getattr__` has every name.
    __getattr__, __dir__ = _lazy_exports(
        __name__,
        {
            "perdure.client.engine": ("Engine",),
            "perdure.client.handle": ("Handle",),
            "perdure.client.locks": ("Lock",),
            "perdure.core.limits.breaker": ("Breaker",),
            "perdure.core.limits.limit": (
                "Fair",
                "Limit",
            ),
            "perdure.core.model.outputs": ("StreamItem",),
            "perdure.core.model.run": ("Status",),
            "perdure.core.policy.classify": ("classify",),
            "perdure.core.policy.retention": ("Retention",),
            "perdure.core.policy.retry": ("Retry",),
            "perdure.core.policy.singleton": (
                "Debounce",
                "Singleton",
            ),
            "perdure.core.policy.watermark": ("Watermark",),
            "perdure.core.time.cron": (
                "At",
                "Cron",
                "Every",
            ),
            "perdure.core.time.duration": ("Duration",),
            "perdure.core.time.schedule": (
                "Overlap",
                "fire_time_of",
            ),
            "perdure.errors": (
                "Fatal",
                "Locked",
                "Overloaded",
                "PerdureError",
                "RetryAfter",
                "Rollback",
                "RunCancelled",
                "RunExists",
                "RunFailed",
                "RunFinished",
                "RunNotFound",
                "SingletonBusy",
                "StepFailed",
                "StepTimeout",
                "StoreUnavailable",
                "UsageError",
            ),
            "perdure.workflow.activity": (
                "Activity",
                "Pending",
                "activity",
            ),
            "perdure.workflow.branches": (
                "Branch",
                "NamedBranch",
                "RaceResult",
            ),
            "perdure.workflow.channels": (
                "Channel",
                "Question",
                "ReceivedQuestion",
            ),
            "perdure.workflow.child": ("Child",),
            "perdure.workflow.context": ("Context",),
            "perdure.workflow.definition": (
                "Call",
                "Workflow",
                "workflow",
            ),
            "perdure.workflow.discover": ("discover",),
            "perdure.workflow.endless_loop": (
                "Break",
                "Continue",
            ),
            "perdure.workflow.outcomes": (
                "Failed",
                "FailureKind",
                "Succeeded",
            ),
            "perdure.workflow.runtime": (
                "Operation",
                "ReceivedMessage",
            ),
            "perdure.workflow.saga": ("Saga",),
            "perdure.workflow.step": (
                "ActivityInfo",
                "StepInfo",
                "activity_info",
                "credentials",
                "step",
                "step_info",
            ),
        },
        modules=("errors",),
        packages=("workflow",),
    )
