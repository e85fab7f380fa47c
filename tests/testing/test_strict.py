"""`Environment(strict=True)`: clocks, randomness, I/O and orders that differ from process to process are found."""

from __future__ import annotations

# ruff: noqa: PLW0108 - a lambda has the line that is tested
import asyncio
import contextlib
import datetime
import gc
import logging
import os
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from time import time as imported_time
from typing import Any
from uuid import uuid4 as new_id

import pytest

from perdure import Context, RunFailed, Status, step, workflow
from perdure.errors import Diverged, NotInWorkflow
from perdure.machine import Actions, StateMachine
from perdure.testing import Environment
from perdure.testing.hash_seeds import CodePlace, ReplayRequest, processes

HERE = Path(__file__).name
alias = datetime.datetime.now


class Moment(datetime.datetime):
    """A subclass, as libraries have them."""


@step(timeout="1s")
def charge(cents: int) -> int:
    return cents


#: Functions with their own line, because the line is what is tested.
FORBIDDEN: dict[str, Callable[[], Any]] = {
    "time": lambda: time.time(),
    "imported": lambda: imported_time(),
    "monotonic": lambda: time.monotonic(),
    "now": lambda: datetime.datetime.now(),
    "utc": lambda: datetime.datetime.now(datetime.UTC),
    "alias": lambda: alias(),
    "today": lambda: datetime.date.today(),
    "subclass": lambda: Moment.now(),
    "random": lambda: random.random(),
    "choice": lambda: random.choice([1, 2]),
    "shuffle": lambda: random.shuffle([1, 2, 3]),
    "gauss": lambda: random.gauss(0, 1),
    "system": lambda: random.SystemRandom().random(),
    "unseeded": lambda: random.Random().random(),
    "reseeded": lambda: random.Random(1).seed(),
    "uuid1": lambda: uuid.uuid1(),
    "local time": lambda: time.localtime(),
    "formatted": lambda: time.strftime("%Y"),
    "text": lambda: time.ctime(),
    "read by number": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "processor": lambda: time.process_time_ns(),
    "uuid4": lambda: new_id(),
    "urandom": lambda: os.urandom(4),
    "secrets": lambda: secrets.token_hex(),
    "sleep": lambda: time.sleep(0),
    "environ": lambda: os.environ.get("HOME"),
    "getenv": lambda: os.getenv("HOME"),
    "file": lambda: Path(__file__).read_text(),
    "thread": lambda: threading.Thread(target=print).start(),
    "step": lambda: charge(1),
}

ALLOWED: dict[str, Callable[[], Any]] = {
    "seeded": lambda: random.Random("seed").random(),
    "uuid5": lambda: uuid.uuid5(uuid.NAMESPACE_DNS, "x"),
    "iso": lambda: datetime.datetime.fromisoformat("2026-01-01"),
    "log": lambda: logging.getLogger("tests.strict").warning("written"),
    "loop": lambda: asyncio.get_running_loop().time(),
    "convert": lambda: time.gmtime(0),
    "convert by star": lambda: time.gmtime(*(0,)),
    "convert by key": lambda: time.strftime("%Y", time.gmtime(0)),
    "parse": lambda: datetime.datetime.strptime("2026-01-01", "%Y-%m-%d"),
    "map": lambda: list(map(time.gmtime, [0, 1])),
    "reseed": lambda: random.Random(1).seed("x"),
    "collection": lambda: gc.collect(),
}


def act(what: str) -> str:
    FORBIDDEN[what]()
    return what


@workflow("strict.does.v1")
async def does(ctx: Context, what: str, careless: bool = False) -> str:
    try:
        {**FORBIDDEN, **ALLOWED}[what]()
    except Exception:
        if not careless:
            raise
    await ctx.sleep("1s")
    return what


@workflow("strict.delegates.v1")
async def delegates(ctx: Context, what: str) -> str:
    ctx.log.info("%s %s %s", ctx.now(), ctx.random(), ctx.uuid())
    return await ctx.step(act, what)


class Timed(StateMachine[str, str], type="strict.timed.v1"):
    def on_start(self, input: str) -> Actions:
        return self.complete(str(time.time()))


async def execute(call: Any) -> Any:
    async with Environment([does, delegates, Timed], strict=True) as env:
        run = await env.start(call)
        await env.advance("1m")
        return await run.result()


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_it_raises_with_the_line_and_the_remedy(what: str) -> None:
    with pytest.raises(RunFailed) as caught:
        await execute(does(what))
    error = caught.value.__cause__
    assert isinstance(error, NotInWorkflow)
    line = FORBIDDEN[what].__code__.co_firstlineno
    assert f"{HERE}:{line} (in " in str(error)
    assert "run '" in str(error)
    assert any(remedy in str(error) for remedy in ("`ctx.", "`await ctx.", "an argument")), str(error)


@pytest.mark.parametrize("what", ALLOWED)
async def test_code_that_is_the_same_on_replay_is_left_alone(what: str) -> None:
    assert await execute(does(what)) == what


@pytest.mark.parametrize("what", FORBIDDEN)
async def test_a_step_may_do_anything(what: str) -> None:
    assert await execute(delegates(what)) == what


async def test_a_workflow_that_catches_the_error_is_found_out() -> None:
    with pytest.raises(NotInWorkflow, match="time.time"):
        await execute(does("time", careless=True))


async def test_it_is_found_out_at_the_end_if_its_result_is_never_asked_for() -> None:
    with pytest.raises(NotInWorkflow, match="time.time"):
        async with Environment([does], strict=True) as env:
            await env.start(does("time", careless=True))
            await env.advance("1m")


@workflow("strict.after.v1")
async def after(ctx: Context, how: str) -> None:
    with contextlib.suppress(Exception):
        time.time()
    if how == "fails":
        raise ValueError("for another reason")
    await ctx.receive("never")


@pytest.mark.parametrize("how", ["waits", "fails"])
async def test_it_is_found_out_at_the_end_if_its_run_does_not_complete(how: str) -> None:
    with pytest.raises(NotInWorkflow, match="time.time"):
        async with Environment([after], strict=True) as env:
            run = await env.start(after(how))
            await env.settle()
            assert (await run.status()) is (Status.FAILED if how == "fails" else Status.WAITING)


async def test_an_error_that_has_failed_its_run_is_not_raised_again_at_the_end() -> None:
    async with Environment([does], strict=True) as env:
        run = await env.start(does("time"))
        with pytest.raises(RunFailed):
            await run.result()


async def test_handlers_of_a_machine_are_watched() -> None:
    with pytest.raises(RunFailed) as caught:
        await execute(Timed.call("x"))
    assert "`self.now()`" in str(caught.value.__cause__)


async def test_an_environment_that_is_not_strict_raises_nothing() -> None:
    async with Environment([does], strict=True), Environment([does]) as lax:
        run = await lax.start(does("time"))
        await lax.advance("1m")
        assert await run.result() == "time"


async def test_a_callback_of_the_garbage_collector_is_no_workflow_code(request: pytest.FixtureRequest) -> None:
    seen: list[float] = []

    def timed(phase: str, info: dict[str, int]) -> None:
        seen.append(time.perf_counter())

    gc.callbacks.append(timed)
    request.addfinalizer(lambda: gc.callbacks.remove(timed))
    assert await execute(does("collection")) == "collection"
    assert seen


async def test_the_profile_function_of_the_caller_is_left_as_it_was() -> None:
    seen: list[str] = []
    sys.setprofile(lambda frame, event, called: seen.append(event))
    try:
        with pytest.raises(RunFailed):
            await execute(does("time"))
        before = len(seen)
        len("x")
        assert len(seen) > before
    finally:
        sys.setprofile(None)


# other hash seeds


async def note(word: str) -> str:
    return word


@workflow("strict.words.v1")
async def words(ctx: Context, given: set[str], in_order: bool) -> list[str]:
    return [await ctx.step(note, word) for word in (sorted(given) if in_order else given)]


@workflow("strict.joined.v1")
async def joined(ctx: Context, given: set[str]) -> str:
    await ctx.sleep("1s")
    return ",".join(given)


@workflow("strict.returned.v1")
async def returned(ctx: Context, given: set[str]) -> set[str]:
    return given


WORDS = {f"word {number}" for number in range(12)}


@pytest.mark.parametrize("call", [words(WORDS, in_order=False), joined(WORDS)])
async def test_the_order_of_a_set_is_found_by_another_hash_seed(call: Any) -> None:
    with pytest.raises(Diverged, match="another hash seed") as caught:
        async with Environment([words, joined], strict=True) as env:
            run = await env.start(call)
            await env.advance("1m")
            assert await run.result()
    assert "sorted(...)" in str(caught.value)
    assert repr(run.id) in str(caught.value)


@pytest.mark.parametrize("call", [words(WORDS, in_order=True), returned(WORDS)])
async def test_a_set_whose_order_does_not_matter_is_left_alone(call: Any) -> None:
    async with Environment([words, returned], strict=True) as env:
        assert await (await env.start(call)).result()


async def test_an_error_of_the_test_itself_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        async with Environment([joined], strict=True) as env:
            await env.start(joined(WORDS))
            await env.advance("1m")
            raise KeyError


async def test_a_workflow_inside_a_function_cannot_be_imported_and_is_not_replayed() -> None:
    @workflow("strict.local.v1")
    async def local(ctx: Context, given: set[str]) -> str:
        return ",".join(given)

    async with Environment([local], strict=True) as env:
        assert await (await env.start(local(WORDS))).result()


class Refused(Exception):
    """An error of this module, which a replay has to restore as what it was."""


async def refuse() -> None:
    raise Refused("no")


@workflow("strict.refused.v1")
async def refused(ctx: Context) -> str:
    try:
        await ctx.step(refuse)
    except Refused as error:
        return f"refused: {error}"
    return "done"


async def test_failures_are_restored_in_the_other_process() -> None:
    async with Environment([refused], strict=True, errors=[Refused], retry=1) as env:
        assert await (await env.start(refused())).result() == "refused: no"


def test_a_helper_process_that_was_killed_is_replaced() -> None:
    request = ReplayRequest(path=sys.path, workflows=[], errors=[], runs=[])
    assert processes.replay(request) == []
    victim = processes._processes[0]
    victim._kill()
    victim._process.wait()
    assert processes.replay(request) == []
    assert processes._processes[0] is not victim


def test_a_module_that_never_ends_its_import_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "endless_module.py").write_text("import time\nwhile True: time.sleep(1)\n")
    monkeypatch.setattr("perdure.testing.hash_seeds.PATIENCE", 2.0)
    place = CodePlace("endless_module", "flow")
    request = ReplayRequest(path=[str(tmp_path), *sys.path], workflows=[place], errors=[], runs=[])
    assert processes.replay(request) == []
    assert "not replayed with another hash seed" in caplog.text
    # The system may not have ended the process yet, which was killed; no later request goes to it.
    assert not processes._processes[0].alive


def test_a_module_that_cannot_be_imported_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    place = CodePlace("no_such_module", "flow", "/nowhere/no_such_module.py")
    request = ReplayRequest(path=sys.path, workflows=[place], errors=[], runs=[])
    assert processes.replay(request) == []
    assert "FileNotFoundError" in caplog.text
