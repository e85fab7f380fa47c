"""Workers for some types only, and what the registry says of all of them."""

from __future__ import annotations

import pytest

from perdure import Context, Engine, Status, UsageError, activity, workflow
from perdure.admin import TypeInfo, WorkerInfo
from tests.stage import Stage


@workflow("billing.charge.v1")
async def charge(ctx: Context) -> str:
    """Take the money.

    More about it.
    """
    return "charged"


@workflow("billing_.odd.v1")
async def odd(ctx: Context) -> str:
    return "odd"


@workflow("shop.checkout.v1")
async def checkout(ctx: Context) -> str:
    return "checked out"


async def test_a_worker_takes_only_the_types_that_its_patterns_mean(stage: Stage) -> None:
    engine = stage.engine(charge, odd, checkout)
    async with engine:
        runs = [await engine.start(one()) for one in (charge, odd, checkout)]
        async with engine.worker(types=["billing.%"]):
            assert await runs[0].result(timeout=30) == "charged"
            [worker] = await engine.workers.list()
            assert worker.types == ("billing.charge.v1",)
            assert "none of the 1 live worker(s) serves the type 'billing_.odd.v1'" in await engine.runs.why(runs[1].id)
        assert [await run.status() for run in runs[1:]] == [Status.PENDING] * 2
        assert "no worker is alive" in await engine.runs.why(runs[1].id)
        async with engine.worker(types=["billing_%", "shop.checkout.v1"]):
            assert [await run.result(timeout=30) for run in runs[1:]] == ["odd", "checked out"]


def test_a_worker_for_a_type_that_the_engine_does_not_have_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"no type matches 'Billing.%'; there are billing.charge.v1"):
        Engine("sqlite://", [charge]).worker(types="Billing.%")


async def test_the_registry_says_who_serves_a_type_and_whether_it_is_enabled(stage: Stage) -> None:
    engine = stage.engine(charge, checkout)
    async with engine:
        assert await engine.queues.types() == []
        async with engine.worker(types="billing.%"):
            [first] = await engine.queues.types()
            words = "Take the money."
            at = first.registered_at
            assert first == TypeInfo(type="billing.charge.v1", kind="workflow", description=words, registered_at=at)
        async with engine.worker():
            again, second = await engine.queues.types()
        # An unchanged description is not written again.
        assert (again, second.type, second.description) == (first, "shop.checkout.v1", "")
        await engine.queues.pause(type="billing.charge.v1", reason="the bank is closed")
        assert [one.enabled for one in await engine.queues.types()] == [False, True]
        await engine.queues.resume(type="billing.charge.v1")
        assert [one.enabled for one in await engine.queues.types()] == [True, True]


@activity("shop.mail.v1")
def mail() -> str:
    return "sent"


async def test_a_worker_leaves_a_type_of_another_runtime_alone_unless_it_shares_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    engine = stage.engine(checkout, mail)
    async with engine:
        assert stage.store is not None
        other = WorkerInfo(id="w", host="h", pid=1, queues=(), types=(), slots=1, lease=10**9)
        await stage.store.register(other, [TypeInfo(type="shop.mail.v1", runtime="node")])
        run = await engine.start(mail())
        async with engine.worker():
            assert await (await engine.start(checkout())).result(timeout=30) == "checked out"
            assert await run.status() is Status.PENDING
            assert "claims no runs of shop.mail.v1, which belong to workers of another runtime" in caplog.text
        async with engine.worker(shared="shop.%"):
            assert await run.result(timeout=30) == "sent"
        assert [one.runtime for one in await engine.queues.types()] == ["python", "shared"]
