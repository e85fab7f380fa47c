"""Whatever the public API is given, only documented errors come out of it, and soon.

The long form (`make prove`) makes more than 200,000 calls; `PERDURE_FUZZ_SEED` draws others. The CPU time of each call
is bounded, which a busy machine does not change.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from perdure import Engine
from perdure.workflow.discover import Definable
from tests.fuzz.calls import (
    PURE,
    Found,
    fuzz_context,
    fuzz_engine,
    fuzz_pure,
    prepare,
    quiet,
    targets,
    timed,
)
from tests.fuzz.hostile import act, anything, failing, flow
from tests.fuzz.outer import fuzz_blocking, fuzz_commands, fuzz_http, fuzz_remote
from tests.fuzz.parts import PARTS, fuzz_parts
from tests.servers.databases import Databases
from tests.servers.schemas import Schemas
from tests.stage import Stage, set_up

PROVE = bool(os.environ.get("PERDURE_PROVE"))

#: Calls of one test, in the long form and usually.
PURE_CALLS = 20_000 if PROVE else 40 * len(PURE)
PARTS_CALLS = 10_000 if PROVE else 20 * len(PARTS)
CONTEXT_CALLS = 10_000 if PROVE else 500
ENGINE_CALLS = 14_500 if PROVE else 800
SERVER_CALLS = 1_000 if PROVE else 150
REMOTE_CALLS = 5_000 if PROVE else 300
HTTP_CALLS = 10_000 if PROVE else 300
BLOCKING_CALLS = 10_000 if PROVE else 300
COMMAND_CALLS = 1_000 if PROVE else 60

in_time = pytest.mark.timeout(3600 if PROVE else 240)

#: First of the seeds.
FIRST = int(os.environ.get("PERDURE_FUZZ_SEED", "0"))


def seeds(long: int) -> list[int]:
    """Seeds of the tests of one kind."""
    return list(range(FIRST, FIRST + (long if PROVE else 1)))


def assert_clean(found: Found, calls: int) -> None:
    """Every call was made, and none had a problem."""
    assert found.calls == calls
    assert found.outcomes["value"] > 0
    assert found.problems == {}, "\n".join(f"{name}: {told}" for name, told in found.problems.items())


@in_time
@pytest.mark.parametrize("seed", seeds(6))
def test_values_and_decorators_refuse_what_they_cannot_use(seed: int) -> None:
    assert_clean(fuzz_pure(seed, PURE_CALLS), PURE_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(2))
def test_the_parts_beside_the_engine_refuse_what_they_cannot_use(seed: int) -> None:
    assert_clean(fuzz_parts(seed, PARTS_CALLS), PARTS_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(2))
def test_a_context_refuses_what_it_cannot_use(seed: int) -> None:
    assert_clean(fuzz_context(seed, CONTEXT_CALLS), CONTEXT_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(4))
async def test_an_engine_refuses_what_it_cannot_use(seed: int) -> None:
    def open_engine(*workflows: Definable) -> Engine:
        return Engine("sqlite://", workflows)

    assert_clean(await fuzz_engine(open_engine, seed, ENGINE_CALLS), ENGINE_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(2))
async def test_an_engine_on_a_perdure_server_refuses_what_it_cannot_use(seed: int) -> None:
    assert_clean(await fuzz_remote(seed, REMOTE_CALLS), REMOTE_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(1))
async def test_the_http_api_refuses_what_it_cannot_use(seed: int) -> None:
    assert_clean(await fuzz_http(seed, HTTP_CALLS), HTTP_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(1))
def test_the_blocking_facade_refuses_what_it_cannot_use(seed: int) -> None:
    assert_clean(fuzz_blocking(seed, BLOCKING_CALLS), BLOCKING_CALLS)


@in_time
@pytest.mark.parametrize("seed", seeds(1))
def test_the_command_line_refuses_what_it_cannot_use(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        async with Engine("sqlite:///shop.db", [flow, anything, act, failing]) as engine:
            await prepare(engine)
            await targets(engine)

    asyncio.run(fill())
    assert_clean(fuzz_commands(seed, COMMAND_CALLS, "sqlite:///shop.db"), COMMAND_CALLS)


@pytest.fixture(params=["postgres", "mysql"])
async def server(
    request: pytest.FixtureRequest, tmp_path: Path, schemas: Schemas, databases: Databases
) -> AsyncIterator[Stage]:
    async with set_up(request.param, tmp_path, schemas, databases, fresh=True) as stage:
        yield stage


@in_time
async def test_an_engine_on_a_server_refuses_what_it_cannot_use(server: Stage) -> None:
    assert_clean(await fuzz_engine(server.engine, FIRST + 11, SERVER_CALLS), SERVER_CALLS)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is bounded on Linux only")
def test_a_call_that_takes_memory_without_end_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.calls.MEMORY", 64 << 20)
    found = Found()
    with quiet():
        timed(found, "call", lambda: [bytearray(1 << 20) for _ in range(1000)])
    assert [name.partition(" at ")[0] for name in found.problems] == ["call: MemoryError"]
    assert len([bytearray(1 << 20) for _ in range(100)]) == 100, "the bound goes with the test"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured on Linux only")
def test_memory_that_grows_is_reported_with_the_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.fuzz.calls.REPORTED", 64 << 20)
    watching = quiet()
    with pytest.raises(AssertionError, match=r"grew by 64 MiB(.|\n)*test_memory_that_grows_is_reported"), watching:
        block = b"x" * (128 << 20)
        # Without going on: the stack of this thread is to show this test.
        watching._watch.join()
    assert len(block) == 128 << 20


def test_a_problem_is_noticed() -> None:
    found = Found()
    found.judge("call", ValueError("anything"), {})
    found.judge("other", None, {})
    assert list(found.problems) == ["call: ValueError at "]
