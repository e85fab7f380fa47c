"""Crashes of agents: an external call whose result was recorded is never made again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from perdure.testing import CrashReport, Environment, crash_everywhere
from perdure.workflow.definition import Call
from perdure.workflow.discover import Definable
from perdure.workflow.step import step_info

#: Locations of the steps that have called something outside, in order. It stands for the services that are called.
CALLS: list[str] = []

_REPEATED = re.compile(
    r"after a crash (before|after) the record of (.+) was written, CALLS has '(\S+)' \w+(?: times)? instead of \w+$"
)


def note_call() -> None:
    """Note a call of a service. Fails outside of a step."""
    CALLS.append(step_info().location)


async def history_of(call: Call[Any], workflows: Sequence[Definable] = (), messages: Sequence[Any] = ()) -> list[str]:
    """Locations of the operations of a run without a crash, in the order of their records."""
    definition = call.definition
    assert definition is not None
    async with Environment([definition, *workflows], auto_advance=True) as env:
        run = await env.start(call, id="whole")
        for name, value in messages:
            await run.send(name, value)
        await run.result()
        found = [record.location for record in await run.history()]
    CALLS.clear()
    return found


async def assert_nothing_recorded_is_repeated(
    call: Call[Any], *, workflows: Sequence[Definable] = (), messages: Sequence[Any] = ()
) -> CrashReport:
    """Crash a run at each durable point; a service may be called again only if its result was not recorded."""
    locations = await history_of(call, workflows, messages)
    report = await crash_everywhere(call, workflows=workflows, messages=messages, world=CALLS)
    assert report.isolated
    assert report.crashes >= len(locations), (report.crashes, locations)
    for finding in report.findings:
        found = _REPEATED.search(finding.text)
        assert found is not None, finding
        when, place, repeated = found.groups()
        crashed = place.split(", ")
        if when == "after":
            assert repeated not in crashed, finding
        if repeated in locations:
            earlier = [locations.index(each) for each in crashed if each in locations]
            assert locations.index(repeated) >= min(earlier, default=0), finding
    return report
