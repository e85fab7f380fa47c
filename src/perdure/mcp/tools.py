"""The tools for operators: each is a route of the HTTP API, under a name that explains itself.

Arguments, types, roles and descriptions are those of the route.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.json import schema_components

from perdure.core.access import Role
from perdure.core.printed_text import brief, closest
from perdure.errors import UsageError
from perdure.http.routes import ROUTES, Route

#: Argument of every tool that changes something: the header `Request-Id`.
REQUEST_ID = "request_id"

#: Names of routes, by the names of their tools.
_ROUTES = MappingProxyType(
    {
        # runs
        "list_runs": "list_runs",
        "count_runs": "count_runs",
        "show_run": "show",
        "why_run": "why",
        "report_run": "report",
        "run_history": "history",
        "run_inbox": "inbox",
        "run_events": "events",
        "run_interruptions": "interruptions",
        "run_result": "result",
        "run_states": "states",
        "run_stream": "stream_items",
        "run_set_aside_messages": "set_aside",
        "list_unserved_runs": "unserved",
        # dead letters, schedules, limits, workers, code
        "list_dead_letters": "list_dead_letters",
        "show_dead_letter": "show_dead_letter",
        "list_schedules": "list_schedules",
        "show_schedule": "show_schedule",
        "next_fire_times": "next_fire_times",
        "list_fires": "list_fires",
        "list_limits": "list_limits",
        "list_permits": "list_permits",
        "list_breakers": "list_breakers",
        "list_locks": "list_locks",
        "list_workers": "list_workers",
        "fleet_load": "fleet_load",
        "queue_depth": "queue_depth",
        "list_pauses": "list_pauses",
        "list_types": "list_types",
        "list_sources": "list_sources",
        "list_deploy_checks": "list_deploy_checks",
        "list_events": "list_events",
        # steering
        "check_deploy": "check",
        "start_run": "start",
        "send_message": "send",
        "ask_run": "ask",
        "complete_activity": "complete_activity",
        "fail_activity": "fail_activity",
        "cancel_run": "cancel",
        "terminate_run": "terminate",
        "pause_run": "pause",
        "resume_run": "resume",
        "wake_run": "wake",
        "retry_run": "retry",
        "fork_run": "fork",
        "deliver_message": "deliver",
        "drop_message": "drop",
        "retry_dead_letters": "retry_dead_letters",
        "discard_dead_letters": "discard_dead_letters",
        "pause_queue": "pause_queue",
        "resume_queue": "resume_queue",
        "pause_schedule": "pause_schedule",
        "resume_schedule": "resume_schedule",
        "trigger_schedule": "trigger_schedule",
    }
)
#: Tools that end runs or discard data.
_DESTRUCTIVE = frozenset({"cancel_run", "terminate_run", "fail_activity", "drop_message", "discard_dead_letters"})
#: Descriptions that say more than the route's, because an agent has no page around the tool.
_HINTS = MappingProxyType(
    {
        "why_run": "Start here for a run that is stuck, waits or failed.",
        "report_run": "Includes all attempts at its steps, with their errors.",
        "list_runs": "For the next page, pass `cursor`. `payloads` adds arguments, results and errors.",
        "start_run": "`input` holds the arguments by name. With an `id`, a repetition gives the existing run.",
        "send_message": "Answers a run that waits for a message, such as an approval.",
        "complete_activity": "Answers an activity that waits for its completion from outside; `token` names it.",
        "terminate_run": "Its code does not clean up: prefer `cancel_run`.",
        "retry_run": "Lets a failed or blocked run go again; recorded steps are not repeated.",
        "check_deploy": "Needs an engine with code as the target of the server, such as `shop:engine`.",
    }
)

Schema = dict[str, Any]


class ApiCall(Struct, frozen=True, kw_only=True):
    """One request of the HTTP API, made of a tool's arguments."""

    method: str
    template: str
    parts: dict[str, str]
    query: dict[str, Any]
    body: dict[str, Any] | None
    request_id: str | None
    #: Seconds for which the caller asks to wait.
    wait: float


class OperatorTool(Struct, frozen=True):
    """A tool for operators, and the route that answers it."""

    name: str
    route: Route

    @property
    def role(self) -> Role:
        """Least role of the caller."""
        assert self.route.role is not None
        return self.route.role

    @property
    def description(self) -> str:
        """The route's summary, and a hint where there is one."""
        return " ".join(filter(None, (self.route.summary, _HINTS.get(self.name))))

    @property
    def reads_only(self) -> bool:
        """True if it changes nothing."""
        return self.role is Role.VIEWER or self.route.method == "GET"

    @property
    def is_destructive(self) -> bool:
        """True if it ends runs or discards data."""
        return self.name in _DESTRUCTIVE

    def schema(self) -> Schema:
        """JSON schema of its arguments: path, query and body in one object."""
        return _schema_of(self.route, self.reads_only)

    def call(self, arguments: Mapping[str, Any]) -> ApiCall:
        """Make the request of a call. Raises `UsageError`."""
        known = self.schema()["properties"]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise UsageError(f"{self.name} has no argument {brief(unknown[0])}; it has {', '.join(known) or 'none'}")
        query, body, _ = self.route.types()
        rest = {name: value for name, value in arguments.items() if value is not None or name not in _fields(query)}
        parts: dict[str, str] = {}
        for name in self.route.parameters:
            value = rest.pop(name, None)
            if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
                raise UsageError(f"{self.name} needs {name}: a text that is not empty")
            parts[name] = str(value)
        request_id = rest.pop(REQUEST_ID, None)
        if request_id is not None and not isinstance(request_id, str):
            raise UsageError(f"{REQUEST_ID} is a text, not {brief(request_id)}")
        if request_id is not None and "id" in _fields(body):
            # An id that the server makes has the time in it, so a repetition would make another run.
            rest.setdefault("id", f"mcp-{hashlib.sha256(f'{self.name} {request_id}'.encode()).hexdigest()[:32]}")
        wait = rest.get("wait", 30 if "wait" in _fields(body) else 0)
        return ApiCall(
            method=self.route.method,
            template=self.route.path,
            parts=parts,
            query={name: rest[name] for name in rest if name in _fields(query)},
            body=None if body is None else {name: rest[name] for name in rest if name in _fields(body)},
            request_id=request_id,
            wait=float(wait) if isinstance(wait, int | float) else 0.0,
        )


@cache
def operator_tools() -> Mapping[str, OperatorTool]:
    """All tools, by name."""
    routes = {route.name: route for route in ROUTES}
    return MappingProxyType({name: OperatorTool(name, routes[route]) for name, route in _ROUTES.items()})


def find_tool(name: str) -> OperatorTool:
    """Find a tool. Raises `UsageError`."""
    tool = operator_tools().get(name)
    if tool is None:
        raise UsageError(f"there is no tool {brief(name)}; there is {closest(name, operator_tools())}")
    return tool


@cache
def _fields(struct: Any) -> frozenset[str]:
    return frozenset() if struct is None else frozenset(one.encode_name for one in msgspec.structs.fields(struct))


@cache
def _schema_of(route: Route, reads_only: bool) -> Schema:
    query, body, _ = route.types()
    schema: Schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    for name, kind in route.path_types().items():
        schema["properties"][name] = {"type": "integer", "minimum": 0} if kind is int else {"type": "string"}
        schema["required"].append(name)
    for struct in filter(None, (query, body)):
        [[reference], definitions] = schema_components([struct], ref_template="#/$defs/{name}")
        definitions = dict(definitions)
        own = definitions.pop(reference["$ref"].rpartition("/")[2])
        schema["properties"] |= own["properties"]
        schema["required"] += own.get("required", [])
        if definitions:
            schema.setdefault("$defs", {}).update(definitions)
    if not reads_only:
        schema["properties"][REQUEST_ID] = {
            "type": "string",
            "description": "Unique text. Repeat a call whose answer was lost with the same text: it acts once.",
        }
    plain: Schema = msgspec.json.decode(msgspec.json.encode(schema))
    return plain
