"""Handlers that let a run go again, as it is or as a new run."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from perdure.client.runs import reopen
from perdure.client.session import session_of
from perdure.core.ids import check_id
from perdure.errors import BadArguments
from perdure.http.api import (
    ApiRequest,
    Arguments,
    DurationText,
    Position,
    Reason,
    Reply,
    WhenText,
    call_of,
    handle_on,
    moment,
)
from perdure.http.runs.inspect import RunView
from perdure.workflow.run_settings import RunSettings


class RetryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Changes to a run that goes again."""

    input: Arguments | None = None
    #: Type of the run, against which the arguments are checked.
    type: str | None = None
    #: Most attempts at an activity from now on.
    attempts: Annotated[int, Meta(ge=1, lt=2**31)] | None = None
    #: Policy of an activity from now on, as the Python client sends it.
    policy: dict[str, Any] | None = None
    schedule_to_start: DurationText | None = None
    start_to_close: DurationText | None = None
    schedule_to_close: DurationText | None = None
    heartbeat: DurationText | None = None
    deadline: WhenText | None = None
    queue: str | None = None
    priority: int | None = None
    #: `revision` of the run as it was read: a request that is repeated with it changes nothing.
    revision: Position | None = None
    reason: Reason = ""


class GenerationView(Struct, frozen=True):
    """Generation of a run."""

    generation: int


def _other_input(api: ApiRequest, body: RetryBody | ForkBody) -> Any:
    if body.type is None and isinstance(body.input, list):
        raise BadArguments("arguments by position need the `type` of the run")
    return body.input if body.type is None or body.input is None else call_of(api.engine, body.type, body.input)


def changes_of(api: ApiRequest, body: RetryBody) -> Any:
    """Options of a retry."""
    policy = RunSettings.from_json(msgspec.json.encode({"retry": body.policy}).decode())
    return {
        "input": _other_input(api, body),
        "retry": policy.retry or body.attempts,
        "schedule_to_start": body.schedule_to_start,
        "start_to_close": body.start_to_close,
        "schedule_to_close": body.schedule_to_close,
        "heartbeat": body.heartbeat,
        "deadline": moment(body.deadline),
        "queue": body.queue,
        "priority": body.priority,
        "reason": body.reason,
    }


async def retry(api: ApiRequest, run_id: str, body: RetryBody) -> GenerationView:
    """Let a run go again, as its status allows."""
    session = session_of(api.engine)
    return GenerationView(await reopen.retry(session, check_id(run_id), changes_of(api, body), body.revision))


class ForkBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First step of the new run, and its differences."""

    #: Location of the step, or number of its record.
    from_step: str | int | None = None
    input: Arguments | None = None
    #: Type of the run, against which the arguments are checked.
    type: str | None = None
    results: dict[str, Any] | None = None
    id: str | None = None
    deadline: WhenText | None = None
    reason: Reason = ""


async def fork(api: ApiRequest, run_id: str, body: ForkBody) -> Reply[RunView]:
    """Start a new run that goes on from a step of another one."""
    made = await handle_on(api, run_id).fork(
        from_step=body.from_step,
        input=_other_input(api, body),
        results=body.results,
        id=body.id,
        deadline=moment(body.deadline),
        reason=body.reason,
    )
    return Reply(RunView.of(await made.info(), api.shown), 201)
