"""Limits of concurrency and rate, and circuit breakers: listing them, and setting them at run time."""

from __future__ import annotations

import builtins

from perdure.client.session import Session
from perdure.core.ids import check_id, check_name
from perdure.core.limits.breaker import PREFIX, BreakerInfo, Circuit
from perdure.core.limits.limit import KEYED, LimitBounds, LimitInfo, PermitInfo, check_gate, make_bounds
from perdure.core.option_checks import check_page, check_text


class Limits:
    """Limits of an engine's database: `engine.limits`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def set(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        burst: int | None = None,
        reason: str = "",
    ) -> None:
        """Override a limit from now on, in place of the bounds that code declares.

        The override replaces concurrency and rate together: without `rate`, no rate applies, and the reverse.
        `name` is that of a limit, of one of its keys (`tenant/acme`), or of a whole type or queue
        (`type:billing.charge.v1`, `queue:emails`). Runs that are being worked on go on. The audit trail keeps the
        `reason`. Raises `UsageError`.
        """
        await self._write(name, make_bounds(concurrency=concurrency, rate=rate, burst=burst), reason)

    async def clear(self, name: str, reason: str = "") -> None:
        """Remove an override: the bounds declared in code apply again, and none where code declares none."""
        await self._write(name, None, reason)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[LimitInfo]:
        """List limits that runs have met or that were set, by name, beginning after a name."""
        check_page(limit)
        after = check_text("after", after)
        store = await self._session.connect()
        found: builtins.list[LimitInfo] = []
        while len(found) < limit:
            page = await store.gates(after, limit)
            found += [gate for gate in page if gate.breaker is None]
            if len(page) < limit:
                break
            after = page[-1].name
        return found[:limit]

    async def holders(self, name: str, *, limit: int = 100) -> builtins.list[PermitInfo]:
        """List the permits of a limit that are in use, the oldest first: which runs and steps have them."""
        check_page(limit)
        return await (await self._session.connect()).permits([check_text("name", name)], limit)

    async def _write(self, name: str, bounds: LimitBounds | None, reason: str) -> None:
        name = check_text("name", name)
        base, keyed, _ = name.partition(KEYED)
        check_gate(base)
        if keyed:
            name = check_id(name, "limit")
        await (await self._session.connect()).set_bounds(
            name, bounds, self._session.actor, check_text("reason", reason)
        )


class Breakers:
    """Circuit breakers of an engine's database: `engine.breakers`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def open(self, name: str, reason: str = "") -> None:
        """Let nothing pass until the breaker is closed or reset by hand. Calls under way go on."""
        await self._set(name, Circuit.OPEN, reason)

    async def close(self, name: str, reason: str = "") -> None:
        """Let everything pass, failures included, until the breaker is opened or reset by hand."""
        await self._set(name, Circuit.CLOSED, reason)

    async def reset(self, name: str, reason: str = "") -> None:
        """Close the breaker and forget its counts; from then on it opens and closes by itself."""
        await self._set(name, None, reason)

    async def list(self, *, limit: int = 100, after: str = "") -> builtins.list[BreakerInfo]:
        """List breakers that calls have met or that were set by hand, by name, beginning after a name."""
        check_page(limit)
        after = check_text("after", after)
        gates = await (await self._session.connect()).gates(PREFIX + after, limit)
        return [gate.breaker for gate in gates if gate.name.startswith(PREFIX) and gate.breaker is not None]

    async def _set(self, name: str, circuit: Circuit | None, reason: str) -> None:
        name = check_name(name, "breaker")
        reason = check_text("reason", reason)
        await (await self._session.connect()).set_breaker(PREFIX + name, circuit, self._session.actor, reason)
