"""What a run has to pass before it is worked on: limits of concurrency and rate, and whose turn it is.

A *gate* is known by its name to everybody who shares a database. `Limit` is what users write at a workflow or an activity; for one
run it becomes a `RequiredGate` for each gate that the run has to pass, and `RequiredGates` is all of them. Rates are those of the generic cell rate
algorithm: in any time t, at most burst + rate * t.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import ID_BYTES, check_id, check_name
from perdure.core.limits.breaker import Breaker, BreakerInfo, BreakerRule
from perdure.errors import InvalidId, UsageError

SECOND = 1_000_000
#: What a weight of 1 costs in the order of turns; weights go down to a thousandth of that.
STRIDE = 1_000_000
#: Between the name of a limit and the key of one of its gates.
KEYED = "/"

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/|per)\s*(\d*)\s*(s|sec|second|m|min|minute|h|hour|d|day)s?\s*\Z")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class PermitScope(StrEnum):
    """For how long a run counts against a concurrency."""

    #: While a worker has it: what it waits for (a retry, a timer) lets others pass.
    LEASE = "lease"
    #: From its first beginning to its end, however long it waits.
    RUN = "run"


class Limit:
    """At most so many at once (`concurrency`), or in so much time (`rate`, such as `"100/m"`), in all processes together.

    Whoever names the same `name` shares the limit; without a name it is for the type alone. With `key`, a function of the arguments, there is one
    for each key. A `rate` lets `burst` of them go at once after a pause; by default as many as come in a tenth of a second, at least one.
    A workflow counts from its beginning to its end, an activity while it is being executed; `hold` says otherwise.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        key: Callable[..., object] | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        hold: PermitScope | str | None = None,
    ) -> None:
        self.name = None if name is None else check_gate(name)
        self.key = _callable(key, "key")
        self.bounds = make_bounds(concurrency=concurrency, rate=rate, burst=burst)
        self.hold = None if hold is None else _hold(hold)

    def __repr__(self) -> str:
        return f"<limit {self.name or 'of its type'}: {self.bounds}>"


class Fair:
    """Runs that wait take turns by `key`, a function of the arguments, each as often as its `weight` says (1 by default).

    The weight may be a function of the key. Whoever has many runs waiting does not hold up those who have few.
    """

    def __init__(self, key: Callable[..., object], weight: float | Callable[[str], float] = 1.0) -> None:
        called = _callable(key, "key")
        assert called is not None
        self.key = called
        self.weight = weight
        if not callable(weight):
            check_weight(weight)

    def weight_of(self, key: str) -> float:
        """The weight of a key. Raises `UsageError`."""
        return check_weight(self.weight(key) if callable(self.weight) else self.weight)


class LimitBounds(Struct, frozen=True):
    """What a gate lets pass."""

    #: So many at once; 0: any number.
    concurrency: int = 0
    #: Microseconds between two of them; 0: no rate.
    pace: int = 0
    burst: int = 1

    def __str__(self) -> str:
        said = []
        if self.concurrency:
            said.append(f"{self.concurrency} at once")
        if self.pace:
            said.append(f"{SECOND / self.pace:g} a second, {self.burst} in a burst")
        return ", ".join(said) or "any number"

    @property
    def slack(self) -> int:
        """How far ahead of its pace it may be."""
        return (self.burst - 1) * self.pace

    def ready_at(self, arrival: int) -> int:
        """When the next one may pass, if the theoretical arrival time is that."""
        return arrival - self.slack if self.pace else 0


class RequiredGate(Struct, frozen=True):
    """A gate that a run has to pass."""

    gate: str
    bounds: LimitBounds = LimitBounds()
    hold: PermitScope = PermitScope.LEASE
    #: Of a breaker.
    rule: BreakerRule | None = None


class RequiredGates(Struct, frozen=True):
    """All that a run has to pass, and among whom it takes turns."""

    passes: tuple[RequiredGate, ...]
    fair_key: str = ""
    #: What one turn costs it: less for a greater weight.
    stride: int = STRIDE

    def to_json(self) -> str:
        """As a line keeps it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> RequiredGates:
        """Read it back."""
        return _gating.decode(text)


_gating = decoder_for(RequiredGates)


class LimitInfo(Struct, frozen=True, kw_only=True):
    """A gate as the database has it, for people."""

    name: str
    #: What holds: what was set at run time, or else what the code says.
    bounds: LimitBounds
    #: What was set at run time; None: nothing.
    override: LimitBounds | None = None
    #: How many have passed and count, and how many wait.
    held: int = 0
    waiting: int = 0
    #: When the next one may pass; 0 if none waits.
    due_at: int = 0
    breaker: BreakerInfo | None = None
    #: Why it is set aside and lets nothing pass: its row cannot be read. Empty: it is not.
    problem: str = ""


class WaitlistPosition(Struct, frozen=True):
    """Where a run stands in line."""

    gate: LimitInfo
    #: How many of its type are before it, up to a thousand.
    ahead: int
    since: int


def make_bounds(*, concurrency: int | None, rate: str | None, burst: int | None) -> LimitBounds:
    """Validated bounds. Raises `UsageError`."""
    for name, value in (("concurrency", concurrency), ("burst", burst)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31):
            raise UsageError(f"{name}={value!r}: give a whole number, at least 1")
    if burst is not None and rate is None:
        raise UsageError(
            f"burst={burst!r} says how many may go at once under a rate; give a rate, such as rate='100/m'"
        )
    if concurrency is None and rate is None:
        raise UsageError("a limit needs a concurrency, such as concurrency=5, a rate, such as rate='100/m', or both")
    pace = 0 if rate is None else pace_of(rate)
    usual = max(1, SECOND // 10 // pace) if pace else 1
    return LimitBounds(concurrency or 0, pace, usual if burst is None else burst)


def pace_of(rate: str) -> int:
    """Microseconds between two, for a rate such as `"5/s"`, `"100 per minute"` or `"3/10s"`. Raises `UsageError`."""
    found = _RATE.match(rate) if isinstance(rate, str) else None
    if found is None:
        raise UsageError(f"rate={rate!r} is no rate; write '5/s', '100/m', '1000/h' or '3/10s'")
    number, times, unit = found.groups()
    if Fraction(number) == 0 or times == "0":
        raise UsageError(f"rate={rate!r} lets nothing pass at all; pause the type or the queue instead")
    # Rounded up: a rate is kept, not nearly kept.
    pace = -(-(SECOND * int(times or 1) * _UNITS[unit[0]]) // Fraction(number))
    return max(1, int(pace))


def check_gate(name: str) -> str:
    """Give back the name of a limit, which has no `/`. Raises `InvalidName`."""
    return check_name(name, "limit")


def keyed_gate(name: str, key: object) -> str:
    """The gate of a limit's key; one that is too long for a name is cut, and told from others by a digest."""
    text = storable(f"{name}{KEYED}{key}", "limit's key")
    return check_id(text, "limit's key") if len(text.encode()) <= ID_BYTES else _fitting(text)


def fair_key(key: object) -> str:
    """The key by which a run takes turns, as it is stored; one that is too long is cut, and told from others by a digest. Raises `InvalidId`."""
    return _fitting(storable(str(key), "key of Fair"))


def storable(text: str, what: str) -> str:
    """Give back a text that every database can store. Raises `InvalidId`."""
    problem = "it contains a NUL character" if "\0" in text else ""
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "it contains a lone surrogate, which is no character"
    if problem:
        raise InvalidId(f"{text[:300]!r} cannot be a {what}: {problem}")
    return text


def _fitting(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= ID_BYTES:
        return text
    return f"{encoded[:200].decode(errors='ignore')}~{blake2b(encoded, digest_size=16).hexdigest()}"


def limit_of_gate(gate: str) -> str:
    """The limit that a gate belongs to."""
    return gate.partition(KEYED)[0]


def queue_gate(queue: str) -> str:
    """The gate of a queue."""
    return f"queue:{queue}"


def type_gate(type: str) -> str:
    """The gate of a type."""
    return f"type:{type}"


def stored_location(location: str) -> str:
    """A step's location, as lines and permits have it; one that is too long is told from others by a digest."""
    if len(location) <= 100:
        return location
    return f"{location[:60]}~{blake2b(location.encode(), digest_size=16).hexdigest()}"


def check_limits(limit: Limit | Sequence[Limit] | None) -> tuple[Limit, ...]:
    """Validated, from what a user writes. Raises `UsageError`."""
    if limit is None:
        return ()
    given = tuple(limit) if isinstance(limit, list | tuple) else (limit,)
    for one in given:
        if not isinstance(one, Limit):
            raise UsageError(f"limit={one!r}: give a Limit, such as Limit('external:openai', rate='100/m')")
    return given


def required_gates(
    type: str,
    limits: Sequence[Limit],
    fair: Fair | None,
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
    *,
    hold: PermitScope,
    also: Sequence[str] = (),
    breaker: Breaker | None = None,
    own: str = "",
    given: Sequence[RequiredGate] = (),
) -> RequiredGates:
    """What a run of a type with these arguments has to pass.

    `also` are gates without bounds in the code, `given` those of one call; `own` is what a limit without a name is called, if not after the
    type. Raises whatever the functions of the user raise.
    """
    args, kwargs = arguments
    passes: dict[str, RequiredGate] = {}
    if breaker is not None:
        passes[breaker.gate] = RequiredGate(breaker.gate, rule=breaker.rule)
    for limit in limits:
        name = limit.name or _fitting(own) or type_gate(type)
        gate = name if limit.key is None else keyed_gate(name, key_from(limit.key, args, kwargs))
        passes[gate] = RequiredGate(gate, limit.bounds, limit.hold or hold)
    passes |= {one.gate: one for one in given}
    for gate in also:
        passes.setdefault(gate, RequiredGate(gate, LimitBounds(), hold))
    if fair is None:
        return RequiredGates(tuple(passes.values()))
    key = str(key_from(fair.key, args, kwargs))
    if not passes:
        passes["fair:" + type] = RequiredGate("fair:" + type)
    return RequiredGates(tuple(passes.values()), fair_key(key), max(1, int(STRIDE / fair.weight_of(key))))


def check_weight(weight: object) -> float:
    """Give back a weight. Raises `UsageError`."""
    if not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
        raise UsageError(f"weight {weight!r}: give a number from 0.001 to 1000")
    return float(weight)


def _callable(value: Callable[..., object] | None, name: str) -> Callable[..., object] | None:
    if value is not None and not callable(value):
        raise UsageError(
            f"{name}={value!r}: give a function of the arguments, such as key=lambda order: order.customer"
        )
    return value


def _hold(hold: PermitScope | str) -> PermitScope:
    try:
        return PermitScope(hold)
    except ValueError:
        raise UsageError(f"hold={hold!r}: it is 'lease' or 'run'") from None


def key_from(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The key of a call. Arguments by name that the function does not take are left out."""
    names = _parameter_names(function) if kwargs else None
    if names is None:
        return function(*args, **kwargs)
    return function(*args, **{name: value for name, value in kwargs.items() if name in names})


@lru_cache(maxsize=1024)
def _parameter_names(function: Callable[..., Any]) -> frozenset[str] | None:
    """Names that a function takes; None if it takes any, or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (ValueError, TypeError):
        return None
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind is not inspect.Parameter.POSITIONAL_ONLY)
