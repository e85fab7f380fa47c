"""Actions that a handler of a state machine returns; the runner performs them after the handler has returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from perdure.core.time.duration import Moment
from perdure.workflow.channels import Channel

if TYPE_CHECKING:
    from perdure.workflow.definition import Call


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


class Publish(Action, frozen=True):
    """Publish the latest value of a key."""

    key: str
    value: Any


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
