"""Types of inspection and administration: namespaces of an `Engine`, and the values that they return."""

from perdure.client.audit import AuditTrail
from perdure.client.dead_letters import BulkResult, DeadLetters
from perdure.client.events import Events
from perdure.client.limits import Breakers, Limits
from perdure.client.locks import LockContext, Locks
from perdure.client.runs.namespace import PruneReport, Runs
from perdure.client.schedules import Schedules
from perdure.client.tokens import CreatedToken, Tokens
from perdure.client.watermarks import Watermarks
from perdure.client.workers import EngineWorker, Queues, Workers
from perdure.core.access import Role, TokenInfo
from perdure.core.audit import Audit, Event, EventPage
from perdure.core.codec.failure import Failure
from perdure.core.hooks import DeadLetterNotice, ErrorNotice
from perdure.core.limits.breaker import BreakerInfo, BreakerRule, Circuit
from perdure.core.limits.limit import LimitBounds, LimitInfo, PermitScope
from perdure.core.model.dead_letter import DeadLetter, DeadLetterAttempt, DeadLetterPage, DeadLetterReason
from perdure.core.model.documents import StoredDeployReport, TypeFindings, WorkflowSource
from perdure.core.model.events import StickyEvent
from perdure.core.model.histories import DamagedLine, ExportReport, HistoriesReport, UnreadableRun
from perdure.core.model.lock import LockInfo
from perdure.core.model.outputs import Interruption
from perdure.core.model.record import Message, Record, RecordKind
from perdure.core.model.reports import (
    BulkAction,
    BulkPreview,
    BulkReport,
    DeployFinding,
    DeployProblem,
    DeployReport,
    FailedAttempt,
    RunReport,
    StepReport,
)
from perdure.core.model.run import Reason, Run, RunGroup, RunPage
from perdure.core.model.run_orders import Pause, PauseKind
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.core.model.waits import RunWaits, Wait, WaitKind
from perdure.core.model.worker_info import BuildInfo, DrainOrder, RunningStep, RunningSteps, WorkerInfo
from perdure.core.policy.classify import Classification, ErrorCategory
from perdure.core.routing import TypeInfo
from perdure.core.run_log import LoggedLine
from perdure.core.time.cron import Window
from perdure.core.time.schedule import BackfillPreview, Fire, Misfire, Schedule, ScheduledRun
from perdure.workflow.definition import Definition
from perdure.workflow.other_run import OtherRun

__all__ = [
    "Audit",
    "AuditTrail",
    "BackfillPreview",
    "BreakerInfo",
    "BreakerRule",
    "Breakers",
    "BuildInfo",
    "BulkAction",
    "BulkPreview",
    "BulkReport",
    "BulkResult",
    "Circuit",
    "Classification",
    "CreatedToken",
    "DamagedLine",
    "DeadLetter",
    "DeadLetterAttempt",
    "DeadLetterNotice",
    "DeadLetterPage",
    "DeadLetterReason",
    "DeadLetters",
    "Definition",
    "DeployFinding",
    "DeployProblem",
    "DeployReport",
    "DrainOrder",
    "EngineWorker",
    "ErrorCategory",
    "ErrorNotice",
    "Event",
    "EventPage",
    "Events",
    "ExportReport",
    "FailedAttempt",
    "Failure",
    "Fire",
    "HistoriesReport",
    "Interruption",
    "LimitBounds",
    "LimitInfo",
    "Limits",
    "LockContext",
    "LockInfo",
    "Locks",
    "LoggedLine",
    "Message",
    "Misfire",
    "OtherRun",
    "Pause",
    "PauseKind",
    "PermitScope",
    "PruneReport",
    "Queues",
    "Reason",
    "Record",
    "RecordKind",
    "Role",
    "Run",
    "RunGroup",
    "RunPage",
    "RunReport",
    "RunWaits",
    "RunningStep",
    "RunningSteps",
    "Runs",
    "Schedule",
    "ScheduledRun",
    "Schedules",
    "SetAsideMessage",
    "StepReport",
    "StickyEvent",
    "StoredDeployReport",
    "TokenInfo",
    "Tokens",
    "TypeFindings",
    "TypeInfo",
    "UnreadableRun",
    "Wait",
    "WaitKind",
    "Watermarks",
    "Window",
    "WorkerInfo",
    "Workers",
    "WorkflowSource",
]
