"""Ids and names: their rules, and functions that make them.

An id is 1 to 255 bytes of UTF-8 in composed form (NFC), without control characters and without whitespace at its ends,
so that every database compares it byte by byte and every terminal shows it. A name (of a workflow, step, queue or
message) is shorter and has no `/`, `#` or `~`, which structure locations.
"""

from __future__ import annotations

import hashlib
import unicodedata

from perdure.core.printed_text import brief
from perdure.errors import InvalidId, InvalidName, UsageError

ID_BYTES = 255
NAME_BYTES = 200

_RESERVED = frozenset("/#~")
_LINE_BREAKS = frozenset("\u2028\u2029")
_DIGEST_CHARACTERS = 40
#: Columns of keys have room for 500 characters.
_KEY_CHARACTERS = 400


def uuid7(now_us: int, entropy: bytes) -> str:
    """Make a UUID, version 7 (RFC 9562), from the time and 8 random bytes; sorts by time to a quarter microsecond."""
    if len(entropy) < 8:
        raise ValueError(f"uuid7 needs 8 bytes of entropy, got {len(entropy)}")
    milliseconds, rest = divmod(now_us, 1000)
    # RFC 9562, 6.2, method 3: a finer clock in place of random bits keeps ids of one millisecond in order.
    first = (milliseconds & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | rest * 4096 // 1000
    last = int.from_bytes(entropy[:8], "big") & 0x3FFF_FFFF_FFFF_FFFF | 0x8000_0000_0000_0000
    text = f"{first:016x}{last:016x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def uuid8(source: bytes) -> str:
    """Make a UUID, version 8 (RFC 9562), that follows from the source alone."""
    number = int.from_bytes(hashlib.sha256(source).digest()[:16], "big")
    number = number & ~(0xF << 76) | 8 << 76
    text = f"{number & ~(3 << 62) | 2 << 62:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def check_id(value: object, what: str = "run id") -> str:
    """Check an id and return it. Raises `InvalidId`, which names the broken rule."""
    return _check(value, what, ID_BYTES, InvalidId)


def check_name(value: object, what: str) -> str:
    """Check a name and return it. Raises `InvalidName`, which names the broken rule."""
    name = _check(value, what, NAME_BYTES, InvalidName)
    if not _RESERVED.isdisjoint(name):
        raise InvalidName(
            f"{brief(value)} cannot be a {what}: it contains {min(_RESERVED.intersection(name))!r}, and / # ~ are "
            "reserved for the places of steps in a history; write a dot or a hyphen"
        )
    return name


def check_key(value: object, what: str) -> str:
    """Check the name of a lock or the like, which is an id with room for a prefix. Raises `InvalidId`."""
    return _check(value, what, NAME_BYTES, InvalidId)


def child_id(parent_id: str, location: str) -> str:
    """Id of the child that a run starts at a location: readable if it fits, else a digest of both."""
    plain = f"{parent_id}/{location}"
    if len(plain.encode()) <= ID_BYTES:
        return plain
    digest = hashlib.sha256(f"{parent_id}\0{location}".encode()).hexdigest()[:_DIGEST_CHARACTERS]
    room = ID_BYTES - len("/~") - _DIGEST_CHARACTERS
    return f"{parent_id.encode()[:room].decode(errors='ignore')}/~{digest}"


def children_base(run_id: str, life: int) -> str:
    """Base of the ids of a run's children: a run that continues as new has children of its own."""
    return run_id if life == 1 else f"{run_id}~{life}"


def child_place(location: str, failures: int) -> str:
    """Location by which the id of a child is made: each call after a failure, in another attempt, is another run."""
    return f"{location}@{failures + 1}" if failures else location


def short_key(text: str) -> str:
    """The text itself if it fits a column of keys, else a digest of it."""
    if len(text) <= _KEY_CHARACTERS:
        return text
    return f"~{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"


#: Prefix of the keys of messages with the outcome of a run that is not a child.
WATCH_KEY = "watch:"


def watch_key(life: int, attempt: int, location: str, target: str) -> str:
    """Key of the message with the outcome of a run that another run waits for at a location."""
    place = hashlib.sha256(f"{location}\0{target}".encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{WATCH_KEY}{life}.{attempt}:{place}"


def _check(value: object, what: str, limit: int, error: type[UsageError]) -> str:
    if not isinstance(value, str):
        raise error(f"{brief(value)} cannot be a {what}: it is of type {type(value).__name__}; give a str")
    problem = _problem(value, limit)
    if problem:
        raise error(f"{brief(value)} cannot be a {what}: {problem}")
    # An instance of a subclass, such as a StrEnum, would not be stored and compared as plain text.
    return value if type(value) is str else str.__str__(value)


def _problem(value: str, limit: int) -> str | None:
    if not value:
        return "it is empty"
    if value != value.strip():
        return "it begins or ends with whitespace"
    if value.isascii() and value.isprintable():
        return None if len(value) <= limit else f"it has {len(value)} bytes, the limit is {limit}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "it contains a lone surrogate, which is not a character"
    if size > limit:
        return f"it has {size} bytes in UTF-8, the limit is {limit}"
    if any(unicodedata.category(character) == "Cc" or character in _LINE_BREAKS for character in value):
        return "it contains a control character"
    if not unicodedata.is_normalized("NFC", value):
        return "it is not in Unicode's composed form; pass it through unicodedata.normalize('NFC', ...)"
    return None
