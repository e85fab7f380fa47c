"""`classify`: the kind of failure behind an error of another library, and whether a retry makes sense.

Errors of httpx, requests, aiohttp, urllib, pydantic and similar libraries are recognised by their shape and by their
class names; none of these libraries is imported. Other errors are `unknown`, and are retried.
"""

from __future__ import annotations

import datetime
import math
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.failure import Failure, type_name
from perdure.core.codec.pydantic_models import problems_of
from perdure.errors import StepFailed

_REQUEST_TIMEOUT, _TOO_EARLY, _TOO_MANY_REQUESTS, _UNAVAILABLE = 408, 425, 429, 503
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

#: Classes of connection failures and timeouts, by module and name.
_TRANSIENT = frozenset(
    {
        ("httpx", "TransportError"),
        ("requests.exceptions", "ConnectionError"),
        ("requests.exceptions", "Timeout"),
        ("requests.exceptions", "ChunkedEncodingError"),
        ("aiohttp.client_exceptions", "ClientConnectionError"),
        ("aiohttp.client_exceptions", "ClientPayloadError"),
        ("urllib.error", "URLError"),
        ("urllib3.exceptions", "TimeoutError"),
        ("urllib3.exceptions", "ProtocolError"),
        ("urllib3.exceptions", "MaxRetryError"),
    }
)
_INVALID = frozenset(
    {
        ("pydantic_core._pydantic_core", "ValidationError"),
        ("jsonschema.exceptions", "ValidationError"),
        ("marshmallow.exceptions", "ValidationError"),
    }
)
_DETAILS = 50


class ErrorCategory(StrEnum):
    """Kind of failure behind an error."""

    #: Server error, timeout or lost connection: worth a retry.
    TRANSIENT = "transient"
    #: Too many requests, or a server that announces when it will be back: worth a later retry.
    RATE_LIMITED = "rate_limited"
    #: The request itself is wrong; a retry would fail as well.
    CLIENT = "client"
    #: A value does not pass validation; a retry would fail as well.
    INVALID = "invalid"
    UNKNOWN = "unknown"


class Classification(Struct, frozen=True, kw_only=True):
    """Result of `classify`."""

    category: ErrorCategory
    #: Status of the HTTP response.
    status: int | None = None
    #: Seconds until the server accepts the next request.
    retry_after: float | None = None
    #: Validation problems, as `field: message`.
    details: tuple[str, ...] = ()

    @property
    def is_final(self) -> bool:
        """True if a retry makes no sense."""
        return self.category in (ErrorCategory.CLIENT, ErrorCategory.INVALID)


def classify(error: BaseException, *, now: int | None = None) -> Classification:
    """Classify an error. Never raises.

    `now`, in microseconds, is compared with the date of a `Retry-After` if the response has no date of its own.
    """
    try:
        status, headers = _response_of(error)
        if status is not None:
            return _by_status(status, headers, now)
        return _by_class(error)
    except Exception:
        # An attribute of an error may be a property that raises.
        return Classification(category=ErrorCategory.UNKNOWN)


def names_of(error: BaseException) -> frozenset[str]:
    """Names of an error: of its class and base classes, both plain and as stored.

    An error of an unknown class, from another process or language, also has the names that were stored with it.
    """
    stored = [type_name(each) for each in type(error).__mro__ if issubclass(each, BaseException)]
    if isinstance(error, StepFailed) and isinstance(failure := getattr(error, "failure", None), Failure):
        stored.append(failure.type)
    return frozenset(stored).union(name.rpartition(".")[2] for name in stored)


def _by_status(status: int, headers: Any, now: int | None) -> Classification:
    after = _retry_after(headers, now) if status in (_TOO_MANY_REQUESTS, _UNAVAILABLE) else None
    if status == _TOO_MANY_REQUESTS or after is not None:
        category = ErrorCategory.RATE_LIMITED
    elif status in (_REQUEST_TIMEOUT, _TOO_EARLY) or 500 <= status < 600:
        category = ErrorCategory.TRANSIENT
    else:
        category = ErrorCategory.CLIENT if 400 <= status < 500 else ErrorCategory.UNKNOWN
    return Classification(category=category, status=status, retry_after=after)


def _by_class(error: BaseException) -> Classification:
    names = {(each.__module__, each.__name__) for each in type(error).__mro__}
    if isinstance(error, msgspec.ValidationError) or not names.isdisjoint(_INVALID):
        return Classification(category=ErrorCategory.INVALID, details=tuple(problems_of(error))[:_DETAILS])
    if isinstance(error, TimeoutError | ConnectionError) or not names.isdisjoint(_TRANSIENT):
        return Classification(category=ErrorCategory.TRANSIENT)
    return Classification(category=ErrorCategory.UNKNOWN)


def _response_of(error: BaseException) -> tuple[int | None, Any]:
    """Status and headers of the error's response, or of the error itself."""
    response = getattr(error, "response", None)
    found = _status(response, "status_code", "status"), getattr(response, "headers", None)
    if found[0] is None:
        found = _status(error, "status", "code", "status_code"), getattr(error, "headers", None)
    # Other errors may have a `code` or `status`, but no headers.
    return found if hasattr(found[1], "get") else (None, None)


def _status(holder: object, *names: str) -> int | None:
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
            return value
    return None


def _retry_after(headers: Any, now: int | None) -> float | None:
    text = headers.get("Retry-After") or headers.get("retry-after")
    if not isinstance(text, str):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text, headers.get("Date") or headers.get("date"), now)
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _seconds_until(date: str, said_at: str | None, now: int | None) -> float:
    try:
        then = _moment(date)
        # Both dates are of the server's own clock.
        start = _moment(said_at) if said_at else _EPOCH + datetime.timedelta(microseconds=now or 0)
    except (TypeError, ValueError):
        return math.nan
    return math.nan if not said_at and now is None else (then - start).total_seconds()


def _moment(date: str) -> datetime.datetime:
    moment = parsedate_to_datetime(date)
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
