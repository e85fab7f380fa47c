"""Every verb that writes: what has to be there before, and the verb with its arguments."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from perdure.core.limits.limit import LimitBounds
from perdure.core.model.events import NewStickyEvent, event_run
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, RetryRequest, Status
from perdure.core.model.run_orders import Pause, PauseKind, RunOrder
from perdure.core.model.turn import Block, Finish, Turn, TurnOutcome
from perdure.core.model.worker_info import DrainOrder
from perdure.core.policy.retention import PruneRequest
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.store.user_connections.transaction_step import TransactionStep
from perdure.testing.conformance.documents import a_report, a_source
from perdure.testing.conformance.graph_checkpoints import (
    prepare_copy_graph_thread,
    prepare_delete_graph_entries,
    prepare_save_graph_entries,
)
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    TYPE,
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
from perdure.testing.conformance.limits.breakers import PREPARE as BREAKERS
from perdure.testing.conformance.limits.gates import GATE, a_gating, asks, ready
from perdure.testing.conformance.locks import PREPARE as LOCKS
from perdure.testing.conformance.registry import MAIL, SHOP
from perdure.testing.conformance.runs.attempt_reports import a_pending_attempt, a_report_from_outside, token_of
from perdure.testing.conformance.runs.claim_by_id import prepare_claim_by_id
from perdure.testing.conformance.runs.log import a_line
from perdure.testing.conformance.runs.outputs import a_set_aside
from perdure.testing.conformance.runs.packing import a_long_run
from perdure.testing.conformance.runs.reopen import a_fork
from perdure.testing.conformance.runs.waiters import a_wait
from perdure.testing.conformance.schedules import a_schedule

Verb = Callable[[Store], Awaitable[object]]


async def _prepare_claim(store: Store) -> Verb:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    await store.register(a_worker())
    return claim


async def _prepare_create(store: Store) -> Verb:
    return lambda store: store.create([a_run("r1", idempotency_key="k"), a_run("r2")], ACTOR)


async def _prepare_send(store: Store) -> Verb:
    await held(store)
    await store.create([a_run("r2")], ACTOR)
    return lambda store: store.send([a_message("r1"), a_message("r2"), a_message("unknown")], ACTOR)


async def _prepare_broadcast(store: Store) -> Verb:
    for name in ("r1", "r2", "r3"):
        await commit(store, await held(store, name), subscribes=("news@1",))
    return lambda store: store.broadcast("news@1", "1", "b1", None, 2, ACTOR)


async def _prepare_cancel(store: Store) -> Verb:
    await store.create([a_run("r1")], ACTOR)
    return lambda store: store.cancel("r1", "enough", "c1", ACTOR)


async def _prepare_terminate(store: Store) -> Verb:
    lease = await held(store, "r1")
    await commit(store, lease, children=(a_child("c1", "r1"),))
    return lambda store: store.terminate("r1", "enough", "t1", ACTOR)


async def _prepare_decide_message(store: Store) -> Verb:
    await commit(store, await held(store), a_record(0), outputs=(a_set_aside(),), next=a_park())
    return lambda store: store.decide_message("r1", 0, "d1", "7", ACTOR, deliver=True)


async def _prepare_emit_event(store: Store) -> Verb:
    await commit(
        store, await held(store, "waiter"), children=(event_run("sticky:rates", "w"),), sends=(a_wait("sticky:rates"),),
        next=a_park(),
    )  # fmt: skip
    event = NewStickyEvent(name="rates", payload="1", write_id="e1")
    return lambda store: store.emit_event(event, ACTOR)


async def _prepare_report_attempt(store: Store) -> Verb:
    await a_pending_attempt(store)
    report = a_report_from_outside(await token_of(store))
    return lambda store: store.report_attempt(report, ACTOR)


async def _prepare_order_run(store: Store) -> Verb:
    await commit(store, await held(store), next=a_park())
    order = RunOrder(run_id="r1", kind=RecordKind.PAUSE, key="p1", reason="lunch")
    return lambda store: store.order_run(order, ACTOR)


async def _prepare_set_priority(store: Store) -> Verb:
    await store.create([a_run("r1")], ACTOR)
    return lambda store: store.set_priority("r1", 7, "urgent", ACTOR)


async def _prepare_pin(store: Store) -> Verb:
    lease = await held(store)
    return lambda store: store.pin([lease], "1.0", ACTOR)


async def _prepare_unpin(store: Store) -> Verb:
    await store.pin([await held(store)], "1.0", ACTOR)
    return lambda store: store.unpin("r1", "1.0 is gone", ACTOR)


async def _prepare_pause(store: Store) -> Verb:
    return lambda store: store.pause(Pause(kind=PauseKind.TYPE, name="t", reason="lunch"), ACTOR)


async def _prepare_resume(store: Store) -> Verb:
    await store.pause(Pause(kind=PauseKind.QUEUE, name="q"), ACTOR)
    return lambda store: store.resume(PauseKind.QUEUE, "q", ACTOR)


async def _prepare_unblock(store: Store) -> Verb:
    lease = await held(store)
    await commit(store, lease, next=Block(Reason.DIVERGED, "{}"))
    return lambda store: store.unblock((TYPE,), ("diverged",), ACTOR)


async def _prepare_retry(store: Store) -> Verb:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    return lambda store: store.retry(RetryRequest(run_id="r1", token=1, input="[2]"), ACTOR)


async def _prepare_fork(store: Store) -> Verb:
    return lambda store: store.fork(a_fork(), ACTOR)


async def _prepare_forget_events(store: Store) -> Verb:
    await store.create([a_run("r1"), a_run("r2")], ACTOR)
    return lambda store: store.delete_events(sys.maxsize, NEVER, ACTOR)


async def _prepare_save_schedule(store: Store) -> Verb:
    return lambda store: store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)


async def _prepare_delete_schedule(store: Store) -> Verb:
    await store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.delete_schedule("s1", ACTOR)


async def _prepare_trigger(store: Store) -> Verb:
    await store.save_schedule(a_schedule(), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.trigger("s1", (), "now", ACTOR)


async def _prepare_fire_schedules(store: Store) -> Verb:
    await store.save_schedule(a_schedule(next_fire_time=START, due_at=START), 0, "w", "schedule_created", ACTOR)
    return lambda store: store.fire_schedules(10, ACTOR)


async def _prepare_admit(store: Store) -> Verb:
    await ready(store, "r1", "r2", "r3")
    request = await asks(store, a_gating(LimitBounds(concurrency=2, pace=SECOND, burst=2)))
    # Gates are made in a transaction of their own, which may be there although the rest is not.
    await store.set_bounds(GATE, None, ACTOR)
    return lambda store: store.admit(request)


async def _prepare_forget_gates(store: Store) -> Verb:
    await ready(store, "r1")
    [one] = (await store.admit(await asks(store, a_gating(gate="tenant/a")))).runs
    await commit(store, one.lease, next=Finish(Status.COMPLETED, "1"))
    return lambda store: store.delete_idle_gates(10, ACTOR)


async def _prepare_stir_gates(store: Store) -> Verb:
    await ready(store, "r1", "r2")
    await store.admit(await asks(store))
    return lambda store: store.recheck_gates(ACTOR)


async def _prepare_set_bounds(store: Store) -> Verb:
    return lambda store: store.set_bounds("queue:default", LimitBounds(concurrency=2), ACTOR)


async def _prepare_delete(store: Store) -> Verb:
    await commit(store, await held(store), next=Block(Reason.POISON, "{}"))
    return lambda store: store.delete("r1", "enough", ACTOR, discard=True)


async def _prepare_undelete(store: Store) -> Verb:
    await commit(store, await held(store), next=Finish(Status.FAILED, "{}"))
    await store.delete("r1", "", ACTOR)
    return lambda store: store.undelete("r1", ACTOR)


async def _prepare_prune(store: Store) -> Verb:
    for name in ("r1", "r2"):
        await commit(store, await held(store, name), a_record(0), next=Finish(Status.COMPLETED, "1"))
    return lambda store: store.prune(PruneRequest(before=NEVER), 10, None, ACTOR)


async def _prepare_register(store: Store) -> Verb:
    return lambda store: store.register(a_worker(), [MAIL, SHOP])


async def _prepare_save_sources(store: Store) -> Verb:
    return lambda store: store.save_sources([a_source()], ACTOR)


async def _prepare_save_report(store: Store) -> Verb:
    return lambda store: store.save_report(a_report(), ACTOR)


async def _prepare_drain(store: Store) -> Verb:
    await store.register(a_worker())
    return lambda store: store.drain("w1", DrainOrder(key="d1", reason="new host"), ACTOR)


async def _prepare_heartbeat(store: Store) -> Verb:
    await store.register(a_worker())
    return lambda store: store.heartbeat("w1", '{"more":2}')


async def _prepare_report_health(store: Store) -> Verb:
    await store.register(a_worker())
    return lambda store: store.report_health("w1", 2, "claimer: ValueError: x")


async def _prepare_retire(store: Store) -> Verb:
    await held(store)
    return lambda store: store.retire("w1")


async def _prepare_sweep(store: Store) -> Verb:
    await held(store)
    await store.create([a_run("late", deadline=START)], ACTOR)
    return lambda store: store.sweep(10)


async def _prepare_commit(store: Store) -> Verb:
    await store.create([a_run("other")], ACTOR)
    lease = await held(store)
    turn = Turn(
        lease=lease,
        records=(a_record(0), a_record(1)),
        children=(a_child("child", "r1"),),
        sends=(a_message("other"),),
        next=Finish(Status.COMPLETED, "1"),
    )
    return lambda store: store.commit([turn], ACTOR)


async def _prepare_keep_log(store: Store) -> Verb:
    await held(store)
    lines = [("r1", a_line(number)) for number in range(5)]
    return lambda store: store.keep_log(lines, 3, ACTOR)


async def _prepare_pack(store: Store) -> Verb:
    lease, _ = await a_long_run(store)
    return lambda store: store.pack(lease, 0, 19, ACTOR)


async def _prepare_transact(store: Store) -> Verb:
    turn = Turn(lease=await held(store), records=(a_record(0),))

    async def work(connection: object) -> int:
        return 1

    async def seal(result: object) -> Turn:
        return turn

    async def ask(store: Store) -> None:
        # The function belongs to the user, so a repeated request has to look first.
        if await store.turn_outcome(turn, ACTOR) is TurnOutcome.BUSY:
            assert (
                await store.transact(TransactionStep(function=work, is_async=True, make_turn=seal))
                is TurnOutcome.APPLIED
            )

    return ask


PREPARE: dict[str, Callable[[Store], Awaitable[Verb]]] = {
    "claim": _prepare_claim,
    "claim_by_id": prepare_claim_by_id,
    "create": _prepare_create,
    "send": _prepare_send,
    "broadcast": _prepare_broadcast,
    "cancel": _prepare_cancel,
    "terminate": _prepare_terminate,
    "decide_message": _prepare_decide_message,
    "report_attempt": _prepare_report_attempt,
    "emit_event": _prepare_emit_event,
    "order_run": _prepare_order_run,
    "set_priority": _prepare_set_priority,
    "pin": _prepare_pin,
    "unpin": _prepare_unpin,
    "pause": _prepare_pause,
    "resume": _prepare_resume,
    "unblock": _prepare_unblock,
    "retry": _prepare_retry,
    "fork": _prepare_fork,
    "delete_events": _prepare_forget_events,
    "save_schedule": _prepare_save_schedule,
    "delete_schedule": _prepare_delete_schedule,
    "trigger": _prepare_trigger,
    "fire_schedules": _prepare_fire_schedules,
    "admit": _prepare_admit,
    "recheck_gates": _prepare_stir_gates,
    "delete_idle_gates": _prepare_forget_gates,
    "set_bounds": _prepare_set_bounds,
    **BREAKERS,
    "delete": _prepare_delete,
    "undelete": _prepare_undelete,
    "prune": _prepare_prune,
    "register": _prepare_register,
    "save_sources": _prepare_save_sources,
    "save_report": _prepare_save_report,
    "save_graph_entries": prepare_save_graph_entries,
    "copy_graph_thread": prepare_copy_graph_thread,
    "delete_graph_entries": prepare_delete_graph_entries,
    "drain": _prepare_drain,
    "heartbeat": _prepare_heartbeat,
    "report_health": _prepare_report_health,
    "retire": _prepare_retire,
    "sweep": _prepare_sweep,
    "commit": _prepare_commit,
    "pack": _prepare_pack,
    "keep_log": _prepare_keep_log,
    "transact": _prepare_transact,
    **LOCKS,
}
