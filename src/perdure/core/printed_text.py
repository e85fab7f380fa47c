"""Text for people: values in messages, text of others made safe to print, and traces in logs.

Ids, error messages and payloads come from users, workers in other languages and senders of messages. A control
character in them could move the cursor of a terminal, recolour it, turn the direction of writing or imitate a line of a
log. Such characters are shown escaped, as Python writes them.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

#: Unicode categories that a terminal acts on or cannot show: controls, invisible formats (which reorder text), lone
#: surrogates, and line separators.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def harmless(text: str) -> str:
    """Return the text as one line, with all characters that a terminal acts on escaped."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(one) if unicodedata.category(one) in _UNSAFE else one for one in text)


def harmless_lines(text: str) -> list[str]:
    """Split text into lines, such as a traceback, and make each harmless."""
    return [harmless(line.expandtabs()) for line in text.split("\n")]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


#: Longest text of a value, in characters.
_LONGEST = 300


def brief(value: object) -> str:
    """The `repr` of a value, cut off where it is long; the name of its type where it has none. Never raises."""
    try:
        # A text is cut first: its `repr` may be several times as long.
        text = repr(value[: _LONGEST + 1] if type(value) is str else value)
    except Exception:
        # A user's `__repr__` may raise, an integer may be too long to print, a list may be nested too deep.
        return f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST + 2 else f"{text[:_LONGEST]}..."


#: Names that a message lists; of more, it shows the closest and the number.
_NAMES = 12
_CLOSEST = 3


def closest(name: object, known: Iterable[str]) -> str:
    """List the names that there are, or of many those that come closest to another name, for a message."""
    names = sorted(known)
    if len(names) <= _NAMES:
        return ", ".join(names) or "none"
    # Beyond some hundred characters, the comparison takes long and finds nothing.
    text = name[:_LONGEST] if isinstance(name, str) else ""
    near = get_close_matches(text, names, _CLOSEST, 0.4) or names[:_CLOSEST]
    return f"{', '.join(near)} and {len(names) - len(near)} others"


#: Likeness from which a name counts as misspelt.
_MISSPELT = 0.75
_NO_DIGITS = str.maketrans("", "", "0123456789")


def misspelt(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is probably meant by another one; None if there is none.

    Names that differ in their digits only are numbered, or versions, and none of them is misspelt.
    """
    numbered = name.translate(_NO_DIGITS)
    names = sorted(one for one in known if one.translate(_NO_DIGITS) != numbered)
    near = get_close_matches(name[:_LONGEST], names, 1, _MISSPELT)
    return near[0] if near else None


def log_with_trace(
    logger: logging.Logger, level: int, trace: str, message: str, *args: object, extra: Mapping[str, object]
) -> None:
    """Log a message; formatters print the trace below it, as they do with that of an exception."""
    if logger.isEnabledFor(level):
        record = logger.makeRecord(logger.name, level, logger.name, 0, message, args, None, extra=extra)
        record.exc_text = trace or None
        logger.handle(record)
