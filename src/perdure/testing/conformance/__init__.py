"""What every store must do, as a suite of tests that reads as a specification.

Subclass each class in a test module that provides the fixtures `store` and `harness` (see `harness.Harness`).
"""

from __future__ import annotations

from perdure.testing.conformance.afterlife import Deleting, Pruning
from perdure.testing.conformance.bounds import Forgetting, Setting
from perdure.testing.conformance.breakers import Breaking, StepsAtGates
from perdure.testing.conformance.children import Children
from perdure.testing.conformance.claims import Affinity, Claims, LostClaims, Order, Suspects, Timers
from perdure.testing.conformance.dead import DeadLetters, Requeueing
from perdure.testing.conformance.faults import Closing, LostVerdicts, Points, Repeating
from perdure.testing.conformance.gates import Looking, Passing, TakingTurns
from perdure.testing.conformance.harness import Harness, ManualSystem, Unshared
from perdure.testing.conformance.inbox import Cancelling, Inbox, Parking
from perdure.testing.conformance.locks import Locks
from perdure.testing.conformance.migrations import Migrations
from perdure.testing.conformance.outputs import Outputs, Trimming
from perdure.testing.conformance.reads import Listing, Loading, Watching
from perdure.testing.conformance.registry import Registry
from perdure.testing.conformance.renewal import Renewal
from perdure.testing.conformance.runs import Blocked, PlainSql, Runs
from perdure.testing.conformance.schedules import Firing, Scheduling
from perdure.testing.conformance.second import Families, Forking, Recovering, Reopening
from perdure.testing.conformance.singletons import Debouncing, Singletons
from perdure.testing.conformance.steering import Pauses, Steering
from perdure.testing.conformance.taking import DueRuns, Taking
from perdure.testing.conformance.topics import Broadcasting
from perdure.testing.conformance.trail import Levels, Trail
from perdure.testing.conformance.turns import Fencing, Turns
from perdure.testing.conformance.watermarks import Watermarks
from perdure.testing.conformance.workers import Deadlines, Leaving, Sweeping, Workers

__all__ = [
    "Affinity",
    "Blocked",
    "Breaking",
    "Broadcasting",
    "Cancelling",
    "Children",
    "Claims",
    "Closing",
    "DeadLetters",
    "Deadlines",
    "Debouncing",
    "Deleting",
    "DueRuns",
    "Families",
    "Fencing",
    "Firing",
    "Forgetting",
    "Forking",
    "Harness",
    "Inbox",
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
    "Order",
    "Outputs",
    "Parking",
    "Passing",
    "Pauses",
    "PlainSql",
    "Points",
    "Pruning",
    "Recovering",
    "Registry",
    "Renewal",
    "Reopening",
    "Repeating",
    "Requeueing",
    "Runs",
    "Scheduling",
    "Setting",
    "Singletons",
    "Steering",
    "StepsAtGates",
    "Suspects",
    "Sweeping",
    "Taking",
    "TakingTurns",
    "Timers",
    "Trail",
    "Trimming",
    "Turns",
    "Unshared",
    "Watching",
    "Watermarks",
    "Workers",
]
