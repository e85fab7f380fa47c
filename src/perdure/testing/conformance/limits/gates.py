"""Gates: who passes, who waits in line and when it is looked at again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from perdure.core.audit import NEXT
from perdure.core.limits.admission_requests import AdmissionRequest, AdmissionResult, RunArrival
from perdure.core.limits.limit import STRIDE, LimitBounds, PermitScope, RequiredGate, RequiredGates
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Run, Status
from perdure.core.model.run_orders import OrderOutcome, Pause, PauseKind, RunOrder
from perdure.core.model.turn import Finish, Release, RetryLater
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.store.contract import NewEvent
from perdure.testing.conformance.harness import (
    ACTOR,
    OTHER_TYPE,
    SECOND,
    START,
    TYPE,
    Harness,
    Unshared,
    a_message,
    a_park,
    a_run,
    a_worker,
    claim,
    commit,
    held,
    retry,
    snapshot,
)

GATE = "external"
ONE = LimitBounds(concurrency=1)
#: Two at once, and then one a second.
SLOWLY = LimitBounds(pace=SECOND, burst=2)
DONE = Finish(Status.COMPLETED, "1")


def a_gating(
    bounds: LimitBounds = ONE, *, gate: str = GATE, hold: PermitScope = PermitScope.LEASE, **changes: Any
) -> RequiredGates:
    """Gates that a run has to pass: one."""
    return RequiredGates((RequiredGate(gate, bounds, hold),), **changes)


async def ready(store: Store, *ids: str, **changes: Any) -> None:
    """Runs that may begin, each a little later than the one before."""
    for id in ids:
        await store.create([a_run(id, **changes)], ACTOR)


async def asks(
    store: Store,
    gating: RequiredGates | dict[str, RequiredGates] | None = None,
    *,
    worker: str = "w1",
    nonce: str = "",
    types: tuple[str, ...] = (TYPE,),
    queues: tuple[str, ...] = ("default",),
    **changes: Any,
) -> AdmissionRequest:
    """Request of a worker that has looked at the arrivals; the same `gating` for all, or one for each."""
    await store.register(a_worker(worker))
    arrived = (await store.preview_admission([(queue, type) for queue in queues for type in types], 100)).arrived
    arrivals = tuple(
        RunArrival(
            one.run_id, one.token, (gating or {})[one.run_id] if isinstance(gating, dict) else gating or a_gating()
        )
        for one in arrived
    )
    fields: dict[str, Any] = {"limit": 10, "types": types, "queues": queues, "arrivals": arrivals} | changes
    return AdmissionRequest(worker=worker, nonce=nonce or f"admits-{worker}-{len(arrivals)}", **fields)


async def admit_patiently(store: Store, request: AdmissionRequest) -> AdmissionResult:
    """Admit as a worker does: ask again for gates that are locked or have to be made first."""
    while True:
        admitted = await store.admit(request)
        if admitted.runs or not (admitted.busy or admitted.next_due <= admitted.now):
            return admitted


async def admit(
    store: Store, gating: RequiredGates | dict[str, RequiredGates] | None = None, **changes: Any
) -> AdmissionResult:
    """Look, and have pass what may."""
    return await store.admit(await asks(store, gating, **changes))


async def admit_ids(
    store: Store, gating: RequiredGates | dict[str, RequiredGates] | None = None, **changes: Any
) -> list[str]:
    """The ids of those who passed."""
    return [one.run.id for one in (await admit(store, gating, **changes)).runs]


async def there(store: Store, id: str) -> Run:
    """A run that is there."""
    run = await store.get(id)
    assert run is not None
    return run


class Looking:
    """Arrivals are looked at without being touched."""

    async def test_what_is_ready_is_seen_as_it_is(self, store: Store, harness: Harness) -> None:
        await ready(store, "r1", "r2", input="[1]")
        await ready(store, "elsewhere", queue="q")
        await ready(store, "other", type=OTHER_TYPE)
        await ready(store, "later", wake_at=START + SECOND)
        await ready(store, "first", priority=-1)
        before = await snapshot(harness)
        look = await store.preview_admission([("default", TYPE)], 10)
        assert [one.run_id for one in look.arrived] == ["first", "r1", "r2"]
        assert (look.arrived[1].input, look.arrived[1].token, look.next_due, look.now) == ("[1]", 0, NEVER, START)
        assert (
            len((await store.preview_admission([("default", TYPE), ("q", TYPE), ("default", OTHER_TYPE)], 2)).arrived)
            == 4
        )
        last = await store.preview_admission([("default", TYPE)], 2, newest=True)
        assert [one.run_id for one in last.arrived] == ["r2", "r1"]
        assert await snapshot(harness) == before

    async def test_permits_in_use_name_their_runs_and_those_of_ended_runs_do_not_count(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        two = LimitBounds(concurrency=2)
        first, _ = (await admit(store, a_gating(two))).runs
        found = await store.permits([GATE, "nothing"], 10)
        assert [(one.limit, one.run_id, one.location) for one in found] == [(GATE, "r1", ""), (GATE, "r2", "")]
        assert all(one.worker and one.granted_at >= START for one in found)
        assert [one.run_id for one in await store.permits([GATE], 1)] == ["r1"]
        assert await store.permits([], 10) == []
        [waiting] = await store.waiting_runs([GATE, "nothing"], 10)
        assert (waiting.limit, waiting.run_id, waiting.location, waiting.key) == (GATE, "r3", "", "")
        assert waiting.since >= START
        assert await store.waiting_runs([GATE], 0) == await store.waiting_runs([], 10) == []
        await commit(store, first.lease, next=DONE)
        assert [one.run_id for one in await store.permits([GATE], 10)] == ["r2"]

    async def test_what_is_paused_is_not_seen(self, store: Store) -> None:
        await ready(store, "r1")
        await store.pause(Pause(kind=PauseKind.TYPE, name=TYPE), ACTOR)
        assert (await store.preview_admission([("default", TYPE)], 10)).arrived == ()

    async def test_a_run_that_stands_in_line_is_seen_no_more_and_says_where_it_stands(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        assert await store.waitlisted_types([TYPE, OTHER_TYPE]) == set()
        await admit(store)
        look = await store.preview_admission([("default", TYPE)], 10)
        assert look.arrived == ()
        assert look.next_due > START
        assert await store.waitlisted_types([TYPE, OTHER_TYPE]) == {TYPE}
        run = await there(store, "r3")
        assert (run.status, run.reason) == (Status.WAITING, Reason.LIMIT)
        standing = await store.waitlist_position("r3")
        assert standing is not None
        assert (standing.gate.name, standing.ahead, standing.since) == (GATE, 1, START)
        assert await store.waitlist_position("r1") is None

    async def test_gates_are_listed_in_the_order_of_their_names(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        await admit(store, {"r1": a_gating(gate="b"), "r2": a_gating(gate="a"), "r3": a_gating(gate="a")})
        first, second = await store.gates("", 10)
        assert (first.name, first.bounds, first.held, first.waiting) == ("a", ONE, 1, 1)
        assert (second.name, second.held, second.waiting, second.due_at) == ("b", 1, 0, 0)
        assert [gate.name for gate in await store.gates("a", 10)] == ["b"]
        assert [gate.name for gate in await store.gates("", 1)] == ["a"]


class Passing:
    """So many at once, in so much time, and no more."""

    async def test_what_passes_is_held_by_the_worker(self, store: Store) -> None:
        await ready(store, "r1")
        admitted = await admit(store, nonce="n")
        [one] = admitted.runs
        assert (one.run.status, one.run.worker, one.run.token, one.fresh) == (Status.RUNNING, "w1", 1, True)
        assert (one.lease.nonce, admitted.counted) == ("n", frozenset({"r1"}))
        run = await there(store, "r1")
        assert (run.status, run.started_at, run.wake_at) == (Status.RUNNING, START, START)
        assert [event.kind for event in await store.events("r1")] == ["created", "started"]
        assert await commit(store, one.lease, next=DONE)

    async def test_the_next_passes_when_there_is_room_and_no_sooner(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        [first] = (await admit(store)).runs
        assert await admit_ids(store, worker="w2") == []
        await commit(store, first.lease, next=DONE)
        released = (first.run.id, first.run.token)
        assert await admit_ids(store, nonce="then", released=(released,)) == ["r2"]
        assert await admit_ids(store, nonce="not yet", released=(released,)) == []

    async def test_a_former_holder_that_lets_go_late_frees_nothing_of_the_holder(
        self, store: Store, harness: Harness
    ) -> None:
        await ready(store, "r1")
        [first] = (await admit(store)).runs
        await commit(store, first.lease, next=Release())
        [again] = (await admit(store, worker="w2", nonce="again")).runs
        assert again.run.token > first.run.token
        await ready(store, "r2")
        assert await admit_ids(store, nonce="late", released=(("r1", first.run.token),)) == []
        rows = await harness.query("SELECT run_id, token FROM perdure_permits")
        assert rows == [("r1", again.run.token)]

    async def test_the_permit_of_an_earlier_lease_goes_although_the_run_passes_another_gate_now(
        self, store: Store, harness: Harness
    ) -> None:
        await ready(store, "r1")
        [first] = (await admit(store)).runs
        await commit(store, first.lease, next=Release())
        [again] = (await admit(store, a_gating(gate="another"), nonce="again")).runs
        rows = await harness.query("SELECT gate, run_id, token FROM perdure_permits")
        assert rows == [("another", "r1", again.run.token)]

    async def test_listeners_are_told_of_the_next_by_a_request_that_takes_no_run(self, store: Store) -> None:
        heard: list[NewEvent] = []
        store.observe_events(heard.extend)
        two = a_gating(LimitBounds(concurrency=2))
        await ready(store, "r1", "r2", "r3", "r4")
        first, second = (await admit(store, two)).runs
        await commit(store, first.lease, next=DONE)
        await commit(store, second.lease, next=DONE)
        released = (("r1", first.run.token), ("r2", second.run.token))
        # It asks again for more.
        [third] = (await admit(store, nonce="takes", limit=1, released=released)).runs
        assert [line[0] for line in heard if line[2] == NEXT] == []
        await commit(store, third.lease, next=DONE)
        assert await admit_ids(store, nonce="reports", limit=0, released=(("r3", third.run.token),)) == []
        assert [line[0] for line in heard if line[2] == NEXT] == ["r4"]

    async def test_a_permit_that_is_not_held_any_more_does_not_count_although_its_release_was_not_reported(
        self, store: Store, harness: Harness
    ) -> None:
        await ready(store, "r1", "r2")
        [first] = (await admit(store)).runs
        await commit(store, first.lease, next=a_park())
        assert await admit_ids(store, worker="w2") == [], "no worker has been told to look"
        await store.recheck_gates(ACTOR)
        assert await admit_ids(store, worker="w2") == ["r2"]
        assert len(await harness.query("SELECT * FROM perdure_permits")) == 1

    async def test_a_run_that_was_taken_away_makes_room(self, store: Store, harness: Harness) -> None:
        await ready(store, "r1", "r2")
        await admit(store)
        harness.system.advance(60)
        await store.register(a_worker("w2"))
        await store.sweep(10)
        await store.recheck_gates(ACTOR)
        assert await admit_ids(store, worker="w2") == ["r2"]
        assert await admit_ids(store, worker="w3") == []

    async def test_what_counts_to_its_end_counts_while_it_waits(self, store: Store) -> None:
        whole = a_gating(hold=PermitScope.RUN)
        await ready(store, "r1", "r2")
        [first] = (await admit(store, whole)).runs
        await commit(store, first.lease, next=a_park())
        await store.recheck_gates(ACTOR)
        assert await admit_ids(store, whole, nonce="next") == []
        await store.send([a_message("r1")], ACTOR)
        [again] = (await admit(store, whole, nonce="again")).runs
        assert again.run.id == "r1", "it has its permit"
        await commit(store, again.lease, next=DONE)
        released = (("r1", again.run.token),)
        assert await admit_ids(store, whole, nonce="then", released=released) == ["r2"]

    async def test_what_was_let_in_to_its_end_waits_for_its_other_gates_alone(self, store: Store) -> None:
        both = RequiredGates((RequiredGate("whole", ONE, PermitScope.RUN), RequiredGate(GATE, ONE)))
        await ready(store, "r1")
        [first] = (await admit(store, both)).runs
        await commit(store, first.lease, next=a_park())
        await ready(store, "r2")
        [second] = (await admit(store, nonce="instead", released=(("r1", first.run.token),))).runs
        await store.send([a_message("r1")], ACTOR)
        assert await admit_ids(store, both, nonce="in line") == []
        await commit(store, second.lease, next=DONE)
        assert await admit_ids(store, nonce="then", released=(("r2", second.run.token),)) == ["r1"]

    async def test_what_was_let_in_to_its_end_never_waits_for_itself(self, store: Store) -> None:
        whole = a_gating(hold=PermitScope.RUN)
        await ready(store, "r1")
        [first] = (await admit(store, whole)).runs
        await commit(store, first.lease, next=RetryLater(START, "{}"))
        await claim(store, types=(OTHER_TYPE,))
        await ready(store, "urgent", priority=-5)
        elsewhere = a_gating(gate="elsewhere")
        assert await admit_ids(store, {"r1": whole, "urgent": elsewhere}, nonce="one", limit=1) == ["urgent"]
        assert await admit_ids(store, whole, nonce="again") == ["r1"]

    async def test_a_run_that_is_opened_again_has_to_pass_again(self, store: Store) -> None:
        whole = a_gating(hold=PermitScope.RUN)
        await ready(store, "r1", "r2")
        [first] = (await admit(store, whole)).runs
        await commit(store, first.lease, next=Finish(Status.FAILED, "{}"))
        await retry(store, "r1")
        await store.recheck_gates(ACTOR)
        assert await admit_ids(store, whole, nonce="next") == ["r2"], (
            "it was there first, and r1 has no permit any more"
        )

    async def test_a_rate_lets_a_burst_pass_and_then_one_at_a_time(self, store: Store, harness: Harness) -> None:
        await ready(store, "r1", "r2", "r3", "r4")
        admitted = await admit(store, a_gating(SLOWLY))
        assert [one.run.id for one in admitted.runs] == ["r1", "r2"]
        assert (admitted.next_due, admitted.counted) == (START + SECOND, frozenset())
        harness.system.advance(0.999999)
        assert await admit_ids(store, nonce="early") == []
        harness.system.advance(0.000001)
        assert await admit_ids(store, nonce="in time") == ["r3"]
        harness.system.advance(10)
        await ready(store, "r5", "r6", "r7")
        assert await admit_ids(store, a_gating(SLOWLY), nonce="after a pause") == ["r4", "r5"]

    async def test_a_lost_answer_is_given_again_and_uses_nothing_up(self, store: Store, harness: Harness) -> None:
        await ready(store, "r1", "r2", "r3", "r4")
        request = await asks(store, a_gating(LimitBounds(concurrency=3, pace=SECOND, burst=2)))
        first = await store.admit(request)
        before = await snapshot(harness)
        harness.system.advance(5)
        again = await store.admit(request)
        assert [one.lease for one in again.runs] == [one.lease for one in first.runs]
        assert again.counted == first.counted
        assert await snapshot(harness) == before

    async def test_a_worker_that_is_not_alive_gets_nothing(self, store: Store) -> None:
        await ready(store, "r1")
        request = await asks(store)
        await store.retire("w1")
        assert (await store.admit(request)).runs == ()

    async def test_what_has_changed_since_it_was_looked_at_is_left(self, store: Store) -> None:
        await ready(store, "r1", "r2")
        request = await asks(store, a_gating(LimitBounds(concurrency=5)))
        await commit(store, (await claim(store, "w2", limit=1)).runs[0].lease, next=Release())
        assert [one.run.id for one in (await store.admit(request)).runs] == ["r2"]

    @pytest.mark.parametrize("wait_for_locks", [False, True])
    async def test_no_more_pass_at_once_however_many_ask(
        self, store: Store, harness: Harness, *, wait_for_locks: bool
    ) -> None:
        try:
            others = [await harness.open() for _ in range(2)]
        except Unshared:
            pytest.skip("there can be only one")
        await ready(store, *(f"r{number}" for number in range(12)))
        gating = a_gating(LimitBounds(concurrency=3))
        requests = [
            await asks(store, gating, worker=f"w{number}", limit=2, wait_for_locks=wait_for_locks)
            for number in range(6)
        ]
        asking = zip([store, *others] * 2, requests, strict=True)
        answers = await asyncio.gather(*(admit_patiently(one, request) for one, request in asking))
        passed = [one.run.id for answer in answers for one in answer.runs]
        assert len(passed) == len(set(passed)) == 3
        waiting = await harness.query("SELECT COUNT(*) FROM perdure_runs WHERE status = 'waiting'")
        assert waiting == [(9,)]

    async def test_all_gates_have_to_let_it_pass(self, store: Store) -> None:
        both = RequiredGates((RequiredGate("a", LimitBounds(concurrency=2)), RequiredGate("b", ONE)))
        await ready(store, "r1", "r2", "r3")
        assert await admit_ids(
            store, {"r1": both, "r2": both, "r3": a_gating(LimitBounds(concurrency=2), gate="a")}
        ) == [
            "r1",
            "r3",
        ]
        standing = await store.waitlist_position("r2")
        assert standing is not None
        assert standing.gate.name == "b"

    async def test_one_that_is_to_be_cancelled_does_not_wait_for_that(self, store: Store) -> None:
        await ready(store, "r1", "r2")
        await admit(store)
        await commit(store, await held(store, "parked"), next=a_park())
        await store.send([a_message("parked")], ACTOR)
        await admit(store, nonce="lined up")
        await store.cancel("parked", "enough", "c1", ACTOR)
        assert await admit_ids(store, nonce="to its end") == ["parked"]


class Steered:
    """Builds and priorities of runs behind limits."""

    async def test_an_admitted_run_keeps_the_build_that_began_it(self, store: Store) -> None:
        await ready(store, "r1")
        assert len((await store.admit(replace(await asks(store), build="1.0"))).runs) == 1
        run = await store.get("r1")
        assert run is not None
        assert run.build == "1.0"

    async def test_a_run_on_a_waitlist_overtakes_others_by_its_new_priority(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        [first] = (await store.admit(await asks(store))).runs
        assert await store.set_priority("r3", 1, "", ACTOR) is OrderOutcome.DONE
        await commit(store, first.lease, next=DONE)
        request = await asks(store, nonce="again", released=((first.run.id, first.run.token),))
        assert [one.run.id for one in (await store.admit(request)).runs] == ["r3"]


class TakingTurns:
    """The order in which runs pass."""

    async def test_keys_take_turns_by_their_weights(self, store: Store) -> None:
        big = a_gating(fair_key="big", stride=STRIDE // 2)
        small = a_gating(fair_key="small")
        names = [*(f"big{number}" for number in range(6)), *(f"small{number}" for number in range(3))]
        await ready(store, *names)
        gatings = {name: big if name.startswith("big") else small for name in names}
        order = []
        released: tuple[tuple[str, int], ...] = ()
        for number in range(len(names)):
            [one] = (await admit(store, gatings, nonce=f"n{number}", released=released)).runs
            await commit(store, one.lease, next=DONE)
            released = ((one.run.id, one.run.token),)
            order.append(one.run.id.rstrip("0123456789"))
        assert order[1:7].count("small") == 2
        assert order[:4].count("small") == 1

    async def test_the_more_urgent_come_first_and_no_run_waits_for_ever(self, store: Store) -> None:
        await ready(store, "held")
        await admit(store)
        await ready(store, "usual")
        await admit(store, nonce="n1")
        await ready(store, "urgent", priority=-5)
        await admit(store, nonce="n2")
        await commit(store, (await claim_of(store, "held")), next=DONE)
        assert await admit_ids(store, nonce="n3", released=(("held", 1),)) == ["urgent"]

    async def test_those_of_other_types_and_queues_are_left_to_their_workers(self, store: Store) -> None:
        await ready(store, "r1", "r2")
        await ready(store, "other", type=OTHER_TYPE)
        both = (TYPE, OTHER_TYPE)
        await admit(store, a_gating(LimitBounds(concurrency=1)), types=both)
        await store.set_bounds(GATE, LimitBounds(concurrency=9), ACTOR)
        assert await admit_ids(store, nonce="n1", types=(OTHER_TYPE,)) == ["other"]
        assert await admit_ids(store, nonce="n2", queues=("elsewhere",)) == []
        assert await admit_ids(store, nonce="n3") == ["r2"]

    async def test_one_that_is_paused_in_line_may_pass_when_it_is_resumed(self, store: Store) -> None:
        await ready(store, "r1", "r2", "r3")
        [first] = (await admit(store)).runs
        await store.order_run(RunOrder(run_id="r2", kind=RecordKind.PAUSE, key="p"), ACTOR)
        await commit(store, first.lease, next=DONE)
        [third] = (await admit(store, nonce="n1", released=(("r1", 1),))).runs
        assert third.run.id == "r3", "no run waits for one that is paused"
        await store.order_run(RunOrder(run_id="r2", kind=RecordKind.RESUME, key="r"), ACTOR)
        assert await admit_ids(store, nonce="n2") == []
        await commit(store, third.lease, next=DONE)
        assert await admit_ids(store, nonce="n3", released=(("r3", 1),)) == ["r2"]

    async def test_what_is_paused_keeps_its_place(self, store: Store) -> None:
        await ready(store, "r1", "r2")
        await admit(store)
        await store.set_bounds(GATE, LimitBounds(concurrency=2), ACTOR)
        await store.pause(Pause(kind=PauseKind.QUEUE, name="default"), ACTOR)
        assert await admit_ids(store, nonce="n1") == []
        await store.resume(PauseKind.QUEUE, "default", ACTOR)
        assert await admit_ids(store, nonce="n2") == ["r2"]


async def claim_of(store: Store, run_id: str) -> Any:
    """The lease under which a worker holds a run."""
    return next(lease for lease in await store.leases("w1") if lease.run_id == run_id)
