"""Faults planted in the engine, each as a patch, to see whether the simulation finds them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure.core.model.attempt_reports import AttemptReport, ReportOutcome, make_token, read_token
from perdure.core.model.record import NewMessage
from perdure.core.model.turn import Finish, Lease, Park, Turn, TurnOutcome
from perdure.replay.execution import Execution
from perdure.replay.operations import StepOperation
from perdure.store.retrying import Retrying
from perdure.store.sql import reads, store, workers
from perdure.store.sql import turn as extras
from perdure.store.sql.dialect import Row
from perdure.store.sql.runs import attempt_reports, dead_letters, inbox, pause_and_evict
from perdure.store.sql.runs import inbox as topics
from perdure.store.sql.turn import TurnState
from perdure.store.sqlite import claim, commit
from perdure.store.sqlite.connection import SqliteTransaction
from perdure.store.sqlite.store import SqliteStore
from perdure.worker import worker
from perdure.worker.claiming.claimer import Claimer, Residents
from perdure.worker.run import turn_draft
from perdure.worker.run.activity_run import ActivityRun
from perdure.worker.run.commit_lock import CommitLock
from perdure.worker.run.workflow_run import WorkflowRun
from perdure.worker.steps.activity_attempt import ActivityAttempt
from tests.simulation.loop import LANE

Patch = pytest.MonkeyPatch

_STATES = ("PARK", "_RETRY_LATER", "_RELEASE", "_BLOCK")
_LEASE = "AND token = :token AND nonce = :nonce AND status = 'running'"
#: Where a statement with parameters by position has the lease proved: it, and what token and nonce are called there.
_PROOFS: tuple[tuple[ModuleType, str, str, str], ...] = (
    (commit, "FINISH", "?", "?"),
    (commit, "RECORD", "?", "?"),
    (commit, "RECORDS", "v.column3", "v.column15"),
    (commit, "SUCCESS", "?", "?"),
    (commit, "SUCCESSES", "v.column3", "v.column9"),
)


def reword(patch: Patch, module: ModuleType, name: str, old: str, new: str) -> None:
    text = getattr(module, name)
    assert old in text, f"{name} is not what this fault was planted in"
    patch.setattr(module, name, text.replace(old, new))


def reword_proofs(patch: Patch, new: str) -> None:
    """Replace what records and outcomes have to prove, in terms of `{token}` and `{nonce}`."""
    for module, name, token, nonce in _PROOFS:
        old = f"AND token = {token} AND nonce = {nonce} AND status = 'running'"
        reword(patch, module, name, old, new.format(token=token, nonce=nonce))


def fence(patch: Patch, lease: str, record_lease: str, standing: Callable[[tuple[Any, ...], Turn], bool]) -> None:
    """Replace what a write has to prove."""
    for name in _STATES:
        reword(patch, commit, name, _LEASE, lease)
    reword_proofs(patch, record_lease)

    async def stand(tx: SqliteTransaction, turn: Turn) -> TurnState:
        rows = await tx.fetch(
            "SELECT status, token, nonce, worker FROM perdure_runs WHERE id = ?", (turn.lease.run_id,)
        )
        return TurnState.LIVE if standing(rows[0], turn) else TurnState.LOST

    patch.setattr(commit, "_check_state", stand)


def no_fence(patch: Patch) -> None:
    """Anybody may write to any run."""
    fence(patch, "", "AND {token} IS NOT NULL AND {nonce} IS NOT NULL", lambda row, turn: True)


def fence_by_worker(patch: Patch) -> None:
    """A write proves only which worker it comes from, and a new process takes over the name of an old one."""

    def name(*_: object) -> str:
        return f"worker-{int(LANE.get().process.name.removeprefix('worker')) % 2}"

    patch.setattr(worker, "uuid7", name)
    reword(
        patch,
        workers,
        "_REGISTER",
        "{or_ignore}",
        "ON CONFLICT (id) DO UPDATE SET status = 'alive', heartbeat_at = :now",
    )
    # The worker of a turn is not part of it, but the name is where the lane says.
    for each in _STATES:
        reword(patch, commit, each, _LEASE, "AND worker = :worker AND status = 'running'")
    proof = commit._proof
    patch.setattr(commit, "_proof", lambda lease: {**proof(lease), "worker": name()})
    reword_proofs(patch, "AND {token} IS NOT NULL AND worker = {nonce} AND status = 'running'")
    finish = commit._finish

    async def finish_by_name(tx: SqliteTransaction, lease: Lease, outcome: Finish) -> bool:
        return await finish(tx, Lease(lease.run_id, lease.token, name()), outcome)

    patch.setattr(commit, "_finish", finish_by_name)
    insert = commit._insert

    async def insert_by_name(
        tx: SqliteTransaction, many: str, one: str, params_of_one: Callable[[Row], Row], rows: list[Row]
    ) -> int:
        return await insert(tx, many, one, params_of_one, [(*row[:-1], name()) for row in rows])

    patch.setattr(commit, "_insert", insert_by_name)

    async def stand(tx: SqliteTransaction, turn: Turn) -> TurnState:
        rows = await tx.fetch("SELECT status, worker FROM perdure_runs WHERE id = ?", (turn.lease.run_id,))
        return TurnState.LIVE if rows[0] == ("running", name()) else TurnState.LOST

    patch.setattr(commit, "_check_state", stand)


def token_never_raised(patch: Patch) -> None:
    """The token alone is the proof, and neither giving back nor claiming raises it."""
    fence(
        patch,
        "AND token = :token AND status = 'running'",
        "AND token = {token} AND {nonce} IS NOT NULL AND status = 'running'",
        lambda row, turn: bool(row[:2] == ("running", turn.lease.token)),
    )
    reword(patch, claim, "TAKE", "token = token + 1", "token = MAX(token, 1)")
    reword(patch, workers, "_GIVE_BACK", "token = token + 1", "token = token")
    reword(patch, commit, "_RELEASE", "token = token + 1", "token = token")


def token_kept_when_given_back(patch: Patch) -> None:
    """A run that is given back keeps its token until a worker claims it, so that its last holder may still write."""
    reword(patch, workers, "_GIVE_BACK", "token = token + 1", "token = token")
    reword(patch, commit, "_RELEASE", "token = token + 1", "token = token")


def split_check(patch: Patch) -> None:
    """The lease is checked in one transaction, and the turn written in another."""
    checked = commit._check_state
    no_fence(patch)

    async def check(tx: SqliteTransaction, turns: Sequence[Turn]) -> list[TurnState]:
        return [await checked(tx, turn) for turn in turns]

    async def in_two(self: SqliteStore, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        standings = await self._read("check", lambda tx: check(tx, turns))
        await asyncio.sleep(0.05)
        live = [turn for turn, standing in zip(turns, standings, strict=True) if standing is TurnState.LIVE]
        written = iter(await self._write("commit", actor, lambda tx: commit.commit(tx, live)))
        return [
            next(written)
            if standing is TurnState.LIVE
            else TurnOutcome.LOST
            if standing is TurnState.LOST
            else TurnOutcome.APPLIED
            for standing in standings
        ]

    patch.setattr(SqliteStore, "commit", in_two)


def split_outcome(patch: Patch) -> None:
    """A run's outcome is written in one transaction, and its parent told in another."""
    words: list[NewMessage | None] = []
    deliver = inbox.deliver

    async def later(_: SqliteTransaction, word: NewMessage | None) -> None:
        words.append(word)

    async def tell(tx: SqliteTransaction, told: Sequence[NewMessage | None]) -> None:
        for word in told:
            await deliver(tx, word)

    async def in_two(self: SqliteStore, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        words.clear()
        verdicts = await self._write("commit", actor, lambda tx: commit.commit(tx, turns))
        told = [*words]
        words.clear()
        if told:
            await self._write("commit", actor, lambda tx: tell(tx, told))
        return verdicts

    patch.setattr(commit, "deliver", later)
    patch.setattr(SqliteStore, "commit", in_two)


def split_inbox(patch: Patch) -> None:
    """What came in is recorded in one transaction, and marked as read in another."""

    async def in_two(self: SqliteStore, turns: Sequence[Turn], actor: str) -> list[TurnOutcome]:
        unread = [msgspec.structs.replace(turn, read=0) for turn in turns]
        verdicts = await self._write("commit", actor, lambda tx: commit.commit(tx, unread))
        await self._write("commit", actor, lambda tx: read(tx, turns))
        return verdicts

    async def read(tx: SqliteTransaction, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if turn.read:
                await tx.execute(commit._READ, (turn.read, turn.read, turn.lease.run_id))
                await tx.execute(commit._CONSUME, (turn.lease.run_id, turn.read))

    patch.setattr(SqliteStore, "commit", in_two)


def parent_not_woken(patch: Patch) -> None:
    """A child's outcome is left in its parent's inbox, and the parent sleeps on."""
    asleep = inbox._RAISE.replace("status = :status,", "").replace(":status", "'waiting'").replace(":woken = 1", "0")

    async def deliver(tx: SqliteTransaction, word: NewMessage | None) -> None:
        with Patch.context() as inner:
            inner.setattr(inbox, "_RAISE", asleep)
            await inbox.deliver(tx, word)

    patch.setattr(commit, "deliver", deliver)


def waiter_not_woken(patch: Patch) -> None:
    """A message does not wake the run that waits for it."""
    reword(patch, inbox, "_RAISE", "status = :status,", "")
    reword(patch, inbox, "_RAISE", ":woken = 1", "0")


def park_without_looking(patch: Patch) -> None:
    """A run is parked whatever came in meanwhile."""
    reword(patch, commit, "PARK", " AND inbox_seq = :seen", "")


def message_retried_under_another_key(patch: Patch) -> None:
    """A send whose answer was lost is repeated as another message."""

    async def send(self: Retrying, new: Sequence[NewMessage], actor: str) -> Any:
        tries = 0

        def again() -> Any:
            nonlocal tries
            tries += 1
            fresh = [msgspec.structs.replace(one, key=f"{one.key}~{tries}") for one in new] if tries > 1 else new
            return self._store.send(fresh, actor)

        return await self._until_available(again, (), {})

    patch.setattr(Retrying, "send", send)


def commit_retried_under_another_number(patch: Patch) -> None:
    """A commit whose answer was lost appends its records a second time."""
    reword(
        patch,
        commit,
        "RECORD",
        "SELECT id, ?, token,",
        "SELECT id, MAX(?, "
        "(SELECT COALESCE(MAX(seq) + 1, 0) FROM perdure_history WHERE run_id = perdure_runs.id)), token,",
    )


def steps_before_records(patch: Patch) -> None:
    """A step begins before what led to it is durable."""
    patch.setattr(StepOperation, "ephemeral", property(lambda self: True))


def newest_message_first(patch: Patch) -> None:
    """Inboxes are read from the end."""
    reword(patch, reads, "_INBOX", "ORDER BY run_id, seq", "ORDER BY run_id, seq DESC")
    reword(patch, reads, "_MARKED", "ORDER BY m.run_id, m.seq", "ORDER BY m.run_id, m.seq DESC")


def lost_claims_forgotten(patch: Patch) -> None:
    """A worker never looks at what the database says it holds."""

    async def nothing(self: Claimer) -> None:
        return

    patch.setattr(Claimer, "_reconcile", nothing)


def residents_trusted(patch: Patch) -> None:
    """A run that stayed in memory goes on from there, also if another worker had it meanwhile."""
    patch.setattr(Residents, "take", lambda self, run: self._parked.pop(run.id, None))


def dead_may_beat(patch: Patch) -> None:
    """A worker that was declared dead is not told."""
    reword(patch, workers, "_HEARTBEAT", " AND status = 'alive'", "")


def transaction_repeated_unasked(patch: Patch) -> None:
    """A transaction whose answer was lost is taken for one that never was."""

    async def busy(tx: Any, turn: Turn) -> TurnOutcome:
        return TurnOutcome.BUSY

    patch.setattr(store, "turn_outcome", busy)


def transaction_with_a_turn_of_its_own(patch: Patch) -> None:
    """What followed from a transaction is taken to be durable with it."""
    patch.setattr(Execution, "_was_committed_alone", lambda self, record: False)


def transaction_unsealed(patch: Patch) -> None:
    """Other things happen to a run while its transaction commits."""

    def attempt_ended(self: CommitLock, attempt: Any, *end: Any) -> bool:
        self._holder = attempt if self._holder is not None else None
        return original(self, attempt, *end)

    original = CommitLock.attempt_ended
    patch.setattr(CommitLock, "attempt_ended", attempt_ended)


def unreceived_left_behind(patch: Patch) -> None:
    """A run that begins anew leaves behind what had arrived and was not received."""
    patch.setattr(Execution, "unreceived", lambda self: [])


def renewed_without_looking(patch: Patch) -> None:
    """A run begins anew whatever came in meanwhile, so that what it carries over comes after that."""
    reword(patch, commit, "_CONTINUE_AS_NEW", " AND inbox_seq = :seen", "")


def children_of_the_past_heard(patch: Patch) -> None:
    """A run that began anew is told of the children that it had before."""
    patch.setattr(Execution, "is_from_earlier_generation", lambda self, message: False)


def listeners_forgotten(patch: Patch) -> None:
    """That a run listens is not written down when it parks at the same time."""
    subscribe = topics.subscribe

    async def unless_parked(tx: SqliteTransaction, turns: Iterable[Turn]) -> None:
        await subscribe(tx, [turn for turn in turns if not isinstance(turn.next, Park)])

    patch.setattr(extras, "subscribe", unless_parked)


def broadcast_passes_over(patch: Patch) -> None:
    """A broadcast does not go from run to run in the order in which it looks for the next."""
    reword(patch, topics, "_LISTENERS", "ORDER BY topic, run_id", "ORDER BY topic, run_id DESC")


def headers_left_behind(patch: Patch) -> None:
    """What a run starts has the headers that it was given, and not those of the run."""
    patch.setattr(turn_draft, "inherit_headers", lambda options, of_parent, given: options)


def end_overtakes_items(patch: Patch) -> None:
    """A turn carries only those items of steps that were announced before it was made."""
    take = WorkflowRun._take_emitted

    def only_announced(self: WorkflowRun) -> None:
        if self._has_emitted:
            take(self)

    patch.setattr(WorkflowRun, "_take_emitted", only_announced)


def end_overtakes_details(patch: Patch) -> None:
    """A turn carries only those details of a heartbeat that were announced before the attempt ended."""
    take, heartbeat_received = ActivityRun._take_details, ActivityRun.heartbeat_received

    def announced(self: ActivityRun, attempt: ActivityAttempt) -> None:
        if attempt is self._attempt:
            take(self, attempt)
        heartbeat_received(self, attempt)

    patch.setattr(ActivityRun, "_take_details", lambda self, attempt: None)
    patch.setattr(ActivityRun, "heartbeat_received", announced)


def deleted_runs_go_on(patch: Patch) -> None:
    """A run that is deleted before its end is hidden, and not paused."""

    async def hide(tx: Any, run_id: str, reason: str) -> None:
        await tx.execute(pause_and_evict._SET_DELETED, {"run_id": run_id, "at": tx.now})

    patch.setattr(dead_letters, "hide", hide)


def reports_about_any_attempt(patch: Patch) -> None:
    """A report about an attempt that is over counts for the one that is under way."""

    async def accept(tx: Any, report: AttemptReport) -> ReportOutcome:
        [(last,)] = await tx.fetch(attempt_reports._LAST, {"run_id": report.token.run_id})
        rows = await tx.fetch("SELECT seed FROM perdure_runs WHERE id = :run_id", {"run_id": report.token.run_id})
        if not rows:
            return ReportOutcome.UNKNOWN
        number = 0 if last is None else last + 1
        token = read_token(make_token(report.token.run_id, report.token.generation, number, rows[0][0]))
        return await judged(tx, replace(report, token=token))

    judged = attempt_reports.report_attempt
    patch.setattr("perdure.store.sql.store.report_attempt", accept)


#: Found in worlds with activities.
PLANTED_IN_ACTIVITIES: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (reports_about_any_attempt, deleted_runs_go_on)
}

#: Found in worlds with streams.
PLANTED_IN_STREAMS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (end_overtakes_items, end_overtakes_details)
}

PLANTED: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant
    for plant in (
        no_fence,
        fence_by_worker,
        token_never_raised,
        token_kept_when_given_back,
        split_check,
        split_outcome,
        split_inbox,
        parent_not_woken,
        waiter_not_woken,
        park_without_looking,
        message_retried_under_another_key,
        commit_retried_under_another_number,
        steps_before_records,
        newest_message_first,
        lost_claims_forgotten,
        residents_trusted,
        dead_may_beat,
        transaction_unsealed,
        unreceived_left_behind,
        renewed_without_looking,
        children_of_the_past_heard,
        listeners_forgotten,
        broadcast_passes_over,
        headers_left_behind,
    )
}

PLANTED_IN_DEEDS: dict[str, Callable[[Patch], None]] = {
    plant.__name__: plant for plant in (transaction_repeated_unasked, transaction_with_a_turn_of_its_own)
}
