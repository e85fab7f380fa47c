"""Handlers for reports about activities that have returned `Pending`, by the token of their attempt."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from perdure.core.codec.failure import Failure, type_name
from perdure.errors import StepFailed
from perdure.http.api import ApiRequest
from perdure.http.views import Done


class CompleteBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of an activity."""

    value: Any = None


async def complete_activity(api: ApiRequest, token: str, body: CompleteBody) -> Done:
    """Complete an activity that has returned `Pending`. The same result again changes nothing."""
    await api.engine.runs.complete(token, body.value)
    return Done(True)


class FailBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Error of an attempt: the name of its class, and its message."""

    #: Name of the class, such as `TimeoutError` or `shop.errors.Declined`.
    type: str = type_name(StepFailed)
    message: str = ""
    #: Arguments and attributes of the Python exception, as JSON.
    args: str | None = None
    state: str | None = None
    traceback: str = ""


async def fail_activity(api: ApiRequest, token: str, body: FailBody) -> Done:
    """Fail the attempt of an activity that has returned `Pending`; its retry policy decides what follows."""
    failure = Failure(
        type=body.type, message=body.message, args=body.args, state=body.state, traceback=body.traceback
    )  # fmt: skip
    await api.engine.runs.fail(token, failure)
    return Done(True)


class BeatBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Details of a heartbeat, for inspection and for the next attempt."""

    details: Any = None


async def beat_activity(api: ApiRequest, token: str, body: BeatBody) -> Done:
    """Report that an activity that has returned `Pending` goes on."""
    await api.engine.runs.heartbeat(token, body.details)
    return Done(True)
