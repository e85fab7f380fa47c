"""Handlers for limits, circuit breakers and locks."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.client.session import session_of
from perdure.core.ids import check_key
from perdure.core.limits.breaker import BreakerRule, Circuit
from perdure.core.limits.limit import LimitBounds
from perdure.http.api import ApiRequest, Limit, Position, Reason, ReasonBody, ReasonQuery
from perdure.http.redaction import Redactor
from perdure.http.views import Done, NamedQuery, Page, ShownText, Time, named, view_of, views_of


class BoundsView(Struct, frozen=True, kw_only=True):
    """Bounds of a limit. `concurrency` is null for any number; `per_second` is null without a rate."""

    concurrency: int | None
    per_second: float | None
    burst: int

    @classmethod
    def of(cls, bounds: LimitBounds, shown: Redactor) -> BoundsView:
        """Convert bounds."""
        return view_of(
            cls,
            bounds,
            shown,
            concurrency=bounds.concurrency or None,
            per_second=1e6 / bounds.pace if bounds.pace else None,
        )


class LimitView(Struct, frozen=True, kw_only=True):
    """State of a limit."""

    name: str
    bounds: BoundsView
    override: BoundsView | None
    held: int
    waiting: int
    due_at: Time
    problem: ShownText


class PermitView(Struct, frozen=True, kw_only=True):
    """A permit in use: the run that has it, the location of the step or none, and since when."""

    limit: str
    run_id: str
    location: str
    granted_at: Time
    worker: str | None


class BreakerView(Struct, frozen=True, kw_only=True):
    """State of a circuit breaker."""

    name: str
    circuit: Circuit
    since: Time
    by_hand: bool
    until: Time
    failures: int
    successes: int
    waiting: int
    rule: BreakerRule
    problem: ShownText


class LockView(Struct, frozen=True, kw_only=True):
    """A lock that is held."""

    name: str
    owner: str
    token: int
    acquired_at: Time
    expires_at: Time


# limits


async def list_limits(api: ApiRequest, query: NamedQuery) -> Page[LimitView]:
    """List limits that runs have met or that were set, by name."""
    found = await api.engine.limits.list(limit=query.limit, after=query.cursor)
    return named(views_of(LimitView, found, api.shown), "name", query)


class PermitsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of permits."""

    limit: Limit = 100


async def list_permits(api: ApiRequest, name: str, query: PermitsQuery) -> Page[PermitView]:
    """List the permits of a limit that are in use, the oldest first."""
    found = await api.engine.limits.holders(name, limit=query.limit)
    return Page(views_of(PermitView, found, api.shown), None)


class LimitBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds in place of those that code declares."""

    concurrency: int | None = None
    rate: Annotated[str, Meta(description="Such as 100/m.", examples=["100/m"])] | None = None
    burst: int | None = None
    reason: Reason = ""


async def set_limit(api: ApiRequest, name: str, body: LimitBody) -> Done:
    """Override a limit from now on, in place of the bounds that code declares."""
    await api.engine.limits.set(
        name, concurrency=body.concurrency, rate=body.rate, burst=body.burst, reason=body.reason
    )
    return Done(True)


async def clear_limit(api: ApiRequest, name: str, query: ReasonQuery) -> Done:
    """Remove an override: the bounds declared in code apply again."""
    await api.engine.limits.clear(name, query.reason)
    return Done(True)


# circuit breakers


async def list_breakers(api: ApiRequest, query: NamedQuery) -> Page[BreakerView]:
    """List circuit breakers by name."""
    found = await api.engine.breakers.list(limit=query.limit, after=query.cursor)
    return named(views_of(BreakerView, found, api.shown), "name", query)


async def open_breaker(api: ApiRequest, name: str, body: ReasonBody) -> Done:
    """Let nothing pass until the breaker is closed or reset by hand."""
    await api.engine.breakers.open(name, body.reason)
    return Done(True)


async def close_breaker(api: ApiRequest, name: str, body: ReasonBody) -> Done:
    """Let everything pass until the breaker is opened or reset by hand."""
    await api.engine.breakers.close(name, body.reason)
    return Done(True)


async def reset_breaker(api: ApiRequest, name: str, body: ReasonBody) -> Done:
    """Close the breaker and forget its counts; from then on it opens and closes by itself."""
    await api.engine.breakers.reset(name, body.reason)
    return Done(True)


# locks


async def list_locks(api: ApiRequest, query: NamedQuery) -> Page[LockView]:
    """List locks that are held, by name."""
    found = await api.engine.locks.list(limit=query.limit, after=query.cursor)
    return named(views_of(LockView, found, api.shown), "name", query)


class LockStateView(Struct, frozen=True):
    """A lock; null if it is free."""

    lock: LockView | None


async def show_lock(api: ApiRequest, name: str) -> LockStateView:
    """Read a lock."""
    found = await api.engine.locks.get(name)
    return LockStateView(None if found is None else view_of(LockView, found, api.shown))


class ReleaseQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Holder that is meant, by the token of the lock, any by default; and the reason."""

    token: Position | None = None
    reason: Reason = ""


async def release_lock(api: ApiRequest, name: str, query: ReleaseQuery) -> Done:
    """Take a lock from its holder, which learns of it when it extends or releases the lock."""
    if query.token is None:
        return Done(await api.engine.locks.force_release(name, query.reason))
    session = session_of(api.engine)
    store = await session.connect()
    # The lock of that token need not be held any more: then the answer to an earlier request was lost.
    return Done(await store.release_lock(check_key(name, "lock name"), query.token, None, session.actor, query.reason))
