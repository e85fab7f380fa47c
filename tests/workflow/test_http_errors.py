"""Steps whose server answers with an error, or with a time to retry."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pydantic
import pytest

from perdure import Context, Retry, RunFailed, StepFailed, step, workflow
from perdure.admin import Failure, RecordKind
from tests.core.web import serving
from tests.stage import Stage

asked: list[str] = []


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    asked.clear()


@step(retry=Retry.fixed("1ms", attempts=2))
def get(paths: list[str], url: str) -> str:
    path = paths[min(len(asked), len(paths) - 1)]
    asked.append(path)
    return str(httpx.get(f"{url}/{path}", trust_env=False).raise_for_status().status_code)


@workflow("http.get.v1")
async def getting(ctx: Context, paths: list[str], url: str) -> str:
    return await ctx.step(get, paths, url)


async def test_a_server_that_is_busy_is_asked_again_when_it_says_without_using_up_attempts(
    on_disk: Stage, server: str
) -> None:
    engine = on_disk.engine(getting)
    async with engine.worker():
        run = await engine.start(getting(["429?after=0.01"] * 3 + ["503?after=0.01", "500", "200"], server))
        assert await run.result("20s") == "200"
    assert [record.attempts for record in await run.history()] == [0, 0, 0, 0, 1, 2]


async def test_a_request_that_is_at_fault_is_not_repeated(on_disk: Stage, server: str) -> None:
    engine = on_disk.engine(getting)
    async with engine.worker():
        run = await engine.start(getting(["404", "200"], server))
        with pytest.raises(RunFailed, match="404 Not Found"):
            await run.result("20s")
    assert asked == ["404"]


async def test_a_server_that_keeps_failing_exhausts_the_attempts(on_disk: Stage, server: str) -> None:
    engine = on_disk.engine(getting)
    async with engine.worker():
        run = await engine.start(getting(["500"], server))
        with pytest.raises(RunFailed, match="500"):
            await run.result("20s")
    history = await run.history()
    assert [record.kind for record in history] == [RecordKind.ATTEMPT, RecordKind.STEP]
    assert Failure.from_json(history[-1].payload or "").given_up == "exhausted"


class Line(pydantic.BaseModel):
    price: int


async def test_a_value_that_does_not_fit_fails_at_once_and_says_where(on_disk: Stage) -> None:
    @step(retry=Retry.fixed("1ms"))
    def parse() -> None:
        asked.append("parse")
        Line.model_validate({"price": "much"})

    @workflow("http.invalid.v1")
    async def parsing(ctx: Context) -> None:
        with pytest.raises((StepFailed, pydantic.ValidationError), match="price"):
            await ctx.step(parse)

    engine = on_disk.engine(parsing)
    async with engine.worker():
        await (await engine.start(parsing())).result("20s")
    assert asked == ["parse"]
