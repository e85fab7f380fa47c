"""The form that starts a run: its input is a template made of the parameters of the workflow."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import msgspec
from msgspec import inspect
from starlette.responses import Response

from perdure.client.session import session_of
from perdure.core.ids import check_name
from perdure.dashboard.actions import Field, Form, read_json
from perdure.dashboard.page_request import PageRequest
from perdure.dashboard.texts import pretty
from perdure.errors import PerdureError, UsageError
from perdure.http.api import call_of

#: Depth to which the fields of nested types are shown.
_DEPTH = 4
_EMPTY: dict[type[inspect.Type], object] = {
    inspect.StrType: "",
    inspect.IntType: 0,
    inspect.FloatType: 0.0,
    inspect.BoolType: False,
    inspect.ListType: [],
    inspect.SetType: [],
    inspect.FrozenSetType: [],
    inspect.VarTupleType: [],
    inspect.DictType: {},
}


async def show_start(request: PageRequest, type: str, problem: str = "", form: Form | None = None) -> Response:
    """The page with the form that starts a run of a type."""
    check_name(type, "workflow type")
    given = (
        {"input": pretty(await template(request, type)), "id": "", "key": _new_key(request)} if form is None else form
    )
    return request.render(
        "confirm.html",
        status=422 if problem else 200,
        page="workflows",
        title=f"Start {type}",
        sentence="A run starts with this input. A worker that serves its type claims it. An id that exists leads to "
        "its run if the input is the same, and is refused otherwise.",
        facts=[],
        fields=[
            Field(name="input", label="Input: the arguments, as JSON", kind="json", value=given.get("input", "")),
            Field(name="id", label="Id of the run (optional)", value=given.get("id", "")),
            # The same form sent twice is one run.
            Field(name="key", kind="hidden", value=given.get("key", "")),
        ],
        button="Start the run",
        danger=False,
        problem=problem,
        action=request.url("workflows", type, "start"),
        back=request.url("workflows"),
    )


async def start_run(request: PageRequest, type: str, form: Form) -> Response:
    """Start a run, and lead to its page."""
    run_id = form.get("id", "").strip() or None
    try:
        arguments = read_json(form, "input")
        if not isinstance(arguments, dict | list | None):
            raise UsageError("the input is a JSON object of arguments by name, or an array by position")
        key = None if run_id else form.get("key") or None
        call = call_of(request.engine, type, arguments or {})
        handle = await request.engine.start(call, id=run_id, idempotency_key=key)
    except PerdureError as error:
        return await show_start(request, type, problem=str(error), form=form)
    done = urlencode({"done": f"The run {handle.id} was started."}, errors="replace")
    return request.redirect(f"{request.url('runs', handle.id)}?{done}")


def _new_key(request: PageRequest) -> str:
    return f"page-{session_of(request.engine).system.entropy(8).hex()}"


async def template(request: PageRequest, type: str) -> dict[str, Any]:
    """Arguments to fill in: of the code if the server has it, else the names of the latest run's arguments."""
    definition = request.engine.workflows.get(type)
    if definition is None:
        page = await request.engine.runs.list(type=type, limit=1)
        latest = [await (await request.engine.get(run.id)).info() for run in page.runs]
        names = _names(latest[0].input) if latest and request.shown.shows_payloads else []
        return dict.fromkeys(names)
    signature = definition.signature
    defaults = signature.defaults(session_of(request.engine).codec)
    return {
        name: msgspec.json.decode(defaults[name]) if name in defaults else example(declared)
        for name, declared in signature.types.items()
    }


def _names(payload: str | None) -> list[str]:
    try:
        found = msgspec.json.decode(payload or "{}")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    return [*found] if isinstance(found, dict) else []


def example(declared: Any) -> Any:
    """An empty JSON value of a type: `""`, `0`, `[]`, or an object with the fields; None where that is not known."""
    try:
        return _example(inspect.type_info(declared), _DEPTH)
    except Exception:  # a type of the user's that msgspec does not know; the form is a help, not a check
        return None


def _example(info: inspect.Type, depth: int) -> Any:
    if isinstance(info, inspect.Metadata):
        return _example(info.type, depth)
    if isinstance(info, inspect.UnionType):
        return None if info.includes_none else _example(info.types[0], depth)
    if isinstance(info, inspect.EnumType):
        return next((member.value for member in info.cls), None)
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.CustomType):
        return _example_of_model(info.cls, depth)
    if isinstance(info, inspect.StructType | inspect.DataclassType | inspect.TypedDictType) and depth:
        return {one.encode_name: _field(one, depth - 1) for one in info.fields}
    return _EMPTY.get(type(info))


def _field(field: inspect.Field, depth: int) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default)
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.to_builtins(field.default_factory())
    return _example(field.type, depth)


def _example_of_model(cls: Any, depth: int) -> Any:
    """Fields of a class of pydantic; None for any other class."""
    fields = getattr(cls, "model_fields", None)
    if not depth or not isinstance(fields, dict):
        return None
    return {name: _example(inspect.type_info(one.annotation), depth - 1) for name, one in fields.items()}
