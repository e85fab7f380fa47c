"""Signs of statuses: one glyph and one colour each, the same on pages and in terminals."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from perdure.core.model.run import Status


class StatusSign(Struct, frozen=True):
    """Sign of a status. Colour never stands alone: the glyph or the word is beside it."""

    glyph: str
    #: Style of a terminal. Pages have the colour of the same name as the status.
    style: str


STATUS_SIGNS: Mapping[Status, StatusSign] = MappingProxyType(
    {
        Status.PENDING: StatusSign("○", ""),
        Status.RUNNING: StatusSign("◐", "cyan"),
        Status.WAITING: StatusSign("◔", "yellow"),
        Status.BLOCKED: StatusSign("◆", "bold red"),
        Status.COMPLETED: StatusSign("●", "green"),
        Status.FAILED: StatusSign("✕", "red"),
        Status.CANCELLED: StatusSign("⊘", "magenta"),
    }
)
