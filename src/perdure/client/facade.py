"""Blocking views of async objects: one generic facade, complete by construction.

`mirror` makes a class with a member for each public member of an async class. A call goes to the async object; a
coroutine that it returns runs on one background event loop while the caller waits; an async generator becomes a
generator; an object of a mirrored class becomes its view. Writes on a connection of the caller run on the caller's own
thread, where that connection belongs.

Type checkers read `blocking.pyi`, which is generated from the same classes.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import threading
import warnings
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from types import GenericAlias, TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from perdure.client.session import refuse_in_workflow
from perdure.core.process_fork import detach_loop, never_finalize, watch_forks
from perdure.errors import EngineClosed, UsageError
from perdure.host import run_to_end
from perdure.store.sql.dialect import drive
from perdure.store.user_connections.adapter import adapter_for

T = TypeVar("T")

#: Views of async classes.
_views: dict[type, type[Facade]] = {}


class Portal:
    """A background event loop that callers of one engine wait on. In a forked child it begins anew."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._begin()
        watch_forks(self._after_fork_in_child)

    def _begin(self) -> None:
        """Set up what belongs to one process."""
        #: The process whose event loop this is.
        self.process = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def _after_fork_in_child(self) -> None:
        """Leave the background loop to the parent: it has no thread here."""
        if self._loop is not None:
            detach_loop(self._loop)
        never_finalize(self._loop, self._thread)
        self._begin()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a last thing and end the loop. A second call does nothing."""
        refuse_in_workflow()
        if self._closed:
            return
        self.wait(last())
        self._closed = True
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def settle(self, value: Any, connection: object = None) -> Any:
        """Turn the answer of an async object into the answer of its view."""
        if inspect.iscoroutine(value):
            return self.view(self.wait(value) if connection is None else self._write(connection, value))
        return self.iterate(value) if isinstance(value, AsyncGenerator) else self.view(value)

    def view(self, value: Any) -> Any:
        """Wrap an object of a mirrored class, or a list of them; other values stay as they are."""
        if type(value) is list and value and type(value[0]) in _views:
            return [self.view(one) for one in value]
        kind = _views.get(type(value))
        return value if kind is None else view_of(kind, self, value)

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background loop and wait for its result."""
        try:
            self._check()
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._running()).result()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the background loop, for a caller that awaits it on a loop of its own."""
        try:
            refuse_in_workflow()
            if self._closed:
                raise EngineClosed(f"{self._name} was closed; make a new one")
        except BaseException:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def run_here(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on a new event loop of this thread, where it may handle signals."""
        try:
            self._check()
        except BaseException:
            coroutine.close()
            raise
        return run_to_end(coroutine)

    def iterate(self, items: AsyncGenerator[T]) -> Generator[T]:
        """Iterate over an async generator on the background loop."""
        process = self.process
        try:
            while (item := self.wait(_next(items))) is not None:
                yield item
                if process != self.process:
                    raise EngineClosed(
                        "this iteration was begun by the process that this one was forked from; begin another"
                    )
        finally:
            # An engine that was closed in the middle of the iteration has ended it.
            with suppress(EngineClosed):
                if process == self.process:
                    self.wait(_end(items))
                else:
                    never_finalize(items)

    def _write(self, connection: object, coroutine: Coroutine[Any, Any, T]) -> T:
        """Write on a connection of the caller, on the caller's thread."""
        try:
            refuse_in_workflow()
            adapter = adapter_for(connection)
            if adapter.is_async:
                raise UsageError(
                    f"a connection of {adapter.library} that is async belongs to its event loop; use the "
                    "async engine there: "
                    "`await engine.start(..., connection=connection)`"
                )
            return drive(coroutine)
        finally:
            coroutine.close()

    def _check(self) -> None:
        """Raise unless the caller may wait for the background loop."""
        refuse_in_workflow()
        if self._closed:
            raise EngineClosed(f"{self._name} was closed; make a new one")
        if threading.current_thread() is self._thread:
            raise UsageError("a blocking engine cannot wait on its own event loop; call it from a sync step instead")
        _warn_on_loop()

    def _running(self) -> asyncio.AbstractEventLoop:
        # Begun on first use: writes on connections need no loop, and a server that forks must not copy it.
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="perdure blocking", daemon=True)
                self._thread.start()
            return self._loop


def _warn_on_loop() -> None:
    """Warn about a call on a thread whose event loop is running, which stands still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    # The caller's own line, so that Python shows the warning once for each.
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("perdure."):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(
        "a blocking engine is called in async code, and the event loop stands still until it answers; use "
        "perdure.Engine and `await`, or call it in a thread: `await asyncio.to_thread(...)`",
        RuntimeWarning,
        stacklevel=depth + 1,
    )


class Facade:
    """Base of all views: an async object, and the portal on which its coroutines run."""

    #: Public members of the async class that the view leaves out.
    _hidden: ClassVar[frozenset[str]] = frozenset()

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)

    def __init__(self, portal: Portal, target: Any) -> None:
        self._portal = portal
        self._target = target

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        return self._portal.settle(self._target.__aenter__())

    if not TYPE_CHECKING:  # type checkers report this mistake by themselves

        async def __aenter__(self) -> NoReturn:
            refuse_in_workflow()
            raise UsageError(f"{self!r} is a blocking view, entered by `with`; in async code use perdure.Engine")

        async def __aexit__(self, *_: object) -> None:
            refuse_in_workflow()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.settle(self._target.__aexit__(kind, error, trace))


def mirror(target: type, base: type[Facade] = Facade) -> Any:
    """Make the blocking class of an async class. Members that `base` defines take the place of mirrored ones."""
    members = {
        name: _property(name, member) if isinstance(member, property) else _method(name, member)
        for name, member in vars(target).items()
        if not name.startswith("_") and name not in vars(base) and name not in base._hidden
    }
    fields = {name: _property(name, property(doc=f"The `{name}` of the async object.")) for name in _fields(target)}
    text = {"__doc__": base.__doc__ if base is not Facade else f"`{target.__name__}` whose methods block."}
    body = {**fields, **members, **text, "__module__": "perdure.blocking"}
    cls: Any = type(target.__name__, (base,), body)
    _views[target] = cls
    return cls


def alias(target: type, known: type) -> None:
    """Show objects of a subclass by the view of a class that is mirrored."""
    _views[target] = _views[known]


def _fields(target: type) -> list[str]:
    """Attributes of instances, which a mirrored class declares by annotations."""
    return [name for name in inspect.get_annotations(target) if not name.startswith("_")]


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(self: Facade, *args: Any, **kwargs: Any) -> Any:
        return self._portal.settle(getattr(self._target, name)(*args, **kwargs), kwargs.get("connection"))

    return call


def _property(name: str, member: property) -> property:
    def get(self: Facade) -> Any:
        return self._portal.view(getattr(self._target, name))

    def set_(self: Facade, value: Any) -> None:
        setattr(self._target, name, value)

    return property(get, None if member.fset is None else set_, doc=member.__doc__)


def view_of(kind: type[Facade], portal: Portal, target: object) -> Any:
    """Make the view of an object that exists. The constructors of some views are those of users, who have no object."""
    view = object.__new__(kind)
    Facade.__init__(view, portal, target)
    return view


def parts_of(facade: Facade) -> tuple[Portal, Any]:
    """Return the portal and the async object of a view, for views that are made from another one."""
    return facade._portal, facade._target


async def _next(items: AsyncGenerator[T]) -> T | None:
    return await anext(items, None)


async def _end(items: AsyncGenerator[T]) -> None:
    await items.aclose()
