"""Bodies of requests, made from the arguments of the Python API."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import msgspec

from perdure.client.runs.reopen import ForkOptions, RetryOptions
from perdure.client.schedules import ScheduleOptions, skipped_dates
from perdure.client.session import Session
from perdure.core.model.attributes import AttributeValue, make_attributes
from perdure.core.model.headers import check_headers
from perdure.core.model.run import NewRun
from perdure.core.option_checks import check_datetime, check_known, check_retry
from perdure.core.printed_text import brief
from perdure.core.time.cron import At, Cron, Every, Timing
from perdure.core.time.duration import Duration, Moment, instant, microseconds
from perdure.core.time.schedule import Misfire
from perdure.errors import InvalidSchedule
from perdure.workflow.definition import Call
from perdure.workflow.run_settings import RunSettings

Body = dict[str, Any]


def present(values: Mapping[str, Any]) -> Body:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def duration_text(value: Duration) -> str:
    """A duration as a request has it. Raises `InvalidDuration`."""
    return f"{microseconds(value)}us"


def moment_text(value: Moment | None) -> str | None:
    """A point in time as a request has it; a duration counts from the server's time. Raises `InvalidDuration`."""
    if value is None:
        return None
    instant(value, 0)
    return value.isoformat() if isinstance(value, datetime.datetime) else duration_text(value)


def attributes_body(given: Mapping[str, AttributeValue] | None) -> Body | None:
    """Attributes as a request has them. Raises `UsageError`."""
    if given is None:
        return None
    found = {one.name: one.value for one in make_attributes(given)}
    return {
        name: {"time": value.isoformat()} if isinstance(value, datetime.datetime) else value
        for name, value in found.items()
    }


def call_body(session: Session, call: Call[Any], new: NewRun) -> Body:
    """A call with the settings that its code declares and those of its own, for a server without that code."""
    known = session.resolve_call(call)
    settings = known.settings if known.definition is None else known.settings.over(known.definition.settings)
    wanted = present(
        {
            "options": None if new.options == "{}" else msgspec.Raw(new.options.encode()),
            "schedule_to_start": settings.schedule_to_start,
            "schedule_to_close": settings.schedule_to_close,
        }
    )
    return {"type": new.type, "input": msgspec.Raw(new.input.encode())} | ({"settings": wanted} if wanted else {})


def _input_body(session: Session, given: Any) -> Body:
    """Other arguments of a run: a call of its type, or arguments by name."""
    if isinstance(given, Call):
        call = session.resolve_call(given)
        return {"type": call.type, "input": msgspec.Raw(call.encode(session.codec).encode())}
    return {} if given is None else {"input": msgspec.Raw(session.codec.encode(given, "input").encode())}


def retry_body(session: Session, changes: RetryOptions) -> Body:
    """Changes to a run that goes again. Raises `UsageError`."""
    check_known(changes, RetryOptions, "retry")
    retry = check_retry(changes.get("retry"))
    policy = None if retry is None else msgspec.json.decode(RunSettings(retry=retry).to_json())["retry"]
    limits = ("schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat")
    durations: Any = {name: changes.get(name) for name in limits}
    return _input_body(session, changes.get("input")) | present(
        {
            "policy": policy,
            **{name: None if value is None else duration_text(value) for name, value in durations.items()},
            "deadline": moment_text(changes.get("deadline")),
            "queue": changes.get("queue"),
            "priority": changes.get("priority"),
            "reason": changes.get("reason"),
        }
    )


def fork_body(session: Session, options: ForkOptions) -> Body:
    """First step of a fork, and its differences. Raises `UsageError`."""
    check_known(options, ForkOptions, "fork")
    results = options.get("results")
    return _input_body(session, options.get("input")) | present(
        {
            "from_step": options.get("from_step"),
            "results": None if results is None else msgspec.Raw(session.codec.encode(results, "results").encode()),
            "id": options.get("id"),
            "deadline": moment_text(options.get("deadline")),
            "reason": options.get("reason"),
        }
    )


def timing_body(timing: Timing) -> Body:
    """Timing of a schedule. Raises `InvalidSchedule`."""
    match timing:
        case Cron(expression, zone):
            return {"cron": expression, "zone": zone}
        case Every(interval, start):
            return {"every": duration_text(interval)} | present({"start": start})
        case At(moment):
            return {"at": moment}
        case _:
            raise InvalidSchedule(
                f"{brief(timing)} does not say when; give Cron('0 3 * * *'), Every('1h') or At(moment)"
            )


def schedule_body(session: Session, call: Call[Any] | None, timing: Timing | None, options: ScheduleOptions) -> Body:
    """Call, timing and policies of a schedule; what is left out stays as it is. Raises `InvalidSchedule`."""
    given: Any = {**options}
    body: Body = {name: given.pop(name) for name in ("overlap", "queue", "priority") if name in given}
    for name in ("starts", "ends"):
        if name in given:
            moment = given.pop(name)
            # A wall clock is that of the schedule, whose zone the server knows.
            body[name] = None if moment is None else check_datetime(name, moment).isoformat()
    if "skip" in given:
        body["skip"] = [day.isoformat() for day in skipped_dates(given.pop("skip"))]
    if "jitter" in given:
        body["jitter"] = duration_text(given.pop("jitter"))
    if "deadline" in given:
        deadline = given.pop("deadline")
        body["deadline"] = None if deadline is None else duration_text(deadline)
    if "headers" in given:
        body["headers"] = None if (headers := given.pop("headers")) is None else dict(check_headers(headers))
    if "attributes" in given:
        body["attributes"] = attributes_body(given.pop("attributes"))
    if misfire := _misfire_body(given):
        body["misfire"] = misfire
    check_known(given, ScheduleOptions, "a schedule")
    if call is not None:
        place: Any = {name: body.get(name) for name in ("queue", "priority")}
        new = session.new_run(call, place, "schedules.create")
        body |= call_body(session, call, new) | {"queue": new.queue, "priority": new.priority}
    if timing is not None:
        body["timing"] = timing_body(timing)
    return body


def _misfire_body(given: dict[str, Any]) -> Body:
    """Policy for missed fire times, taken out of the options of a schedule."""
    body: Body = {}
    if "misfire" in given:
        policy = given.pop("misfire")
        if isinstance(policy, Misfire):
            limit = "all" if policy.limit is None else policy.limit
            return {
                "policy": limit,
                "grace": duration_text(policy.grace),
                "within": None if policy.within is None else duration_text(policy.within),
            }
        body["policy"] = policy
    if "grace" in given:
        body["grace"] = duration_text(given.pop("grace"))
    if "within" in given:
        within = given.pop("within")
        body["within"] = None if within is None else duration_text(within)
    return body
