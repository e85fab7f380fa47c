"""Handlers for dead letters."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from perdure.http.api import ApiRequest, DurationText, Instant, Limit, Reason
from perdure.http.redaction import FailureView, Redactor
from perdure.http.runs.control import PruneView
from perdure.http.runs.reopen import RetryBody, changes_of
from perdure.http.views import Page, Payload, Time, view_of, views_of


class FaultView(Struct, frozen=True, kw_only=True):
    """One error of a dead letter."""

    at: Time
    started_at: Time
    location: str
    attempt: int
    error: FailureView


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """A run that does not continue until a person decides about it, with all of its errors, oldest first."""

    run_id: str
    type: str
    queue: str
    input: Payload
    reason: str
    attempts: int
    generation: int
    error: FailureView
    errors: tuple[FaultView, ...]
    created_at: Time
    dead_since: Time
    requeued: int
    requeued_at: Time
    parent_id: str | None
    deleted_at: Time


class DeadLettersQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of dead letters. A `%` at the end of `type` matches any continuation."""

    type: str | None = None
    queue: str | None = None
    error: str | None = None
    reason: tuple[str, ...] = ()
    dead_after: Instant | None = None
    dead_before: Instant | None = None
    #: Discarded ones only.
    deleted: bool = False
    #: Discarded ones as well.
    with_deleted: bool = False
    limit: Limit = 50
    cursor: str | None = None


async def list_dead_letters(api: ApiRequest, query: DeadLettersQuery) -> Page[DeadLetterView]:
    """List runs that failed for good, or were set aside, with all their errors; latest run first."""
    api.shown.check_filter(query.error)
    page = await api.engine.dead_letters.list(
        limit=query.limit,
        cursor=query.cursor,
        type=query.type,
        queue=query.queue,
        error=query.error,
        reason=query.reason or None,
        dead_after=query.dead_after,
        dead_before=query.dead_before,
        deleted=None if query.with_deleted else query.deleted,
    )
    return Page(views_of(DeadLetterView, page.letters, api.shown), page.cursor)


async def show_dead_letter(api: ApiRequest, run_id: str) -> DeadLetterView:
    """Read a dead letter."""
    return view_of(DeadLetterView, await api.engine.dead_letters.get(run_id), api.shown)


class DeadLetterChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of dead letters; empty for all of them."""

    type: str | None = None
    queue: str | None = None
    error: str | None = None
    reason: list[str] | None = None
    dead_after: Instant | None = None
    dead_before: Instant | None = None
    #: Discarded ones: left out (false), only those (true), or those too (null).
    deleted: bool | None = False


class RetryLettersBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters to retry: those named, or all that `where` selects; and changes to them."""

    ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    where: DeadLetterChoice | None = None
    changes: RetryBody = RetryBody()


class DiscardLettersBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Dead letters to discard: those named, or all that `where` selects."""

    ids: Annotated[list[str], Meta(max_length=1000)] | None = None
    where: DeadLetterChoice | None = None
    reason: Reason = ""


class BulkView(Struct, frozen=True):
    """Ids for which it was done, and by id the reasons why it was not."""

    done: tuple[str, ...]
    refused: dict[str, str]


def _choice(where: DeadLetterChoice | None, shown: Redactor) -> Any:
    if where is None:
        return None
    shown.check_filter(where.error)
    found = {name: value for name in where.__struct_fields__ if (value := getattr(where, name)) is not None}
    return {**found, "deleted": where.deleted}


async def retry_dead_letters(api: ApiRequest, body: RetryLettersBody) -> BulkView:
    """Retry dead letters: those named, or all that `where` selects."""
    ids: Any = body.ids[0] if body.ids is not None and len(body.ids) == 1 else body.ids
    done = await api.engine.dead_letters.retry(
        ids, where=_choice(body.where, api.shown), **changes_of(api, body.changes)
    )
    return BulkView(done.done, {run_id: api.shown.text(why) for run_id, why in done.refused.items()})


async def discard_dead_letters(api: ApiRequest, body: DiscardLettersBody) -> BulkView:
    """Take dead letters off the list: delete their runs, which can be undone."""
    done = await api.engine.dead_letters.discard(body.ids, where=_choice(body.where, api.shown), reason=body.reason)
    return BulkView(done.done, {run_id: api.shown.text(why) for run_id, why in done.refused.items()})


class PruneLettersBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Choice of the dead letters to delete for good."""

    older_than: DurationText
    where: DeadLetterChoice = DeadLetterChoice()


async def prune_dead_letters(api: ApiRequest, body: PruneLettersBody) -> PruneView:
    """Delete dead letters for good that died longer ago than that."""
    done = await api.engine.dead_letters.prune(body.older_than, **_choice(body.where, api.shown))
    return PruneView(done.runs, done.spared)
