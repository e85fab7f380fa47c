"""Starts and messages in the transactions of Django."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, Unpack

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from perdure.client.blocking import Handle
from perdure.client.runs.start import StartOptions
from perdure.core.codec.snapshot import snapshot
from perdure.django.engines import engine
from perdure.django.project_settings import project_settings
from perdure.workflow.definition import Call

R = TypeVar("R")


def start(call: Call[R], **options: Unpack[StartOptions]) -> Handle[R]:
    """Start a run on Django's connection, in the transaction that is open there or else in one of its own.

    In `transaction.atomic`, the run exists once the outermost block commits, and never if it is rolled back. Options
    and errors are those of `Engine.start`.
    """
    alias = _alias()
    if connections[alias].in_atomic_block:
        return engine().start(call, connection=connections[alias], **options)
    with transaction.atomic(using=alias):
        return engine().start(call, connection=connections[alias], **options)


def start_on_commit(call: Call[Any], *, using: str | None = None, **options: Unpack[StartOptions]) -> None:
    """Start a run after the commit of the transaction that is open on the database `using`.

    It is for engines on another database than that of the transaction, and for engines on a server. A process that dies
    between the commit and the start loses the run, so prefer `start` where both are in one database.
    """
    transaction.on_commit(partial(_start_now, call, options), using=using)


def _start_now(call: Call[Any], options: StartOptions) -> None:
    engine().start(call, **options)


def send(run_id: str, name: str, value: object = None, *, key: str | None = None, reason: str = "") -> None:
    """Send a message on Django's connection, in the transaction that is open there or else in one of its own."""
    alias, value = _alias(), snapshot(value)
    if connections[alias].in_atomic_block:
        engine().send(run_id, name, value, key=key, reason=reason, connection=connections[alias])
        return
    with transaction.atomic(using=alias):
        engine().send(run_id, name, value, key=key, reason=reason, connection=connections[alias])


def _alias() -> str:
    chosen = project_settings()
    if chosen.url is not None:
        raise ImproperlyConfigured(
            "PERDURE names the engine's database by URL, so no transaction of Django can include its writes; name it "
            "by DATABASE, an alias in DATABASES, or use `start_on_commit` and `engine().send`"
        )
    return chosen.database
