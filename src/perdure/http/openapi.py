"""The OpenAPI 3.1 document of the API, made from the route table and the types of its handlers."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.json import schema_components

from perdure.http.access import COOKIE
from perdure.http.api import EventStream
from perdure.http.problems import KINDS, MEDIA_TYPE, OWN_KINDS, Problem
from perdure.http.routes import PREFIX, ROUTES, Route

Document = dict[str, Any]

#: Statuses of errors that any request may have, and those of requests with a role or a body.
_ALWAYS = (421, 429, 503)
_WITH_ROLE = (401, 403)
_WITH_BODY = (400, 413, 415, 422)
_DESCRIPTIONS = {
    200: "Done.",
    201: "Created.",
    202: "Accepted, or not there yet.",
}
_REF = "#/components/schemas/{name}"


def make_document(prefix: str = "", routes: Sequence[Route] = ROUTES) -> Document:
    """Make the document. `prefix` is the path under which the server is reached."""
    types: list[Any] = [Problem]
    queries: list[Any] = []
    for route in routes:
        query, body, answer = route.types()
        types += [one for one in (body, answer) if one is not None and one is not EventStream]
        queries += [] if query is None else [query]
    schemas, components = schema_components(types, ref_template=_REF)
    known = dict(zip(map(_key, types), schemas, strict=True))
    # Queries are spelled out as parameters.
    query_schemas, more = schema_components(queries, ref_template=_REF)
    known |= dict(zip(map(_key, queries), query_schemas, strict=True))
    asked = {_name_of(schema) for schema in query_schemas}
    components |= {name: schema for name, schema in more.items() if name not in asked}
    everything = {**more, **components}
    paths: dict[str, Document] = {}
    for route in routes:
        paths.setdefault(PREFIX + route.path, {})[route.method.lower()] = _operation(route, known, everything)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Perdure",
            "version": importlib.metadata.version("perdure"),
            "description": "Durable execution: start, inspect and steer runs. Errors are problem documents (RFC 9457).",
        },
        "servers": [{"url": prefix or "/"}],
        "security": [{"bearer": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": _plain(components),
            "responses": {"Problem": _problem_response(known[_key(Problem)])},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            },
        },
    }


def _key(type: Any) -> str:
    return repr(type)


def _operation(route: Route, known: dict[str, Any], components: dict[str, Any]) -> Document:
    query, body, answer = route.types()
    operation: Document = {
        "operationId": route.name,
        "tags": [route.group],
        "summary": route.summary,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": _path_schema(type)}
            for name, type in route.path_types().items()
        ],
        "responses": {},
    }
    if route.role is None:
        operation["security"] = []
    else:
        operation["x-perdure-role"] = route.role.value
    if query is not None:
        operation["parameters"] += _query_parameters(components[_name_of(known[_key(query)])])
    if body is not None:
        operation["requestBody"] = {
            "required": bool(components[_name_of(known[_key(body)])]["required"]),
            "content": {"application/json": {"schema": known[_key(body)]}},
        }
    for status in route.statuses:
        operation["responses"][str(status)] = _response(status, answer, known)
    for status in sorted(errors_of(route)):
        operation["responses"][str(status)] = {"$ref": "#/components/responses/Problem"}
    plain: Document = _plain(operation)
    return plain


def errors_of(route: Route) -> set[int]:
    """Statuses of errors that a request of this route may have."""
    query, body, _ = route.types()
    found = {*_ALWAYS, *route.errors}
    if route.role is not None or body is not None:
        found |= {*_WITH_ROLE}
    if body is not None:
        found |= {*_WITH_BODY}
    if query is not None or route.parameters:
        found |= {422}
    return found


def _response(status: int, answer: Any, known: dict[str, Any]) -> Document:
    if answer is EventStream:
        return {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    schema: Any = {"type": "object"} if answer is msgspec.Raw else known[_key(answer)]
    return {"description": _DESCRIPTIONS[status], "content": {"application/json": {"schema": schema}}}


def _problem_response(schema: Any) -> Document:
    listed = "; ".join(sorted({f"{kind.status} {kind.name}" for kind in (*KINDS.values(), *OWN_KINDS)}))
    return {
        "description": f"An error. `type` ends in one of: {listed}.",
        "content": {MEDIA_TYPE: {"schema": schema}},
    }


def _name_of(schema: Any) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _query_parameters(schema: Any) -> list[Document]:
    required = set(schema.get("required", ()))
    parameters: list[Document] = []
    for name, one in schema["properties"].items():
        # A parameter that is left out is null; none is written as "null".
        kinds = [kind for kind in one.get("anyOf", [one]) if kind.get("type") != "null"]
        found = {**kinds[0], **{key: value for key, value in one.items() if key not in ("anyOf", "default")}}
        parameters.append({"name": name, "in": "query", "required": name in required, "schema": found})
    return parameters


def _path_schema(type: Any) -> Document:
    return {"type": "integer", "minimum": 0} if type is int else {"type": "string", "minLength": 1}


def _plain(value: Any) -> Any:
    """Values of JSON: tuples as lists, and Struct defaults as objects."""
    return msgspec.json.decode(msgspec.json.encode(value))
