"""Breakers, and steps at gates: what is counted, which runs are kept out, and how long a place in line is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from perdure.core.limits.admission_requests import (
    AdmissionRequest,
    AdmissionResult,
    RunArrival,
    StepAdmission,
    StepArrival,
    StepDeparture,
)
from perdure.core.limits.breaker import PREFIX, BreakerInfo, BreakerReport, BreakerRule, Circuit
from perdure.core.limits.limit import LimitBounds, RequiredGate, RequiredGates
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Finish, Lease, Release
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    TYPE,
    Harness,
    a_park,
    a_run,
    a_worker,
    commit,
    held,
    lease_of,
    snapshot,
)

API = PREFIX + "api"
RULE = BreakerRule(failures=2, window=60 * SECOND, successes=2, reset=30 * SECOND, probes=1)
DONE = Finish(Status.COMPLETED, "1")
PLACE = "call#1"

Verb = Callable[[Store], Awaitable[object]]


async def breaker_of(store: Store) -> BreakerInfo:
    """State of the one breaker."""
    [gate] = await store.gates(PREFIX, 1)
    assert gate.breaker is not None
    return gate.breaker


def a_request(nonce: str, *, worker: str = "w1", **changes: Any) -> AdmissionRequest:
    """A request of a worker."""
    fields: dict[str, Any] = {"limit": 10, "types": (TYPE, ""), "queues": ("default",)}
    return AdmissionRequest(worker=worker, nonce=nonce, **{**fields, **changes})


def a_report(number: int, failures: int, successes: int = 0, *, since: int = START) -> BreakerReport:
    """A report about attempts that ended."""
    return BreakerReport(API, RULE, number, ((since, failures, successes),))


async def admit_all(store: Store, nonce: str, rule: BreakerRule = RULE, **changes: Any) -> AdmissionResult:
    """Have pass what has arrived, and what may."""
    gating = RequiredGates((RequiredGate(API, rule=rule),))
    arrived = (await store.preview_admission([("default", TYPE)], 100)).arrived
    arrivals = tuple(RunArrival(one.run_id, one.token, gating) for one in arrived)
    return await store.admit(a_request(nonce, arrivals=arrivals, **changes))


async def opened(store: Store) -> None:
    """A breaker that has just opened."""
    await store.register(a_worker())
    await store.admit(a_request("reports", reports=(a_report(1, 2),)))


def a_step(lease: Lease, bounds: LimitBounds, place: str = PLACE) -> StepArrival:
    """A step that has to pass one gate."""
    return StepArrival(lease.run_id, lease.token, place, 100, RequiredGates((RequiredGate("external", bounds),)))


async def ask(store: Store, nonce: str, *steps: StepArrival, **changes: Any) -> tuple[StepAdmission, ...]:
    """Ask for steps, and return the answer."""
    return (await store.admit(a_request(nonce, steps=steps, **changes))).steps


def _passed(run_id: str) -> StepAdmission:
    return StepAdmission(run_id, PLACE, permit=True)


async def _prepare_set_breaker(store: Store) -> Verb:
    await opened(store)
    return lambda store: store.set_breaker(API, Circuit.CLOSED, ACTOR)


#: For the tests that lose answers.
PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {"set_breaker": _prepare_set_breaker}


class Breaking:
    """A breaker is changed under the lock of its gate."""

    async def test_what_is_reported_twice_counts_once(self, store: Store) -> None:
        await store.register(a_worker())
        for nonce in ("one", "one", "another"):
            await store.admit(a_request(nonce, reports=(a_report(1, 1),)))
        assert (await breaker_of(store)).failures == 1
        await store.admit(a_request("next", reports=(a_report(2, 1),)))
        assert (await breaker_of(store)).circuit is Circuit.OPEN

    async def test_who_may_not_pass_waits_until_the_time_that_the_gate_is_looked_at(
        self, store: Store, harness: Harness
    ) -> None:
        await opened(store)
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        admitted = await admit_all(store, "a")
        assert (admitted.runs, admitted.next_due) == ((), START + RULE.reset)
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason, run.attempt) == (Status.WAITING, Reason.BREAKER, 1)
        harness.system.advance(RULE.reset / SECOND)
        first = await admit_all(store, "b")
        assert [one.run.id for one in first.runs] == ["r1"]
        assert first.counted == {"r1"}
        assert not (await admit_all(store, "c")).runs
        assert (await breaker_of(store)).circuit is Circuit.HALF_OPEN

    async def test_a_probe_whose_worker_died_makes_room_for_another(self, store: Store, harness: Harness) -> None:
        await opened(store)
        await store.create([a_run("r1"), a_run("r2")], ACTOR)
        await admit_all(store, "a")
        harness.system.advance(RULE.reset / SECOND)
        [first] = (await admit_all(store, "b")).runs
        harness.system.advance(60)
        await store.sweep(100)
        await store.recheck_gates("w2")
        await store.register(a_worker("w2"))
        others = await admit_all(store, "c", worker="w2")
        assert len(others.runs) == 1
        # What the dead one has to say came too late to matter: the probe is another one's.
        assert first.run.token < 2

    async def test_what_is_to_fail_is_claimed_to_be_told_also_if_the_answer_is_lost(self, store: Store) -> None:
        await opened(store)
        rule = BreakerRule(failures=2, window=60 * SECOND, successes=2, reset=30 * SECOND, fails=True)
        await store.create([a_run("r1")], ACTOR)
        for _ in range(2):
            admitted = await admit_all(store, "same", rule, failing=((TYPE, API),))
            assert [one.run.id for one in admitted.runs] == ["r1"]
            assert admitted.barred == (("r1", START + RULE.reset),)

    async def test_what_is_set_by_hand_is_said_once(self, store: Store, harness: Harness) -> None:
        await store.set_breaker(API, Circuit.OPEN, ACTOR)
        before = await snapshot(harness)
        await store.set_breaker(API, Circuit.OPEN, ACTOR)
        assert await snapshot(harness) == before
        await store.set_breaker(API, None, ACTOR)
        assert [event.kind for event in await store.events(f"gate:{API}")] == ["breaker_open", "breaker_closed"]


class StepsAtGates:
    """A step passes for the lease of its run, or stands in a line."""

    async def test_a_step_that_asks_again_has_what_it_was_given(self, store: Store, harness: Harness) -> None:
        lease = await held(store)
        step = a_step(lease, LimitBounds(concurrency=1, pace=SECOND))
        for nonce in ("a", "a", "b"):
            assert await ask(store, nonce, step) == (_passed("r1"),)
        [(arrival,)] = await harness.query("SELECT arrival FROM perdure_gates")
        assert arrival == START + SECOND

    async def test_a_request_that_is_repeated_has_its_runs_and_its_steps_again(self, store: Store) -> None:
        first, second = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await store.create([a_run("r3")], ACTOR)
        arrival = RunArrival("r3", 0, RequiredGates((RequiredGate("other", one),)))
        request = a_request("a", arrivals=(arrival,), steps=(a_step(first, one), a_step(second, one)))
        for _ in range(2):
            admitted = await store.admit(request)
            assert [run.run.id for run in admitted.runs] == ["r3"]
            answers = {(step.run_id, step.gate, step.permit) for step in admitted.steps}
            assert answers == {("r1", "", True), ("r2", "external", False)}

    async def test_a_step_whose_turn_comes_wakes_its_run_and_its_place_is_kept(
        self, store: Store, harness: Harness
    ) -> None:
        first, second = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        assert await ask(store, "b", a_step(second, one)) == (StepAdmission("r2", PLACE, gate="external"),)
        await commit(store, second, next=a_park(reason=Reason.LIMIT))
        freed = await store.admit(a_request("c", left=(StepDeparture("r1", first.token, PLACE),)))
        assert freed.called == 1
        [message] = await store.inbox("r2", 0)
        assert (message.kind, message.name) == (RecordKind.CALL, PLACE)
        assert await ask(store, "d", a_step(first, one)) == (StepAdmission("r1", PLACE, gate="external"),)
        again = await lease_of(store, "r2", "w1", nonce="later")
        assert await ask(store, "e", a_step(again, one)) == (_passed("r2"),)
        rows = await harness.query("SELECT run_id, token, hold FROM perdure_permits")
        assert rows == [("r2", again.token, "lease")]

    async def test_runs_and_steps_at_one_gate_pass_in_the_order_of_their_turns(self, store: Store) -> None:
        first, second, third = [await held(store, name) for name in ("s1", "s2", "s3")]
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        await ask(store, "b", a_step(second, one))
        await store.create([a_run("r1")], ACTOR)
        gating = RequiredGates((RequiredGate("external", one),))
        await store.admit(a_request("c", arrivals=(RunArrival("r1", 0, gating),)))
        await ask(store, "d", a_step(third, one))
        passed: list[str] = []
        for nonce, lease in (("e", first), ("f", second)):
            admitted = await store.admit(a_request(nonce, left=(StepDeparture(lease.run_id, lease.token, PLACE),)))
            passed += [run.run.id for run in admitted.runs] + ["a step"] * admitted.called
            # The one that was called takes its turn up.
            if admitted.called:
                await ask(store, f"{nonce}2", a_step(second, one))
        assert passed == ["a step", "r1"]

    async def test_a_turn_that_no_worker_takes_up_goes_to_the_next(self, store: Store, harness: Harness) -> None:
        first, second, third = [await held(store, name) for name in ("r1", "r2", "r3")]
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        await ask(store, "b", a_step(second, one))
        await ask(store, "c", a_step(third, one))
        await commit(store, second, next=a_park(reason=Reason.LIMIT))
        assert (await store.admit(a_request("d", left=(StepDeparture("r1", first.token, PLACE),)))).called == 1
        harness.system.advance(60)
        assert (await store.admit(a_request("e"))).called == 1
        assert await ask(store, "f", a_step(third, one)) == (_passed("r3"),)

    async def test_a_permit_is_for_one_lease(self, store: Store, harness: Harness) -> None:
        first = await held(store, "r1")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        harness.system.advance(60)
        await store.sweep(100)
        again = await lease_of(store, "r1", "w2")
        other = await held(store, "r2", "w2")
        assert await ask(store, "b", a_step(other, one), worker="w2") == (_passed("r2"),)
        assert await ask(store, "c", a_step(again, one), worker="w2") == (StepAdmission("r1", PLACE, gate="external"),)

    async def test_a_former_owner_who_asks_late_takes_nothing_from_the_owner(self, store: Store) -> None:
        former = await held(store, "r1")
        one = LimitBounds(concurrency=1)
        await commit(store, former, next=Release())
        lease = await lease_of(store, "r1", "w2")
        assert await ask(store, "a", a_step(lease, one), worker="w2") == (_passed("r1"),)
        assert await ask(store, "b", a_step(former, one)) == (StepAdmission("r1", PLACE, gate="external"),)
        [gate] = await store.gates("", 1)
        assert (gate.held, gate.waiting) == (1, 0)

    async def test_a_former_owner_who_leaves_late_takes_no_permit_from_the_owner(
        self, store: Store, harness: Harness
    ) -> None:
        former, other = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(former, one))
        await commit(store, former, next=Release())
        lease = await lease_of(store, "r1", "w2")
        assert await ask(store, "b", a_step(lease, one), worker="w2") == (_passed("r1"),)
        await store.admit(a_request("c", left=(StepDeparture("r1", former.token, PLACE),)))
        rows = await harness.query("SELECT run_id, token, hold FROM perdure_permits")
        assert rows == [("r1", lease.token, "lease")]
        assert await ask(store, "d", a_step(other, one)) == (StepAdmission("r2", PLACE, gate="external"),)

    async def test_a_place_that_cannot_be_read_is_left_and_its_run_is_told(
        self, store: Store, harness: Harness
    ) -> None:
        first, second = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        await ask(store, "b", a_step(second, one))
        await harness.execute("UPDATE perdure_lines SET gating = '{'")
        await store.admit(a_request("c", left=(StepDeparture("r1", first.token, PLACE),)))
        assert await harness.query("SELECT run_id FROM perdure_lines") == []
        told = await harness.query("SELECT run_id, kind, name FROM perdure_messages")
        assert told == [("r2", "call", PLACE)]
        assert await ask(store, "d", a_step(second, one)) == (_passed("r2"),)

    async def test_who_gives_up_stands_in_line_no_more(self, store: Store, harness: Harness) -> None:
        first, second = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        await ask(store, "b", a_step(second, one))
        left = (StepDeparture("r2", second.token, PLACE, waiting_since=START - 1),)
        await store.admit(a_request("c", left=left))
        assert len(await harness.query("SELECT 1 FROM perdure_lines")) == 1, "that was a word about an earlier place"
        left = (StepDeparture("r2", second.token, PLACE, waiting_since=START),)
        await store.admit(a_request("d", left=left))
        assert await harness.query("SELECT 1 FROM perdure_lines") == []

    async def test_a_step_of_a_run_that_has_ended_is_passed_over(self, store: Store, harness: Harness) -> None:
        first, second = await held(store, "r1"), await held(store, "r2")
        one = LimitBounds(concurrency=1)
        await ask(store, "a", a_step(first, one))
        await ask(store, "b", a_step(second, one))
        await commit(store, second, next=DONE)
        freed = await store.admit(a_request("c", left=(StepDeparture("r1", first.token, PLACE),)))
        assert freed.called == 0
        assert await harness.query("SELECT 1 FROM perdure_lines") == []
