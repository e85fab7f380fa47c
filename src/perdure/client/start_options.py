"""What a start may be told."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any, TypedDict

from perdure.core.ids import check_id, check_name, uuid7
from perdure.core.model.run import DEFAULT_PRIORITY, DEFAULT_QUEUE, FAR, NewRun
from perdure.core.option_checks import check_priority
from perdure.core.policy.singleton import Debounce, Singleton
from perdure.core.system import System
from perdure.core.time.duration import Duration, instant
from perdure.errors import BadArguments, UsageError
from perdure.workflow.activity_options import Settings
from perdure.workflow.definition import Call

#: A moment: a datetime with a time zone, or a duration from now.
Moment = datetime.datetime | Duration


class StartOptions(TypedDict, total=False):
    """Options of `Engine.start`, apart from the workflow's own arguments."""

    #: The run's id; a UUIDv7 by default. Starting the same id with the same input again gives the same run.
    id: str | None
    #: Not before then.
    at: Moment | None
    #: Lower goes first; 100 by default.
    priority: int | None
    queue: str | None
    #: Fail the run if it is not finished by then.
    deadline: Moment | None
    #: At most one run is ever created with this key.
    idempotency_key: str | None
    #: At most one run of a key goes on at a time.
    singleton: Singleton | None
    #: Start once, some time after the last of several starts.
    debounce: Debounce | None


def _single(call: Call[Any], options: StartOptions) -> Call[Any]:
    """The call, as one of which there may be only one, if it is."""
    singleton, debounce = options.get("singleton"), options.get("debounce")
    if debounce is not None:
        if singleton is not None or options.get("at") is not None or options.get("idempotency_key") is not None:
            raise UsageError(
                "debounce says when a run starts and which; it goes with none of singleton, at, idempotency_key"
            )
        if not isinstance(debounce, Debounce):
            raise UsageError(f"debounce={debounce!r}: give a Debounce, such as Debounce('5s')")
        return replace(call, settings=Settings(single=debounce.resolved(call.type)).over(call.settings))
    return call if singleton is None else call.options(singleton=singleton)


def new_run(call: Call[Any], encoded_input: str, options: StartOptions, system: System, now: int) -> NewRun:
    """A run to create, from what a user asked for at the database's time `now`. Raises `InvalidId` and the like."""
    run_id = options.get("id")
    queue = options.get("queue")
    key = options.get("idempotency_key")
    at = options.get("at")
    deadline = options.get("deadline")
    priority = options.get("priority")
    if unknown := options.keys() - StartOptions.__annotations__.keys():
        raise BadArguments(f"start has no option {min(unknown)!r}; it has {', '.join(StartOptions.__annotations__)}")
    call = _single(call, options)
    wake_at = 0 if at is None else instant(at, now)
    placed = call.place(
        max(wake_at, now),
        None if queue is None else check_name(queue, "queue"),
        check_priority(priority),
        FAR if deadline is None else instant(deadline, now),
    )
    return NewRun(
        id=uuid7(now, system.entropy(10)) if run_id is None else check_id(run_id),
        type=check_name(call.type, "workflow type"),
        input=encoded_input,
        queue=placed.queue or DEFAULT_QUEUE,
        priority=DEFAULT_PRIORITY if placed.priority is None else placed.priority,
        wake_at=wake_at,
        deadline=placed.deadline,
        close_by=placed.close_by,
        max_attempts=placed.max_attempts,
        options=placed.options,
        idempotency_key=None if key is None else check_id(key, "idempotency key"),
        write_id=system.entropy(16).hex(),
    )
