"""The route table: method, path, role, handler and errors of every request.

The router, the OpenAPI document and the tests of access are made from it. The types of query, body and answer are those
of the handler.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints
from urllib.parse import unquote

from msgspec import Raw, Struct

from perdure.core.access import Role
from perdure.http import audit, deploy, events, limits, schedules, tokens, watermarks, workers
from perdure.http.api import ApiRequest, EventStream, Reply
from perdure.http.problems import METHOD_NOT_ALLOWED, NOT_FOUND, Refused
from perdure.http.runs import attempt_reports, bulk, control, dead_letters, inspect, messages, reopen, results, start

#: Path of the version of the API, which changes when an answer would break a client.
PREFIX = "/api/v1"

VIEWER, OPERATOR, ADMIN = Role.VIEWER, Role.OPERATOR, Role.ADMIN

Handler = Callable[..., Awaitable[Any]]


class Route(Struct, frozen=True):
    """A request that the API answers."""

    method: str
    path: str
    #: Least role of the caller; None: none is needed.
    role: Role | None
    handler: Handler
    #: Statuses of a success.
    statuses: tuple[int, ...] = (200,)
    #: Statuses of errors, besides those of every request.
    errors: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the operation, unique and stable."""
        return self.handler.__name__

    @property
    def group(self) -> str:
        """First part of the path."""
        return self.path.split("/")[1]

    @property
    def summary(self) -> str:
        """First sentence of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().splitlines()[0]

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parts of the path that vary."""
        return tuple(one[1:-1] for one in self.path.split("/") if one.startswith("{"))

    def types(self) -> tuple[Any, Any, Any]:
        """Types of query, body and answer; None where there is none."""
        hints = _hints_of(self.handler)
        answer = hints["return"]
        if get_origin(answer) is Reply:
            [answer] = get_args(answer)
        return hints.get("query"), hints.get("body"), answer

    @property
    def is_repeatable(self) -> bool:
        """True if the header `Request-Id` makes a repetition harmless. Secrets do not follow from a header."""
        return self.method != "GET" and self.group not in ("session", "tokens")

    @property
    def streams(self) -> bool:
        """True if the answer is server-sent events."""
        return self.types()[2] is EventStream

    def path_types(self) -> dict[str, Any]:
        """Types of the parts of the path that vary."""
        hints = _hints_of(self.handler)
        return {name: hints[name] for name in self.parameters}


@cache
def _hints_of(handler: Handler) -> dict[str, Any]:
    return get_type_hints(handler, include_extras=True)


async def openapi(api: ApiRequest) -> Reply[Raw]:
    """Read this document."""
    return Reply(Raw(api.services.document()))


#: A run that has to exist, and one that has to be in a state as well.
_RUN = (404, 422)
_RUN_STATE = (404, 409, 422)

ROUTES: tuple[Route, ...] = (
    # runs
    Route("POST", "/runs", OPERATOR, start.start, (201,), (409, 422)),
    Route("POST", "/runs/batch", OPERATOR, start.start_many, (201,), (409, 422)),
    Route("POST", "/runs/prune", ADMIN, control.prune, (200,), (422,)),
    Route("POST", "/runs/unserved", VIEWER, inspect.unserved, (200,), (422,)),
    Route("POST", "/runs/updated", VIEWER, inspect.updated, (200,), (422,)),
    Route("GET", "/runs", VIEWER, inspect.list_runs, (200,), (422,)),
    Route("POST", "/runs/count", VIEWER, inspect.count_runs, (200,), (422,)),
    Route("GET", "/runs/{run_id}", VIEWER, inspect.show, (200,), _RUN),
    Route("DELETE", "/runs/{run_id}", OPERATOR, control.delete, (200,), _RUN),
    Route("GET", "/runs/{run_id}/result", VIEWER, results.result, (200, 202), _RUN),
    Route("GET", "/runs/{run_id}/why", VIEWER, inspect.why, (200,), _RUN),
    Route("GET", "/runs/{run_id}/report", VIEWER, inspect.report, (200,), _RUN),
    Route("GET", "/runs/{run_id}/history", VIEWER, inspect.history, (200,), _RUN),
    Route("GET", "/runs/{run_id}/inbox", VIEWER, inspect.inbox, (200,), _RUN),
    Route("GET", "/runs/{run_id}/events", VIEWER, inspect.events, (200,), _RUN),
    Route("GET", "/runs/{run_id}/logs", VIEWER, inspect.logs, (200,), _RUN),
    Route("GET", "/runs/{run_id}/interruptions", VIEWER, inspect.interruptions, (200,), _RUN),
    Route("GET", "/runs/{run_id}/states", VIEWER, results.states, (200,), _RUN),
    Route("GET", "/runs/{run_id}/states/{key}", VIEWER, results.state, (200,), _RUN),
    Route("GET", "/runs/{run_id}/streams/{name}", VIEWER, results.stream_items, (200,), _RUN),
    Route("GET", "/runs/{run_id}/streams/{name}/live", VIEWER, results.follow_stream, (200,), _RUN),
    Route("POST", "/runs/{run_id}/messages", OPERATOR, messages.send, (202,), _RUN_STATE),
    Route("POST", "/runs/{run_id}/questions", OPERATOR, messages.ask, (200, 202), _RUN_STATE),
    Route("GET", "/runs/{run_id}/set-aside", VIEWER, messages.set_aside, (200,), _RUN),
    Route("POST", "/runs/{run_id}/set-aside/{number}/deliver", OPERATOR, messages.deliver, (200,), _RUN_STATE),
    Route("POST", "/runs/{run_id}/set-aside/{number}/drop", OPERATOR, messages.drop, (200,), _RUN),
    Route("POST", "/runs/{run_id}/cancel", OPERATOR, control.cancel, (200,), _RUN),
    Route("POST", "/runs/{run_id}/terminate", OPERATOR, control.terminate, (200,), _RUN),
    Route("POST", "/runs/{run_id}/pause", OPERATOR, control.pause, (200,), _RUN),
    Route("POST", "/runs/{run_id}/resume", OPERATOR, control.resume, (200,), _RUN),
    Route("POST", "/runs/{run_id}/evict", OPERATOR, control.evict, (200,), _RUN),
    Route("POST", "/runs/{run_id}/unpin", OPERATOR, control.unpin, (200,), _RUN),
    Route("PUT", "/runs/{run_id}/priority", OPERATOR, control.set_priority, (200,), _RUN),
    Route("POST", "/runs/{run_id}/wake", OPERATOR, control.wake, (200,), _RUN_STATE),
    Route("POST", "/runs/{run_id}/retry", OPERATOR, reopen.retry, (200,), _RUN_STATE),
    Route("POST", "/runs/{run_id}/fork", OPERATOR, reopen.fork, (201,), _RUN_STATE),
    Route("POST", "/runs/{run_id}/undelete", OPERATOR, control.undelete, (200,), _RUN),
    Route("POST", "/runs/{run_id}/purge", ADMIN, control.purge, (200,), _RUN),
    Route("POST", "/broadcasts", OPERATOR, messages.broadcast, (200,), (422,)),
    # activities that have returned `Pending`
    Route("POST", "/activities/{token}/complete", OPERATOR, attempt_reports.complete_activity, (200,), _RUN_STATE),
    Route("POST", "/activities/{token}/fail", OPERATOR, attempt_reports.fail_activity, (200,), _RUN_STATE),
    Route("POST", "/activities/{token}/heartbeat", OPERATOR, attempt_reports.beat_activity, (200,), _RUN_STATE),
    # many runs
    Route("POST", "/bulk", OPERATOR, bulk.start_bulk, (202,), (409, 422)),
    Route("POST", "/bulk/preview", VIEWER, bulk.preview_bulk, (200,), (422,)),
    Route("GET", "/bulk/{job_id}", VIEWER, bulk.show_bulk, (200,), _RUN),
    # schedules
    Route("GET", "/schedules", VIEWER, schedules.list_schedules, (200,), (422,)),
    Route("GET", "/schedules/{schedule_id}", VIEWER, schedules.show_schedule, (200,), _RUN),
    Route("PUT", "/schedules/{schedule_id}", OPERATOR, schedules.create_schedule, (200,), (409, 422)),
    Route("PATCH", "/schedules/{schedule_id}", OPERATOR, schedules.change_schedule, (200,), _RUN),
    Route("DELETE", "/schedules/{schedule_id}", OPERATOR, schedules.delete_schedule, (200,), _RUN),
    Route("POST", "/schedules/{schedule_id}/pause", OPERATOR, schedules.pause_schedule, (200,), _RUN),
    Route("POST", "/schedules/{schedule_id}/resume", OPERATOR, schedules.resume_schedule, (200,), _RUN),
    Route("POST", "/schedules/{schedule_id}/trigger", OPERATOR, schedules.trigger_schedule, (201,), _RUN_STATE),
    Route("POST", "/schedules/{schedule_id}/backfill", OPERATOR, schedules.backfill_schedule, (201,), _RUN),
    Route("POST", "/schedules/{schedule_id}/backfill/preview", VIEWER, schedules.preview_backfill, (200,), _RUN),
    Route("GET", "/schedules/{schedule_id}/fires", VIEWER, schedules.list_fires, (200,), _RUN),
    Route("GET", "/schedules/{schedule_id}/runs", VIEWER, schedules.list_schedule_runs, (200,), _RUN),
    Route("GET", "/schedules/{schedule_id}/next", VIEWER, schedules.next_fire_times, (200,), _RUN),
    Route("GET", "/schedules/{schedule_id}/events", VIEWER, schedules.schedule_events, (200,), (422,)),
    # queues and types
    Route("GET", "/pauses", VIEWER, workers.list_pauses),
    Route("GET", "/types", VIEWER, workers.list_types),
    Route("POST", "/queues/{queue}/pause", OPERATOR, workers.pause_queue, (200,), (422,)),
    Route("POST", "/queues/{queue}/resume", OPERATOR, workers.resume_queue, (200,), (422,)),
    Route("GET", "/queues/{queue}/depth", VIEWER, watermarks.queue_depth, (200,), (422,)),
    Route("PUT", "/queues/{queue}/watermark", OPERATOR, watermarks.set_queue_watermark, (200,), (422,)),
    Route("DELETE", "/queues/{queue}/watermark", OPERATOR, watermarks.remove_queue_watermark, (200,), (422,)),
    Route("POST", "/types/{type}/pause", OPERATOR, workers.pause_type, (200,), (422,)),
    Route("POST", "/types/{type}/resume", OPERATOR, workers.resume_type, (200,), (422,)),
    Route("GET", "/types/{type}/sources", VIEWER, workers.list_sources, (200,), (422,)),
    Route("GET", "/types/{type}/depth", VIEWER, watermarks.type_depth, (200,), (422,)),
    Route("PUT", "/types/{type}/watermark", OPERATOR, watermarks.set_type_watermark, (200,), (422,)),
    Route("DELETE", "/types/{type}/watermark", OPERATOR, watermarks.remove_type_watermark, (200,), (422,)),
    Route("GET", "/watermarks", VIEWER, watermarks.list_watermarks),
    # sticky events
    Route("GET", "/sticky-events", VIEWER, events.list_sticky_events, (200,), (422,)),
    Route("GET", "/sticky-events/{name}", VIEWER, events.sticky_event, (200, 202), (422,)),
    Route("PUT", "/sticky-events/{name}", OPERATOR, events.emit_sticky_event, (200,), (409, 422)),
    Route("DELETE", "/sticky-events/{name}", OPERATOR, events.delete_sticky_event, (200,), (422,)),
    # events for other systems
    Route("GET", "/outbox", VIEWER, events.list_published_events, (200,), (422,)),
    Route("POST", "/outbox", OPERATOR, events.publish_event, (201,), (409, 422)),
    Route("GET", "/outbox/{event_id}", VIEWER, events.show_published_event, (200,), _RUN),
    Route("POST", "/outbox/{event_id}/replay", OPERATOR, events.replay_published_event, (201,), _RUN),
    # limits, breakers and locks
    Route("GET", "/limits", VIEWER, limits.list_limits, (200,), (422,)),
    Route("GET", "/limits/{name}/permits", VIEWER, limits.list_permits, (200,), (422,)),
    Route("PUT", "/limits/{name}", OPERATOR, limits.set_limit, (200,), (422,)),
    Route("DELETE", "/limits/{name}", OPERATOR, limits.clear_limit, (200,), (422,)),
    Route("GET", "/breakers", VIEWER, limits.list_breakers, (200,), (422,)),
    Route("POST", "/breakers/{name}/open", OPERATOR, limits.open_breaker, (200,), (422,)),
    Route("POST", "/breakers/{name}/close", OPERATOR, limits.close_breaker, (200,), (422,)),
    Route("POST", "/breakers/{name}/reset", OPERATOR, limits.reset_breaker, (200,), (422,)),
    Route("GET", "/locks", VIEWER, limits.list_locks, (200,), (422,)),
    Route("GET", "/locks/{name}", VIEWER, limits.show_lock, (200,), (422,)),
    Route("DELETE", "/locks/{name}", OPERATOR, limits.release_lock, (200,), (422,)),
    # dead letters
    Route("GET", "/dead-letters", VIEWER, dead_letters.list_dead_letters, (200,), (422,)),
    Route("GET", "/dead-letters/{run_id}", VIEWER, dead_letters.show_dead_letter, (200,), _RUN),
    Route("POST", "/dead-letters/retry", OPERATOR, dead_letters.retry_dead_letters, (200,), (422,)),
    Route("POST", "/dead-letters/discard", OPERATOR, dead_letters.discard_dead_letters, (200,), (422,)),
    Route("POST", "/dead-letters/prune", ADMIN, dead_letters.prune_dead_letters, (200,), (422,)),
    # workers, deploys and the audit trail
    Route("GET", "/workers", VIEWER, workers.list_workers),
    Route("GET", "/workers/load", VIEWER, workers.fleet_load),
    Route("POST", "/workers/{worker_id}/drain", OPERATOR, workers.drain_worker, (200,), _RUN),
    Route("GET", "/deploy-checks", VIEWER, deploy.list_deploy_checks, (200,), (422,)),
    Route("POST", "/deploy-checks", OPERATOR, deploy.run_deploy_check, (201,), (422,)),
    Route("GET", "/deploy-check", OPERATOR, deploy.check, (200,), (422,)),
    Route("GET", "/events", VIEWER, audit.list_events, (200,), (422,)),
    Route("POST", "/events/prune", ADMIN, audit.prune_events, (200,), (422,)),
    Route("GET", "/live", VIEWER, audit.live, (200,), (422,)),
    # access
    Route("POST", "/session", None, tokens.log_in, (201,), (422,)),
    Route("GET", "/session", VIEWER, tokens.show_session),
    Route("DELETE", "/session", VIEWER, tokens.log_out),
    Route("GET", "/tokens", ADMIN, tokens.list_tokens, (200,), (422,)),
    Route("POST", "/tokens", ADMIN, tokens.create_token, (201,), (409, 422)),
    Route("GET", "/tokens/{name}", ADMIN, tokens.show_token, (200,), _RUN),
    Route("DELETE", "/tokens/{name}", ADMIN, tokens.revoke_token, (200,), _RUN),
    Route("GET", "/openapi.json", VIEWER, openapi),
)


class Router:
    """Finds the route of a request by the parts of its path, each decoded by itself.

    An id may contain a slash, which a client writes as `%2F`; a path that is decoded as a whole would not tell.
    """

    def __init__(self, routes: Sequence[Route] = ROUTES) -> None:
        self._by_length: dict[int, list[tuple[tuple[str, ...], dict[str, Route]]]] = {}
        # A fixed part goes before one that varies.
        for route in sorted(routes, key=lambda one: [part.startswith("{") for part in one.path.split("/")]):
            parts = tuple(route.path.split("/")[1:])
            paths = self._by_length.setdefault(len(parts), [])
            methods = next((methods for known, methods in paths if known == parts), None)
            if methods is None:
                methods = {}
                paths.append((parts, methods))
            methods[route.method] = route

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str]]:
        """Find the route, and the varying parts of its path. Raises `Refused`.

        A run may have the id `batch`: a fixed path without the method does not hide the path of that run. No fixed path
        has the method of such a path.
        """
        given = raw_path.split("/")[1:]
        known: set[str] = set()
        for parts, methods in self._by_length.get(len(given), ()):
            if not all(part.startswith("{") or part == one for part, one in zip(parts, given, strict=True)):
                continue
            route = methods.get("GET" if method == "HEAD" else method)
            if route is None:
                known |= methods.keys()
                continue
            return route, {
                part[1:-1]: unquote(one, errors="surrogateescape")
                for part, one in zip(parts, given, strict=True)
                if part.startswith("{")
            }
        if known:
            allowed = ", ".join(sorted(known))
            raise Refused(METHOD_NOT_ALLOWED, f"{method} is not for this path; {allowed} is", {"allow": allowed})
        raise Refused(NOT_FOUND, "there is no such path; the document at /api/v1/openapi.json lists them all")
