"""Runs across runtimes: started in Python and run elsewhere, or begun by one runtime and ended by another."""

from __future__ import annotations

import asyncio
import json

import pytest

from perdure import Context, Engine, Retry, RunFailed, Status, activity, activity_info, workflow
from perdure.admin import Failure
from tests.helpers import eventually
from tests.store.plain_sql.places import Plain

TYPE = "mail.send.v1"


@activity(TYPE)
def send(to: str) -> str:
    """Send mail."""
    return f"python sent mail to {to} at attempt {activity_info().attempt}"


@workflow("shop.welcome.v1")
async def welcome(ctx: Context, names: list[str]) -> list[str]:
    """Send mail to every recipient."""
    return list(await asyncio.gather(*(ctx.call(send(name)) for name in names)))


async def serve(plain: Plain, engine: Engine, run_id: str) -> None:
    """Act as a worker in another language until a run has ended; every other attempt fails."""
    run = await engine.get(run_id)
    while not (await run.status()).finished:
        for row in await plain.do("claim", types="mail.%", number=4):
            lease = {name: row[name] for name in ("id", "token", "nonce")}
            if row["attempt"] == 1 and json.loads(row["input"])["to"].startswith("b"):
                await plain.do("fail", **lease, delay=0)
            else:
                await plain.do(
                    "complete", **lease, output=json.dumps(f"sql sent mail to {json.loads(row['input'])['to']}")
                )


async def test_a_workflow_awaits_what_a_worker_in_another_language_does(plain: Plain) -> None:
    async with Engine(plain.url, [welcome, send]) as engine, engine.worker(types="shop.%"):
        run = await engine.start(welcome(["ann", "bob", "cy", "bea"]))
        await asyncio.wait_for(serve(plain, engine, run.id), 30)
        assert await run.result() == [f"sql sent mail to {name}" for name in ("ann", "bob", "cy", "bea")]


async def test_an_error_in_another_language_is_raised_in_the_workflow(plain: Plain) -> None:
    async with Engine(plain.url, [welcome, send]) as engine, engine.worker(types="shop.%"):
        run = await engine.start(welcome(["ann"]))

        async def taken() -> list[dict[str, object]]:
            return await plain.do("claim", types=TYPE)

        [row] = await eventually(taken)
        lease = {name: row[name] for name in ("id", "token", "nonce")}
        await plain.do("fail", **lease, error_type="SmtpError", error_message="mailbox full")
        with pytest.raises(RunFailed, match="mailbox full"):
            await run.result(timeout=30)


@pytest.mark.parametrize(
    ("name", "status"),
    [("SmtpError", "failed"), ("mail.v2.SmtpError", "failed"), ("v2.SmtpError", "waiting"), ("Smtp", "waiting")],
)
async def test_a_policy_that_travels_with_a_run_gives_up_on_errors_of_another_language_by_name(
    plain: Plain, name: str, status: str
) -> None:
    policy = Retry(attempts=3, give_up_on=("KeyError", name))
    async with Engine(plain.url, [send]) as engine:
        run = await engine.start(send("ann").options(retry=policy))
        [row] = await plain.do("claim", types=TYPE)
        lease = {name: row[name] for name in ("id", "token", "nonce")}
        answer = await plain.one(
            "fail", **lease, error_type="mail.v2.SmtpError", error_message="full", delay=60_000_000
        )
        assert answer == {"outcome": "applied", "status": status}
        failure = Failure.read((await plain.row(run.id))["error"])
        assert (failure.type, failure.given_up) == ("mail.v2.SmtpError", "fatal" if status == "failed" else "")


@pytest.mark.parametrize("options", ["{}", '{"retry":{"give_up_on":"OSError"}}', '{"retry":{"give_up_on":[]}}', "{"])
async def test_options_without_a_list_of_names_do_not_keep_another_language_from_trying_again(
    plain: Plain, options: str
) -> None:
    run_id = await plain.insert(TYPE)
    await plain.execute(f"UPDATE {plain.tables}runs SET options = '{options}' WHERE id = '{run_id}'")
    [row] = await plain.do("claim", types=TYPE)
    lease = {name: row[name] for name in ("id", "token", "nonce")}
    assert (await plain.one("fail", **lease, delay=60_000_000))["status"] == "waiting"


async def test_a_workflow_is_not_tried_again_after_an_error_of_another_language_that_it_names(plain: Plain) -> None:
    named = workflow("shop.once.v1", retry=Retry(attempts=3, initial="1ms", give_up_on=("SmtpError",)))(_sending)
    other = workflow("shop.again.v1", retry=Retry(attempts=2, initial="1ms", give_up_on=("Smtp",)))(_sending)
    async with Engine(plain.url, [named, other, send]) as engine, engine.worker(types="shop.%"):
        for one, attempts in ((named, 1), (other, 2)):
            run = await engine.start(one())
            await asyncio.wait_for(fail_all(plain, engine, run.id), 30)
            with pytest.raises(RunFailed, match="mailbox full"):
                await run.result()
            assert (await run.info()).attempt == attempts


async def _sending(ctx: Context) -> str:
    return await ctx.call(send("ann"))


async def fail_all(plain: Plain, engine: Engine, run_id: str) -> None:
    """Act as a worker in another language that fails everything for good, until a run has ended."""
    run = await engine.get(run_id)
    while not (await run.status()).finished:
        for row in await plain.do("claim", types=TYPE):
            lease = {name: row[name] for name in ("id", "token", "nonce")}
            await plain.do("fail", **lease, error_type="mail.SmtpError", error_message="mailbox full")


async def test_a_run_of_another_language_is_not_said_to_be_unserved(plain: Plain) -> None:
    run_id = await plain.insert(TYPE)
    async with Engine(plain.url, [welcome]) as engine:
        runs = (await engine.runs.list()).runs
        assert await engine.runs.unserved(runs) == {run_id}
        assert "no worker is alive" in await engine.runs.why(run_id)
        await plain.do("register", type=TYPE, runtime="node")
        assert await engine.runs.unserved(runs) == set()
        assert (await engine.runs.why(run_id)).endswith("and waits for a worker in 'node'.")


async def test_a_type_moves_from_one_runtime_to_another_with_its_runs(plain: Plain) -> None:
    run_id = await plain.insert(TYPE, input='{"to": "ann"}')
    [row] = await plain.do("claim", types=TYPE)
    await plain.do("fail", **{name: row[name] for name in ("id", "token", "nonce")}, delay=0)
    async with Engine(plain.url, [send]) as engine, engine.worker():
        run = await engine.get(run_id)
        assert await run.result(timeout=30) == "python sent mail to ann at attempt 2"
        assert (await run.status()) is Status.COMPLETED
        assert [record.attempts for record in await run.history()] == [1]
