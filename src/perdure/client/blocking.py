"""The client for code that is not async: each class is the blocking view of the async class of the same name.

`blocking.pyi` spells their signatures for type checkers and editors. `python -m tests.typing.blocking_stub` writes it.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from perdure.client import (
    audit,
    dead_letters,
    engine,
    events,
    handle,
    limits,
    locks,
    outbox,
    pusher,
    schedules,
    tokens,
    watermarks,
    workers,
)
from perdure.client.facade import Facade, Portal, alias, mirror, parts_of, view_of
from perdure.client.remote import engine as remote_engine
from perdure.client.remote import handle as remote_handle
from perdure.client.remote import namespaces as remote_namespaces
from perdure.client.runs import namespace


class EngineView(Facade):
    """An engine whose methods block. Close it, or use it in a `with`. In a forked child it begins anew."""

    _hidden = frozenset({"blocking"})

    def __init__(self, *args: Any, **options: Any) -> None:
        target = engine.Engine(*args, **options)
        super().__init__(Portal(repr(target)), target)

    def __enter__(self) -> EngineView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine and end the background loop."""
        self._portal.close(self._target.close)


class WorkerFacade(Facade):
    """A worker on the background loop of its engine, to be entered or run."""

    _process = 0

    def __exit__(self, *_: object) -> None:
        # A child that was forked in the block leaves the worker to its parent.
        if self._process == self._portal.process:
            self._portal.settle(self._target.stop())

    def __enter__(self) -> WorkerFacade:
        self._portal.settle(self._target.start())
        self._process = self._portal.process
        return self

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then stop in order. A second signal stops at once.

        Call it on the main thread.
        """
        self._portal.run_here(self._target.run())


class LockContextView(Facade):
    """A lock for the time of a block.

    The block cannot be cancelled, so a long one looks at `lock.lost` now and then.
    """

    _hidden = frozenset({"begin", "end"})

    def __enter__(self) -> Any:
        self._lock = self._portal.wait(self._target.begin(lambda: None))
        return self._portal.view(self._lock)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal.wait(self._target.end()) and error is None:
            raise locks.lost_early(self._lock)


class PusherView(Facade):
    """A worker that executes only the runs that it is told to, for functions that are not async."""

    def __init__(self, engine: EngineView, **options: Any) -> None:
        portal, target = parts_of(engine)
        super().__init__(portal, pusher.Pusher(target, **options))


Engine = mirror(engine.Engine, EngineView)
Handle = mirror(handle.Handle)
EngineWorker = mirror(workers.EngineWorker, WorkerFacade)
Pusher = mirror(pusher.Pusher, PusherView)
Lock = mirror(locks.Lock)
alias(locks.RenewedLock, locks.Lock)
LockContext = mirror(locks.LockContext, LockContextView)
Runs = mirror(namespace.Runs)
Schedules = mirror(schedules.Schedules)
Limits = mirror(limits.Limits)
Breakers = mirror(limits.Breakers)
Locks = mirror(locks.Locks)
DeadLetters = mirror(dead_letters.DeadLetters)
AuditTrail = mirror(audit.AuditTrail)
Workers = mirror(workers.Workers)
Queues = mirror(workers.Queues)
Watermarks = mirror(watermarks.Watermarks)
Tokens = mirror(tokens.Tokens)
Outbox = mirror(outbox.Outbox)
Events = mirror(events.Events)

for _remote, _local in (
    (remote_engine.RemoteEngine, engine.Engine),
    (remote_handle.RemoteHandle, handle.Handle),
    (remote_namespaces.RemoteRuns, namespace.Runs),
    (remote_namespaces.RemoteSchedules, schedules.Schedules),
    (remote_namespaces.RemoteLimits, limits.Limits),
    (remote_namespaces.RemoteBreakers, limits.Breakers),
    (remote_namespaces.RemoteLocks, locks.Locks),
    (remote_namespaces.RemoteDeadLetters, dead_letters.DeadLetters),
    (remote_namespaces.RemoteAuditTrail, audit.AuditTrail),
    (remote_namespaces.RemoteTokens, tokens.Tokens),
    (remote_namespaces.RemoteEvents, events.Events),
):
    alias(_remote, _local)


def engine_over(target: engine.Engine) -> Any:
    """Make a blocking view of an engine that exists, with a background loop of its own."""
    return view_of(Engine, Portal(repr(target)), target)
