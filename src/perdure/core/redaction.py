"""Rules of redaction: parts of values and texts that leave neither the server nor a file of histories."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import translate
from typing import Any

from perdure.core.access import Role
from perdure.core.option_checks import check_list, check_text
from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Stands in place of a redacted value or text.
REDACTED = "[redacted]"
#: Characters of a pattern, at most.
_LONGEST_PATTERN = 1000


class Redaction:
    """Rules of redaction.

    `payloads` is the least role that sees inputs, outputs, messages, errors and the data of events. `keys` are patterns
    of keys, such as `["password", "*_token"]`, whose values are redacted at any depth, in any case of letters. `texts`
    are regular expressions whose matches are redacted in every payload and text.
    """

    def __init__(
        self, *, payloads: Role | str = Role.VIEWER, keys: Iterable[str] = (), texts: Iterable[str] = ()
    ) -> None:
        self.payloads = Role.of(payloads)
        globs = [_checked("keys", one) for one in check_list("keys", keys, "['password']")]
        self._keys = re.compile("|".join(map(translate, globs)), re.IGNORECASE) if globs else None
        self._texts = [_compiled(_checked("texts", one)) for one in check_list("texts", texts, "['sk-[a-z0-9]+']")]

    @property
    def changes_values(self) -> bool:
        """True if parts of payloads are redacted."""
        return self._keys is not None or bool(self._texts)

    def text(self, text: str) -> str:
        """Redact a text."""
        for pattern in self._texts:
            text = pattern.sub(REDACTED, text)
        return text

    def value(self, value: Any) -> Any:
        """Redact a decoded JSON value."""
        if isinstance(value, dict):
            return {self.text(key): self.member(key, member) for key, member in value.items()}
        if isinstance(value, list):
            return [self.value(member) for member in value]
        return self.text(value) if isinstance(value, str) else value

    def member(self, key: str, value: Any) -> Any:
        """Redact the value of a key."""
        return REDACTED if self.hides(key) else self.value(value)

    def hides(self, key: str) -> bool:
        """Tell whether the value of a key is redacted as a whole."""
        return self._keys is not None and self._keys.match(key) is not None


def _checked(name: str, pattern: object) -> str:
    text = check_text(name, pattern)
    if len(text) > _LONGEST_PATTERN:
        raise UsageError(f"{name}: {brief(text)} has more than {_LONGEST_PATTERN:,} characters; write several")
    return text


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"texts has {brief(pattern)}, which is not a regular expression: {error}") from None
