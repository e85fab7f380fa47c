"""Runs a state machine: calls its handlers for events, and performs the actions that they return.

The runner uses a `Context`, like any workflow. The record behind an event queues it, and the event is handled before
the next record is applied, so handlers are called in the order of the history. A handler returns actions; the runner
performs them after the handler has returned.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.model.attributes import AttributeValue
from perdure.core.time.duration import Moment
from perdure.errors import WorkflowError
from perdure.workflow.answers import QuestionType, Replies
from perdure.workflow.channels import Channel, Envelope
from perdure.workflow.child import Child
from perdure.workflow.context import Context, runtime_of
from perdure.workflow.definition import Call, Definition, Workflow
from perdure.workflow.runtime import ReceivedMessage
from perdure.workflow.scopes import inside

if TYPE_CHECKING:
    from perdure.workflow.definition import Call
    from perdure.workflow.machine.state_machine import StateMachine


class Action(Struct, frozen=True):
    """An action of a state machine. The machine's own methods make actions; handlers return them."""


class StartRun(Action, frozen=True):
    """Start an activity or a child."""

    id: str
    call: Call[Any]
    what: Literal["activity", "child"]
    queue: str | None
    priority: int | None
    deadline: Moment | None
    on_close: Literal["cancel", "abandon", "wait"]


class StartTimer(Action, frozen=True):
    """Start a timer."""

    id: str
    when: Moment


class CancelById(Action, frozen=True):
    """Stop the timer, activity or child of that id."""

    id: str
    reason: str


class SendMessage(Action, frozen=True):
    """Send a message to another run."""

    run: str
    channel: Channel[Any] | str
    value: Any
    key: str | None


class PublishEvent(Action, frozen=True):
    """Publish an event for other systems."""

    type: str
    data: Any
    key: str | None
    subject: str | None
    source: str
    id: str | None


class Publish(Action, frozen=True):
    """Publish the latest value of a key."""

    key: str
    value: Any


class SetAttributes(Action, frozen=True):
    """Set attributes of the run; None removes one."""

    attributes: Mapping[str, AttributeValue | None]


class Uncancel(Action, frozen=True):
    """Take the cancellation of the run back."""


class AnswerQuestion(Action, frozen=True):
    """Answer the question that is being handled."""

    answer: Any


class End(Action, frozen=True):
    """End the machine. No action may follow it."""


class Complete(End, frozen=True):
    """End with a result."""

    value: Any


class Fail(End, frozen=True):
    """End with an error."""

    error: BaseException


class EndCancelled(End, frozen=True):
    """End as cancelled."""


#: Return type of a handler.
Actions = Action | Sequence[Action] | None


I = TypeVar("I")  # noqa: E741  # as in Input
O = TypeVar("O")  # noqa: E741  # as in Output


class _Pending:
    """An activity, child or timer that was started under an id and has not ended."""

    __slots__ = ("child", "id", "timer", "what")

    def __init__(self, id: str, what: Literal["activity", "child", "timer"]) -> None:
        self.id = id
        self.what = what
        self.child: Child[Any] | None = None
        self.timer: asyncio.Future[None] | None = None


class _Event(Struct, frozen=True):
    """A pending call of a handler."""

    handler: str
    arguments: tuple[Any, ...]
    #: The activity, child or timer that ended.
    source: _Pending | None = None
    #: Replies to the question that arrived.
    replies: Replies | None = None


class MachineRunner(Generic[I, O]):
    """Runs one instance of a state machine to its end."""

    def __init__(self, ctx: Context, machine: StateMachine[I, O]) -> None:
        #: Context of the run; handlers read time, randomness and the log from it.
        self.ctx = ctx
        self._runtime = runtime_of(ctx)
        self._machine = machine
        self._events: deque[_Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._open: dict[str, _Pending] = {}
        #: Ids that the machine has cancelled and that have not ended; the default handlers ignore their failure.
        self.stopping: set[str] = set()
        #: Actions made by the handler that is being called; None between calls.
        self._made: list[Action] | None = None
        self._end: End | None = None
        #: Replies to the question that is being handled.
        self._replies: Replies | None = None
        #: Reason of the run's cancellation; None: it was not cancelled.
        self._cancelled: str | None = None

    async def run(self, input: I) -> O:
        """Run the machine to its end; returns its result or raises its error."""
        self._machine._runner = self
        # A machine gets every cancellation as an event.
        self._runtime.interrupt_again()
        if self._machine.messages:
            self._listen()
        for question in self._machine.questions:
            self._take_questions(QuestionType(question, Any))
        self._call(_Event("on_start", (input,)))
        while self._end is None:
            self._handle(await self._next())
        if isinstance(self._end, Complete):
            value: O = self._end.value
            return value
        if isinstance(self._end, Fail):
            raise self._end.error
        raise asyncio.CancelledError(self._cancelled)

    def made(self, action: Action) -> None:
        """Note an action that the current handler has made, to detect one that it does not return."""
        if self._made is not None:
            self._made.append(action)

    # Events

    def _listen(self) -> None:
        self.ctx.receive_any(*self._machine.messages).add_done_callback(self._received)

    def _received(self, receiving: asyncio.Future[ReceivedMessage[Any]]) -> None:
        if receiving.cancelled() or self._end is not None:
            return
        error = receiving.exception()
        if error is None:
            message = receiving.result()
            self._put(_Event("on_message", (message.name, message.value)))
        else:
            self.ctx.log.warning("ignoring a message that cannot be decoded: %s", error)
        self._listen()

    def _take_questions(self, question: QuestionType) -> None:
        """Take questions of one name from now on, those that the machine does not refuse."""
        check = partial(self._machine.check_question, question.name)
        self._runtime.validate_questions(question.expected, check)
        self._await_question(question)

    def _await_question(self, question: QuestionType) -> None:
        receiving = self._runtime.receive([question.expected], None, named=False)
        receiving.add_done_callback(partial(self._asked, question))

    def _asked(self, question: QuestionType, receiving: asyncio.Future[Envelope[Any]]) -> None:
        if receiving.cancelled() or self._end is not None or receiving.exception() is not None:
            return
        letter = receiving.result()
        replies = Replies(self._runtime, question, letter.key)
        self._put(_Event("on_question", (question.name, letter.value), replies=replies))
        self._await_question(question)

    def _ended(self, source: _Pending, ended: asyncio.Future[Any]) -> None:
        if ended.cancelled():
            return
        error = ended.exception()
        if source.what == "timer":
            self._put(_Event("on_timer", (source.id,), source))
        elif error is None:
            self._put(_Event(f"on_{source.what}_completed", (source.id, ended.result()), source))
        else:
            self._put(_Event(f"on_{source.what}_failed", (source.id, error), source))

    def _put(self, event: _Event) -> None:
        self._events.append(event)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _next(self) -> _Event:
        while not self._events:
            if not self._open and not self._machine.messages and not self._machine.questions:
                raise WorkflowError(
                    f"{self._named()} waits for nothing: no activity, child, timer or message is left that could wake "
                    "it; its last handler has to return an action, complete(...) or fail(...)"
                )
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as cancellation:
                self._cancelled = str(cancellation.args[0] or "") if cancellation.args else ""
                self._events.append(_Event("on_cancel", (self._cancelled,)))
        return self._events.popleft()

    # Handlers and actions

    def _handle(self, event: _Event) -> None:
        source = event.source
        if event.replies is not None:
            self._reply(event, event.replies)
        elif source is None:
            self._call(event)
        elif self._open.get(source.id) is source:
            del self._open[source.id]
            self._call(event)
            self.stopping.discard(source.id)

    def _reply(self, event: _Event, replies: Replies) -> None:
        """Handle a question. An error of its handler is the answer, unless the machine broke a rule."""
        self._replies = replies
        try:
            self._call(event)
        except WorkflowError:
            raise
        except Exception as error:
            replies.fail(error)
        finally:
            self._replies = self._made = None

    def _call(self, event: _Event) -> None:
        self._made = made = list[Action]()
        returned: Actions = getattr(self._machine, event.handler)(*event.arguments)
        self._made = None
        actions = self._checked(event.handler, returned)
        given = {id(action) for action in actions}
        for action in made:
            if id(action) not in given:
                self._refuse(
                    event.handler, f"made {action!r} without returning it: an action is done when it is returned"
                )
        for action in actions:
            if self._end is not None:
                self._refuse(event.handler, f"returned {action!r} after {self._end!r}, which is the end")
            self._do(event.handler, action)

    def _checked(self, handler: str, returned: object) -> Sequence[Action]:
        actions = [returned] if isinstance(returned, Action) else returned
        if actions is None:
            return ()
        if not isinstance(actions, list | tuple) or not all(isinstance(one, Action) for one in actions):
            self._refuse(handler, f"returned {returned!r}; a handler returns an action, a list of actions, or None")
        return actions

    def _do(self, handler: str, action: Action) -> None:
        match action:
            case StartRun():
                self._schedule(handler, action)
            case StartTimer():
                opened = self._opened(handler, action.id, "timer")
                with self._inside(action.id):
                    opened.timer = (
                        self.ctx.sleep_until(action.when)
                        if isinstance(action.when, datetime.datetime)
                        else self.ctx.sleep(action.when)
                    )
                opened.timer.add_done_callback(lambda ended: self._ended(opened, ended))
            case CancelById():
                self._stop(handler, action)
            case SendMessage():
                self.ctx.send(action.run, action.channel, action.value, key=action.key)
            case Publish():
                self.ctx.publish(action.key, action.value)
            case PublishEvent():
                self.ctx.publish_event(
                    action.type,
                    action.data,
                    key=action.key,
                    subject=action.subject,
                    source=action.source,
                    id=action.id,
                )
            case SetAttributes():
                self.ctx.set_attributes(action.attributes)
            case Uncancel():
                if self._cancelled is None:
                    self._refuse(handler, "returned uncancel(), but the run was not cancelled")
                self._cancelled = None
                self.ctx.uncancel()
            case AnswerQuestion():
                if self._replies is None:
                    self._refuse(handler, "returned reply(...), but no question is being handled")
                self._replies.reply(action.answer)
            case End():
                if isinstance(action, EndCancelled) and self._cancelled is None:
                    self._refuse(handler, "returned cancelled(), but the run was not cancelled")
                self._end = action
            case _:
                self._refuse(handler, f"returned {action!r}, which is no action of a state machine")

    def _schedule(self, handler: str, action: StartRun) -> None:
        call: object = action.call
        if not isinstance(call, Call):
            self._refuse(handler, f"wants to start {call!r}; give a call, such as `charge(order)`")
        definition: Definition[Any, Any] | None = call.definition
        if definition is not None and isinstance(definition, Workflow) is (action.what == "activity"):
            right = "child" if action.what == "activity" else "activity"
            self._refuse(
                handler, f"wants to start {definition!r} as {_a(action.what)}; it is {_a(right)}: {right}(...)"
            )
        opened = self._opened(handler, action.id, action.what)
        with self._inside(action.id):
            opened.child = self.ctx.spawn(
                action.call,
                queue=action.queue,
                priority=action.priority,
                deadline=action.deadline,
                on_close=action.on_close,
            )
        opened.child.result().add_done_callback(lambda ended: self._ended(opened, ended))

    def _stop(self, handler: str, action: CancelById) -> None:
        opened = self._open.get(action.id)
        if opened is None:
            there = ", ".join(map(repr, self._open)) or "none"
            self._refuse(handler, f"wants to cancel {action.id!r}, which is not running; these are: {there}")
        if opened.child is not None:
            self.stopping.add(action.id)
            opened.child.cancel(action.reason)
        elif opened.timer is not None:
            del self._open[action.id]
            opened.timer.cancel()

    def _opened(self, handler: str, id: str, what: Literal["activity", "child", "timer"]) -> _Pending:
        check_name(id, f"id of {_a(what)}")
        before = self._open.get(id)
        if before is not None:
            self._refuse(handler, f"wants to start {_a(what)} {id!r}, but {_a(before.what)} of that id is running")
        self._open[id] = opened = _Pending(id, what)
        return opened

    def _inside(self, id: str) -> Any:
        return inside(self._runtime.open_scope(id))

    def _named(self) -> str:
        return f"{type(self._machine).__qualname__} (run {self.ctx.run_id!r})"

    def _refuse(self, handler: str, what: str) -> NoReturn:
        raise WorkflowError(f"{handler} of {self._named()} {what}")


def _a(what: str) -> str:
    return f"an {what}" if what == "activity" else f"a {what}"
