"""What a parked run waits for, and what a worker executes, as stored in the rows that are written anyway.

Nothing but inspection reads them. Both are bounded, and a cell that cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from types import MappingProxyType

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for

#: Waits of a run, and steps of a worker, that are named; the others are counted.
NAMED_WAITS = 20
NAMED_STEPS = 100
#: Characters of a cell. Long names leave room for fewer of them.
_WAITS_CHARACTERS = 4_000
_STEPS_CHARACTERS = 32_000


class WaitKind(StrEnum):
    """Kind of what a run waits for."""

    MESSAGE = "message"
    TIMER = "timer"
    CHILD = "child"
    RETRY = "retry"
    LIMIT = "limit"
    BREAKER = "breaker"


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a run waits for."""

    kind: WaitKind
    #: Name of the message, id of the child, location of the timer or the step, name of the limit or the breaker.
    name: str
    #: Time since when, by the run's own clock; 0: unknown.
    since: int = 0
    #: Time until when at most; 0: without a bound.
    until: int = 0
    #: Type of the child; location of the step that a limit or a breaker holds back.
    detail: str = ""


class RunWaits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that a parked run waits for."""

    #: Token of the lease under which the run was parked. Any other token in the run's row: this is out of date.
    token: int
    waits: tuple[Wait, ...] = ()
    #: Number of waits that are not named.
    more: int = 0
    #: By name, the number of messages that have arrived and that the code has not asked for.
    unread: dict[str, int] = {}


class RunningStep(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An attempt at a step or an activity that has been under way for a while."""

    run_id: str
    type: str
    #: Location of the step; the type of an activity.
    location: str
    attempt: int
    #: Time of its start, in microseconds since the epoch.
    since: int
    #: Token of the lease under which it runs.
    token: int
    #: Time of the last heartbeat that an activity sent; 0: none.
    heartbeat_at: int = 0


class RunningSteps(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Attempts that a worker has had under way for a while at its last heartbeat, oldest first."""

    steps: tuple[RunningStep, ...] = ()
    #: Number of attempts that are not named.
    more: int = 0


NO_STEPS = RunningSteps()

_NONE: Mapping[str, int] = MappingProxyType({})

_waits_decoder = decoder_for(RunWaits)
_steps_decoder = decoder_for(RunningSteps)


def waits_to_json(token: int, waits: Sequence[Wait], total: int, unread: Mapping[str, int] = _NONE) -> str:
    """Encode the first waits of `total` and the unread messages by name, as many of each as there is room for."""
    named, letters = tuple(waits[:NAMED_WAITS]), dict(islice(unread.items(), NAMED_WAITS))
    while True:
        cell = RunWaits(token=token, waits=named, more=total - len(named), unread=letters)
        text = msgspec.json.encode(cell).decode()
        if len(text) <= _WAITS_CHARACTERS or not (named or letters):
            return text
        named, letters = named[: len(named) // 2], dict(islice(letters.items(), len(letters) // 2))


def waits_from_json(text: str | None) -> RunWaits | None:
    """Decode a cell; None if it is empty or cannot be read."""
    try:
        return _waits_decoder.decode(text) if text else None
    except msgspec.MsgspecError:
        return None


def steps_to_json(steps: Sequence[RunningStep]) -> str | None:
    """Encode the oldest steps, as many as there is room for; None if there are none."""
    if not steps:
        return None
    named = tuple(sorted(steps, key=lambda step: (step.since, step.run_id, step.location))[:NAMED_STEPS])
    while True:
        text = msgspec.json.encode(RunningSteps(steps=named, more=len(steps) - len(named))).decode()
        if len(text) <= _STEPS_CHARACTERS or not named:
            return text
        named = named[: len(named) // 2]


def steps_from_json(text: str | None) -> RunningSteps:
    """Decode a cell; nothing if it is empty or cannot be read."""
    try:
        return _steps_decoder.decode(text) if text else NO_STEPS
    except msgspec.MsgspecError:
        return NO_STEPS
