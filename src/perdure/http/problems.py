"""Errors over HTTP: `application/problem+json` (RFC 9457), with the text of the Python error.

One table maps error classes to a status and a stable `type`. A database that cannot be used is 503; there is no other
status of the 5xx class.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from perdure import errors

MEDIA_TYPE = "application/problem+json"
#: Start of the `type` of every problem.
URN = "urn:perdure:problem:"

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class Problem(Struct, frozen=True, kw_only=True):
    """Body of an error."""

    #: Stable name of the problem, such as `urn:perdure:problem:run-not-found`.
    type: str
    title: str
    status: int
    #: What happened and what to do, in the words of the Python error.
    detail: str
    #: Other run that is in the way, where there is one.
    run_id: str | UnsetType = UNSET
    #: Class of the Python error, and its other attributes, where there are some.
    error: str | UnsetType = UNSET
    state: dict[str, Any] | UnsetType = UNSET


class ProblemKind(Struct, frozen=True):
    """A kind of problem: its status and its name."""

    status: int
    name: str

    @property
    def title(self) -> str:
        """Short text for people, the same for all problems of this kind."""
        return self.name.replace("-", " ")


BAD_REQUEST = ProblemKind(400, "bad-request")
UNAUTHENTICATED = ProblemKind(401, "unauthenticated")
FORBIDDEN = ProblemKind(403, "forbidden")
NOT_FOUND = ProblemKind(404, "not-found")
METHOD_NOT_ALLOWED = ProblemKind(405, "method-not-allowed")
BODY_TOO_LARGE = ProblemKind(413, "body-too-large")
UNSUPPORTED_MEDIA_TYPE = ProblemKind(415, "unsupported-media-type")
MISDIRECTED = ProblemKind(421, "unknown-host")
INVALID = ProblemKind(422, "invalid-request")
TOO_MANY_REQUESTS = ProblemKind(429, "too-many-requests")
UNAVAILABLE = ProblemKind(503, "unavailable")

#: Kind of each error class; the class nearest in the order of inheritance decides.
KINDS: Mapping[type[BaseException], ProblemKind] = MappingProxyType(
    {
        errors.RunNotFound: ProblemKind(404, "run-not-found"),
        errors.ScheduleNotFound: ProblemKind(404, "schedule-not-found"),
        errors.TokenNotFound: ProblemKind(404, "token-not-found"),
        errors.WorkerNotFound: ProblemKind(404, "worker-not-found"),
        errors.AttemptNotFound: ProblemKind(404, "attempt-not-found"),
        errors.AttemptOver: ProblemKind(409, "attempt-over"),
        errors.RunExists: ProblemKind(409, "run-exists"),
        errors.RunFinished: ProblemKind(409, "run-finished"),
        errors.SingletonBusy: ProblemKind(409, "singleton-busy"),
        errors.ScheduleExists: ProblemKind(409, "schedule-exists"),
        errors.TokenExists: ProblemKind(409, "token-exists"),
        errors.RunFailed: ProblemKind(409, "run-failed"),
        errors.RunCancelled: ProblemKind(409, "run-cancelled"),
        errors.Locked: ProblemKind(409, "locked"),
        errors.LockLost: ProblemKind(409, "lock-lost"),
        errors.PayloadTooLarge: ProblemKind(413, "payload-too-large"),
        errors.UnknownWorkflow: ProblemKind(422, "unknown-workflow"),
        errors.InvalidId: ProblemKind(422, "invalid-id"),
        errors.InvalidName: ProblemKind(422, "invalid-name"),
        errors.InvalidDuration: ProblemKind(422, "invalid-duration"),
        errors.InvalidCursor: ProblemKind(422, "invalid-cursor"),
        errors.InvalidSchedule: ProblemKind(422, "invalid-schedule"),
        errors.BadArguments: ProblemKind(422, "bad-arguments"),
        errors.EncodeError: ProblemKind(422, "not-encodable"),
        errors.DecodeError: ProblemKind(422, "not-decodable"),
        errors.UsageError: ProblemKind(422, "not-possible"),
        errors.StepFailed: ProblemKind(409, "run-failed"),
        errors.Overloaded: ProblemKind(429, "overloaded"),
        errors.EngineClosed: UNAVAILABLE,
        errors.StoreError: UNAVAILABLE,
        errors.StoreCorrupt: ProblemKind(503, "data-unreadable"),
        errors.SchemaMismatch: ProblemKind(503, "schema-mismatch"),
    }
)

#: Kinds that do not come from an error of Perdure.
OWN_KINDS = (
    BAD_REQUEST,
    UNAUTHENTICATED,
    FORBIDDEN,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    BODY_TOO_LARGE,
    UNSUPPORTED_MEDIA_TYPE,
    MISDIRECTED,
    INVALID,
    TOO_MANY_REQUESTS,
    UNAVAILABLE,
)


class Refused(Exception):
    """A request that is answered with a problem."""

    def __init__(self, kind: ProblemKind, detail: str, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        super().__init__(detail)
        self.kind = kind
        self.headers = headers


def kind_of(error: BaseException) -> ProblemKind | None:
    """Kind of an error; None for an error that the API does not expect."""
    if isinstance(error, Refused):
        return error.kind
    return next((KINDS[one] for one in type(error).__mro__ if one in KINDS), None)


def headers_of(error: BaseException, kind: ProblemKind) -> dict[str, str]:
    """Headers of the answer to an error."""
    headers = dict(error.headers) if isinstance(error, Refused) else {}
    if kind.status in (429, 503):
        headers.setdefault("retry-after", "1")
    if kind.status == 401:
        headers.setdefault("www-authenticate", 'Bearer realm="perdure"')
    return headers


def problem_of(error: BaseException, kind: ProblemKind) -> Problem:
    """Body of the answer to an error."""
    plain: dict[str, Any] = {
        name: value for name, value in vars(error).items() if isinstance(value, str | int) and value
    }
    known = isinstance(error, errors.PerdureError)
    return Problem(
        type=URN + kind.name,
        title=kind.title,
        status=kind.status,
        detail=str(error),
        run_id=plain.pop("run_id", UNSET) if known else UNSET,
        error=type(error).__name__ if known else UNSET,
        state=plain if known and plain else UNSET,
    )


def encode(problem: Problem) -> bytes:
    """Encode a problem; text that UTF-8 cannot hold is replaced."""
    try:
        return msgspec.json.encode(problem)
    except UnicodeEncodeError:
        safe = problem.detail.encode("utf-8", "backslashreplace").decode()
        return msgspec.json.encode(msgspec.structs.replace(problem, detail=safe))
