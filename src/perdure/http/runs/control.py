"""Handlers that steer and delete runs."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.http.api import ApiRequest, DurationText, Reason, ReasonBody, ReasonQuery, WhenText, moment
from perdure.http.views import Done


async def cancel(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """Ask a run to stop: its workflow may clean up."""
    return Done(await api.engine.cancel(run_id, body.reason))


class TerminateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason, and whether completed steps are undone first."""

    reason: Reason = ""
    undo: bool = False


async def terminate(api: ApiRequest, run_id: str, body: TerminateBody) -> Done:
    """End a run now, in whatever status it is, without its code."""
    return Done(await api.engine.runs.terminate(run_id, body.reason, undo=body.undo))


async def pause(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """Pause a run once the steps that are under way have ended."""
    return Done(await api.engine.runs.pause(run_id, body.reason))


async def resume(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """End the pause of a run."""
    return Done(await api.engine.runs.resume(run_id, body.reason))


class PriorityBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """New priority of a run, and the reason. Lower numbers go first."""

    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)]
    reason: Reason = ""


async def set_priority(api: ApiRequest, run_id: str, body: PriorityBody) -> Done:
    """Change the priority of a run that has not finished."""
    return Done(await api.engine.runs.set_priority(run_id, body.priority, body.reason))


async def unpin(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """Let workers of every build continue a run that is pinned to the build that began it."""
    return Done(await api.engine.runs.unpin(run_id, body.reason))


async def evict(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """Make the worker that holds a run give it back, for another to take."""
    return Done(await api.engine.runs.evict(run_id, body.reason))


class WakeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to wake up, now by default, and the reason."""

    at: WhenText | None = None
    reason: Reason = ""


async def wake(api: ApiRequest, run_id: str, body: WakeBody) -> Done:
    """End the sleep of a run at another time, by default now."""
    await api.engine.runs.wake(run_id, moment(body.at), body.reason)
    return Done(True)


async def delete(api: ApiRequest, run_id: str, query: ReasonQuery) -> Done:
    """Hide a run from listings. One that is not over is paused until it is restored."""
    return Done(await api.engine.runs.delete(run_id, query.reason))


async def purge(api: ApiRequest, run_id: str, body: ReasonBody) -> Done:
    """Delete a finished run for good, with its history and its descendants."""
    return Done(await api.engine.runs.delete(run_id, body.reason, purge=True))


async def undelete(api: ApiRequest, run_id: str) -> Done:
    """Bring a deleted run back."""
    return Done(await api.engine.runs.undelete(run_id))


class PruneBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of the finished runs to delete for good."""

    older_than: DurationText
    status: list[str] | None = None
    types: list[str] | None = None
    deleted: bool = False


class PruneView(Struct, frozen=True):
    """Numbers of runs that were deleted for good, and left."""

    runs: int
    spared: int


async def prune(api: ApiRequest, body: PruneBody) -> PruneView:
    """Delete finished runs for good that ended longer ago than that."""
    done = await api.engine.runs.prune(body.older_than, status=body.status, types=body.types, deleted=body.deleted)
    return PruneView(done.runs, done.spared)
