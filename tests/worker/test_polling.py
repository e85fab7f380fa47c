"""Options of a worker's polls, and their pace."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Engine, workflow
from perdure.core.model.claim import ClaimRequest, ClaimResult
from perdure.core.policy.poll_backoff import PollBackoff, check_poll_backoff
from perdure.errors import UsageError
from perdure.host import Host
from perdure.store import Store, open_store
from perdure.worker import WorkerSettings
from tests.helpers import eventually
from tests.stage import Stage

pytestmark = pytest.mark.every_database


@workflow("polling.v1")
async def simple(ctx: Context) -> int:
    return 1


def test_the_numbers_of_an_adaptive_poll_are_options() -> None:
    settings = WorkerSettings.of(
        poll_interval="30s",
        poll_backoff={"first": "1s", "shortest": "500ms", "longest": "30s", "idle": 1.2, "busy": 0.8},
    )
    assert settings.poll_interval == 30.0
    backoff, pauses = settings.poll_backoff, [settings.poll_backoff.first]
    for _ in range(30):
        pauses.append(backoff.after_nothing(pauses[-1], backoff.longest))
    assert pauses[:3] == [1.0, 1.2, pytest.approx(1.44)]
    assert pauses[-1] == 30.0
    for _ in range(30):
        pauses.append(backoff.after_work(pauses[-1]))
    assert pauses[31] == 24.0
    assert pauses[-1] == 0.5


def test_by_default_work_brings_back_the_shortest_pause() -> None:
    backoff = PollBackoff()
    assert backoff.after_work(30.0) == backoff.shortest == backoff.first == 0.005


@pytest.mark.parametrize(
    "wrong",
    [
        {"poll_interval": 0},
        {"poll_interval": "soon"},
        {"poll_backoff": 3},
        {"poll_backoff": {"slowest": 1}},
        {"poll_backoff": {"idle": 0.5}},
        {"poll_backoff": {"busy": 2}},
        {"poll_backoff": {"idle": "much"}},
        {"poll_backoff": {"idle": float("nan")}},
        {"poll_backoff": {"shortest": 0}},
        {"poll_backoff": {"first": "2s", "longest": "1s"}},
        {"worker_id": ""},
        {"worker_id": 3},
        {"worker_id": "x" * 200},
    ],
    ids=str,
)
def test_an_option_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(UsageError, match=name):
        WorkerSettings.of(**wrong)


def test_a_shortest_pause_alone_moves_the_first_one() -> None:
    assert check_poll_backoff({"shortest": "1s"}).first == 1.0


async def test_a_worker_has_the_id_that_it_was_given_and_no_other_worker_has_it(stage: Stage) -> None:
    engine = stage.engine(simple)
    async with engine.worker(worker_id="billing-1") as first, engine.worker(worker_id="billing-1") as second:
        run = await engine.start(simple())
        assert await run.result("60s") == 1
        assert first.id != second.id
        listed = [one.id for one in await engine.workers.list()]
        assert sorted(listed) == sorted([first.id, second.id])
        assert all(one.startswith("billing-1.") for one in listed)


class Watched:
    """A store that counts claims and polls, and says whether it is notified."""

    poll_interval = 0.02

    def __init__(self, store: Store, *, is_notified: bool) -> None:
        self._store = store
        self.is_notified = is_notified
        self.claims = self.polls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def poll_changes(self, *, watch: bool = True) -> bool:
        self.polls += 1
        return True

    async def claim(self, request: ClaimRequest) -> ClaimResult:
        self.claims += 1
        return await self._store.claim(request)


async def test_a_worker_that_is_notified_polls_rarely_and_one_that_is_no_longer_polls_again(tmp_path: Path) -> None:
    system = Host()
    store = Watched(open_store(f"sqlite:///{tmp_path}/runs.db", system), is_notified=True)
    async with (
        Engine("sqlite:///runs.db", [simple], system=system, store=store) as engine,
        engine.worker(poll_backoff={"idle": 10.0}),
    ):
        await eventually(lambda: store.polls >= 3, saying="polls that become rare")
        before = store.polls
        await asyncio.sleep(1)
        assert store.polls <= before + 1
        store.is_notified = False
        # The store tells its listeners when it loses its notifications.
        await engine.start(simple())
        await eventually(lambda: store.polls > before + 20, saying="frequent polls")


async def test_a_worker_that_holds_a_run_does_not_rely_on_notifications(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    @workflow("polling.busy.v1")
    async def busy(ctx: Context) -> None:
        await ctx.step(go_on.wait)

    system = Host()
    store = Watched(open_store(f"sqlite:///{tmp_path}/runs.db", system), is_notified=True)
    async with (
        Engine("sqlite:///runs.db", [busy], system=system, store=store) as engine,
        engine.worker(),
    ):
        run = await engine.start(busy())
        before = store.polls
        await eventually(lambda: store.polls > before + 20, saying="frequent polls")
        go_on.set()
        await run.result("60s")
