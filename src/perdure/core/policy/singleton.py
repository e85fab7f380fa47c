"""Singletons (one unfinished run of a key) and debounced starts (one run for several starts of a key).

Both have a *name*: the user's key, prefixed by the type of the run unless the key is shared between types. The rule
travels with the run in its options, so that schedules, children and reopened runs need no rule of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.plain_json import plain_json
from perdure.core.ids import check_key
from perdure.core.limits.key_function import Key, KeyFunction
from perdure.core.printed_text import brief
from perdure.core.time.duration import Duration, microseconds
from perdure.errors import UsageError


class SingletonPolicy(StrEnum):
    """Policy for a start while another run of the same name is unfinished."""

    REJECT = "reject"
    ATTACH = "attach"
    REPLACE = "replace"
    QUEUE = "queue"
    #: Only in the database: the start is debounced.
    DEBOUNCE = "debounce"


POLICIES = tuple(policy for policy in SingletonPolicy if policy is not SingletonPolicy.DEBOUNCE)


class StoredSingleton(Struct, frozen=True, omit_defaults=True):
    """Singleton or debounce rule of one run, as stored in its options. Times in microseconds."""

    name: str
    policy: SingletonPolicy
    #: Of a debounced start: its delay, and the longest delay since the first start; 0: no bound.
    delay: int = 0
    at_most: int = 0


class Singleton(Struct, frozen=True, dict=True):
    """At most one unfinished run of a key.

    `policy` decides about a start meanwhile: "reject" raises `SingletonBusy`, "attach" returns the existing run,
    "replace" cancels that run and starts when it has ended, "queue" starts when all earlier runs have ended. The key
    belongs to the type unless `shared`. Where a workflow or activity declares the singleton, `by` computes the key from
    the arguments; without key and `by` there is one for the type.
    """

    key: str = ""
    policy: str = "reject"
    by: Callable[..., Key] | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"policy={brief(self.policy)}: give one of {', '.join(POLICIES)}")
        if self.key:
            check_key(self.key, "singleton key")
            if self.by is not None:
                raise UsageError("a singleton has a key, or a function that computes it, not both")
        # Inspects the function.
        _ = self._key_function

    @cached_property
    def _key_function(self) -> KeyFunction | None:
        return None if self.by is None else KeyFunction(self.by, "by of Singleton")

    def to_stored(self, type: str, arguments: Mapping[str, Any] | tuple[Any, ...]) -> StoredSingleton:
        """The rule of one call. Raises `UsageError`, and what the user's function raises."""
        key = self.key
        if self._key_function is not None:
            key = check_key(self._key_function.compute(arguments), "singleton key")
        return StoredSingleton(_name(type, key, self.shared), SingletonPolicy(self.policy))


def singleton_key_function(singleton: Singleton | None) -> KeyFunction | None:
    """The function that computes the key of a singleton; None if it has none."""
    return None if singleton is None else singleton._key_function


class Debounce(Struct, frozen=True):
    """Start one run, `delay` after the last of several starts of a key, with the input of the last one.

    `at_most` bounds the delay since the first start. The key belongs to the type unless `shared`.
    """

    delay: Duration
    key: str = ""
    at_most: Duration | None = None
    shared: bool = False

    def to_stored(self, type: str) -> StoredSingleton:
        """The rule of one start. Raises `UsageError`, `InvalidDuration` and `InvalidId`."""
        if self.key:
            check_key(self.key, "debounce key")
        delay = microseconds(self.delay)
        at_most = 0 if self.at_most is None else microseconds(self.at_most)
        if delay <= 0 or (self.at_most is not None and at_most < delay):
            raise UsageError(
                f"debounce {brief(self.delay)}, at most {brief(self.at_most)}: give a delay, and `at_most` no less "
                "than the delay"
            )
        return StoredSingleton("~" + _name(type, self.key, self.shared), SingletonPolicy.DEBOUNCE, delay, at_most)


class _StoredOptions(Struct, frozen=True):
    single: StoredSingleton | None = None


_options_decoder = decoder_for(_StoredOptions)


def stored_singleton_of(options: str) -> StoredSingleton | None:
    """Decode the rule in a run's options; None if there is none."""
    if options == "{}" or '"single"' not in options:  # equivalent: connective: only saves decoding
        return None
    return _options_decoder.decode(options).single


def with_stored_singleton(options: str, single: StoredSingleton | None) -> str:
    """Replace the rule in a run's options; None removes it."""
    plain = msgspec.json.decode(options)
    plain.pop("single", None)
    if single is not None:
        plain["single"] = msgspec.to_builtins(single)
    return plain_json(plain)


def _name(type: str, key: str, shared: bool) -> str:
    # A type has no slash, so that shared keys cannot collide with others.
    return f"/{key}" if shared else f"{type}/{key}"
