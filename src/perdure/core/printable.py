"""Text of others, made safe to print: in log lines, in messages and on a terminal.

Ids, error messages and payloads come from users, workers in other languages and senders of messages. A control
character in them could move the cursor of a terminal, change its colours or title, forge a line of a log, or turn the
direction of writing. Such characters are shown as Python escapes them.
"""

from __future__ import annotations

import re

#: C0 and C1 controls, line and paragraph separators, marks that turn the direction of writing, and surrogates. A tab
#: and a newline are left to `printable_lines`.
_UNSAFE = "\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_A_LINE = re.compile(f"[{_UNSAFE}\t\n]")
_IN_LINES = re.compile(f"[{_UNSAFE}]")


def printable(text: str) -> str:
    """Escape every control character, so that the text stays on one line."""
    return _IN_A_LINE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Escape every control character but tabs and newlines."""
    return _IN_LINES.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
