"""Durable execution for Python: ordinary async functions that survive crashes, restarts, deploys and month-long waits."""

from perdure.client.blocking import Blocking, BlockingHandle
from perdure.client.blocking_breakers import BlockingBreakers
from perdure.client.blocking_limits import BlockingLimits
from perdure.client.blocking_locks import BlockingLock, BlockingLocks
from perdure.client.blocking_schedules import BlockingSchedules
from perdure.client.blocking_watermarks import BlockingWatermarks
from perdure.client.breakers import Breakers
from perdure.client.dead_letters import Decided, Deleted
from perdure.client.engine import Engine
from perdure.client.engine_worker import EngineWorker
from perdure.client.handle import Handle
from perdure.client.limits import Limits
from perdure.client.locks import Lock, Locks
from perdure.client.outputs import StreamItem
from perdure.client.push import Pusher
from perdure.client.schedules import Schedules
from perdure.client.watermarks import Watermarks
from perdure.core.audit import Audit, Event, EventPage
from perdure.core.codec.failure import Failure
from perdure.core.hooks import DeadLetterNotice, ErrorNotice
from perdure.core.limits.breaker import Breaker, BreakerInfo, BreakerRule, Circuit
from perdure.core.limits.limit import Fair, Limit, LimitBounds, LimitInfo, PermitScope
from perdure.core.model.claim import ExecutionResult, ExecutionState
from perdure.core.model.dead_letter import DeadLetter, DeadLetterPage, DeadLetterReason, Fault
from perdure.core.model.deploy_report import DeployFinding, DeployProblem, DeployReport
from perdure.core.model.lock import LockInfo
from perdure.core.model.orders import Pause, PauseKind
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.run import Reason, Run, RunPage, Status
from perdure.core.model.run_report import FailedAttempt, RunReport, StepReport
from perdure.core.model.worker_info import WorkerInfo
from perdure.core.policy.classify import Classification, ErrorCategory, classify
from perdure.core.policy.retention import Retention
from perdure.core.policy.retry import Retry
from perdure.core.policy.singleton import Debounce, Singleton
from perdure.core.policy.watermark import Watermark
from perdure.core.routing import TypeInfo
from perdure.core.time.cron import At, Cron, Every
from perdure.core.time.duration import Duration
from perdure.core.time.schedule import Misfire, Overlap, Schedule, fire_time_of
from perdure.errors import (
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
from perdure.push.announcer import Announcer
from perdure.push.handler import QueueHandler
from perdure.push.http import PushApp
from perdure.push.message import Answer, Delivery, Fate, QueueMessage
from perdure.push.redis import RedisQueue
from perdure.workflow.activity import Activity, activity
from perdure.workflow.branches import Branch, RaceResult
from perdure.workflow.channels import Channel, Question, ReceivedQuestion
from perdure.workflow.child import Child
from perdure.workflow.context import Context
from perdure.workflow.definition import Call, Definition, Workflow, workflow
from perdure.workflow.discover import discover
from perdure.workflow.loop import Break, Continue
from perdure.workflow.machine.actions import Action, Actions
from perdure.workflow.machine.state_machine import StateMachine
from perdure.workflow.outcomes import Failed, FailureKind, Succeeded
from perdure.workflow.runtime import Operation, ReceivedMessage
from perdure.workflow.saga import Saga
from perdure.workflow.step import step
from perdure.workflow.step_info import ActivityInfo, StepInfo, activity_info, credentials, step_info

__all__ = [
    "Action",
    "Actions",
    "Activity",
    "ActivityInfo",
    "ActivityTimeout",
    "Announcer",
    "Answer",
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
    "Branch",
    "Break",
    "Breaker",
    "BreakerInfo",
    "BreakerOpen",
    "BreakerRule",
    "Breakers",
    "Call",
    "Channel",
    "Child",
    "ChildLimit",
    "Circuit",
    "Classification",
    "Context",
    "Continue",
    "Cron",
    "DeadLetter",
    "DeadLetterNotice",
    "DeadLetterPage",
    "DeadLetterReason",
    "Debounce",
    "Decided",
    "DecodeError",
    "Definition",
    "Deleted",
    "Delivery",
    "DeployFinding",
    "DeployProblem",
    "DeployReport",
    "Diverged",
    "DuplicateName",
    "Duration",
    "EncodeError",
    "Engine",
    "EngineClosed",
    "EngineWorker",
    "ErrorCategory",
    "ErrorNotice",
    "Event",
    "EventPage",
    "Every",
    "ExecutionResult",
    "ExecutionState",
    "Expired",
    "Failed",
    "FailedAttempt",
    "Failure",
    "FailureKind",
    "Fair",
    "Fatal",
    "Fate",
    "Fault",
    "Handle",
    "Interruption",
    "InvalidCursor",
    "InvalidDuration",
    "InvalidId",
    "InvalidName",
    "InvalidSchedule",
    "JoinError",
    "Limit",
    "LimitBounds",
    "LimitInfo",
    "Limits",
    "Lock",
    "LockInfo",
    "LockLost",
    "Locked",
    "Locks",
    "LoopStuck",
    "Message",
    "Misfire",
    "NeverAwaited",
    "NotInWorkflow",
    "NotStarted",
    "Operation",
    "Overlap",
    "Overloaded",
    "Pause",
    "PauseKind",
    "PayloadTooLarge",
    "PerdureError",
    "PermitScope",
    "ProcessDied",
    "PushApp",
    "Pusher",
    "Question",
    "QueueHandler",
    "QueueMessage",
    "RaceError",
    "RaceResult",
    "Reason",
    "ReceivedMessage",
    "ReceivedQuestion",
    "Record",
    "RecordKind",
    "RedisQueue",
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
    "RunPage",
    "RunReport",
    "Saga",
    "Schedule",
    "ScheduleExists",
    "ScheduleNotFound",
    "Schedules",
    "SchemaMismatch",
    "Singleton",
    "SingletonBusy",
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
    "WorkerInfo",
    "Workflow",
    "WorkflowError",
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
