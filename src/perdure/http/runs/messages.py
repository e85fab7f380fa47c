"""Handlers for messages to runs."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from perdure.client.runs.messages import reply_to
from perdure.client.session import session_of
from perdure.core.model.set_aside_messages import SetAsideMessage
from perdure.http.api import ApiRequest, Reason, Reply, WaitSeconds, handle_on
from perdure.http.redaction import FailureView, Redactor
from perdure.http.views import Done, Page, Time, view_of, views_of


class SetAsideView(Struct, frozen=True, kw_only=True):
    """A message that the workflow could not decode."""

    number: int
    name: str
    value: Any
    error: FailureView
    at: Time
    decision: str

    @classmethod
    def of(cls, message: SetAsideMessage, shown: Redactor) -> SetAsideView:
        """Convert a message that was set aside."""
        return view_of(cls, message, shown, value=shown.payload(message.payload))


class SendBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message. With a `key`, sending it twice is sending it once."""

    name: str
    value: Any = None
    key: str | None = None
    reason: Reason = ""


async def send(api: ApiRequest, run_id: str, body: SendBody) -> Reply[Done]:
    """Send a message to a run; it is kept until the run receives it."""
    key = body.key or api.request.headers.get("idempotency-key")
    await api.engine.send(run_id, body.name, body.value, key=key, reason=body.reason)
    return Reply(Done(True), 202)


class AskBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question. Asking again with the same `key` gives the answer that there is."""

    name: str
    value: Any = None
    key: str | None = None
    wait: WaitSeconds = 30


class AnswerView(Struct, frozen=True, kw_only=True):
    """An answer, or the error that was given instead; while `answered` is false, ask again with the same `key`."""

    answered: bool
    key: str
    answer: Any = None
    error: FailureView | UnsetType | None = UNSET


async def ask(api: ApiRequest, run_id: str, body: AskBody) -> Reply[AnswerView]:
    """Ask a workflow a question and wait for the answer. Status 202 if there is none yet."""
    given, session = body.key or api.request.headers.get("idempotency-key"), session_of(api.engine)
    key = session.system.entropy(16).hex() if given is None else given
    try:
        # A wait of 0 would be over before the question was sent.
        reply = await reply_to(session, run_id, body.name, body.value, key=key, timeout=max(0.1, api.wait(body.wait)))
    except TimeoutError:
        return Reply(AnswerView(answered=False, key=key), 202)
    if reply.failed:
        return Reply(AnswerView(answered=True, key=key, error=api.shown.failure(reply.payload)))
    return Reply(AnswerView(answered=True, key=key, answer=api.shown.payload(reply.payload)))


async def set_aside(api: ApiRequest, run_id: str) -> Page[SetAsideView]:
    """List the messages that a run's workflow could not decode."""
    found = await handle_on(api, run_id).set_aside_messages()
    return Page(views_of(SetAsideView, found, api.shown))


class DeliverBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another value for a message; without one, the message is delivered as it is."""

    value: Any = UNSET


async def deliver(api: ApiRequest, run_id: str, number: int, body: DeliverBody) -> Done:
    """Put a message that was set aside into the run's inbox again, as it is or with another value."""
    value = ... if isinstance(body.value, UnsetType) else body.value
    await handle_on(api, run_id).deliver_again(number, value)
    return Done(True)


async def drop(api: ApiRequest, run_id: str, number: int) -> Done:
    """Drop a message that was set aside."""
    await handle_on(api, run_id).drop_message(number)
    return Done(True)


class BroadcastBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to every run that listens for a name and a correlation value."""

    name: str
    value: Any = None
    correlation: str
    key: str | None = None


class SentView(Struct, frozen=True):
    """Number of runs that a message reached."""

    sent: int


async def broadcast(api: ApiRequest, body: BroadcastBody) -> SentView:
    """Send a message to every run that listens for a name and a correlation value."""
    key = body.key or api.request.headers.get("idempotency-key")
    return SentView(await api.engine.runs.broadcast(body.name, body.value, correlation=body.correlation, key=key))
