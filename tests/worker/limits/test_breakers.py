"""Circuit breakers, shared through the database, as a user has them, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from perdure import (
    Breaker,
    Engine,
    Fatal,
    Handle,
    Pending,
    Retry,
    RunFailed,
    Status,
    UsageError,
    activity,
    activity_info,
)
from perdure.admin import BreakerInfo, Circuit, Reason
from perdure.errors import BreakerOpen, InvalidName
from perdure.testing import Environment
from tests.helpers import eventually
from tests.stage import Stage, until

QUICKLY = Retry(attempts=2, initial=0.01, jitter=0)


class Dependency:
    """Fails or works, as it is told; counts who is inside at once."""

    def __init__(self) -> None:
        self.broken = True
        self.calls = 0
        self.inside = 0
        self.most = 0
        self.open = asyncio.Event()
        self.open.set()

    async def call(self, name: str) -> str:
        self.calls += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
            if self.broken:
                raise ConnectionError(f"no answer to {name}")
            return name
        finally:
            self.inside -= 1


async def stands(engine: Engine, circuit: Circuit, waiting: int | None = None) -> bool:
    breakers = await engine.breakers.list()
    return [one.circuit for one in breakers] == [circuit] and waiting in (None, breakers[0].waiting)


async def has_opened(engine: Engine) -> bool:
    """Tell whether it is open, or was and would now let probes pass. One that is not asked for a while stays so."""
    return [one.circuit is Circuit.CLOSED for one in await engine.breakers.list()] == [False]


async def only(engine: Engine) -> BreakerInfo:
    [breaker] = await engine.breakers.list()
    return breaker


async def waits_for_it(run: Handle[Any]) -> bool:
    return (await run.info()).reason == "breaker"


async def test_it_opens_when_enough_has_failed_and_what_waits_uses_up_no_attempt(stage: Stage) -> None:
    dependency = Dependency()

    @activity("breakers.call.v1", breaker=Breaker("api", failures=3, successes=2, reset="5s"), retry=QUICKLY)
    async def call(name: str) -> str:
        return await dependency.call(name)

    engine = stage.engine(call)
    async with engine.worker(slots=1):
        first = [await engine.start(call(str(number))) for number in range(2)]
        # Each has two attempts: the third failure opens it, and the fourth attempt waits.
        await eventually(lambda: stands(engine, Circuit.OPEN, 1))
        assert dependency.calls == 3
        later = [await engine.start(call(f"later {number}")) for number in range(3)]
        for run in later:
            await eventually(partial(waits_for_it, run))
        assert "'api' opened" in await later[0].why()
        dependency.broken = False
        assert [await run.result("60s") for run in later] == [f"later {number}" for number in range(3)]
        ended = {await run.status() for run in first}
        assert ended == {Status.FAILED, Status.COMPLETED}
        assert [(await run.info()).attempt for run in later] == [1, 1, 1]
    assert (await only(engine)).circuit is Circuit.CLOSED
    trail = [event.kind for event in (await engine.audit.list(run="gate:breaker:api")).events]
    assert trail[:3] == ["breaker_closed", "breaker_half_open", "breaker_open"]
    assert await stage.rows("SELECT * FROM perdure_permits") == []
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def test_one_that_fails_while_it_is_half_open_opens_it_again(stage: Stage) -> None:
    dependency = Dependency()

    @activity("breakers.again.v1", breaker=Breaker("api", failures=1, reset="300ms"), retry=Retry.never())
    async def call(name: str) -> str:
        # Three failures, however late the test looks; the rest has to succeed.
        dependency.broken = dependency.calls < 3
        return await dependency.call(name)

    engine = stage.engine(call)
    async with engine.worker():
        runs = [await engine.start(call(str(number))) for number in range(1)]
        await eventually(lambda: has_opened(engine))
        runs += [await engine.start(call(str(number))) for number in range(1, 5)]
        # Two of those that waited have to succeed.
        assert await runs[-1].result("20s") == "4"
        await eventually(lambda: stands(engine, Circuit.CLOSED))
    assert dependency.most == 1
    kinds = [event.kind for event in (await engine.audit.list(run="gate:breaker:api")).events]
    assert kinds.count("breaker_open") == kinds.count("breaker_half_open") >= 3
    assert kinds.count("breaker_closed") == 1


async def test_no_more_probes_than_allowed_are_under_way_however_many_ask(stage: Stage) -> None:
    dependency = Dependency()

    @activity("breakers.probe.v1", breaker=Breaker("api", failures=1, successes=6, probes=2, reset="300ms"))
    async def call(name: str) -> str:
        return await dependency.call(name)

    engine = stage.engine(call)
    async with engine.worker(slots=4), engine.worker(slots=4), engine.worker(slots=4), engine.worker(slots=4):
        first = await engine.start(call("first"))
        await eventually(lambda: has_opened(engine))
        dependency.broken = False
        dependency.most = dependency.calls = 0
        dependency.open.clear()
        runs = [first] + [await engine.start(call(str(number))) for number in range(12)]
        await eventually(lambda: dependency.inside == 2)
        [breaker] = await engine.breakers.list()
        assert breaker.circuit is Circuit.HALF_OPEN
        assert "lets 2 call(s) pass at a time" in " ".join([await run.why() for run in runs])
        assert dependency.most == 2
        # One by one: the sixth success closes it, and only then are there more.
        seen: list[int] = []

        async def let_out() -> None:
            while dependency.calls < 8:
                seen.append(dependency.inside)
                dependency.open.set()
                await asyncio.sleep(0)  # lets those who wait go on
                dependency.open.clear()
                await asyncio.sleep(0.001)  # a real loop has to turn for the others to come in
            dependency.open.set()

        await let_out()
        assert max(seen) <= 2
        for run in runs:
            await run.result("20s")


async def test_it_is_opened_closed_and_reset_by_hand(stage: Stage) -> None:
    dependency = Dependency()

    @activity("breakers.hand.v1", breaker=Breaker("api", failures=1, reset="1h"), retry=Retry.never())
    async def call(name: str) -> str:
        return await dependency.call(name)

    engine = stage.engine(call)
    await engine.breakers.open("api")
    await engine.breakers.open("api")
    async with engine.worker():
        run = await engine.start(call("one"))
        await eventually(partial(waits_for_it, run))
        assert "was opened by hand" in await run.why()
        assert dependency.calls == 0
        await engine.breakers.close("api")
        with pytest.raises(RunFailed):
            await run.result("20s")
        # One that was closed by hand stays so, whatever fails.
        with pytest.raises(RunFailed):
            await (await engine.start(call("two"))).result("20s")
        view = await only(engine)
        assert (view.circuit, view.by_hand) == (Circuit.CLOSED, True)
        await engine.breakers.reset("api")
        with pytest.raises(RunFailed):
            await (await engine.start(call("three"))).result("20s")
        await eventually(lambda: stands(engine, Circuit.OPEN))
        await engine.breakers.reset("api")
        view = await only(engine)
        assert (view.circuit, view.by_hand, view.failures) == (Circuit.CLOSED, False, 0)
    trail = [event.kind for event in (await engine.audit.list(run="gate:breaker:api")).events]
    assert trail.count("breaker_open") == 2
    with pytest.raises(InvalidName):
        await engine.breakers.open("a/b")


async def test_what_is_to_fail_fails_at_once_and_is_not_called(stage: Stage) -> None:
    dependency = Dependency()

    @activity("breakers.fail.v1", breaker=Breaker("api", failures=1, reset="1h", when_open="fail"))
    async def call(name: str) -> str:
        return await dependency.call(name)

    engine = stage.engine(call)
    async with engine.worker():
        first = await engine.start(call("first"))
        with pytest.raises(RunFailed) as caught:
            # Its second attempt comes too late.
            await first.result("20s")
        assert isinstance(caught.value.__cause__, BreakerOpen)
        second = await engine.start(call("second"))
        with pytest.raises(RunFailed, match="the breaker 'api' is open until") as caught:
            await second.result("20s")
        assert isinstance(caught.value.__cause__, BreakerOpen)
        await engine.breakers.open("api")
        with pytest.raises(RunFailed, match="until it is closed by hand"):
            await (await engine.start(call("third"))).result("20s")
    assert dependency.calls == 1
    assert await stage.rows("SELECT * FROM perdure_lines") == []


async def test_a_closed_breaker_costs_no_write(stage: Stage) -> None:
    @activity("breakers.fine.v1", breaker=Breaker("api"))
    async def call(name: str) -> str:
        return name

    engine = stage.engine(call)
    async with engine.worker():
        await (await engine.start(call("first"))).result("20s")
        before = await stage.rows("SELECT * FROM perdure_gates")
        runs = [await engine.start(call(str(number))) for number in range(20)]
        assert [await run.result("20s") for run in runs] == [str(number) for number in range(20)]
        assert await engine.limits.list() == []
        assert await stage.rows("SELECT * FROM perdure_gates") == before
        assert await stage.rows("SELECT * FROM perdure_permits") == []


def blames(error: BaseException) -> bool:
    return "counts" in str(error)


@pytest.mark.parametrize(
    ("counts", "error", "opens"),
    [
        (None, OSError("reset"), True),
        (None, Fatal("the caller's own fault"), False),
        (None, UsageError("so is this"), False),
        (None, TimeoutError("too slow"), True),
        (KeyError, OSError("reset"), False),
        ((KeyError, OSError), OSError("reset"), True),
        (blames, OSError("this counts"), True),
        (blames, OSError("this does not"), False),
        (lambda error: 1 / 0, OSError("reset"), True),
    ],
    ids=["lost", "fatal", "misuse", "timeout", "other class", "classes", "function", "not by function", "bad function"],
)
def test_which_errors_count(
    counts: type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool] | None,
    error: Exception,
    opens: bool,
) -> None:
    assert Breaker("api", counts=counts).assess(error, Retry()) is not opens


def test_a_breaker_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="failures=0"):
        Breaker("api", failures=0)
    with pytest.raises(UsageError, match="window=0"):
        Breaker("api", window=0)
    with pytest.raises(UsageError, match="when_open='explode'"):
        Breaker("api", when_open="explode")
    with pytest.raises(UsageError, match="counts=3"):
        Breaker("api", counts=3)  # type: ignore[arg-type] # what the test is about
    with pytest.raises(InvalidName):
        Breaker("a/b")
    with pytest.raises(UsageError, match="give a Breaker"):
        activity("breakers.odd.v1", breaker="api")(print)  # type: ignore[call-overload] # what the test is about


async def test_an_activity_that_is_pending_is_no_success_and_its_end_outside_counts(stage: Stage) -> None:
    tokens: list[str] = []

    @activity("breakers.pending.v1", breaker=Breaker("api", failures=2, reset="1h"), retry=Retry.never())
    async def call() -> str:
        tokens.append(activity_info().token)
        return Pending

    engine = stage.engine(call)
    async with engine.worker():
        for _ in range(2):
            run = await engine.start(call())
            await until(run, Status.WAITING)
            await engine.runs.fail(tokens[-1], ConnectionError("no answer"))
            with pytest.raises(RunFailed):
                await run.result("20s")
        await eventually(lambda: stands(engine, Circuit.OPEN))


async def test_successes_that_are_reported_from_outside_close_a_breaker_and_pending_is_none(stage: Stage) -> None:
    tokens: list[str] = []

    @activity("breakers.outside.v1", breaker=Breaker("api", failures=1, successes=2, reset="10ms"), retry=Retry.never())
    async def call() -> str:
        tokens.append(activity_info().token)
        return Pending

    engine = stage.engine(call)
    async with engine.worker():
        run = await engine.start(call())
        await until(run, Status.WAITING)
        await engine.runs.fail(tokens[-1], ConnectionError("no answer"))
        with pytest.raises(RunFailed):
            await run.result("20s")
        for successes in (0, 1):
            run = await engine.start(call())
            await eventually(partial(waits_outside, run), saying="a probe that is pending")
            [breaker] = await engine.breakers.list()
            assert (breaker.circuit, breaker.successes) == (Circuit.HALF_OPEN, successes)
            await engine.runs.complete(tokens[-1], "done")
        [breaker] = await engine.breakers.list()
        assert breaker.circuit is Circuit.CLOSED


async def waits_outside(run: Handle[str]) -> bool:
    return (await run.info()).reason is Reason.COMPLETION


async def test_an_open_breaker_does_not_fail_the_attempt_after_one_that_timed_out_meanwhile() -> None:
    calls: list[int] = []
    breaker = Breaker("dep", failures=1, reset="20s", successes=1, when_open="fail")

    @activity("breakers.pending.v1", breaker=breaker, retry=Retry.fixed("60s"), start_to_close="5s")
    async def call(number: int) -> Any:
        calls.append(number)
        if calls == [1]:
            return Pending
        if number == 2:
            raise ConnectionError("down")
        return "ok"

    async with Environment([call]) as env:
        waits = await env.start(call(1), id="waits")
        await env.settle()
        opens = await env.start(call(2), id="opens")
        await env.settle()
        await opens.terminate()
        # The pending attempt times out while the breaker is open, which its claim is told.
        await env.advance("10s")
        await env.advance("200s")
        assert await waits.result() == "ok"
    assert calls == [1, 2, 1]
