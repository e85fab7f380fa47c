"""Errors of real libraries, raised against a real server, are classified."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import pydantic
import pytest

from perdure import Fatal, Retry, RetryAfter, classify
from perdure.admin import ErrorCategory
from tests.core.web import LIBRARIES, serving


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


def error_of(library: str, url: str) -> Exception:
    try:
        LIBRARIES[library](url)
    except Exception as error:
        close = getattr(error, "close", None)
        if close is not None:
            close()
        return error
    raise AssertionError(f"{library} took {url} for a success")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("path", "category", "retry_after"),
    [
        ("500", ErrorCategory.TRANSIENT, None),
        ("502", ErrorCategory.TRANSIENT, None),
        ("503", ErrorCategory.TRANSIENT, None),
        ("408", ErrorCategory.TRANSIENT, None),
        ("425", ErrorCategory.TRANSIENT, None),
        ("503?after=7", ErrorCategory.RATE_LIMITED, 7),
        ("429", ErrorCategory.RATE_LIMITED, None),
        ("429?after=7", ErrorCategory.RATE_LIMITED, 7),
        ("429?after=0.5", ErrorCategory.RATE_LIMITED, 0.5),
        ("429?date=60", ErrorCategory.RATE_LIMITED, 60),
        ("429?date=-60", ErrorCategory.RATE_LIMITED, 0),
        ("429?undated&date=60", ErrorCategory.RATE_LIMITED, 50),
        ("429?after=soon", ErrorCategory.RATE_LIMITED, None),
        ("429?after=inf", ErrorCategory.RATE_LIMITED, None),
        ("500?after=7", ErrorCategory.TRANSIENT, None),
        ("400", ErrorCategory.CLIENT, None),
        ("401", ErrorCategory.CLIENT, None),
        ("404", ErrorCategory.CLIENT, None),
        ("409", ErrorCategory.CLIENT, None),
        ("422", ErrorCategory.CLIENT, None),
    ],
)
def test_a_response_is_classified_by_its_status_and_what_it_asks_for(
    server: str, library: str, path: str, category: ErrorCategory, retry_after: float | None
) -> None:
    found = classify(error_of(library, f"{server}/{path}"), now=1_000_010 * 1_000_000)
    assert (found.category, found.status, found.retry_after) == (category, int(path[:3]), retry_after)


class Answered(Exception):
    """An error with a status of its own, and a response that has none."""

    def __init__(self, response: object) -> None:
        self.response = response
        self.status = 429
        self.headers = {"Retry-After": "7"}


@pytest.mark.parametrize("response", [None, SimpleNamespace(headers={}), SimpleNamespace(status="strange", headers={})])
def test_the_status_of_the_error_itself_counts_where_its_response_has_none(response: object) -> None:
    found = classify(Answered(response))
    assert (found.category, found.status, found.retry_after) == (ErrorCategory.RATE_LIMITED, 429, 7)


def test_the_names_of_headers_may_be_in_lower_case() -> None:
    error = Answered(None)
    error.headers = {"retry-after": "Thu, 01 Jan 1970 00:01:10 GMT", "date": "Thu, 01 Jan 1970 00:00:10 GMT"}
    assert classify(error, now=0).retry_after == 60


@pytest.mark.parametrize(
    ("date", "now", "seconds"),
    [("Thu, 01 Jan 1970 00:00:10 GMT", None, 60), (None, 10_000_000, 60), (None, None, None)],
)
def test_a_date_to_retry_at_needs_the_time_of_the_server_or_ours(
    date: str | None, now: int | None, seconds: int | None
) -> None:
    error = Answered(None)
    error.headers = {"Retry-After": "Thu, 01 Jan 1970 00:01:10 GMT"} | ({"Date": date} if date else {})
    assert classify(error, now=now).retry_after == seconds


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_server_that_is_not_there_is_transient(library: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/200"
        assert classify(error_of(library, url)).category is ErrorCategory.TRANSIENT


@pytest.mark.parametrize("error", [TimeoutError(), ConnectionResetError(), BrokenPipeError()])
def test_timeouts_and_lost_connections_are_transient(error: Exception) -> None:
    assert classify(error).category is ErrorCategory.TRANSIENT


class Order(pydantic.BaseModel):
    id: str
    lines: list[int]


class Row(msgspec.Struct):
    id: str


def test_a_value_that_does_not_fit_is_invalid_and_says_where() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Order.model_validate({"id": "o-1", "lines": [1, "two"]})
    found = classify(caught.value)
    assert found.category is ErrorCategory.INVALID
    assert len(found.details) == 1
    assert found.details[0].startswith("lines.1: ")
    with pytest.raises(msgspec.ValidationError) as other:
        msgspec.convert({"id": 3}, Row)
    assert "$.id" in classify(other.value).details[0]


class Odd(Exception):
    code = 404
    status = "late"

    @property
    def response(self) -> object:
        raise RuntimeError("there is none")


class Coded(Exception):
    code = 404


@pytest.mark.parametrize(
    "error", [ValueError(), FileNotFoundError(), PermissionError(), Odd(), Coded(), Fatal(), RetryAfter("1s")]
)
def test_nothing_is_known_of_other_errors(error: Exception) -> None:
    assert classify(error).category is ErrorCategory.UNKNOWN
    assert not classify(error).is_final


def test_a_policy_gives_up_on_what_blames_the_request_unless_it_is_told_not_to_look(server: str) -> None:
    bad, busy = error_of("httpx", f"{server}/404"), error_of("httpx", f"{server}/429?after=7")
    assert Retry().next_delay(1, bad, 0.5) is None
    assert Retry().next_delay(1, ExceptionGroup("both", [bad, ValueError()]), 0.5) is None
    assert Retry(classify=False).next_delay(1, bad, 0.5) == 1
    assert Retry(delay=lambda attempt, error: 3).next_delay(1, bad, 0.5) == 3
    assert Retry().requested_delay(busy, 0) == 7
    assert Retry().next_delay(1, busy, 0.5) == 1
    for policy in (Retry(classify=False), Retry.never(), Retry(delay=lambda attempt, error: 3)):
        assert policy.requested_delay(busy, 0) is None


def test_none_of_the_libraries_is_imported() -> None:
    code = "import sys, perdure; print(*{'httpx', 'requests', 'aiohttp', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""
