"""Limits of concurrency and rate, and fairness between keys.

Users declare a `Limit` at a workflow, activity or step. A *gate* is the stored row that carries a limit or breaker; all
processes that use a database know it by its name. For one run, limits become `RequiredGates`. Rates follow the generic
cell rate algorithm: in any time t, at most burst + rate * t.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.codec.plain_json import plain_json
from perdure.core.ids import ID_BYTES, check_id, check_name
from perdure.core.limits.breaker import Breaker, BreakerInfo, BreakerRule
from perdure.core.limits.key_function import Key, KeyFunction, check_weight_function
from perdure.core.printed_text import brief
from perdure.errors import InvalidId, UsageError

SECOND = 1_000_000
#: Cost of one turn for a weight of 1; weights go up to a thousand.
STRIDE = 1_000_000
#: Separator between the name of a limit and the key of one of its gates.
KEYED = "/"

_RATE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:/|per)\s*(\d*)\s*(s|sec|second|m|min|minute|h|hour|d|day)s?\s*\Z")
_LONGEST_RATE = 100
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: Microseconds between two admissions at the slowest rate: 100 years, the longest duration.
_SLOWEST_PACE = 100 * 365 * 86_400 * 1_000_000


class PermitScope(StrEnum):
    """Time for which a run holds a permit of a concurrency limit."""

    #: While a worker holds the run; a run that waits for a retry or a timer frees its permit.
    LEASE = "lease"
    #: From the first start of the run to its end, waits included.
    RUN = "run"


class Limit:
    """A bound on concurrency (`concurrency=5`) or rate (`rate="100/m"`), over all processes.

    Limits with the same `name` are one; without a name, the limit is the type's own. With `key`, a function of the
    arguments that returns text, a whole number or a UUID, each key has its own limit. `key` gets the arguments that it
    names as parameters. A `rate` admits `burst` at once after a pause; by default as many as fit a tenth of a second,
    at least one. A workflow holds its permit from start to end, an activity while it is executed;
    `hold` ("run" or "lease") changes that.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        key: Callable[..., Key] | None = None,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        hold: PermitScope | str | None = None,
    ) -> None:
        self.name = None if name is None else check_gate(name)
        self.key = key
        self.key_function = (
            None if key is None else KeyFunction(key, f"key of Limit({'' if name is None else repr(name)})")
        )
        self.bounds = make_bounds(concurrency=concurrency, rate=rate, burst=burst)
        self.hold = None if hold is None else _hold(hold)

    def __repr__(self) -> str:
        return f"<limit {self.name or 'of its type'}: {self.bounds}>"


class Fair:
    """Fair order of waiting runs: keys take turns in proportion to their `weight`, 1 by default.

    `key` is a function of the arguments, as in `Limit`; `weight` may be a function of the key. A key with many waiting
    runs does not delay a key with few.
    """

    def __init__(self, key: Callable[..., Key], weight: float | Callable[[str], float] = 1.0) -> None:
        self.key = key
        self.key_function = KeyFunction(key, "key of Fair")
        self.weight = weight
        if callable(weight):
            check_weight_function(weight)
        else:
            check_weight(weight)

    def weight_of(self, key: str) -> float:
        """Weight of a key. Raises `UsageError`."""
        return check_weight(self.weight(key) if callable(self.weight) else self.weight)


class LimitBounds(Struct, frozen=True):
    """Concurrency and rate of a gate; the field names are part of the stored format."""

    #: Permits at once; 0: any number.
    concurrency: int = 0
    #: Microseconds between two admissions; 0: no rate.
    pace: int = 0
    burst: int = 1

    def __str__(self) -> str:
        parts = []
        if self.concurrency:
            parts.append(f"{self.concurrency} at once")
        if self.pace:
            parts.append(f"{SECOND / self.pace:g} a second, {self.burst} in a burst")
        return ", ".join(parts) or "any number"

    @property
    def slack(self) -> int:
        """Time by which admissions may be ahead of the pace."""
        return (self.burst - 1) * self.pace

    def ready_at(self, arrival: int) -> int:
        """Time of the next admission, by the theoretical arrival time."""
        return arrival - self.slack if self.pace else 0


class RequiredGate(Struct, frozen=True):
    """A gate that a run or step has to pass."""

    gate: str
    bounds: LimitBounds = LimitBounds()
    hold: PermitScope = PermitScope.LEASE
    #: Rule of a breaker; None for a limit.
    rule: BreakerRule | None = None


class RequiredGates(Struct, frozen=True):
    """All gates that a run or step has to pass, and its fairness key; the field names are part of the stored format."""

    passes: tuple[RequiredGate, ...]
    fair_key: str = ""
    #: Cost of one turn: less for a greater weight.
    stride: int = STRIDE

    def to_json(self) -> str:
        """Encode for the waitlist's row."""
        return plain_json(self)

    @classmethod
    def from_json(cls, text: str) -> RequiredGates:
        """Decode from the waitlist's row."""
        return _gates_decoder.decode(text)


_gates_decoder = decoder_for(RequiredGates)


class LimitInfo(Struct, frozen=True, kw_only=True):
    """State of a limit, for inspection."""

    name: str
    #: Bounds that apply: those set at run time, or else those of the code.
    bounds: LimitBounds
    #: Bounds set at run time; None: none.
    override: LimitBounds | None = None
    #: Number of permits in use, and of waiting runs and steps.
    held: int = 0
    waiting: int = 0
    #: Time of the next admission; 0 if nothing waits.
    due_at: int = 0
    breaker: BreakerInfo | None = None
    #: Reason why its row cannot be read, so that nothing passes; empty if it can.
    problem: str = ""


class PermitInfo(Struct, frozen=True, kw_only=True):
    """A permit in use: the run that has it, and since when."""

    limit: str
    run_id: str
    #: Location of the step that has it; empty: the run itself.
    location: str = ""
    granted_at: int
    #: Worker that holds the run; None: none does.
    worker: str | None = None


class WaitingRun(Struct, frozen=True, kw_only=True):
    """A run or step on the waitlist of a limit."""

    limit: str
    run_id: str
    #: Location of the step that waits; empty: the run itself.
    location: str = ""
    #: Fairness key; empty: it has none.
    key: str = ""
    since: int


class WaitlistPosition(Struct, frozen=True):
    """Position of a run on a waitlist."""

    gate: LimitInfo
    #: Number of runs of its type before it, up to a thousand.
    ahead: int
    since: int


def make_bounds(*, concurrency: int | None, rate: str | None, burst: int | None) -> LimitBounds:
    """Check and combine concurrency, rate and burst. Raises `UsageError`."""
    for name, value in (("concurrency", concurrency), ("burst", burst)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31):
            raise UsageError(f"{name}={brief(value)}: give a whole number, at least 1")
    if burst is not None and rate is None:
        raise UsageError(f"burst={brief(burst)} needs a rate, such as rate='100/m'")
    if concurrency is None and rate is None:
        raise UsageError("a limit needs a concurrency, such as concurrency=5, a rate, such as rate='100/m', or both")
    pace = 0 if rate is None else pace_of(rate)
    usual = max(1, SECOND // 10 // pace) if pace else 1
    return LimitBounds(concurrency or 0, pace, usual if burst is None else burst)


def pace_of(rate: str) -> int:
    """Microseconds between two admissions at a rate such as `"5/s"`, `"100 per minute"` or `"3/10s"`.

    Raises `UsageError`.
    """
    found = _RATE.match(rate) if isinstance(rate, str) and len(rate) <= _LONGEST_RATE else None
    if found is None:
        raise UsageError(f"rate={brief(rate)} is not a rate; write '5/s', '100/m', '1000/h' or '3/10s'")
    number, times, unit = found.groups()
    admitted, period = Fraction(number), SECOND * int(times or 1) * _UNITS[unit[0]]
    # Rounded up, so that the rate is never exceeded.
    pace = int(-(-period // admitted)) if admitted else 0
    if not 0 < pace <= _SLOWEST_PACE:
        raise UsageError(f"rate={brief(rate)} lets nothing pass at all; pause the type or the queue instead")
    return pace


def rate_of(pace: int) -> str:
    """Rate that `pace_of` converts to a pace; rounded if no unit of time is a multiple of the pace."""
    for unit, seconds in _UNITS.items():
        admitted, rest = divmod(SECOND * seconds, pace)
        if admitted and not rest:
            return f"{admitted}/{unit}"
    return f"{SECOND * _UNITS['d'] / pace:f}/d"


def check_gate(name: str) -> str:
    """Check the name of a limit, which has no `/`. Raises `InvalidName`."""
    return check_name(name, "limit")


def keyed_gate(name: str, key: str) -> str:
    """Gate name of one key of a limit; a name that is too long is cut and ends in a digest."""
    text = storable(f"{name}{KEYED}{key}", "limit's key")
    return check_id(text, "limit's key") if len(text.encode()) <= ID_BYTES else _fitting(text)


def fair_key(key: str) -> str:
    """Fairness key as stored; a key that is too long is cut and ends in a digest. Raises `InvalidId`."""
    return _fitting(storable(key, "key of Fair"))


def storable(text: str, what: str) -> str:
    """Check that every database can store a text. Raises `InvalidId`."""
    problem = "it contains a NUL character" if "\0" in text else ""
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "it contains a lone surrogate, which is not a character"
    if problem:
        raise InvalidId(f"{text[:300]!r} cannot be a {what}: {problem}")
    return text


def _fitting(text: str) -> str:
    encoded = text.encode()
    if len(encoded) <= ID_BYTES:
        return text
    return f"{encoded[:200].decode(errors='ignore')}~{blake2b(encoded, digest_size=16).hexdigest()}"


def limit_of_gate(gate: str) -> str:
    """Name of the limit that a gate belongs to."""
    return gate.partition(KEYED)[0]


def queue_gate(queue: str) -> str:
    """Gate name of a queue."""
    return f"queue:{queue}"


def type_gate(type: str) -> str:
    """Gate name of a type."""
    return f"type:{type}"


def stored_location(location: str) -> str:
    """Location of a step as waitlists and permits store it; a location that is too long is cut and ends in a digest."""
    if len(location) <= 100:
        return location
    return f"{location[:60]}~{blake2b(location.encode(), digest_size=16).hexdigest()}"


def check_limits(limit: Limit | Sequence[Limit] | None) -> tuple[Limit, ...]:
    """Check the limits that a user wrote. Raises `UsageError`."""
    if limit is None:
        return ()
    given = tuple(limit) if isinstance(limit, list | tuple) else (limit,)
    for one in given:
        if not isinstance(one, Limit):
            raise UsageError(f"limit={brief(one)}: give a Limit, such as Limit('external:openai', rate='100/m')")
    return given


def required_gates(
    type: str,
    limits: Sequence[Limit],
    fair: Fair | None,
    arguments: Mapping[str, Any],
    *,
    hold: PermitScope,
    also: Sequence[str] = (),
    breaker: Breaker | None = None,
    own: str = "",
    given: Sequence[RequiredGate] = (),
) -> RequiredGates:
    """Gates that a run of a type with these arguments, by name and with defaults, has to pass.

    `also`: gates without bounds in the code. `given`: gates of one call. `own`: name of a limit without a name, in
    place of the type's. Raises what users' key functions raise.
    """
    passes: dict[str, RequiredGate] = {}
    if breaker is not None:
        passes[breaker.gate] = RequiredGate(breaker.gate, rule=breaker.rule)
    for limit in limits:
        name = limit.name or _fitting(own) or type_gate(type)
        key = limit.key_function
        gate = name if key is None else keyed_gate(name, key.compute(arguments))
        passes[gate] = RequiredGate(gate, limit.bounds, limit.hold or hold)
    passes |= {one.gate: one for one in given}
    for gate in also:
        passes.setdefault(gate, RequiredGate(gate, LimitBounds(), hold))
    if fair is None:
        return RequiredGates(tuple(passes.values()))
    turn = fair.key_function.compute(arguments)
    if not passes:
        passes["fair:" + type] = RequiredGate("fair:" + type)
    return RequiredGates(tuple(passes.values()), fair_key(turn), max(1, int(STRIDE / fair.weight_of(turn))))


def check_weight(weight: object) -> float:
    """Check a weight. Raises `UsageError`."""
    if not isinstance(weight, int | float) or not 0.001 <= weight <= 1000:
        raise UsageError(f"weight {brief(weight)}: give a number from 0.001 to 1000")
    return float(weight)


def _hold(hold: PermitScope | str) -> PermitScope:
    if isinstance(hold, str) and hold in tuple(PermitScope):
        return PermitScope(hold)
    raise UsageError(f"hold={brief(hold)}: it is 'lease' or 'run'")
