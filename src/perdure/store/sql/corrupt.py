"""Stored data that cannot be read: one error for all of it, with the table and the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from perdure.errors import PerdureError, StoreCorrupt

T = TypeVar("T")

#: Errors of decoding a cell, or of using what is in it.
UNREADABLE = (msgspec.MsgspecError, ValueError, OverflowError)


def readable(read: Callable[[str], T], text: str, table: str, key: str) -> T:
    """What a cell says. Raises `StoreCorrupt` with its table and key."""
    try:
        return read(text)
    except UNREADABLE as error:
        raise unreadable(table, key, error) from error


def unreadable(table: str, key: str, error: object) -> StoreCorrupt:
    """The error for a cell that cannot be read."""
    return StoreCorrupt(
        f"{table} has data that cannot be read, at {key}: {error}; restore it from a backup, or delete it"
    )


def known(error: BaseException, verb: str, where: str) -> BaseException:
    """The error that the contract of a store has for one that a verb met; the same if there is none."""
    if isinstance(error, PerdureError) or not isinstance(error, UNREADABLE):
        return error
    return StoreCorrupt(
        f"{where} has or was given data that cannot be used, met by {verb}: {type(error).__name__}: {error}"
    )
