"""Durable execution for Python: ordinary async functions that survive crashes, restarts, deploys and month-long waits."""

from perdure.client.afterlife import Decided, Deleted
from perdure.client.backpressure import Watermarks
from perdure.client.blocking import Blocking, BlockingHandle
from perdure.client.blocking_breakers import BlockingBreakers
from perdure.client.blocking_limits import BlockingLimits
from perdure.client.blocking_locks import BlockingLock, BlockingLocks
from perdure.client.blocking_schedules import BlockingSchedules
from perdure.client.blocking_watermarks import BlockingWatermarks
from perdure.client.breakers import Breakers
from perdure.client.engine import Engine
from perdure.client.handle import Handle
from perdure.client.limits import Limits
from perdure.client.locks import Lock, Locks
from perdure.client.outputs import StreamItem
from perdure.client.pushing import Pusher
from perdure.client.schedules import Schedules
from perdure.client.working import EngineWorker
from perdure.core.account import Mishap, RunReport, StepReport
from perdure.core.audit import Audit, EventPage
from perdure.core.breakers import Breaker, BreakerRule, BreakerView, Circuit
from perdure.core.classify import Category, Classified, classify
from perdure.core.control import Pause, PauseKind
from perdure.core.dead import DeadLetter, DeadPage, DeadReason, Fault
from perdure.core.duration import Duration
from perdure.core.errors import (
    ActivityTimeout,
    BadArguments,
    BreakerOpen,
    ChildLimit,
    DecodeError,
    Diverged,
    DuplicateName,
    EncodeError,
    EngineClosed,
    Expired,
    Fatal,
    InvalidCursor,
    InvalidDuration,
    InvalidId,
    InvalidName,
    InvalidSchedule,
    JoinError,
    Locked,
    LockLost,
    LoopStuck,
    NeverAwaited,
    NotInWorkflow,
    NotStarted,
    Overloaded,
    PayloadTooLarge,
    PerdureError,
    ProcessDied,
    RaceError,
    RetryAfter,
    Rollback,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunNotFound,
    ScheduleExists,
    ScheduleNotFound,
    SchemaMismatch,
    SingletonBusy,
    StepFailed,
    StepTimeout,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
    StreamFull,
    Undeliverable,
    UnknownWorkflow,
    UsageError,
    WorkflowError,
)
from perdure.core.failure import Failure
from perdure.core.fleet import WorkerInfo
from perdure.core.gates import Bounds, Fair, Gate, Hold, Limit
from perdure.core.hooks import DeadLetterNotice, ErrorNotice
from perdure.core.interruption import Interruption
from perdure.core.listing import Page
from perdure.core.locks import LockInfo
from perdure.core.model import Event, Kind, Message, Reason, Record, Run, Status
from perdure.core.push import Executed, Standing
from perdure.core.report import Finding, Problem, Report
from perdure.core.retention import Retention
from perdure.core.retry import Retry
from perdure.core.routing import TypeInfo
from perdure.core.schedule import Misfire, Overlap, Schedule, slot_of
from perdure.core.singleton import Debounce, Singleton
from perdure.core.timing import At, Cron, Every
from perdure.core.watermark import Watermark
from perdure.push.announcing import Announcer
from perdure.push.handler import QueueHandler
from perdure.push.http import PushApp
from perdure.push.message import Answer, Delivery, Fate, QueueMessage
from perdure.push.redis import RedisQueue
from perdure.workflow.actions import Action, Actions
from perdure.workflow.activity import Activity, activity
from perdure.workflow.channels import Asked, Channel, Question
from perdure.workflow.children import Child
from perdure.workflow.context import Context
from perdure.workflow.current import ActivityInfo, StepInfo, activity_info, credentials, step_info
from perdure.workflow.definition import Call, Definition, Workflow, workflow
from perdure.workflow.discovery import discover
from perdure.workflow.looping import Break, Continue
from perdure.workflow.machine import StateMachine
from perdure.workflow.operation import Operation
from perdure.workflow.outcomes import Failed, FailureKind, Succeeded
from perdure.workflow.parallel import Branch, Won
from perdure.workflow.runtime import Received
from perdure.workflow.saga import Saga
from perdure.workflow.steps import step

__all__ = [
    "Action",
    "Actions",
    "Activity",
    "ActivityInfo",
    "ActivityTimeout",
    "Announcer",
    "Answer",
    "Asked",
    "At",
    "Audit",
    "BadArguments",
    "Blocking",
    "BlockingBreakers",
    "BlockingHandle",
    "BlockingLimits",
    "BlockingLock",
    "BlockingLocks",
    "BlockingSchedules",
    "BlockingWatermarks",
    "Bounds",
    "Branch",
    "Break",
    "Breaker",
    "BreakerOpen",
    "BreakerRule",
    "BreakerView",
    "Breakers",
    "Call",
    "Category",
    "Channel",
    "Child",
    "ChildLimit",
    "Circuit",
    "Classified",
    "Context",
    "Continue",
    "Cron",
    "DeadLetter",
    "DeadLetterNotice",
    "DeadPage",
    "DeadReason",
    "Debounce",
    "Decided",
    "DecodeError",
    "Definition",
    "Deleted",
    "Delivery",
    "Diverged",
    "DuplicateName",
    "Duration",
    "EncodeError",
    "Engine",
    "EngineClosed",
    "EngineWorker",
    "ErrorNotice",
    "Event",
    "EventPage",
    "Every",
    "Executed",
    "Expired",
    "Failed",
    "Failure",
    "FailureKind",
    "Fair",
    "Fatal",
    "Fate",
    "Fault",
    "Finding",
    "Gate",
    "Handle",
    "Hold",
    "Interruption",
    "InvalidCursor",
    "InvalidDuration",
    "InvalidId",
    "InvalidName",
    "InvalidSchedule",
    "JoinError",
    "Kind",
    "Limit",
    "Limits",
    "Lock",
    "LockInfo",
    "LockLost",
    "Locked",
    "Locks",
    "LoopStuck",
    "Message",
    "Misfire",
    "Mishap",
    "NeverAwaited",
    "NotInWorkflow",
    "NotStarted",
    "Operation",
    "Overlap",
    "Overloaded",
    "Page",
    "Pause",
    "PauseKind",
    "PayloadTooLarge",
    "PerdureError",
    "Problem",
    "ProcessDied",
    "PushApp",
    "Pusher",
    "Question",
    "QueueHandler",
    "QueueMessage",
    "RaceError",
    "Reason",
    "Received",
    "Record",
    "RedisQueue",
    "Report",
    "Retention",
    "Retry",
    "RetryAfter",
    "Rollback",
    "Run",
    "RunCancelled",
    "RunExists",
    "RunFailed",
    "RunFinished",
    "RunNotFound",
    "RunReport",
    "Saga",
    "Schedule",
    "ScheduleExists",
    "ScheduleNotFound",
    "Schedules",
    "SchemaMismatch",
    "Singleton",
    "SingletonBusy",
    "Standing",
    "StateMachine",
    "Status",
    "StepFailed",
    "StepInfo",
    "StepReport",
    "StepTimeout",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreRefused",
    "StoreUnavailable",
    "StreamFull",
    "StreamItem",
    "Succeeded",
    "TypeInfo",
    "Undeliverable",
    "UnknownWorkflow",
    "UsageError",
    "Watermark",
    "Watermarks",
    "Won",
    "WorkerInfo",
    "Workflow",
    "WorkflowError",
    "activity",
    "activity_info",
    "classify",
    "credentials",
    "discover",
    "slot_of",
    "step",
    "step_info",
    "workflow",
]
