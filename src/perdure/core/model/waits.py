"""Waits of a parked run, as stored in its row, which is written anyway.

Nothing but inspection reads them. They are bounded, and a cell that cannot be read counts as empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from types import MappingProxyType

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.printed_text import misspelt

#: Waits of a run that are named; the others are counted.
NAMED_WAITS = 20
#: Characters of a cell. Long names leave room for fewer of them.
_WAITS_CHARACTERS = 4_000
#: Characters of names of questions and broadcasts.
_MARKS = frozenset("~@")


class WaitKind(StrEnum):
    """Kind of what a run waits for."""

    MESSAGE = "message"
    TIMER = "timer"
    CHILD = "child"
    #: The end of a run that is not a child, or outputs of it.
    RUN = "run"
    RETRY = "retry"
    COMPLETION = "completion"
    LIMIT = "limit"
    BREAKER = "breaker"


class Wait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a run waits for."""

    kind: WaitKind
    #: Name of the message, id of the child or of the other run, location of the timer or the step, name of the limit or
    #: the breaker.
    name: str
    #: Time since when, by the run's own clock; 0: unknown.
    since: int = 0
    #: Time until when at most; 0: without a bound.
    until: int = 0
    #: Type of the child; output of the other run, if not its end; location of the step that a limit or a breaker holds
    #: back.
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
    #: True: the code takes messages of the awaited names and of no others, ever.
    closed: bool = False


def message_names(found: RunWaits) -> list[str] | None:
    """Names of all messages that the code of a run takes; None if it may take others, or some are not named."""
    # Messages come first, so all of them are named if another wait is.
    if not found.closed or (found.more and all(wait.kind is WaitKind.MESSAGE for wait in found.waits)):
        return None
    return [wait.name for wait in found.waits if wait.kind is WaitKind.MESSAGE]


def is_not_taken(name: str, found: RunWaits) -> bool:
    """Tell whether the code of a run never takes a message of that name."""
    names = message_names(found)
    return names is not None and name not in names and not _MARKS & {*name}


def meant_by(name: str, found: RunWaits) -> str | None:
    """Name of a message that a run waits for, and that is probably meant by another name; None if there is none."""
    awaited = {wait.name for wait in found.waits if wait.kind is WaitKind.MESSAGE and not _MARKS & {*wait.name}}
    if found.more or name in awaited or _MARKS & {*name}:
        return None
    return misspelt(name, awaited)


_NONE: Mapping[str, int] = MappingProxyType({})

_waits_decoder = decoder_for(RunWaits)


def waits_to_json(
    token: int, waits: Sequence[Wait], total: int, unread: Mapping[str, int] = _NONE, *, closed: bool = False
) -> str:
    """Encode the first waits of `total` and the unread messages by name, as many of each as there is room for."""
    named, letters = tuple(waits[:NAMED_WAITS]), dict(islice(unread.items(), NAMED_WAITS))
    while True:
        cell = RunWaits(token=token, waits=named, more=total - len(named), unread=letters, closed=closed)
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
