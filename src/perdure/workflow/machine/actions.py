"""What a handler of a state machine may ask for. Values: nothing is done before they are returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from perdure.core.time.duration import Moment
from perdure.workflow.channels import Channel

if TYPE_CHECKING:
    from perdure.workflow.definition import Call


class Action(Struct, frozen=True):
    """Something that a state machine wants done. Its own methods make them; a handler returns them."""


class StartRun(Action, frozen=True):
    """Start an activity, or a child."""

    id: str
    call: Call[Any]
    what: Literal["activity", "child"]
    queue: str | None
    priority: int | None
    deadline: Moment | None
    on_close: Literal["cancel", "abandon", "wait"]


class StartTimer(Action, frozen=True):
    """Tell the machine when it is time."""

    id: str
    when: Moment


class CancelById(Action, frozen=True):
    """Stop what is known by that id."""

    id: str
    reason: str


class SendMessage(Action, frozen=True):
    """Send a message to another run."""

    run: str
    channel: Channel[Any] | str
    value: Any
    key: str | None


class Publish(Action, frozen=True):
    """Let others see a value."""

    key: str
    value: Any


class End(Action, frozen=True):
    """The machine is done. The last of its actions."""


class Complete(End, frozen=True):
    """With a result."""

    value: Any


class Fail(End, frozen=True):
    """With an error."""

    error: BaseException


class EndCancelled(End, frozen=True):
    """As it was asked to."""


#: What a handler returns.
Actions = Action | Sequence[Action] | None
