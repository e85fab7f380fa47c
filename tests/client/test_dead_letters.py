from __future__ import annotations

import datetime
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure import (
    Call,
    Context,
    Engine,
    Handle,
    Retry,
    RunFailed,
    RunFinished,
    RunNotFound,
    Status,
    UsageError,
    activity,
    activity_info,
    workflow,
)
from perdure.admin import DeadLetterPage, DeadLetterReason, Reason
from perdure.core.model.dead_letter import DeadLetterFilter
from perdure.core.system import System
from perdure.errors import InvalidId, NotStarted
from perdure.host import Host
from perdure.store import Retrying, open_store
from perdure.store.contract import Store
from tests.helpers import eventually
from tests.stage import Stage, until

AT_ONCE = Retry(attempts=2, initial=0, jitter=0)


class Refused(Exception):
    """The other side refuses."""


MENDED: set[str] = set()


@pytest.fixture(autouse=True)
def nothing_is_mended() -> None:
    MENDED.clear()


@activity("post.deliver.v1", retry=AT_ONCE)
async def deliver(to: str) -> str:
    info = activity_info()
    info.heartbeat(f"at the door of {to}")
    if to not in MENDED:
        raise Refused(f"attempt {info.attempt}")
    return f"{to}, attempt {info.attempt}, last {info.last_heartbeat}"


@workflow("post.office.v1")
async def office(ctx: Context, to: str) -> str:
    try:
        return await ctx.call(deliver(to))
    except Refused as error:
        return f"gave up: {error}"


@workflow("post.round.v1")
async def rounds(ctx: Context, to: str) -> str:
    return await ctx.step(knock, to)


async def knock(to: str) -> str:
    if to not in MENDED:
        raise Refused("the house is empty")
    return f"{to} has it"


async def test_an_activity_that_used_up_its_attempts_is_a_dead_letter_with_every_error(stage: Stage) -> None:
    engine = stage.engine(deliver)
    async with engine.worker():
        run = await engine.start(deliver("Ann"), id="d")
        with pytest.raises(RunFailed):
            await run.result("20s")
    [letter] = (await engine.dead_letters.list()).letters
    assert (letter.run_id, letter.type, letter.queue, letter.reason) == ("d", deliver.type, "default", "failed")
    assert (letter.input, letter.attempts, letter.requeued, letter.parent_id) == ('{"to":"Ann"}', 2, 0, None)
    assert [(one.attempt, one.error.message) for one in letter.errors] == [(1, "attempt 1"), (2, "attempt 2")]
    assert letter.errors[0].started_at <= letter.errors[0].at <= letter.dead_since
    assert letter.error.given_up == "exhausted"
    assert await engine.dead_letters.get("d") == letter
    with pytest.raises(RunNotFound):
        await engine.dead_letters.get("missing")


async def test_a_requeued_activity_begins_anew_and_remembers_its_last_heartbeat(stage: Stage) -> None:
    engine = stage.engine(deliver)
    async with engine.worker():
        run = await engine.start(deliver("Bob"), id="d")
        with pytest.raises(RunFailed):
            await run.result("20s")
        assert await run.retry() == 2
        with pytest.raises(RunFailed):
            await run.result("20s")
        letter = await engine.dead_letters.get("d")
        assert [one.error.message for one in letter.errors] == ["attempt 1", "attempt 2"] * 2
        assert (letter.requeued, letter.generation, letter.attempts) == (1, 2, 2)
        assert letter.requeued_at > 0
        MENDED.add("Bob")
        assert await run.retry() == 3
        assert await run.result("20s") == "Bob, attempt 1, last at the door of Bob"
    assert (await engine.dead_letters.list()).letters == ()
    with pytest.raises(RunFinished, match="completed, so there is nothing to retry"):
        await run.retry()


async def test_a_requeued_activity_may_have_another_input_and_another_policy(stage: Stage) -> None:
    engine = stage.engine(deliver)
    MENDED.add("Cleo")
    async with engine.worker():
        run = await engine.start(deliver("Dan"), id="d")
        with pytest.raises(RunFailed):
            await run.result("20s")
        await run.retry(retry=Retry(attempts=4, initial=0, jitter=0), start_to_close="5s", priority=7)
        with pytest.raises(RunFailed):
            await run.result("20s")
        found = await run.info()
        assert (found.attempt, found.max_attempts, found.priority) == (4, 4, 7)
        # With other arguments, what the last attempt said of how far it had got means nothing.
        await run.retry(input=deliver("Cleo"))
        assert await run.result("20s") == "Cleo, attempt 1, last None"
    requeued = [event for event in await run.events() if event.kind == "requeued"]
    assert len(requeued) == 2
    assert all(event.actor.startswith("client:") for event in requeued)


async def test_the_awaiting_workflow_decides_and_is_not_disturbed_by_a_requeue(stage: Stage) -> None:
    engine = stage.engine(office, deliver)
    async with engine.worker():
        run = await engine.start(office("Eve"), id="o")
        assert await run.result("20s") == "gave up: attempt 2"
        [letter] = (await engine.dead_letters.list(type="post.%")).letters
        assert letter.parent_id == "o"
        MENDED.add("Eve")
        decided = await engine.dead_letters.retry(where={"type": "post.%", "error": "Refused"})
        assert (decided.done, decided.refused) == ((letter.run_id,), {})
        child = await engine.get(letter.run_id, deliver)
        assert (await child.result("20s")).startswith("Eve, attempt 1")
    assert await run.result() == "gave up: attempt 2"


async def test_a_requeued_workflow_goes_on_where_it_failed(stage: Stage) -> None:
    engine = stage.engine(rounds)
    async with engine.worker(retry=Retry.never()):
        run = await engine.start(rounds("Flo"), id="w")
        with pytest.raises(RunFailed):
            await run.result("20s")
        letter = await engine.dead_letters.get("w")
        assert [one.location for one in letter.errors] == ["knock", ""]
        with pytest.raises(UsageError, match=r"has a history.*fork"):
            await run.retry(input={"to": "Gus"})
        with pytest.raises(UsageError, match="its policy is in its code"):
            await run.retry(retry=Retry(attempts=9))
        MENDED.add("Flo")
        await run.retry(deadline="1h")
        assert await run.result("20s") == "Flo has it"


async def test_an_undecodable_run_is_set_aside_and_goes_on_with_arguments_that_fit(stage: Stage) -> None:
    engine = stage.engine(deliver)
    stranger = Call.named(deliver.type, who="Hal")
    known, engine._session.workflows = engine._session.workflows, {}
    run = await engine.start(stranger, id="d")
    engine._session.workflows = known
    MENDED.add("Ida")
    async with engine.worker():
        await until(run, Status.BLOCKED)
        [letter] = (await engine.dead_letters.list(reason="undecodable")).letters
        assert letter.reason is DeadLetterReason.UNDECODABLE
        assert letter.dead_since >= letter.created_at
        await run.retry(input={"to": "Ida"})
        assert (await run.result("20s")).startswith("Ida, attempt 1")


async def test_one_that_was_not_begun_in_time_gets_its_time_anew(stage: Stage) -> None:
    @activity("post.urgent.v1", schedule_to_start="50ms", schedule_to_close="1h")
    async def urgent() -> int:
        return activity_info().attempt

    engine = stage.engine(urgent, deliver)
    run = await engine.start(urgent(), id="u")
    async with engine.worker(types="post.deliver.%", lease="300ms"):
        await until(run, Status.FAILED)
    [letter] = (await engine.dead_letters.list(error="NotStarted")).letters
    assert letter.error.type.endswith(NotStarted.__name__)
    before = await run.info()
    async with engine.worker():
        await run.retry(schedule_to_start="20s")
        assert await run.result("20s") == 1
    assert (await run.info()).deadline - before.created_at > 3_000_000_000


async def test_a_deadline_that_has_passed_must_be_given_anew(on_disk: Stage) -> None:
    engine = on_disk.engine(deliver)
    run = await engine.start(deliver("Jon"), id="d", deadline="1ms")
    async with engine.worker(lease="300ms"):
        await until(run, Status.FAILED)
    decided = await engine.dead_letters.retry(["d", "missing"])
    assert decided.done == ()
    assert "retry(deadline=...)" in decided.refused["d"]
    assert "no run 'missing'" in decided.refused["missing"]
    assert await run.retry(deadline="1h") == 2


async def test_a_discarded_letter_is_off_the_list_and_can_be_brought_back(stage: Stage) -> None:
    engine = stage.engine(deliver)
    async with engine.worker():
        for name in ("a", "b"):
            run = await engine.start(deliver("Kim"), id=name)
            with pytest.raises(RunFailed):
                await run.result("20s")
    assert (await engine.dead_letters.discard("a", reason="moved away")).done == ("a",)
    assert [letter.run_id for letter in (await engine.dead_letters.list()).letters] == ["b"]
    assert [letter.run_id for letter in (await engine.dead_letters.list(deleted=True)).letters] == ["a"]
    assert [run.id for run in (await engine.runs.list()).runs] == ["b"]
    with pytest.raises(UsageError, match="was deleted; bring it back"):
        await (await engine.get("a")).retry()
    assert await engine.runs.undelete("a")
    assert not await engine.runs.undelete("a")
    assert (await engine.dead_letters.discard(where={"dead_before": datetime.datetime.now(datetime.UTC)})).done == (
        "b",
        "a",
    )
    assert "no dead letter" in (await engine.dead_letters.discard(["missing"])).refused["missing"]
    events = [(event.kind, event.data) for event in await (await engine.get("a")).events()]
    assert ("discarded", '{"reason":"moved away"}') in events


class Overtaken(Retrying):
    """Lets something happen between a look at the dead letters and what follows from it."""

    def __init__(self, store: Store, system: System) -> None:
        super().__init__(store, system)
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def list_dead_letters(self, filter: DeadLetterFilter, limit: int, cursor: str | None) -> DeadLetterPage:
        page = await super().list_dead_letters(filter, limit, cursor)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return page


@pytest.mark.parametrize("mended", [True, False], ids=["done", "dead again"])
async def test_what_was_requeued_while_old_dead_letters_were_purged_is_left(on_disk: Stage, mended: bool) -> None:
    system = Host()
    store = Overtaken(open_store(on_disk.url, system), system)
    await store.open()
    async with Engine(on_disk.url, [deliver], system=system, store=store) as engine, engine.worker():
        run = await engine.start(deliver("Max"), id="m")
        with pytest.raises(RunFailed):
            await run.result("20s")

        async def go_on() -> None:
            if mended:
                MENDED.add("Max")
            assert (await engine.dead_letters.retry("m")).done == ("m",)
            await until(run, Status.COMPLETED if mended else Status.FAILED)

        store.meanwhile = go_on
        assert (await engine.dead_letters.prune(0)).runs == 0
        assert await run.status() is (Status.COMPLETED if mended else Status.FAILED)
    await store.close()


async def test_old_dead_letters_are_purged_and_those_that_are_needed_spared(stage: Stage) -> None:
    @workflow("post.patient.v1")
    async def patient(ctx: Context) -> None:
        try:
            await ctx.call(deliver("Leo"))
        except Refused:
            await ctx.receive("go")

    engine = stage.engine(deliver, patient)
    async with engine.worker():
        run = await engine.start(deliver("Leo"), id="alone")
        with pytest.raises(RunFailed):
            await run.result("20s")
        waiting = await engine.start(patient(), id="p")
        await eventually(lambda: _waits_for_a_message(waiting))
        gone = await engine.dead_letters.prune("1h")
        assert (gone.runs, gone.spared) == (0, 0)
        gone = await engine.dead_letters.prune(0)
        assert (gone.runs, gone.spared) == (1, 1)
        with pytest.raises(RunNotFound):
            await run.info()
        await waiting.send("go")
        await waiting.result("20s")
    assert (await engine.dead_letters.prune(0)).runs == 1
    assert await waiting.status() is Status.COMPLETED


async def _waits_for_a_message(run: Handle[None]) -> bool:
    return (await run.info()).reason is Reason.MESSAGE


async def test_nonsense_is_refused_before_anything_is_written(on_disk: Stage) -> None:
    engine = on_disk.engine(deliver)
    mixed: Any = {1: 1, "1": 2, 10**5000: 3}
    for wrong in (
        engine.dead_letters.retry,
        lambda: engine.dead_letters.retry("a", where={}),
        lambda: engine.dead_letters.retry(["a"], input={}),
        lambda: engine.dead_letters.list(reason="tired"),
        lambda: engine.dead_letters.list(limit=0),
        lambda: engine.dead_letters.list(kind="x"),  # type: ignore[call-arg] # that is the point
        lambda: engine.dead_letters.discard(where=mixed),
        lambda: engine.runs.prune("1d", status="running"),
        lambda: engine.runs.prune("1d", status="over"),
        lambda: engine.runs.prune("1d", types=[]),
    ):
        with pytest.raises(UsageError):
            await wrong()


async def test_an_id_that_is_given_twice_is_meant_once(on_disk: Stage) -> None:
    engine = on_disk.engine(deliver)
    async with engine.worker():
        run = await engine.start(deliver("bob"))
        with pytest.raises(RunFailed):
            await run.result()
        retried = await engine.dead_letters.retry([run.id, "unknown", run.id])
        assert (retried.done, list(retried.refused)) == ((run.id,), ["unknown"])
        with pytest.raises(RunFailed):
            await run.result()
    discarded = await engine.dead_letters.discard([run.id] * 1000)
    assert (discarded.done, discarded.refused) == ((run.id,), {})


async def test_a_bad_id_is_refused_before_any_letter_is_changed(on_disk: Stage) -> None:
    engine = on_disk.engine(deliver)
    async with engine.worker():
        run = await engine.start(deliver("bob"))
        with pytest.raises(RunFailed):
            await run.result()
    with pytest.raises(InvalidId):
        await engine.dead_letters.discard([run.id, ""])
    assert [letter.run_id for letter in (await engine.dead_letters.list()).letters] == [run.id]


def test_the_blocking_engine_does_the_same(on_disk: Stage) -> None:
    with on_disk.engine(deliver).blocking() as engine:
        with engine.worker():
            run = engine.start(deliver("Max"), id="d")
            with pytest.raises(RunFailed):
                run.result("20s")
            [letter] = engine.dead_letters.list().letters
            assert engine.dead_letters.get("d") == letter
            MENDED.add("Max")
            assert run.retry() == 2
            assert run.result("20s").startswith("Max")
        assert engine.dead_letters.retry("d").refused
        assert engine.dead_letters.discard("d").refused
        assert run.delete()
        assert run.undelete()
        assert engine.dead_letters.prune(0).runs == 0
        assert engine.runs.prune(0).runs == 1
