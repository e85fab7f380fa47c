"""For testing workflows, and for testing the engine itself.

Strategies for Hypothesis are in `perdure.testing.strategies`.
"""

from perdure.testing.assertions import (
    assert_absent,
    assert_attempts,
    assert_failure,
    assert_operations,
    assert_order,
    assert_result,
)
from perdure.testing.crash_report import CrashFinding, CrashReport, crash_everywhere
from perdure.testing.environment import Environment, StillWaiting
from perdure.testing.factories import EngineFactory, EnvironmentFactory
from perdure.testing.replacement import ReplacedCall, Replacement
from perdure.testing.replay_folder import FolderReport, replay_everywhere

__all__ = [
    "CrashFinding",
    "CrashReport",
    "EngineFactory",
    "Environment",
    "EnvironmentFactory",
    "FolderReport",
    "ReplacedCall",
    "Replacement",
    "StillWaiting",
    "assert_absent",
    "assert_attempts",
    "assert_failure",
    "assert_operations",
    "assert_order",
    "assert_result",
    "crash_everywhere",
    "replay_everywhere",
]
