"""Actions: each has a page that says what will happen, and a form that does it under the caller's name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from starlette.responses import Response

from perdure.client.runs.attempt_reports import pending_token
from perdure.client.session import session_of
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.waits import RunWaits, WaitKind
from perdure.core.policy.watermark import REFUSE, WAIT, Watermark
from perdure.core.time.duration import moment_of
from perdure.dashboard.figures import ErrorGroup
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.query import Query
from perdure.dashboard.texts import count, pretty
from perdure.errors import PerdureError, UsageError

#: More runs than this need their number typed.
MANY = 100
#: Longest wait of a page for the answer to a question.
_ANSWER = "20s"

Form = Mapping[str, str]


class Field(Struct, frozen=True, kw_only=True):
    """A field of a form: `text`, `json`, `check`, `choice` or `hidden`."""

    name: str
    label: str = ""
    kind: str = "text"
    value: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()


REASON = Field(name="reason", label="Reason, for the audit trail")


class RunAction(Struct, frozen=True, kw_only=True):
    """Something that a person can do to a run."""

    name: str
    label: str
    #: The button that does it.
    button: str
    sentence: Callable[[Run], str]
    fields: tuple[Field, ...] = ()
    allowed: Callable[[Run], bool]
    #: Returns the notice of the page of the run, or a page of its own.
    perform: Callable[[PageRequest, str, Form], Awaitable[str | Response]]
    danger: bool = False
    #: Key of the keyboard.
    key: str = ""
    #: It has a button on the page of the run.
    listed: bool = True
    #: The button is in the menu of the rarer ones.
    rare: bool = False


def read_json(form: Form, name: str) -> Any:
    """Decode a field of a form; None if it is empty. Raises `UsageError`."""
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not JSON: {error}") from None


def _number(form: Form, name: str) -> int:
    text = form.get(name, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{name} is a number, not {text[:40]!r}")
    return int(text)


def _optional_number(form: Form, name: str) -> int | None:
    return _number(form, name) if form.get(name) else None


async def _cancel(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.cancel(run_id, form.get("reason", ""))
    return "The run was asked to stop." if done else "The run had finished already; nothing was done."


async def _terminate(request: PageRequest, run_id: str, form: Form) -> str:
    undo = form.get("undo") == "yes"
    done = await request.engine.runs.terminate(run_id, form.get("reason", ""), undo=undo)
    if not done:
        return "The run had finished already; nothing was done."
    return "The run is being ended, and its steps are undone." if undo else "The run was ended."


async def _pause(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.runs.pause(run_id, form.get("reason", ""))
    return "The run pauses as soon as its running steps have ended." if done else "It was paused or finished already."


async def _resume(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.runs.resume(run_id, form.get("reason", ""))
    return "The run goes on." if done else "The run was not paused."


async def _set_priority(request: PageRequest, run_id: str, form: Form) -> str:
    text = form.get("priority", "").strip()
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 11:
        raise UsageError(f"priority is a whole number, not {text[:40]!r}")
    done = await request.engine.runs.set_priority(run_id, int(text), form.get("reason", ""))
    return f"The run has priority {int(text)}." if done else "It had that priority, or has finished."


async def _wake(request: PageRequest, run_id: str, form: Form) -> str:
    await request.engine.runs.wake(run_id, reason=form.get("reason", ""))
    return "The run wakes up now."


async def _retry(request: PageRequest, run_id: str, form: Form) -> str:
    generation = await request.engine.runs.retry(run_id, reason=form.get("reason", ""))
    return f"The run goes again, as generation {generation}." if generation > 1 else "The run goes again."


async def _fork(request: PageRequest, run_id: str, form: Form) -> str:
    handle = await request.engine.get(run_id)
    made = await handle.fork(
        from_step=form.get("from_step") or None,
        input=read_json(form, "input"),
        results=read_json(form, "results"),
        id=form.get("id") or None,
        reason=form.get("reason", ""),
    )
    return f"The run {made.id} was started."


async def _send(request: PageRequest, run_id: str, form: Form) -> str:
    value, key = read_json(form, "value"), form.get("key") or None
    await request.engine.send(run_id, form.get("name", ""), value, key=key, reason=form.get("reason", ""))
    return f"The message {form.get('name', '')} was sent."


async def _ask(request: PageRequest, run_id: str, form: Form) -> Response:
    handle = await request.engine.get(run_id)
    name = form.get("name", "")
    try:
        answer = await handle.ask(name, read_json(form, "value"), timeout=_ANSWER)
    except TimeoutError:
        raise UsageError(f"no answer to {name!r} within {_ANSWER}; the question stays in the inbox") from None
    # Not in an address, which proxies log.
    return request.render(
        "message.html",
        page="runs",
        title=f"Answer of {run_id}",
        sentence=f"The run has answered {name}.",
        value=request.shown.value(answer),
        back=request.url("runs", run_id),
        back_text="Back to the run",
    )


async def _evict(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.runs.evict(run_id, form.get("reason", ""))
    return "Its worker gives the run back; another one takes it." if done else "No worker held the run."


async def _unpin(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.runs.unpin(run_id, form.get("reason", ""))
    return "Workers of every build may continue the run." if done else "It was not pinned, or has finished."


async def _delete(request: PageRequest, run_id: str, form: Form) -> str:
    done = await request.engine.runs.delete(run_id, form.get("reason", ""))
    return "The run is deleted; lists leave it out." if done else "The run was deleted before."


async def _undelete(request: PageRequest, run_id: str, form: Form) -> str:
    return "The run is back." if await request.engine.runs.undelete(run_id) else "The run was not deleted."


async def _complete(request: PageRequest, run_id: str, form: Form) -> str:
    await request.engine.runs.complete(
        await pending_token(session_of(request.engine), run_id), read_json(form, "value")
    )
    return "The activity is completed."


async def _fail(request: PageRequest, run_id: str, form: Form) -> str:
    await request.engine.runs.fail(await pending_token(session_of(request.engine), run_id), form.get("error", ""))
    return "The attempt has failed; the activity is tried again if its policy says so."


async def _deliver(request: PageRequest, run_id: str, form: Form) -> str:
    handle = await request.engine.get(run_id)
    edited = form.get("value", "").strip()
    await handle.deliver_again(_number(form, "number"), read_json(form, "value") if edited else ...)
    return "The message was put into the inbox again."


async def _drop(request: PageRequest, run_id: str, form: Form) -> str:
    await (await request.engine.get(run_id)).drop_message(_number(form, "number"))
    return "The message was dropped."


def _unfinished(run: Run) -> bool:
    return not run.status.finished


def _is_pending(run: Run) -> bool:
    return run.status is Status.WAITING and run.reason is Reason.COMPLETION


def _retryable(run: Run) -> bool:
    return run.status in (Status.FAILED, Status.CANCELLED, Status.BLOCKED) or run.reason is Reason.RETRY


def _retry_sentence(run: Run) -> str:
    match run.status:
        case Status.BLOCKED:
            return "The run is unblocked: a worker claims it again where it stopped."
        case Status.WAITING:
            return "The run does not wait any longer: its step is tried now, and gets all of its attempts anew."
        case _:
            return (
                "The run goes on where it failed, as its next generation: steps that succeeded are kept, the failed "
                "one is done again. An activity begins anew, with all of its attempts."
            )


ACTIONS: tuple[RunAction, ...] = (
    RunAction(
        name="undelete", label="Undelete", button="Bring the run back", perform=_undelete,
        allowed=lambda run: bool(run.deleted_at),
        sentence=lambda _: "Lists have the run again. One that was not over when it was deleted goes on.",
    ),
    RunAction(
        name="complete", label="Complete", button="Complete the activity", perform=_complete, allowed=_is_pending,
        fields=(Field(name="value", label="Result, as JSON", kind="json", value="null"),),
        sentence=lambda _: "The activity has returned Pending and waits for this: it ends with the result, and the "
        "workflow that called it goes on.",
    ),
    RunAction(
        name="fail", label="Fail", button="Report the failure", perform=_fail, allowed=_is_pending, danger=True,
        fields=(Field(name="error", label="Message of the error", required=True),),
        sentence=lambda _: "The attempt that waits for its completion fails with this message. The activity is tried "
        "again, as its policy says.",
    ),
    RunAction(
        name="retry", label="Retry", button="Retry the run", key="r", allowed=_retryable, sentence=_retry_sentence,
        fields=(REASON,), perform=_retry,
    ),
    RunAction(
        name="send", label="Send", button="Send the message", allowed=_unfinished, perform=_send,
        sentence=lambda _: "The message is kept until the run receives it. With a key, sending it twice is sending it "
        "once.",
        fields=(
            Field(name="name", label="Name of the message", required=True),
            Field(name="value", label="Value, as JSON", kind="json", value="true"),
            Field(name="key", label="Key (optional)"),
            REASON,
        ),
    ),
    RunAction(
        name="ask", label="Ask", button="Ask the question", allowed=_unfinished, perform=_ask, rare=True,
        sentence=lambda _: "The run gets a question and answers it, if its code takes one of this name. The page "
        f"waits for the answer for {_ANSWER}.",
        fields=(
            Field(name="name", label="Name of the question", required=True),
            Field(name="value", label="Value, as JSON", kind="json", value="null"),
        ),
    ),
    RunAction(
        name="wake", label="Wake", button="Wake the run now", perform=_wake, fields=(REASON,),
        allowed=lambda run: run.status is Status.WAITING and run.reason is Reason.TIMER,
        sentence=lambda _: "The sleep ends now instead of at its time. A run that was to begin later begins now.",
    ),
    RunAction(
        name="resume", label="Resume", button="Resume the run", perform=_resume, fields=(REASON,),
        allowed=lambda run: run.reason is Reason.PAUSED, sentence=lambda _: "The pause ends and the run goes on.",
    ),
    RunAction(
        name="pause", label="Pause", button="Pause the run", fields=(REASON,), perform=_pause,
        allowed=lambda run: _unfinished(run) and run.reason is not Reason.PAUSED,
        sentence=lambda _: "The run stops once the steps that are under way have ended. Messages and timers are kept "
        "for later. A cancellation and its deadline still end it.",
    ),
    RunAction(
        name="priority", label="Priority", button="Change the priority", allowed=_unfinished, perform=_set_priority,
        rare=True,
        fields=(Field(name="priority", label="Priority; lower numbers go first", required=True), REASON),
        sentence=lambda run: f"The run has priority {run.priority}. Lower numbers are claimed first, also on the "
        "waitlist of a limit.",
    ),
    RunAction(
        name="fork", label="Fork", button="Start the new run", perform=_fork, allowed=lambda run: run.started_at > 0,
        sentence=lambda run: f"A new run starts with the history of {run.id} up to a step; this run is not changed. "
        "No earlier step is executed again.",
        fields=(
            Field(name="from_step", label="First step that is executed again; empty: the first of all"),
            Field(name="input", label="Other arguments by name, as JSON; empty: the same", kind="json"),
            Field(name="results", label='Other results of earlier steps, as JSON: {"quote": 7}', kind="json"),
            Field(name="id", label="Id of the new run (optional)"),
            REASON,
        ),
    ),
    RunAction(
        name="evict", label="Evict", button="Evict the run", rare=True, fields=(REASON,), perform=_evict,
        allowed=lambda run: run.status is Status.RUNNING,
        sentence=lambda _: "The worker that holds the run gives it back once its steps have ended, or after its grace "
        "period; another worker goes on with it.",
    ),
    RunAction(
        name="unpin", label="Unpin", button="Unpin the run", rare=True, fields=(REASON,), perform=_unpin,
        allowed=lambda run: _unfinished(run) and run.pinned_to is not None,
        sentence=lambda run: f"The run is pinned to the build {run.pinned_to}, which began it. Workers of every build "
        "may continue it from now on. Check first that their code follows its history: "
        "perdure check app:engine --pinned",
    ),
    RunAction(
        name="delete", label="Delete", button="Delete the run", rare=True, danger=True, fields=(REASON,),
        perform=_delete, allowed=lambda run: not run.deleted_at,
        sentence=lambda run: "Lists leave the run out until it is undeleted; its page and its result stay. "
        + ("" if run.status.finished else "It is not over, so it is paused until then."),
    ),
    RunAction(
        name="cancel", label="Cancel", button="Cancel the run", key="c", danger=True, fields=(REASON,),
        allowed=_unfinished, perform=_cancel,
        sentence=lambda _: "The workflow gets a CancelledError at its next await and may clean up; its undos run and "
        "its children are cancelled. It cannot be taken back.",
    ),
    RunAction(
        name="terminate", label="Terminate", button="Terminate the run", danger=True, allowed=_unfinished,
        perform=_terminate,
        fields=(REASON, Field(name="undo", label="Undo its completed steps first", kind="check")),
        sentence=lambda _: "The run fails now, without its code: nothing is cleaned up unless its steps are undone. "
        "Its children are cancelled. It cannot be taken back.",
    ),
    RunAction(
        name="deliver", label="Deliver", button="Deliver the message", listed=False, allowed=_unfinished,
        perform=_deliver,
        sentence=lambda _: "The message is put into the inbox again. Leave the value empty to deliver it as it is.",
        fields=(
            Field(name="number", kind="hidden"),
            Field(name="value", label="Another value, as JSON", kind="json"),
        ),
    ),
    RunAction(
        name="drop", label="Drop", button="Drop the message", danger=True, listed=False, allowed=_unfinished,
        perform=_drop, fields=(Field(name="number", kind="hidden"),),
        sentence=lambda _: "The message is never delivered. The run goes on waiting for another one.",
    ),
)  # fmt: skip
BY_NAME = {action.name: action for action in ACTIONS}


def run_actions(request: PageRequest, run: Run, waits: RunWaits | None) -> list[RunAction]:
    """Actions that a caller may take on a run in its state."""
    if not request.operates:
        return []
    if run.deleted_at:
        return [BY_NAME["undelete"]]
    return [action for action in ACTIONS if action.listed and action.allowed(run)]


async def confirm_run(
    request: PageRequest, run_id: str, name: str, problem: str = "", form: Form | None = None
) -> Response:
    """The page that says what an action will do to a run."""
    action = BY_NAME[name]
    handle = await request.engine.get(run_id)
    run = await handle.info()
    given = dict(request.http.query_params) if form is None else form
    fields = [msgspec.structs.replace(one, value=given.get(one.name, one.value)) for one in action.fields]
    if name == "send" and "name" not in given:
        fields = await _awaited(request, run, fields)
    if name == "fork" and "input" not in given and request.shown.shows_payloads:
        fields = [
            msgspec.structs.replace(one, value=pretty(request.shown.payload(run.input))) if one.name == "input" else one
            for one in fields
        ]
    sentence = action.sentence(run)
    if not action.allowed(run):
        sentence = f"The run is {run.status.value}, so this will probably be refused. {sentence}"
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="runs",
        title=f"{action.label} {run.id}",
        sentence=sentence,
        facts=[f"run {run.id}, {run.status.value}{f': {run.reason.value}' if run.reason else ''}", f"type {run.type}"],
        fields=fields,
        button=action.button,
        danger=action.danger,
        problem=problem,
        focus="input" if given.get("edit") == "input" else "",
        action=request.url("runs", run_id, name),
        back=request.url("runs", run_id),
    )


async def _awaited(request: PageRequest, run: Run, fields: Sequence[Field]) -> list[Field]:
    """Offer the names of the messages that a run waits for."""
    report = await (await request.engine.get(run.id)).report()
    waits = () if report.waits is None else report.waits.waits
    names = tuple(wait.name for wait in waits if wait.kind is WaitKind.MESSAGE)
    if not names:
        return [*fields]
    return [msgspec.structs.replace(one, value=names[0]) if one.name == "name" else one for one in fields]


async def perform_run(request: PageRequest, run_id: str, name: str, form: Form) -> Response:
    """Do an action, and lead back to the run."""
    try:
        done = await BY_NAME[name].perform(request, run_id, form)
    except PerdureError as error:
        return await confirm_run(request, run_id, name, problem=str(error), form=form)
    if isinstance(done, Response):
        return done
    return request.redirect(f"{request.url('runs', run_id)}?{urlencode({'done': done}, errors='replace')}")


# actions on other things


class PlaceAction(Struct, frozen=True, kw_only=True):
    """An action on a queue, type, limit, breaker, worker or schedule."""

    title: str
    sentence: str
    button: str
    #: What the page says afterwards of the thing that is named before it.
    done: str
    perform: Callable[[PageRequest, str, Form], Awaitable[object]]
    fields: tuple[Field, ...] = ()
    danger: bool = False


async def _pause_queue(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.queues.pause(queue=name, reason=form.get("reason", ""))


async def _resume_queue(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.queues.resume(queue=name, reason=form.get("reason", ""))


async def _pause_type(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.queues.pause(type=name, reason=form.get("reason", ""))


async def _resume_type(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.queues.resume(type=name, reason=form.get("reason", ""))


async def _set_limit(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.limits.set(
        name,
        concurrency=_optional_number(form, "concurrency"),
        rate=form.get("rate") or None,
        burst=_optional_number(form, "burst"),
        reason=form.get("reason", ""),
    )


async def _clear_limit(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.limits.clear(name, form.get("reason", ""))


async def _open_breaker(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.breakers.open(name, form.get("reason", ""))


async def _close_breaker(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.breakers.close(name, form.get("reason", ""))


async def _reset_breaker(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.breakers.reset(name, form.get("reason", ""))


def _watermark(form: Form, **place: str) -> Watermark:
    return Watermark(
        high=_number(form, "high"), low=_optional_number(form, "low"), when_full=form.get("when_full", ""), **place
    )


async def _mark_queue(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.queues.watermarks.set(_watermark(form, queue=name), form.get("reason", ""))


async def _unmark_queue(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.queues.watermarks.remove(queue=name, reason=form.get("reason", ""))


async def _mark_type(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.queues.watermarks.set(_watermark(form, type=name), form.get("reason", ""))


async def _unmark_type(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.queues.watermarks.remove(type=name, reason=form.get("reason", ""))


async def _release_lock(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.locks.force_release(name, form.get("reason", ""))


async def _set_event(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.events.emit(name, read_json(form, "value"), replace=True)


async def _delete_event(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.events.delete(name, form.get("reason", ""))


async def _pause_schedule(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.schedules.pause(name, form.get("reason", ""))


async def _resume_schedule(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.schedules.resume(
        name, catch_up=form.get("catch_up") == "yes", reason=form.get("reason", "")
    )


async def _trigger_schedule(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.schedules.trigger(name, form.get("reason", ""))


async def _delete_schedule(request: PageRequest, name: str, form: Form) -> None:
    await request.engine.schedules.delete(name, form.get("reason", ""))


async def _drain_worker(request: PageRequest, name: str, form: Form) -> object:
    return await request.engine.workers.drain(name, form.get("reason", ""), grace=form.get("grace") or None)


_AT_ONCE = "It takes effect at once, on every worker."
WATERMARK = (
    Field(name="high", label="Hold starts back from (ready runs)", required=True),
    Field(name="low", label="Let them go below; empty: four fifths"),
    Field(name="when_full", label="Until then, starts", kind="choice", value=REFUSE, choices=(REFUSE, WAIT)),
    REASON,
)
_WATERMARK = (
    "Once so many runs are ready, starts are refused or wait until fewer are. Children of workflows and runs of "
    "schedules still start. Other programs follow within a few seconds."
)
_NO_WATERMARK = (
    "Starts are not held back any more, except by a watermark that the code of an engine declares. Other programs "
    "follow within a few seconds."
)
#: Orders by kind of thing and name of the action.
ORDERS: Mapping[tuple[str, str], PlaceAction] = {
    ("queue", "pause"): PlaceAction(
        title="Pause the queue", button="Pause the queue", done="is paused", fields=(REASON,), perform=_pause_queue,
        sentence=f"Workers claim no more runs of this queue. Runs that a worker has go on until they wait. {_AT_ONCE}",
    ),
    ("queue", "resume"): PlaceAction(
        title="Resume the queue", button="Resume the queue", done="is open", fields=(REASON,), perform=_resume_queue,
        sentence=f"Workers claim runs of this queue again. {_AT_ONCE}",
    ),
    ("type", "pause"): PlaceAction(
        title="Pause the type", button="Pause the type", done="is paused", fields=(REASON,), perform=_pause_type,
        sentence=f"Workers claim no more runs of this type. Runs that a worker has go on until they wait. {_AT_ONCE}",
    ),
    ("type", "resume"): PlaceAction(
        title="Resume the type", button="Resume the type", done="is open", fields=(REASON,), perform=_resume_type,
        sentence=f"Workers claim runs of this type again. {_AT_ONCE}",
    ),
    ("queue", "set-watermark"): PlaceAction(
        title="Set the watermark of the queue", button="Set the watermark", fields=WATERMARK, perform=_mark_queue,
        done="has a watermark", sentence=_WATERMARK,
    ),
    ("queue", "remove-watermark"): PlaceAction(
        title="Remove the watermark of the queue", button="Remove the watermark", fields=(REASON,),
        perform=_unmark_queue, done="has no watermark in the database", sentence=_NO_WATERMARK,
    ),
    ("type", "set-watermark"): PlaceAction(
        title="Set the watermark of the type", button="Set the watermark", fields=WATERMARK, perform=_mark_type,
        done="has a watermark", sentence=_WATERMARK,
    ),
    ("type", "remove-watermark"): PlaceAction(
        title="Remove the watermark of the type", button="Remove the watermark", fields=(REASON,),
        perform=_unmark_type, done="has no watermark in the database", sentence=_NO_WATERMARK,
    ),
    ("limit", "set"): PlaceAction(
        title="Change the limit", button="Set the limit", perform=_set_limit, done="has new bounds",
        fields=(
            Field(name="concurrency", label="Most at once; empty: any number"),
            Field(name="rate", label="Rate, such as 100/m; empty: none"),
            Field(name="burst", label="Burst, with a rate; empty: a usual one"),
            REASON,
        ),
        sentence=f"These bounds replace those of the code until they are cleared. Runs under way go on. {_AT_ONCE}",
    ),
    ("limit", "clear"): PlaceAction(
        title="Clear the limit", button="Clear the limit", perform=_clear_limit, fields=(REASON,),
        done="has the bounds of the code",
        sentence=f"The bounds declared in code apply again, and none where code declares none. {_AT_ONCE}",
    ),
    ("breaker", "open"): PlaceAction(
        title="Open the breaker", button="Open the breaker", danger=True, perform=_open_breaker, fields=(REASON,),
        done="is open: no call passes",
        sentence=f"No call passes until the breaker is closed or reset by hand. {_AT_ONCE}",
    ),
    ("breaker", "close"): PlaceAction(
        title="Close the breaker", button="Close the breaker", perform=_close_breaker, fields=(REASON,),
        done="is closed: calls pass",
        sentence=f"Calls pass again, and stay so until the breaker is reset. {_AT_ONCE}",
    ),
    ("breaker", "reset"): PlaceAction(
        title="Reset the breaker", button="Reset the breaker", perform=_reset_breaker, fields=(REASON,),
        done="follows its rule",
        sentence=f"The breaker follows its rule again, with empty counters. {_AT_ONCE}",
    ),
    ("lock", "release"): PlaceAction(
        title="Release the lock", button="Release the lock", danger=True, perform=_release_lock, done="is free",
        fields=(REASON,),
        sentence="The lock is taken from its holder, which learns of it when it extends or releases the lock; its "
        "block is cancelled then. Another process may take the lock at once.",
    ),
    ("sticky", "set"): PlaceAction(
        title="Replace the value of", button="Replace the value", done="has a new value", perform=_set_event,
        fields=(Field(name="value", label="Value, as JSON", kind="json", required=True),),
        sentence="Runs that ask for the event from now on get this value. Those that have the old one keep it.",
    ),
    ("sticky", "delete"): PlaceAction(
        title="Delete the event", button="Delete the event", danger=True, fields=(REASON,), done="is deleted",
        perform=_delete_event,
        sentence="The event can be emitted and waited for anew. Runs that have its value keep it.",
    ),
    ("worker", "drain"): PlaceAction(
        title="Drain worker", button="Drain the worker", done="drains", danger=True, perform=_drain_worker,
        fields=(
            REASON,
            Field(name="grace", label="How long steps may continue, such as 5m; empty: the worker's own grace period"),
        ),
        sentence="The worker claims no more runs, lets its steps finish, gives back the rest and stops; other workers "
        "take its runs. It learns of it with its next heartbeat. A process that is started anew works.",
    ),
    ("schedule", "pause"): PlaceAction(
        title="Pause the schedule", button="Pause the schedule", done="is paused", fields=(REASON,),
        perform=_pause_schedule,
        sentence="It starts no more runs. Runs that it has started go on.",
    ),
    ("schedule", "resume"): PlaceAction(
        title="Resume the schedule", button="Resume the schedule", done="starts runs again", perform=_resume_schedule,
        fields=(Field(name="catch_up", label="Make up for the fire times of the pause", kind="check"), REASON),
        sentence="It starts runs again from its next fire time on.",
    ),
    ("schedule", "trigger"): PlaceAction(
        title="Run the schedule now", button="Start a run now", done="has started a run", perform=_trigger_schedule,
        fields=(REASON,),
        sentence="One run starts now, regardless of timing, pause and overlap.",
    ),
    ("schedule", "delete"): PlaceAction(
        title="Delete the schedule", button="Delete the schedule", danger=True, done="is deleted", fields=(REASON,),
        perform=_delete_schedule,
        sentence="It starts no more runs, and its timing and its call are lost. Runs that it has started go on.",
    ),
}  # fmt: skip


def confirm_order(
    request: PageRequest, kind: str, name: str, action: str, problem: str = "", form: Form | None = None
) -> Response:
    """The page that says what an order will do."""
    order = ORDERS[kind, action]
    given = {} if form is None else form
    path, page = _place(kind, name)
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page=page,
        title=f"{order.title} {name}",
        sentence=order.sentence,
        facts=[],
        fields=[msgspec.structs.replace(one, value=given.get(one.name, one.value)) for one in order.fields],
        button=order.button,
        danger=order.danger,
        problem=problem,
        action=request.url(*path, action),
        back=request.url(page),
    )


class OrderForm(Struct, frozen=True, kw_only=True):
    """The form of an order, for a page that has it in place."""

    title: str
    sentence: str
    fields: tuple[Field, ...]
    button: str
    danger: bool
    action: str


def order_form(request: PageRequest, kind: str, name: str, action: str, **values: str) -> OrderForm:
    """Make the form of an order, with the present values."""
    order = ORDERS[kind, action]
    return OrderForm(
        title=order.title,
        sentence=order.sentence,
        fields=tuple(msgspec.structs.replace(one, value=values.get(one.name, one.value)) for one in order.fields),
        button=order.button,
        danger=order.danger,
        action=request.url(*_place(kind, name)[0], action),
    )


#: Words for kinds of things, where they differ.
_WORDS = {"sticky": "event"}


def _place(kind: str, name: str) -> tuple[tuple[str, ...], str]:
    """Path of a thing, and the page that lists it."""
    if kind == "worker":
        return ("workers", name), "workers"
    if kind == "schedule":
        return ("schedules", name), "schedules"
    return ("queues", kind, name), {"type": "workflows", "sticky": "events"}.get(kind, "queues")


async def perform_order(request: PageRequest, kind: str, name: str, action: str, form: Form) -> Response:
    """Carry out an order, and lead back to its page."""
    order = ORDERS[kind, action]
    try:
        await order.perform(request, name, form)
    except PerdureError as error:
        return confirm_order(request, kind, name, action, problem=str(error), form=form)
    done = urlencode({"done": f"The {_WORDS.get(kind, kind)} {name} {order.done}."}, errors="replace")
    return request.redirect(f"{request.url(_place(kind, name)[1])}?{done}")


# groups of dead letters


def confirm_group(request: PageRequest, group: ErrorGroup, action: str, problem: str = "") -> Response:
    """The page that says what will happen to a group of dead letters."""
    number = len(group.letters)
    runs = count(number, "run")
    if action == "retry":
        sentence = (
            f"{runs} of {', '.join(group.types)} go again: workflows where they failed, activities from the start."
        )
        fields: tuple[Field, ...] = ()
    else:
        sentence = (
            f"{runs} of {', '.join(group.types)} are taken off this list; `perdure runs undelete URL RUN` brings one "
            "back."
        )
        fields = (REASON,)
    if number > MANY:
        fields = (*fields, Field(name="number", label=f"Type {number} to confirm", required=True))
    more = [f"and {number - 10:,} more"] if number > 10 else []
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="dead-letters",
        title=f"{action.capitalize()} {runs}",
        sentence=sentence,
        facts=[*(letter.run_id for letter in group.letters[:10]), *more],
        fields=fields,
        button=f"{action.capitalize()} {runs}",
        danger=action == "discard",
        problem=problem,
        action=request.url("dead-letters", group.key, action),
        back=request.url("dead-letters"),
    )


async def perform_group(request: PageRequest, group: ErrorGroup, action: str, form: Form) -> Response:
    """Retry or discard a group of dead letters."""
    ids = [letter.run_id for letter in group.letters]
    if len(ids) > MANY and form.get("number", "").strip().replace(",", "") != str(len(ids)):
        return confirm_group(request, group, action, problem=f"type {len(ids)}, the number of runs, to confirm")
    if action == "retry":
        result = await request.engine.dead_letters.retry(ids)
    else:
        result = await request.engine.dead_letters.discard(ids, reason=form.get("reason", ""))
    refused = (
        f"; {count(len(result.refused), 'run')} refused: {next(iter(result.refused.values()))}"
        if result.refused
        else ""
    )
    word = "retried" if action == "retry" else "discarded"
    text = f"{count(len(result.done), 'run')} {word}{refused}."
    return request.redirect(f"{request.url('dead-letters')}?{urlencode({'done': text}, errors='replace')}")


# many runs

#: Actions on many runs, and what each does.
BULK = {
    "retry": "go again, where they failed",
    "cancel": "are asked to stop; their undos run and their children are cancelled",
    "pause": "stop once the steps that are under way have ended",
    "resume": "go on, if they are paused",
    "terminate": "fail now, without their code",
    "send": "get a message",
    "delete": "are left out of lists until they are undeleted; those that are not over are paused until then",
}
#: Actions on many runs that cannot be taken back.
BULK_DANGER = frozenset({"cancel", "terminate", "delete"})
_MESSAGE = (
    Field(name="message", label="Name of the message", required=True),
    Field(name="value", label="Value, as JSON", kind="json", value="true"),
)


class Chosen(Struct, frozen=True, kw_only=True):
    """Runs to act on: those named, or all that fit a query."""

    query: Query
    #: Empty: all that fit the query.
    ids: tuple[str, ...] = ()

    @classmethod
    def read(cls, form: Form) -> Chosen:
        """Read the choice from a form. Raises `UsageError` if there is none."""
        query = Query.parse(form.get("q", ""))
        ids = tuple(one for one in form.get("run", "").split("\n") if one)
        if form.get("all") == "yes":
            return cls(query=query)
        if not ids:
            raise UsageError("no run is selected; go back and select some, or all that match")
        return cls(query=query, ids=ids)

    async def options(self, request: PageRequest) -> dict[str, Any]:
        """Arguments of `preview_bulk` and `start_bulk`."""
        if self.ids:
            return {"run_ids": self.ids}
        store = await session_of(request.engine).connect()
        filters = self.query.filters(moment_of(await store.now()))
        return {"where": {name: value for name, value in filters.items() if name != "order"}}

    def __str__(self) -> str:
        if self.ids:
            return "that you selected"
        return f"that fit {self.query}" if self.query.terms else "of this database, whatever their state"


async def choose_bulk(request: PageRequest, form: Form) -> Response:
    """The page that says what will happen to runs that were selected, or the comparison of two of them."""
    action = form.get("action", "")
    chosen = Chosen.read(form)
    if action == "compare":
        if len(chosen.ids) != 2:
            raise UsageError(f"{count(len(chosen.ids), 'run')} selected; two can be compared")
        return request.redirect(request.url("runs", chosen.ids[0], "diff", chosen.ids[1]))
    if action not in BULK:
        raise UsageError("there is no such action")
    return await confirm_bulk(request, action, chosen)


async def confirm_bulk(
    request: PageRequest, action: str, chosen: Chosen, problem: str = "", form: Form | None = None
) -> Response:
    """The page that says what will happen to many runs."""
    found = await request.engine.runs.preview_bulk(**await chosen.options(request))
    number = found.count.count
    runs = f"{found.count} run{'s' * (str(found.count) != '1')}"
    choice = {"run": "\n".join(chosen.ids)} if chosen.ids else {"all": "yes", "q": str(chosen.query)}
    fields = [Field(name=name, kind="hidden", value=value) for name, value in choice.items()]
    # The same form sent twice is one action.
    job = f"bulk-{session_of(request.engine).system.entropy(8).hex()}"
    asked = (*(_MESSAGE if action == "send" else ()), REASON)
    given = {} if form is None else form
    fields.append(Field(name="id", kind="hidden", value=job))
    fields += [msgspec.structs.replace(one, value=given.get(one.name, one.value)) for one in asked]
    if number > MANY:
        fields.append(Field(name="number", label=f"Type {number} to confirm", required=True))
    more = [f"and {number - 10:,} more"] if number > 10 else []
    later = "" if chosen.ids else " Runs that are created later are left out."
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="runs",
        title=f"{action.capitalize()} {runs}",
        sentence=f"{runs} {chosen} {BULK[action]}. Runs for which that makes no sense are left alone.{later}",
        facts=[*(f"{run.id}, {run.status.value}" for run in found.first), *more],
        fields=fields,
        button=f"{action.capitalize()} {runs}",
        danger=action in BULK_DANGER,
        problem=problem,
        action=request.url("bulk", action),
        back=request.runs_url(str(chosen.query)),
    )


async def perform_bulk(request: PageRequest, action: str, form: Form) -> Response:
    """Start an action on many runs; it is a run itself, to which this leads."""
    chosen = Chosen.read(form)
    options = await chosen.options(request)
    number = (await request.engine.runs.preview_bulk(**options)).count.count
    if number > MANY and form.get("number", "").strip().replace(",", "") != str(number):
        problem = f"type {number}, the number of runs, to confirm"
        return await confirm_bulk(request, action, chosen, problem=problem, form=form)
    try:
        if action == "send":
            options |= {"message": form.get("message", ""), "value": read_json(form, "value")}
        job = await request.engine.runs.start_bulk(
            action, id=form.get("id") or None, reason=form.get("reason", ""), **options
        )
    except PerdureError as error:
        return await confirm_bulk(request, action, chosen, problem=str(error), form=form)
    await request.start_bulk_worker()
    return request.redirect(request.url("runs", job))
