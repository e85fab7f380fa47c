"""Dead letters: runs that failed for good, or were set aside; listing, retrying, discarding and pruning them."""

from __future__ import annotations

import builtins
import datetime
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from perdure.client.runs.namespace import PruneReport, prune
from perdure.client.runs.reopen import RetryOptions, retry, status_text
from perdure.client.session import Session
from perdure.core.ids import check_id
from perdure.core.model.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterReason,
    DeleteOutcome,
    dead_letter_reason,
)
from perdure.core.model.run import Run, Status
from perdure.core.option_checks import check_flag, check_list, check_page, check_text, first_name
from perdure.core.policy.retention import PruneRequest
from perdure.core.printed_text import brief
from perdure.core.routing import check_patterns
from perdure.core.time.duration import NEVER, Duration, instant, microseconds
from perdure.errors import RunFinished, RunNotFound, UsageError

#: Dead letters read in one transaction.
CHUNK = 100


class DeadOptions(TypedDict, total=False):
    """Filter of dead letters."""

    #: A type, or the beginning of one followed by `%`, such as `"billing.%"`.
    type: str | None
    queue: str | None
    #: The class of the last error, with or without its module.
    error: str | None
    #: `"failed"`, `"poison"` or `"undecodable"`.
    reason: str | Sequence[str] | None
    dead_after: datetime.datetime | None
    dead_before: datetime.datetime | None
    #: Discarded ones: left out (False), only those (True), or those too (None).
    deleted: bool | None


class BulkResult(Struct, frozen=True, kw_only=True):
    """Result of one verb on several dead letters."""

    #: Ids for which it was done.
    done: tuple[str, ...]
    #: Reasons why it was not done, by id.
    refused: dict[str, str]


class DeadLetters:
    """Dead letters of an engine's database: `engine.dead_letters`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self, *, limit: int = 50, cursor: str | None = None, **which: Unpack[DeadOptions]) -> DeadLetterPage:
        """List runs that failed for good, or were set aside, with all their errors; latest run first."""
        check_page(limit)
        return await (await self._session.connect()).list_dead_letters(make_letter_filter(which), limit, cursor)

    async def get(self, run_id: str) -> DeadLetter:
        """Read one dead letter. Raises `RunNotFound`, and `UsageError` if the run is none."""
        letter = await (await self._session.connect()).get_dead_letter(check_id(run_id))
        if letter is None:
            raise _no_letter(await self._session.find(run_id))
        return letter

    async def retry(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        where: DeadOptions | None = None,
        **changes: Unpack[RetryOptions],
    ) -> BulkResult:
        """Retry dead letters: those named, or all that `where` selects, such as `where={"type": "billing.%"}`.

        An activity begins anew, with all its attempts, its limits and the details of its last heartbeat. A workflow
        goes on where it failed, as with `Handle.retry`. A run that was set aside is claimed again. `refused` has those
        that cannot go on.
        """
        if (changes.get("input") is not None) and not isinstance(run_ids, str):
            raise UsageError("another input is for one run: retry('order-17', input={...})")
        done: builtins.list[str] = []
        refused: dict[str, str] = {}
        async for run_id in self._chosen(run_ids, where):
            try:
                run = await self._session.find(run_id)
                if dead_letter_reason(run.status, run.reason) is None and run.status is not Status.CANCELLED:
                    raise _no_letter(run)
                await self._retry(run_id, changes)
                done.append(run_id)
            except (UsageError, RunFinished, RunNotFound) as error:
                refused[run_id] = str(error)
        return BulkResult(done=tuple(done), refused=refused)

    async def _retry(self, run_id: str, changes: RetryOptions) -> None:
        await retry(self._session, run_id, changes)

    async def discard(
        self, run_ids: str | Sequence[str] | None = None, *, where: DeadOptions | None = None, reason: str = ""
    ) -> BulkResult:
        """Take dead letters off the list: delete them, which `runs.undelete` undoes.

        One that was set aside is cancelled by that.
        """
        reason = check_text("reason", reason)
        self._session.codec.encode(reason, "the reason of a discard")
        done: builtins.list[str] = []
        refused: dict[str, str] = {}
        store = await self._session.connect()
        async for run_id in self._chosen(run_ids, where):
            answer = await store.delete(run_id, reason, self._session.actor, discard=True)
            if answer in (DeleteOutcome.DONE, DeleteOutcome.ALREADY):
                done.append(run_id)
            else:
                refused[run_id] = f"there is no dead letter {run_id!r}"
        return BulkResult(done=tuple(done), refused=refused)

    async def prune(self, older_than: Duration, **which: Unpack[DeadOptions]) -> PruneReport:
        """Delete dead letters for good that died longer ago than that.

        Those that were set aside are discarded first.
        """
        store = await self._session.connect()
        filter = make_letter_filter(which)
        before = min(store.clock() - microseconds(older_than), filter.dead_before or NEVER)
        runs, spared, cursor = 0, 0, None
        while True:
            page = await store.list_dead_letters(replace(filter, dead_before=before), CHUNK, cursor)
            failed = tuple(letter.run_id for letter in page.letters if letter.reason is DeadLetterReason.FAILED)
            aside = [letter for letter in page.letters if letter.reason is not DeadLetterReason.FAILED]
            for letter in aside:
                if not letter.deleted_at:
                    await store.delete(
                        letter.run_id, f"dead for longer than {older_than}", self._session.actor, discard=True
                    )
            # A letter may have been retried since it was listed, and have ended again: its new end is not meant.
            for what in (
                PruneRequest(before=NEVER, statuses=(Status.CANCELLED,), ids=tuple(letter.run_id for letter in aside)),
                PruneRequest(before=before, statuses=(Status.FAILED,), ids=failed),
            ):
                gone = await prune(self._session, what)
                runs, spared = runs + gone.runs, spared + gone.spared
            cursor = page.cursor
            if cursor is None:
                return PruneReport(runs=runs, spared=spared)

    async def _chosen(
        self, run_ids: str | Sequence[str] | None, where: DeadOptions | None
    ) -> AsyncGenerator[str, None]:
        if (run_ids is None) == (where is None):
            raise UsageError("say which dead letters: their ids, or where={...}; where={} means all of them")
        if run_ids is not None:
            given = (run_ids,) if isinstance(run_ids, str) else check_list("run_ids", run_ids, "['order-17']")
            # Checked before the first is changed; an id that is given twice is meant once.
            for run_id in dict.fromkeys([check_id(run_id) for run_id in given]):
                yield run_id
            return
        store, filter, cursor = await self._session.connect(), make_letter_filter(where or {}), None
        # Runs that die meanwhile are left out, or this might never end.
        filter = replace(filter, dead_before=min(store.clock() + 1, filter.dead_before or NEVER))
        while True:
            page = await store.list_dead_letters(filter, CHUNK, cursor)
            for letter in page.letters:
                yield letter.run_id
            cursor = page.cursor
            if cursor is None:
                return


def make_letter_filter(which: DeadOptions) -> DeadLetterFilter:
    """Check a filter of dead letters. Raises `UsageError`."""
    if not isinstance(which, Mapping):
        raise UsageError(f"where={brief(which)}: give a dict, such as where={{'type': 'billing.%'}}")
    if unknown := which.keys() - DeadOptions.__annotations__.keys():
        known = ", ".join(DeadOptions.__annotations__)
        raise UsageError(f"dead letters are not chosen by {brief(first_name(unknown))}; choose by {known}")
    type, reason, queue, error = which.get("type"), which.get("reason"), which.get("queue"), which.get("error")
    deleted = which.get("deleted", False)
    after, before = which.get("dead_after"), which.get("dead_before")
    if type is not None:
        check_patterns(check_text("type", type))
    return DeadLetterFilter(
        type=type,
        queue=None if queue is None else check_text("queue", queue),
        error=None if error is None else check_text("error", error),
        reasons=None if reason is None else _reasons(reason),
        dead_after=None if after is None else instant(after, 0),
        dead_before=None if before is None else instant(before, 0),
        deleted=None if deleted is None else check_flag("deleted", deleted),
    )


def _reasons(reason: object) -> tuple[DeadLetterReason, ...]:
    names = (reason,) if isinstance(reason, str) else check_list("reason", reason, "['failed']")
    for name in names:
        if not isinstance(name, str) or name not in tuple(DeadLetterReason):
            raise UsageError(f"{brief(name)} is not a reason; the reasons are {', '.join(DeadLetterReason)}")
    return tuple(map(DeadLetterReason, names))


def _no_letter(run: Run) -> UsageError:
    return UsageError(f"run {run.id!r} is no dead letter, it is {status_text(run)}")
