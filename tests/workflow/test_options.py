"""Options are checked where they are given: the error names the option, its value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import Context, Cron, Engine, Fair, Retry, UsageError, Watermark, activity, step, workflow
from perdure.client.runs.start import RunMaker, StartOptions
from perdure.errors import BadArguments, DecodeError, InvalidDuration
from perdure.host import Host
from perdure.machine import StateMachine
from perdure.worker.options import WorkerSettings
from perdure.workflow.run_settings import RunSettings
from tests.replay.driver import Driver
from tests.stage import Stage

anything: Any = step
an_activity: Any = activity
a_workflow: Any = workflow
an_engine: Any = Engine
of: Any = WorkerSettings.of

tries: list[int] = []


@workflow("options.plain.v1")
async def plain(ctx: Context) -> int:
    return 1


@activity("options.leaf.v1")
def leaf() -> int:
    return 1


def stumble() -> int:
    tries.append(1)
    raise ValueError("no")


def start(**options: Any) -> object:
    return RunMaker(cast("StartOptions", options), Host(), 0).make(plain(), "{}")


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: anything(retry=0), "retry=0: give a Retry, such as .*, or a number of attempts from 1"),
    (lambda: anything(retry="3"), "retry='3': "),
    (lambda: anything(retry=True), "retry=True: "),
    (lambda: anything(timeout=0), "timeout=0: a timeout of 0"),
    (lambda: anything(timeout="0s"), "timeout='0s': a timeout of 0"),
    (lambda: anything(timeout=-1), "timeout=-1: -1 is negative"),
    (lambda: anything(timeout=True), "timeout=True: "),
    (lambda: anything(ephemeral="yes"), "ephemeral='yes': give True or False"),
    (lambda: anything(process=1), "process=1: give True or False"),
    (lambda: anything(undo=3), "undo=3"),
    (lambda: anything(limit=3), "limit=3: give a Limit"),
    (lambda: anything(breaker="x"), "breaker='x': give a Breaker"),
    (lambda: an_activity("a.v1", retry="3"), "retry='3': "),
    (lambda: an_activity("a.v1", start_to_close=0), "start_to_close=0: "),
    (lambda: an_activity("a.v1", heartbeat="0s"), "heartbeat='0s': "),
    (lambda: an_activity("a.v1", priority=True), "priority=True: "),
    (lambda: an_activity("a.v1", process="no"), "process='no': "),
    (lambda: an_activity("a.v1", fair="tenant"), "fair='tenant': give a Fair"),
    (lambda: an_activity("a.v1", breaker=1), "breaker=1: give a Breaker"),
    (lambda: a_workflow("a.v1", retry=[3]), r"retry=\[3\]: "),
    (lambda: a_workflow("a.v1", fair=str), "fair=.*: give a Fair"),
    (lambda: a_workflow("a.v1", singleton="queue"), "singleton='queue': give a Singleton"),
    (lambda: leaf().options(retry="x"), "retry='x': "),  # type: ignore[arg-type] # the mistake that is tested
    (lambda: leaf().options(start_to_close=0), "start_to_close=0: "),
    (lambda: of(slots=0), "slots=0: give a whole number from 1"),
    (lambda: of(slots="10"), "slots='10': give a whole number from 1"),
    (lambda: of(slots=1.5), "slots=1.5: "),
    (lambda: of(resident=-1), "resident=-1: give a whole number from 0"),
    (lambda: of(poison_after=0), "poison_after=0: "),
    (lambda: of(pack_history=1), "pack_history=1: give 2 to 1000"),
    (lambda: of(pack_history=1001), "pack_history=1001: give 2 to 1000"),
    (lambda: of(step_processes=0), "step_processes=0: "),
    (lambda: of(child_depth=0), "child_depth=0: "),
    (lambda: of(open_children=None), "open_children=None: "),
    (lambda: of(stall_limit=0), "stall_limit=0: "),
    (lambda: of(grace="soon"), "grace='soon': "),
    (lambda: of(retry=0), "retry=0: "),
    (lambda: an_engine("sqlite://", payload_limit=0), "payload_limit=0: "),
    (lambda: an_engine("sqlite://", payload_warn="1M"), "payload_warn='1M': "),
    (lambda: an_engine("sqlite://", migrate="no"), "migrate='no': "),
    (lambda: an_engine("sqlite://", errors=["ValueError"]), "errors has 'ValueError': give exception classes"),
    (lambda: an_engine("sqlite://", on_error="log"), "on_error='log' is not a function"),
    (lambda: an_engine("sqlite://", retention="0s"), "retention: "),
    (lambda: Watermark(high="9", queue="q"), "high='9': give a whole number from 1"),  # type: ignore[arg-type] # the mistake that is tested
    (lambda: Retry(on_timeout="no"), r"Retry\(on_timeout='no'\): give True or False"),  # type: ignore[arg-type] # the mistake that is tested
    (lambda: start(priority=1.5), "priority=1.5: give a whole number of 32 bits"),
    (lambda: start(priority=True), "priority=True: "),
    (lambda: start(singleton="x"), "singleton='x': give a Singleton"),
    (lambda: start(debounce="5s"), "debounce='5s': give a Debounce"),
]


@pytest.mark.parametrize(("give", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_an_option_that_makes_no_sense_is_refused_where_it_is_given(give: Callable[[], object], message: str) -> None:
    with pytest.raises((UsageError, InvalidDuration, BadArguments), match=message):
        give()


def test_a_number_for_retry_is_the_number_of_attempts() -> None:
    class Machine(StateMachine[int, int], type="options.machine.v1", retry=3):
        pass

    @workflow("options.retried.v1", retry=3)
    async def retried(ctx: Context) -> None: ...

    @activity("options.tried.v1", retry=3)
    def tried() -> None: ...

    assert Machine.definition().retry == retried.retry == tried.retry == Retry(attempts=3)
    assert leaf().options(retry=3).settings.retry == WorkerSettings.of(retry=3).retry == Retry(attempts=3)


OLD_POLICY = (
    '{"retry":{"attempts":3,"initial":60.0,"factor":2.0,"max":86400.0,"jitter":0.1,"on_timeout":true,"power":2.0,'
    '"extra":[0.0,0.0],"classify":true}}'
)


def test_a_policy_that_travels_with_a_run_is_the_same_on_arrival() -> None:
    settings = leaf().options(retry=Retry.quadratic_minutes()).settings
    assert RunSettings.from_json(settings.to_json()).retry == Retry(
        attempts=3, initial=60.0, max=86400.0, power=2.0, extra=(0.0, 0.0), jitter_only_adds=True
    )


def test_the_names_of_errors_travel_with_a_run() -> None:
    settings = leaf().options(retry=Retry(give_up_on=("KeyError", "shop.Declined"))).settings
    assert '"give_up_on":["KeyError","shop.Declined"]' in settings.to_json()
    arrived = RunSettings.from_json(settings.to_json()).retry
    assert arrived is not None
    assert arrived.give_up_on == ("KeyError", "shop.Declined")
    with pytest.raises(DecodeError, match="give_up_on"):
        RunSettings.from_json('{"retry":{"give_up_on":["Key Error"]}}')


def test_a_policy_without_newer_options_is_stored_as_older_workers_read_it() -> None:
    old = Retry(attempts=3, initial="1m", max="1d", power=2.0)
    assert leaf().options(retry=old).settings.to_json() == OLD_POLICY


def test_the_limits_of_children_are_those_that_the_guide_names() -> None:
    guide = Path(__file__).parents[2].joinpath("docs/guides/messages-and-children.md").read_text(encoding="utf-8")
    usual = WorkerSettings()
    assert f"| depth of a chain of children | {usual.child_depth} | `child_depth` |" in guide
    assert f"| unfinished children of one run | {usual.open_children:,} | `open_children` |" in guide


def test_the_defaults_of_a_worker_are_those_that_the_guide_names() -> None:
    guide = Path(__file__).parents[2].joinpath("docs/guides/operations.md").read_text(encoding="utf-8")
    table = guide.partition("| option | default |")[2].partition("\n\n")[0]
    seconds, usual, found = {"": 1.0, " ms": 0.001, " s": 1.0, " min": 60.0}, WorkerSettings(), set[str]()
    for names, defaults in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (\d[^|]*) \|", table, flags=re.MULTILINE):
        those = defaults.split(", ") if "," in names else [defaults]
        for name, default in zip(re.findall(r"\w+", names), those, strict=True):
            number = re.fullmatch(r"([\d,]+)( \w+)?", default)
            if number is not None:
                assert getattr(usual, name) == float(number[1].replace(",", "")) * seconds[number[2] or ""], name
                found.add(name)
    assert found >= {"slots", "lease", "resident", "warn_blocked", "wait_for_database", "pack_history", "open_children"}


async def test_a_step_with_a_number_for_retry_is_tried_so_often(stage: Stage) -> None:
    tries.clear()

    @workflow("options.tries.v1")
    async def trying(ctx: Context) -> None:
        await ctx.options(retry=2).step(stumble)

    engine = stage.engine(trying)
    async with engine.worker(retry=1):
        run = await engine.start(trying())
        with pytest.raises(Exception, match="no"):
            await run.result("30s")
    assert len(tries) == 2


def test_nothing_to_join_gives_nothing() -> None:
    async def flow(ctx: Context) -> Any:
        return [await ctx.join({}), await ctx.map(str, [])]

    assert Driver(flow).settled().result == [{}, []]


def test_a_race_of_nothing_is_refused() -> None:
    async def flow(ctx: Context) -> Any:
        await ctx.race({})

    assert "there are no branches; give at least one" in str(Driver(flow).error)


async def test_a_schedule_is_not_given_a_deadline_of_no_time(stage: Stage) -> None:
    engine = stage.engine(plain)
    with pytest.raises(UsageError, match="deadline=0"):
        await engine.schedules.create("never", plain(), Cron("0 * * * *"), deadline=0)


def test_fair_is_checked_for_a_call() -> None:
    with pytest.raises(UsageError, match="fair='x'"):
        leaf().options(fair="x")  # type: ignore[arg-type] # the mistake that is tested
    assert leaf().options(fair=Fair(lambda: "a")).settings.fair is not None
