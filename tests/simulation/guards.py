"""The limits and breakers of one simulated world: chosen by its seed, and the same in all its processes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec import Struct

from perdure.core.limits.breaker import Breaker
from perdure.core.limits.limit import Fair, Limit, PermitScope

#: How many guards a world has.
GUARDS = 3


class Bound(Struct, frozen=True):
    """What is to hold at a gate."""

    concurrency: int = 0
    pace: int = 0
    burst: int = 1
    #: A permit counts until the end of its run.
    whole: bool = False
    #: Of a breaker that is half open.
    probes: int = 0


class Guard:
    """What some steps, some activities or some workflows have to pass."""

    def __init__(self, limits: Sequence[Limit], fair: Fair | None = None, breaker: Breaker | None = None) -> None:
        self.limits = tuple(limits)
        self.fair = fair
        self.breaker = breaker

    def of_steps(self) -> Guard:
        """The same without what holds until the end of a run, which a step has none of."""
        return Guard([limit for limit in self.limits if limit.hold is not PermitScope.RUN], None, self.breaker)

    def of_calls(self) -> Guard:
        """The same without what is named after a type, which is no matter of a single call."""
        return Guard([limit for limit in self.limits if limit.name is not None], self.fair, self.breaker)

    def bounds(self, own: str, key: str, *, whole: bool = False) -> dict[str, Bound]:
        """By gate, what is to hold for a key; `own` is what a limit without a name is called."""
        found: dict[str, Bound] = {}
        for limit in self.limits:
            name = limit.name or own
            gate = name if limit.key is None else f"{name}/{key}"
            said, until_the_end = limit.bounds, whole or limit.hold is PermitScope.RUN
            found[gate] = Bound(said.concurrency, said.pace, said.burst, until_the_end)
        if self.breaker is not None:
            found[self.breaker.gate] = Bound(probes=self.breaker.rule.probes)
        return found


class Guards:
    """See the module."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.limits = (
            Limit("shared", concurrency=self._few()),
            Limit("paced", rate=self._rate(), burst=self._few()),
            Limit("both", concurrency=self._few(), rate=self._rate(), burst=self._few()),
            Limit("keyed", key=_key, concurrency=self._few()),
            Limit("keyed_pace", key=_key, rate=self._rate(), burst=self._few()),
            Limit("whole", concurrency=self._few(), hold="run"),
            Limit(concurrency=self._few()),
        )
        self.breakers = (self._breaker("frail", "wait"), self._breaker("brittle", rng.choice(("wait", "fail"))))
        self.all = tuple(self._guard() for _ in range(GUARDS))
        #: Of workflows, which count from their beginning to their end.
        self.flows = Guard([Limit("flows", concurrency=self._few())], self._fair())

    def _guard(self) -> Guard:
        limits = self._rng.sample(self.limits, self._rng.choice((0, 1, 1, 2)))
        # Whether one that was kept out passed before, only the engine knows.
        breakable = not any(limit.hold is PermitScope.RUN for limit in limits)
        breaker = self._rng.choice((None, *self.breakers)) if limits else self._rng.choice(self.breakers)
        return Guard(limits, self._fair(), breaker if breakable else None)

    def _few(self) -> int:
        return self._rng.choice((1, 1, 2))

    def _rate(self) -> str:
        return self._rng.choice(("1/s", "3/s", "10/s"))

    def _fair(self) -> Fair | None:
        return Fair(_key, self._rng.choice((1.0, 3.0))) if self._rng.random() < 0.5 else None

    def _breaker(self, name: str, when_open: str) -> Breaker:
        rng = self._rng
        return Breaker(
            name,
            failures=rng.choice((1, 2, 3)),
            window=rng.choice((2, 20)),
            successes=rng.choice((1, 2)),
            reset=rng.choice((0.5, 3)),
            probes=rng.choice((1, 1, 2)),
            when_open=when_open,
        )


def _key(key: str) -> str:
    """The key is what is called so."""
    return key
