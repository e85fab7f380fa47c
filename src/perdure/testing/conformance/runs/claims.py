"""Claims of runs: their order, their owners, and the fate of runs that kill their workers."""

from __future__ import annotations

import pytest

from perdure.core.model.claim import ClaimByIdRequest, ClaimRequest
from perdure.core.model.run import Reason, RunFilter, Status
from perdure.core.model.turn import Finish, Release, RetryLater
from perdure.core.model.worker_info import WorkerStatus
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    a_message,
    a_park,
    a_record,
    a_run,
    a_worker,
    claim,
    claim_ids,
    commit,
    held,
    retry,
    snapshot,
)


class Claims:
    """A run is held by one worker at a time."""

    async def test_a_ready_run_is_claimed_once(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        assert await claim_ids(store, "w1") == ["r1"]
        assert await claim_ids(store, "w2") == []

    async def test_a_claim_makes_a_lease(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        [claimed] = (await claim(store, "w1", nonce="n1")).runs
        assert (claimed.run.status, claimed.run.worker, claimed.run.token) == (Status.RUNNING, "w1", 1)
        assert (claimed.run.nonce, claimed.run.claims) == ("n1", 1)
        assert await store.get("r1") == claimed.run
        assert await store.leases("w1") == [claimed.lease]

    async def test_no_more_than_the_limit_is_claimed(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(5)], ACTOR)
        assert len(await claim_ids(store, limit=3)) == 3
        assert len(await claim_ids(store, nonce="next", limit=3)) == 2

    async def test_a_limit_of_nothing_takes_nothing(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        assert await claim_ids(store, limit=0) == []

    async def test_only_the_types_and_queues_asked_for_are_claimed(self, store: Store) -> None:
        await store.create([a_run("a"), a_run("b", type=OTHER_TYPE), a_run("c", queue="slow")], ACTOR)
        assert await claim_ids(store) == ["a"]
        assert await claim_ids(store, nonce="2", types=(OTHER_TYPE,)) == ["b"]
        assert await claim_ids(store, nonce="3", queues=("slow", "unknown")) == ["c"]

    async def test_no_types_mean_no_runs(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        assert await claim_ids(store, types=()) == []

    async def test_workflow_time_begins_at_the_first_claim(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=Release())
        harness.system.advance(5)
        [claimed] = (await claim(store, nonce="later")).runs
        assert claimed.run.started_at == START

    async def test_the_seed_is_random_and_made_once(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        first = {claimed.run.id: claimed for claimed in (await claim(store)).runs}
        assert len({claimed.run.seed for claimed in first.values()} - {""}) == 2
        await commit(store, first["r1"].lease, next=Release())
        [again] = (await claim(store, nonce="later")).runs
        assert again.run.seed == first["r1"].run.seed

    async def test_a_run_without_history_is_fresh(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        [claimed] = (await claim(store)).runs
        assert claimed.fresh
        await commit(store, claimed.lease, a_record(0), next=Release())
        [again] = (await claim(store, nonce="later")).runs
        assert not again.fresh

    async def test_a_worker_that_is_not_alive_gets_nothing(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        await store.register(a_worker("w1"))
        await store.retire("w1")
        assert (await claim(store, "w1")).runs == ()
        assert [worker.status for worker in await store.workers()] == [WorkerStatus.STOPPED]

    async def test_something_unread_marks_the_run_at_once(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        await store.send([a_message("r1")], ACTOR)
        await claim(store)
        assert [(message.run_id, message.key) for message in await store.unread_messages_of_worker("w1")] == [
            ("r1", "k1")
        ]

    async def test_a_run_past_its_deadline_is_still_handed_out(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1", deadline=START + SECOND)], ACTOR)
        harness.system.advance(2)
        assert await claim_ids(store) == ["r1"]

    async def test_a_claim_tells_the_time(self, store: Store, harness: Harness) -> None:
        harness.system.advance(3)
        assert (await claim(store)).now == START + 3 * SECOND
        assert await store.now() == START + 3 * SECOND

    async def test_every_claim_is_in_the_audit_trail(self, store: Store) -> None:
        await held(store)
        assert [(event.kind, event.actor) for event in await store.events("r1")] == [
            ("created", ACTOR),
            ("started", "w1"),
        ]


class Builds:
    """A run keeps the build that began it."""

    async def test_the_first_claim_decides(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        await store.register(a_worker())
        first, _ = (await claim(store, build="1.0")).runs
        await commit(store, first.lease, next=Release())
        assert await claim_ids(store, nonce="again", build="2.0") == ["r1"]
        await store.create([a_run("r3")], ACTOR)
        assert await claim_ids(store, nonce="other", build="2.0") == ["r3"]
        assert {run.id: run.build for run in await store.get_many(["r1", "r2", "r3"])} == {
            "r1": "1.0", "r2": "1.0", "r3": "2.0",
        }  # fmt: skip
        assert [run.id for run in (await store.list(RunFilter(build="1.0"), 10, None)).runs] == ["r2", "r1"]

    async def test_a_run_that_no_build_began_has_none(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        await store.register(a_worker())
        assert await claim_ids(store, limit=1) == ["r1"]
        assert [run.build for run in await store.get_many(["r1", "r2"])] == ["", ""]

    async def test_a_claim_by_id_keeps_it_too(self, store: Store) -> None:
        await store.create([a_run("r1")], ACTOR)
        await store.register(a_worker())
        request = ClaimByIdRequest(run_id="r1", worker="w1", nonce="n", types=(TYPE,), build="1.0")
        assert (await store.claim_by_id(request)).claimed is not None
        run = await store.get("r1")
        assert run is not None
        assert run.build == "1.0"


class LostClaims:
    """An answer that got lost strands nothing."""

    async def test_the_same_nonce_gets_the_same_runs(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"r{number}") for number in range(3)], ACTOR)
        first = await claim(store, nonce="n", limit=2)
        before = await snapshot(harness)
        again = await claim(store, nonce="n", limit=2)
        assert again.runs == first.runs
        assert await snapshot(harness) == before

    async def test_another_nonce_gets_other_runs(self, store: Store) -> None:
        await store.create([a_run(f"r{number}") for number in range(3)], ACTOR)
        assert await claim_ids(store, nonce="n", limit=2) == ["r0", "r1"]
        assert await claim_ids(store, nonce="m", limit=2) == ["r2"]

    async def test_a_worker_can_read_what_it_is_said_to_hold(self, store: Store) -> None:
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        got = await claim(store)
        assert {lease.run_id: lease for lease in await store.leases("w1")} == {
            claimed.run.id: claimed.lease for claimed in got.runs
        }
        assert await store.leases("w2") == []

    async def test_what_it_does_not_know_it_can_give_back(self, store: Store) -> None:
        await held(store)
        [lease] = await store.leases("w1")
        await commit(store, lease, next=Release())
        assert await store.leases("w1") == []
        assert await claim_ids(store, "w2") == ["r1"]


class Order:
    """Priority first, then who is ready for longest, then the id; a share goes by age alone."""

    async def create_over_time(self, store: Store, harness: Harness, *priorities: tuple[str, int]) -> None:
        for id, priority in priorities:
            await store.create([a_run(id, priority=priority)], ACTOR)
            harness.system.advance(1)

    async def test_lower_priorities_go_first_and_then_the_oldest(self, store: Store, harness: Harness) -> None:
        await self.create_over_time(store, harness, ("a", 50), ("b", 10), ("c", 50), ("d", 10))
        assert await claim_ids(store) == ["b", "d", "a", "c"]

    async def test_equals_go_by_id(self, store: Store) -> None:
        await store.create([a_run(id) for id in ("c", "a", "b")], ACTOR)
        assert await claim_ids(store) == ["a", "b", "c"]

    async def test_types_and_queues_are_merged_into_one_order(self, store: Store, harness: Harness) -> None:
        for number in range(40):
            type = TYPE if number % 3 else OTHER_TYPE
            queue = "default" if number % 2 else "slow"
            await store.create([a_run(f"r{number:02}", type=type, queue=queue)], ACTOR)
            harness.system.advance(1)
        expected = [f"r{number:02}" for number in range(40)]
        assert await claim_ids(store, limit=40, types=(TYPE, OTHER_TYPE), queues=("slow", "default")) == expected

    async def test_a_share_goes_to_the_oldest_whatever_their_priority(self, store: Store, harness: Harness) -> None:
        await self.create_over_time(store, harness, ("old", 90), ("older-still", 80))
        await store.create([a_run(f"urgent{number}", priority=1) for number in range(5)], ACTOR)
        assert await claim_ids(store, limit=3, by_age=1) == ["urgent0", "urgent1", "old"]

    async def test_the_share_is_filled_up_when_few_are_ready(self, store: Store) -> None:
        await store.create([a_run("a"), a_run("b")], ACTOR)
        assert await claim_ids(store, limit=4, by_age=2) == ["a", "b"]
        await store.create([a_run(f"c{number}") for number in range(4)], ACTOR)
        assert len(await claim_ids(store, nonce="next", limit=4, by_age=2)) == 4

    async def test_runs_of_many_types_are_claimed_in_order(self, store: Store) -> None:
        types = tuple(f"many.t{number:02}.v1" for number in range(40))
        # Most runs are of one type; those of the others come in between.
        made = [
            a_run(f"r{number:03}", type=types[number % 40 if number % 3 else 7], priority=number % 4)
            for number in range(120)
        ]
        await store.create(made, ACTOR)
        await store.register(a_worker("w1", types=types))
        order = [one.id for one in sorted(made, key=lambda one: (one.priority, one.id))]
        for place in range(0, 105, 7):
            request = ClaimRequest(worker="w1", nonce=f"n{place}", limit=7, types=types)
            claimed = await store.claim(request)
            assert [one.run.id for one in claimed.runs] == order[place : place + 7]
            assert [one.run.type for one in claimed.runs] == [
                next(run.type for run in made if run.id == one.run.id) for one in claimed.runs
            ]
        rest = ClaimRequest(worker="w1", nonce="rest", limit=100, by_age=20, types=types)
        assert [one.run.id for one in (await store.claim(rest)).runs] == order[105:]

    async def test_of_many_types_a_share_is_claimed_by_age(self, store: Store, harness: Harness) -> None:
        types = tuple(f"many.t{number:02}.v1" for number in range(40))
        await store.create([a_run("old", type=types[3], priority=200)], ACTOR)
        harness.system.advance(1)
        await store.create([a_run(f"r{number:03}", type=types[number % 40]) for number in range(100)], ACTOR)
        await store.register(a_worker("w1", types=types))
        request = ClaimRequest(worker="w1", nonce="n", limit=10, by_age=2, types=types)
        claimed = [one.run.id for one in (await store.claim(request)).runs]
        assert claimed == [*(f"r{number:03}" for number in range(8)), "old", "r008"]

    async def test_a_due_run_is_ready_since_it_was_due(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("timer", wake_at=START + SECOND)], ACTOR)
        harness.system.advance(2)
        await store.create([a_run("new")], ACTOR)
        got = await claim(store)
        assert [claimed.run.id for claimed in got.runs] == ["timer", "new"]
        assert got.runs[0].run.wake_at == START + SECOND


class Timers:
    """Waiting runs become ready by themselves, and a claim says when to look again."""

    async def test_a_run_is_not_claimed_before_its_time(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1", wake_at=START + 2 * SECOND)], ACTOR)
        got = await claim(store)
        assert (got.runs, got.next_wake) == ((), START + 2 * SECOND)
        harness.system.advance(1)
        assert await claim_ids(store, nonce="early") == []
        harness.system.advance(1)
        assert await claim_ids(store, nonce="due") == ["r1"]

    async def test_nothing_waiting_means_never(self, store: Store) -> None:
        assert (await claim(store)).next_wake == NEVER

    async def test_a_parked_run_comes_back_when_its_timer_is_due(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park(wake_at=START + SECOND, reason=Reason.TIMER))
        harness.system.advance(1)
        [claimed] = (await claim(store, nonce="due")).runs
        assert (claimed.run.token, claimed.run.reason) == (2, None)

    async def test_a_claim_answers_with_all_that_it_took_whatever_becomes_due_meanwhile(
        self, store: Store, harness: Harness
    ) -> None:
        await store.create([a_run(f"ready{number:03}") for number in range(200)], ACTOR)
        timers = [a_run(f"timer{number:03}", wake_at=START + 10_000 + 14_300 * number) for number in range(100)]
        await store.create(timers, ACTOR)
        await store.register(a_worker())
        harness.system.advance(0.01)
        harness.system.tick = 1_000
        known: set[str] = set()
        for number in range(60):
            known.update(await claim_ids(store, nonce=f"n{number}", limit=2))
        assert {lease.run_id for lease in await store.leases("w1")} == known

    async def test_more_due_runs_than_one_claim_wakes_are_all_claimed(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"r{number}", wake_at=START + SECOND) for number in range(1500)], ACTOR)
        harness.system.advance(1)
        ids: set[str] = set()
        for number in range(16):
            got = await claim(store, nonce=f"n{number}", limit=100)
            ids.update(claimed.run.id for claimed in got.runs)
            assert len(ids) == 1500 or got.next_wake <= got.now or got.runs
        assert len(ids) == 1500

    async def test_due_runs_of_other_types_do_not_hold_up_ours(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"o{number}", type=OTHER_TYPE, wake_at=START + 1) for number in range(600)], ACTOR)
        await store.create([a_run("ours", wake_at=START + 2)], ACTOR)
        harness.system.advance(1)
        for number in range(3):
            if await claim_ids(store, nonce=f"n{number}"):
                return
        pytest.fail("the run was never claimed")


class Suspects:
    """A claim counts itself, so that a run that kills its workers is found, and its neighbours are not blamed."""

    async def crash(self, store: Store, harness: Harness, worker: str, **changes: object) -> list[str]:
        """Claim, then go away without a word."""
        ids = await claim_ids(store, worker, **changes)
        harness.system.advance(60)
        await store.sweep(100)
        return ids

    async def test_claims_without_progress_are_counted(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1")], ACTOR)
        for number in (1, 2):
            [claimed] = (await claim(store, f"w{number}")).runs
            assert claimed.run.claims == number
            harness.system.advance(60)
            await store.sweep(100)

    async def test_a_longer_history_is_progress(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1")], ACTOR)
        for number in range(6):
            [claimed] = (await claim(store, f"w{number}")).runs
            assert claimed.run.claims == 1
            await commit(store, claimed.lease, a_record(number))
            harness.system.advance(60)
            await store.sweep(100)

    async def test_history_from_before_the_last_claim_is_no_progress(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, a_record(0), a_record(1), next=a_park())
        await store.send([a_message()], ACTOR)
        await self.crash(store, harness, "w2")
        [claimed] = (await claim(store, "w3")).runs
        assert claimed.run.claims == 2

    @pytest.mark.parametrize(
        "next", [a_park(wake_at=START), Release(), RetryLater(START, "{}")], ids=["park", "release", "again"]
    )
    async def test_giving_it_up_in_order_is_progress(self, store: Store, harness: Harness, next: Release) -> None:
        await store.create([a_run("r1")], ACTOR)
        await self.crash(store, harness, "w1")
        [claimed] = (await claim(store, "w2")).runs
        assert claimed.run.claims == 2
        await commit(store, claimed.lease, next=next)
        [claimed] = (await claim(store, "w2", nonce="later")).runs
        assert claimed.run.claims == 1

    async def test_a_suspect_is_passed_over_and_reported(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("bad", priority=1)], ACTOR)
        await self.crash(store, harness, "w1")
        await self.crash(store, harness, "w2")
        await store.create([a_run("good")], ACTOR)
        got = await claim(store, "w3")
        assert ([claimed.run.id for claimed in got.runs], got.suspects) == (["good"], True)

    async def test_any_number_of_suspects_delays_no_other_run(self, store: Store, harness: Harness) -> None:
        await store.create([a_run(f"bad{number}", priority=1) for number in range(50)], ACTOR)
        await self.crash(store, harness, "w1", limit=50)
        await self.crash(store, harness, "w2", limit=50)
        await store.create([a_run("good")], ACTOR)
        assert await claim_ids(store, "w3", limit=2, by_age=1) == ["good"]

    async def test_a_suspect_is_taken_alone_by_a_worker_that_is_alone(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("bad", priority=1)], ACTOR)
        await self.crash(store, harness, "w1")
        await self.crash(store, harness, "w2")
        await store.create([a_run("good")], ACTOR)
        got = await claim(store, "w3", alone=True)
        assert [(claimed.run.id, claimed.run.claims) for claimed in got.runs] == [("bad", 3)]
        assert await claim_ids(store, "w4") == ["good"]

    async def suspects(self, store: Store, harness: Harness, number: int) -> list[str]:
        """So many runs that two workers died with."""
        ids = [f"s{place:02}" for place in range(number)]
        await store.create([a_run(id) for id in ids], ACTOR)
        assert await self.crash(store, harness, "first", limit=number) == ids
        assert await self.crash(store, harness, "second", limit=number) == ids
        return ids

    async def test_suspects_that_died_together_are_tried_together(self, store: Store, harness: Harness) -> None:
        ids = await self.suspects(store, harness, 9)
        await store.create([a_run("good")], ACTOR)
        got = await claim(store, "w3", alone=True)
        assert [claimed.run.id for claimed in got.runs] == ids
        assert await claim_ids(store, "w4", alone=True) == ["good"]

    async def test_no_more_suspects_are_tried_together_than_the_limit(self, store: Store, harness: Harness) -> None:
        ids = await self.suspects(store, harness, 9)
        assert await claim_ids(store, "w3", alone=True, limit=5) == ids[:5]
        assert await claim_ids(store, "w4", alone=True, limit=5) == ids[5:]

    async def test_the_death_of_a_group_halves_it(self, store: Store, harness: Harness) -> None:
        ids = await self.suspects(store, harness, 9)
        assert await self.crash(store, harness, "w3", alone=True) == ids
        assert await claim_ids(store, "w4", alone=True) == ids[:5]
        assert await claim_ids(store, "w5", alone=True) == ids[5:7]
        harness.system.advance(60)
        await store.sweep(100)
        assert [len(await claim_ids(store, f"w{number}", alone=True)) for number in range(6, 12)] == [1, 1, 3, 1, 1, 1]

    async def test_suspects_of_different_deaths_are_tried_apart(self, store: Store, harness: Harness) -> None:
        await store.create(
            [a_run("a1"), a_run("a2"), a_run("b1", type=OTHER_TYPE), a_run("b2", type=OTHER_TYPE)], ACTOR
        )
        for number in range(2):
            await claim(store, f"a{number}")
            await self.crash(store, harness, f"b{number}", types=(OTHER_TYPE,))
        both = (TYPE, OTHER_TYPE)
        assert await claim_ids(store, "w3", alone=True, types=both) == ["a1", "a2"]
        assert await claim_ids(store, "w4", alone=True, types=both) == ["b1", "b2"]

    async def test_a_death_in_company_counts_against_no_suspect(self, store: Store, harness: Harness) -> None:
        await self.suspects(store, harness, 2)
        for number in range(10):
            await claim(store, f"w{number}", nonce=f"n{number}", alone=True)
            await claim(store, f"w{number}", nonce=f"m{number}", alone=True)
            harness.system.advance(60)
            await store.sweep(100)
        runs = await store.get_many(["s00", "s01"])
        assert [(run.status, run.claims) for run in runs] == [(Status.PENDING, 2)] * 2

    @pytest.mark.parametrize("batch", [2, 3, 4, 5, 100])
    async def test_no_batch_of_a_sweep_takes_company_for_solitude(
        self, store: Store, harness: Harness, batch: int
    ) -> None:
        await self.suspects(store, harness, 7)
        for number in range(2):
            for half in range(3):
                await claim(store, f"w{number}", nonce=f"n{number}-{half}", alone=True)
            assert len(await store.leases(f"w{number}")) == 7
            harness.system.advance(60)
            while (await store.sweep(batch)).more:
                pass
        assert {run.claims for run in await store.get_many([f"s{place:02}" for place in range(7)])} == {2}

    @pytest.mark.parametrize("deadly", [["s41"], ["s00"], ["s59"], ["s03", "s04", "s50"]])
    async def test_of_many_those_that_kill_are_found_and_the_others_are_cleared(
        self, store: Store, harness: Harness, deadly: list[str]
    ) -> None:
        ids = await self.suspects(store, harness, 60)
        deaths = 0
        for number in range(100):
            got = await claim(store, f"w{number}", alone=True, limit=100)
            if not got.runs:
                break
            if any(claimed.run.id in deadly for claimed in got.runs):
                deaths += 1
                harness.system.advance(60)
                await store.sweep(100)
            else:
                for claimed in got.runs:
                    await commit(store, claimed.lease, next=Finish(Status.COMPLETED, "1"))
        runs = {run.id: run.status for run in await store.get_many(ids)}
        assert runs == {id: Status.BLOCKED if id in deadly else Status.COMPLETED for id in ids}
        # Of all, then of 30, 15, 8, 4 and 2 at the most; then three times alone.
        assert deaths <= 1 + len(deadly) * (5 + 3)

    async def test_nothing_is_set_aside_that_never_died_alone(self, store: Store, harness: Harness) -> None:
        ids = await self.suspects(store, harness, 4)
        assert await claim_ids(store, "w3", alone=True, poison_after=1) == ids

    async def test_a_worker_that_is_alone_gets_the_usual_when_there_is_no_suspect(self, store: Store) -> None:
        await store.create([a_run("a"), a_run("b")], ACTOR)
        assert await claim_ids(store, alone=True) == ["a", "b"]

    async def test_what_was_alone_and_made_no_progress_is_set_aside(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("bad")], ACTOR)
        for number in range(5):
            assert await self.crash(store, harness, f"w{number}", alone=True) == ["bad"]
        assert await claim_ids(store, "w9", alone=True) == []
        run = await store.get("bad")
        assert run is not None
        assert (run.status, run.reason) == (Status.BLOCKED, Reason.POISON)
        assert run.error is not None
        assert "bad" in run.error
        assert (await store.events("bad"))[-1].kind == "blocked"

    async def test_an_unblocked_one_starts_with_a_clean_record(self, store: Store, harness: Harness) -> None:
        await self.test_what_was_alone_and_made_no_progress_is_set_aside(store, harness)
        await retry(store, "bad")
        [claimed] = (await claim(store, "w9", nonce="again")).runs
        assert claimed.run.claims == 1

    async def test_a_suspect_that_made_progress_is_none(self, store: Store, harness: Harness) -> None:
        await store.create([a_run("r1")], ACTOR)
        await self.crash(store, harness, "w1")
        [claimed] = (await claim(store, "w2")).runs
        await commit(store, claimed.lease, a_record(0))
        harness.system.advance(60)
        await store.sweep(100)
        assert await claim_ids(store, "w3") == ["r1"]


class Affinity:
    """A run that has just become ready is left to its last worker for a moment."""

    WAIT = 100_000

    async def ready_again(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        await commit(store, lease, next=a_park())
        await store.register(a_worker("w2"))
        await store.send([a_message()], ACTOR)

    async def test_others_leave_it_alone_for_a_moment(self, store: Store, harness: Harness) -> None:
        await self.ready_again(store, harness)
        assert await claim_ids(store, "w2", affinity=self.WAIT) == []
        assert await claim_ids(store, "w1", nonce="later", affinity=self.WAIT) == ["r1"]

    async def test_others_take_it_when_the_moment_has_passed(self, store: Store, harness: Harness) -> None:
        await self.ready_again(store, harness)
        harness.system.advance(self.WAIT / SECOND)
        assert await claim_ids(store, "w2", affinity=self.WAIT) == ["r1"]

    async def test_others_take_it_at_once_when_its_last_worker_is_gone(self, store: Store, harness: Harness) -> None:
        await self.ready_again(store, harness)
        await store.retire("w1")
        assert await claim_ids(store, "w2", affinity=self.WAIT) == ["r1"]

    async def test_a_released_run_is_for_anybody(self, store: Store) -> None:
        lease = await held(store)
        await store.register(a_worker("w2"))
        await commit(store, lease, next=Release())
        assert await claim_ids(store, "w2", affinity=self.WAIT) == ["r1"]

    async def test_it_does_not_hold_up_what_stands_behind_it(self, store: Store, harness: Harness) -> None:
        await self.ready_again(store, harness)
        await store.create([a_run("r2")], ACTOR)
        assert await claim_ids(store, "w2", limit=1, affinity=self.WAIT) == ["r2"]

    async def test_a_new_run_belongs_to_no_worker(self, store: Store) -> None:
        await store.register(a_worker("w2"))
        await store.create([a_run("r1")], ACTOR)
        assert await claim_ids(store, "w1", affinity=self.WAIT) == ["r1"]

    async def test_a_finished_run_is_claimed_by_no_worker(self, store: Store) -> None:
        lease = await held(store)
        await commit(store, lease, next=Finish(Status.COMPLETED, "1"))
        assert await claim_ids(store, "w2") == []
