"""Which runs to list, and a page of them."""

from __future__ import annotations

from msgspec import Struct

from perdure.core.model.run import Run, Status


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list, newest first. None means any; of deleted runs there are none, only these (True), or these too (None)."""

    status: tuple[Status, ...] | None = None
    type: str | None = None
    queue: str | None = None
    parent_id: str | None = None
    created_after: int | None = None
    created_before: int | None = None
    deleted: bool | None = False


class Page(Struct, frozen=True):
    """A page of a listing; hand `cursor` back for the next one, None when there is none."""

    runs: tuple[Run, ...]
    cursor: str | None
