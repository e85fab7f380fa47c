"""Perdure for code that is not async: the names of the client, whose methods block."""

from perdure.client.blocking import (
    AuditTrail,
    Breakers,
    DeadLetters,
    Engine,
    EngineWorker,
    Handle,
    HeldLock,
    Limits,
    Lock,
    Locks,
    Pusher,
    Queues,
    Runs,
    Schedules,
    Watermarks,
    Workers,
)

__all__ = [
    "AuditTrail",
    "Breakers",
    "DeadLetters",
    "Engine",
    "EngineWorker",
    "Handle",
    "HeldLock",
    "Limits",
    "Lock",
    "Locks",
    "Pusher",
    "Queues",
    "Runs",
    "Schedules",
    "Watermarks",
    "Workers",
]
