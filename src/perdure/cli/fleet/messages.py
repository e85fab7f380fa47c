"""Messages between the supervisor and its worker processes, as JSON."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class FleetSettings(Struct, frozen=True, kw_only=True):
    """Settings of a worker process, passed as JSON."""

    target: str
    #: Options of the worker; its share comes later.
    options: dict[str, Any]
    log_level: str | None
    log_format: str | None
    json: bool
    audit: str | None
    metrics: str | None
    database_timeout: str | None
    #: Seconds for which steps may go on after the process was told to drain.
    grace: float = 10.0
    #: File descriptor of the pipe to the supervisor.
    told: int = -1


class Share(Struct, frozen=True, kw_only=True):
    """Share of one process in what the command was given."""

    slots: int
    step_processes: int
    #: Number of processes that share the connections of the URL.
    processes: int
    worker_id: str


class Loaded(Struct, frozen=True, kw_only=True):
    """Report of a process that has loaded the code."""

    #: The database, without a password.
    url: str
    types: tuple[str, ...]
    #: Whether one process at a time writes to the database, as to a file of SQLite.
    exclusive: bool


class Broken(Struct, frozen=True, kw_only=True):
    """Report of a process that cannot use the code or the database."""

    error: str
