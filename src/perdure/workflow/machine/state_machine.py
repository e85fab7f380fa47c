"""State machines: workflows written as a class with a handler for each kind of event.

Handlers are called one at a time, in the order of the history. They do not wait: they return actions. The machine's
state is its attributes; replay rebuilds it by calling the same handlers with the same events. A machine is a workflow
like any other, with the same runs and the same history. Activities, timers and children have ids that the handlers
choose.
"""

from __future__ import annotations

import datetime
import inspect
import logging
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from perdure.core.codec.snapshot import snapshot
from perdure.core.model.attributes import AttributeValue
from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Moment
from perdure.errors import BadArguments, RunCancelled, UsageError
from perdure.workflow.channels import Channel, Question
from perdure.workflow.context import Context
from perdure.workflow.definition import Call, Workflow
from perdure.workflow.machine.runner import (
    Action,
    Actions,
    AnswerQuestion,
    CancelById,
    Complete,
    EndCancelled,
    Fail,
    MachineRunner,
    Publish,
    PublishEvent,
    SendMessage,
    SetAttributes,
    StartRun,
    StartTimer,
    Uncancel,
)
from perdure.workflow.scopes import WorkflowRandom

I = TypeVar("I")  # noqa: E741  # as in Input; it is never mistaken for a number here
O = TypeVar("O")  # noqa: E741  # as in Output

A = TypeVar("A", bound=Action)

HANDLERS = (
    "on_start", "on_activity_completed", "on_activity_failed", "on_timer", "on_message", "on_question",
    "on_child_completed", "on_child_failed", "on_cancel",
)  # fmt: skip


class StateMachine(Generic[I, O]):
    """A workflow of handlers: `class Approval(StateMachine[Request, str], type="expenses.approval.v1")`.

    Pass the class to `Engine(url, [Approval])` like a workflow, and start `Approval.call(request)`. `retry` is the
    policy of the machine as a whole. A class without a `type` is a base of others.
    """

    #: Channels that `on_message` gets messages of; other messages stay in the inbox.
    messages: ClassVar[Sequence[Channel[Any]]] = ()
    #: Questions that `on_question` answers.
    questions: ClassVar[Sequence[Question[Any, Any]]] = ()

    _definition: ClassVar[Workflow[..., Any] | None] = None
    #: Runs this instance; None outside of a run.
    _runner: MachineRunner[I, O] | None = None

    def __init_subclass__(cls, *, type: str | None = None, retry: Retry | int | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_handlers(cls)
        cls._definition = None if type is None else _workflow(cls, type, retry)

    @classmethod
    def definition(cls) -> Workflow[[I], O]:
        """The machine as a workflow. Raises `UsageError` for a class without a type."""
        if cls._definition is None:
            raise UsageError(
                f"{cls.__qualname__} has no type to be stored under: "
                f'class {cls.__name__}(StateMachine[...], type="...")'
            )
        return cls._definition

    @classmethod
    def call(cls, input: I) -> Call[O]:
        """Build a call of this machine. Raises `BadArguments` if the input does not fit."""
        return cls.definition()(input)

    # Handlers

    def on_start(self, input: I) -> Actions:
        """Handle the start of the machine."""
        raise NotImplementedError(f"{type(self).__qualname__} has no on_start, which returns the first actions")

    def on_activity_completed(self, id: str, result: Any) -> Actions:
        """Handle the result of an activity. Does nothing by default."""
        return None

    def on_activity_failed(self, id: str, error: Exception) -> Actions:
        """Handle an activity that failed for good or was cancelled (`RunCancelled`). Fails the machine by default."""
        return self._by_default(id, error)

    def on_timer(self, id: str) -> Actions:
        """Handle a timer that is due. Does nothing by default."""
        return None

    def on_message(self, name: str, value: Any) -> Actions:
        """Handle a message of one of the channels in `messages`. Does nothing by default."""
        return None

    def on_question(self, name: str, value: Any) -> Actions:
        """Handle one of the `questions`; return its `reply(...)`, with other actions if need be.

        The answer to a handler that raises is its error, and the machine goes on.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no on_question, which returns the answer")

    def check_question(self, name: str, value: Any) -> None:
        """Refuse a question by raising an error, before anything is recorded. Accepts every question by default.

        The asking side gets a `QuestionRefused`. Replay does not call this: it must not change the machine.
        """

    def on_child_completed(self, id: str, result: Any) -> Actions:
        """Handle the result of a child. Does nothing by default."""
        return None

    def on_child_failed(self, id: str, error: Exception) -> Actions:
        """Handle a child that failed for good or was cancelled (`RunCancelled`). Fails the machine by default."""
        return self._by_default(id, error)

    def on_cancel(self, reason: str) -> Actions:
        """Handle the cancellation of the run.

        Stops by default; a handler may clean up first and return `cancelled()` later. A machine that completes or
        fails after this ends as cancelled all the same, unless a handler has returned `uncancel()`.
        """
        return self.cancelled()

    def _by_default(self, id: str, error: Exception) -> Actions:
        # The machine itself cancelled it.
        cancelled = self._runner is not None and isinstance(error, RunCancelled) and id in self._runner.stopping
        return None if cancelled else self.fail(error)

    # Actions

    def activity(
        self,
        id: str,
        call: Call[Any],
        *,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
    ) -> Action:
        """Start an activity, with its own settings or those of `call.options(...)`.

        The id is free again when it has ended.
        """
        return self._make(StartRun(id, call, "activity", queue, priority, deadline, "cancel"))

    def child(
        self,
        id: str,
        call: Call[Any],
        *,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
        on_close: Literal["cancel", "abandon", "wait"] = "cancel",
    ) -> Action:
        """Start another workflow as a child run; `on_close` decides about a child that outlives the machine."""
        return self._make(StartRun(id, call, "child", queue, priority, deadline, on_close))

    def timer(self, id: str, when: Moment) -> Action:
        """Start a timer, for a duration from now or for a datetime with a time zone."""
        return self._make(StartTimer(id, when))

    def cancel(self, id: str, reason: str = "") -> Action:
        """Drop a timer, or cancel an activity or child; the handler of its end is still called."""
        return self._make(CancelById(id, reason))

    def send(self, run: str, channel: Channel[Any] | str, value: Any = None, *, key: str | None = None) -> Action:
        """Send a message to another run; a run that has finished or does not exist gets nothing."""
        return self._make(SendMessage(run, channel, snapshot(value), key))

    def publish(self, key: str, value: Any) -> Action:
        """Publish the latest value of a key; others read it with `handle.state(key)`."""
        return self._make(Publish(key, snapshot(value)))

    def publish_event(
        self,
        type: str,
        data: Any = None,
        *,
        key: str | None = None,
        subject: str | None = None,
        source: str = "perdure",
        id: str | None = None,
    ) -> Action:
        """Publish an event for other systems, like `Context.publish_event`."""
        return self._make(PublishEvent(type, snapshot(data), key, subject, source, id))

    def set_attributes(self, attributes: Mapping[str, AttributeValue | None]) -> Action:
        """Set attributes of the run, by which others find it, like `Context.set_attributes`; None removes one."""
        return self._make(SetAttributes(snapshot(attributes)))

    def reply(self, answer: Any) -> Action:
        """Answer the question that is being handled."""
        return self._make(AnswerQuestion(snapshot(answer)))

    def complete(self, value: O) -> Action:
        """End with this result; activities and children that still run are cancelled."""
        return self._make(Complete(snapshot(value)))

    def fail(self, error: Exception) -> Action:
        """End with this error."""
        return self._make(Fail(error))

    def cancelled(self) -> Action:
        """End as cancelled, after `on_cancel`."""
        return self._make(EndCancelled())

    def uncancel(self) -> Action:
        """Take the cancellation back, after `on_cancel`: the machine goes on, and ends as it decides."""
        return self._make(Uncancel())

    def _make(self, action: A) -> A:
        if self._runner is not None:
            self._runner.made(action)
        return action

    # The run; the same on replay

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._ctx("run_id").run_id

    @property
    def random(self) -> WorkflowRandom:
        """Random numbers that are the same on replay."""
        return self._ctx("random").random

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that is silent during replay, so that each line appears once."""
        return self._ctx("log").log

    def now(self) -> datetime.datetime:
        """The time of the event that is being handled; the same on replay."""
        return self._ctx("now").now()

    def uuid(self) -> uuid.UUID:
        """A UUID that is the same on replay."""
        return self._ctx("uuid").uuid()

    def patched(self, name: str) -> bool:
        """Tell whether the run follows the changed code here, like `Context.patched`."""
        return self._ctx("patched").patched(name)

    def version(self, name: str, latest: int) -> int:
        """The version of the code that the run follows here, like `Context.version`."""
        return self._ctx("version").version(name, latest)

    def _ctx(self, what: str) -> Context:
        if self._runner is None:
            raise UsageError(f"{type(self).__qualname__}.{what} is there for handlers, while the machine runs")
        return self._runner.ctx


def _workflow(cls: type[StateMachine[Any, Any]], type: str, retry: Retry | int | None) -> Workflow[..., Any]:
    async def operate(ctx: Context, input: Any) -> Any:
        return await MachineRunner(ctx, cls()).run(input)

    taken, given = _parameters(cls)
    operate.__annotations__ = {"ctx": Context, "input": taken, "return": given}
    operate.__name__, operate.__qualname__ = cls.__name__, cls.__qualname__
    operate.__module__, operate.__doc__ = cls.__module__, cls.__doc__
    made = Workflow(type, operate, retry=retry)
    made.declares_channels = True
    made.source_of = cls
    return made


def _parameters(cls: type) -> tuple[Any, Any]:
    """Input and output types of a machine, from its bases; type variables stay as they are."""
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        if origin is StateMachine:
            taken, given = typing.get_args(base) or (Any, Any)
            return taken, given
        if isinstance(origin, type) and issubclass(origin, StateMachine):
            filled = dict(zip(getattr(origin, "__parameters__", ()), typing.get_args(base), strict=False))
            taken, given = _parameters(origin)
            return _filled(taken, filled), _filled(given, filled)
    return Any, Any


def _filled(declared: Any, filled: dict[Any, Any]) -> Any:
    """Replace the variables of a type."""
    if isinstance(declared, TypeVar):
        return filled.get(declared, declared)
    names = getattr(declared, "__parameters__", ())
    return declared[tuple(filled.get(name, name) for name in names)] if names else declared


def _check_handlers(cls: type[StateMachine[Any, Any]]) -> None:
    for name in HANDLERS:
        if inspect.iscoroutinefunction(getattr(cls, name)):
            raise BadArguments(
                f"{cls.__qualname__}.{name} is an `async def`; a handler does not wait, it returns actions"
            )
    for name in vars(cls):
        if name.startswith("on_") and name not in HANDLERS:
            raise BadArguments(
                f"{cls.__qualname__}.{name} would never be called; the handlers are {', '.join(HANDLERS)}"
            )
    if not all(isinstance(channel, Channel) for channel in cls.messages):
        raise BadArguments(f"{cls.__qualname__}.messages is a tuple of channels: (Channel('decision', bool),)")
    if not all(isinstance(question, Question) for question in cls.questions):
        raise BadArguments(f"{cls.__qualname__}.questions is a tuple of questions: (Question('quote', int, float),)")
    if cls.on_question is not StateMachine.on_question and not cls.questions:
        raise BadArguments(
            f"{cls.__qualname__} has an on_question but no questions to answer: "
            "questions = (Question('quote', int, float),)"
        )
    if cls.on_message is not StateMachine.on_message and not cls.messages:
        raise BadArguments(
            f"{cls.__qualname__} has an on_message but no channels to receive from: "
            "messages = (Channel('decision', bool),)"
        )
