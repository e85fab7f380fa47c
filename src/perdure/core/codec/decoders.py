"""Making decoders of JSON; nobody else makes one for a class.

msgspec learns what a class is made of when it meets it first, and leaves what it has learnt with the class while it is still learning.
Another thread that meets the class at that moment reads what is not there, and the process ends (seen with 0.22). So they are made
one at a time: ours when their modules are imported, those of users' types when they are needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from perdure.core.process_fork import ForkAware, watch_forks

T = TypeVar("T")


class _Learning(ForkAware):
    """The lock that makes it one at a time; another one in a forked child, where no thread would release the parent's."""

    def __init__(self) -> None:
        self._after_fork_in_child()
        watch_forks(self)

    def _after_fork_in_child(self) -> None:
        #: The same thread may come back: to find out what a type is made of, names in it are evaluated.
        self.lock = threading.RLock()


_learning = _Learning()


def convert_to(type: Any, value: Any, *, dec_hook: Callable[[type, Any], Any]) -> Any:
    """A value of a type from plain JSON values. Raises `msgspec.ValidationError`."""
    with _learning.lock:
        return msgspec.convert(value, type, str_keys=True, dec_hook=dec_hook)


def decoder_for(type: type[T], *, dec_hook: Callable[[type, Any], Any] | None = None) -> msgspec.json.Decoder[T]:
    """A decoder of a type. Raises what msgspec raises about one that it cannot decode."""
    with _learning.lock:
        return msgspec.json.Decoder(type, dec_hook=dec_hook)
