"""Handlers for workers, and for the queues and types that they serve."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.worker_info import WorkerInfo, WorkerStatus
from perdure.http.api import ApiRequest, DurationText, Reason, ReasonBody
from perdure.http.redaction import Redactor
from perdure.http.runs.inspect import RunningStepView
from perdure.http.views import Done, Page, ShownText, Time, view_of, views_of


class PauseView(Struct, frozen=True, kw_only=True):
    """A pause of a queue or a type."""

    kind: str
    name: str
    reason: ShownText
    actor: str
    paused_at: Time


class TypeView(Struct, frozen=True, kw_only=True):
    """A type of run, as registered by workers."""

    type: str
    kind: str
    runtime: str
    description: ShownText
    enabled: bool
    registered_at: Time


class DrainView(Struct, frozen=True, kw_only=True):
    """Order of an operator to a worker: claim no more runs, let steps finish, stop."""

    at: Time
    actor: str
    reason: ShownText
    #: Seconds for which steps may go on; null: the worker's own grace period.
    grace: float | None


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker, with the steps that it has had under way for a while."""

    id: str
    host: str
    pid: int
    status: str
    queues: tuple[str, ...]
    types: tuple[str, ...]
    slots: int
    lease_seconds: float
    started_at: Time
    heartbeat_at: Time
    #: Seconds since its last heartbeat, and until others take its runs; null if no heartbeat is missing.
    silence: float
    taken_over_in: float | None
    errors: int
    problem: ShownText
    running: tuple[RunningStepView, ...]
    running_more: int
    build: str
    #: Order to drain; null if there is none.
    drain: DrainView | None

    @classmethod
    def of(cls, one: WorkerInfo, shown: Redactor) -> WorkerView:
        """Convert a worker."""
        return view_of(
            cls,
            one,
            shown,
            lease_seconds=one.lease / 1e6,
            running=views_of(RunningStepView, one.running.steps, shown),
            running_more=one.running.more,
        )


async def list_workers(api: ApiRequest) -> Page[WorkerView]:
    """List the workers of the fleet, dead ones included until they are forgotten."""
    return Page(views_of(WorkerView, await api.engine.workers.list(), api.shown))


class DrainBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason, and how long steps may go on; by default the worker's own grace period."""

    reason: Reason = ""
    grace: DurationText | None = None


async def drain_worker(api: ApiRequest, worker_id: str, body: DrainBody) -> Done:
    """Order a worker to claim no more runs, let its steps finish and stop."""
    return Done(await api.engine.workers.drain(worker_id, body.reason, grace=body.grace))


class LoadView(Struct, frozen=True, kw_only=True):
    """Load of the fleet: live workers, their slots, and the steps that they have had under way for a while."""

    workers: int
    slots: int
    running: int
    late: int


async def fleet_load(api: ApiRequest) -> LoadView:
    """Read the load of the live workers."""
    live = [one for one in await api.engine.workers.list() if one.status is WorkerStatus.ALIVE]
    return LoadView(
        workers=len(live),
        slots=sum(one.slots for one in live),
        running=sum(len(one.running.steps) + one.running.more for one in live),
        late=sum(one.is_late(one.read_at) for one in live),
    )


async def list_pauses(api: ApiRequest) -> Page[PauseView]:
    """List the queues and types that are paused."""
    return Page(views_of(PauseView, await api.engine.queues.paused(), api.shown))


async def pause_queue(api: ApiRequest, queue: str, body: ReasonBody) -> Done:
    """Pause all runs in a queue."""
    return Done(await api.engine.queues.pause(queue=queue, reason=body.reason))


async def resume_queue(api: ApiRequest, queue: str, body: ReasonBody) -> Done:
    """End the pause of a queue."""
    return Done(await api.engine.queues.resume(queue=queue, reason=body.reason))


async def pause_type(api: ApiRequest, type: str, body: ReasonBody) -> Done:
    """Pause all runs of a type."""
    return Done(await api.engine.queues.pause(type=type, reason=body.reason))


async def resume_type(api: ApiRequest, type: str, body: ReasonBody) -> Done:
    """End the pause of a type."""
    return Done(await api.engine.queues.resume(type=type, reason=body.reason))


async def list_types(api: ApiRequest) -> Page[TypeView]:
    """List the types that workers have registered."""
    return Page(views_of(TypeView, await api.engine.queues.types(), api.shown))


class SourceQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Build of the source; all that are kept by default."""

    build: str | None = None


class SourceView(Struct, frozen=True, kw_only=True):
    """Source and docstring of a type, as the workers of a build registered them."""

    type: str
    build: str
    doc: ShownText
    source: ShownText
    file: str
    #: Number of the first line in the file; 0 if it is unknown.
    line: int
    #: True if the source was longer than what is kept.
    cut: bool
    registered_at: Time


async def list_sources(api: ApiRequest, type: str, query: SourceQuery) -> Page[SourceView]:
    """Read the source of a type, of the latest builds, latest first."""
    found = await api.engine.queues.sources(type)
    return Page(views_of(SourceView, [one for one in found if query.build in (None, one.build)], api.shown))
