"""Messages to runs: sending, broadcasting, asking and cancelling.

The answer to a question is stored under the question's key. Asking again with the same key, after a crash of the asking
process, gives the answer that there is, and the workflow sees one question.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from perdure.client.runs.results import OutputWatch
from perdure.client.session import Session
from perdure.core.codec.failure import Failure
from perdure.core.ids import ID_BYTES, check_id, check_name
from perdure.core.model.outputs import Output, OutputKind
from perdure.core.model.record import NewMessage, SendOutcome
from perdure.core.model.run import Status
from perdure.core.model.run_orders import OrderOutcome
from perdure.core.model.set_aside_messages import SetAsideMessage, set_aside_of
from perdure.core.model.waits import is_not_taken, meant_by, message_names
from perdure.core.option_checks import check_text, check_whole
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, seconds
from perdure.errors import RunFinished, RunNotFound, StoreError, UsageError
from perdure.store.contract import Store
from perdure.store.sql.runs.inbox import send as send_in
from perdure.workflow.channels import (
    Channel,
    Question,
    expected_message,
    question_key,
    question_name,
    question_payload,
    topic,
)

logger = logging.getLogger("perdure.client")

#: Runs that a broadcast reaches in one transaction.
CHUNK = 100
_PREFIX = "broadcast:"


async def send(
    session: Session,
    run_id: str,
    channel: Channel[Any] | str,
    value: object,
    key: str | None,
    connection: object,
    reason: str,
) -> None:
    """Put a message into the inbox of a run, on the caller's connection if there is one."""
    wanted = expected_message(channel)
    name = wanted.name
    session.codec.encode(check_text("reason", reason), "the reason of a message")
    message = NewMessage(
        run_id=check_id(run_id),
        name=name,
        payload=session.codec.encode(value, f"message {name!r} to run {run_id!r}", wanted.type),
        key=session.system.entropy(16).hex() if key is None else check_id(key, "message key"),
        reason=reason,
    )
    if connection is None:
        [outcome] = await (await session.connect()).send([message], session.actor)
    else:
        async with session.usable_store().user_transaction(connection, session.actor) as tx:
            [outcome] = await send_in(tx, [message])
    if outcome is SendOutcome.UNKNOWN:
        raise RunNotFound(f"there is no run {run_id!r} to send {name!r} to")
    if outcome is SendOutcome.FINISHED:
        raise RunFinished(f"run {run_id!r} has finished and takes no more messages; {name!r} was not sent")
    if outcome is SendOutcome.MISSPELT:
        await _warn(session, run_id, name)


async def _warn(session: Session, run_id: str, name: str) -> None:
    """Log that a message was sent under a name that is probably wrong. It is stored, whatever fails here."""
    with suppress(StoreError):
        found = await (await session.connect()).waits(run_id)
        if found is None:
            return
        if is_not_taken(name, found):
            taken = ", ".join(map(repr, message_names(found) or ()))
            logger.warning(
                "message %r was sent to run %s, which %s: it stays in the inbox, and no handler gets it",
                *(name, run_id, f"takes only {taken}" if taken else "takes no messages"),
            )
        elif (meant := meant_by(name, found)) is not None:
            logger.warning(
                "message %r was sent to run %s, which waits for %r: it is kept until the workflow asks for it",
                name, run_id, meant,
            )  # fmt: skip


async def broadcast(
    session: Session, channel: Channel[Any] | str, value: object, correlation: str, key: str | None
) -> int:
    """Send a message to every run that listens for a name and a correlation value; the number of runs."""
    wanted = expected_message(channel)
    name = wanted.name
    payload = session.codec.encode(value, f"broadcast {name!r}", wanted.type)
    key = session.system.entropy(16).hex() if key is None else check_id(key, "key of a broadcast")
    if len(f"{_PREFIX}{key}".encode()) > ID_BYTES:
        raise UsageError(
            f"the key {key!r} of a broadcast is too long; give one of {ID_BYTES - len(_PREFIX)} bytes at most"
        )
    store = await session.connect()
    sent, cursor = 0, None
    while True:
        chunk = await store.broadcast(topic(name, correlation), payload, key, cursor, CHUNK, session.actor)
        sent, cursor = sent + chunk.sent, chunk.cursor
        if cursor is None:
            return sent


async def cancel(session: Session, run_id: str, reason: str) -> bool:
    """Ask a run to stop; False if it had finished."""
    reason = check_text("reason", reason)
    session.codec.encode(reason, "the reason of a cancellation")
    key = session.system.entropy(16).hex()
    outcome = await (await session.connect()).cancel(check_id(run_id), reason, key, session.actor)
    if outcome is SendOutcome.UNKNOWN:
        raise RunNotFound(f"there is no run {run_id!r} to cancel")
    return outcome is not SendOutcome.FINISHED


#: Messages set aside that one read returns.
_PAGE = 1_000


async def set_aside_messages(session: Session, run_id: str) -> list[SetAsideMessage]:
    """List the messages that a run has set aside, in order. Raises `RunNotFound`."""
    await session.find(run_id)
    store, found = await session.connect(), list[Output]()
    while page := await store.outputs(run_id, OutputKind.SET_ASIDE, "", found[-1].position if found else -1, _PAGE):
        found += page
    return [set_aside_of(output) for output in found]


async def decide(session: Session, run_id: str, number: int, value: object, *, deliver: bool) -> None:
    """Deliver a message that was set aside again, with `value` unless that is `...`, or drop it."""
    if check_whole("number", number, 0) >= 2**63:
        raise UsageError(f"number={brief(number)}: there is no such message; list them with set_aside_messages()")
    store = await session.connect()
    payload = None if value is ... else await _edited(session, run_id, number, value)
    key = session.system.entropy(16).hex()
    outcome = await store.decide_message(check_id(run_id), number, key, payload, session.actor, deliver=deliver)
    if outcome is OrderOutcome.UNKNOWN:
        await session.find(run_id)
        raise UsageError(f"run {run_id!r} has set aside no message {number}; list them with set_aside_messages()")
    if outcome is OrderOutcome.ALREADY:
        raise UsageError(f"message {number} of run {run_id!r} was delivered again or dropped before")
    if outcome is OrderOutcome.FINISHED:
        raise RunFinished(
            f"run {run_id!r} has finished and takes no more messages; retry it first, or drop the message"
        )


async def _edited(session: Session, run_id: str, number: int, value: object) -> str:
    found = [one for one in await set_aside_messages(session, run_id) if one.number == number]
    what = f"message {number} to run {run_id!r}"
    key = question_key(found[0].name, found[0].payload) if found else None
    if key is not None:
        return question_payload(key, value, session.codec, what)
    return session.codec.encode(value, what)


async def ask(
    session: Session,
    run_id: str,
    question: Question[Any, Any] | str,
    value: object,
    *,
    returns: Any,
    key: str | None,
    timeout: Duration | None,
) -> Any:
    """Send a question and wait for its answer. Raises `RunNotFound`, `RunFinished`, or the error that ended the run."""
    answer = await reply_to(session, run_id, question, value, key=key, timeout=timeout)
    if answer.failed:
        raise session.errors.restore(Failure.read(answer.payload), run_id=run_id)
    name, kind = answer_type(question, returns)
    return session.codec.decode(answer.payload, kind, f"answer of run {run_id!r} to {name!r}")


def answer_type(question: Question[Any, Any] | str, returns: Any) -> tuple[str, Any]:
    """Name of a question, and type of its answer."""
    if isinstance(question, Question):
        return question.name, question.answer if returns is Any else returns
    return check_name(question, "name of a question"), returns


async def reply_to(
    session: Session,
    run_id: str,
    question: Question[Any, Any] | str,
    value: object,
    *,
    key: str | None,
    timeout: Duration | None,
) -> Output:
    """Send a question and wait for the reply, as stored."""
    if timeout is not None:
        seconds(timeout)
    declared = question.type if isinstance(question, Question) else Any
    name, _ = answer_type(question, Any)
    key = session.system.entropy(16).hex() if key is None else check_id(key, "key of a question")
    message = NewMessage(
        run_id=check_id(run_id),
        name=question_name(name),
        payload=question_payload(key, value, session.codec, f"question {name!r} to run {run_id!r}", declared),
        key=key,
    )
    store = await session.connect()
    # Listen before sending: a database that is replaced right after may lack the question.
    with OutputWatch(store, session.system) as watch:
        outcome = await _put(session, store, message, name)
        if outcome is SendOutcome.FINISHED:
            raise RunFinished(f"run {run_id!r} has finished and answers no more questions; {name!r} was not asked")
        return await session.results.explainer.wait(
            run_id,
            lambda: _answer(session, store, message, name, watch),
            f"perdure ask {run_id}",
            timeout,
            f"run {run_id!r} did not answer {name!r}",
        )


async def _put(session: Session, store: Store, message: NewMessage, name: str) -> SendOutcome:
    [outcome] = await store.send([message], session.actor)
    if outcome is SendOutcome.UNKNOWN:
        raise RunNotFound(f"there is no run {message.run_id!r} to ask {name!r}")
    return outcome


async def _answer(session: Session, store: Store, message: NewMessage, name: str, watch: OutputWatch) -> Output:
    run_id, key = message.run_id, message.key
    while True:
        if watch.take_replaced():
            # The question may be lost; its key makes a repetition harmless if it is not.
            await _put(session, store, message, name)
        # The run is read before its answers: one that comes with the end is there when it has ended.
        run = await session.find(run_id)
        answers = await store.outputs(run_id, OutputKind.REPLY, key, -1, 1)
        if answers:
            return answers[0]
        if run.status is Status.COMPLETED:
            raise RunFinished(f"run {run_id!r} finished without an answer to {name!r}")
        if run.status.finished:
            session.results.outcome(run, Any)
        await watch.wait()
