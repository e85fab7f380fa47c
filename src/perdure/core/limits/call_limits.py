"""Per-call overrides of limits, breaker and fairness key.

They travel with the run as plain data, so keys are computed from the arguments where the call is made. What a call does
not override is taken from its code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
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
    keyed_gate,
    required_gates,
)
from perdure.core.model.headers import has_headers
from perdure.core.printed_text import brief
from perdure.errors import UsageError

#: Keys in the JSON of a run's options, to find them without decoding it.
_PARTS = ('"limits":', '"breaker":', '"fair":')


class CallLimit(Struct, frozen=True, omit_defaults=True):
    """Limit of one call."""

    gate: str
    bounds: LimitBounds
    #: None: the default of the workflow or activity.
    hold: PermitScope | None = None


class CallBreaker(Struct, frozen=True):
    """Breaker of one call."""

    name: str
    rule: BreakerRule

    @property
    def breaker(self) -> Breaker:
        """The breaker as a `Breaker`."""
        return Breaker.of(self.name, self.rule)


class CallFair(Struct, frozen=True, omit_defaults=True):
    """Fairness key of one call, and the cost of one turn."""

    key: str
    stride: int = STRIDE


class CallLimits(Struct, frozen=True):
    """All overrides of one call; None leaves a part to the code."""

    limits: tuple[CallLimit, ...] | None = None
    breaker: CallBreaker | None = None
    fair: CallFair | None = None
    #: Longest wait for the start, in seconds; kept here because the claim that sends the run to its gates clears it.
    start_within: float | None = None

    def required_gates(
        self,
        type: str,
        limits: Sequence[Limit],
        fair: Fair | None,
        arguments: Mapping[str, Any],
        *,
        hold: PermitScope,
        also: Sequence[str],
        breaker: Breaker | None,
    ) -> RequiredGates:
        """Gates that a run has to pass, by its call and by its code. Raises what users' key functions raise."""
        # Checked, because options may come from plain SQL.
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


_call_limits_decoder = decoder_for(CallLimits)
NO_CALL_LIMITS = CallLimits()


def has_call_limits(options: str) -> bool:
    """Tell whether a run's options override limits, breaker or fairness key."""
    if options == "{}" or not any(part in options for part in _PARTS):
        return False
    if not has_headers(options):
        return True
    # A header may have the name of such a key. Damaged options are left to their reader.
    try:
        return _call_limits_decoder.decode(options) != NO_CALL_LIMITS
    except msgspec.MsgspecError:
        return True


def call_limits_of(options: str) -> CallLimits:
    """Decode the overrides in a run's options. Raises `msgspec.MsgspecError`."""
    return _call_limits_decoder.decode(options) if has_call_limits(options) else NO_CALL_LIMITS


def make_call_limits(
    limit: Limit | Sequence[Limit] | None, type: str, arguments: Mapping[str, Any] | tuple[Any, ...]
) -> tuple[CallLimit, ...] | None:
    """Limits of one call, with keys computed. Raises `UsageError`, and what users' key functions raise."""
    if limit is None:
        return None
    given: dict[str, CallLimit] = {}
    for one in check_limits(limit):
        if one.name is None:
            raise UsageError(
                f"limit={brief(one)} of one call of {type} has no name, so it would apply to all calls; give it one, "
                "such as Limit('external:openai', rate='100/m')"
            )
        key = one.key_function
        gate = one.name if key is None else keyed_gate(one.name, key.compute(arguments))
        given[gate] = CallLimit(gate, one.bounds, one.hold)
    return tuple(given.values())


def make_call_breaker(breaker: Breaker | None) -> CallBreaker | None:
    """Breaker of one call. Raises `UsageError`."""
    if breaker is None:
        return None
    if breaker.counts_by_code:
        raise UsageError(
            f"breaker={brief(breaker)}: a breaker that travels with a run cannot have `counts`, which is code; "
            "declare it at the activity instead"
        )
    return CallBreaker(breaker.name, breaker.rule)


def make_call_fair(fair: Fair | None, arguments: Mapping[str, Any] | tuple[Any, ...]) -> CallFair | None:
    """Fairness key of one call. Raises `UsageError`, and what users' key functions raise."""
    if fair is None:
        return None
    if not isinstance(fair, Fair):
        raise UsageError(f"fair={brief(fair)}: give a Fair, such as Fair(lambda tenant: tenant)")
    key = fair.key_function.compute(arguments)
    return CallFair(fair_key(key), max(1, int(STRIDE / fair.weight_of(key))))
