"""The only place that makes msgspec decoders for classes.

msgspec inspects a class at first use and stores unfinished results on the class meanwhile. Another thread that uses the
class at that moment reads them, and the process crashes (seen with 0.22). So decoders are made one at a time: those of
Perdure's classes at import, those of users' types when they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from perdure.core.process_fork import watch_forks

T = TypeVar("T")


class _InspectionLock:
    """The lock around inspection; a forked child gets a new one, because no thread there would release the parent's."""

    def __init__(self) -> None:
        self._after_fork_in_child()
        watch_forks(self._after_fork_in_child)

    def _after_fork_in_child(self) -> None:
        #: Reentrant, because inspecting a type evaluates the names in it.
        self.lock = threading.RLock()


_inspection = _InspectionLock()


def convert_to(
    type: Any, value: Any, *, dec_hook: Callable[[type, Any], Any] | None = None, strict: bool = True
) -> Any:
    """Convert plain JSON values to a type. Raises `msgspec.ValidationError`. `strict`: text is not read as a number."""
    with _inspection.lock:
        return msgspec.convert(value, type, strict=strict, str_keys=True, dec_hook=dec_hook)


def decoder_for(type: type[T], *, dec_hook: Callable[[type, Any], Any] | None = None) -> msgspec.json.Decoder[T]:
    """Make a decoder of a type. Raises what msgspec raises for a type that it cannot decode."""
    with _inspection.lock:
        return msgspec.json.Decoder(type, dec_hook=dec_hook)
