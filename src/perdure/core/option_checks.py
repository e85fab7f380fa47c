"""Checks of options; each error names the option, its value and the allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.core.policy.retry import Retry
from perdure.core.time.duration import Duration, seconds
from perdure.errors import BadArguments, InvalidDuration, UsageError


def check_known(options: Mapping[str, object], declared: type, what: str) -> None:
    """Raise `BadArguments` for an option that is no key of the `TypedDict` that declares the options of `what`."""
    if unknown := options.keys() - declared.__annotations__.keys():
        raise BadArguments(f"{what} has no option {min(unknown)!r}; it has {', '.join(declared.__annotations__)}")


def check_retry(retry: object, name: str = "retry") -> Retry | None:
    """Check a retry policy; a whole number is the number of attempts. Raises `UsageError`."""
    if retry is None or isinstance(retry, Retry):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool) and retry >= 1:
        return Retry(attempts=retry)
    raise UsageError(f"{name}={retry!r}: give a Retry, such as Retry(attempts=3), or a number of attempts from 1")


def check_time(name: str, value: Duration | None) -> float | None:
    """Check a timeout and return it in seconds. Raises `UsageError` if it is zero or no duration."""
    if value is None:
        return None
    limit = check_duration(name, value)
    if limit <= 0:
        raise UsageError(f"{name}={value!r}: a timeout of 0 always expires; give more, or leave it out")
    return limit


def check_duration(name: str, value: Duration) -> float:
    """Check a duration and return it in seconds. Raises `InvalidDuration` with the name of the option."""
    try:
        return seconds(value)
    except InvalidDuration as error:
        raise InvalidDuration(f"{name}={value!r}: {error}") from None


def check_whole(name: str, value: object, least: int, *, error: type[UsageError] = UsageError) -> int:
    """Check a whole number of at least `least`. Raises `error`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise error(f"{name}={value!r}: give a whole number from {least}")


def check_flag(name: str, value: object) -> bool:
    """Check a bool. Raises `UsageError`."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name}={value!r}: give True or False")


def check_priority(priority: object) -> int | None:
    """Check a priority, or None. Raises `UsageError`."""
    if priority is None:
        return None
    if isinstance(priority, int) and not isinstance(priority, bool) and -(2**31) <= priority < 2**31:
        return priority
    raise UsageError(f"priority={priority!r}: give a whole number of 32 bits; lower goes first")


def check_instance(name: str, value: object, kind: type[Any], example: str) -> None:
    """Check that a value is None or an instance of a class. Raises `UsageError`."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name}={value!r}: give a {kind.__name__}, such as {example}")
