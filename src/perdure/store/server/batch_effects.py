"""Locked rows of runs, and the effects of a batch of turns on them before anything is written.

A row may be the target of one statement only once. So all effects on a run (its own next state, inbox entries, a
cancellation) are folded into one draft, in the order of the turns, and written together. The rules are those of
`perdure.store.sql.runs.inbox` and of the states on SQLite.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from perdure.core.model.record import NewMessage, RecordKind, SendOutcome
from perdure.core.model.run import FINISHED, NewRun, Reason, Status
from perdure.core.model.turn import Block, ContinueAsNew, Finish, Lease, Park, Release, RetryLater
from perdure.errors import RunCancelled
from perdure.store.contract import Change
from perdure.store.sql.audit import block_event, note_again, note_finish, park_event
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.rows import failure, to_json
from perdure.store.sql.runs.finish import message_to_parent
from perdure.store.sql.runs.observers import Observer
from perdure.store.sql.runs.waiters import Waiter
from perdure.store.sql.turn import carried_messages

#: What a draft needs to know of a row, in the order of `RunDraft`'s parameters.
COLUMNS = (
    "id, status, token, nonce, inbox_seq, inbox_read, marked, started_at, attempt, generation, wake_at, reason, "
    "deadline, finished_at, parent_id, parent_location, watched"
)

_RUNNING = Status.RUNNING.value
_WAITS = (RecordKind.WATCH, RecordKind.UNWATCH)


class RunDraft:
    """Future state of a run's row."""

    def __init__(self, row: Row) -> None:
        self.status: str
        self.token: int
        self.nonce: str
        self.inbox_seq: int
        self.started_at: int
        (
            self.id, self.status, self.token, self.nonce, self.inbox_seq, self.inbox_read, self.marked, self.started_at,
            self.attempt, self.generation, self.wake_at, self.reason, self.deadline, self.finished_at, self.parent_id,
            self.parent_location, self.watched,
        ) = row  # fmt: skip
        self.touched = False
        #: It has no holder any more, and its last holder has no precedence.
        self.let_go = False
        self.moves = False
        self.home: str | None = None
        self.sets_output = False
        self.output: str | None = None
        self.sets_error = False
        self.error: str | None = None
        self.sets_waits = False
        self.waits: str | None = None

    def held_under(self, lease: Lease) -> bool:
        """True if the lease may write it."""
        return self.status == _RUNNING and self.token == lease.token and self.nonce == lease.nonce

    def become(self, status: str, reason: str | None = None) -> None:
        """Go from running into another state."""
        self.touched = self.let_go = True
        self.status, self.reason, self.marked = status, reason, 0

    def fail(self, error: str | None) -> None:
        """Keep an error."""
        self.sets_error, self.error = True, error


class BatchEffects:
    """Drafts of every row that a batch touches."""

    def __init__(self, tx: Transaction, rows: Iterator[RunDraft], known: set[tuple[str, str]]) -> None:
        self._tx = tx
        self.drafts = {draft.id: draft for draft in rows}
        #: Keys of messages that were accepted before.
        self._known = known
        self.messages: list[tuple[str, int, str, str, str | None, int, str, int]] = []
        self.consumed: list[tuple[str, int]] = []
        #: Runs that ended without running code, so that their children must be stopped here.
        self.ended_without_code: list[str] = []
        #: Waiters of runs that may end in this batch, by run, waiter and key; outcomes of runs that had ended before.
        self.waiters: dict[str, dict[tuple[str, str], Waiter]] = {}
        self.outcomes: dict[str, str | None] = {}
        #: By waiter and key, waits to be added and removed; runs whose waiters were all told.
        self.entering: dict[tuple[str, str], Waiter] = {}
        self.leaving: dict[tuple[str, str], Waiter] = {}
        self.told: list[str] = []
        #: By observer and key: answers that are there already, observers to be added and removed.
        self.answers: dict[tuple[str, str], NewMessage] = {}
        self.observing: dict[tuple[str, str], Observer] = {}
        self.unobserving: list[Observer] = []
        #: Runs whose observers have to look when everything is written.
        self.observed: dict[str, None] = {}

    def add_known(self, keys: set[tuple[str, str]]) -> None:
        """Add keys of messages that were accepted before."""
        self._known |= keys

    def add(self, child: NewRun) -> None:
        """A run that was created just now."""
        status, reason, wake_at = child.initial_state(self._tx.now)
        row = (child.id, status, 0, "", 0, 0, 0, 0, 1, 1, wake_at, reason, child.deadline, 0)
        self.drafts[child.id] = RunDraft((*row, child.parent_id, child.parent_location, 0))

    def read(self, run_id: str, upto: int) -> None:
        """The history has taken in the inbox up to this entry."""
        draft = self.drafts[run_id]
        draft.inbox_read = max(draft.inbox_read, upto)
        draft.marked = int(draft.inbox_seq > upto)
        draft.touched = True
        self.consumed.append((run_id, upto))

    def send(self, message: NewMessage) -> SendOutcome:
        """Deliver a message from one run to another."""
        draft = self.drafts.get(message.run_id)
        if message.wants is not None:
            return self._observe(Observer.asked_by(message, message.wants), draft, message.kind)
        if message.kind in _WAITS:
            return self._wait(message, draft)
        if draft is None:
            return SendOutcome.UNKNOWN
        started, status = draft.started_at, draft.status
        outcome = self.put(message)
        if outcome is not SendOutcome.ACCEPTED:
            return outcome
        if message.kind is not RecordKind.CANCEL:
            self._tx.note(message.run_id, "sent", to_json({"name": message.name, "key": message.key}))
            return outcome
        self._tx.note(message.run_id, "cancel_requested", f'{{"reason":{message.payload or "null"}}}')
        if status == Status.BLOCKED or (started == 0 and draft.attempt == 1 and status != Status.RUNNING):
            reason = msgspec.json.decode(message.payload or "null")
            because = f": {reason}" if reason else ""
            text = f"run {draft.id!r} was cancelled before it could go on{because}"
            self._end(draft, Finish(Status.CANCELLED, failure(RunCancelled, text)))
            if status == Status.BLOCKED:
                self.ended_without_code.append(draft.id)
        return outcome

    def _wait(self, request: NewMessage, draft: RunDraft | None) -> SendOutcome:
        """Register a wait for the end of a run, or end it; a run that has ended answers at once."""
        waiter = Waiter.of(request)
        if request.kind is RecordKind.UNWATCH:
            self.leaving[waiter.place] = waiter
            self.waiters.get(waiter.target, {}).pop(waiter.place, None)
        elif draft is None:
            self.put(waiter.not_found())
        elif draft.status in FINISHED:
            completed = draft.status == Status.COMPLETED
            ended_here = draft.output if completed else draft.error
            self.put(waiter.message(self.outcomes.get(draft.id, ended_here), failed=not completed))
        else:
            self.entering[waiter.place] = waiter
            self.waiters.setdefault(waiter.target, {})[waiter.place] = waiter
        return SendOutcome.ACCEPTED

    def _observe(self, observer: Observer, draft: RunDraft | None, kind: RecordKind) -> SendOutcome:
        """Register a wait for outputs of a run, or end it; outputs that were there before answer at once."""
        if kind is RecordKind.UNWATCH:
            self.unobserving.append(observer)
        elif draft is None:
            self.put(observer.not_found())
        elif (answer := self.answers.get(observer.place)) is not None:
            self.put(answer)
        else:
            self.observing[observer.place] = observer
            self.observed[observer.target] = None
        return SendOutcome.ACCEPTED

    def put(self, message: NewMessage) -> SendOutcome:
        """Add an inbox entry, and wake the run."""
        draft = self.drafts.get(message.run_id)
        if draft is None or message.only_child_of not in (None, draft.parent_id):
            return SendOutcome.UNKNOWN
        if (message.run_id, message.key) in self._known:
            return SendOutcome.DUPLICATE
        if draft.status in FINISHED:
            return SendOutcome.FINISHED
        self._known.add((message.run_id, message.key))
        draft.inbox_seq += 1
        draft.touched = True
        self.messages.append((
            message.run_id, draft.inbox_seq, message.kind.value, message.name, message.payload, int(message.failed),
            message.key, self._tx.now,
        ))  # fmt: skip
        running = draft.status == _RUNNING
        # A message does not start a run that waits for its start, a retry or a resume; a cancellation does.
        stirs = message.kind is RecordKind.CANCEL or (draft.started_at != 0 and draft.reason != Reason.PAUSED)
        if draft.status == Status.WAITING and stirs:
            draft.status, draft.reason, draft.wake_at = Status.PENDING.value, None, self._tx.now
            self._tx.notify(Change.READY)
        elif running:
            self._tx.notify(Change.MARKED)
        draft.marked = int(running)
        return SendOutcome.ACCEPTED

    def finish(self, draft: RunDraft, outcome: Finish) -> None:
        """End with an outcome, and notify the parent and the waiters."""
        self._end(draft, outcome)

    def again(self, draft: RunDraft, retry: RetryLater, *, to_be_stopped: bool) -> None:
        """Wait for the next attempt at the whole run, unless it is to be stopped."""
        draft.become(Status.WAITING.value, Reason.RETRY.value)
        draft.attempt += 1
        draft.started_at = 0
        draft.wake_at = min(retry.wake_at, draft.deadline)
        draft.fail(retry.error)
        note_again(self._tx, draft.id, retry, draft.attempt, draft.wake_at)
        sent_just_now = any(entry[0] == draft.id and entry[2] == RecordKind.CANCEL.value for entry in self.messages)
        if draft.wake_at <= self._tx.now or to_be_stopped or sent_just_now:
            draft.status, draft.reason, draft.wake_at = Status.PENDING.value, None, self._tx.now
            self._tx.notify(Change.READY)

    def release(self, draft: RunDraft, release: Release) -> None:
        """Hand back for any worker to take."""
        draft.become(Status.PENDING.value)
        draft.token += 1
        draft.wake_at = self._tx.now
        draft.moves, draft.home = True, release.home
        self._tx.note(draft.id, "released", to_json({"token": draft.token}))
        self._tx.notify(Change.READY)

    def block(self, draft: RunDraft, block: Block) -> None:
        """Set aside."""
        draft.become(Status.BLOCKED.value, block.reason.value)
        draft.wake_at = self._tx.now
        draft.fail(block.error)
        self._tx.note(draft.id, *block_event(block))

    def park(self, draft: RunDraft, park: Park) -> bool:
        """Wait, if the inbox has not grown past what was seen."""
        if draft.inbox_seq != park.seen:
            return False
        wake_at = min(park.wake_at, draft.deadline)
        if wake_at <= self._tx.now:
            draft.become(Status.PENDING.value)
            self._tx.notify(Change.READY)
        else:
            draft.become(Status.WAITING.value, park.reason.value)
        draft.wake_at = wake_at
        draft.sets_waits, draft.waits = True, park.waits
        if self._tx.repeats:
            self._tx.note(draft.id, *park_event(park))
        return True

    def renew(self, draft: RunDraft, renew: ContinueAsNew, read: int) -> bool:
        """Continue as new, if the inbox has not grown past what was seen, with the carried messages unread."""
        if draft.inbox_seq != renew.seen:
            return False
        if read:
            self.read(draft.id, read)
        draft.become(Status.PENDING.value)
        draft.token += 1
        draft.attempt = 1
        draft.started_at = 0
        draft.wake_at = self._tx.now
        draft.fail(None)
        self._tx.note(draft.id, "continued", to_json({"generation": draft.generation + 1}))
        self._tx.notify(Change.READY)
        for message in carried_messages(draft.id, renew):
            self.put(message)
        return True

    def _end(self, draft: RunDraft, outcome: Finish) -> None:
        completed = outcome.status is Status.COMPLETED
        draft.become(outcome.status.value)
        draft.finished_at = self._tx.now
        draft.sets_output, draft.output = True, outcome.payload if completed else None
        draft.sets_waits = True
        draft.fail(None if completed else outcome.payload)
        if self._tx.notes:
            note_finish(self._tx, draft.id, outcome)
        self._tx.notify(Change.FINISHED)
        word = message_to_parent(
            draft.id, draft.parent_id, draft.parent_location, draft.generation, outcome.payload, failed=not completed
        )
        if word is not None:
            self.put(word)
        if draft.watched:
            self.observed[draft.id] = None
        if waiters := self.waiters.pop(draft.id, None):
            self.told.append(draft.id)
            for waiter in waiters.values():
                self.entering.pop(waiter.place, None)
                self.put(waiter.message(outcome.payload, failed=not completed))
