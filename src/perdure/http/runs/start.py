"""Handlers that start runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, UnsetType

from perdure.core.model.attributes import AttributeValue
from perdure.core.policy.singleton import Debounce, Singleton, SingletonPolicy
from perdure.errors import BadArguments
from perdure.http.api import ApiRequest, Arguments, DurationText, Reply, WhenText, call_of, moment
from perdure.http.runs.inspect import RunView
from perdure.http.views import AttributeJson, TimeAttribute
from perdure.workflow.definition import Call
from perdure.workflow.run_settings import RunSettings


class SingletonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """At most one unfinished run of a key."""

    key: str = ""
    policy: SingletonPolicy = SingletonPolicy.REJECT
    shared: bool = False


class DebounceBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run for several starts, some time after the last."""

    delay: DurationText
    key: str = ""
    at_most: DurationText | None = None
    shared: bool = False


class SettingsBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one call in place of those that its code declares, as the Python client sends them."""

    #: Settings that travel with the run.
    options: dict[str, Any] = {}
    #: Longest wait for a worker, and longest duration of the run, in seconds.
    schedule_to_start: Annotated[float, Meta(gt=0, le=3.2e9)] | None = None
    schedule_to_close: Annotated[float, Meta(gt=0, le=3.2e9)] | None = None


def with_settings(call: Call[Any], settings: SettingsBody | UnsetType | None) -> Call[Any]:
    """Give a call settings of its own. Raises `DecodeError`."""
    if not isinstance(settings, SettingsBody):
        return call
    given = RunSettings.from_json(msgspec.json.encode(settings.options).decode())
    given = msgspec.structs.replace(
        given, schedule_to_start=settings.schedule_to_start, schedule_to_close=settings.schedule_to_close
    )
    return dataclasses.replace(call, settings=given.over(call.settings))


class StartBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run to start. The same `id`, or `idempotency_key`, with the same input gives the existing run."""

    type: str
    #: Arguments: an object by name, or an array by position.
    input: Arguments = {}
    id: str | None = None
    at: WhenText | None = None
    priority: int | None = None
    queue: str | None = None
    deadline: WhenText | None = None
    #: The header `Idempotency-Key` says the same.
    idempotency_key: str | None = None
    singleton: SingletonBody | None = None
    debounce: DebounceBody | None = None
    #: Values by which the run is found.
    attributes: dict[str, AttributeJson] | None = None
    #: Texts that travel with the run to its steps, children and activities.
    headers: dict[str, str] | None = None
    settings: SettingsBody | None = None


async def start(api: ApiRequest, body: StartBody) -> Reply[RunView]:
    """Start a run."""
    key, header = body.idempotency_key, api.request.headers.get("idempotency-key")
    if key is not None and header is not None and key != header:
        raise BadArguments("the header Idempotency-Key and the field idempotency_key differ; give one of them")
    single, debounce = body.singleton, body.debounce
    handle = await api.engine.start(
        with_settings(call_of(api.engine, body.type, body.input), body.settings),
        id=body.id,
        at=moment(body.at),
        priority=body.priority,
        queue=body.queue,
        deadline=moment(body.deadline),
        idempotency_key=header if key is None else key,
        singleton=None if single is None else Singleton(single.key, single.policy.value, shared=single.shared),
        debounce=None
        if debounce is None
        else Debounce(debounce.delay, key=debounce.key, at_most=debounce.at_most, shared=debounce.shared),
        attributes=attributes_of(body.attributes),
        headers=body.headers,
    )
    return Reply(RunView.of(await handle.info(), api.shown), 201)


class BatchRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of many runs to start."""

    type: str
    input: Arguments = {}
    settings: SettingsBody | None = None


class StartManyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Runs to start in one transaction, all or none: `inputs` of one `type`, or `runs` of several."""

    type: str | None = None
    inputs: Annotated[list[Arguments], Meta(min_length=1, max_length=1000)] | None = None
    runs: Annotated[list[BatchRun], Meta(min_length=1, max_length=10_000)] | None = None
    ids: list[str] | None = None
    at: WhenText | None = None
    priority: int | None = None
    queue: str | None = None
    deadline: WhenText | None = None
    attributes: dict[str, AttributeJson] | None = None
    headers: dict[str, str] | None = None


class StartedView(Struct, frozen=True):
    """Ids of the runs that were started, or existed, in the order of the inputs."""

    ids: tuple[str, ...]


async def start_many(api: ApiRequest, body: StartManyBody) -> Reply[StartedView]:
    """Start many runs in one transaction, all or none."""
    runs = body.runs
    if (runs is None) == (body.inputs is None) or (body.type is None) == (body.inputs is not None):
        raise BadArguments("name the runs once: `inputs` and their `type`, or `runs`")
    if runs is None:
        runs = [BatchRun(type=body.type or "", input=one) for one in body.inputs or ()]
    handles = await api.engine.start_many(
        [with_settings(call_of(api.engine, one.type, one.input), one.settings) for one in runs],
        ids=body.ids,
        at=moment(body.at),
        priority=body.priority,
        queue=body.queue,
        deadline=moment(body.deadline),
        attributes=attributes_of(body.attributes),
        headers=body.headers,
    )
    return Reply(StartedView(tuple(handle.id for handle in handles)), 201)


def attributes_of(given: Mapping[str, AttributeJson] | None) -> dict[str, AttributeValue] | None:
    """Attributes of a start."""
    if given is None:
        return None
    return {name: value.time if isinstance(value, TimeAttribute) else value for name, value in given.items()}
