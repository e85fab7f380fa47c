"""Draining a worker by order of an operator, builds of workers and runs, and priorities."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest

from perdure import Context, Engine, RunNotFound, Status, UsageError, workflow
from perdure.admin import WorkerInfo
from perdure.client.build import build_of, commit_of
from perdure.core.model.worker_info import WorkerStatus
from perdure.errors import WorkerNotFound
from tests.helpers import eventually
from tests.stage import Stage, until

#: Set when the slow step may end; new for each test.
GATES: list[asyncio.Event] = []


async def slow_step() -> str:
    await asyncio.wait_for(GATES[-1].wait(), 60)
    return "done"


#: An order arrives with a heartbeat, of which there are three in a lease. A shorter lease may end on a busy machine.
LEASE = "3s"


@workflow("drain.slow.v1")
async def slow(ctx: Context) -> str:
    """Wait for a step."""
    return await ctx.step(slow_step)


@workflow("drain.quick.v1")
async def quick(ctx: Context) -> int:
    return 1


@pytest.fixture(autouse=True)
def _closed_gate() -> None:
    GATES[:] = [asyncio.Event()]


async def the_worker(engine: Engine, worker_id: str) -> WorkerInfo:
    return next(one for one in await engine.workers.list() if one.id == worker_id)


def gone(engine: Engine, worker_id: str) -> Callable[[], object]:
    async def stopped() -> bool:
        return (await the_worker(engine, worker_id)).status is WorkerStatus.STOPPED

    return stopped


async def test_a_drained_worker_finishes_its_step_claims_nothing_more_and_stops(stage: Stage) -> None:
    engine = stage.engine(slow, quick)
    worker = engine.worker(lease=LEASE, grace="60s")
    async with worker:
        held = await engine.start(slow())
        await until(held, Status.RUNNING)
        assert await engine.workers.drain(worker.id, "new host")
        await eventually(lambda: "drains" in worker.problem)
        listed = await the_worker(engine, worker.id)
        assert listed.drain is not None
        assert (listed.is_draining, listed.drain.reason) == (True, "new host")
        assert not await engine.workers.drain(worker.id, "again")
        late = await engine.start(quick())
        GATES[-1].set()
        await eventually(gone(engine, worker.id))
        assert (await late.info()).status is Status.PENDING
        assert not await engine.workers.drain(worker.id, "a third time")
    # Nothing is lost: what it had is done, or done by the next.
    async with engine.worker():
        assert await held.result("60s") == "done"
        assert await late.result("60s") == 1
    [event] = (await engine.audit.list(kind="worker_drained")).events
    assert (event.run_id, "new host" in event.data) == (f"worker:{worker.id}", True)


async def test_a_worker_that_runs_until_it_is_signalled_ends_when_it_is_drained(stage: Stage) -> None:
    engine = stage.engine(quick)
    worker = engine.worker(lease=LEASE)
    running = asyncio.create_task(worker.run())

    async def registered() -> bool:
        return [one.id for one in await engine.workers.list()] == [worker.id]

    await eventually(registered)
    assert await engine.workers.drain(worker.id)
    await asyncio.wait_for(running, 60)
    assert (await the_worker(engine, worker.id)).status is WorkerStatus.STOPPED


async def test_an_order_gives_a_step_as_long_as_it_says_and_no_longer(stage: Stage) -> None:
    engine = stage.engine(slow)
    worker = engine.worker(lease=LEASE, grace="600s")
    async with worker:
        held = await engine.start(slow())
        await until(held, Status.RUNNING)
        assert await engine.workers.drain(worker.id, grace="100ms")
        await eventually(gone(engine, worker.id))
        assert (await held.info()).status is Status.PENDING
    GATES[-1].set()
    async with engine.worker():
        assert await held.result("60s") == "done"


async def test_a_worker_that_was_declared_dead_obeys_the_order_instead_of_beginning_a_new_life(stage: Stage) -> None:
    engine = stage.engine(quick)
    worker = engine.worker(lease=LEASE)
    async with worker:
        first = worker.id
        assert stage.store is not None
        dead = "UPDATE perdure_workers SET status = 'dead' WHERE id = :id"
        await stage.store._write("test", "t", lambda tx: tx.execute(dead, {"id": first}))
        assert not await engine.workers.drain(first)
        await eventually(lambda: "drains" in worker.problem)
    assert [one.id for one in await engine.workers.list()] == [first]


async def test_a_process_that_is_started_anew_works_although_its_last_one_was_drained(stage: Stage) -> None:
    engine = stage.engine(quick)
    worker = engine.worker(lease=LEASE)
    async with worker:
        assert await engine.workers.drain(worker.id)
        await eventually(gone(engine, worker.id))
    async with engine.worker():
        assert await (await engine.start(quick())).result("60s") == 1


async def test_an_unknown_worker_cannot_be_drained(stage: Stage) -> None:
    engine = stage.engine(quick)
    with pytest.raises(WorkerNotFound, match="'unknown'"):
        await engine.workers.drain("unknown")


@pytest.mark.shared
async def test_workers_show_their_build_and_runs_keep_the_one_that_began_them(stage: Stage) -> None:
    first, second = stage.engine(slow, quick, build="1.4.2"), stage.engine(slow, quick, build="1.5.0")
    run = await first.start(slow())
    worker = first.worker(grace="100ms")
    async with worker:
        await until(run, Status.RUNNING)
        assert (await the_worker(first, worker.id)).build == "1.4.2"
    GATES[-1].set()
    async with second.worker():
        assert await run.result("60s") == "done"
        other = await second.start(quick())
        await other.result("60s")
    assert ((await run.info()).build, (await other.info()).build) == ("1.4.2", "1.5.0")
    assert [one.id for one in (await first.runs.list(build="1.5.0")).runs] == [other.id]


async def test_the_build_is_that_of_the_checkout_by_default_and_a_bad_one_is_refused(on_disk: Stage) -> None:
    commit = commit_of(Path(__file__))
    assert build_of({"drain.quick.v1": quick}) == (f"g{commit}" if commit else "")
    assert build_of({}) == ""
    for build in ("", "  ", "x" * 201, 7, "a\0"):
        with pytest.raises(UsageError, match="build="):
            Engine("sqlite://", [quick], build=build)  # type: ignore[arg-type] # that is the test


@pytest.mark.parametrize("installed", ["msgspec", "attr", "_pytest", "yaml", "six", "typing_extensions", "nowhere"])
def test_the_version_of_a_package_is_that_of_its_distribution_whose_name_may_differ(installed: str) -> None:
    names = metadata.packages_distributions().get(installed, [])
    expected = metadata.version(names[0]) if names else ""

    async def imported(ctx: Context) -> None: ...

    imported.__module__ = f"{installed}.flows"
    assert build_of({"a": workflow("imported.v1")(imported)}) == expected


def test_a_script_has_no_version_and_no_metadata_is_searched_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched() -> NoReturn:
        raise AssertionError

    async def typed_in(ctx: Context) -> None: ...

    monkeypatch.setattr(metadata, "distributions", searched)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    typed_in.__module__ = "__main__"
    assert build_of({"a": workflow("typed.v1")(typed_in)}) == ""


def test_a_commit_is_found_in_every_kind_of_repository_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    file = tmp_path / "app" / "flows.py"
    file.parent.mkdir()
    assert commit_of(file) == ""
    git = tmp_path / ".git"
    (git / "refs" / "heads").mkdir(parents=True)
    assert commit_of(file) == ""
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(file) == ""
    (git / "packed-refs").write_text(f"# pack-refs\n{'f' * 40} refs/heads/other\n{commit} refs/heads/main\n")
    assert commit_of(file) == commit[:12]
    (git / "refs" / "heads" / "main").write_text(f"{commit[::-1]}\n")
    assert commit_of(file) == commit[::-1][:12]
    (git / "HEAD").write_text(f"{commit}\n")
    assert commit_of(file) == commit[:12]
    assert commit_of(tmp_path / ".venv" / "lib" / "site-packages" / "shop.py") == ""
    tree = tmp_path / "tree"
    (git / "worktrees" / "tree").mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {git / 'worktrees' / 'tree'}\n")
    (git / "worktrees" / "tree" / "commondir").write_text("../..\n")
    (git / "worktrees" / "tree" / "HEAD").write_text("ref: refs/heads/main\n")
    assert commit_of(tree / "flows.py") == commit[::-1][:12]
    (git / "HEAD").write_bytes(b"\xff\0 nonsense")
    assert commit_of(file) == ""


async def test_the_priority_of_a_run_is_changed_until_it_has_finished(stage: Stage) -> None:
    engine = stage.engine(quick)
    low, high = await engine.start(quick(), priority=50), await engine.start(quick(), priority=60)
    assert await high.set_priority(1, "a customer waits")
    assert not await engine.runs.set_priority(high.id, 1)
    [event] = (await engine.audit.list(run=high.id, kind="priority_changed")).events
    assert '"reason":"a customer waits"' in event.data
    async with engine.worker(slots=1):
        assert [await run.result("60s") for run in (low, high)] == [1, 1]
    first, second = await high.info(), await low.info()
    assert first.started_at <= second.started_at
    assert not await high.set_priority(7)
    with pytest.raises(RunNotFound):
        await engine.runs.set_priority("unknown", 7)
    for priority in (None, 1.5, True, 2**40, "high"):
        with pytest.raises(UsageError, match="priority"):
            await high.set_priority(priority)  # type: ignore[arg-type] # that is the test
