"""A state machine at work: what happens becomes calls of its handlers, and what they return is done.

Everything here is asked of the `Context`, as any workflow would. An event is queued by the record that it comes from and handled
before the next record is applied, so that the order of the history is the order of the calls.
"""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.errors import WorkflowError
from perdure.workflow.child import Child
from perdure.workflow.context import Context
from perdure.workflow.definition import Call, Definition, Workflow
from perdure.workflow.machine.actions import (
    Action,
    Actions,
    CancelById,
    Complete,
    End,
    EndCancelled,
    Fail,
    Publish,
    SendMessage,
    StartRun,
    StartTimer,
)
from perdure.workflow.runtime import ReceivedMessage
from perdure.workflow.scopes import inside

if TYPE_CHECKING:
    from perdure.workflow.machine.state_machine import StateMachine

I = TypeVar("I")  # noqa: E741  # as in Input
O = TypeVar("O")  # noqa: E741  # as in Output


class _Pending:
    """Something under way that has an id."""

    __slots__ = ("child", "id", "timer", "what")

    def __init__(self, id: str, what: Literal["activity", "child", "timer"]) -> None:
        self.id = id
        self.what = what
        self.child: Child[Any] | None = None
        self.timer: asyncio.Future[None] | None = None


class _Event(Struct, frozen=True):
    """A call of a handler that is due."""

    handler: str
    arguments: tuple[Any, ...]
    #: What has ended with it.
    source: _Pending | None = None


class MachineRunner(Generic[I, O]):
    """See the module."""

    def __init__(self, ctx: Context, machine: StateMachine[I, O]) -> None:
        self._ctx = ctx
        self._machine = machine
        self._events: deque[_Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._open: dict[str, _Pending] = {}
        #: Ids of what was asked to stop and has not ended.
        self._stopping: set[str] = set()
        self._end: End | None = None
        #: Why the run is to stop; None: it is not.
        self._cancelled: str | None = None

    async def run(self, input: I) -> O:
        """Operate the machine to its end."""
        self._machine._context = self._ctx
        if self._machine.messages:
            self._listen()
        self._call(_Event("on_start", (input,)))
        while self._end is None:
            self._handle(await self._next())
        if isinstance(self._end, Complete):
            value: O = self._end.value
            return value
        if isinstance(self._end, Fail):
            raise self._end.error
        raise asyncio.CancelledError(self._cancelled)

    # what happens

    def _listen(self) -> None:
        self._ctx.receive_any(*self._machine.messages).add_done_callback(self._received)

    def _received(self, receiving: asyncio.Future[ReceivedMessage[Any]]) -> None:
        if receiving.cancelled() or self._end is not None:
            return
        error = receiving.exception()
        if error is None:
            message = receiving.result()
            self._put(_Event("on_message", (message.name, message.value)))
        else:
            self._ctx.log.warning("a message that does not fit is passed over: %s", error)
        self._listen()

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
            if not self._open and not self._machine.messages:
                raise WorkflowError(
                    f"{self._named()} waits for nothing any more: no activity, child, timer or message is left that could bring it "
                    "on. Its last handler has to return an action, complete(...) or fail(...)"
                )
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as cancellation:
                task = asyncio.current_task()
                if task is not None:
                    # So that it is told of the next one, too.
                    task.uncancel()
                self._cancelled = str(cancellation.args[0] or "") if cancellation.args else ""
                self._events.append(_Event("on_cancel", (self._cancelled,)))
        return self._events.popleft()

    # what the machine makes of it

    def _handle(self, event: _Event) -> None:
        source = event.source
        if source is None:
            self._call(event)
        elif self._open.get(source.id) is source:
            del self._open[source.id]
            self._call(event)
            self._stopping.discard(source.id)

    def _call(self, event: _Event) -> None:
        machine, made = self._machine, list[Action]()
        machine._made = made
        machine._stopping = frozenset(self._stopping)
        returned: Actions = getattr(machine, event.handler)(*event.arguments)
        machine._made = None
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
                        self._ctx.sleep_until(action.when)
                        if isinstance(action.when, datetime.datetime)
                        else self._ctx.sleep(action.when)
                    )
                opened.timer.add_done_callback(lambda ended: self._ended(opened, ended))
            case CancelById():
                self._stop(handler, action)
            case SendMessage():
                self._ctx.send(action.run, action.channel, action.value, key=action.key)
            case Publish():
                self._ctx.publish(action.key, action.value)
            case End():
                if isinstance(action, EndCancelled) and self._cancelled is None:
                    self._refuse(handler, "returned cancelled(), but nobody asked the run to stop")
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
            opened.child = self._ctx.spawn(
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
            self._refuse(handler, f"wants to cancel {action.id!r}, which is not under way; what is: {there}")
        if opened.child is not None:
            self._stopping.add(action.id)
            opened.child.cancel(action.reason)
        elif opened.timer is not None:
            del self._open[action.id]
            opened.timer.cancel()

    def _opened(self, handler: str, id: str, what: Literal["activity", "child", "timer"]) -> _Pending:
        check_name(id, f"id of {_a(what)}")
        before = self._open.get(id)
        if before is not None:
            self._refuse(handler, f"wants to start {_a(what)} {id!r}, but {_a(before.what)} of that id is under way")
        self._open[id] = opened = _Pending(id, what)
        return opened

    def _inside(self, id: str) -> Any:
        return inside(self._ctx._runtime.open_scope(id))

    def _named(self) -> str:
        return f"{type(self._machine).__qualname__} (run {self._ctx.run_id!r})"

    def _refuse(self, handler: str, what: str) -> NoReturn:
        raise WorkflowError(f"{handler} of {self._named()} {what}")


def _a(what: str) -> str:
    return f"an {what}" if what == "activity" else f"a {what}"
