"""Every operation that writes, in each form that takes another way through a store.

One is prepared on a database that works, and then asked for by the process that is to be disturbed. The clock of the
database stands still meanwhile, so that what it leaves behind can be compared with what it leaves behind undisturbed,
row for row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from perdure.core.access import NewToken, Role
from perdure.core.audit import EventFilter
from perdure.core.limits.admission_requests import StepAdmission, StepDeparture
from perdure.core.limits.breaker import Circuit
from perdure.core.limits.limit import LimitBounds
from perdure.core.model.attempt_reports import ReportKind
from perdure.core.model.attributes import attribute_outputs, make_attributes
from perdure.core.model.claim import ClaimRequest
from perdure.core.model.documents import REPORTS_KEPT, SOURCES_KEPT
from perdure.core.model.events import NewStickyEvent
from perdure.core.model.outputs import NewOutput, OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, RetryRequest, Status
from perdure.core.model.run_orders import Pause, PauseKind, RunOrder
from perdure.core.model.turn import Block, ContinueAsNew, Finish, Lease, Release, RetryLater, Trim, Turn, TurnOutcome
from perdure.core.model.worker_info import DrainOrder
from perdure.core.policy.retention import PruneRequest
from perdure.core.policy.singleton import SingletonPolicy
from perdure.core.policy.watermark import Watermark
from perdure.core.time.duration import NEVER
from perdure.core.time.schedule import Overlap
from perdure.store import Store
from perdure.testing.conformance.documents import a_report as a_deploy_report
from perdure.testing.conformance.documents import a_source
from perdure.testing.conformance.graph_checkpoints import (
    prepare_copy_graph_thread,
    prepare_delete_graph_entries,
    prepare_save_graph_entries,
)
from perdure.testing.conformance.harness import (
    ACTOR,
    LEASE,
    SECOND,
    START,
    TYPE,
    ManualSystem,
    a_child,
    a_message,
    a_park,
    a_record,
    a_run,
    a_worker,
    claim,
    commit,
    held,
)
from perdure.testing.conformance.limits.breakers import API, PLACE, a_report, a_request, a_step, opened
from perdure.testing.conformance.limits.gates import GATE, a_gating, asks, ready
from perdure.testing.conformance.prepared import PREPARE
from perdure.testing.conformance.registry import MAIL, SHOP
from perdure.testing.conformance.runs.attempt_reports import a_pending_attempt, a_report_from_outside, token_of
from perdure.testing.conformance.runs.claim_by_id import a_take
from perdure.testing.conformance.runs.log import a_line
from perdure.testing.conformance.runs.outputs import a_set_aside
from perdure.testing.conformance.runs.packing import a_long_run
from perdure.testing.conformance.runs.reopen import a_fork
from perdure.testing.conformance.runs.waiters import a_look, a_wait, an_output
from perdure.testing.conformance.schedules import a_schedule, saved
from perdure.testing.conformance.singletons import NAME, options
from perdure.testing.conformance.singletons import one as a_single

Ask = Callable[[Store], Awaitable[object]]
Prepare = Callable[[Store, ManualSystem], Awaitable[Ask]]


class Steady(ManualSystem):
    """A system whose sleeps take real time while its clock stands still."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 5)

    def set_back(self) -> None:
        """As at the beginning."""
        self._now = START


OPERATIONS: dict[str, Prepare] = {}


def operation(prepare: Prepare) -> Prepare:
    OPERATIONS[prepare.__name__] = prepare
    return prepare


# runs


@operation
async def create(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.create([a_run("r1", idempotency_key="k"), a_run("r2", wake_at=START + SECOND)], ACTOR)


@operation
async def create_with_attributes(store: Store, system: ManualSystem) -> Ask:
    values = make_attributes({"customer": "acme", "amount": 12.5, "vip": True})
    runs = [a_run("r1", attributes=values), a_run("r2"), a_run("r3", attributes=values)]
    return lambda store: store.create(runs, ACTOR)


@operation
async def create_beside_one_that_is_there(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1", idempotency_key="k")], ACTOR)
    return lambda store: store.create([a_run("other", idempotency_key="k", write_id="w"), a_run("r2")], ACTOR)


@operation
async def unblock(store: Store, system: ManualSystem) -> Ask:
    for name in ("r1", "r2"):
        await commit(store, await held(store, name), next=Block(Reason.DIVERGED, "{}"))
    return lambda store: store.unblock((TYPE,), ("diverged",), ACTOR)


@operation
async def retry_a_parent(store: Store, system: ManualSystem) -> Ask:
    lease = await held(store, "parent")
    await store.send([a_message("parent")], ACTOR)
    await commit(store, lease, a_record(0), children=(a_child("r1"),), next=Finish(Status.FAILED, "{}"))
    await store.cancel("r1", "enough", "c1", ACTOR)
    return lambda store: store.retry(RetryRequest(run_id="parent", token=1, is_activity=False), ACTOR)


@operation
async def retry_a_failing_step(store: Store, system: ManualSystem) -> Ask:
    stumbled = a_record(0, "flaky", kind=RecordKind.ATTEMPT, failed=True, attempts=3, retry_at=START + SECOND)
    await commit(store, await held(store), stumbled, next=a_park(reason=Reason.RETRY, wake_at=START + SECOND))
    return lambda store: store.retry(RetryRequest(run_id="r1", token=1), ACTOR)


@operation
async def retry_a_dead_letter(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    return lambda store: store.retry(RetryRequest(run_id="r1", token=1, input="[2]"), ACTOR)


@operation
async def retry_a_blocked_run(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), a_record(0), next=Block(Reason.DIVERGED, "{}"))
    return lambda store: store.retry(RetryRequest(run_id="r1", token=1), ACTOR)


@operation
async def discard_one_that_was_set_aside(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
    got = await claim(store, nonce="second")
    await commit(store, got.runs[0].lease, next=Block(Reason.POISON, "{}"))

    async def ask(store: Store) -> None:
        # What the first did is found done by the second.
        await store.delete("r1", "hopeless", ACTOR, discard=True)

    return ask


@operation
async def delete_a_run_that_is_not_over(store: Store, system: ManualSystem) -> Ask:
    await held(store)

    async def ask(store: Store) -> None:
        await store.delete("r1", "by mistake", ACTOR)

    return ask


@operation
async def undelete_a_run_that_is_not_over(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1")], ACTOR)
    await store.delete("r1", "", ACTOR)

    async def ask(store: Store) -> None:
        await store.undelete("r1", ACTOR)

    return ask


@operation
async def undelete(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=Finish(Status.COMPLETED, "1"))
    await store.delete("r1", "", ACTOR)

    async def ask(store: Store) -> None:
        await store.undelete("r1", ACTOR)

    return ask


@operation
async def prune_a_family(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
    got = await claim(store, nonce="second")
    await commit(store, got.runs[0].lease, a_record(0), next=Finish(Status.COMPLETED, "1"))
    got = await claim(store, nonce="third")
    await commit(store, got.runs[0].lease, next=Finish(Status.COMPLETED, "1"))

    async def ask(store: Store) -> None:
        await store.prune(PruneRequest(before=NEVER), 10, None, ACTOR)

    return ask


@operation
async def fork(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.fork(a_fork(), ACTOR)


@operation
async def delete_events(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    # A table that was emptied goes on with its numbers.
    [first] = await store.events_page(EventFilter(), 1, after=0)
    return lambda store: store.delete_events(first.id, START + 1, ACTOR)


# schedules


@operation
async def save_a_schedule(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)


@operation
async def save_a_schedule_that_is_there(store: Store, system: ManualSystem) -> Ask:
    seen = await saved(store)
    changed = replace(seen, queue="q")
    return lambda store: store.save_schedule(changed, seen.version, "w2", "schedule_changed", ACTOR)


@operation
async def delete_a_schedule(store: Store, system: ManualSystem) -> Ask:
    await saved(store)
    return lambda store: store.delete_schedule("s1", ACTOR)


@operation
async def trigger_a_schedule(store: Store, system: ManualSystem) -> Ask:
    await saved(store)
    return lambda store: store.trigger("s1", (), "now", ACTOR)


@operation
async def trigger_slots(store: Store, system: ManualSystem) -> Ask:
    await saved(store)
    return lambda store: store.trigger("s1", (START, START + 60 * SECOND), "", ACTOR)


async def _firing(store: Store) -> None:
    # Who started which of them is not known any more where the answer was lost.
    assert (await store.fire_schedules(10, ACTOR)).next_due > START


@operation
async def fire_schedules(store: Store, system: ManualSystem) -> Ask:
    for name in ("s1", "s2"):
        await saved(store, name, next_fire_time=START, due_at=START)
    return _firing


@operation
async def fire_a_schedule_whose_run_has_to_make_way(store: Store, system: ManualSystem) -> Ask:
    await saved(store, overlap=Overlap.CANCEL, next_fire_time=START, due_at=START, last_run="r1")
    await held(store)
    return _firing


# from outside


@operation
async def send_to_one_that_waits(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=a_park())
    return lambda store: store.send([a_message("r1")], ACTOR)


@operation
async def send_to_many(store: Store, system: ManualSystem) -> Ask:
    await held(store, "r1")
    await store.create([a_run("r2")], ACTOR)
    return lambda store: store.send([a_message("r2"), a_message("r1"), a_message("unknown")], ACTOR)


@operation
async def emit_event(store: Store, system: ManualSystem) -> Ask:
    return await PREPARE["emit_event"](store)


@operation
async def emit_event_in_place_of_another(store: Store, system: ManualSystem) -> Ask:
    await store.emit_event(NewStickyEvent(name="rates", payload="1", write_id="e1"), ACTOR)
    return lambda store: store.emit_event(NewStickyEvent(name="rates", payload="2", replace=True, write_id="e2"), ACTOR)


@operation
async def broadcast(store: Store, system: ManualSystem) -> Ask:
    for name in ("r1", "r2", "r3"):
        next = Finish(Status.COMPLETED, "1") if name == "r2" else a_park() if name == "r3" else None
        await commit(store, await held(store, name), subscribes=("news@1",), next=next)
    return lambda store: store.broadcast("news@1", "1", "b1", None, 10, ACTOR)


@operation
async def cancel_before_it_started(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
    return lambda store: store.cancel("r1", "enough", "c1", ACTOR)


@operation
async def cancel_while_it_runs(store: Store, system: ManualSystem) -> Ask:
    await held(store)
    return lambda store: store.cancel("r1", "enough", "c1", ACTOR)


@operation
async def terminate_a_child_that_runs(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
    got = await claim(store, nonce="second")
    await commit(store, got.runs[0].lease, children=(a_child("c1", "r1"),))
    return lambda store: store.terminate("r1", "enough", "t1", ACTOR)


@operation
async def terminate_with_undos(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=a_park())
    return lambda store: store.terminate("r1", "enough", "t1", ACTOR, undo=True)


@operation
async def deliver_a_message_again(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), a_record(0), outputs=(a_set_aside(),), next=a_park())
    return lambda store: store.decide_message("r1", 0, "d1", None, ACTOR, deliver=True)


@operation
async def drop_a_message(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), a_record(0), outputs=(a_set_aside(),))
    return lambda store: store.decide_message("r1", 0, "d1", None, ACTOR, deliver=False)


@operation
async def complete_a_pending_child(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
    await a_pending_attempt(store, (await claim(store, nonce="second")).runs[0].lease)
    report = a_report_from_outside(await token_of(store))
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def complete_a_pending_attempt_behind_a_breaker(store: Store, system: ManualSystem) -> Ask:
    await store.set_breaker(API, Circuit.OPEN, ACTOR)
    await store.set_breaker(API, None, ACTOR)
    await a_pending_attempt(store, breaker=API)
    report = a_report_from_outside(await token_of(store))
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def complete_an_attempt_that_a_worker_holds(store: Store, system: ManualSystem) -> Ask:
    await held(store)
    report = a_report_from_outside(await token_of(store))
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def fail_a_pending_attempt(store: Store, system: ManualSystem) -> Ask:
    await a_pending_attempt(store)
    report = a_report_from_outside(await token_of(store), ReportKind.FAILED, '{"message":"declined"}')
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def report_the_first_heartbeat(store: Store, system: ManualSystem) -> Ask:
    await a_pending_attempt(store)
    report = a_report_from_outside(await token_of(store), ReportKind.HEARTBEAT, "1")
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def report_another_heartbeat(store: Store, system: ManualSystem) -> Ask:
    await a_pending_attempt(store)
    token = await token_of(store)
    await store.report_attempt(a_report_from_outside(token, ReportKind.HEARTBEAT, "1"), ACTOR)
    report = a_report_from_outside(token, ReportKind.HEARTBEAT, None)
    return lambda store: store.report_attempt(report, ACTOR)


@operation
async def pause_one_that_waits(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=a_park())
    return lambda store: store.order_run(RunOrder(run_id="r1", kind=RecordKind.PAUSE, key="p1"), ACTOR)


@operation
async def resume_one_that_was_paused(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1", wake_at=START + SECOND)], ACTOR)
    await store.order_run(RunOrder(run_id="r1", kind=RecordKind.PAUSE, key="p1"), ACTOR)
    return lambda store: store.order_run(RunOrder(run_id="r1", kind=RecordKind.RESUME, key="p2"), ACTOR)


@operation
async def evict_one_that_runs(store: Store, system: ManualSystem) -> Ask:
    await held(store)
    return lambda store: store.order_run(RunOrder(run_id="r1", kind=RecordKind.EVICT, key="e1"), ACTOR)


@operation
async def wake_one_that_sleeps(store: Store, system: ManualSystem) -> Ask:
    await commit(store, await held(store), next=a_park(wake_at=START + SECOND, reason=Reason.TIMER))
    return lambda store: store.order_run(RunOrder(run_id="r1", kind=RecordKind.WAKE, key="w1", at=START), ACTOR)


@operation
async def set_priority(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1")], ACTOR)
    return lambda store: store.set_priority("r1", 7, "urgent", ACTOR)


@operation
async def pin_two(store: Store, system: ManualSystem) -> Ask:
    leases = [await held(store, "r1"), await held(store, "r2")]
    return lambda store: store.pin(leases, "1.0", ACTOR)


@operation
async def pack_a_long_history(store: Store, system: ManualSystem) -> Ask:
    lease, _ = await a_long_run(store)
    return lambda store: store.pack(lease, 0, 19, ACTOR)


@operation
async def keep_the_latest_lines(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    await store.keep_log([("r1", a_line(number)) for number in range(3)], 3, ACTOR)
    lines = [(run_id, a_line(number)) for number in range(3, 6) for run_id in ("r2", "r1", "missing")]
    return lambda store: store.keep_log(lines, 4, ACTOR)


@operation
async def unpin_one_that_waits(store: Store, system: ManualSystem) -> Ask:
    lease = await held(store)
    await store.pin([lease], "1.0", ACTOR)
    await commit(store, lease, next=a_park())
    return lambda store: store.unpin("r1", "1.0 is gone", ACTOR)


@operation
async def pause_a_queue(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.pause(Pause(kind=PauseKind.QUEUE, name="slow"), ACTOR)


@operation
async def resume_a_queue(store: Store, system: ManualSystem) -> Ask:
    await store.pause(Pause(kind=PauseKind.QUEUE, name="slow"), ACTOR)
    return lambda store: store.resume(PauseKind.QUEUE, "slow", ACTOR)


# workers


@operation
async def register(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.register(a_worker(), [MAIL, SHOP])


@operation
async def save_sources(store: Store, system: ManualSystem) -> Ask:
    for number in range(SOURCES_KEPT):
        await store.save_sources([a_source(f"0.{number}")], "w2")
        system.advance(1)
    return lambda store: store.save_sources([a_source(), a_source(type="other")], "w1")


@operation
async def save_changed_sources(store: Store, system: ManualSystem) -> Ask:
    await store.save_sources([a_source()], "w2")
    return lambda store: store.save_sources([a_source(body="{}"), a_source(type="other")], "w1")


@operation
async def save_report(store: Store, system: ManualSystem) -> Ask:
    for number in range(REPORTS_KEPT):
        await store.save_report(a_deploy_report(f"c{number}"), ACTOR)
        system.advance(1)
    return lambda store: store.save_report(a_deploy_report("latest"), ACTOR)


@operation
async def save_graph_entries(store: Store, system: ManualSystem) -> Ask:
    return await prepare_save_graph_entries(store)


@operation
async def copy_graph_thread(store: Store, system: ManualSystem) -> Ask:
    return await prepare_copy_graph_thread(store)


@operation
async def delete_graph_entries(store: Store, system: ManualSystem) -> Ask:
    return await prepare_delete_graph_entries(store)


@operation
async def drain(store: Store, system: ManualSystem) -> Ask:
    await store.register(a_worker())
    return lambda store: store.drain("w1", DrainOrder(key="d1", reason="new host"), ACTOR)


@operation
async def heartbeat_of_one_that_drains(store: Store, system: ManualSystem) -> Ask:
    await store.register(a_worker())
    await store.drain("w1", DrainOrder(key="d1"), ACTOR)
    system.advance(1)
    return lambda store: store.heartbeat("w1")


@operation
async def heartbeat(store: Store, system: ManualSystem) -> Ask:
    await store.register(a_worker())
    system.advance(1)
    return lambda store: store.heartbeat("w1", '{"more":2}')


@operation
async def report_health(store: Store, system: ManualSystem) -> Ask:
    await store.register(a_worker())
    return lambda store: store.report_health("w1", 2, "claimer: ValueError: x")


@operation
async def retire(store: Store, system: ManualSystem) -> Ask:
    for name in ("r1", "r2"):
        await held(store, name)
    return lambda store: store.retire("w1")


@operation
async def sweep_the_dead(store: Store, system: ManualSystem) -> Ask:
    for name in ("r1", "r2"):
        await held(store, name)
    system.advance(2 * LEASE / SECOND)
    return _swept


@operation
async def sweep_the_late(store: Store, system: ManualSystem) -> Ask:
    await commit(
        store,
        await held(store, "parent"),
        children=(a_child("late", deadline=START),),
        next=a_park(reason=Reason.CHILD),
    )
    return _swept


async def _swept(store: Store) -> object:
    # What the first did is found done by the second.
    await store.sweep(10)
    return None


# claims


def claiming(count: int, **changes: Any) -> Ask:
    """Claim until so many are held, which are all that there are.

    A repeated request may find some still locked for the connection that broke: then it would take others, if there
    were any.
    """

    async def ask(store: Store) -> list[Lease]:
        leases: list[Lease] = []
        for number in range(1000):
            request = ClaimRequest(worker="w1", nonce=f"n{number}", limit=count - len(leases), types=(TYPE,), **changes)
            leases += [one.lease for one in (await store.claim(request)).runs]
            if len(leases) == count:
                return sorted(leases, key=lambda lease: lease.run_id)
            await asyncio.sleep(0.002)
        raise AssertionError(f"only {leases} could be claimed")

    return ask


@operation
async def claim_ready(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run(f"r{number}") for number in range(3)], ACTOR)
    await store.register(a_worker())
    return claiming(3)


@operation
async def claim_by_age(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run(f"r{number}", priority=number) for number in range(4)], ACTOR)
    await store.register(a_worker())
    return claiming(4, by_age=1)


@operation
async def claim_what_is_due(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run(f"r{number}", wake_at=START + SECOND) for number in range(3)], ACTOR)
    await store.register(a_worker())
    system.advance(2)
    return claiming(3)


@operation
async def claim_and_set_aside(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("poison")], ACTOR)
    for number in range(5):
        await claim(store, f"dead-{number}", limit=1, alone=True)
        system.advance(2 * LEASE / SECOND)
        await store.sweep(10)
    await store.create([a_run("zz")], ACTOR)
    await store.register(a_worker())
    return claiming(1)


@operation
async def take_one(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    await store.register(a_worker())

    async def ask(store: Store) -> Lease | None:
        claimed = (await store.claim_by_id(a_take("r2"))).claimed
        return None if claimed is None else claimed.lease

    return ask


@operation
async def take_and_set_aside(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_run("poison")], ACTOR)
    for number in range(5):
        await claim(store, f"dead-{number}", limit=1, alone=True)
        system.advance(2 * LEASE / SECOND)
        await store.sweep(10)
    await store.register(a_worker())

    async def ask(store: Store) -> object:
        # What the first did is found done by the second, at another time.
        answer = await store.claim_by_id(a_take("poison", alone=True))
        return answer.refused

    return ask


@operation
async def claim_at_a_gate(store: Store, system: ManualSystem) -> Ask:
    await ready(store, *(f"r{number}" for number in range(6)))
    request = await asks(store, a_gating(LimitBounds(concurrency=4, pace=SECOND, burst=3)), limit=4)

    async def ask(store: Store) -> list[Lease]:
        return [one.lease for one in (await store.admit(request)).runs]

    return ask


@operation
async def set_bounds(store: Store, system: ManualSystem) -> Ask:
    await ready(store, "r1", "r2")
    await store.admit(await asks(store))
    return lambda store: store.set_bounds(GATE, LimitBounds(concurrency=2), ACTOR)


@operation
async def admit_steps(store: Store, system: ManualSystem) -> Ask:
    """One that may pass, one that may not, one that has ended so that another is called, and the state of a breaker."""
    leases = [await held(store, name) for name in ("r1", "r2", "r3")]
    first, second, third = [a_step(lease, LimitBounds(concurrency=1, pace=SECOND)) for lease in leases]
    await store.admit(a_request("before", steps=(first, second)))
    await commit(store, leases[1], next=a_park(reason=Reason.LIMIT))
    system.advance(5)
    left = (StepDeparture("r1", leases[0].token, PLACE),)
    request = a_request("asked", steps=(third,), left=left, reports=(a_report(1, 2),))

    async def ask(store: Store) -> tuple[StepAdmission, ...]:
        return (await store.admit(request)).steps

    return ask


@operation
async def set_breaker(store: Store, system: ManualSystem) -> Ask:
    await opened(store)
    return lambda store: store.set_breaker(API, Circuit.CLOSED, ACTOR)


@operation
async def recheck_gates(store: Store, system: ManualSystem) -> Ask:
    await ready(store, "r1", "r2")
    await store.admit(await asks(store))
    return lambda store: store.recheck_gates(ACTOR)


@operation
async def delete_idle_gates(store: Store, system: ManualSystem) -> Ask:
    return await PREPARE["delete_idle_gates"](store)


# turns


def committing(*turns: Turn) -> Ask:
    """Commit as a journal does: a turn whose row is busy goes with the next batch."""

    async def ask(store: Store) -> list[TurnOutcome]:
        verdicts: dict[Turn, TurnOutcome] = {}
        for _ in range(1000):
            left = [turn for turn in turns if verdicts.get(turn, TurnOutcome.BUSY) is TurnOutcome.BUSY]
            if not left:
                return [verdicts[turn] for turn in turns]
            verdicts.update(zip(left, await store.commit(left, ACTOR), strict=True))
        raise AssertionError(f"still busy: {verdicts}")

    return ask


NEXT = {
    "nothing": None,
    "park": a_park(),
    "park_until_now": a_park(wake_at=START),
    "complete": Finish(Status.COMPLETED, "1"),
    "fail": Finish(Status.FAILED, "{}"),
    "again": RetryLater(START + SECOND, "{}"),
    "again_now": RetryLater(START, "{}"),
    "release": Release(),
    "block": Block(Reason.DIVERGED, "{}"),
    "renew": ContinueAsNew(TYPE, "[]", 0),
}


@operation
async def create_in_a_line(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_single("r1", SingletonPolicy.QUEUE)], ACTOR)
    return lambda store: store.create([a_single("r2", SingletonPolicy.QUEUE), a_run("plain")], ACTOR)


@operation
async def create_in_place_of_another(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_single("r1", SingletonPolicy.REPLACE)], ACTOR)
    return lambda store: store.create([a_single("r2", SingletonPolicy.REPLACE)], ACTOR)


@operation
async def put_off(store: Store, system: ManualSystem) -> Ask:
    given = {"options": options(SingletonPolicy.DEBOUNCE, delay=SECOND)}
    await store.create([a_run("r1", **given)], ACTOR)
    return lambda store: store.create([a_run("r2", input="[2]", **given)], ACTOR)


@operation
async def start_successors(store: Store, system: ManualSystem) -> Ask:
    await store.create([a_single("r1", SingletonPolicy.QUEUE), a_single("r2", SingletonPolicy.QUEUE)], ACTOR)
    await store.cancel("r1", "", "c", ACTOR)

    async def ask(store: Store) -> None:
        # What the first did is found done by the second.
        await store.start_successors([NAME], ACTOR)

    return ask


@operation
async def set_watermark(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.set_watermark(Watermark(high=10, queue="q"), ACTOR)


@operation
async def remove_watermark(store: Store, system: ManualSystem) -> Ask:
    await store.set_watermark(Watermark(high=10, type="t"), ACTOR)
    return lambda store: store.remove_watermark("type", "t", ACTOR)


@operation
async def create_token(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.create_token(NewToken(name="ci", digest="d1", role=Role.VIEWER), ACTOR)


@operation
async def create_token_in_place_of_a_revoked_one(store: Store, system: ManualSystem) -> Ask:
    made = await store.create_token(NewToken(name="ci", digest="d1", role=Role.VIEWER), ACTOR)
    assert made is not None
    await store.revoke_token("ci", made.created_at, ACTOR)
    return lambda store: store.create_token(NewToken(name="ci", digest="d2", role=Role.ADMIN), ACTOR)


@operation
async def create_session(store: Store, system: ManualSystem) -> Ask:
    await store.create_token(NewToken(name="ci", digest="d1", role=Role.VIEWER), ACTOR)
    old = NewToken(name="ci/1", parent="ci", digest="d2", role=Role.VIEWER, expires_at=1)
    await store.create_token(old, ACTOR)
    return lambda store: store.create_token(NewToken(name="ci/2", parent="ci", digest="d3", role=Role.VIEWER), ACTOR)


@operation
async def revoke_token(store: Store, system: ManualSystem) -> Ask:
    made = await store.create_token(NewToken(name="ci", digest="d1", role=Role.VIEWER), ACTOR)
    assert made is not None
    await store.create_token(NewToken(name="ci/1", parent="ci", digest="d2", role=Role.VIEWER), ACTOR)
    return lambda store: store.revoke_token("ci", made.created_at, ACTOR)


@operation
async def touch_tokens(store: Store, system: ManualSystem) -> Ask:
    for name in ("a", "b"):
        await store.create_token(NewToken(name=name, digest=f"digest of {name}", role=Role.VIEWER), ACTOR)
    return lambda store: store.touch_tokens([("digest of b", 5), ("digest of a", 7)], ACTOR)


@operation
async def acquire_lock(store: Store, system: ManualSystem) -> Ask:
    return lambda store: store.acquire_lock("import", "me", "n1", SECOND, ACTOR)


@operation
async def steal_a_lock(store: Store, system: ManualSystem) -> Ask:
    await store.acquire_lock("import", "me", "n1", SECOND, ACTOR)
    system.advance(2)
    return lambda store: store.acquire_lock("import", "you", "n2", SECOND, ACTOR)


@operation
async def extend_lock(store: Store, system: ManualSystem) -> Ask:
    await store.acquire_lock("import", "me", "n1", SECOND, ACTOR)
    return lambda store: store.extend_lock("import", "n1", 2 * SECOND, ACTOR)


@operation
async def release_lock(store: Store, system: ManualSystem) -> Ask:
    token = (await store.acquire_lock("import", "me", "n1", SECOND, ACTOR)).lock.token
    return lambda store: store.release_lock("import", token, "n1", ACTOR)


def _turns_that(name: str) -> None:
    async def alone(store: Store, system: ManualSystem) -> Ask:
        records = (a_record(0), a_record(1)) if NEXT[name] is None else ()
        return committing(Turn(lease=await held(store), records=records, next=NEXT[name]))

    async def with_records(store: Store, system: ManualSystem) -> Ask:
        leases = [await held(store, f"r{number}") for number in range(3)]
        records = (a_record(0), a_record(1))
        return committing(*(Turn(lease=lease, records=records, next=NEXT[name]) for lease in leases))

    async def that_reach_others(store: Store, system: ManualSystem) -> Ask:
        await store.create([a_run("other")], ACTOR)
        parent = await held(store, "parent")
        await commit(store, parent, children=(a_child("r1"),), next=a_park(reason=Reason.CHILD))
        got = await claim(store, nonce="second", limit=100)
        lease = next(one.lease for one in got.runs if one.run.id == "r1")
        return committing(
            Turn(
                lease=lease,
                records=(a_record(0),),
                children=(a_child("grandchild", "r1"),),
                sends=(a_message("other"),),
                next=NEXT[name],
            )
        )

    for prepare in (alone, with_records, that_reach_others):
        OPERATIONS[f"commit_{name}_{prepare.__name__}"] = prepare


for _name in NEXT:
    _turns_that(_name)


@operation
async def commit_a_wait_for_another_run(store: Store, system: ManualSystem) -> Ask:
    leases = [await held(store, name) for name in ("target", "ended", "waiter")]
    await commit(store, leases[1], next=Finish(Status.COMPLETED, "1"))
    waits = tuple(a_wait(name, location=name) for name in ("target", "ended", "unknown"))
    return committing(Turn(lease=leases[2], records=(a_record(0),), sends=waits, next=a_park(reason=Reason.CHILD)))


@operation
async def commit_the_end_of_a_run_that_others_wait_for(store: Store, system: ManualSystem) -> Ask:
    target = await held(store, "target")
    for name in ("w1", "w2"):
        await commit(store, await held(store, name), sends=(a_wait("target", name),), next=a_park(reason=Reason.CHILD))
    running = await held(store, "w3")
    await commit(store, running, sends=(a_wait("target", "w3"), a_wait("target", "w3", location="other")))
    return committing(
        Turn(lease=target, records=(a_record(0),), next=Finish(Status.COMPLETED, "1")),
        Turn(lease=running, records=(a_record(0),), sends=(a_wait("target", "w3", location="other", over=True),)),
    )


@operation
async def commit_waits_for_outputs_of_another_run(store: Store, system: ManualSystem) -> Ask:
    leases = [await held(store, name) for name in ("target", "ended", "waiter")]
    state = NewOutput(kind=OutputKind.STATE, name="phase", payload="1", key="phase")
    await commit(store, leases[1], outputs=(state,), next=Finish(Status.COMPLETED, "1"))
    waits = tuple(a_look(name, location=name) for name in ("target", "ended", "unknown"))
    return committing(Turn(lease=leases[2], records=(a_record(0),), sends=waits, next=a_park(reason=Reason.CHILD)))


@operation
async def commit_outputs_that_others_wait_for(store: Store, system: ManualSystem) -> Ask:
    target = await held(store, "target")
    for name, kind in (("w1", OutputKind.STATE), ("w2", OutputKind.STREAM)):
        wait = a_look("target", name, kind=kind)
        await commit(store, await held(store, name), sends=(wait,), next=a_park(reason=Reason.CHILD))
    running = await held(store, "w3")
    await commit(store, running, sends=(a_look("target", "w3"), a_look("target", "w3", location="other")))
    shown = (an_output("1"), an_output("1", OutputKind.STREAM))
    return committing(
        Turn(lease=target, records=(a_record(0),), outputs=shown),
        Turn(lease=running, records=(a_record(0),), sends=(a_look("target", "w3", location="other", over=True),)),
    )


@operation
async def commit_what_was_read(store: Store, system: ManualSystem) -> Ask:
    lease = await held(store)
    await store.send([a_message("r1", "k1"), a_message("r1", "k2")], ACTOR)
    record = a_record(0, "news", kind=RecordKind.MESSAGE, inbox_seq=1)
    return committing(Turn(lease=lease, records=(record,), read=1))


@operation
async def commit_what_others_read_and_do_not_need(store: Store, system: ManualSystem) -> Ask:
    lease = await held(store, attributes=make_attributes({"amount": 1, "removed": True}))
    await commit(store, lease, *(a_record(seq) for seq in range(4)), subscribes=("left@1",))
    turn = Turn(
        lease=lease,
        records=(a_record(4, "loop", kind=RecordKind.SCOPE),),
        outputs=(
            NewOutput(kind=OutputKind.STREAM, name="tokens", payload="1", key="a"),
            NewOutput(kind=OutputKind.STATE, name="phase", payload="1", key="phase"),
            NewOutput(kind=OutputKind.REPLY, name="k1", payload="1", key="b"),
            *attribute_outputs({"phase": "paid", "amount": 2, "removed": None}),
        ),
        children=(a_child("child", "r1", attributes=make_attributes({"sku": "x1"})),),
        subscribes=("news@1",),
        unsubscribes=("left@1",),
        trim=Trim(records=((0, 3),), inbox=1, events=1),
    )
    return committing(turn)


@operation
async def commit_turns_of_every_kind(store: Store, system: ManualSystem) -> Ask:
    leases = {name: await held(store, name) for name in NEXT}
    await store.send([a_message("park")], ACTOR)
    return committing(*(Turn(lease=leases[name], records=(a_record(0),), next=next) for name, next in NEXT.items()))
