"""Checks of options; each error names the option, its value and the allowed values."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from perdure.core.policy.retry import Retry
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, seconds
from perdure.errors import BadArguments, InvalidCursor, InvalidDuration, UsageError


def check_known(options: Mapping[str, object], declared: type, what: str) -> None:
    """Raise `BadArguments` for an option that is no key of the `TypedDict` that declares the options of `what`."""
    if unknown := options.keys() - declared.__annotations__.keys():
        raise BadArguments(no_option(what, unknown, declared.__annotations__))


#: Options of other tools and older habits, by the name of the option that means the same here.
_MEANT = {
    "id": ("run_id", "workflow_id", "task_id", "job_id"),
    "at": ("delay", "eta", "start_at", "run_at"),
    "retry": ("max_retries", "attempts", "max_attempts", "retry_policy"),
    "timeout": ("time_limit", "start_to_close"),
    "slots": ("concurrency", "max_workers", "workers", "threads", "max_concurrency", "parallelism"),
    "queues": ("task_queue", "queue_name"),
}
#: Characters of the longest name that is compared with the names of options.
_LONGEST_NAME = 100
_MEANINGS = {"slots": "slots, the number of runs at once"}


def no_option(what: str, unknown: Iterable[str], known: Iterable[str]) -> str:
    """Message about options that `what` does not have; it suggests the one that was probably meant."""
    name, names = first_name(unknown), list(known)
    near = [one for one in names if name in _MEANT.get(one, ())] or _close(name, names)
    meant = f"did you mean {_MEANINGS.get(near[0], near[0])}? " if near else ""
    return f"{what} has no option {brief(name)}; {meant}it has {', '.join(names)}"


def first_name(names: Iterable[object]) -> object:
    """The first of several names that a user gave, perhaps as keys of a dict: of any types, which need no order."""
    return min(names, key=brief)


def _close(name: object, names: list[str]) -> list[str]:
    # The comparison of a long name takes long and finds nothing.
    return get_close_matches(name, names, 1) if isinstance(name, str) and len(name) <= _LONGEST_NAME else []


def check_retry(retry: object, name: str = "retry") -> Retry | None:
    """Check a retry policy; a whole number is the number of attempts. Raises `UsageError`."""
    if retry is None or isinstance(retry, Retry):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool) and retry >= 1:
        return Retry(attempts=retry)
    raise UsageError(f"{name}={brief(retry)}: give a Retry, such as Retry(attempts=3), or a number of attempts from 1")


def check_time(name: str, value: Duration | None) -> float | None:
    """Check a timeout and return it in seconds. Raises `UsageError` if it is zero or no duration."""
    if value is None:
        return None
    limit = check_duration(name, value)
    if limit <= 0:
        raise UsageError(f"{name}={brief(value)}: a timeout of 0 always expires; give more, or leave it out")
    return limit


def check_duration(name: str, value: Duration) -> float:
    """Check a duration and return it in seconds. Raises `InvalidDuration` with the name of the option."""
    try:
        return seconds(value)
    except InvalidDuration as error:
        raise InvalidDuration(f"{name}={brief(value)}: {error}") from None


def check_datetime(name: str, value: object) -> datetime.datetime:
    """Check a point in time. Raises `UsageError`."""
    if isinstance(value, datetime.datetime):
        return value
    raise UsageError(f"{name}={brief(value)}: give a datetime, such as datetime(2026, 1, 1, tzinfo=UTC)")


def check_whole(name: str, value: object, least: int, *, error: type[UsageError] = UsageError) -> int:
    """Check a whole number of at least `least` that a database can hold. Raises `error`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        if value < 2**63:
            return value if type(value) is int else int.__int__(value)
        raise error(f"{name}={brief(value)}: give a smaller number, of at most 64 bits")
    raise error(f"{name}={brief(value)}: give a whole number from {least}")


def check_positive(name: str, value: object) -> float:
    """Check a number above 0, such as a rate. Raises `UsageError`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e12:
        return float(value)
    raise UsageError(f"{name}={brief(value)}: give a number above 0")


def check_mapping(name: str, value: object, example: str) -> dict[Any, Any]:
    """Check a mapping and return it as a dict. Raises `UsageError`."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{name}={brief(value)}: give a dict, such as {example}")
    return dict(value)


def check_list(name: str, value: object, example: str) -> tuple[Any, ...]:
    """Check a list, or another iterable that is no text, and return its items. Raises `UsageError`."""
    if isinstance(value, str | bytes | Mapping | type) or not isinstance(value, Iterable):
        raise UsageError(f"{name}={brief(value)}: give a list, such as {example}")
    return tuple(value)


def check_page(limit: object, most: int = 1000) -> int:
    """Check the number of entries on a page of a listing. Raises `UsageError`."""
    if isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= most:
        return limit
    raise UsageError(f"limit must be between 1 and {most}, not {brief(limit)}")


def check_text(name: str, value: object) -> str:
    """Check text that is stored or searched for: any that a database can hold. Raises `UsageError`."""
    if not isinstance(value, str):
        raise UsageError(f"{name}={brief(value)}: give text")
    if "\0" in value or not is_encodable(value):
        raise UsageError(f"{name}={brief(value)} contains a NUL or a lone surrogate, which databases do not store")
    return value if type(value) is str else str.__str__(value)


def check_position(name: str, value: object) -> int:
    """Check a number that a database can hold, such as the place to go on from. Raises `InvalidCursor`."""
    if isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**63:
        return value
    raise InvalidCursor(f"{name}={brief(value)} is not a place to go on from; pass the one of the entry or page before")


def is_encodable(text: str) -> bool:
    """Tell whether a text has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_flag(name: str, value: object) -> bool:
    """Check a bool. Raises `UsageError`."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"{name}={brief(value)}: give True or False")


def check_priority(priority: object) -> int | None:
    """Check a priority, or None. Raises `UsageError`."""
    if priority is None:
        return None
    if isinstance(priority, int) and not isinstance(priority, bool) and -(2**31) <= priority < 2**31:
        return priority
    raise UsageError(f"priority={brief(priority)}: give a whole number of 32 bits; lower goes first")


def check_instance(name: str, value: object, kind: type[Any], example: str) -> None:
    """Check that a value is None or an instance of a class. Raises `UsageError`."""
    if value is not None and not isinstance(value, kind):
        raise UsageError(f"{name}={brief(value)}: give a {kind.__name__}, such as {example}")
