"""Runs that a workflow starts: children, whose results it can have, and others that it leaves to themselves.

Their ids follow from the place in the workflow, so that one that is executed again starts nothing twice.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from perdure.core.ids import check_id, check_name, short_key
from perdure.core.model.on_close import OnClose
from perdure.core.model.run import FAR, Kind, NewMessage
from perdure.core.option_checks import check_priority
from perdure.core.time.duration import Duration, instant
from perdure.errors import UsageError
from perdure.workflow.facet import Facet
from perdure.workflow.operation import Operation
from perdure.workflow.runtime import ChildOptions, Runtime, Spawned

if TYPE_CHECKING:
    from perdure.workflow.definition import Call

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: A moment: a datetime with a time zone, or a duration from now.
Moment = datetime.datetime | Duration


class Child(Generic[R_co]):
    """A child run under way. Await it for its result, as often as you like; giving up the wait does not stop it."""

    __slots__ = ("_runtime", "_spawned")

    def __init__(self, runtime: Runtime, spawned: Spawned) -> None:
        self._runtime = runtime
        self._spawned = spawned

    def __repr__(self) -> str:
        return f"<child {self.id}>"

    @property
    def id(self) -> str:
        """The id of the run."""
        return self._spawned.id

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.result().__await__()

    def result(self) -> Operation[R_co]:
        """Its result; its error is raised where that is awaited."""
        return cast("Operation[R_co]", _followed(self._spawned.ended))

    def send(self, name: str, value: object = None) -> None:
        """Send it a message."""
        payload = self._runtime.encode(value, f"message {name!r} to child {self.id!r}")
        name = check_name(name, "message name")
        self._runtime.effect(
            "send",
            lambda key: NewMessage(
                run_id=self.id, name=name, payload=payload, key=key, only_child_of=self._runtime.run_id
            ),
        )

    def cancel(self, reason: str = "") -> None:
        """Ask it to stop; whoever awaits it gets `RunCancelled` when it has."""
        payload = self._runtime.encode(reason or f"its parent {self._runtime.run_id!r} cancelled it", "reason")
        # The key is that of the cancellation when the parent ends: once is enough.
        message = NewMessage(
            run_id=self.id,
            kind=Kind.CANCEL,
            payload=payload,
            key=cancel_key(self._runtime.run_id, self._spawned.location),
            only_child_of=self._runtime.run_id,
        )
        self._runtime.effect("cancel", lambda _: message)


class Starting(Facet):
    """The part of a `Context` that starts runs."""

    __slots__ = ()

    def call(
        self,
        call: Call[R],
        *,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
    ) -> Operation[R]:
        """Start another workflow as a child run and wait for its result; its error is raised here.

        Giving up the wait (a timeout, a cancellation) cancels the child.
        """
        options = _options(self._runtime.time, id, queue, priority, deadline, "cancel")
        return cast("Operation[R]", self._runtime.call(_checked(call), options))

    def spawn(
        self,
        call: Call[R],
        *,
        id: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
        on_close: Literal["cancel", "abandon", "wait"] = "cancel",
    ) -> Child[R]:
        """Start another workflow as a child run and go on; the result is there for `await child`, or for nobody.

        `on_close` says what becomes of it if it is still under way when this run ends: "cancel" it, "abandon" it to go on
        by itself, or "wait" for it.
        """
        options = _options(self._runtime.time, id, queue, priority, deadline, on_close)
        return Child(self._runtime, self._runtime.spawn(_checked(call), options))

    def start(
        self,
        call: Call[Any],
        *,
        id: str | None = None,
        at: Moment | None = None,
        queue: str | None = None,
        priority: int | None = None,
        deadline: Moment | None = None,
    ) -> str:
        """Start another workflow as a run of its own, as `engine.start` does, and get its id.

        It is no child: nothing comes back, and it outlives this run whatever happens to that. If there is a run of that id
        already, it is left as it is.
        """
        options = _options(self._runtime.time, id, queue, priority, deadline, "abandon")
        wake_at = 0 if at is None else instant(at, self._runtime.time)
        return self._runtime.start(_checked(call), options, wake_at)


def cancel_key(parent_id: str, location: str) -> str:
    """The key of the message that stops a child."""
    return short_key(f"cancel:{parent_id}:{location}")


def _checked(call: Call[R]) -> Call[R]:
    if not hasattr(call, "arguments"):
        raise UsageError(f"a workflow starts a call such as `ship(order)`, not {call!r}")
    return call


def _options(
    now: int, id: str | None, queue: str | None, priority: int | None, deadline: Moment | None, on_close: str
) -> ChildOptions:
    if on_close not in tuple(OnClose):
        raise UsageError(f"on_close is {', '.join(OnClose)}, not {on_close!r}")
    return ChildOptions(
        id=None if id is None else check_id(id, "child id"),
        queue=None if queue is None else check_name(queue, "queue"),
        priority=check_priority(priority),
        deadline=FAR if deadline is None else instant(deadline, now),
        on_close=OnClose(on_close),
    )


def _followed(ended: asyncio.Future[R]) -> asyncio.Future[R]:
    """A future that ends as the other one does, and may be given up without giving that one up."""
    follower: asyncio.Future[R] = ended.get_loop().create_future()

    def on_end(_: asyncio.Future[R]) -> None:
        if follower.done():
            return
        if ended.cancelled():
            follower.cancel()
        elif (error := ended.exception()) is not None:
            follower.set_exception(error)
        else:
            follower.set_result(ended.result())

    ended.add_done_callback(on_end)
    return follower
