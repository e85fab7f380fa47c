"""Runs that are over: the half of an engine that lists dead letters, lets them go on, discards, deletes and prunes."""

from __future__ import annotations

import datetime
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from perdure.client.start import Moment
from perdure.client.steering import Control
from perdure.core.ids import check_id, check_name
from perdure.core.model.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterReason,
    DeleteOutcome,
    Requeue,
    RequeueOutcome,
)
from perdure.core.model.run import FINISHED, Run, Status
from perdure.core.policy.retention import PruneRequest
from perdure.core.policy.retry import Retry
from perdure.core.routing import check_patterns
from perdure.core.time.duration import FAR, Duration, instant, microseconds
from perdure.errors import RunFinished, RunNotFound, UsageError
from perdure.workflow.activity import Activity
from perdure.workflow.definition import Call, Definition, Workflow
from perdure.workflow.run_settings import NO_SETTINGS, RunSettings, make_settings, place

#: How many dead letters are read, and runs looked at for deleting, in one transaction.
CHUNK = 100


class DeadOptions(TypedDict, total=False):
    """Which dead letters."""

    #: A type, or the beginning of one followed by `%`, such as `"billing.%"`.
    type: str | None
    queue: str | None
    #: The class of the last error, with or without its module.
    error: str | None
    #: `"failed"`, `"poison"` or `"undecodable"`.
    reason: str | Sequence[str] | None
    dead_after: datetime.datetime | None
    dead_before: datetime.datetime | None
    #: Of those that were discarded: none, only those (True), or these too (None).
    deleted: bool | None


class RequeueOptions(TypedDict, total=False):
    """What is to be different when a dead run goes on."""

    #: Other arguments: a call of the same type, or the arguments by name.
    input: Call[Any] | Mapping[str, Any] | None
    #: An activity's policy from now on; see `activity`.
    retry: Retry | int | None
    schedule_to_start: Duration | None
    start_to_close: Duration | None
    schedule_to_close: Duration | None
    heartbeat: Duration | None
    #: Fail it if it is not finished by then.
    deadline: Moment | None
    queue: str | None
    priority: int | None


class Decided(Struct, frozen=True, kw_only=True):
    """What became of several dead letters."""

    #: The ids of those for which it was done.
    done: tuple[str, ...]
    #: By id, why it was not done.
    refused: dict[str, str]


class Deleted(Struct, frozen=True, kw_only=True):
    """What deleting for good came to."""

    #: How many runs are gone, those below them included.
    runs: int
    #: How many were left because a parent or a child of theirs is not over.
    spared: int


class Afterlife(Control):
    """What an `Engine` can do with runs that are over."""

    workflows: dict[str, Definition[Any, Any]]

    @abstractmethod
    def _known(self, call: Call[Any]) -> Call[Any]:
        """A call by name as one by its code, where that is here."""

    async def dead_letters(
        self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[DeadOptions]
    ) -> DeadLetterPage:
        """Runs that failed for good, or were set aside as poison or undecodable, each with all its errors; the latest run first."""
        if not 1 <= limit <= 1000:
            raise UsageError(f"limit must be between 1 and 1000, not {limit}")
        return await (await self._opened()).dead(_filter(which), limit, cursor)

    async def dead_letter(self, run_id: str) -> DeadLetter:
        """One of them. Raises `RunNotFound`, and `UsageError` if the run is no dead letter."""
        letter = await (await self._opened()).letter(check_id(run_id))
        if letter is None:
            run = await self._run(run_id)
            raise UsageError(f"run {run_id!r} is no dead letter, it is {_stands(run)}")
        return letter

    async def requeue(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: DeadOptions | None = None,
        **changes: Unpack[RequeueOptions],
    ) -> Decided:
        """Let dead letters go on: those named, or all that `where` means, such as `where={"type": "billing.%"}`.

        An activity begins anew, with all its attempts, its limits and what its last heartbeat said. A workflow goes on where it
        failed, as with `Handle.retry`. One that was set aside is taken up again. What cannot be done is in `refused`.
        """
        if (changes.get("input") is not None) and not isinstance(run_ids, str):
            raise UsageError("another input is for one run: requeue('order-17', input={...})")
        done: list[str] = []
        refused: dict[str, str] = {}
        async for run_id in self._chosen(run_ids, where):
            try:
                await self._requeue(run_id, changes)
                done.append(run_id)
            except (UsageError, RunFinished, RunNotFound) as error:
                refused[run_id] = str(error)
        return Decided(done=tuple(done), refused=refused)

    async def discard(
        self, run_ids: str | Sequence[str] | None = None, *, where: DeadOptions | None = None, reason: str = ""
    ) -> Decided:
        """Take dead letters off the list: they are deleted, which can be undone. One that was set aside is cancelled by that."""
        self._codec.encode(reason, "the reason of a discard")
        done: list[str] = []
        refused: dict[str, str] = {}
        store = await self._opened()
        async for run_id in self._chosen(run_ids, where):
            answer = await store.delete(run_id, reason, self._actor, discard=True)
            if answer in (DeleteOutcome.DONE, DeleteOutcome.ALREADY):
                done.append(run_id)
            else:
                refused[run_id] = f"there is no dead letter {run_id!r}"
        return Decided(done=tuple(done), refused=refused)

    async def purge(self, older_than: Duration, **which: Unpack[DeadOptions]) -> Deleted:
        """Delete dead letters for good that have been dead for longer than that. Those that were set aside are discarded first."""
        store = await self._opened()
        filter = _filter(which)
        before = min(store.clock() - microseconds(older_than), filter.dead_before or FAR)
        runs, spared, cursor = 0, 0, None
        while True:
            page = await store.dead(replace(filter, dead_before=before), CHUNK, cursor)
            failed = tuple(letter.run_id for letter in page.letters if letter.reason is DeadLetterReason.FAILED)
            aside = [letter for letter in page.letters if letter.reason is not DeadLetterReason.FAILED]
            for letter in aside:
                if not letter.deleted_at:
                    await store.delete(letter.run_id, f"dead for longer than {older_than}", self._actor, discard=True)
            # Somebody may have requeued one since it was listed, and it may have ended again: that is another end than the one meant.
            for what in (
                PruneRequest(before=FAR, statuses=(Status.CANCELLED,), ids=tuple(letter.run_id for letter in aside)),
                PruneRequest(before=before, statuses=(Status.FAILED,), ids=failed),
            ):
                gone = await self._prune(what)
                runs, spared = runs + gone.runs, spared + gone.spared
            cursor = page.cursor
            if cursor is None:
                return Deleted(runs=runs, spared=spared)

    async def delete(self, run_id: str, reason: str = "") -> bool:
        """Hide a finished run from listings; its result can still be read, and it can be brought back. False if it was hidden.

        Raises `RunNotFound`, and `UsageError` if it has not finished: cancel it first.
        """
        self._codec.encode(reason, "the reason of a deletion")
        match await (await self._opened()).delete(check_id(run_id), reason, self._actor):
            case DeleteOutcome.UNKNOWN:
                raise RunNotFound(f"there is no run {run_id!r} to delete")
            case DeleteOutcome.REFUSED:
                run = await self._run(run_id)
                raise UsageError(
                    f"run {run_id!r} is {_stands(run)}; cancel it, and delete it when it has ended; a dead letter is discarded"
                )
            case answer:
                return answer is DeleteOutcome.DONE

    async def undelete(self, run_id: str) -> bool:
        """Bring a deleted run back; False if it was not deleted. Raises `RunNotFound`."""
        answer = await (await self._opened()).undelete(check_id(run_id), self._actor)
        if answer is DeleteOutcome.UNKNOWN:
            raise RunNotFound(f"there is no run {run_id!r} to bring back")
        return answer is DeleteOutcome.DONE

    async def prune(
        self,
        older_than: Duration,
        *,
        status: str | Sequence[str] | None = None,
        types: str | Sequence[str] | None = None,
        deleted: bool = False,
    ) -> Deleted:
        """Delete finished runs for good, with all that belongs to them, that ended longer ago than that; their ids and keys are free.

        With `deleted`, only those that were deleted, and longer ago than that. Families go together: a run stays while a run below
        it is unfinished, or while its parent is there and has not completed. Many small transactions, not one.
        """
        statuses = None if status is None else _statuses((status,) if isinstance(status, str) else status)
        now = (await self._opened()).clock()
        what = PruneRequest(
            before=now - microseconds(older_than), statuses=statuses, types=check_patterns(types), deleted=deleted
        )
        return await self._prune(what)

    async def _prune(self, what: PruneRequest) -> Deleted:
        store, cursor = await self._opened(), None
        runs = spared = 0
        while True:
            batch = await store.prune(what, CHUNK, cursor, self._actor)
            runs, spared, cursor = runs + batch.runs, spared + batch.spared, batch.cursor
            if cursor is None:
                return Deleted(runs=runs, spared=spared)

    async def _chosen(
        self, run_ids: str | Sequence[str] | None, where: DeadOptions | None
    ) -> AsyncGenerator[str, None]:
        if (run_ids is None) == (where is None):
            raise UsageError("say which dead letters: their ids, or where={...}; where={} means all of them")
        if run_ids is not None:
            for run_id in (run_ids,) if isinstance(run_ids, str) else run_ids:
                yield check_id(run_id)
            return
        store, filter, cursor = await self._opened(), _filter(where or {}), None
        # What dies while this goes on is not meant, or it would never end.
        filter = replace(filter, dead_before=min(store.clock() + 1, filter.dead_before or FAR))
        while True:
            page = await store.dead(filter, CHUNK, cursor)
            for letter in page.letters:
                yield letter.run_id
            cursor = page.cursor
            if cursor is None:
                return

    async def _requeue(self, run_id: str, changes: RequeueOptions) -> int:
        """Let one go on; its generation."""
        run = await self._run(run_id)
        store = await self._opened()
        order = self._order_for(run, changes, store.clock())
        match await store.requeue(order, self._actor):
            case RequeueOutcome.OPEN:
                return run.generation + run.status.finished
            case RequeueOutcome.UNKNOWN:
                raise RunNotFound(f"there is no run {run_id!r} to requeue")
            case RequeueOutcome.ALIVE:
                raise UsageError(f"run {run_id!r} is no dead letter, it is {_stands(run)}. {await self.why(run_id)}")
            case RequeueOutcome.OTHERWISE:
                raise UsageError(f"run {run_id!r} was requeued by somebody else at the same time, and differently")
            case RequeueOutcome.DELETED:
                raise UsageError(f"run {run_id!r} was deleted; bring it back before you requeue it: undelete()")
            case RequeueOutcome.EXPIRED:
                raise UsageError(
                    f"the deadline of run {run_id!r} has passed; requeue it with another one: requeue(deadline=...)"
                )
            case RequeueOutcome.BEGUN:
                raise UsageError(
                    f"run {run_id!r} has a history, which another input would not fit; fork it with the other input instead: "
                    f"fork(input=...)"
                )

    def _order_for(self, run: Run, changes: RequeueOptions, now: int) -> Requeue:
        if unknown := changes.keys() - RequeueOptions.__annotations__.keys():
            known = ", ".join(RequeueOptions.__annotations__)
            raise UsageError(f"requeue has no option {min(unknown)!r}; it has {known}")
        definition = self.workflows.get(run.type)
        given = _settings(changes)
        if given is not NO_SETTINGS and isinstance(definition, Workflow):
            raise UsageError(f"run {run.id!r} is a workflow ({run.type}); its policy is in its code")
        deadline, queue, priority = changes.get("deadline"), changes.get("queue"), changes.get("priority")
        make_settings({}, priority=priority)
        due = FAR if deadline is None else instant(deadline, now)
        placed = place(given, NO_SETTINGS if definition is None else definition.settings, now, None, None, due)
        return Requeue(
            run_id=run.id,
            token=run.token,
            is_activity=None if definition is None else isinstance(definition, Activity),
            input=self._input_for(run, changes.get("input")),
            options=None if given is NO_SETTINGS else given.over(RunSettings.from_json(run.options)).to_json(),
            max_attempts=None if given.retry is None else given.retry.attempts or 0,
            deadline=None if placed.deadline == FAR else placed.deadline,
            close_by=placed.close_by,
            queue=None if queue is None else check_name(queue, "queue"),
            priority=priority,
        )

    def _input_for(self, run: Run, given: Call[Any] | Mapping[str, Any] | None) -> str | None:
        if given is None:
            return None
        call = given if isinstance(given, Call) else Call.named(run.type, **given)
        if call.type != run.type:
            raise UsageError(f"run {run.id!r} is a {run.type!r}, not a {call.type!r}")
        return self._known(call).encode(self._codec)


def _settings(changes: RequeueOptions) -> RunSettings:
    names = ("retry", "schedule_to_start", "start_to_close", "schedule_to_close", "heartbeat")
    given: Any = {name: changes.get(name) for name in names}
    if all(value is None for value in given.values()):
        return NO_SETTINGS
    return make_settings(given)


def _filter(which: DeadOptions) -> DeadLetterFilter:
    if unknown := which.keys() - DeadOptions.__annotations__.keys():
        known = ", ".join(DeadOptions.__annotations__)
        raise UsageError(f"dead letters are not chosen by {min(unknown)!r}; choose by {known}")
    type, reason = which.get("type"), which.get("reason")
    after, before = which.get("dead_after"), which.get("dead_before")
    if type is not None:
        check_patterns(type)
    return DeadLetterFilter(
        type=type,
        queue=which.get("queue"),
        error=which.get("error"),
        reasons=None if reason is None else _reasons((reason,) if isinstance(reason, str) else reason),
        dead_after=None if after is None else instant(after, 0),
        dead_before=None if before is None else instant(before, 0),
        deleted=which.get("deleted", False),
    )


def _reasons(names: Sequence[str]) -> tuple[DeadLetterReason, ...]:
    try:
        return tuple(DeadLetterReason(name) for name in names)
    except ValueError as error:
        raise UsageError(f"{error}; the reasons are {', '.join(DeadLetterReason)}") from None


def _statuses(names: Sequence[str]) -> tuple[Status, ...]:
    try:
        statuses = tuple(Status(name) for name in names)
    except ValueError as error:
        raise UsageError(f"{error}; the statuses are {', '.join(sorted(FINISHED))}") from None
    if unfinished := [one for one in statuses if not one.finished]:
        raise UsageError(f"runs that are {unfinished[0]} are not over, so they cannot be pruned; cancel them first")
    return statuses


def _stands(run: Run) -> str:
    return run.status.value if run.reason is None else f"{run.status.value}: {run.reason.value}"
