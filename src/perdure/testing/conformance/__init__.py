"""Duties of every store, as a suite of tests that reads as a specification.

Subclass each class in a test module that provides the fixtures `store` and `harness` (see `harness.Harness`).
"""

from __future__ import annotations

from perdure.testing.conformance.audit import Levels, Trail
from perdure.testing.conformance.documents import Documents
from perdure.testing.conformance.faults import Closing, LostVerdicts, Points, Repeating
from perdure.testing.conformance.graph_checkpoints import GraphCheckpoints
from perdure.testing.conformance.harness import Harness, ManualSystem, Unshared
from perdure.testing.conformance.limits.breakers import Breaking, StepsAtGates
from perdure.testing.conformance.limits.gates import Looking, Passing, Steered, TakingTurns
from perdure.testing.conformance.limits.overrides import Forgetting, Setting
from perdure.testing.conformance.locks import Locks
from perdure.testing.conformance.migrations import Migrations
from perdure.testing.conformance.reads import Histories, LastChanges, Listing, Loading, Watching
from perdure.testing.conformance.registry import Registry
from perdure.testing.conformance.runs.attempt_reports import AttemptReports
from perdure.testing.conformance.runs.attributes import Attributes, Counting, Filters
from perdure.testing.conformance.runs.children import Children
from perdure.testing.conformance.runs.claim_by_id import DueRuns, Taking
from perdure.testing.conformance.runs.claims import Affinity, Builds, Claims, LostClaims, Order, Suspects, Timers
from perdure.testing.conformance.runs.continue_as_new import Renewal
from perdure.testing.conformance.runs.create import Blocked, PlainSql, Runs
from perdure.testing.conformance.runs.dead_letters import DeadLetters, Requeueing
from perdure.testing.conformance.runs.inbox import Cancelling, Inbox, Parking
from perdure.testing.conformance.runs.log import RunLogs
from perdure.testing.conformance.runs.outputs import Outputs, SetAside, Trimming
from perdure.testing.conformance.runs.packing import Packing
from perdure.testing.conformance.runs.pause_and_evict import Pauses, Priorities, Steering, Terminations
from perdure.testing.conformance.runs.pinning import Pinning
from perdure.testing.conformance.runs.reopen import Families, Forking, Recovering, Reopening
from perdure.testing.conformance.runs.retention import Deleting, Pruning
from perdure.testing.conformance.runs.topics import Broadcasting
from perdure.testing.conformance.runs.waiters import Observing, Waiting
from perdure.testing.conformance.schedules import Firing, Scheduling
from perdure.testing.conformance.singletons import Debouncing, Singletons
from perdure.testing.conformance.tokens import Tokens
from perdure.testing.conformance.turns import Fencing, Turns
from perdure.testing.conformance.watermarks import Watermarks
from perdure.testing.conformance.workers import Deadlines, Leaving, Sweeping, Workers

__all__ = [
    "Affinity",
    "AttemptReports",
    "Attributes",
    "Blocked",
    "Breaking",
    "Broadcasting",
    "Builds",
    "Cancelling",
    "Children",
    "Claims",
    "Closing",
    "Counting",
    "DeadLetters",
    "Deadlines",
    "Debouncing",
    "Deleting",
    "Documents",
    "DueRuns",
    "Families",
    "Fencing",
    "Filters",
    "Firing",
    "Forgetting",
    "Forking",
    "GraphCheckpoints",
    "Harness",
    "Histories",
    "Inbox",
    "LastChanges",
    "Leaving",
    "Levels",
    "Listing",
    "Loading",
    "Locks",
    "Looking",
    "LostClaims",
    "LostVerdicts",
    "ManualSystem",
    "Migrations",
    "Observing",
    "Order",
    "Outputs",
    "Packing",
    "Parking",
    "Passing",
    "Pauses",
    "Pinning",
    "PlainSql",
    "Points",
    "Priorities",
    "Pruning",
    "Recovering",
    "Registry",
    "Renewal",
    "Reopening",
    "Repeating",
    "Requeueing",
    "RunLogs",
    "Runs",
    "Scheduling",
    "SetAside",
    "Setting",
    "Singletons",
    "Steered",
    "Steering",
    "StepsAtGates",
    "Suspects",
    "Sweeping",
    "Taking",
    "TakingTurns",
    "Terminations",
    "Timers",
    "Tokens",
    "Trail",
    "Trimming",
    "Turns",
    "Unshared",
    "Waiting",
    "Watching",
    "Watermarks",
    "Workers",
]
