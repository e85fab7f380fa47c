"""Forks of this process: objects with threads, locks or connections are told before a fork and after it.

A forked child has one thread and a copy of everything else: locks that no thread will release, and the parent's sockets and files. An
object that was told drops them there. `os.register_at_fork` keeps its callbacks for ever, so one set of callbacks serves all objects,
which are held weakly.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("perdure.host")


class ForkAware:
    """Base of objects that are told of forks once they are watched. A child is told while it has one thread."""

    def _before_fork(self) -> None:
        """Prepare, in the parent and on the thread that forks."""

    def _after_fork_in_parent(self) -> None:
        """Go on, on the same thread; also if the fork failed."""

    def _after_fork_in_child(self) -> None:
        """Drop what belongs to the parent."""


_watched: dict[int, weakref.ref[ForkAware]] = {}
#: Objects of the parent, in a child: their finalizers would act on sockets and event loops that the parent goes on using.
_kept: list[object] = []


def watch_forks(one: ForkAware) -> None:
    """Tell an object of forks for as long as it lives. Twice is once."""
    number = id(one)
    _watched[number] = weakref.ref(one, lambda _: _watched.pop(number, None))


def never_finalize(*things: object) -> None:
    """In a child: never finalize these objects of the parent."""
    _kept.append(things)


def detach_descriptor(descriptor: int) -> None:
    """In a child: replace its copy of a descriptor by one of the null device.

    The parent's own is left as it is. Nothing that the child still does with the old number reaches the parent's peer or event loop, and a
    connection ends when the parent ends it.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(null, descriptor, inheritable=False)
        finally:
            os.close(null)
    except OSError as error:
        _log.warning("the descriptor %d of the parent process stays open in this one: %s", descriptor, error)


def suppress_pending_warning(task: asyncio.Task[Any]) -> None:
    """Let a task that is still pending when the process ends be destroyed without a word in the log."""
    # Known to asyncio itself, though not to its types.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def detach_loop(loop: asyncio.AbstractEventLoop) -> None:
    """In a child: cut off its copies of the descriptors that an event loop of the parent watches, where the loop tells which."""
    for task in asyncio.all_tasks(loop):
        suppress_pending_warning(task)
    selector = getattr(loop, "_selector", None)
    for descriptor in list(selector.get_map()) if selector is not None else ():
        detach_descriptor(descriptor)


def _tell(act: Callable[[ForkAware], object]) -> None:
    for reference in list(_watched.values()):
        one = reference()
        if one is None:
            continue
        try:
            act(one)
        except Exception:
            _log.exception("%r could not be prepared for a fork of its process", one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _tell(lambda one: one._before_fork()),
        after_in_parent=lambda: _tell(lambda one: one._after_fork_in_parent()),
        after_in_child=lambda: _tell(lambda one: one._after_fork_in_child()),
    )
