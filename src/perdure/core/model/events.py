"""Sticky events: named values that are emitted once, and that runs can wait for before and after.

An event is a run of an internal type that no worker executes. Its result is the value. It exists from the first wait
for it, or from its emission on.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct

from perdure.core.ids import check_name
from perdure.core.model.run import STICKY_TYPE, NewRun
from perdure.core.time.duration import NEVER

#: Beginning of the ids of events.
EVENT_PREFIX = "sticky:"


class StickyEvent(Struct, frozen=True, kw_only=True):
    """An event that was emitted."""

    name: str
    value: Any
    #: Time of the emission, in microseconds since the epoch.
    at: int


class NewStickyEvent(Struct, frozen=True, kw_only=True):
    """Request to emit an event."""

    name: str
    #: JSON of the value.
    payload: str
    #: Replace another value, if there is one.
    replace: bool = False
    write_id: str


class EmitOutcome(StrEnum):
    """Answer to a `NewStickyEvent`."""

    #: The event has the value, by this request or by an earlier one.
    EMITTED = "emitted"
    #: Another value was emitted before, and stays.
    KEPT = "kept"
    #: The id belongs to a run that is no event.
    TAKEN = "taken"


def event_id(name: str) -> str:
    """Id of the run that is the event of a name. Raises `InvalidName`."""
    return f"{EVENT_PREFIX}{check_name(name, 'name of an event')}"


def event_run(id: str, write_id: str) -> NewRun:
    """Make the run that is an event which was not emitted yet."""
    return NewRun(id=id, type=STICKY_TYPE, wake_at=NEVER, write_id=write_id)
