"""Deadlocks over permits: runs that wait for permits whose holders wait, in the end, for these runs.

The search errs on one side: it finds no deadlock where a run may go on by itself. A run may go on if it is not parked,
or if it also waits for a message, a time, another attempt, a breaker, its singleton or its completion, or if its
deadline will end it. A limit has room again if one of its holders may go on. So everything that can be reached from a
limit, from waiting run to holder and from parent to child, has to be stuck.
"""

from __future__ import annotations

import shlex
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perdure.core.limits.limit import LimitInfo, PermitInfo, WaitlistPosition, rate_of
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.waits import WaitKind
from perdure.core.time.duration import NEVER
from perdure.errors import StoreCorrupt
from perdure.store.contract import Store

#: Permits of one limit and runs that one search reads; beyond that it finds nothing.
_MOST_PERMITS = 100
_MOST_RUNS = 200


class Link(Struct, frozen=True):
    """A run, and another one that has to go on first: a child, an awaited run, or the holder of a permit."""

    waiter: str
    target: str
    #: Limit whose permit the target holds; empty: the end of the target is awaited.
    limit: str = ""


class Deadlock(Struct, frozen=True):
    """Runs that wait for each other in a circle: each link begins where the one before ends."""

    links: tuple[Link, ...]

    @property
    def run_ids(self) -> frozenset[str]:
        """The runs in the circle."""
        return frozenset(link.waiter for link in self.links)

    def __str__(self) -> str:
        """Name who waits for what, from a holder of a permit to the run that waits for it."""
        clauses = []
        for number, link in enumerate(self.links):
            held = self.links[number - 1].limit
            holder = f", which holds a permit of {held!r}," if held else ""
            wanted = f"the limit {link.limit!r}" if link.limit else repr(link.target)
            clauses.append(f"{link.waiter!r}{holder} waits for {wanted}")
        *first, last = clauses
        return f"{', '.join(first)}, and {last}" if first else last


class DeadlockSearch:
    """Search for deadlocks in one database, as it is now. One search reads each run once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._runs: dict[str, Run] = {}
        self._permits: dict[str, tuple[PermitInfo, ...]] = {}
        #: By run, the runs that it waits for; empty: it may go on.
        self._links: dict[str, tuple[Link, ...]] = {}

    async def permits(self, limit: LimitInfo) -> tuple[PermitInfo, ...]:
        """Permits in use of a limit that is full; none of a limit that has room, or is of a rate."""
        if limit.breaker is not None or limit.problem or not is_full(limit):
            return ()
        if limit.name not in self._permits:
            self._permits[limit.name] = tuple(await self._store.permits([limit.name], _MOST_PERMITS + 1))
        return self._permits[limit.name]

    async def runs(self, run_ids: Sequence[str]) -> dict[str, Run]:
        """Read runs, by id. Runs that do not exist or cannot be read are left out."""
        unknown = [run_id for run_id in dict.fromkeys(run_ids) if run_id not in self._runs]
        if unknown:
            self._runs |= {run.id: run for run in await _readable(self._store, unknown)}
        return {run_id: self._runs[run_id] for run_id in run_ids if run_id in self._runs}

    async def find(self, limit: LimitInfo, waiter: str = "") -> Deadlock | None:
        """Find a deadlock of which a run that waits for this limit is a part, or behind which it waits.

        `waiter`: a run that waits for the limit. A circle in which it is comes before others.
        """
        links: dict[str, tuple[Link, ...]] = {}
        wanted = [one.run_id for one in await self.permits(limit)]
        if not wanted or len(wanted) > _MOST_PERMITS:
            return None
        while wanted:
            # All of them in one query, before any is followed: one that may go on ends the search.
            await self.runs(wanted)
            if len(links) + len(wanted) > _MOST_RUNS or any(not self._is_parked(run_id) for run_id in wanted):
                return None
            run_id = wanted.pop()
            links[run_id] = await self._links_of(self._runs[run_id])
            if not links[run_id]:
                return None
            targets = dict.fromkeys(link.target for link in links[run_id])
            wanted += [target for target in targets if target not in links and target not in wanted]
        if waiter in links and (own := _circle(links, waiter)) is not None:
            return own
        circles = [found for run_id in links if (found := _circle(links, run_id)) is not None]
        return min(circles, key=lambda one: len(one.links), default=None)

    def _is_parked(self, run_id: str) -> bool:
        run = self._runs.get(run_id)
        return run is not None and run.status is Status.WAITING and run.deadline >= NEVER

    async def _links_of(self, run: Run) -> tuple[Link, ...]:
        if run.id not in self._links:
            self._links[run.id] = await self._read_links(run)
        return self._links[run.id]

    async def _read_links(self, run: Run) -> tuple[Link, ...]:
        """Read the runs that a parked run waits for: the holders, if it is on a waitlist, and what its code awaits."""
        if run.reason not in (Reason.LIMIT, Reason.CHILD):
            return ()
        found: list[Link] = []
        position, waits = None, await self._store.waits(run.id)
        named = () if waits is None else waits.waits
        if run.reason is Reason.LIMIT or any(wait.kind is WaitKind.LIMIT for wait in named):
            position = await self._store.waitlist_position(run.id)
            found += await self._links_to_holders(run, position)
            if not found:
                return ()
        if waits is None or waits.token != run.token:
            # It was parked under an earlier lease, if ever.
            return tuple(found)
        for wait in waits.waits:
            if wait.kind in (WaitKind.CHILD, WaitKind.RUN) and not wait.until:
                found.append(Link(run.id, wait.name))
            elif wait.kind is not WaitKind.LIMIT or position is None or position.gate.name != wait.name:
                return ()
        return () if waits.more else tuple(found)

    async def _links_to_holders(self, run: Run, position: WaitlistPosition | None) -> tuple[Link, ...]:
        permits = () if position is None else await self.permits(position.gate)
        # A step that has a permit is under way, or about to be.
        if position is None or len(permits) > _MOST_PERMITS or any(one.location for one in permits):
            return ()
        return tuple(Link(run.id, one.run_id, position.gate.name) for one in permits)


def is_full(limit: LimitInfo) -> bool:
    """True if all permits of a limit are in use."""
    return 0 < limit.bounds.concurrency <= limit.held


def advice(limit: LimitInfo, target: str = "URL") -> str:
    """Say what ends a deadlock over a limit, and what prevents the next one."""
    bounds = ["--concurrency", str(limit.held + limit.waiting)]
    if limit.bounds.pace:
        # Without them, the command would remove the rate.
        bounds += ["--rate", rate_of(limit.bounds.pace), "--burst", str(limit.bounds.burst)]
    command = shlex.join(["perdure", "limits", "set", target, limit.name, *bounds])
    return f"raise the limit (`{command}`) or cancel one of these runs, and give the child a limit of another name"


async def _readable(store: Store, run_ids: Sequence[str]) -> list[Run]:
    try:
        return await store.get_many(run_ids)
    except StoreCorrupt:
        return []


def _circle(links: Mapping[str, Sequence[Link]], start: str) -> Deadlock | None:
    """The shortest way from a run back to it; it ends with a wait for a limit, if there is one."""
    came_by: dict[str, Link] = {}
    reached = deque([start])
    while reached and start not in came_by:
        for link in links[reached.popleft()]:
            if link.target not in came_by:
                came_by[link.target] = link
                reached.append(link.target)
    if start not in came_by:
        return None
    circle = [came_by[start]]
    while circle[0].waiter != start:
        circle.insert(0, came_by[circle[0].waiter])
    last = max((number for number, link in enumerate(circle) if link.limit), default=len(circle) - 1)
    return Deadlock((*circle[last + 1 :], *circle[: last + 1]))
