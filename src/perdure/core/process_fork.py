"""Forks of this process: callbacks before and after a fork.

A forked child has one thread and a copy of everything else: locks that no thread will release, and the parent's sockets
and files. Objects with threads, locks or connections drop their copies in the child. `os.register_at_fork` never
forgets a callback, so one set of callbacks serves all objects and holds them weakly.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import weakref
from collections.abc import Callable
from typing import Any

from msgspec import Struct

_log = logging.getLogger("perdure.host")


Callback = Callable[[], object]


class _Watch(Struct, frozen=True):
    """The methods of one object that are called at forks."""

    before: weakref.WeakMethod[Callback] | None
    in_parent: weakref.WeakMethod[Callback] | None
    in_child: weakref.WeakMethod[Callback] | None


_watched: dict[int, _Watch] = {}
#: In a child, objects of the parent: their finalizers would act on sockets and event loops that the parent still uses.
_kept: list[object] = []


def watch_forks(in_child: Callback, *, before: Callback | None = None, in_parent: Callback | None = None) -> None:
    """Call methods of an object at forks for as long as it lives; watching it again changes nothing.

    `in_child` drops what belongs to the parent, while the child has one thread. `before` prepares for a fork, in the
    parent and on the thread that forks. `in_parent` resumes on the same thread, also if the fork failed.
    """
    number = id(getattr(in_child, "__self__"))  # noqa: B009 - only methods have it
    _watched[number] = _Watch(
        before=None if before is None else weakref.WeakMethod(before),
        in_parent=None if in_parent is None else weakref.WeakMethod(in_parent),
        in_child=weakref.WeakMethod(in_child, lambda _: _watched.pop(number, None)),
    )


def never_finalize(*things: object) -> None:
    """In a child: never finalize these objects of the parent."""
    _kept.append(things)


def detach_descriptor(descriptor: int) -> None:
    """In a child: replace its copy of a descriptor by the null device.

    The parent's own descriptor is unchanged. What the child still does with the number no longer reaches the parent's
    peer or event loop, and a connection ends when the parent closes it.
    """
    try:
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.dup2(null, descriptor, inheritable=False)
        finally:
            os.close(null)
    except OSError as error:
        _log.warning("descriptor %d of the parent process stays open in this one: %s", descriptor, error)


def suppress_pending_warning(task: asyncio.Task[Any]) -> None:
    """Suppress asyncio's warning about a task that is still pending when it is destroyed."""
    # An attribute of asyncio that its type stubs do not declare.
    task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio's own


def detach_loop(loop: asyncio.AbstractEventLoop) -> None:
    """In a child: detach the descriptors that an event loop of the parent watches, if the loop lists them."""
    for task in asyncio.all_tasks(loop):
        suppress_pending_warning(task)
    selector = getattr(loop, "_selector", None)
    for descriptor in list(selector.get_map()) if selector is not None else ():
        detach_descriptor(descriptor)


def _call_all(moment: Callable[[_Watch], weakref.WeakMethod[Callback] | None]) -> None:
    for watch in list(_watched.values()):
        reference = moment(watch)
        callback = None if reference is None else reference()
        if callback is None:
            continue
        try:
            callback()
        except Exception:
            _log.exception("%r failed to handle a fork of its process", callback)


# A reference that is left when the interpreter ends calls back into modules that are gone.
atexit.register(_watched.clear)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call_all(lambda watch: watch.before),
        after_in_parent=lambda: _call_all(lambda watch: watch.in_parent),
        after_in_child=lambda: _call_all(lambda watch: watch.in_child),
    )
