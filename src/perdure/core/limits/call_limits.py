"""What one call says of gates, in place of what its code says: limits, a breaker, and by which key it takes turns.

It travels with the run, so it is worked out where the call is made: keys are told from its arguments there, and functions do not travel.
What a call says nothing of is left to its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perdure.core.codec.decoders import decoder_for
from perdure.core.ids import check_id
from perdure.core.limits.breaker import Breaker, BreakerRule
from perdure.core.limits.limit import (
    STRIDE,
    Fair,
    Limit,
    LimitBounds,
    PermitScope,
    RequiredGate,
    RequiredGates,
    check_limits,
    fair_key,
    key_from,
    keyed_gate,
    required_gates,
)
from perdure.errors import UsageError

#: The parts of a run's options, as they are found without reading them.
_PARTS = ('"limits":', '"breaker":', '"fair":')


class CallLimit(Struct, frozen=True, omit_defaults=True):
    """A limit of one call."""

    gate: str
    bounds: LimitBounds
    #: None: as is usual for what is called.
    hold: PermitScope | None = None


class CallBreaker(Struct, frozen=True):
    """A breaker of one call."""

    name: str
    rule: BreakerRule

    @property
    def breaker(self) -> Breaker:
        """As code has it."""
        return Breaker.of(self.name, self.rule)


class CallFair(Struct, frozen=True, omit_defaults=True):
    """Among whom one call takes turns."""

    key: str
    stride: int = STRIDE


class CallLimits(Struct, frozen=True):
    """All of it; None: nothing was said."""

    limits: tuple[CallLimit, ...] | None = None
    breaker: CallBreaker | None = None
    fair: CallFair | None = None
    #: How long it may wait to be begun, in seconds. The claim that sends it to its gates has forgotten.
    start_within: float | None = None

    def gating(
        self,
        type: str,
        limits: Sequence[Limit],
        fair: Fair | None,
        arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
        *,
        hold: PermitScope,
        also: Sequence[str],
        breaker: Breaker | None,
    ) -> RequiredGates:
        """What a run has to pass by that, and by what its code says besides. Raises whatever the functions of the user raise."""
        # Options may come from plain SQL.
        given = [
            RequiredGate(check_id(one.gate, "limit of a run's options"), one.bounds, one.hold or hold)
            for one in self.limits or ()
        ]
        if self.breaker is not None:
            given.insert(0, RequiredGate(self.breaker.breaker.gate, rule=self.breaker.rule))
        whole = required_gates(
            type,
            limits if self.limits is None else (),
            fair if self.fair is None else None,
            arguments,
            hold=hold,
            also=also,
            breaker=breaker if self.breaker is None else None,
            given=given,
        )
        if self.fair is None:
            return whole
        return RequiredGates(whole.passes or (RequiredGate("fair:" + type),), fair_key(self.fair.key), self.fair.stride)


_given = decoder_for(CallLimits)
NO_CALL_LIMITS = CallLimits()


def has_call_limits(options: str) -> bool:
    """Whether a run's options say anything of gates."""
    return options != "{}" and any(part in options for part in _PARTS)


def call_limits_of(options: str) -> CallLimits:
    """What a run's options say of gates. Raises `msgspec.MsgspecError` for what makes no sense."""
    return _given.decode(options) if has_call_limits(options) else NO_CALL_LIMITS


def make_call_limits(
    limit: Limit | Sequence[Limit] | None, type: str, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
) -> tuple[CallLimit, ...] | None:
    """Limits of one call, with its keys. Raises `UsageError`, and whatever the functions of the user raise."""
    if limit is None:
        return None
    given: dict[str, CallLimit] = {}
    for one in check_limits(limit):
        if one.name is None:
            raise UsageError(
                f"limit={one!r} of one call of {type} has no name, so that it would be everybody's: give it one, which all "
                "that share it name, such as Limit('external:openai', rate='100/m')"
            )
        gate = one.name if one.key is None else keyed_gate(one.name, _told(one.key, arguments))
        given[gate] = CallLimit(gate, one.bounds, one.hold)
    return tuple(given.values())


def make_call_breaker(breaker: Breaker | None) -> CallBreaker | None:
    """A breaker of one call. Raises `UsageError`."""
    if breaker is None:
        return None
    if breaker.counts_by_code:
        raise UsageError(
            f"breaker={breaker!r}: a breaker that travels with a run cannot have `counts`, which is code; declare it at the activity instead"
        )
    return CallBreaker(breaker.name, breaker.rule)


def make_call_fair(fair: Fair | None, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> CallFair | None:
    """The key by which one call takes turns. Raises `UsageError`, and whatever the functions of the user raise."""
    if fair is None:
        return None
    if not isinstance(fair, Fair):
        raise UsageError(f"fair={fair!r}: give a Fair, such as Fair(lambda tenant: tenant)")
    key = str(_told(fair.key, arguments))
    return CallFair(fair_key(key), max(1, int(STRIDE / fair.weight_of(key))))


def _told(function: Any, arguments: tuple[tuple[Any, ...], Mapping[str, Any]]) -> object:
    args, kwargs = arguments
    return key_from(function, args, kwargs)
