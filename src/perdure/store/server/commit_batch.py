"""Commit of a batch of turns of different runs, on a server: lock the touched rows, decide, write.

Rows locked by other transactions are skipped and never waited for. A turn with a skipped row is BUSY and writes
nothing. Each database locks, reads and writes rows in its own way; the decisions are made here and in `BatchEffects`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from perdure.core.model.record import NewMessage, RecordKind, SendOutcome
from perdure.core.model.run import FINISHED, NewRun
from perdure.core.model.turn import Block, ContinueAsNew, Finish, Park, Release, RetryLater, Turn, TurnOutcome
from perdure.errors import StoreUnavailable
from perdure.store.contract import Change
from perdure.store.server.batch_effects import BatchEffects, RunDraft
from perdure.store.sql.audit import created_event, note_inserted, note_work
from perdure.store.sql.dialect import Row, Transaction
from perdure.store.sql.runs.attributes import set_first_attributes
from perdure.store.sql.runs.children import adopt, within_limits
from perdure.store.sql.runs.inbox import deliver_all, stop_children
from perdure.store.sql.runs.observers import (
    Observer,
    enter_observer,
    leave_observer,
    look,
    messages_to_observers,
    observers_of,
)
from perdure.store.sql.runs.waiters import Waiter, enter, forget, forget_unheard, leave, outcome_of, waiters_of
from perdure.store.sql.singletons import line_up
from perdure.store.sql.turn import (
    TurnState,
    has_extras,
    inbox_position,
    message_keys,
    record_row,
    release_instead,
    renew,
    turn_state,
    write_extras,
    write_shown,
)

X = TypeVar("X", bound=Transaction)
#: Records as they are there, by run and number.
Written = dict[str, dict[int, Row]]


class RecordsExist(Exception):
    """Some records exist already; nothing was written."""


class CommitBatch(ABC, Generic[X]):
    """Turns of different runs. `doubtful`: their records may be there already."""

    def __init__(
        self,
        tx: X,
        turns: Sequence[Turn],
        batch: list[int],
        verdicts: list[TurnOutcome],
        busy: set[str],
        *,
        doubtful: bool,
    ) -> None:
        self._tx = tx
        self._batch = {index: turns[index] for index in batch}
        self._verdicts = verdicts
        self._busy = busy
        self._doubtful = doubtful
        self._rows: list[Row] = []
        #: Waiters of watched runs that may end in this batch.
        self._waiters: dict[str, list[Waiter]] = {}
        #: Observers of watched runs that may end or show outputs in this batch.
        self._observers: dict[str, list[Observer]] = {}

    @abstractmethod
    async def _locked(self, touched: list[str], children: list[str]) -> Sequence[Row]:
        """Lock these runs and the parents of those children, as far as they are free; columns of `RunDraft`."""

    @abstractmethod
    async def _there(self, run_ids: list[str]) -> set[str]:
        """The existing ones of these runs."""

    @abstractmethod
    async def _written(self, turns: Sequence[Turn]) -> Written:
        """Existing records at the numbers of the turns' records."""

    @abstractmethod
    async def _known(self, keys: list[tuple[str, str]]) -> set[tuple[str, str]]:
        """The keys of messages that were accepted before, by run."""

    @abstractmethod
    async def _made(self, new: list[NewRun]) -> set[str]:
        """Create the missing runs; returns their ids."""

    @abstractmethod
    async def _to_be_stopped(self, read: dict[str, int]) -> set[str]:
        """The runs with an unread cancellation."""

    @abstractmethod
    async def _write(self, effects: BatchEffects) -> None:
        """Write everything that was decided."""

    async def commit(self) -> None:
        """Lock, decide, write."""
        drafts = await self._lock()
        live = await self._stand(drafts)
        keys = [key for turn in live.values() for key in message_keys(turn)]
        known = await self._known(keys) if keys else set[tuple[str, str]]()
        if known:
            for turn in live.values():
                known -= await forget_unheard(self._tx, turn, inbox_position(turn), known)
        effects = BatchEffects(self._tx, iter(drafts.values()), known)
        await self._start_children(effects, live)
        if self._waiters or any(message.kind is RecordKind.WATCH for turn in live.values() for message in turn.sends):
            await self._read_waits(effects, live)
        stopped = await self._stopped(effects, live)
        await self._note_inserted(effects.drafts, live)
        for turn in live.values():
            draft = effects.drafts[turn.lease.run_id]
            self._prove(draft)
            if read := inbox_position(turn):
                effects.read(draft.id, read)
            for message in turn.sends:
                effects.send(message)
            if self._tx.repeats and (turn.notes or turn.outputs):
                note_work(self._tx, turn)
            _leave(effects, draft, turn, stopped)
        renewed: dict[str, ContinueAsNew] = {}
        # Last of all, so that a run whose children finish in the same batch finds its inbox grown.
        for index, turn in live.items():
            draft = effects.drafts[turn.lease.run_id]
            if isinstance(turn.next, Park) and not effects.park(draft, turn.next):
                self._verdicts[index] = TurnOutcome.AWAKE
            elif isinstance(turn.next, ContinueAsNew):
                if effects.renew(draft, turn.next, turn.read):
                    renewed[draft.id] = turn.next
                else:
                    self._verdicts[index] = TurnOutcome.AWAKE
        await self._write(effects)
        if effects.entering or effects.leaving or effects.told or effects.observing or effects.unobserving:
            await _write_waits(self._tx, effects)
        await renew(self._tx, renewed)
        if beyond := [turn for turn in live.values() if has_extras(turn)]:
            await write_shown(self._tx, beyond)
            await write_extras(self._tx, beyond)
        shown = {turn.lease.run_id for turn in live.values()} & self._observers.keys()
        for target in sorted(shown.union(effects.observed)):
            # Rows that were not locked before must not be waited for; the sweep tells these observers.
            await deliver_all(self._tx, await messages_to_observers(self._tx, target, effects.drafts))
        for run_id in effects.ended_without_code:
            await stop_children(self._tx, run_id)

    def _prove(self, draft: RunDraft) -> None:
        """Make this commit conflict with one on another server that changes the lease of the locked row."""

    async def deliver(self, messages: Sequence[NewMessage]) -> list[SendOutcome]:
        """Put messages into inboxes of runs whose rows were locked before."""
        rows = await self._locked([message.run_id for message in messages], [])
        known = await self._known([(message.run_id, message.key) for message in messages])
        effects = BatchEffects(self._tx, iter([RunDraft(row) for row in rows]), known)
        outcomes = [effects.send(message) for message in messages]
        await self._write(effects)
        return outcomes

    async def _lock(self) -> dict[str, RunDraft]:
        """Lock the touched rows; turns with a row that another transaction holds are taken out."""
        touched: dict[str, None] = {}
        children: list[str] = []
        for turn in self._batch.values():
            touched[turn.lease.run_id] = None
            touched.update(dict.fromkeys(message.run_id for message in turn.sends))
            if isinstance(turn.next, Finish):
                children.append(turn.lease.run_id)
            children += [message.run_id for message in turn.sends if message.kind is RecordKind.CANCEL]
        drafts = {row[0]: RunDraft(row) for row in await self._locked(list(touched), children)}
        parents = {drafts[child].parent_id for child in children if child in drafts} - {None}
        showing = [turn.lease.run_id for turn in self._batch.values() if turn.outputs]
        waiters = await self._lock_waiters(drafts, [one for one in children if one in drafts], showing)
        missing = [run_id for run_id in (*touched, *parents, *waiters) if run_id not in drafts]
        held = await self._there(missing) if missing else set[str]()
        for index, turn in list(self._batch.items()):
            run_id = turn.lease.run_id
            if run_id in self._busy or not held.isdisjoint(self._touches(turn, drafts)):
                self._busy.add(run_id)
                self._verdicts[index] = TurnOutcome.BUSY
                del self._batch[index]
        return drafts

    async def _lock_waiters(self, drafts: dict[str, RunDraft], ending: list[str], showing: list[str]) -> list[str]:
        """Lock those that wait for runs that may end or show outputs, as far as they are free; returns their ids."""
        for run_id in ending:
            # A statement of its own: one that waited for the lock of the row would not see the latest waiters.
            if drafts[run_id].watched:
                self._waiters[run_id] = await waiters_of(self._tx, run_id)
        for run_id in dict.fromkeys((*ending, *showing)):
            if run_id in drafts and drafts[run_id].watched:
                self._observers[run_id] = await observers_of(self._tx, run_id)
        told = [waiter.run_id for waiters in self._waiters.values() for waiter in waiters]
        told += [observer.run_id for observers in self._observers.values() for observer in observers]
        ids = list(dict.fromkeys(told))
        if new := [run_id for run_id in ids if run_id not in drafts]:
            drafts.update({row[0]: RunDraft(row) for row in await self._locked(new, [])})
        return ids

    def _touches(self, turn: Turn, drafts: dict[str, RunDraft]) -> set[str | None]:
        touched = {turn.lease.run_id, *(message.run_id for message in turn.sends)}
        parents = {drafts[run_id].parent_id for run_id in touched if run_id in drafts}
        told = {one.run_id for run_id in touched for one in self._waiters.get(run_id, ())}
        told |= {one.run_id for run_id in touched for one in self._observers.get(run_id, ())}
        return parents | touched | told

    async def _read_waits(self, effects: BatchEffects, live: dict[int, Turn]) -> None:
        """Read what the ends of watched runs, and waits for runs that have ended, need."""
        keys = [(waiter.run_id, waiter.key) for waiters in self._waiters.values() for waiter in waiters]
        if keys:
            effects.add_known(await self._known(keys))
        for run_id, waiters in self._waiters.items():
            effects.waiters[run_id] = {waiter.place: waiter for waiter in waiters}
        watches = [one for turn in live.values() for one in turn.sends if one.kind is RecordKind.WATCH]
        created = {child.id for turn in live.values() for child in turn.children}
        for target in dict.fromkeys(one.run_id for one in watches):
            draft = effects.drafts.get(target)
            if draft is None and target in created:
                # Another transaction has created the event since the rows were locked.
                raise StoreUnavailable(f"another client created {target!r} at the same moment; try again")
            if draft is not None and draft.status in FINISHED:
                ended = await outcome_of(self._tx, target)
                effects.outcomes[target] = None if ended is None else ended[1]

        for one in watches:
            if one.wants is not None and one.run_id in effects.drafts:
                observer = Observer.asked_by(one, one.wants)
                seen = await look(self._tx, observer, ended=effects.drafts[one.run_id].status in FINISHED)
                if seen is not None:
                    effects.answers[observer.place] = observer.answer(seen)

    async def _stand(self, drafts: dict[str, RunDraft]) -> dict[int, Turn]:
        """The turns whose lease holds. Their existing records are not written again."""
        # Of a turn that holds its lease, only a repetition can be there; the unique key tells.
        asked = [
            turn
            for turn in self._batch.values()
            if turn.records and (self._doubtful or not _holds(turn, drafts.get(turn.lease.run_id)))
        ]
        written = await self._written(asked) if asked else {}
        live: dict[int, Turn] = {}
        for index, turn in self._batch.items():
            draft = drafts.get(turn.lease.run_id)
            state = None if draft is None else (draft.status, draft.token, draft.nonce, draft.started_at)
            there = written.get(turn.lease.run_id, {})
            standing = turn_state(turn, state, there)
            if standing is TurnState.OVERTAKEN:
                live[index] = release_instead(turn)
                self._verdicts[index] = TurnOutcome.LOST
            elif standing is TurnState.LIVE:
                live[index] = turn
                self._rows += [record_row(turn, record) for record in turn.records if record.seq not in there]
            elif standing is TurnState.LOST:
                self._verdicts[index] = TurnOutcome.LOST
        return live

    async def _start_children(self, effects: BatchEffects, live: dict[int, Turn]) -> None:
        wanted: dict[str, tuple[str, NewRun]] = {}
        again: list[tuple[str, NewRun]] = []
        for turn in live.values():
            children, refusals = await within_limits(self._tx, turn.lease.run_id, turn.children)
            for refusal in refusals:
                await self._tell(effects, refusal)
            for child in children:
                if child.id in wanted:
                    again.append((turn.lease.run_id, child))
                else:
                    wanted[child.id] = turn.lease.run_id, child
        if not wanted:
            return
        made = await self._made([child for _, child in wanted.values()])
        await line_up(self._tx, [child for _, child in wanted.values() if child.held_back and child.id in made])
        await set_first_attributes(self._tx, [child for _, child in wanted.values() if child.id in made])
        for parent, child in (*wanted.values(), *again):
            if child.id in made and wanted[child.id][1] is child:
                effects.add(child)
                if self._tx.notes:
                    self._tx.note(child.id, *created_event(child))
                self._tx.notify(Change.READY)
            else:
                word = await adopt(self._tx, parent, child)
                if word is not None:
                    await self._tell(effects, word)

    async def _note_inserted(self, drafts: dict[str, RunDraft], live: dict[int, Turn]) -> None:
        """Note the creation of runs that are cancelled before they begin and that a bare INSERT made."""
        cancelled = {one.run_id for turn in live.values() for one in turn.sends if one.kind is RecordKind.CANCEL}
        await note_inserted(self._tx, [id for id in cancelled if id in drafts and not drafts[id].started_at])

    async def _tell(self, effects: BatchEffects, word: NewMessage) -> None:
        if not await self._known([(word.run_id, word.key)]):
            effects.put(word)

    async def _stopped(self, effects: BatchEffects, live: dict[int, Turn]) -> set[str]:
        read = {turn.lease.run_id: turn.read for turn in live.values() if isinstance(turn.next, RetryLater)}
        unread = {id: max(upto, effects.drafts[id].inbox_read) for id, upto in read.items()}
        behind = {id: upto for id, upto in unread.items() if effects.drafts[id].inbox_seq > upto}
        return await self._to_be_stopped(behind) if behind else set()


def _holds(turn: Turn, draft: RunDraft | None) -> bool:
    return draft is not None and draft.held_under(turn.lease)


async def _write_waits(tx: Transaction, effects: BatchEffects) -> None:
    for target in effects.told:
        await forget(tx, target)
    for waiter in effects.entering.values():
        await enter(tx, waiter)
    for waiter in effects.leaving.values():
        await leave(tx, waiter)
    for observer in effects.observing.values():
        await enter_observer(tx, observer)
    for observer in effects.unobserving:
        await leave_observer(tx, observer)


def _leave(effects: BatchEffects, draft: RunDraft, turn: Turn, stopped: set[str]) -> None:
    match turn.next:
        case Finish() as outcome:
            effects.finish(draft, outcome)
        case RetryLater() as retry:
            effects.again(draft, retry, to_be_stopped=draft.id in stopped)
        case Release() as release:
            effects.release(draft, release)
        case Block() as block:
            effects.block(draft, block)
        case _:
            pass
