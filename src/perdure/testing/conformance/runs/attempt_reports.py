"""Reports from outside about attempts at activities: each is final, and belongs to one attempt."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.core.model.attempt_reports import (
    AttemptReport,
    AttemptToken,
    PendingAttempt,
    ReportKind,
    ReportOutcome,
    make_token,
    pending_output,
    read_token,
)
from perdure.core.model.outputs import OutputKind
from perdure.core.model.record import RecordKind
from perdure.core.model.run import Reason, Status
from perdure.core.model.turn import Block, Finish, Lease, Park, Release, RetryLater, TurnOutcome
from perdure.core.time.duration import NEVER
from perdure.store import Store
from perdure.testing.conformance.harness import (
    ACTOR,
    SECOND,
    START,
    Harness,
    a_child,
    a_park,
    a_record,
    a_run,
    commit,
    held,
    lease_of,
    snapshot,
)


async def token_of(store: Store, run_id: str = "r1", number: int = 0) -> AttemptToken:
    """Token of an attempt at a run that was claimed."""
    run = await store.get(run_id)
    assert run is not None
    return read_token(make_token(run_id, run.generation, number, run.seed))


def a_report_from_outside(
    token: AttemptToken, kind: ReportKind = ReportKind.COMPLETED, payload: str | None = '{"a":1}'
) -> AttemptReport:
    """A report."""
    return AttemptReport(token=token, kind=kind, payload=payload)


async def a_pending_attempt(
    store: Store, lease: Lease | None = None, *, heartbeat: int = SECOND, breaker: str = ""
) -> None:
    """Park a run whose function has returned `Pending`."""
    pending = PendingAttempt(
        generation=1, number=0, started_at=START, since=START, heartbeat=heartbeat, breaker=breaker, admitted_at=START
    )
    park = Park(min(START + heartbeat, NEVER) if heartbeat else NEVER, Reason.COMPLETION, 0)
    lease = await held(store) if lease is None else lease
    assert await commit(store, lease, outputs=(pending_output(pending),), next=park) is TurnOutcome.APPLIED


async def tell(
    store: Store, token: AttemptToken, kind: ReportKind = ReportKind.COMPLETED, payload: str | None = '{"a":1}'
) -> ReportOutcome:
    """Report; the answer."""
    return await store.report_attempt(a_report_from_outside(token, kind, payload), ACTOR)


class AttemptReports:
    """A report ends an attempt at once and for good, or is refused and writes nothing."""

    async def test_a_completion_ends_the_run_in_any_unfinished_status(self, store: Store) -> None:
        await a_pending_attempt(store, await held(store, "parked"))
        await held(store, "running")
        assert await commit(store, await held(store, "released"), next=Release()) is TurnOutcome.APPLIED
        await commit(store, await held(store, "blocked"), next=Block(Reason.POISON, "{}"))
        for run_id in ("parked", "running", "released", "blocked"):
            assert await tell(store, await token_of(store, run_id)) is ReportOutcome.DONE
            run = await store.get(run_id)
            assert run is not None
            ended = (run.status, run.reason, run.worker, run.output, run.error, run.finished_at)
            assert ended == (Status.COMPLETED, None, None, '{"a":1}', None, START)
            event = (await store.events(run_id))[-1]
            assert (event.kind, event.actor, event.data) == ("completed", ACTOR, '{"from":"outside"}')
        assert await store.leases("w1") == []

    async def test_the_parent_is_told_in_the_same_transaction(self, store: Store) -> None:
        park = a_park(reason=Reason.CHILD)
        await commit(store, await held(store, "parent"), children=(a_child("r1"),), next=park)
        await a_pending_attempt(store, await lease_of(store, "r1"))
        assert await tell(store, await token_of(store)) is ReportOutcome.DONE
        [told] = await store.inbox("parent", 0)
        assert (told.kind, told.name, told.payload, told.failed) == (RecordKind.CHILD, "call-r1", '{"a":1}', False)
        parent = await store.get("parent")
        assert parent is not None
        assert parent.status is Status.PENDING

    async def test_the_holder_of_a_completed_run_has_lost_its_lease(self, harness: Harness, store: Store) -> None:
        lease = await held(store)
        assert await tell(store, await token_of(store)) is ReportOutcome.DONE
        before = await snapshot(harness)
        for next in (Finish(Status.COMPLETED, '{"a":1}'), Finish(Status.FAILED, "{}"), a_park(), Release()):
            assert await commit(store, lease, next=next) is TurnOutcome.LOST
        assert await snapshot(harness) == before

    async def test_the_first_outcome_stays(self, harness: Harness, store: Store) -> None:
        await a_pending_attempt(store)
        token = await token_of(store)
        assert await tell(store, token, payload='{"a":1,"b":2}') is ReportOutcome.DONE
        before = await snapshot(harness)
        assert await tell(store, token, payload='{"b":2, "a":1}') is ReportOutcome.DONE
        assert await tell(store, token, payload='{"a":1,"b":true}') is ReportOutcome.ENDED
        assert await tell(store, token, ReportKind.FAILED, "{}") is ReportOutcome.ENDED
        assert await tell(store, token, ReportKind.HEARTBEAT, None) is ReportOutcome.ENDED
        assert await snapshot(harness) == before

    async def test_a_failure_wakes_the_run_and_ends_the_attempt(self, harness: Harness, store: Store) -> None:
        await a_pending_attempt(store)
        token = await token_of(store)
        assert await tell(store, token, ReportKind.FAILED, '{"message":"no"}') is ReportOutcome.DONE
        run = await store.get("r1")
        assert run is not None
        assert (run.status, run.reason) == (Status.PENDING, None)
        [entry] = await store.inbox("r1", 0)
        assert (entry.kind, entry.name, entry.payload) == (RecordKind.REPORT, "1.0", '{"message":"no"}')
        before = await snapshot(harness)
        assert await tell(store, token, ReportKind.FAILED, "{}") is ReportOutcome.DONE
        assert await tell(store, token) is ReportOutcome.OVER
        assert await tell(store, token, ReportKind.HEARTBEAT, None) is ReportOutcome.OVER
        assert await snapshot(harness) == before

    async def test_a_token_belongs_to_one_attempt(self, harness: Harness, store: Store) -> None:
        lease, token = await held(store), await token_of(store)
        failed = a_record(0, kind=RecordKind.ATTEMPT, failed=True)
        assert await commit(store, lease, failed, next=RetryLater(START, "{}")) is TurnOutcome.APPLIED
        before = await snapshot(harness)
        for kind in ReportKind:
            assert await tell(store, token, kind, "1") is ReportOutcome.OVER
        assert await snapshot(harness) == before
        await lease_of(store, nonce="again")
        assert await tell(store, await token_of(store, number=1)) is ReportOutcome.DONE

    async def test_a_heartbeat_puts_off_the_timeout(self, harness: Harness, store: Store) -> None:
        await a_pending_attempt(store)
        token = await token_of(store)
        for beats, (payload, kept) in enumerate([("7", "7"), (None, "7"), ("8", "8")], 1):
            harness.system.advance(0.5)
            assert await tell(store, token, ReportKind.HEARTBEAT, payload) is ReportOutcome.DONE
            run = await store.get("r1")
            assert run is not None
            assert (run.status, run.wake_at) == (Status.WAITING, START + beats * SECOND // 2 + SECOND)
            [beat] = await store.outputs("r1", OutputKind.HEARTBEAT, "", -1, 9)
            assert (beat.payload, beat.at) == (kept, START + beats * SECOND // 2)

    async def test_a_heartbeat_wakes_no_run_and_changes_no_other_wait(self, store: Store) -> None:
        await held(store, "running")
        await a_pending_attempt(store, await held(store, "patient"), heartbeat=0)
        await commit(store, await held(store, "other"), next=a_park(wake_at=START + 9 * SECOND, reason=Reason.RETRY))
        for run_id in ("running", "patient", "other"):
            before = await store.get(run_id)
            assert await tell(store, await token_of(store, run_id), ReportKind.HEARTBEAT, "1") is ReportOutcome.DONE
            assert await store.get(run_id) == before

    async def test_a_run_that_was_cancelled_takes_no_report(self, harness: Harness, store: Store) -> None:
        await a_pending_attempt(store)
        await store.cancel("r1", "enough", "c1", ACTOR)
        before = await snapshot(harness)
        for kind in ReportKind:
            assert await tell(store, await token_of(store), kind, "1") is ReportOutcome.CANCELLED
        assert await snapshot(harness) == before

    async def test_a_token_that_is_not_genuine_is_unknown(self, harness: Harness, store: Store) -> None:
        await a_pending_attempt(store)
        await store.create([a_run("new")], ACTOR)
        token, unclaimed = await token_of(store), await token_of(store, "new")
        before = await snapshot(harness)
        forged = [
            replace(token, proof=bytes(16)),
            replace(token, number=1),
            replace(token, generation=2),
            replace(token, run_id="missing"),
            unclaimed,
        ]
        for one in forged:
            for kind in ReportKind:
                assert await tell(store, one, kind, "1") is ReportOutcome.UNKNOWN
        assert await snapshot(harness) == before

    @pytest.mark.parametrize("kind", list(ReportKind))
    async def test_a_report_may_be_repeated(self, harness: Harness, store: Store, kind: ReportKind) -> None:
        await a_pending_attempt(store)
        token = await token_of(store)
        assert await tell(store, token, kind, "1") is ReportOutcome.DONE
        before = await snapshot(harness)
        assert await tell(store, token, kind, "1") is ReportOutcome.DONE
        assert await snapshot(harness) == before
