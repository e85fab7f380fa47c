"""Durable execution for Python: ordinary async functions that survive crashes, restarts, deploys and month-long waits."""

from perdure.client.blocking import Blocking, BlockingHandle
from perdure.client.engine import Engine, EngineWorker
from perdure.client.handle import Handle
from perdure.core.duration import Duration
from perdure.core.errors import (
    BadArguments,
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
    LoopStuck,
    NeverAwaited,
    NotInWorkflow,
    PayloadTooLarge,
    PerdureError,
    RetryAfter,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunNotFound,
    SchemaMismatch,
    StepFailed,
    StepTimeout,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
    UnknownWorkflow,
    UsageError,
    WorkflowError,
)
from perdure.core.failure import Failure
from perdure.core.model import Event, Kind, Page, Reason, Record, Run, Status, WorkerInfo
from perdure.core.retry import Retry
from perdure.workflow.context import Context, Operation
from perdure.workflow.current import StepInfo, step_info
from perdure.workflow.definition import Call, Workflow, workflow
from perdure.workflow.steps import step
