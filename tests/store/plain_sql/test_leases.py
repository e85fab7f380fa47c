"""Runs of workers in other languages are reclaimed if their worker is silent, and only then."""

from __future__ import annotations

from typing import Any

from perdure.testing.conformance.harness import a_worker
from tests.store.plain_sql.places import SECOND, Plain


async def lost(plain: Plain, run_id: str, worker: str = "gone") -> dict[str, Any]:
    """Let a worker claim a run and stay silent; return its lease."""
    [row] = [row for row in await plain.do("claim", worker=worker, lease=1) if row["id"] == run_id]
    return {name: row[name] for name in ("id", "token", "nonce")}


async def test_a_run_whose_lease_is_over_goes_to_others_and_its_former_holder_can_write_nothing(plain: Plain) -> None:
    run_id = await plain.insert()
    lease = await lost(plain, run_id)
    assert (await plain.store.sweep(10)).released == 1
    row = await plain.row(run_id)
    assert (row["status"], row["token"], row["lease_until"], row["worker"]) == ("pending", 2, 0, None)
    assert (await plain.one("complete", **lease, output="1"))["outcome"] == "lost"
    assert await plain.do("heartbeat", **lease) == []
    [taken] = await plain.do("claim")
    assert (taken["token"], taken["attempt"]) == (3, 1)
    assert await plain.events(run_id) == ["created", "started", "reclaimed"]


async def test_workers_of_python_leave_alone_what_others_hold(plain: Plain) -> None:
    await plain.store.register(a_worker("ours"))
    # A worker through plain SQL is not mistaken for a worker in Python of the same name.
    ids = [await plain.insert() for _ in range(3)]
    await plain.do("claim", worker="node-1", number=2)
    await plain.do("claim", worker="ours")
    swept = await plain.store.sweep(10)
    assert (swept.released, swept.dead_workers, swept.more) == (0, (), False)
    assert await plain.store.leases("ours") == []
    await plain.store.retire("ours")
    assert {(await plain.row(run_id))["status"] for run_id in ids} == {"running"}


async def test_a_sweep_is_bounded_and_says_that_there_is_more(plain: Plain) -> None:
    for _ in range(5):
        await plain.insert()
    for number in range(3):
        await plain.do("claim", worker=f"gone-{number}", number=2, lease=1)
    swept = [await plain.store.sweep(2) for _ in range(3)]
    assert [(one.released, one.more) for one in swept] == [(2, True), (2, True), (1, False)]


async def test_a_run_that_was_lost_twice_is_given_out_alone_and_after_five_times_it_is_set_aside(plain: Plain) -> None:
    run_id = await plain.insert(priority=1)
    for _ in range(2):
        await lost(plain, run_id)
        await plain.store.sweep(10)
    others = [await plain.insert() for _ in range(3)]
    for _ in range(3):
        [row] = await plain.do("claim", worker="gone", lease=1)
        assert row["id"] == run_id
        await plain.store.sweep(10)
    assert ((await plain.row(run_id))["status"], (await plain.row(run_id))["reason"]) == ("blocked", "poison")
    assert "kept dying" in await plain.why(run_id)
    assert sorted(row["id"] for row in await plain.do("claim")) == sorted(others)


async def test_a_suspect_does_not_hold_up_what_comes_first(plain: Plain) -> None:
    run_id = await plain.insert(priority=100)
    for _ in range(2):
        await lost(plain, run_id)
        await plain.store.sweep(10)
    first = await plain.insert(priority=1)
    assert [row["id"] for row in await plain.do("claim", lease=60 * SECOND)] == [first]
    assert [row["id"] for row in await plain.do("claim")] == [run_id]
