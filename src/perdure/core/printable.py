"""Text of others, made safe to print: in log lines, in messages and on a terminal.

Ids, error messages and payloads come from users, workers in other languages and senders of messages. A control
character in them could move the cursor of a terminal, recolour it, turn the direction of writing or imitate a line of a
log. Such characters are shown escaped, as Python writes them.
"""

from __future__ import annotations

import unicodedata

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
