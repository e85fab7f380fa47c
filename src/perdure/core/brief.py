"""`brief`: a value as text for an error message."""

from __future__ import annotations

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
