"""Texts of pages: ages, numbers, errors and payloads, as people read them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator

import msgspec

from perdure.core.time.duration import NEVER, length

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
#: Texts and payloads longer than this are cut on a page.
SHOWN = 20_000

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-fA-F]{8}-[0-9a-fA-F-]{27}\b|\b[0-9a-fA-F]{16,}\b|\d+")


def age(time: int, now: int) -> str:
    """A time relative to now: `3 m ago`, `in 2 h`."""
    if not is_time(time):
        return ""
    if abs(now - time) < 1_000_000:
        return "now"
    return f"{_coarse(now - time)} ago" if time < now else f"in {_coarse(time - now)}"


def _coarse(microseconds: int) -> str:
    """A length of time in whole units, two of them from an hour on."""
    seconds = round(microseconds / 1e6)
    if seconds < 3600:
        return f"{seconds} s" if seconds < 60 else f"{seconds // 60} m"
    return length(seconds * 1_000_000)


def is_time(time: int) -> bool:
    """False for "never" and for "not yet"."""
    return 0 < time < NEVER


def iso(time: int) -> str:
    """A time in ISO 8601, in UTC, to the millisecond; empty for "never"."""
    if not is_time(time):
        return ""
    return f"{(_EPOCH + datetime.timedelta(microseconds=time)).replace(tzinfo=None).isoformat('T', 'milliseconds')}Z"


def clock(time: int) -> str:
    """A time to the second, in UTC: `2026-11-17 14:03:22`."""
    text = iso(time)
    return f"{text[:10]} {text[11:19]}" if text else ""


def count(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun: `1 run`, `1,204 runs`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def fingerprint(type: str, message: str, location: str) -> tuple[str, str, str]:
    """The same for errors that are alike: class, message with numbers and ids masked, step without its ordinal."""
    return type.rpartition(".")[2], _NUMBERS.sub("…", first_line(message))[:300], _NUMBERS.sub("…", location)


def first_line(text: str) -> str:
    """The first line of a text that is not empty."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def pretty(value: object) -> str:
    """A JSON value, indented."""
    try:
        return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return str(value)


def cut(text: str) -> tuple[str, int]:
    """The beginning of a text, and the number of characters that are left out."""
    return (text, 0) if len(text) <= SHOWN else (text[:SHOWN], len(text) - SHOWN)


#: Files whose frames are not the user's code.
_FOREIGN = re.compile(
    r"[/\\](?:perdure[/\\](?!.*examples)|asyncio[/\\]|concurrent[/\\]|site-packages[/\\]|lib[/\\]python3)"
)
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]*)", line (?P<line>\d+)')


def frame_places(traceback: str) -> list[tuple[str, int]]:
    """File without its folders, and line, of each frame of a traceback."""
    found = [_FRAME.match(line) for line in traceback.splitlines()]
    return [(re.split(r"[/\\]", one["file"])[-1], int(one["line"])) for one in found if one is not None]


def frames(traceback: str) -> Iterator[tuple[bool, str]]:
    """Parts of a traceback in order, each with True if it is the user's code."""
    part: list[str] = []
    mine = True
    for line in traceback.splitlines():
        if (found := _FRAME.match(line)) is not None:
            if part:
                yield mine, "\n".join(part)
            part, mine = [line], _FOREIGN.search(found["file"]) is None
        elif part and not mine and not line.startswith((" ", "\t")):
            yield mine, "\n".join(part)
            part, mine = [line], True
        else:
            part.append(line)
    if part:
        yield mine, "\n".join(part)
