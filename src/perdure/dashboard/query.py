"""The query line of the page of runs: `status:failed type:shop.checkout.v1 attr.tenant=acme older:1h text:"timeout"`.

The text is the view: it is in the URL, every filter edits it, and the same text gives the same runs.
"""

from __future__ import annotations

import datetime
import re
from contextlib import suppress
from typing import Any

from msgspec import Struct

from perdure.core.model.run import Status
from perdure.core.time.duration import microseconds
from perdure.errors import InvalidDuration, UsageError

_TERM = re.compile(r'(?P<name>[a-z]+):(?P<value>"[^"]*"|\S*)|(?P<attr>attr\.\S+)|(?P<word>"[^"]*"|\S+)', re.IGNORECASE)
_ATTRIBUTE = re.compile(r"attr\.(?P<name>[^=<>^]+)(?P<operator>\^=|<=|>=|=|<|>)(?P<value>.*)", re.DOTALL)
#: Names of terms with what each is for, for completion and for the message about an unknown one.
TERMS = {
    "status": "status:failed",
    "type": "type:shop.checkout.v1",
    "queue": "queue:default",
    "id": "id:order-",
    "parent": "parent:order-42",
    "schedule": "schedule:nightly",
    "build": "build:1.4.2",
    "text": 'text:"timeout"',
    "newer": "newer:1h",
    "older": "older:1h",
    "roots": "roots:yes",
    "deleted": "deleted:yes",
    "unserved": "unserved:yes",
    "order": "order:oldest",
}
_FILTER_NAMES = {
    "type": "type",
    "queue": "queue",
    "parent": "parent",
    "schedule": "schedule",
    "build": "build",
    "id": "id_prefix",
    "text": "error",
}


class Term(Struct, frozen=True):
    """One term of a query; a bare word has no name."""

    name: str
    value: str

    def __str__(self) -> str:
        if self.name == "attr":
            return f"attr.{self.value}"
        value = f'"{self.value}"' if " " in self.value or not self.value else self.value
        return f"{self.name}:{value}" if self.name else value


class Query(Struct, frozen=True):
    """A query, as its terms."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read a query; any text is one."""
        found: list[Term] = []
        for match in _TERM.finditer(text[:2000]):
            if match["attr"]:
                found.append(Term("attr", match["attr"][5:]))
            elif match["name"] and match["name"].lower() in TERMS:
                found.append(Term(match["name"].lower(), match["value"].strip('"')))
            else:
                found.append(Term("", match[0].strip('"')))
        return cls(tuple(found))

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def has(self, name: str, value: str) -> bool:
        """True if a term says so; several statuses are separated by commas."""
        return any(term.name == name and value in term.value.split(",") for term in self.terms)

    def toggled(self, name: str, value: str) -> Query:
        """The query with a term of that name and value, or without it if it had it."""
        others = tuple(term for term in self.terms if term.name != name)
        return Query(others) if self.has(name, value) else Query((*others, Term(name, value)))

    def without(self, term: Term) -> Query:
        """The query without a term."""
        return Query(tuple(one for one in self.terms if one is not term))

    @property
    def words(self) -> str:
        """Bare words: the beginning of an id."""
        return " ".join(term.value for term in self.terms if not term.name)

    def filters(self, now: datetime.datetime) -> dict[str, Any]:
        """Arguments of `runs.list`. Raises `UsageError`."""
        found: dict[str, Any] = {}
        for term in self.terms:
            if term.name == "status":
                found["status"] = [_status(one) for one in term.value.split(",") if one]
            elif term.name in _FILTER_NAMES:
                if term.value:
                    found[_FILTER_NAMES[term.name]] = term.value
            elif term.name in ("newer", "older"):
                found["created_after" if term.name == "newer" else "created_before"] = _moment(term, now)
            elif term.name in ("roots", "deleted", "unserved"):
                found[term.name] = term.value.lower() in ("", "yes", "true", "1")
            elif term.name == "order":
                found["order"] = "oldest" if term.value.lower() == "oldest" else "newest"
            elif term.name == "attr":
                name, condition = _attribute(term.value)
                found.setdefault("attributes", {}).setdefault(name, []).append(condition)
        if self.words:
            found["id_prefix"] = self.words
        return found


def _status(text: str) -> Status:
    if text.lower() in tuple(Status):
        return Status(text.lower())
    raise UsageError(f"{text[:40]!r} is not a status; the statuses are {', '.join(Status)}")


def _moment(term: Term, now: datetime.datetime) -> datetime.datetime:
    """The time that a term names: a duration before now, or a point in time, in UTC unless it has a zone."""
    with suppress(InvalidDuration, OverflowError):
        return now - datetime.timedelta(microseconds=microseconds(term.value))
    try:
        found = datetime.datetime.fromisoformat(term.value)
        return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{term.name}: takes a duration such as 1h30m, or a time such as 2026-11-01T15:00Z, not {term.value[:40]!r}"
        ) from None


def _attribute(text: str) -> tuple[str, tuple[str, Any]]:
    match = _ATTRIBUTE.fullmatch(f"attr.{text}")
    if match is None:
        raise UsageError(f"attr.{text[:40]} is no condition; write attr.tenant=acme, attr.amount>=100 or attr.sku^=A-")
    operator = "prefix" if match["operator"] == "^=" else match["operator"]
    return match["name"], (operator, _value(match["value"].strip('"')))


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
