"""Redaction of answers: payloads that a role may not see, and parts of values and texts that no answer may contain.

Every answer is made through a `Redactor`, so nothing leaves the server before it was redacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.access import Role
from perdure.core.codec.failure import Failure
from perdure.core.printed_text import brief
from perdure.core.redaction import REDACTED, Redaction
from perdure.http.problems import FORBIDDEN, Refused


class FailureView(Struct, frozen=True, kw_only=True):
    """An error: class name, message, traceback, cause."""

    type: str
    message: str
    notes: tuple[str, ...] = ()
    traceback: str = ""
    cause: FailureView | None = None
    #: Members of an exception group.
    members: tuple[FailureView, ...] = ()
    #: Errors of undos that failed, by the location of their step.
    not_undone: dict[str, FailureView] = {}
    #: Arguments and attributes of the exception, where they are plain.
    args: Any = None
    state: Any = None
    #: Value that the code of a cancelled run returned.
    partial: Any = None


class Redactor:
    """The parts of stored data that one caller may see."""

    def __init__(self, redaction: Redaction, role: Role) -> None:
        self._redaction = redaction
        #: True if the caller sees payloads and error messages.
        self.shows_payloads = role.includes(redaction.payloads)

    def payload(self, text: str | None) -> Any:
        """A payload as a value to encode; the text itself if a foreign writer stored text that is not JSON."""
        if text is None:
            return None
        if not self.shows_payloads:
            return REDACTED
        try:
            value = msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self.text(text)
        # The stored text keeps numbers as they were written.
        return self.value(value) if self._redaction.changes_values else msgspec.Raw(text.encode())

    def value(self, value: Any) -> Any:
        """A decoded JSON value; redacted as a whole if it is nested too deep to look into."""
        with suppress(RecursionError):
            return self._redaction.value(value) if self.shows_payloads else REDACTED
        return REDACTED

    def members(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values by key."""
        if not self.shows_payloads:
            return dict.fromkeys(values, REDACTED)
        return {key: self._redaction.member(key, value) for key, value in values.items()}

    def text(self, text: str) -> str:
        """A text that users or errors wrote."""
        if not text:
            return text
        return self._redaction.text(text) if self.shows_payloads else REDACTED

    def detail(self, text: str) -> str:
        """The message of an error in the caller's own request."""
        return self._redaction.text(text)

    def details(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes of an error in the caller's own request."""
        return {key: self._redaction.member(key, value) for key, value in values.items()}

    def check_filter(self, error: str | None, attributes: Iterable[str] = ()) -> None:
        """Raise `Refused` for a filter that would find out what the caller may not see, a character at a time."""
        hidden = [f"the attribute {brief(name)}" for name in attributes if self._hides(name)]
        if error is not None and not self.shows_payloads:
            hidden.append("the error")
        if hidden:
            raise Refused(FORBIDDEN, f"{hidden[0]} is redacted for this caller, so it cannot be a filter")

    def _hides(self, key: str) -> bool:
        return not self.shows_payloads or self._redaction.hides(key)

    def failure(self, text: str | None) -> FailureView | None:
        """A stored error, also one that is not in Perdure's format."""
        return None if text is None else self.error(Failure.read(text))

    def error(self, error: Failure) -> FailureView:
        """An error."""
        return FailureView(
            type=error.type,
            message=self.text(error.message),
            notes=tuple(map(self.text, error.notes)),
            traceback=self.text(error.traceback),
            cause=None if error.cause is None else self.error(error.cause),
            members=tuple(map(self.error, error.members)),
            not_undone={location: self.error(one) for location, one in error.not_undone.items()},
            args=self.payload(error.args),
            state=self.payload(error.state),
            partial=self.payload(error.partial),
        )
