"""Runs of which only one may go on at a time, and starts that are put off until no more come.

Both are about a *name*: the key that a user chose, with the type of the run before it unless the key is shared among types. What a run was
told travels with it, as part of its options, so that schedules, children and second chances need nothing of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_key
from perdure.core.limits.limit import key_from
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import UsageError


class SingletonPolicy(StrEnum):
    """What becomes of a start while another run of the same name is not over."""

    REJECT = "reject"
    ATTACH = "attach"
    REPLACE = "replace"
    QUEUE = "queue"
    #: Only in the database: the start is put off.
    DEBOUNCE = "debounce"


POLICIES = tuple(policy for policy in SingletonPolicy if policy is not SingletonPolicy.DEBOUNCE)


class StoredSingleton(Struct, frozen=True, omit_defaults=True):
    """What a run was told, as it is stored. Times in microseconds."""

    name: str
    policy: SingletonPolicy
    #: Of a start that is put off: for how long, and for how long at the most since the first one; 0: without end.
    delay: int = 0
    at_most: int = 0


class Singleton(Struct, frozen=True):
    """At most one unfinished run of a key.

    `policy` says what becomes of a start meanwhile: "reject" raises `SingletonBusy`, "attach" gives the run that is there, "replace" cancels
    that one and begins when it has ended, "queue" begins when those before have ended. The key is the type's own unless `shared`. Where it is
    declared with a workflow or an activity, `by` is a function of the arguments that gives the key; with neither there is one for the type.
    """

    key: str = ""
    policy: str = "reject"
    by: Callable[..., str] | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"policy={self.policy!r} is none; say one of {', '.join(POLICIES)}")
        if self.key:
            check_key(self.key, "singleton key")
            if self.by is not None:
                raise UsageError("a singleton has a key, or a function that gives one, not both")

    def to_stored(self, type: str, arguments: Mapping[str, Any] | tuple[Any, ...]) -> StoredSingleton | None:
        """As it is stored for one call; None where the key cannot be known. Raises `InvalidId`."""
        key = self.key
        if self.by is not None:
            if not isinstance(arguments, Mapping):
                return None
            key = check_key(key_from(self.by, (), arguments), "singleton key")
        return StoredSingleton(_name(type, key, self.shared), SingletonPolicy(self.policy))


class Debounce(Struct, frozen=True):
    """Start once, so long after the last of several starts of a key, with the input of that one.

    `at_most` bounds how long the first of them is put off. The key is the type's own unless `shared`.
    """

    delay: Duration
    key: str = ""
    at_most: Duration | None = None
    shared: bool = False

    def to_stored(self, type: str) -> StoredSingleton:
        """As it is stored. Raises `UsageError`, `InvalidDuration` and `InvalidId`."""
        if self.key:
            check_key(self.key, "debounce key")
        delay = microseconds(self.delay)
        at_most = 0 if self.at_most is None else microseconds(self.at_most)
        if delay <= 0 or (self.at_most is not None and at_most < delay):
            raise UsageError(
                f"debounce {self.delay!r}, at most {self.at_most!r}: give a delay, and no less at the most"
            )
        return StoredSingleton("~" + _name(type, self.key, self.shared), SingletonPolicy.DEBOUNCE, delay, at_most)


class _Options(Struct, frozen=True):
    single: StoredSingleton | None = None


_options = decoder_for(_Options)


def stored_singleton_of(options: str) -> StoredSingleton | None:
    """What a run's options say about it."""
    if options == "{}" or '"single"' not in options:  # equivalent: connective: only saves decoding
        return None
    return _options.decode(options).single


def with_stored_singleton(options: str, single: StoredSingleton | None) -> str:
    """The options with that instead of what they say about it."""
    plain = msgspec.json.decode(options)
    plain.pop("single", None)
    if single is not None:
        plain["single"] = msgspec.to_builtins(single)
    return msgspec.json.encode(plain).decode()


def _name(type: str, key: str, shared: bool) -> str:
    # A type has no slash in it.
    return f"/{key}" if shared else f"{type}/{key}"
