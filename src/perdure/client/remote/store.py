"""The store of an engine on a server: the verbs of the contract that have a route of the HTTP API.

Listings, histories, messages and the like go through the same code as on a database. A verb whose rules need rows as
they are stored, such as a fork, is not here: the server carries out the method of the engine itself.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from perdure.client.remote.transport import Query, Transport, path_of
from perdure.client.remote.values import (
    attribute_of,
    decoded,
    elements,
    members,
    restore_all,
    value_of,
)
from perdure.client.session import refuse_in_workflow
from perdure.core.audit import Audit, Event, EventFilter
from perdure.core.limits.breaker import PREFIX as BREAKER_PREFIX
from perdure.core.limits.breaker import Circuit
from perdure.core.model.attributes import condition_text
from perdure.core.model.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterPage, DeleteOutcome
from perdure.core.model.events import EmitOutcome, NewStickyEvent
from perdure.core.model.record import Message, NewMessage, Record, SendOutcome
from perdure.core.model.run import CountBy, Run, RunFilter, RunGroup, RunPage
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.worker_info import DrainOrder, WorkerInfo
from perdure.core.policy.watermark import Watermark
from perdure.core.routing import TypeInfo
from perdure.core.system import System
from perdure.core.time.duration import moment_of
from perdure.core.time.schedule import Schedule
from perdure.errors import RunNotFound, ScheduleNotFound, UsageError
from perdure.store.contract import SCAN, Change

S = TypeVar("S", bound=Struct)

#: Items of one page of a listing that is read as a whole.
PAGE = 1000
#: Seconds between two polls of a listing that is followed.
_POLL = 1.0
#: Names of filters in a query, where they differ from those of the store.
_NAMES = {"parent_id": "parent", "run_id": "run", "kinds": "kind", "reasons": "reason", "attributes": "attribute"}


class RemoteStore:
    """A server in the place of a database. Verbs that it does not have are refused."""

    poll_interval = _POLL
    lanes = 1
    inbox_page = PAGE
    exclusive = False
    blocks = False
    announces = is_notified = False

    def __init__(self, transport: Transport, system: System) -> None:
        self.transport = transport
        self._system = system

    async def open(self) -> None:
        """Check that the server is there and knows the token."""
        await self.transport.request("GET", "/session")

    async def close(self) -> None:
        """Close the connections."""
        await self.transport.close()

    @property
    def clock(self) -> Callable[[], int]:
        """Time of this machine, for checks before a request. The server decides by the database's time."""
        return self._system.now

    @property
    def audit(self) -> Audit:
        """Refused: the level belongs to the processes that write."""
        raise refused("audit.level", "it is set where the engine and its workers are made")

    @audit.setter
    def audit(self, level: Audit) -> None:
        raise refused("audit.level", "it is set where the engine and its workers are made")

    def subscribe(self, listener: Callable[[Change], object]) -> Callable[[], None]:
        """Announce nothing: a server is polled."""
        return lambda: None

    def __getattr__(self, name: str) -> Any:
        raise refused(name)

    # runs

    async def get(self, run_id: str) -> Run | None:
        """One run."""
        try:
            return value_of(Run, await self._read("/runs/{run_id}", run_id=run_id))
        except RunNotFound:
            return None

    async def list(self, filter: RunFilter, limit: int, cursor: str | None, scan: int = SCAN) -> RunPage:
        """A page of runs."""
        query = filter_fields(filter) | {"limit": limit, "cursor": cursor, "scan": scan, "payloads": True}
        page = await self.transport.request("GET", "/runs", query)
        runs = tuple(restore_all(Run, members(page)["items"]))
        return RunPage(runs, decoded(page, "cursor"), decoded(page, "previous"))

    async def count(self, filter: RunFilter, by: CountBy, most: int) -> builtins.list[RunGroup]:
        """Numbers of runs by groups."""
        group = by.column or (f"attribute:{by.attribute}" if by.attribute else None)
        page = await self.transport.request("POST", "/runs/count", body=filter_fields(filter) | {"by": group})
        groups = decoded(page, "items", builtins.list[RunGroup])
        return [msgspec.structs.replace(one, value=attribute_of(one.value)) for one in groups]

    async def history(
        self, run_id: str, after: int = -1, limit: int = 0, *, brief: bool = False
    ) -> builtins.list[Record]:
        """The records of a run past a number, in order, with all results."""
        found = await self._items("/runs/{run_id}/history", {"cursor": after if after >= 0 else None}, run_id=run_id)
        records = restore_all(Record, _joined(found))
        return records[:limit] if limit else records

    async def inbox(self, run_id: str, after: int, limit: int = 0) -> builtins.list[Message]:
        """The unread inbox entries of a run, in order."""
        found = await self._items("/runs/{run_id}/inbox", {"cursor": after or None}, run_id=run_id)
        entries = restore_all(Message, _joined(found), run_id=run_id)
        return entries[:limit] if limit else entries

    async def events(self, run_id: str) -> builtins.list[Event]:
        """The audit trail of a run or, by its trail, of a schedule."""
        trail, is_schedule, schedule_id = run_id.partition("schedule:")
        if is_schedule and not trail:
            return await self._pages(Event, "/schedules/{id}/events", id=schedule_id)
        return await self._pages(Event, "/runs/{run_id}/events", run_id=run_id)

    async def events_page(
        self, filter: EventFilter, limit: int, *, before: int | None = None, after: int | None = None
    ) -> builtins.list[Event]:
        """Audit events of all runs."""
        query = filter_fields(filter) | {"cursor": before, "after": after}
        found: builtins.list[Event] = []
        # A listing asks for one event more than its page has, and a page of the server has a bound.
        while len(found) < limit:
            page = await self.transport.request("GET", "/events", query | {"limit": min(limit - len(found), PAGE)})
            found += restore_all(Event, members(page)["items"])
            query["cursor"] = decoded(page, "cursor")
            if query["cursor"] is None:
                break
        return found

    # the rest

    async def schedule(self, schedule_id: str) -> Schedule | None:
        """One schedule."""
        try:
            return value_of(Schedule, await self._read("/schedules/{id}", id=schedule_id))
        except ScheduleNotFound:
            return None

    async def schedules(self, after: str, limit: int) -> builtins.list[Schedule]:
        """Schedules in the order of their ids."""
        return await self._page(Schedule, "/schedules", {"cursor": after, "limit": limit})

    async def pauses(self) -> builtins.list[Pause]:
        """Every paused type and queue."""
        return await self._page(Pause, "/pauses")

    async def types(self) -> builtins.list[TypeInfo]:
        """Every registered type."""
        return await self._page(TypeInfo, "/types")

    async def workers(self) -> builtins.list[WorkerInfo]:
        """Every worker that is alive or was recently."""
        return await self._page(WorkerInfo, "/workers")

    async def watermarks(self) -> builtins.list[Watermark]:
        """Every watermark."""
        found: builtins.list[Watermark] = decoded(
            await self.transport.request("GET", "/watermarks"), "items", builtins.list[Watermark]
        )
        return found

    async def depth(self, kind: str, name: str, limit: int) -> int:
        """Number of ready runs that wait, in a queue or of a type."""
        path = "/queues/{name}/depth" if kind == "queue" else "/types/{name}/depth"
        return int(decoded(await self._read(path, {"limit": limit}, name=name), "depth"))

    async def list_dead_letters(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        """Dead letters, latest run first."""
        query = filter_fields(filter) | {"limit": limit, "cursor": cursor}
        page = await self.transport.request("GET", "/dead-letters", query)
        return DeadLetterPage(tuple(restore_all(DeadLetter, members(page)["items"])), decoded(page, "cursor"))

    # verbs that write, without a rule of the client before them

    async def send(self, messages: Sequence[NewMessage], actor: str) -> builtins.list[SendOutcome]:
        """Put messages into inboxes, one at a time. A message keeps its key when it is sent again."""
        for one in messages:
            value = msgspec.Raw((one.payload or "null").encode())
            body = {"name": one.name, "value": value, "key": one.key} | ({"reason": one.reason} if one.reason else {})
            await self._write("/runs/{id}/messages", body, id=one.run_id)
        return [SendOutcome.ACCEPTED] * len(messages)

    async def cancel(self, run_id: str, reason: str, key: str, actor: str) -> SendOutcome:
        """Request a run's cancellation."""
        done = await self._write("/runs/{id}/cancel", {"reason": reason}, id=run_id)
        return SendOutcome.ACCEPTED if done else SendOutcome.FINISHED

    async def order_run(self, order: RunOrder, actor: str) -> OrderOutcome:
        """Order a run to pause, to resume or to move to another worker."""
        done = await self._write(f"/runs/{{id}}/{order.kind.value}", {"reason": order.reason}, id=order.run_id)
        return OrderOutcome.DONE if done else OrderOutcome.ALREADY

    async def set_priority(self, run_id: str, priority: int, reason: str, actor: str) -> OrderOutcome:
        """Change the priority of a run."""
        body = {"priority": priority, "reason": reason}
        answer = await self.transport.request("PUT", path_of("/runs/{id}/priority", id=run_id), body=body)
        if decoded(answer, "done"):
            return OrderOutcome.DONE
        # The run has finished, or this was a repetition of the request.
        run = await self.get(run_id)
        return OrderOutcome.FINISHED if run is None or run.status.finished else OrderOutcome.DONE

    async def unpin(self, run_id: str, reason: str, actor: str) -> OrderOutcome:
        """Let workers of every build continue a run."""
        if await self._write("/runs/{id}/unpin", {"reason": reason}, id=run_id):
            return OrderOutcome.DONE
        # The run has finished, or this was a repetition of the request.
        run = await self.get(run_id)
        return OrderOutcome.FINISHED if run is None or run.status.finished else OrderOutcome.DONE

    async def drain(self, worker_id: str, order: DrainOrder, actor: str) -> OrderOutcome:
        """Order a worker to drain."""
        body = {"reason": order.reason, "grace": None if order.grace is None else f"{order.grace:.6f}s"}
        done = await self._write("/workers/{id}/drain", body, id=worker_id)
        return OrderOutcome.DONE if done else OrderOutcome.ALREADY

    async def pause(self, pause: Pause, actor: str) -> None:
        """Stop workers from claiming runs of a type or a queue."""
        await self._write(f"/{pause.kind.value}s/{{name}}/pause", {"reason": pause.reason}, name=pause.name)

    async def resume(self, kind: PauseKind, name: str, actor: str, reason: str = "") -> None:
        """End the pause of a type or a queue."""
        await self._write(f"/{kind.value}s/{{name}}/resume", {"reason": reason}, name=name)

    async def set_breaker(self, gate: str, circuit: Circuit | None, actor: str, reason: str = "") -> None:
        """Hold a breaker open or closed, or return it to its rule."""
        verb = {Circuit.OPEN: "open", Circuit.CLOSED: "close"}.get(circuit, "reset") if circuit else "reset"
        await self._write(f"/breakers/{{name}}/{verb}", {"reason": reason}, name=gate.removeprefix(BREAKER_PREFIX))

    async def emit_event(self, event: NewStickyEvent, actor: str) -> EmitOutcome:
        """Emit a sticky event."""
        body = {"value": msgspec.Raw(event.payload.encode()), "replace": event.replace}
        answer = await self.transport.request("PUT", path_of("/sticky-events/{name}", name=event.name), None, body)
        return EmitOutcome.EMITTED if decoded(answer, "emitted", bool) else EmitOutcome.KEPT

    async def set_watermark(self, watermark: Watermark, actor: str, reason: str = "") -> None:
        """Set a watermark."""
        body = {"high": watermark.high, "low": watermark.low, "when_full": watermark.when_full, "reason": reason}
        path = path_of(f"/{watermark.kind}s/{{name}}/watermark", name=watermark.name)
        await self.transport.request("PUT", path, body=body)

    async def remove_watermark(self, kind: str, name: str, actor: str, reason: str = "") -> None:
        """Remove the watermark of a queue or a type."""
        await self.transport.request("DELETE", path_of(f"/{kind}s/{{name}}/watermark", name=name), {"reason": reason})

    async def release_lock(self, name: str, token: int, nonce: str | None, actor: str, reason: str = "") -> bool:
        """Take a lock from the holder with that token."""
        query = {"token": token} | ({"reason": reason} if reason else {})
        answer = await self.transport.request("DELETE", path_of("/locks/{name}", name=name), query)
        return bool(decoded(answer, "done"))

    async def undelete(self, run_id: str, actor: str) -> DeleteOutcome:
        """Restore a deleted run."""
        run = await self.get(run_id)
        if run is None:
            return DeleteOutcome.UNKNOWN
        if not run.deleted_at:
            return DeleteOutcome.ALREADY
        # A repetition of this request finds nothing to do.
        await self._write("/runs/{id}/undelete", id=run_id)
        return DeleteOutcome.DONE

    async def delete_schedule(self, schedule_id: str, actor: str, reason: str = "") -> None:
        """Delete a schedule."""
        query = {"reason": reason} if reason else {}
        # A repetition of this request finds no schedule.
        with suppress(ScheduleNotFound):
            await self.transport.request("DELETE", path_of("/schedules/{id}", id=schedule_id), query)

    def user_transaction(self, *_: object, **__: object) -> NoReturn:
        """Refused: a connection of the caller is one to the database."""
        raise refused("connection=...", "leave it out, or use an engine on the database of that connection")

    async def _write(self, template: str, body: object = None, **parts: object) -> bool:
        answer = await self.transport.request("POST", path_of(template, **parts), body=body)
        return bool(decoded(answer, "done"))

    async def _read(self, template: str, query: Query | None = None, **parts: object) -> bytes:
        return await self.transport.request("GET", path_of(template, **parts), query)

    async def _page(self, kind: type[S], path: str, query: Query | None = None) -> builtins.list[S]:
        return restore_all(kind, members(await self.transport.request("GET", path, query))["items"])

    async def _pages(self, kind: type[S], template: str, **parts: object) -> builtins.list[S]:
        return restore_all(kind, _joined(await self._items(template, {}, **parts)))

    async def _items(self, template: str, query: Query, **parts: object) -> builtins.list[msgspec.Raw]:
        found: builtins.list[msgspec.Raw] = []
        query = {**query, "limit": PAGE}
        while True:
            page = await self._read(template, query, **parts)
            found += elements(members(page)["items"])
            cursor = decoded(page, "cursor")
            if cursor is None:
                return found
            query = {**query, "cursor": cursor}


def _joined(items: Sequence[msgspec.Raw]) -> bytes:
    return msgspec.json.encode(items)


def refused(member: str, advice: str = "") -> UsageError:
    """The error of a member that an engine on a server does not have."""
    refuse_in_workflow()
    more = advice or "use an engine on the database for it: Engine('postgresql://...')"
    return UsageError(f"{member} is not possible over HTTP, where this engine has no database; {more}")


def filter_fields(filter: Struct) -> dict[str, Any]:
    """Filter of a listing as a query or as a part of a body."""
    found: dict[str, Any] = {}
    for name in filter.__struct_fields__:
        value = getattr(filter, name)
        if name == "oldest":
            found["order"] = "oldest" if value else None
        elif name == "deleted":
            found |= {"with_deleted": True} if value is None else {"deleted": value}
        elif name == "attributes":
            found[_NAMES[name]] = [condition_text(one) for one in value]
        elif isinstance(value, int) and not isinstance(value, bool):
            found[name] = moment_of(value).isoformat()
        else:
            found[_NAMES.get(name, name)] = [*value] if isinstance(value, tuple) else value
    return {name: value for name, value in found.items() if value is not None and value is not False}
